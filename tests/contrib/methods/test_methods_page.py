"""The table of docs/methods.md and `--help method` are what the methods' docstrings say.

python tests/contrib/methods/test_methods_page.py writes the table anew.
"""

import re
from pathlib import Path

from helpers.paths import REPO

from vinejax.config.describe import describe
from vinejax.methods.about import about, table, text_of
from vinejax.methods.known import all_methods

BEGIN, END = (
    "<!-- made by tests/contrib/methods/test_methods_page.py -->\n",
    "\n<!-- end of what is made -->\n",
)


def renewed(page: str, configs: Path) -> str:
    """The page with the table as it is to be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert before and after, "the marks around the table are gone"
    return before + BEGIN + table(configs) + END + after


def test_the_table_is_current():
    page = (REPO / "docs/methods.md").read_text(encoding="utf-8")
    assert page == renewed(page, REPO / "configs"), f"run python {Path(__file__).name}"


def test_every_method_says_what_it_is():
    for name, method in all_methods().items():
        found = about(name)
        assert found.title.endswith(".") and len(found.title) < 110, name
        assert found.equation and "  " not in found.equation, name
        assert found.source or name == "sft", name
        lines = text_of(method).splitlines()
        assert all(line.startswith("    ") for line in lines if line.startswith(" ")), name


def test_help_has_them_all():
    text = describe("method")
    flat = " ".join(text.split())
    for name in all_methods():
        assert f"{name}: {about(name).title}" in flat
        assert all(word in flat for word in about(name).equation.split())
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"^ +needs groups, entropies, ε_high 0.28$", text, re.MULTILINE)


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[3]
    target = root / "docs/methods.md"
    target.write_text(renewed(target.read_text("utf-8"), root / "configs"), "utf-8")
