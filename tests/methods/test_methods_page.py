"""The table of docs/methods.md and `--help method` are what the docstrings of the methods say.

PYTHONPATH=tests python tests/methods/test_methods_page.py writes the table anew.
"""

import pytest
from helpers.method_page import check_docstring, renewed
from helpers.paths import CONFIGS, REPO

from vinejax.config.describe import describe
from vinejax.methods.about import about
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
    text = describe("method")
    flat = " ".join(text.split())
    for name in METHODS:
        assert f"{name}: {about(name).title}" in flat
        assert all(word in flat for word in about(name).equation.split())
    assert max(map(len, text.splitlines())) <= 100


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
