"""Environments of Gymnasium and games of GEM, as stand-ins and from the packages if installed."""

import importlib.util
import random
from typing import Any

import numpy as np
import pytest
from helpers.contrib.packages import stand_in
from helpers.refusals import refuses

from vinejax.contrib.environments.games import GameTask
from vinejax.core.settings import DataConfig
from vinejax.tasks.base import load_task
from vinejax.tasks.environment import Observation


class Discrete:
    def __init__(self, n: int, start: int = 0):
        self.n, self.start = n, start

    def contains(self, x: Any) -> bool:
        return self.start <= x < self.start + self.n


class Text:
    """A space of texts."""


class Walk:
    """A walk on a line of numbers, with wind from the environment's own generator."""

    def __init__(self, name: str, render_mode: str | None = None):
        spaces = {"walk": Discrete(2), "words": Text(), "box": object()}
        self.name, self.action_space, self.render_mode = name, spaces[name], render_mode
        self.metadata = {"render_modes": ["human", "ansi"] if name == "walk" else []}

    @property
    def unwrapped(self) -> "Walk":
        return self

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        self.np_random = np.random.default_rng(seed)
        self.place, self.steps = int(self.np_random.integers(10)), 0
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        move = action if self.name == "walk" else len(action)
        self.place += move + int(self.np_random.integers(2))
        self.steps += 1
        is_over, is_cut = self.place > 12, self.steps == 3
        return self.seen, np.float64(self.place / 8), np.bool_(is_over), is_cut, {}

    @property
    def seen(self) -> Any:
        return self.place if self.name == "walk" else f"at {self.place}"

    def render(self) -> str:
        return f"a\x1b[41m{self.place}\x1b[0mb\n"


class Guess:
    """A game in GEM's form: a number from the global generators."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        np.random.seed(seed)
        self.number = random.randrange(8)
        return "which?\n", {"suffix": "Guess."}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        is_right = action == f"{self.number}\n"
        said = "yes" if is_right else f"no {np.random.randint(9)}"
        return said, float(is_right), is_right, is_right, {"suffix": "Guess."}


def task_of(module: str, name: str, **fields: Any) -> GameTask:
    task = load_task(DataConfig(task=f"vinejax.tasks.{module}", path=name, **fields))
    assert isinstance(task, GameTask)
    return task


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = stand_in(monkeypatch, "gymnasium.spaces", Discrete=Discrete, Text=Text)
    stand_in(monkeypatch, "gymnasium", make=Walk, spaces=spaces)
    stand_in(monkeypatch, "gem", make=lambda name: Guess())


def test_numbers_are_actions_and_drawings_are_texts(packages: None):
    task = task_of("gymnasium", "walk", size=40)
    places, problems = set(), task.load("train")
    for problem in problems:
        game = task.env()
        place = int(game.reset(problem, 1).split("\n")[1])
        assert game.reset(problem, 2) == f"a[{place}]b\n{place}\nSay a number from 0 to 1.\n"
        places.add(place)
        for text in ("", "2", "-1", "none", "9" * 99):
            assert game.step(text) == Observation("\nSay a number from 0 to 1.\n")
        moves = [game.step("0 or 1").text for _ in range(2)]
        after = [int(text.split("\n")[2]) for text in moves]
        assert after[0] in (place + 1, place + 2) and after[1] - after[0] in (1, 2)
    assert len(places) > 5


def test_the_ends_and_rewards_are_the_environments(packages: None):
    task = task_of("gymnasium", "words")
    game = task.env()
    place = int(game.reset(task.load("train")[0], 1).split()[1])
    found = game.step("12345678901234")
    assert found.done and not found.truncated and found.reward > place / 8 + 1
    game.reset(task.load("test")[3], 1)
    ends = [game.step("") for _ in range(3)]
    assert [x.truncated for x in ends] == [False, False, not ends[-1].done]
    assert [x.reward * 8 for x in ends] == [int(x.text.split()[1]) for x in ends]


def test_noise_is_of_the_iteration_and_a_copy_meets_it(packages: None):
    task = task_of("gymnasium", "walk")
    problem, seen = task.load("train")[0], set()
    for seed in range(12):
        game = task.env()
        game.reset(problem, seed)
        assert game.fork
        answers = [[x.step("0").text for _ in range(2)] for x in (game, game.fork())]
        assert answers[0] == answers[1]
        seen.add(str(answers[0]))
    assert len(seen) > 2


def test_games_of_gem_say_their_suffix(packages: None):
    task = task_of("gem", "game:Guess")
    game, problem = task.env(), task.load("train")[0]
    assert game.reset(problem, 1) == "which?\nGuess.\n"
    answers = [game.step(f"{i}\n") for i in range(8)]
    (right,) = [answer for answer in answers if answer.done]
    assert right == Observation("\nyes\nGuess.\n", 1.0, True, False)
    assert all(x.text.startswith("\nno ") for x in answers if not x.done)


def test_what_does_not_fit_is_refused(packages: None, monkeypatch: pytest.MonkeyPatch):
    with refuses("data.path"):
        task_of("gymnasium", "box")
    with refuses("data.path"):
        task_of("gem", "code:Taco8k")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("gymnasium", "gem"):
        with refuses("data.task"):
            task_of(name, "walk")


OF_GYMNASIUM = "FrozenLake-v1 Taxi-v4 CliffWalking-v1 Blackjack-v1 CartPole-v1".split()
OF_GEM = """GuessTheNumber-v0-hard Mastermind-v0-random Minesweeper-v0-easy FifteenPuzzle-v0-hard
Sudoku-v0-easy TowerofHanoi-v0-easy Game2048-v0-easy Sokoban-v0-easy Crosswords-v0-easy""".split()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "module, name",
    [("gymnasium", x) for x in OF_GYMNASIUM] + [("gem", f"game:{x}") for x in OF_GEM],
)
def test_installed_environments_go_on_alike_in_copies_and_repetitions(module: str, name: str):
    pytest.importorskip(module, reason=f"needs vinejax[{module}]")
    task, rng = task_of(module, name, size=2), np.random.default_rng(7)
    words = "up down left right 0 1 2 3 A_C B_A 1_2_3_4 R1_C1_3".replace("_", " ")
    for seed in range(4):
        actions = [f"\\boxed{{{rng.choice(words.split())}}}" for _ in range(8)]
        game, again, problem = task.env(), task.env(), task.load("train")[seed % 2]
        assert game.reset(problem, seed) == again.reset(problem, seed) != ""
        head = [game.step(action) for action in actions[:2]]
        assert game.fork
        twin = game.fork()
        answers = []
        for disturb, one in enumerate((game, twin)):
            random.seed(disturb)
            np.random.seed(disturb)
            answers.append([one.step(action) for action in actions[2:]])
        assert answers[0] == answers[1]
        assert [again.step(action) for action in actions] == head + answers[0]
