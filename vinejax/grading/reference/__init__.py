"""VinePPO's grader (that of McGill-NLP/VinePPO, the code of the paper), its mistakes included.

Read `compare.py` first, then `normalise.py` (spelling) and `symbolic.py` (comparison by sympy).
"""
