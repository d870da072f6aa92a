"""The README of each tool names the files of the tool, and all files that import from it."""

import re
from pathlib import Path

import pytest
from helpers.paths import REPO

TOOLS = sorted(path.parent for path in (REPO / "vinejax/tools").glob("*/README.md"))
FOLDERS = ("vinejax", "benchmarks", "tests")
FILES = [file for folder in FOLDERS for file in (REPO / folder).rglob("*.py")]
# They know every tool, and each README says so of its own; or they are left out with the tools.
KNOW_ALL = ("vinejax/command.py", "vinejax/tools/names.py", "tests/tools", "tests/helpers/tools")
NO_CONTENTS = ("__init__.py", "settings.py")


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tools_readme_lists_its_files(tool: Path):
    named = re.findall(r"`([\w/]+\.py|\w+/)`", (tool / "README.md").read_text(encoding="utf-8"))
    names = [file.relative_to(tool).as_posix() for file in tool.rglob("*.py")]
    folders = tuple(name for name in named if name.endswith("/"))
    assert {
        name
        for name in names
        if not name.endswith(NO_CONTENTS) and not name.startswith(folders) and name not in named
    } == set()


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tools_readme_names_who_imports_from_it(tool: Path):
    readme = (tool / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py|\w+/\w+/)`", readme.partition("## Deleting it")[2])
    importing = rf"^ *(?:from|import) vinejax\.tools\.{tool.name}\b"
    found = set()
    for file in FILES:
        name = file.relative_to(REPO).as_posix()
        if not file.is_relative_to(tool) and not name.startswith(KNOW_ALL):
            if re.search(importing, file.read_text(encoding="utf-8"), re.MULTILINE):
                found.add(name.removeprefix("vinejax/"))
    folders = tuple(name for name in named if name.endswith("/"))
    assert {name for name in found if not name.startswith(folders)} == {
        name for name in named if name.startswith(("benchmarks/", "tests/", "tools/"))
    } - set(folders)
