"""Formulas: `syntax_trees.py` defines them, `parser.py` reads them from text.

`evaluate.py` computes values at a point, and `symbolic.py` compares two trees at several points.
"""
