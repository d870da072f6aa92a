"""Formulas: `trees.py` says what one is, `lexer.py` and `parser.py` read it from text, `evaluate.py`
computes its value at a point, and `symbolic.py` compares two of them at several points.
"""
