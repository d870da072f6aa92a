"""Methods: one module each, with its equation, its source and its record `METHOD`.

`base.py` defines what a method is. `vineppo.py` has the method that gave the package its name.
`known.py` finds a method by name.
"""
