"""Formulas: `syntax_trees.py` defines them, `lexer.py` and `parser.py` read them from text,
`evaluate.py` computes values at a point, and `symbolic.py` compares two trees at several points.
"""
