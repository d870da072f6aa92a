"""The table of contributed methods and `--help method` are what the methods' docstrings say.

PYTHONPATH=tests python tests/contrib/methods/test_contributed_page.py writes the table anew.
"""

import re

import pytest
from helpers.method_page import check_docstring, check_help, renewed
from helpers.paths import CONFIGS, REPO

from vinejax.contrib.names import METHODS
from vinejax.methods.known import all_methods

PAGE = REPO / "vinejax/contrib/methods/README.md"


def page() -> str:
    maker = "tests/contrib/methods/test_contributed_page.py"
    return renewed(PAGE, METHODS, CONFIGS / "contrib", maker)


def test_the_table_is_current():
    assert PAGE.read_text(encoding="utf-8") == page(), f"run {__file__}"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name: str):
    check_docstring(name)


def test_help_has_them_all():
    text = check_help(METHODS)
    assert re.search(r"^ +needs groups, entropies, ε_high 0.28$", text, re.MULTILINE)


def test_the_page_of_methods_names_who_reads_a_field():
    text = " ".join((REPO / "docs/methods.md").read_text(encoding="utf-8").split())
    scale, rest = text.split("`reward.scale` is for ")[1].split("`kl.place` is for these", 1)
    scaled = re.findall(r"`([\w+]+)`", scale)
    placed = scaled + re.findall(r"`([\w+]+)`", rest.partition(". ")[0])
    for field, names in (("reward.scale", scaled), ("kl.place", placed)):
        reading = [name for name, method in all_methods().items() if field in method.reads]
        assert sorted(names) == sorted(reading), field
    discounted = re.findall(r"`([\w+]+)`", text.split("`ppo.gamma` is for ")[1].partition(". ")[0])
    records = all_methods().items()
    found = [name for name, x in records if x.credit and "ppo.gamma" not in x.ignores]
    assert sorted(discounted) == sorted(found)
    flat, overlong = re.findall(
        r"ll but ([^.]+?) read `r", text.partition("`reward.scale` is for")[0]
    )
    unread = [re.findall(r"`([\w+]+)`", x) for x in (flat, overlong)]
    for field, names in (
        ("rollout.zero_variance", unread[0]),
        ("reward.overlong", sum(unread, [])),
    ):
        records = all_methods().items()
        found = [name for name, record in records if record.credit and field in record.ignores]
        assert sorted(names) == sorted(found), field


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
