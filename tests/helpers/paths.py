"""Where things lie in the repository."""

from pathlib import Path

REPO = Path(__file__).parents[2]
CONFIGS = REPO / "configs"
TESTS = REPO / "tests"
FIXTURES = TESTS / "fixtures"
