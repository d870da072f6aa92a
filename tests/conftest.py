"""How tests are chosen and begun: jax's environment, workers, --full, --nightly, --types.

`python -m pytest` runs the default set: tests of the core that are not marked `slow` or `nightly`.
--full adds the slow ones and those of tests/contrib and tests/tools, --nightly the rest; with
--full-only only what --full adds is run.
"""

import gc
import os
from collections import Counter
from pathlib import Path

from helpers import compiling

compiling.set_environment()  # before jax is imported

import pytest  # noqa: E402
from helpers import typed  # noqa: E402
from helpers.paths import TESTS  # noqa: E402

# Folders of what is around the core: in the default set only where an argument names them.
ACCESSORIES = ("contrib", "tools")
MOST_WORKERS = 8  # a process of tests takes up to 3 GiB

# Files whose tests take minutes, to be begun first: else one of them is left at the end, alone.
LONGEST = (
    "training/test_train.py",  # makes the run that other files read
    "system/test_hosts.py",
    "system/test_method_runs.py",
    "tools/plan/test_aot.py",
    "system/test_learning.py",
    "learner/test_methods.py",
    "engine/test_engine_mesh.py",
    "system/test_examples.py",
    "system/test_stages.py",
    "system/test_notebook.py",
    "engine/test_accept.py",
    "engine/test_engine_window.py",
    "credit/test_meshes.py",
    "system/test_option_runs.py",
    "system/test_faults.py",
    "tools/bench/test_bench_exact.py",
    "learner/test_train_mesh.py",
    "model/test_attention.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="slow tests, tests/contrib, tests/tools")
    parser.addoption("--full-only", action="store_true", help="what --full adds, without the rest")
    parser.addoption("--nightly", action="store_true", help="all, of benchmarks and scripts too")
    parser.addoption("--types", action="store_true", help="types and shapes of calls are checked")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--types"):
        typed.install()
    for module in ("fixtures", "command_line"):  # after the hook: they import vinejax
        config.pluginmanager.import_plugin(f"helpers.{module}")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each core; none for a file or a test, whose imports would take longer."""
    is_small = all(".py" in argument for argument in config.args)
    return 0 if is_small else min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def is_everything(config: pytest.Config) -> bool:
    """Whether no test stays out: with --nightly, with -m, or where a test is named by its id."""
    is_named = any("::" in argument for argument in config.args)
    return bool(config.getoption("--nightly") or config.option.markexpr or is_named)


def is_full(config: pytest.Config) -> bool:
    return bool(config.getoption("--full") or config.getoption("--full-only"))


def excluded_marks(config: pytest.Config) -> set[str]:
    """Marks whose tests stay out."""
    if is_everything(config):
        return set()
    return {"nightly"} if is_full(config) else {"nightly", "slow"}


def is_default(item: pytest.Item) -> bool:
    """Whether a test is one of the default set."""
    marked = any(item.get_closest_marker(x) for x in ("nightly", "slow"))
    return not marked and not any(item.path.is_relative_to(TESTS / x) for x in ACCESSORIES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the folders of `ACCESSORIES` in the default set, unless an argument is in one."""
    folders = [TESTS / name for name in ACCESSORIES]
    if collection_path not in folders or is_full(config) or is_everything(config):
        return None
    paths = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return not any(path.is_relative_to(collection_path) for path in paths) or None


def pytest_report_header(config: pytest.Config) -> str:
    left_out = excluded_marks(config)
    if not left_out:
        return "all tests"
    if "slow" in left_out:
        return "default set, --full adds the slow tests"
    return "full set without the default set" if config.getoption("--full-only") else "full set"


def place_of(item: pytest.Item) -> int:
    """The place of a test's file in `LONGEST`, or after it."""
    file = item.nodeid.partition("::")[0]
    places = [i for i, name in enumerate(LONGEST) if file.endswith(name)]
    return places[0] if places else len(LONGEST)


def make_later_cases_slow(items: list[pytest.Item]) -> None:
    """Marks cases of tests with `first` as slow, but the first of them; `first(n)` keeps n."""
    counts = Counter[str]()
    for item in items:
        if mark := item.get_closest_marker("first"):
            test = item.nodeid.partition("[")[0]
            counts[test] += 1
            if counts[test] > (mark.args or [1])[0]:
                item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    make_later_cases_slow(items)
    excluded = excluded_marks(config)
    kept = [item for item in items if not any(item.get_closest_marker(x) for x in excluded)]
    if config.getoption("--full-only"):
        kept = [item for item in kept if not is_default(item)]
    left = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = sorted(kept, key=place_of)
    gc.freeze()  # else every full collection looks through what was imported and collected
