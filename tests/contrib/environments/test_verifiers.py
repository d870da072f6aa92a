"""Environments of verifiers, as stand-ins and from the package if installed."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import turn_cases as cases
from helpers.contrib.packages import stand_in
from helpers.refusals import refuses

from vinejax.contrib.environments import verifiers
from vinejax.contrib.environments.verifiers import Verifiers, VerifiersTask
from vinejax.core.errors import ConfigError
from vinejax.core.settings import DataConfig
from vinejax.tasks.base import load_task
from vinejax.tasks.environment import Observation


class Trace:
    def __init__(self, task: Any, agent: Any):
        self.nodes: list[Any] = []
        self.rewards: dict[str, float] = {}
        self.stop_condition: str | None = None

    @property
    def reward(self) -> float:
        return sum(self.rewards.values())

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        self.rewards[name] = value * weight

    def stop(self, condition: str) -> None:
        self.stop_condition = self.stop_condition or condition


class Guessing:
    """A task to guess its number, with half a point for at most two turns."""

    NEEDS_CONTAINER = False

    def __init__(self, number: int, kind: str):
        prompt, system = f"guess 0 to {number + 1}", "be brief"
        self.data = SimpleNamespace(number=number, prompt_text=prompt, system_prompt=system)
        self.config = SimpleNamespace(judges=[kind] if kind == "judged" else [])
        self.kind = kind

    def hooks(self, name: str) -> list[Any]:
        found = {"reward": [self.boxed if self.kind == "boxed" else self.short]}
        return found.get(name, [self.short] if self.kind == "stopped" else [])

    def toolsets(self, config: Any) -> list[str]:
        return ["tool"] if self.kind == "tools" else []

    async def short(self, trace: Trace) -> float:
        await asyncio.sleep(0)
        return float(sum(node.sampled for node in trace.nodes) <= 2)

    async def boxed(self, trace: Trace, runtime: Any) -> float:
        return 0.0

    async def setup(self, trace: Trace, runtime: Any) -> None:
        assert [node.message.content for node in trace.nodes] == [
            *("be brief", self.data.prompt_text)
        ]

    async def finalize(self, trace: Trace, runtime: Any) -> None:
        assert [node.parent for node in trace.nodes] == [None, *range(len(trace.nodes) - 1)]

    async def score(self, trace: Trace) -> None:
        (short,) = await asyncio.gather(self.short(trace))
        trace.record_reward("short", short, 0.5)


class Env:
    def __init__(self, kind: str, tasks: int):
        agents = {"player": Config(), **({"judge": Config()} if kind == "two" else {})}
        self.config = Config(env_id=kind, **agents)
        self.kind = kind
        self.taskset = Taskset(kind, tasks)

    async def setup(self, agents: Any) -> None:
        agents.player.trainable = True

    async def run(self, task: Any, agents: Any) -> None:
        if self.kind == "one":
            trace = await agents.player.run(task)
            trace.record_reward("said", float(trace.nodes[-1].message.content == "yes"))
            return
        won = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                said = segment.messages[-1].content
                if self.kind == "broken":
                    raise RuntimeError("bug")
                if said == "stop":
                    interaction.trace.stop("said so")
                won = float(said == str(task.data.number))
                if won:
                    break
                segment = await interaction.turn(f"not {said}")
        interaction.trace.record_reward("won", won)

    async def finalize(self, task: Any, episode: Any) -> None:
        if self.kind == "judging":
            episode.traces[0].record_reward("in the end", 4.0)


class Config:
    """Iterates over its fields, as pydantic's models do."""

    def __init__(self, **fields: Any):
        vars(self).update(fields)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(vars(self).items())


class Taskset:
    bounded, config = True, None

    def __init__(self, kind: str, tasks: int):
        self.kind, self.tasks = kind, tasks
        self.bounded = tasks < 10**6

    def __iter__(self) -> Iterator[Guessing]:
        return (Guessing(i, self.kind) for i in itertools.islice(itertools.count(), self.tasks))

    def toolsets(self, config: Any) -> list[str]:
        return []


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (verifiers.environment_at, verifiers.task_at):
        cached.cache_clear()

    def load(config: dict[str, Any]) -> Env:
        taskset = config["taskset"]
        return Env(taskset["id"], int(taskset.get("tasks", 30)))

    plain = SimpleNamespace
    names = ("TraceTask", "AgentInfo", "EnvInfo", "Episode", "Segment", "MessageNode")
    names += ("SystemMessage", "UserMessage", "AssistantMessage")
    members = dict.fromkeys(names, lambda **fields: plain(**{"terminated": False} | fields))
    members |= {"Trace": Trace, "AgentConfig": Config, "load_environment": load}
    stand_in(monkeypatch, "verifiers")
    stand_in(monkeypatch, "verifiers.v1", resolve_env_config=lambda given: given, **members)


def task_of(name: str, **fields: Any) -> VerifiersTask:
    task = load_task(DataConfig(task="vinejax.contrib.environments.verifiers", path=name, **fields))
    assert isinstance(task, VerifiersTask)
    return task


def played(name: str, *said: str, place: int = 7) -> tuple[str, list[Observation]]:
    """The first text of an episode, and the observations after each action."""
    task = task_of(name)
    problem = next(p for p in task.load("train") if p.columns["seed"] == place + 1000)
    game = task.env()
    assert isinstance(game, Verifiers)
    first, answers = game.reset(problem, 1), [game.step(text) for text in said]
    game.close()
    return first, answers


def test_an_episode_is_the_coroutine_and_its_reward_comes_in_the_end(package: None):
    number = 1007
    first, (wrong, right) = played("guess tasks=2000", "3", str(number))
    assert first == f"be brief\n\nguess 0 to {number + 1}\n"
    assert wrong == Observation("\nnot 3\n") and right == Observation("", 1.5, done=True)
    _, answers = played("guess tasks=2000", "1", "2", str(number))
    assert answers[-1] == Observation("", 1.0, done=True)
    assert played("judging tasks=2000", str(number))[1] == [Observation("", 5.5, done=True)]
    assert played("one tasks=2000", "yes")[1] == [Observation("", 1.5, done=True)]
    assert played("guess tasks=2000", "stop")[1] == [Observation("", 0.5, done=True)]

    async def cell() -> tuple[str, list[Observation]]:
        """Of a notebook, in whose thread an event loop runs."""
        return played("guess tasks=2000", "3", str(number))

    assert asyncio.run(cell()) == (first, [wrong, right])


def test_splits_are_places_of_the_taskset(package: None):
    def places(task: VerifiersTask, split: Any) -> list[int]:
        return [problem.columns["seed"] for problem in task.load(split)]

    task = task_of("guess", size=20)
    assert [places(task, split) for split in ("test", "validation")] == [[0, 1], [2, 3]]
    assert places(task, "train") == [*range(4, 24)]
    assert places(task_of("guess tasks=1300"), "train") == [*range(1000, 1300)]
    assert places(task_of(f"guess tasks={10**9}"), "train") == [*range(1000, 6000)]
    with refuses("data.path"):
        task_of("guess").load("train")


@pytest.mark.parametrize(
    ("kind", "reason"),  # any failure at the start is one of `data.path`, so the reason is matched
    [
        ("two", "several agents"),
        ("tools", "tools"),
        ("stopped", "conditions to stop"),
        ("judged", "judges"),
        ("boxed", "rewards that read a sandbox"),
    ],
)
def test_what_needs_more_than_words_is_refused(kind: str, reason: str, package: None):
    with pytest.raises(ConfigError, match=f"^data.path = .* it has {reason}"):
        task_of(kind)


def test_an_environment_that_raises_ends_its_episode(
    package: None, capsys: pytest.CaptureFixture[str]
):
    _, answers = played("broken tasks=2000", "1", "2")
    assert answers == [Observation("", truncated=True)] * 2
    assert "RuntimeError: bug; the episode ends" in capsys.readouterr().out


def test_continuations_repeat_the_actions(package: None):
    def guess(text: str, rng: Any) -> str:
        return f"{rng.integers(4)}\n"

    task = task_of("guess", size=20)
    fields: dict[str, Any] = {"data": {"max_prompt_tokens": 40}, "env": {"observed": 60}}
    cfg = cases.config(**fields, rollout={"prompts": 2, "per_prompt": 2}, values={"k": 3})
    episodes = cases.valued(cfg, cases.PolicyEngine(guess, context=160), task)
    assert all(turn.key is None for episode in episodes for turn in episode.turns)
    assert sum(len(c) for episode in episodes for c in episode.continuations) > 6


GUESS = """
import verifiers.v1 as vf

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    secret: int


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(trace.num_turns < 3)


class GuessConfig(vf.TasksetConfig):
    top: int = 9


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents):
        won = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and not won:
                won = float(segment.last_reply == str(task.data.secret))
                segment = segment if won else await interaction.turn("no")
        interaction.trace.record_reward("won", won)


class GuessTaskset(vf.Taskset[GuessTask, GuessConfig]):
    def load(self):
        for i in range(30):
            data = GuessData(secret=i, prompt=f"guess 0 to {self.config.top}")
            yield GuessTask(data, self.config.task)
"""


def test_the_package_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("verifiers.v1", reason="needs vinejax[verifiers]")
    verifiers.environment_at.cache_clear()
    (tmp_path / "guess_of_tests.py").write_text(GUESS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    task = task_of("guess_of_tests top=5", size=10)
    game = task.env()
    assert isinstance(game, Verifiers)
    problem = task.load("train")[1]
    assert game.reset(problem, 1) == "guess 0 to 5\n"
    found = [game.step("9\n"), game.step("3\n")]
    assert found == [Observation("\nno\n"), Observation("", 1.5, done=True)]
    game.close()
