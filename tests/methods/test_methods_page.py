"""The table of docs/methods.md and `--help method` are what the docstrings of the methods say.

PYTHONPATH=tests python tests/methods/test_methods_page.py writes the table anew.
"""

import pytest
from helpers.method_page import check_docstring, check_help, renewed
from helpers.paths import CONFIGS, REPO

from vinejax.methods.known import METHODS

PAGE = REPO / "docs/methods.md"


def page() -> str:
    return renewed(PAGE, METHODS, CONFIGS, "tests/methods/test_methods_page.py")


def test_the_table_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), f"run {__file__}"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name: str):
    check_docstring(name)


def test_help_has_them_all():
    check_help(METHODS)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
