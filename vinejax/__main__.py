"""`python -m vinejax` is the command `vinejax`: see vinejax/main.py."""

from vinejax.main import run

if __name__ == "__main__":
    run()
