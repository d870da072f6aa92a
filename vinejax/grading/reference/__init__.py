"""The grading of the reference implementation (McGill-NLP/VinePPO), its mistakes included.

Read `compare.py` first, then `normalise.py` (spelling) and `symbolic.py` (what sympy decides).
"""
