"""Grading in processes that can be killed.

Read `grader.py` first: it holds the pool. `jobs.py` defines the jobs of a worker, `process.py` is
the pool's side of one worker, `worker.py` the program that a worker runs.
"""
