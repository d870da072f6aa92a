"""Answers: `nodes.py` defines their kinds, `reader.py` reads them from cleaned text.

The reader or the comparison also uses the other files: matrices, measures, relations, sets of real
numbers, and lists with dots.
"""
