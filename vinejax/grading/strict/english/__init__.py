"""Reads words in answers: numbers in words, money, units and the letters of choices.

Read `words.py` first. These modules work on text, not on formulas or nodes.
"""
