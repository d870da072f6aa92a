"""The part of a page on methods that is made from their docstrings."""

from collections.abc import Iterable
from pathlib import Path

from vinejax.config.describe import describe
from vinejax.methods.about import about, table, text_of
from vinejax.methods.known import known_method

END = "\n<!-- end of what is made -->\n"


def renewed(page: Path, names: Iterable[str], configs: Path, maker: str) -> str:
    """The page's text with its table as it is to be; `maker` is the file that the mark names."""
    mark = f"<!-- made by {maker} -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(mark)
    _, _, after = rest.partition(END)
    assert before and after, f"{page}: the marks around the table are gone"
    return before + mark + table(names, configs, page) + END + after


def check_docstring(name: str) -> None:
    """Asserts that a method's docstring has a title, an equation and a source."""
    found, method = about(name), known_method(name)
    assert method is not None and found.title.endswith(".") and len(found.title) < 110
    assert found.equation and "  " not in found.equation
    assert found.source or name == "sft"
    lines = text_of(name, method).splitlines()
    assert all(line.startswith("    ") for line in lines if line.startswith(" "))


def check_help(names: Iterable[str]) -> str:
    """Asserts that `--help method` has the titles and equations of methods; returns its text."""
    text = describe("method")
    flat = " ".join(text.split())
    for name in names:
        assert f"{name}: {about(name).title}" in flat
        assert all(word in flat for word in about(name).equation.split())
    assert max(map(len, text.splitlines())) <= 100
    return text
