"""Grading in processes that can be killed.

Read `grader.py` first: it holds the pool. `jobs.py` says what a worker is asked, `process.py` is
the pool's side of one worker, `worker.py` the program that a worker runs.
"""
