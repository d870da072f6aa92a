"""The base of tasks whose environments come from another library.

`data.path` names an environment, and every problem is a seed of it. There are `data.size` seeds for
training and a tenth as many, at most 500, for each held-out split. The prompt is `data.template`,
then the environment's first text.

A problem's seed makes its start, such as the cards or the board. The seed of the iteration makes
the noise after the start. Libraries may draw from the global generators of Python and NumPy. A call
therefore begins with the states that these generators had after the episode's last call. When it
ends, the generators get back the states that the call found. Only one call runs at a time.

The policy's thinking does not reach the library, and texts lose their escape codes. `Environment`
sees to both in a run; here they hold for a `Game` that is used alone, too.

A call that raises an error ends its episode as if no turns were left, so `reward.truncated` is the
reward of its outcome. Each different error is printed once, up to `MOST_PRINTED` of them.
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
from vinejax.core.settings import Config, DataConfig
from vinejax.core.text import without_escapes, without_thinking
from vinejax.core.types import Problem
from vinejax.tasks.base import Split, check_package
from vinejax.tasks.environment import Environment, EnvRules, EnvStart, Observation, TurnTask
from vinejax.tasks.splits import seeds_of

# Actions tried at the start of a run, to test whether a copy of a game acts like its repetition.
PROBE_ACTIONS = ("[1]", "[0 1]", "1", "[up]", "[1 2 3 4]")
START = EnvRules(timeout_s=60.0)  # of calls with these actions

MOST_PRINTED = 20  # a library may quote the action, so that no two of its errors are alike

_LOCK = threading.RLock()  # held while the global generators have an episode's states
_printed_errors: set[str] = set()


class Game:
    """An episode in an environment of another library. Subclasses define `begin` and `act`.

    The attributes hold the episode's whole state, so that copying the object copies the episode.
    """

    def __init__(self, name: str, copies: bool = True):
        """Without `copies`, `fork` is None, so that an episode is repeated and never copied.

        This is for environments in which a copied episode may differ from a repeated one.
        """
        self.name = name
        self.keeps_thinking = False  # whether `act` gets what the policy thinks
        self.fork = self._copy if copies else None
        self._states: Any = None  # states of the global generators after the last call
        self._is_over = False

    def begin(self, seed: int) -> str:
        """Starts the episode with this seed, and returns the environment's first text."""
        raise NotImplementedError

    def act(self, action: str) -> Observation:
        """The observation after `action`, which is what the policy said in its turn."""
        raise NotImplementedError

    def answer(self, turn: str) -> Observation:
        """The observation after a turn of the policy."""
        observation = self.act(turn if self.keeps_thinking else without_thinking(turn))
        return observation._replace(text=without_escapes(observation.text))

    def draw_anew(self, seed: int) -> None:
        """Seeds the noise to come: the global generators, and in subclasses the environment's."""
        random.seed(seed)
        np.random.seed(seed)

    def reset(self, problem: Problem, seed: int) -> str:
        def begin() -> str:
            self.draw_anew(problem.columns["seed"])
            text = self.begin(problem.columns["seed"])
            self.draw_anew(seed)
            return text

        return without_escapes(self._guarded(begin) or "")

    def step(self, action: str) -> Observation:
        cut = Observation("", truncated=True)
        return cut if self._is_over else self._guarded(lambda: self.answer(action)) or cut

    def start(self, seed: int) -> str:
        """The first text of the episode with this seed. Does not catch the environment's errors."""
        with self._swapped_generators():
            self.draw_anew(seed)
            return self.begin(seed)

    def _copy(self) -> "Game":
        """A copy of the episode, with the same states of its random generators."""
        with self._swapped_generators():
            return copy.deepcopy(self)

    def _guarded(self, function: Callable[[], Any]) -> Any:
        """Calls `function` with the episode's generator states, and returns its result.

        If `function` raises an error, the episode is over, and the result is None.
        """
        try:
            with self._swapped_generators():
                return function()
        except Exception as error:
            self._is_over = True
            notice = f"{self.name}: {failure(error, None)}"
            if notice not in _printed_errors and len(_printed_errors) < MOST_PRINTED:
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
    """The seeds of one environment as a task.

    Subclasses set `package`, `extra`, `example` and `game`.
    """

    package: str  # name of the package to import
    extra: str  # extra of setup.py that installs it
    example: str  # example of `data.path`
    game: type[Game]
    copies = True  # whether copies of an episode are possible
    max_turns = 100
    reads = ("size", "template")
    sections: tuple[str, ...] = ()

    def __init__(self, data: DataConfig):
        """Raises ConfigError if the package is missing or the environment does not start."""
        self.name = self.extra
        self.path = data.path
        self._data = data
        check_package(self.package, self.extra, data)
        if not data.path:
            raise ConfigError("data.path", f"name an environment, such as {self.example!r}", "''")
        self._copies, self._keeps_thinking = self.copies, False
        try:
            self.env().start(0)
        except Exception as error:
            message = f"{self.package} does not start it: {failure(error, None)}"
            raise ConfigError("data.path", message, repr(data.path)) from error
        self._copies = self.copies and self._agree()

    def configure(self, cfg: Config) -> None:
        """Takes the settings of a run."""
        self._keeps_thinking = cfg.env.thinking == "kept"

    def env(self) -> Game:
        game = self.game(self.path, self._copies)
        game.keeps_thinking = self._keeps_thinking
        return game

    def load(self, split: Split) -> list[Problem]:
        seeds = enumerate(seeds_of(split, self._data.size))
        return [Problem(f"{split}/{i}", self.path, "", {"seed": seed}) for i, seed in seeds]

    def prompt(self, problem: Problem) -> str:
        return self._data.template.replace("{question}", problem.question)

    def _agree(self) -> bool:
        """Whether an episode, its repetition and its copy react to actions in the same way."""
        start = EnvStart(Problem("start", self.path, "", {"seed": 0}), 1)
        games = [Environment(self, start, START) for _ in range(2)]
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
