"""The version, in a file that imports nothing: `setup.py` reads it, and runs record it."""

__version__ = "0.1.0"
