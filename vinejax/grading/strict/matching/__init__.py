"""The rules of equality: `answers.py` for answers, `formulas.py` for formulas with words beside
them, `pairing.py` for lists in any order.
"""
