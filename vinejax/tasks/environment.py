"""Tasks of several turns: the protocol of their environments, and a wrapper that checks results.

A task with `env()` is multi-turn: the policy acts, the environment answers, and so on. Such a task
has `load`, `prompt` and `answer` like any other task; `TurnTask` has the other methods. All rewards
come from the environment.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from vinejax.core.errors import UserError
from vinejax.core.plugins import (
    called_within,
    failure,
    finite_number,
    listed,
    place_of,
    shown,
    source_of,
)
from vinejax.core.text import opens_thinking, without_escapes, without_thinking
from vinejax.core.types import Problem, Turn
from vinejax.tasks.files import check_text


class Observation(NamedTuple):
    """An environment's answer to an action."""

    text: str  # text that the policy reads next; ignored once `done`
    reward: float = 0.0  # reward of the action
    done: bool = False  # whether the episode ends
    truncated: bool = False  # whether the episode is cut, like one that runs out of turns
    # Results of calls of tools. A chat template writes each as a tool message, in place of `text`
    # as the user's message. Without a template their lines are the text.
    results: tuple[str, ...] = ()


@runtime_checkable
class TextEnv(Protocol):
    """One episode: a function of (problem, seed, actions), and of nothing else.

    Calls come from several threads, one call at a time. Optional methods are

    - `fork()`: returns an independent copy, its random generator included. Without `fork` a copy is
      made by repeating the actions.
    - `key()`: returns a text or None; states with equal keys are equal.
    - `recall(turn)`: puts a new environment into the state after a recorded turn, so that the
      action is not repeated.
    - `close()`: ends the environment; called once the episode has ended.
    """

    def reset(self, problem: Problem, seed: int) -> str:
        """Begins the episode; the returned text follows the task's prompt. 0 <= seed < 2**32."""
        ...

    def step(self, action: str) -> Observation:
        """Takes an action: what the policy said in a turn, including the text that ended the turn.

        What it thought is left out, unless the run or the task says otherwise.
        """
        ...


@runtime_checkable
class MultiTurn(Protocol):
    """A task whose solutions are episodes in an environment.

    With the optional attribute `acts_in_thinking` = True, actions always have the policy's
    thinking, because it may act there, for example by calls of a tool. The optional attribute
    `tools` has JSON schemas of tools, which the chat template writes into the prompts (`tools.py`).
    """

    max_turns: int  # maximum of turns of an episode
    ends_turn: tuple[str, ...]  # texts that end the policy's turn, beside EOS

    def env(self) -> TextEnv:
        """A new environment."""
        ...


class TurnTask:
    """The base of multi-turn tasks: all methods of `Task` except `load` and `prompt`."""

    max_turns = 16
    ends_turn: tuple[str, ...] = ()

    def split(self, text: str) -> list[int]:
        """Boundaries of the steps within one turn's text; here the turn is one step."""
        return [0, len(text)]

    def answer(self, text: str) -> str | None:
        """None, as there is no answer to vote on."""
        return None

    def reward(self, problem: Problem, response: str) -> float:
        raise NotImplementedError("the environment gives the rewards")

    def solution(self, problem: Problem) -> str:
        raise NotImplementedError("the task has no worked solutions")


class EnvStart(NamedTuple):
    """The start of an episode, which together with the actions determines the environment."""

    problem: Problem
    seed: int


class EnvRules(NamedTuple):
    """How a run calls its environments."""

    timeout_s: float  # time limit of `reset` and `step`, in seconds
    keeps_thinking: bool = False  # whether actions have what the policy thinks
    after: str = ""  # markup of the chat template between an observation and the next turn
    hidden: Collection[str] = ()  # special tokens that the texts of turns do not show


class Environment:
    """An episode's environment with checked results.

    Texts of the environment lose their escape codes, and actions lose the policy's thinking unless
    `EnvRules.keeps_thinking`. A turn begins in thinking if the text before it ends in `<think>`,
    unless that is one of `EnvRules.hidden`.

    A method raises UserError, in one line with the problem and the turn, if the environment's
    method fails or its result does not fit `TextEnv`. `reset` and `step` raise it as well if they
    take more than `EnvRules.timeout_s` seconds.
    """

    def __init__(self, task: Any, start: EnvStart, rules: EnvRules, env: Any = None, turn: int = 0):
        """`env` is an environment that has taken `turn` actions.

        With None the task makes a new environment, which is not yet reset.
        """
        self._task, self._start, self._rules = task, start, rules
        self._turn, self._thinks = turn, False
        self._keeps_thinking = rules.keeps_thinking or getattr(task, "acts_in_thinking", False)
        self._env = self._call("env", task.env) if env is None else env

    @property
    def forks(self) -> bool:
        """Whether the environment has `fork`."""
        return getattr(self._env, "fork", None) is not None

    def reset(self) -> str:
        """Begins the episode of a new environment; returns its first text."""
        text = self._in_time("reset", self._start.problem, self._start.seed)
        if not isinstance(text, str):
            raise self._wrong("reset", self._env.reset, text, "a text")
        check_text(text, "the text of `reset`", self._where, None)
        text = without_escapes(text)
        prompt = self._task.prompt(self._start.problem)
        self._thinks = self._opens_thinking(prompt + text)
        return text

    def step(self, action: str) -> Observation:
        """Takes an action, the policy's text of a turn; returns the environment's answer."""
        self._turn += 1
        result = self._in_time("step", self._said(action))
        has_fields = isinstance(result, tuple) and 1 <= len(result) <= len(Observation._fields)
        text, reward, done, truncated, results = (
            Observation(*result) if has_fields else Observation("", math.nan)
        )
        number = finite_number(reward)
        is_bool = all(finite_number(x) in (0, 1) for x in (done, truncated))
        texts = listed(results)
        is_text = texts is not None and all(isinstance(x, str) for x in (text, *texts))
        if texts is None or not is_text or number is None or not is_bool:
            needed = "an Observation: a text, a finite number and bools, and perhaps results: texts"
            raise self._wrong("step", self._env.step, result, needed)
        texts = tuple(map(without_escapes, texts))
        text = "\n".join(texts) if texts else without_escapes(text)
        check_text(text, "the text of `step`", self._where, None)
        self._thinks = self._opens_thinking(text)
        return Observation(text, number, bool(done), bool(truncated), texts)

    def key(self) -> str | None:
        """The key of the state, as `TextEnv` defines keys; None if the state has no key."""
        if getattr(self._env, "key", None) is None:
            return None
        key = self._call("key", self._env.key)
        if key is not None and not isinstance(key, str):
            raise self._wrong("key", self._env.key, key, "a text, or None")
        return key

    def fork(self) -> "Environment":
        """A copy, made by the environment's `fork`."""
        copy = self._call("fork", self._env.fork)
        if copy is None or copy is self._env:
            raise self._wrong("fork", self._env.fork, copy, "another environment")
        twin = Environment(self._task, self._start, self._rules, copy, self._turn)
        twin._thinks = self._thinks
        return twin

    def replay(self, turns: Iterable[Turn]) -> None:
        """Brings the environment to the state after recorded turns.

        The environment recalls each turn if it has `recall`. Otherwise the turn's action is
        repeated, and UserError is raised if the answer differs from the recorded answer.
        """
        recall = getattr(self._env, "recall", None)
        for turn in turns:
            if recall is not None:
                self._turn += 1
                self._call("recall", recall, turn._replace(action=self._said(turn.action)))
                self._thinks = self._opens_thinking(turn.observation)
                continue
            answer = *self.step(turn.action)[:2], self.key()
            recorded = turn.observation, turn.reward, turn.key
            if answer != recorded:
                message = (
                    f"the environment answered {recorded!r:.200} to {turn.action!r:.100}, and now"
                    f" {answer!r:.200}; it must be a function of (problem, seed, actions)"
                )
                raise UserError(f"{self._where}: {message}")

    def close(self) -> None:
        """Calls the environment's `close`, if it has one."""
        if getattr(self._env, "close", None) is not None:
            self._call("close", self._env.close)

    def _opens_thinking(self, text: str) -> bool:
        """Whether the turn after `text` begins in thinking."""
        return bool(opens_thinking(text + self._rules.after, self._rules.hidden))

    def _said(self, action: str) -> str:
        """What the environment gets of the policy's text of a turn."""
        return action if self._keeps_thinking else without_thinking(action, self._thinks)

    @property
    def _where(self) -> str:
        return f"task {self._task.name}, problem {self._start.problem.id}, turn {self._turn}"

    def _wrong(self, name: str, function: Any, result: Any, needed: str) -> UserError:
        message = f"`{name}` gave {shown(result)}; needed is {needed}"
        return UserError(f"{self._where}: {place_of(function)}: {message}")

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function`. Raises UserError if the function fails."""
        try:
            return function(*arguments)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            reason = failure(error, source_of(getattr(function, "__module__", "") or ""))
            raise UserError(f"{self._where}: `{name}` failed: {reason}") from error

    def _in_time(self, name: str, *arguments: Any) -> Any:
        """The result of method `name`, which is called on a separate thread.

        Raises UserError if the method has not returned after `EnvRules.timeout_s` seconds.
        """
        method, timeout_s = getattr(self._env, name), self._rules.timeout_s
        results, _ = called_within(
            timeout_s, f"environment {name}", self._call, name, method, *arguments
        )
        if not results:
            message = f"`{name}` has not returned within env.timeout_s = {timeout_s:g} s"
            raise UserError(f"{self._where}: {message}; raise it, or mend the environment")
        return results[0]


def start_environment(task: Any, start: EnvStart, rules: EnvRules) -> tuple[Environment, str]:
    """(a new environment at the start of its episode, its first text)."""
    environment = Environment(task, start, rules)
    return environment, environment.reset()
