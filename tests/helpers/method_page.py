"""The part of a page on methods that is made from their docstrings."""

import ast
import os
import re
from collections.abc import Iterable
from pathlib import Path

from vinejax.config.describe import describe
from vinejax.core.settings import Config
from vinejax.methods.about import about, text_of
from vinejax.methods.known import known_method

HEAD = "| `method` | needs | equation | departs from its source |\n|---|---|---|---|\n"
END = "\n<!-- end of what is made -->\n"


def renewed(page: Path, names: Iterable[str], configs: Path, maker: str) -> str:
    """The page's text with its table as it is to be; `maker` is the file that the mark names."""
    mark = f"<!-- made by {maker} -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(mark)
    _, _, after = rest.partition(END)
    assert before and after, f"{page}: the marks around the table are gone"
    return before + mark + table(names, configs, page) + END + after


def table(names: Iterable[str], configs: Path, page: Path) -> str:
    """The table of these methods for `page`. Names link to configuration files in `configs`."""
    # Reversed, so that of several files for one method the first by name remains.
    files = {_method_of(path): path for path in sorted(configs.glob("tiny*.py"), reverse=True)}
    rows = []
    for name in names:
        _, needs, equation, source, departs = about(name)
        link = f"[{name}]({os.path.relpath(files[name], page.parent)})"
        papers = re.findall(r"https://arxiv.org/abs/([\d.]+\d)", source)
        if papers:
            link += f" [{papers[0]}](https://arxiv.org/abs/{papers[0]})"
        cells = [link, needs, equation, departs.rstrip(".")]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return HEAD + "".join(rows)


def _method_of(path: Path) -> str:
    """The method that a configuration file sets, or the default method if it sets none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "cfg.method":
            return ast.literal_eval(node.value)
    return Config().method


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
