"""Games of GEM.

`data.path` is an id of GEM's registry, such as 'game:GuessTheNumber-v0-easy'. An observation is the
text that a step returns, then the 'suffix' in the step's information. The rewards are those of the
steps. GEM's environments other than games run or evaluate the model's text in the training process,
so they raise an error.

Source: https://github.com/axon-rl/gem, 0.1.0.
"""

import importlib
from typing import Any

from vinejax.contrib.environments.games import GameTask
from vinejax.contrib.environments.gymnasium import SteppedGame
from vinejax.tasks.environment import Observation

GAMES = "game:"


class Gem(SteppedGame):
    """An episode of a game of GEM."""

    def begin(self, seed: int) -> str:
        if not self.name.startswith(GAMES):
            raise ValueError(
                f"its name does not begin with {GAMES!r}, so it might run the model's text"
            )
        self._game = importlib.import_module("gem").make(self.name)
        seen, about = self._game.reset(seed=seed)
        return f"{self.text_of(seen, about)}\n"

    def act(self, action: str) -> Observation:
        return self.observation_of(self._game.step(action))

    def text_of(self, seen: Any, about: dict[str, Any]) -> str:
        return "\n".join([seen.rstrip("\n"), *filter(None, [about.get("suffix")])])


class GemTask(GameTask):
    """An environment of GEM as a task."""

    package = extra = "gem"
    example = "game:GuessTheNumber-v0-easy"
    game = Gem


make = GemTask
