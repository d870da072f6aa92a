"""Environments of Gymnasium whose actions are texts or numbers.

`data.path` is an id, such as 'FrozenLake-v1', or 'module:id'. In an action space of texts an action
is the turn's text. In a discrete space it is the last whole number in the turn; without a number in
range the observation says which numbers are possible, and the turn is lost.

A text observation stays as it is; any other one is converted by `str`. If the environment can
draw itself in characters, the drawing precedes the text, with highlighted characters in brackets.

Source: https://gymnasium.farama.org, 1.0 and later.
"""

import importlib
import re
from typing import Any

import numpy as np

from vinejax.contrib.environments.games import Game, GameTask
from vinejax.tasks.environment import Observation

DRAWING = "ansi"  # Gymnasium's render mode that draws in characters
HIGHLIGHTED = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", re.DOTALL)


class SteppedGame(Game):
    """An episode of an environment with Gymnasium's `reset` and `step`."""

    _game: Any

    def observation_of(self, result: Any) -> Observation:
        """The `Observation` for a result of the environment's `step`.

        `result` is (observation, reward, terminated, truncated, information).
        """
        seen, reward, is_over, is_cut, about = result
        cut = bool(is_cut and not is_over)
        return Observation(f"\n{self.text_of(seen, about)}\n", float(reward), bool(is_over), cut)

    def text_of(self, seen: Any, about: dict[str, Any]) -> str:
        """The text that shows the observation `seen`; `about` is the step's information."""
        raise NotImplementedError


class Gym(SteppedGame):
    """An episode of an environment of Gymnasium."""

    def begin(self, seed: int) -> str:
        gymnasium = importlib.import_module("gymnasium")
        self._game = gymnasium.make(self.name)
        if DRAWING in self._game.metadata.get("render_modes", ()):
            self._game = gymnasium.make(self.name, render_mode=DRAWING)
        spaces, self._actions = gymnasium.spaces, self._game.action_space
        if not isinstance(self._actions, spaces.Discrete | spaces.Text):
            raise ValueError(f"its actions are {self._actions}, neither texts nor numbers")
        seen, about = self._game.reset(seed=seed)
        first = f"{self.text_of(seen, about)}\n"
        return (
            f"{first}{self._instruction}" if isinstance(self._actions, spaces.Discrete) else first
        )

    def draw_anew(self, seed: int) -> None:
        super().draw_anew(seed)
        if hasattr(self, "_game"):
            self._game.unwrapped.np_random = np.random.default_rng(seed)

    def act(self, action: str) -> Observation:
        if not hasattr(self._actions, "n"):
            return self.observation_of(self._game.step(action))
        numbers = [int(number) for number in re.findall(r"-?\d+", action) if len(number) < 10]
        if not numbers or not self._actions.contains(numbers[-1]):
            return Observation(f"\n{self._instruction}")
        return self.observation_of(self._game.step(numbers[-1]))

    def text_of(self, seen: Any, about: dict[str, Any]) -> str:
        if isinstance(seen, str):
            return seen
        if self._game.render_mode != DRAWING:
            return str(seen)
        drawn = HIGHLIGHTED.sub(r"[\1]", self._game.render())
        return f"{drawn.strip()}\n{seen}"

    @property
    def _instruction(self) -> str:
        first = int(self._actions.start)
        return f"Say a number from {first} to {first + int(self._actions.n) - 1}.\n"


class GymTask(GameTask):
    """An environment of Gymnasium as a task."""

    package = extra = "gymnasium"
    example = "FrozenLake-v1"
    game = Gym


make = GymTask
