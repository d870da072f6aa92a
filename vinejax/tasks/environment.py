"""Tasks of several turns: the protocol of their environments, and calls of one that are checked.

A task with `env()` is multi-turn: the policy says something, its environment answers, and so on. It
has `load`, `prompt` and `answer` as any other; `TurnTask` has the rest. The rewards are those of
the environment alone.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from vinejax.core.errors import UserError
from vinejax.core.plugins import called_within, failure, finite_number, place_of, source_of
from vinejax.core.types import Problem, Turn


class Observation(NamedTuple):
    """What an environment answers to an action."""

    text: str  # what the policy reads next; not read once `done`
    reward: float = 0.0  # of the action
    done: bool = False  # the episode ends
    truncated: bool = False  # the episode is cut, as one that is out of turns


@runtime_checkable
class TextEnv(Protocol):
    """One episode: a function of (problem, seed, actions), and of nothing else.

    Calls come from threads, one at a time. Optional are

    - `fork()`: an independent copy, its generator included. Without it a copy is made by repeating
      the actions.
    - `key()`: a text or None; states with equal keys are equal.
    - `recall(turn)`: a new environment gets the state after a recorded turn, so that the action is
      not repeated.
    - `close()`: called once the episode has ended.
    """

    def reset(self, problem: Problem, seed: int) -> str:
        """Begins the episode; its text is put after the task's prompt. 0 <= seed < 2**32."""
        ...

    def step(self, action: str) -> Observation:
        """Takes what the policy said in its turn, up to and with the text that ended it."""
        ...


@runtime_checkable
class MultiTurn(Protocol):
    """A task whose solutions are episodes in an environment."""

    max_turns: int  # of an episode
    ends_turn: tuple[str, ...]  # texts after which the environment acts, beside EOS

    def env(self) -> TextEnv:
        """A new environment."""
        ...


class TurnTask:
    """The base of multi-turn tasks: what else `Task` promises, so that a turn is a step."""

    max_turns = 16
    ends_turn: tuple[str, ...] = ()

    def split(self, text: str) -> list[int]:
        """Boundaries of steps within the text of one turn; here none."""
        return [0, len(text)]

    def answer(self, text: str) -> str | None:
        """None: there is no answer to vote on."""
        return None

    def reward(self, problem: Problem, response: str) -> float:
        raise NotImplementedError("the environment gives the rewards")

    def solution(self, problem: Problem) -> str:
        raise NotImplementedError("the task has no worked solutions")


class EnvStart(NamedTuple):
    """An episode's place among others: what its environment is a function of, but the actions."""

    problem: Problem
    seed: int


class Environment:
    """An episode's environment whose results are checked as they enter.

    A call raises UserError, one line with the problem and the turn, if the environment's fails or
    gives something of another kind, or if `reset` or `step` takes more than `timeout_s` seconds.
    """

    def __init__(
        self, task: Any, start: EnvStart, timeout_s: float, env: Any = None, turn: int = 0
    ):
        """`env` has taken `turn` actions; None: a new one, not yet reset."""
        self._task, self._start, self._timeout_s = task, start, timeout_s
        self._turn = turn
        self._env = self._call("env", task.env) if env is None else env

    @property
    def forks(self) -> bool:
        """Whether the environment has `fork`."""
        return getattr(self._env, "fork", None) is not None

    def reset(self) -> str:
        """The first text, of a new environment."""
        text = self._in_time("reset", *self._start)
        if not isinstance(text, str):
            raise self._wrong("reset", self._env.reset, text, "a text")
        return text

    def step(self, action: str) -> Observation:
        """What the environment answers."""
        self._turn += 1
        found = self._in_time("step", action)
        rule = "an Observation: a text, a finite number and bools"
        is_one = isinstance(found, tuple) and 1 <= len(found) <= 4
        given = Observation(*found) if is_one else Observation("", math.nan)
        reward, ends = finite_number(given.reward), (given.done, given.truncated)
        is_bool = all(end in (True, False) for end in ends)
        if not isinstance(given.text, str) or reward is None or not is_bool:
            raise self._wrong("step", self._env.step, found, rule)
        return Observation(given.text, reward, *map(bool, ends))

    def key(self) -> str | None:
        """The key of the state; None if the environment has none."""
        if getattr(self._env, "key", None) is None:
            return None
        found = self._call("key", self._env.key)
        if found is not None and not isinstance(found, str):
            raise self._wrong("key", self._env.key, found, "a text, or None")
        return found

    def fork(self) -> "Environment":
        """A copy by the environment's own `fork`."""
        copy = self._call("fork", self._env.fork)
        if copy is None or copy is self._env:
            raise self._wrong("fork", self._env.fork, copy, "another environment")
        return Environment(self._task, self._start, self._timeout_s, copy, self._turn)

    def replay(self, turns: Iterable[Turn]) -> None:
        """Takes the actions of these turns again; UserError unless it answers as it did then."""
        recall = getattr(self._env, "recall", None)
        for turn in turns:
            if recall is not None:
                self._turn += 1
                self._call("recall", recall, turn)
                continue
            found = *self.step(turn.action)[:2], self.key()
            then = turn.observation, turn.reward, turn.key
            if found != then:
                rule = f"the environment answered {then!r:.200} to {turn.action!r:.100}, and now"
                remedy = "it must be a function of (problem, seed, actions)"
                raise UserError(f"{self._where}: {rule} {found!r:.200}; {remedy}")

    def close(self) -> None:
        """Calls `close`, if the environment has it."""
        if getattr(self._env, "close", None) is not None:
            self._call("close", self._env.close)

    @property
    def _where(self) -> str:
        return f"task {self._task.name}, problem {self._start.problem.id}, turn {self._turn}"

    def _wrong(self, name: str, function: Any, found: Any, rule: str) -> UserError:
        place = place_of(function)
        return UserError(f"{self._where}: {place}: `{name}` gave {found!r:.200}; needed is {rule}")

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result; UserError if it fails."""
        try:
            return function(*arguments)
        except UserError:
            raise
        except Exception as error:
            reason = failure(error, source_of(getattr(function, "__module__", "") or ""))
            raise UserError(f"{self._where}: `{name}` failed: {reason}") from error

    def _in_time(self, name: str, *arguments: Any) -> Any:
        """The result of a method, called on a thread of its own: one that hangs can be left."""
        call = self._call, name, getattr(self._env, name), *arguments
        results, _ = called_within(self._timeout_s, f"environment {name}", *call)
        if not results:
            rule = f"`{name}` has not returned within env.timeout_s = {self._timeout_s:g} s"
            raise UserError(f"{self._where}: {rule}; raise it, or mend the environment")
        return results[0]


def start_environment(task: Any, start: EnvStart, timeout_s: float) -> tuple[Environment, str]:
    """(a new environment at the start of its episode, its first text)."""
    environment = Environment(task, start, timeout_s)
    return environment, environment.reset()
