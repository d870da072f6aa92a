"""The base of tasks whose environments come from another library.

`data.path` names an environment, and every problem is a seed of it. There are `data.size` seeds for
training and a tenth as many, at most 500, for each held-out split. The prompt is `data.template`,
then the environment's first text.

A problem's seed makes its start, such as the cards or the board. The seed of the iteration makes
the noise after the start. Libraries may draw from the global generators of Python and NumPy: a call
begins with the generators' states after the last call of its episode, and restores the other states
at its end. Therefore calls wait for one another.

A call that raises ends its episode like one that is out of turns, with `reward.truncated`. Each
such error is printed once.
"""

import contextlib
import copy
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import failure
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import Split, check_package
from vinejax.tasks.environment import Environment, EnvStart, Observation, TurnTask
from vinejax.tasks.splits import seeds_of

# Actions tried at the start of a run, to see whether a copy of a game goes on as a repetition does.
PROBE_ACTIONS = ("[1]", "[0 1]", "1", "[up]", "[1 2 3 4]")
START_S = 60.0  # time limit of a call with these actions

_LOCK = threading.RLock()  # for the global generators
_printed_errors: set[str] = set()


class Game:
    """An episode in an environment of another library; subclasses have `begin` and `act`.

    Its attributes hold all of its state, so that a copy of them is a copy of the episode.
    """

    def __init__(self, name: str, copies: bool = True):
        """Without `copies` the game has no `fork`, because a copy differs from a repetition."""
        self.name = name
        self.fork = self._copy if copies else None
        self._states: Any = None  # states of the generators after the last call
        self._is_over = False

    def begin(self, seed: int) -> str:
        """Starts the episode of a seed, and returns its first text."""
        raise NotImplementedError

    def act(self, action: str) -> Observation:
        """Takes an action."""
        raise NotImplementedError

    def draw_anew(self, seed: int) -> None:
        """Seeds the noise to come; subclasses also seed an environment's own generators."""
        random.seed(seed)
        np.random.seed(seed)

    def reset(self, problem: Problem, seed: int) -> str:
        def begin() -> str:
            self.draw_anew(problem.columns["seed"])
            text = self.begin(problem.columns["seed"])
            self.draw_anew(seed)
            return text

        return self._guarded(begin) or ""

    def step(self, action: str) -> Observation:
        cut = Observation("", truncated=True)
        return cut if self._is_over else self._guarded(lambda: self.act(action)) or cut

    def start(self, seed: int) -> str:
        """The first text of a seed. Raises what the environment raises."""
        with self._swapped_generators():
            self.draw_anew(seed)
            return self.begin(seed)

    def _copy(self) -> "Game":
        """A copy of the episode, which meets the same noise."""
        with self._swapped_generators():
            return copy.deepcopy(self)

    def _guarded(self, function: Callable[[], Any]) -> Any:
        """Calls the function with the episode's generators; None if it raises."""
        try:
            with self._swapped_generators():
                return function()
        except Exception as error:
            self._is_over = True
            notice = f"{self.name}: {failure(error, None)}".splitlines()[0]
            if notice not in _printed_errors:
                _printed_errors.add(notice)
                print(f"{notice}; the episode ends with reward.truncated")
            return None

    @contextlib.contextmanager
    def _swapped_generators(self) -> Iterator[None]:
        with _LOCK:
            outer = _states()
            if self._states is not None:
                _set_states(self._states)
            try:
                yield
            finally:
                self._states = _states()
                _set_states(outer)


class GameTask(TurnTask):
    """The seeds of one environment as a task; subclasses have the names and `game`."""

    package: str  # name of the package to import
    extra: str  # extra of setup.py that installs it
    example: str  # example of `data.path`
    game: type[Game]
    copies = True  # whether copies of an episode are possible
    max_turns = 100
    reads = ("size", "template")

    def __init__(self, data: DataConfig):
        """Raises ConfigError without the package, or if the environment does not start."""
        self.name = self.extra
        self.path = data.path
        self._data = data
        check_package(self.package, self.extra, data)
        if not data.path:
            raise ConfigError("data.path", f"name an environment, such as {self.example!r}", "''")
        self._copies = self.copies
        try:
            self.env().start(0)
        except Exception as error:
            message = f"{self.package} does not start it: {failure(error, None)}".splitlines()[0]
            raise ConfigError("data.path", message, repr(data.path)) from error
        self._copies = self.copies and self._agree()

    def env(self) -> Game:
        return self.game(self.path, self._copies)

    def load(self, split: Split) -> list[Problem]:
        seeds = enumerate(seeds_of(split, self._data.size))
        return [Problem(f"{split}/{i}", self.path, "", {"seed": seed}) for i, seed in seeds]

    def prompt(self, problem: Problem) -> str:
        return self._data.template.replace("{question}", problem.question)

    def _agree(self) -> bool:
        """Whether a copy of an episode goes on like the episode and like a repetition of it."""
        start = EnvStart(Problem("start", self.path, "", {"seed": 0}), 1)
        games = [Environment(self, start, START_S) for _ in range(2)]
        for game in games:
            game.reset()
            for text in PROBE_ACTIONS[:2]:
                game.step(text)
        try:
            games.append(games[0].fork())
        except UserError:  # the game has no copy
            return False
        answers = [[game.step(text) for text in PROBE_ACTIONS] for game in games]
        return answers[0] == answers[1] == answers[2]


def _states() -> Any:
    return random.getstate(), np.random.get_state()


def _set_states(states: Any) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
