"""Strict grading: whether a mathematician would take one answer for the other.

Read `compare.py` first: it cleans two answers (`latex.py`), reads them and compares them. Then
`answers/` (what an answer can be, and how it is read), `algebra/` (formulas: parsing, values,
equality), `english/` (words, units and spoken numbers) and `matching.py` (the rules of equality).
`marks.py` has the characters that stand for structure in a cleaned answer.
"""
