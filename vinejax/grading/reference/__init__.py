"""The grader of VinePPO's code (McGill-NLP/VinePPO), with its mistakes.

Read `compare.py` first, then `normalise.py` (spelling) and `symbolic.py` (comparison by sympy).
"""
