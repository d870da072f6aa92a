"""Environments of an OpenEnv server, through its client.

`data.path` is the server's address, such as 'http://127.0.0.1:8000'. An episode is a session, which
starts with the problem's seed. An action must have one text field, which gets the policy's turn. If
an observation has one text field, the policy reads this field, else the whole observation as JSON.
A continuation is a new session that repeats the actions, so the server must allow one session per
live episode and continuation. An error of the server ends the run.

Source: https://github.com/meta-pytorch/OpenEnv, openenv-core 0.3.
"""

import functools
import importlib
import json
import urllib.request
from typing import Any

from vinejax.contrib.environments.games import Game, GameTask
from vinejax.core.text import without_escapes
from vinejax.core.types import Problem
from vinejax.tasks.environment import Observation

COMMON_FIELDS = ("metadata", "done", "reward")  # fields that all actions or observations have


class Remote(Game):
    """A session of an OpenEnv server, which is an episode."""

    _session: Any = None

    def reset(self, problem: Problem, seed: int) -> str:
        return without_escapes(self.begin(problem.columns["seed"]))

    def start(self, seed: int) -> str:
        first = self.begin(seed)
        self.close()
        return first

    def step(self, action: str) -> Observation:
        return self.answer(action)

    def begin(self, seed: int) -> str:
        self._field = action_field(self.name)
        client = importlib.import_module("openenv.core.generic_client").GenericEnvClient
        self._session = client(base_url=self.name).sync()
        return f"{text_of(self._session.reset(seed=seed).observation)}\n"

    def act(self, action: str) -> Observation:
        result = self._session.step({self._field: action})
        text = f"\n{text_of(result.observation)}\n"
        return Observation(text, float(result.reward or 0), bool(result.done))

    def close(self) -> None:
        """Ends the session at the server."""
        self._session.close()


class OpenEnvTask(GameTask):
    """The environment of an OpenEnv server as a task."""

    package = extra = "openenv"
    example = "http://127.0.0.1:8000"
    game = Remote
    copies = False


@functools.cache
def action_field(address: str) -> str:
    """The name of an action's only text field. Raises ValueError if there is not exactly one."""
    with urllib.request.urlopen(f"{address.rstrip('/')}/schema", timeout=60) as reply:
        fields = json.load(reply)["action"]["properties"]
    texts = [name for name, of in fields.items() if of.get("type") == "string"]
    if len(texts) != 1:
        raise ValueError(f"its action has the text fields {texts}; it must have one")
    return texts[0]


def text_of(observation: dict[str, Any]) -> str:
    """The only text field of an observation, or else the whole observation as JSON."""
    own = {name: value for name, value in observation.items() if name not in COMMON_FIELDS}
    texts = [value for value in own.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else json.dumps(own, ensure_ascii=False)


make = OpenEnvTask
