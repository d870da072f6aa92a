"""Answers: `nodes.py` defines their kinds, `reader.py` reads them from cleaned text.

The other files serve the reader or the comparison: matrices, measures, relations, sets of real
numbers, and lists with dots.
"""
