"""Fixtures of all tests, how their programs are compiled, and the option --full."""

from helpers import compiling

compiling.set_environment()  # before jax is imported

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from helpers import data, loop_cases, model_oracles  # noqa: E402

# Files whose tests take minutes, to be begun first: else one of them is left at the end, alone.
LONGEST = (
    "system/test_learning.py",
    "system/test_hosts.py",
    "learner/test_methods.py",
    "plan/test_aot.py",
    "engine/test_engine_window.py",
    "credit/test_unbiased.py",
    "system/test_method_runs.py",
    "engine/test_engine_mesh.py",
    "credit/test_meshes.py",
    "learner/test_train_mesh.py",
    "model/test_attention.py",
)


def place_of(item: pytest.Item) -> int:
    """The place of a test's file in `LONGEST`, or after it."""
    file = item.nodeid.partition("::")[0]
    places = [i for i, name in enumerate(LONGEST) if file.endswith(name)]
    return places[0] if places else len(LONGEST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the slow tests as well")


def is_fast_set(config: pytest.Config) -> bool:
    """Whether slow tests stay out: not with --full, with -m, or where a test is named by its id."""
    is_named = any("::" in argument for argument in config.args)
    return not (config.getoption("--full") or config.option.markexpr or is_named)


def pytest_report_header(config: pytest.Config) -> str:
    return "fast set, --full adds the slow tests" if is_fast_set(config) else "with the slow tests"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_fast_set(config):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    items.sort(key=place_of)


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Frees a module's programs: each takes a dozen of the 65,530 memory maps that Linux allows a
    process, and XLA dies of a segmentation fault once there are no more."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def tiny() -> model_oracles.Model:
    """A random model of two layers with grouped-query attention and the arithmetic tokenizer."""
    from vinejax.tasks.arithmetic import Arithmetic

    tokenizer = Arithmetic().tokenizer()
    return model_oracles.random_model(tokenizer=tokenizer, vocab_size=len(tokenizer))


@pytest.fixture(scope="session")
def stories() -> model_oracles.Model:
    """stories260K, a trained Llama of 260 thousand parameters that writes English."""
    from vinejax.model.hf.weights import load_pretrained

    return model_oracles.Model(*load_pretrained(str(data.path("stories260K/hf"))))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> loop_cases.Run:
    """A run of `loop_cases.config()` to its end, whose workdir no test may change."""
    jax.clear_caches()  # compilations are counted, whatever ran before
    return loop_cases.counted_run(tmp_path_factory.mktemp("finished") / "run")
