"""Methods: one module each, with its equation, its source and its record `METHOD`.

`base.py` says what a method is; `vineppo.py` is the one that the package is named for; `known.py`
finds a method by its name.
"""
