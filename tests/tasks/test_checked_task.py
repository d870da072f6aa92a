"""A user's task: the results that each method may return, and one-line errors for others."""

import inspect
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vinejax.core.errors import UserError
from vinejax.core.plugins import shown
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks import base
from vinejax.tasks.base import BatchGraded, StepRewarded, StepsInTokens, WithGold, load_task
from vinejax.tasks.checked import CheckedTask

PROBLEM = Problem("train/0", "1+1", "2")


def without_types(**fields: Any) -> Problem:
    """A problem built without type checks, which are on in the full set of tests."""
    problem = Problem("a", "b", "c")
    for name, value in fields.items():
        object.__setattr__(problem, name, value)
    return problem


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "load": ("train",),
    "prompt": (PROBLEM,),
    "solution": (PROBLEM,),
    "split": ("ab\nc",),
    "answer": ("2",),
    "reward": (PROBLEM, "so\n2"),
    "rewards": ([(PROBLEM, "2"), (Problem("train/1", "", ""), "")], None),
    "gold": (PROBLEM,),
    "step_rewards": (PROBLEM, ["a", "b"]),
    "step_ends": (10,),
    "tokenizer": (),
    "configure": (None,),
    "failure": (PROBLEM, "so\n2"),
}


class Giving:
    """A task with every function of the protocols; each returns `result`, or raises it."""

    name = "mine"
    extra = 7

    def __init__(self, result: Any = None):
        self.result = result

    def give(self, *_: Any) -> Any:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    load = prompt = solution = split = answer = reward = give
    rewards = gold = step_rewards = step_ends = tokenizer = configure = failure = give


def result(name: str, given: Any) -> Any:
    return getattr(CheckedTask(Giving(given)), name)(*ARGUMENTS[name])


TEXTS = (None, ("a",), b"a", 7, math.nan)
LISTS = (None, "ab", 7, math.nan, {0: 1, 1: 2}, {0.5, 1.0}, np.array(1.0))
WRONG = {
    "load": [*LISTS, [PROBLEM, "b"], [("train/0", "q", "a")], [without_types(id=0)]],
    "prompt": TEXTS,
    "solution": TEXTS,
    "split": [*LISTS, [], [0, 3], [1, 4], [0, 3, 2, 4], [0, 4, 9], [0, 2.5, 4], [0, "2", 4]],
    "answer": TEXTS[1:],
    "reward": [None, "1", (1.0,), [1.0], math.nan, -math.inf, 10**400, 1j, np.ones(1), {}],
    "rewards": [
        *LISTS,
        "11",
        [1.0],
        [1.0] * 3,
        [0, math.nan],
        [0, None],
        [0, "1"],
        np.ones((2, 1)),
    ],
    "gold": TEXTS[1:],
    "step_rewards": [*LISTS, "11", [1.0], [0.0, math.inf], [0, (1,)]],
    "step_ends": [*LISTS, [], [5, 9], [0, 10], [5, 5, 10], [7, 3, 10], [5, 11], [5.0, 10.0]],
    "tokenizer": [None, "a", (1, 2)],
    "failure": [*TEXTS[1:], {"input": 1}, {1: "input"}],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_of_another_kind_is_one_line_with_its_place(name: str):
    _, line = inspect.getsourcelines(Giving.give)
    about = ", problem train/0" if isinstance((*ARGUMENTS[name], None)[0], Problem) else ""
    for given in WRONG[name]:
        with pytest.raises(UserError) as error:
            result(name, given)
        message = str(error.value)
        start = f"task mine{about}: {__file__}:{line}: `{name}` gave {shown(given)}; needed is "
        assert message.startswith(start + "a ") and "\n" not in message


def made_lazily() -> Any:
    yield 0.5
    yield 1


RIGHT = [
    ("load", (PROBLEM,), [PROBLEM]),
    ("load", [], []),
    ("prompt", "a", "a"),
    ("split", (0, np.int64(2), 4), [0, 2, 4]),
    ("split", np.array([0, 4]), [0, 4]),
    ("answer", None, None),
    ("reward", True, 1.0),
    ("reward", np.float32(0.5), 0.5),
    ("reward", jnp.float32(0.5), 0.5),
    ("reward", Fraction(1, 2), 0.5),
    ("rewards", (1, np.bool_(False)), [1.0, 0.0]),
    ("rewards", jnp.array([1.0, 0.5]), [1.0, 0.5]),
    ("step_rewards", made_lazily(), [0.5, 1.0]),
    ("step_ends", range(5, 11, 5), [5, 10]),
]


@pytest.mark.parametrize("name, given, expected", RIGHT)
def test_lists_and_numbers_of_other_libraries_are_taken(name: str, given: Any, expected: Any):
    found = result(name, given)
    assert found == expected and type(found) is type(expected)


def test_the_wrong_entry_of_many_is_named():
    for name, given, about in (
        ("rewards", [0, math.nan], "response, and that of problem train/1 is nan"),
        ("rewards", [0.0] * 3, "response, not 3 for 2"),
        ("step_rewards", [None, 0], "step, and that of step 0 is None"),
        ("load", [PROBLEM, "b"], "list of Problem, and entry 1 is 'b'"),
        (
            "load",
            [without_types(answer=4)],
            "the answer of every Problem, and that of entry 0 is 4",
        ),
    ):
        with pytest.raises(UserError, match=f"{about}$"):
            result(name, given)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_function_that_fails_is_one_line_with_the_line_that_failed(name: str):
    lines, first = inspect.getsourcelines(Giving.give)
    line = first + next(i for i, text in enumerate(lines) if "raise" in text)
    with pytest.raises(UserError, match=rf"`{name}` failed.*: {__file__}:{line}: KeyError: 'x'$"):
        result(name, KeyError("x"))
    with pytest.raises(UserError, match=rf"`{name}` failed.*: SystemExit: 3$"):
        result(name, SystemExit(3))
    with pytest.raises(UserError, match="^of its own$"):
        result(name, UserError("of its own"))


def test_a_failure_in_an_inherited_method_names_its_file():
    kind = type("Mine", (Giving,), {"__module__": "vinejax.tasks.base"})
    with pytest.raises(UserError, match=rf"failed.*: {__file__}:\d+: KeyError: 'x'$"):
        CheckedTask(kind(KeyError("x"))).load("train")


def test_a_response_that_fails_is_shown_in_part():
    with pytest.raises(UserError, match=f"`reward` failed for the response '{'x' * 199}: "):
        CheckedTask(Giving(KeyError())).reward(PROBLEM, "x" * 999)


def test_an_iterator_that_fails_later_is_one_line():
    with pytest.raises(UserError, match=r"`rewards` failed: .*test_checked_task\.py:\d+: ZeroDiv"):
        result("rewards", (1 / x for x in (1, 0)))


def test_it_has_the_protocols_and_the_members_of_the_task():
    task = CheckedTask(Giving())
    assert task.extra == 7 and not hasattr(task, "style") and not hasattr(task, "no_such_member")
    for protocol in (BatchGraded, StepRewarded, StepsInTokens, WithGold):
        assert isinstance(task, protocol)
    # From Python 3.12 on `isinstance` sees no member that `__getattr__` passes on.
    members = {"sections": ("code",), "own_rules": True, "reads": (), "free_steps": (1,)}
    task = CheckedTask(type("Full", (Giving,), {**members, "style": "math"})())
    protocols = [x for x in vars(base).values() if getattr(x, "_is_runtime_protocol", False)]
    assert len(protocols) > 10
    for protocol in protocols:
        for name in {*vars(protocol), *protocol.__annotations__}:
            assert name.startswith("_") or name in vars(task), (protocol, name)
    plain = type("Plain", (Giving,), {"step_ends": None})
    assert not isinstance(CheckedTask(plain()), StepsInTokens)


@pytest.mark.parametrize(
    "source, message",
    [
        ("reads = 'question'", "`reads` is 'question'; needed is a tuple of texts"),
        ("style = 'maths'", "`style` is 'maths'; needed is one of 'math', 'gsm8k'"),
        ("free_steps = 3", "`free_steps` is 3; needed is a list of whole numbers"),
        ("name = None", "`name` is None; needed is a text"),
        ("split = 'lines'", "`split` is 'lines'; needed is a function"),
    ],
)
def test_attributes_are_checked_as_the_task_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
):
    base = "from vinejax.tasks.arithmetic import Arithmetic\nclass Mine(Arithmetic):\n"
    make = "\ndef make(data): return Mine()\n"
    (tmp_path / "my_checked_task.py").write_text(f"{base}    {source}{make}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_checked_task", raising=False)
    with pytest.raises(UserError) as error:
        load_task(DataConfig(task="my_checked_task"))
    assert str(error.value) == f"{tmp_path}/my_checked_task.py: {message}"


def test_settings_may_change_the_attributes_of_a_task():
    class Set(Giving):
        max_turns, ends_turn, sections = 3, (), ("env",)

        def configure(self, cfg: Any) -> None:
            self.max_turns, self.ends_turn = cfg, ("\n",)

    task = CheckedTask(Set())
    task.configure(9)
    assert (task.max_turns, task.ends_turn) == (9, ("\n",))
    with pytest.raises(UserError, match="`max_turns` is 0; needed is a whole number of at least 1"):
        task.configure(0)
