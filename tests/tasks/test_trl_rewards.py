"""TRL's reward functions, as shipped, return the same here as in TRL."""

import sys
import types
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs vinejax[oracle]")
pytest.importorskip("math_verify", reason="needs vinejax[oracle]")

from vinejax.core.plugins import find_function  # noqa: E402
from vinejax.core.settings import GraderConfig, RewardConfig  # noqa: E402
from vinejax.core.types import Problem  # noqa: E402
from vinejax.tasks.graded import GradedTask  # noqa: E402
from vinejax.tasks.math import MATH  # noqa: E402

SOLUTIONS = [r"\boxed{\frac{1}{3}}", r"So $\boxed{7}$.", "no formula"]
RESPONSES = [
    r"<think>a third</think> It is \boxed{\frac{1}{3}}",
    r"<think>six six six six six six</think> It is \boxed{6}",
    "all the same",
]
IDS = [[1] * 10, [1, 2, 3] * 7, [5, 6]]
MADE = {  # functions that TRL makes on request, as in a user's module
    "get_cosine_scaled_reward": {"max_len": 20},
    "get_repetition_penalty_reward": {"ngram_size": 2},
    "get_soft_overlong_punishment": {"max_completion_len": 20, "soft_punish_cache": 15},
}

PLAIN = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    import trl.rewards  # pyright: ignore[reportMissingImports]

    module: Any = types.ModuleType("made_rewards")
    for name, settings in MADE.items():
        setattr(module, name, getattr(trl.rewards, name)(**settings))
    monkeypatch.setitem(sys.modules, "made_rewards", module)
    find_function.cache_clear()


def own(name: str) -> Any:
    """The rewards that TRL's trainer would get from the function."""
    import trl.rewards  # pyright: ignore[reportMissingImports]

    function = getattr(trl.rewards, name)
    function = function(**MADE[name]) if name in MADE else function
    completions = [[{"role": "assistant", "content": text}] for text in RESPONSES]
    return function(completions=completions, completion_ids=IDS, solution=SOLUTIONS)


def test_there_are_no_others():
    import trl.rewards  # pyright: ignore[reportMissingImports]

    assert {name for name in vars(trl.rewards)["_class_to_module"]} == {*MADE, *PLAIN}


@pytest.mark.parametrize("name", [*MADE, *PLAIN])
def test_the_door_gives_what_the_function_gives_in_trl(name: str):
    path = f"{'made_rewards' if name in MADE else 'trl.rewards'}.{name}"
    items = [
        (Problem(f"train/{i}", "?", solution, {"problem": "?", "solution": solution}), response)
        for i, (solution, response) in enumerate(zip(SOLUTIONS, RESPONSES, strict=True))
    ]
    with GradedTask(MATH("x"), GraderConfig(), RewardConfig(functions=(path,))) as graded:
        graded.check_functions(items[0][0])
        found = graded.grade(items, IDS)
    expected = own(name)
    assert len(set(expected)) > 1
    assert [reward.parts for reward in found] == [
        {} if value is None else {name: value} for value in expected
    ]
    assert [reward.total for reward in found] == [value or 0.0 for value in expected]
