"""How tests are chosen and begun: jax's environment, --smoke, --full, --first, --types."""

import gc
from collections import Counter

from helpers import compiling

compiling.set_environment()  # before jax is imported

import pytest  # noqa: E402
from helpers.paths import TESTS  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# An int where a float is declared is right in Python (PEP 484), so beartype is told to allow it.
TYPE_CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"

# A file or two per room: what a person runs while editing, in a minute.
SMOKE = (
    "test_architecture.py",
    "test_public.py",
    "config/test_config.py",
    "rl/test_advantages.py",
    "rl/test_losses.py",
    "credit/test_positions.py",
    "credit/test_samples.py",
    "tasks/test_rewards.py",
    "grading/test_extract.py",
    "model/test_token_logprobs.py",
    "engine/test_assign.py",
    "engine/test_engine_edges.py",
    "learner/test_step.py",
    "methods/test_baselines.py",
    "rollout/test_vine.py",
    "runtime/test_workdir.py",
    "training/test_health.py",
    "tools/report/test_report_choice.py",
    "tools/plan/test_advice.py",
)

# Rooms whose tests compile programs, most of them one or more a case.
COMPILING = (
    *("engine", "learner", "model", "rollout", "system"),
    *("credit", "bench", "methods", "options", "rl", "training"),
)

# Files whose tests take minutes, to be begun first: else one of them is left at the end, alone.
LONGEST = (
    "system/test_hosts.py",
    "system/test_method_runs.py",
    "tools/plan/test_aot.py",
    "system/test_learning.py",
    "learner/test_methods.py",
    "engine/test_engine_mesh.py",
    "system/test_examples.py",
    "system/test_stages.py",
    "system/test_notebook.py",
    "engine/test_repeats.py",
    "engine/test_engine_window.py",
    "credit/test_meshes.py",
    "system/test_option_runs.py",
    "system/test_faults.py",
    "tools/bench/test_bench_exact.py",
    "learner/test_train_mesh.py",
    "model/test_attention.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--smoke", action="store_true", help="only a file or two per room, a minute")
    parser.addoption("--full", action="store_true", help="the slow tests too")
    parser.addoption("--first", action="store_true", help="one case of tests that compile programs")
    parser.addoption("--types", action="store_true", help="types and shapes of calls are checked")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--types"):
        install_import_hook("vinejax", TYPE_CHECKER)
    if config.getoption("--smoke"):
        config.args[:] = [str(TESTS / file) for file in SMOKE]
    for module in ("fixtures", "command_line"):  # after the hook: they import vinejax
        config.pluginmanager.import_plugin(f"helpers.{module}")


def is_fast_set(config: pytest.Config) -> bool:
    """Whether slow tests stay out: not with --full, with -m, or where a test is named by its id."""
    is_named = any("::" in argument for argument in config.args)
    return not (config.getoption("--full") or config.option.markexpr or is_named)


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--smoke"):
        return "smoke set"
    return "fast set, --full adds the slow tests" if is_fast_set(config) else "with the slow tests"


def place_of(item: pytest.Item) -> int:
    """The place of a test's file in `LONGEST`, or after it."""
    file = item.nodeid.partition("::")[0]
    places = [i for i, name in enumerate(LONGEST) if file.endswith(name)]
    return places[0] if places else len(LONGEST)


def first_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items, of tests in `COMPILING` the first case alone."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        compiles = item.path.parent.name in COMPILING
        first.setdefault(item.nodeid.partition("[")[0] if compiles else item.nodeid, item)
    return list(first.values())


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
    kept = items
    if is_fast_set(config):
        kept = [item for item in items if not item.get_closest_marker("slow")]
    if config.getoption("--first"):
        kept = first_cases(kept)
    left = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = sorted(kept, key=place_of)
    gc.freeze()  # else every full collection looks through what was imported and collected
