"""The page on metrics: the names of other libraries stand beside names that the page explains."""

import re

from helpers.paths import REPO

PAGE = (REPO / "docs" / "metrics.md").read_text(encoding="utf-8")
HEADING = "### The same under other names"


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_names_of_other_libraries_stand_beside_names_that_the_page_explains():
    before, _, after = PAGE.partition(HEADING)
    rows = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    explained = {
        name
        for line in before.splitlines()
        if line.startswith("| `")
        for name in names_in(line.split(" | ")[0])
    }
    assert len(rows) > 20
    for row in rows:
        cells = row.strip("| ").split(" | ")
        assert names_in(cells[0])[0] in explained, row
        assert any(name for cell in cells[1:4] for name in names_in(cell)) or "the same" in row, row


def test_no_name_of_ours_stands_for_two_rows():
    rows = [line for line in PAGE.partition(HEADING)[0].splitlines() if line.startswith("| `")]
    train = [name for row in rows for name in names_in(row.split(" | ")[0]) if "/" in name]
    known = {"eval/pass_at_1", "actor/clip_frac", "values/sign_certain", "actor/entropy"}
    known |= {"reward/mean", "response_length/mean"}  # also in the tables of what to look at first
    assert {name for name in train if train.count(name) > 1} <= known
