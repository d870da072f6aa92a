"""Environments of the library verifiers, run without the library's model server.

`data.path` is the id of a taskset, with settings if it has any: 'textarena game=Hangman-v0'. A
problem is one task of it. The first tasks are the test split, then come validation and training.
The prompt has the task's system message and prompt.

An episode is the environment's coroutine `run` on a separate event loop, with the policy as its
agent. Where the environment asks the agent for a turn or a reply, the coroutine waits for the
policy. At the end the functions of task and environment compute the reward. A coroutine cannot be
copied, so continuations repeat the actions.

Environments with several agents, tools, stop conditions, judges, or rewards that read a running
sandbox raise an error.

Source: https://github.com/PrimeIntellect-ai/verifiers, 0.4.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import itertools
import types
from collections.abc import AsyncIterator
from typing import Any

from vinejax.contrib.environments.games import Game, GameTask
from vinejax.core.errors import ConfigError
from vinejax.core.plugins import awaited_in
from vinejax.core.types import Problem
from vinejax.tasks.base import Split
from vinejax.tasks.environment import Observation
from vinejax.tasks.splits import DRAWN, ORDER, seeds_of

CLOSE_S = 5.0  # time that a coroutine may take to end after its cancellation


def library() -> Any:
    return importlib.import_module("verifiers.v1")


@functools.cache
def environment_at(path: str) -> Any:
    """The environment that `path` names. `path` has the form of `data.path`."""
    name, *settings = path.split()
    pairs = [setting.split("=", 1) for setting in settings]
    config = library().resolve_env_config({"taskset": {"id": name, **dict(pairs)}})
    return library().load_environment(config)


@functools.cache
def task_at(path: str, place: int) -> Any:
    """The task at index `place` of the taskset that `path` names."""
    (task,) = itertools.islice(environment_at(path).taskset, place, place + 1)
    return task


def seats_of(env: Any) -> list[str]:
    """The names of the environment's agents."""
    return [name for name, value in env.config if isinstance(value, library().AgentConfig)]


def check(env: Any, task: Any) -> None:
    """Raises ValueError if the environment needs anything besides the texts of one policy."""
    rewards = [inspect.signature(function).parameters for function in task.hooks("reward")]
    needs = {
        "has several agents": len(seats_of(env)) != 1,
        "has tools": task.toolsets(task.config) or env.taskset.toolsets(env.taskset.config),
        "has conditions to stop": task.hooks("stop"),
        "has judges": task.config.judges,
        "needs a container": task.NEEDS_CONTAINER,
        "has rewards that read a sandbox": any(
            "runtime" in names and names["runtime"].default is inspect.Parameter.empty
            for names in rewards
        ),
    }
    for need, holds in needs.items():
        if holds:
            raise ValueError(f"it {need}")


class Verifiers(Game):
    """An episode of an environment of verifiers."""

    _loop: asyncio.AbstractEventLoop | None = None

    def start(self, seed: int) -> str:
        first = super().start(seed)
        self.close()
        return first

    def begin(self, seed: int) -> str:
        env, task = environment_at(self.name), task_at(self.name, seed)
        check(env, task)
        self.close()
        self._loop, self._traces = asyncio.new_event_loop(), []
        self._run = self._loop.create_task(self._play(env, task))
        message = self._next_message()
        if message is None:
            raise ValueError("it ends before its agent's first turn")
        messages = [task.data.system_prompt, task.data.prompt_text, message]
        return "\n\n".join(filter(None, messages)) + "\n"

    def act(self, action: str) -> Observation:
        self._reply.set_result(action)
        message = self._next_message()
        if message is not None:
            return Observation(f"\n{message}\n")
        return Observation("", float(sum(trace.reward for trace in self._traces)), done=True)

    def close(self) -> None:
        """Ends the episode's coroutine."""
        if self._loop is not None and not self._loop.is_closed():
            self._run.cancel()
            awaited_in(self._loop, asyncio.wait({self._run}, timeout=CLOSE_S))
            self._loop.close()

    def _next_message(self) -> str | None:
        """The environment's next message to the policy; None once the episode is over."""
        assert self._loop is not None
        self._message = self._loop.create_future()
        either = asyncio.wait({self._run, self._message}, return_when=asyncio.FIRST_COMPLETED)
        awaited_in(self._loop, either)
        return self._message.result() if self._message.done() else self._run.result()

    async def _play(self, env: Any, task: Any) -> None:
        """Runs the environment's whole episode, with the policy in the place of its agent."""
        lib, (seat,) = library(), seats_of(env)
        agents = types.SimpleNamespace(**{seat: Seat(self)})
        await env.setup(agents)
        await env.run(task, agents)
        about = lib.TraceTask(type=type(task).__name__, data=task.data)
        info = lib.EnvInfo(id=env.config.env_id)
        await env.finalize(task, lib.Episode(env=info, task=about, traces=self._traces))

    async def reply_to(self, text: str) -> str:
        """The policy's reply to a text."""
        assert self._loop is not None
        self._reply = self._loop.create_future()
        self._message.set_result(text)
        return await self._reply

    def new_trace(self, task: Any) -> Any:
        """A new trace (verifiers' record of a conversation), with the task's first messages."""
        lib = library()
        about = lib.TraceTask(type=type(task).__name__, data=task.data)
        trace = lib.Trace(task=about, agent=lib.AgentInfo(config=lib.AgentConfig()))
        if task.data.system_prompt:
            append_message(trace, lib.SystemMessage(content=task.data.system_prompt))
        if task.data.prompt_text:
            append_message(trace, lib.UserMessage(content=task.data.prompt_text))
        self._traces.append(trace)
        return trace


class Seat:
    """The policy, with the interface that the environment expects of its agent."""

    def __init__(self, game: Verifiers):
        self._game = game

    async def run(self, task: Any, **_: Any) -> Any:
        """The trace (verifiers' record) of a conversation in which the policy replies once."""
        async with self.interaction(task) as interaction:
            await interaction.turn()
        return interaction.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task: Any, **_: Any) -> AsyncIterator["Interaction"]:
        """A conversation with the policy; its trace is scored when the context ends."""
        trace = self._game.new_trace(task)
        await task.setup(trace, None)
        yield Interaction(self._game, trace)
        trace.stop("user_closed")
        await task.finalize(trace, None)
        await task.score(trace)


class Interaction:
    """A conversation with the policy."""

    def __init__(self, game: Verifiers, trace: Any):
        self._game, self.trace = game, trace

    async def turn(self, message: str | None = None) -> Any:
        """The policy's reply to `message`, or to the texts so far if there is no message.

        The reply is empty if the conversation has been stopped.
        """
        lib = library()
        if self.trace.stop_condition is not None:
            return lib.Segment(messages=[], terminated=True)
        if message is not None:
            append_message(self.trace, lib.UserMessage(content=message))
        reply = lib.AssistantMessage(content=await self._game.reply_to(message or ""))
        append_message(self.trace, reply, sampled=True)
        return lib.Segment(messages=[reply])


def append_message(trace: Any, message: Any, sampled: bool = False) -> None:
    """Appends a message to a trace; `sampled` says that the policy wrote it."""
    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.nodes.append(library().MessageNode(parent=parent, message=message, sampled=sampled))


class VerifiersTask(GameTask):
    """A taskset of verifiers as a task."""

    package = extra = "verifiers"
    example = "textarena game=Hangman-v0"
    game = Verifiers
    copies = False

    def load(self, split: Split) -> list[Problem]:
        """The tasks of a split. Raises ConfigError if no task is left for this split."""
        counts = {name: len(seeds_of(name, self._data.size)) for name in ORDER}
        first = sum(counts[name] for name in ORDER[: ORDER.index(split)])
        last = None if split == "train" and self._data.size is None else first + counts[split]
        taskset = environment_at(self.path).taskset
        if last is None and not taskset.bounded:
            last = first + DRAWN
        places = [first + i for i, _ in enumerate(itertools.islice(taskset, first, last))]
        if not places:
            message = f"has no tasks left for the split {split}; set data.size to a smaller number"
            raise ConfigError("data.path", message, repr(self.path))
        return [Problem(f"{split}/{i}", "", "", {"seed": i}) for i in places]


make = VerifiersTask
