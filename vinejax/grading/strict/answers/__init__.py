"""Answers: `nodes.py` says what one can be, `reader.py` reads it from cleaned text.

The others serve the reader or the comparison: matrices, measures, relations, sets of real numbers,
and lists with dots.
"""
