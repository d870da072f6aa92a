"""The pages: what they link to exists, the reference is whole, and the engine's example runs."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import REPO

import vinejax

LISTED = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=REPO, capture_output=True, text=True, check=False
)
PAGES = LISTED.stdout.split() or ["README.md"]  # an unpacked archive has no list of files


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    headings = re.findall(
        r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_links_to_exists(name: str):
    page = REPO / name
    text = without_code(page.read_text(encoding="utf-8"))
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or anchor and anchor not in anchors_of(target):
            missing.append(link)
    assert not missing


def test_extras_that_messages_and_pages_name_exist():
    setup = (REPO / "setup.py").read_text(encoding="utf-8")
    extras = set(re.findall(r'^ {4,8}"(\w+)": \[', setup, re.MULTILINE))
    files = [*(REPO / "vinejax").rglob("*.py"), *(REPO / name for name in PAGES)]
    for file in files:
        named = re.findall(r"(?:vinejax|\.)\[(\w+)\]['\"]", file.read_text(encoding="utf-8"))
        assert extras.issuperset(named), f"{file}: {named}"
    assert "tpu" in extras and "textarena" in extras


def test_the_reference_has_every_public_name_once():
    pages = (REPO / "docs/reference").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert sorted(re.findall(r"^::: vinejax\.(\w+)$", text, re.MULTILINE)) == vinejax.__all__


def test_the_example_of_the_engine_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(REPO)
    text = (REPO / "docs/engine.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    assert len(names["grown"]) == 16
    assert names["grown"][int(names["i"])].text
