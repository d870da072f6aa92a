"""Words in answers, as text: spoken numbers and money (quantities), units, words, choices.

Read `words.py` first; nothing here imports formulas or nodes.
"""
