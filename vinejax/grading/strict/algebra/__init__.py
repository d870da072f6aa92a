"""Formulas: `trees.py` defines them, `lexer.py` and `parser.py` read them from text, `evaluate.py`
computes their values at a point, and `symbolic.py` compares two of them at several points.
"""
