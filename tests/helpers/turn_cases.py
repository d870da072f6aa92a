"""Episodes in the doors' environment by an engine whose policy is known, for tests on turns."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from helpers import loop_cases
from helpers.applied import applied
from vinejax.core.seeds import row_seed
from vinejax.core.settings import Config, GraderConfig, SampleConfig, ValuesConfig
from vinejax.core.types import Episode, Problem, PromptedProblem
from vinejax.credit.allocation import Seen
from vinejax.engine.branches import (
    Branch,
    Feeder,
    Grown,
    Stream,
    StreamInput,
    StreamPairs,
    as_lists,
)
from vinejax.engine.engine import Engine
from vinejax.rollout.turns import TurnSampler
from vinejax.rollout.vine import fill_values
from vinejax.tasks.doors import LEAN, Doors, DoorsTask
from vinejax.tasks.environment import Observation
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import encode_prompt

BOS, EOS = 0, 1  # of the character tokenizer
Say = Callable[[str, np.random.Generator], str]  # the text so far -> what the policy says next


class WithoutFork(DoorsTask):
    """Its environments are copied by replay."""

    def env(self) -> Any:
        class Plain:
            def __init__(self) -> None:
                self.inner = Doors()

            def reset(self, problem: Any, seed: int) -> str:
                return self.inner.reset(problem, seed)

            def step(self, action: str) -> Observation:
                return self.inner.step(action)

        return Plain()


@functools.cache
def tokenizer() -> Any:
    return DoorsTask().tokenizer()


def problems(count: int = 2, task: Any = None) -> list[PromptedProblem]:
    """Problems, of the doors; their prompts are only looked at for their length."""
    task = task or DoorsTask()
    found = task.load("train")[:count]
    return [(x, encode_prompt(tokenizer(), task.prompt(x), False)) for x in found]


def lean(text: str, rng: np.random.Generator) -> str:
    """The demonstrations' policy."""
    return "<>"[int(rng.random() < LEAN)] + "\n"


def config(**sections: Any) -> Config:
    fields: dict[str, Any] = {
        "data": {"task": "vinejax.tasks.doors", "max_prompt_tokens": 16},
        "sample": {"max_tokens": 24},
        "env": {"observed": 30},
        "rollout": {"prompts": 2, "per_prompt": 3},
        "values": {"k": 4, "positions": "turns", "max_states": None},
    }
    for name, value in sections.items():
        fields[name] = fields.get(name, {}) | value if isinstance(value, dict) else value
    return applied(loop_cases.config(**fields))


class PolicyEngine(Engine):
    """Draws each turn by `say(text, generator)`; a draw depends on seed and place alone.

    What is said ends with its first newline, or where the branch's budget or `turn` ends it.
    """

    def __init__(self, say: Say = lean, backwards: bool = False, context: int = 96):
        self.tokenizer, self.say, self.backwards = tokenizer(), say, backwards
        self.sample_config = SampleConfig(max_tokens=24, stop=("\n",))
        self.calls: list[list[int]] = []  # the seeds of each call's branches
        model = loop_cases.model()
        self.model = dataclasses.replace(model, cfg=dataclasses.replace(model.cfg, context=context))

    @property
    def scores_as_learner(self) -> bool:
        return False

    def stream(self, params, trunks, branches, max_tokens=None, scored=False, feed=None) -> Stream:
        self.calls.append([branch.seed for branch in branches])
        return Stream(
            functools.partial(self._scripted, StreamInput(trunks, branches, max_tokens), feed)
        )

    def _scripted(self, fed: StreamInput | None, feed: Feeder | None) -> StreamPairs:
        """One branch after the other; what is fed after each comes last, or first if backwards."""
        waiting: list[tuple[int, list[int], Branch, int]] = []
        count = 0
        while fed is not None:
            trunks, budgets = as_lists(fed.trunks), np.array(fed.max_tokens).tolist()
            for branch, budget in zip(fed.branches, budgets, strict=True):
                waiting.append((count, trunks[branch.trunk], branch, budget))
                count += 1
            if waiting:
                i, trunk, branch, budget = waiting.pop(-1 if self.backwards else 0)
                yield i, self._drawn(trunk, branch, budget)
            fed = feed.more() if feed else StreamInput([], [], []) if waiting else None
        return []

    def _drawn(self, trunk: list[int], branch: Branch, budget: int) -> Grown:
        before = trunk[: branch.position]
        assert len(before) == branch.position < self.model.cfg.context and budget > 0
        rng = np.random.default_rng([branch.seed, branch.position])
        said = self.say(self.tokenizer.decode(before[1:]), rng)
        ids = self.tokenizer.encode(said, add_special_tokens=False)
        ids = ids[: min(budget, self.model.cfg.context - branch.position)]
        text, stop, _ = said[: len(ids)].partition("\n")
        ids = ids[: len(text) + len(stop)]
        return Grown(ids, [-1.0] * len(ids), text, "stop" if stop else "length")


def in_two_waves(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """An allocation rule: K at the prompt's end, and then at all other states."""
    if wave > 1:
        return None
    return [values.k if min(c, 1) == wave else 0 for c in range(len(seen.returns))]


def sampler(engine: Any, cfg: Config, task: Any = None, iteration: int = 0) -> TurnSampler:
    return TurnSampler(engine, GradedTask(task or DoorsTask(), GraderConfig()), cfg, iteration)


def sampled(cfg: Config, engine: PolicyEngine | None = None, task: Any = None) -> list[Episode]:
    found = problems(cfg.rollout.prompts, task)
    return sampler(engine or PolicyEngine(), cfg, task).solutions({}, found, len(found))


def valued(cfg: Config, engine: PolicyEngine | None = None, task: Any = None) -> list[Episode]:
    engine = engine or PolicyEngine()
    episodes = sampled(cfg, engine, task)
    found = problems(cfg.rollout.prompts, task)
    return fill_values(sampler(engine, cfg, task), {}, found, episodes)


def environment(cfg: Config, problem: Problem, iteration: int = 0) -> Doors:
    """The environment that the solutions of a problem meet, reset."""
    env = Doors()
    env.reset(problem, row_seed(cfg.seed, iteration, f"environment {problem.id}") % 2**32)
    return env


def enumerated(env: Doors) -> float:
    """V of the demonstrations' policy where the noise to come is known: a sum over all actions."""
    total = 0.0
    for arm, chance in ((">", LEAN), ("<", 1 - LEAN)):
        copy = env.fork()
        found = copy.step(f"{arm}\n")
        total += chance * (found.reward if found.done else enumerated(copy))
    return total


class Unsure(PolicyEngine):
    """Is as unsure of a turn as the turn's seed says."""

    def _drawn(self, trunk: list[int], branch: Branch, budget: int) -> Grown:
        grown = super()._drawn(trunk, branch, budget)
        rng = np.random.default_rng([branch.seed, branch.position, 1])
        return dataclasses.replace(grown, logprobs=(-rng.random(len(grown.tokens))).tolist())
