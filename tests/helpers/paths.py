"""Folders of the repository, for tests of every folder."""

from pathlib import Path

REPO = Path(__file__).parents[2]
CONFIGS = REPO / "configs"
TESTS = REPO / "tests"
FIXTURES = TESTS / "fixtures"
