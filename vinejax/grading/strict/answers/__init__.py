"""Answers: `nodes.py` defines their kinds, `reader.py` reads them from cleaned text.

Each of the remaining files serves the reader or the comparison of answers. They are about matrices,
measures, relations, conditions, sets of real numbers, and lists with dots.
"""
