"""Games of TextArena for one player.

`data.path` is a name of TextArena's registry, such as 'FrozenLake-v0'; a suffix chooses what the
policy sees. The game itself replies to a text that is no legal move. An observation is the game's
new text. Its earlier text and its echo of the action are left out, because the sequence already has
them. The game gives a reward at the end.

Source: https://github.com/LeonGuertler/TextArena, 0.7.4.
"""

import importlib
import re
from typing import Any

from vinejax.contrib.environments.games import Game, GameTask
from vinejax.tasks.environment import Observation


class Arena(Game):
    """An episode of a game of TextArena."""

    _game: Any
    _seen = ""  # all text that the game has shown

    def begin(self, seed: int) -> str:
        textarena = importlib.import_module("textarena")
        self._game = textarena.make(self.name)
        self._game.reset(num_players=1, seed=seed)
        if not isinstance(self._game.state, textarena.SinglePlayerState):
            raise ValueError("it is a game for several players")
        return self._news("").lstrip("\n")

    def act(self, action: str) -> Observation:
        done, _ = self._game.step(action)
        if not done:
            return Observation(self._news(action))
        rewards, _ = self._game.close()
        return Observation("", float(rewards[0]), done=True)

    def _news(self, action: str) -> str:
        """The game's text since the last call; all of its text if the earlier text has changed."""
        _, shown = self._game.get_observation()
        if not isinstance(shown, str):  # names that end in -raw show messages
            texts = [text for _, text, _ in shown]
            return "".join(f"\n{text}" for text in texts[texts[:1] == [action] :]) + "\n"
        news = shown.removeprefix(self._seen)
        self._seen = shown
        return re.sub(rf"\A\n\[[^]\n]*\] {re.escape(action)}", "", news) + "\n"


class ArenaTask(GameTask):
    """A game of TextArena as a task."""

    package = extra = "textarena"
    example = "FrozenLake-v0"
    game = Arena


make = ArenaTask
