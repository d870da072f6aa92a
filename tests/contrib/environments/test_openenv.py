"""Environments of an OpenEnv server, with a stand-in for its client and a server if installed."""

import io
import json
import random
import socket
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import turn_cases as cases
from helpers.contrib.packages import stand_in
from helpers.refusals import refuses

from vinejax.contrib.environments.openenv import OpenEnvTask, action_field, text_of
from vinejax.core.errors import UserError
from vinejax.core.settings import DataConfig
from vinejax.tasks.base import load_task

TEXT = {"type": "string"}


class Session:
    """A client with its session, with a bit of the seed's generator in each of three turns."""

    live: list["Session"] = []

    def __init__(self, base_url: str):
        self.address = base_url

    def sync(self) -> "Session":
        self.live.append(self)
        return self

    def reset(self, seed: int) -> Any:
        self.rng, self.turns = random.Random(seed), 0
        return SimpleNamespace(observation={"text": "0"}, reward=None, done=False)

    def step(self, action: dict[str, str]) -> Any:
        self.turns += 1
        if self.address.endswith("broken") and self.turns == 2:
            raise RuntimeError("Server error: 'bug'")
        seen = {"text": str(self.rng.randrange(2)), "metadata": {}}
        reward = float(action["message"] == "<\n")
        return SimpleNamespace(observation=seen, reward=reward, done=self.turns == 3)

    def close(self) -> None:
        self.live.remove(self)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    action_field.cache_clear()
    for name in ("openenv", "openenv.core"):
        stand_in(monkeypatch, name)
    stand_in(monkeypatch, "openenv.core.generic_client", GenericEnvClient=Session)

    def opened(address: str, timeout: float) -> io.BytesIO:
        fields = {"metadata": {"type": "object"}, "message": TEXT}
        if "two" in address:
            fields["tone"] = TEXT
        if "gone" in address:
            raise ConnectionRefusedError("refused")
        return io.BytesIO(json.dumps({"action": {"properties": fields}}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", opened)


def task_of(address: str, **fields: Any) -> OpenEnvTask:
    task = load_task(
        DataConfig(task="vinejax.contrib.environments.openenv", path=address, **fields)
    )
    assert isinstance(task, OpenEnvTask)
    return task


def test_continuations_are_sessions_that_repeat_the_actions(package: None):
    task = task_of("http://here/", template="0\n")
    assert not Session.live and task.env().fork is None
    for episode in cases.valued(cases.config(env={"check_every": 1}), task=task):
        assert len(episode.turns) == 3 and episode.finished
        assert episode.reward == float(episode.turns[-1].action == "<\n")
        assert [turn.reward for turn in episode.turns] == [
            float(turn.action == "<\n") for turn in episode.turns
        ]
        assert episode.value_counts is not None and episode.value_counts.sum() == 12
    assert not Session.live  # all sessions were ended


def test_an_error_of_the_server_ends_the_run(package: None):
    task = task_of("http://broken", template="0\n")
    with pytest.raises(UserError, match=r"task openenv, problem train/\d+, turn 2: `step` failed"):
        cases.sampled(cases.config(), task=task)


def test_what_a_server_must_have(package: None):
    for address in ("http://two", "http://gone"):
        with refuses("data.path"):
            task_of(address)
    assert text_of({"board": "x o", "done": False, "metadata": {"a": "b"}}) == "x o"
    assert text_of({"board": "x", "turn": "o"}) == '{"board": "x", "turn": "o"}'
    assert text_of({"cells": [1, 2]}) == '{"cells": [1, 2]}'


SERVER = """
import random, sys
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Say(Action):
    message: str

class Seen(Observation):
    text: str = ""

class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, **given):
        self.rng, self.turns = random.Random(seed), 0
        return Seen(text="0")
    def step(self, action, **given):
        self.turns += 1
        reward = float(action.message == "<\\n")
        return Seen(text=str(self.rng.randrange(2)), reward=reward, done=self.turns == 3)
    @property
    def state(self):
        return State()

app = create_fastapi_app(Guess, Say, Seen, max_concurrent_envs=64)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_server_of_the_package():
    pytest.importorskip("openenv.core.generic_client", reason="needs vinejax[openenv]")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-W", "ignore", "-c", SERVER, str(port)])
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.5)
        task = task_of(f"http://127.0.0.1:{port}", template="0\n")
        for episode in cases.valued(cases.config(env={"check_every": 1}), task=task):
            assert len(episode.turns) == 3 and episode.finished
            assert episode.reward == float(episode.turns[-1].action == "<\n")
    finally:
        server.kill()
        server.wait()
