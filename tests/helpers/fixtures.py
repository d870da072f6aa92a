"""Fixtures of all tests: models, a finished run, and the budget of compiled programs of a file."""

import fcntl
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import pytest

from helpers import data, loop_cases, model_oracles
from helpers.compiling import BUDGET, BUDGETS
from helpers.paths import TESTS
from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.compiles import num_compiles
from vinejax.tasks.arithmetic import Arithmetic

Made = TypeVar("Made")
_shared = Counter()  # programs of fixtures that all files share: no file's own, in any order


def _not_counted(make: Callable[[], Made]) -> Made:
    """The result of `make`, whose programs count for no file."""
    before = num_compiles()
    made = make()
    _shared["programs"] += num_compiles() - before
    return made


@pytest.fixture(autouse=True, scope="module")
def _programs(request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """Frees a file's programs, and fails if its fast tests compiled more than the file's budget.

    Each takes a dozen of the 65,530 memory maps that Linux allows a process, and XLA dies of a
    segmentation fault once there are no more.
    """
    before = num_compiles() - _shared["programs"]
    of_slow_tests: list[int] = []
    yield of_slow_tests
    compiled = num_compiles() - _shared["programs"] - before - sum(of_slow_tests)
    jax.clear_caches()
    file = request.path.relative_to(TESTS).as_posix()
    budget = BUDGETS.get(file, BUDGET)
    if compiled > budget:
        pytest.fail(
            f"{file} compiled {compiled} programs, its budget is {budget}: share sizes between "
            "tests, use NumPy instead of jax.numpy outside of compiled functions, put an oracle "
            "into one jax.jit; if all of them are needed, change the budget in helpers/compiling.py"
        )


@pytest.fixture(autouse=True)
def _programs_of_a_slow_test(
    request: pytest.FixtureRequest, _programs: list[int]
) -> Iterator[None]:
    before = num_compiles()
    yield
    if request.node.get_closest_marker("slow"):
        _programs.append(num_compiles() - before)


@pytest.fixture(scope="session")
def tiny() -> model_oracles.Model:
    """A random model of two layers with grouped-query attention and the arithmetic tokenizer."""
    tokenizer = Arithmetic().tokenizer()
    size = len(tokenizer)
    return _not_counted(lambda: model_oracles.random_model(tokenizer=tokenizer, vocab_size=size))


@pytest.fixture(scope="session")
def stories() -> model_oracles.Model:
    """stories260K, a trained Llama of 260 thousand parameters that writes English."""
    path = str(data.path("stories260K/hf"))
    return _not_counted(lambda: model_oracles.Model(*load_pretrained(path)))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> loop_cases.Run:
    """A run of `loop_cases.config()` to its end, whose workdir no test may change.

    Of several processes of pytest one makes it, for which the others wait.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / "finished.pickle"
    with open(folder / "finished.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            jax.clear_caches()  # compilations are counted, whatever ran before
            run = _not_counted(lambda: loop_cases.counted_run(folder / "finished" / "run"))
            made.write_bytes(pickle.dumps(jax.device_get(run)))
    return pickle.loads(made.read_bytes())


@pytest.fixture(scope="session")
def start(finished_run: loop_cases.Run) -> str:
    """A start that is sometimes right: the weights after the warm-up of `finished_run`."""
    return str(finished_run.workdir / "warmup")
