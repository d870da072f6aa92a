"""Solutions and values in one stream are those of two phases, one after the other."""

import dataclasses
import subprocess
import sys
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import hosts
from helpers import loop_cases as cases
from helpers.applied import applied, fill_values, sample_episodes, sampler
from helpers.model_oracles import Model, random_model
from helpers.paths import TESTS
from jax.sharding import Mesh

from vinejax.core.settings import Config, DistributedConfig, GraderConfig, MeshConfig
from vinejax.core.types import Episode, Problem, PromptedProblem
from vinejax.credit.worth import at_every
from vinejax.engine.engine import Engine
from vinejax.model.sharding import make_mesh, with_auto_axes
from vinejax.rollout import one_stream, vine
from vinejax.rollout.overlong import penalised
from vinejax.rollout.sampler import Sampler
from vinejax.runtime import distributed
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.graded import GradedTask


class Task(cases.FewProblems):
    """Rewards depend on all of the text."""

    def reward(self, problem: Problem, response: str) -> float:
        return len(response) % 4 / 4

    def split(self, text: str) -> list[int]:
        return [0, *range(5, len(text), 5), len(text)]


class Stepped(Task):
    def step_rewards(self, problem: Problem, steps: list[str]) -> list[float]:
        return [0.1 * len(step) - 0.3 * step.count("=") for step in steps]


def problems() -> list[PromptedProblem]:
    found = Task().load("train")[:3]
    return [(x, [cases.BOS, *cases.encode(f"{x.question}=")]) for x in found]


def config(values: dict[str, Any], **sections: Any) -> Config:
    values = {"k": 2, "max_states": None} | values
    return cases.config(values=values, sample={"max_tokens": 24, "temperature": 1.0}, **sections)


def engine_of(tiny: Model, cfg: Config, mesh: Mesh | None = None, **settings: Any) -> Engine:
    limits = cfg.data.max_prompt_tokens, cfg.data.max_prompt_tokens + cfg.sample.max_tokens
    usual = {"slots": 8, "chunk": 4, "limits": limits, "skip_repeats": False}
    settings = usual | settings
    return Engine(tiny.decoder, cfg.sample, tiny.tokenizer, mesh, **settings)


def assert_same(found: list[Episode], expected: list[Episode]) -> None:
    """Equal in all that is not rounded; log-probabilities but for rounding."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for field in dataclasses.fields(Episode):
            mine, oracle = getattr(one, field.name), getattr(other, field.name)
            if field.name in ("logprobs", "scored") and oracle is not None:
                np.testing.assert_allclose(mine, oracle, atol=1e-4)
            elif isinstance(oracle, np.ndarray):
                np.testing.assert_array_equal(mine, oracle, err_msg=field.name)
            else:
                assert mine == oracle, field.name


SHARED = {"reuse": True, "backup": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "few": ({"max_states": 1, "dedup": False, "budget": "fresh"}, {}),
    "reuse": ({"reuse": True, "backup": True, "spread": 3}, {"reward": {"overlong": 0.5}}),
    "bisection": ({"allocation": "bisection"}, {}),
    "bisection, reuse": (
        {"allocation": "bisection", "reuse": True},
        {"reward": {"truncated": -0.5}},
    ),
}
TOKENS = {"positions": "tokens", "every": 4}
EARLY: dict[str, dict[str, Any]] = {
    "tokens": {},
    "thinned": {"reuse": True, "backup": True, "every": 2, "merge": 2, "max_states": 3},
    "apart": {"dedup": False, "every": 7},
}


@pytest.mark.first(4)  # bisection comes in waves, too
@pytest.mark.parametrize("name", CASES)
def test_episodes_are_those_of_two_phases(tiny: Model, name: str):
    values, sections = CASES[name]
    cfg = config(values, **sections)
    check(tiny, cfg, Task())


def test_step_rewards_with_a_discount(tiny: Model):
    check(tiny, config({"max_states": 2}, ppo={"gamma": 0.9}), Stepped())


@pytest.mark.parametrize("name", EARLY)
def test_states_that_are_valued_before_their_solutions_end(tiny: Model, name: str):
    cfg = config(TOKENS | EARLY[name])
    engine = check(tiny, cfg, Task(), slots=32)
    assert engine.stats.offshoots > 12


def check(tiny: Model, cfg: Config, task: Task, **settings: Any) -> Engine:
    engine, chosen = engine_of(tiny, cfg, **settings), problems()
    graded = GradedTask(task, GraderConfig())
    with mock.patch.object(vine, "divided", wraps=vine.divided) as dividing:
        found = one_stream.sample_valued(sampler(engine, graded, cfg, 3), tiny.params, chosen)
    assert dividing.call_count == len(chosen)  # the states of a problem are found once
    assert engine.stats.calls == 1
    tokens, useful = engine.stats.decoded_tokens, engine.stats.useful_tokens

    oracle = engine_of(tiny, cfg)
    solutions = sample_episodes(oracle, tiny.params, graded, chosen, cfg, 3)
    assert_same(found.sampled, solutions)
    solutions = penalised(solutions, cfg)
    expected = fill_values(oracle, tiny.params, graded, chosen, solutions, cfg, 3)
    assert_same(found.episodes, expected)
    assert found.waves == oracle.stats.calls - 1
    assert (tokens, useful) == (oracle.stats.decoded_tokens, oracle.stats.useful_tokens)
    return engine


@pytest.mark.parametrize(
    ("counts", "by_problem"), [((0, 0), False), ((0, 3), False), ((0, 3), True)]
)
def test_solutions_with_allocations_of_their_own(
    tiny: Model, counts: tuple[int, int], by_problem: bool
):
    """Of 'worth': where no state is sampled, the stream ends with the solutions."""
    cfg = dataclasses.replace(config({}), values=dataclasses.replace(config({}).values, k=9))

    def allocation(i: int):
        return at_every(counts[i // (cfg.rollout.per_prompt if by_problem else 1) % 2], 2)

    engine, chosen = engine_of(tiny, cfg), problems()
    one = sampler(engine, GradedTask(Task(), GraderConfig()), cfg, 3)
    found = one_stream.sample_valued(one, tiny.params, chosen, allocation)
    solutions = one.solutions(tiny.params, chosen, 99)
    expected = vine.fill_values(one, tiny.params, chosen, solutions, allocation)
    assert_same(found.episodes, expected)
    assert found.waves == int(any(counts))


def test_where_two_phases_are_needed(tiny: Model, monkeypatch: pytest.MonkeyPatch):
    def has(cfg: Config, kind: type[Sampler] = Sampler, task: Task | None = None) -> bool:
        graded = GradedTask(task or Task(), GraderConfig())
        return one_stream.has_one_stream(kind(engine_of(tiny, cfg), graded, applied(cfg), 0))

    class Other(Sampler):
        pass

    on = {"one_stream": "on"}
    assert has(config({}, rollout=on))
    assert not has(config({}))  # by XLA
    assert not has(config({}, rollout=on), Other)
    assert not has(config({"dtype": "int8"}, rollout=on))
    assert not has(config({}, rollout=on | {"flat": "drop"}))
    monkeypatch.setattr(Engine, "reads_by_kernel", True)
    assert has(config({}, rollout={"prompts": 4, "per_prompt": 2, "slots": 8}))
    assert not has(config({}, rollout={"prompts": 3, "per_prompt": 2, "slots": 8}))  # in six slots
    assert not has(config({}, rollout={"one_stream": "off"}))
    monkeypatch.setattr(one_stream, "process_place", lambda: (0, 2))
    assert has(config({}, rollout=on))
    assert not has(config({"allocation": "bisection"}, rollout=on))
    assert not has(config({}, rollout=on), task=Stepped())


class Counted(Task):
    graded = 0

    def reward(self, problem: Problem, response: str) -> float:
        self.graded += 1
        return super().reward(problem, response)


def on_hosts() -> None:
    """What each of two hosts does: it prints all episodes, and how many responses it graded."""
    distributed.initialize(DistributedConfig())
    assert jax.process_count() == 2
    tokenizer = Arithmetic().tokenizer()
    model = random_model(tokenizer=tokenizer, vocab_size=len(tokenizer))
    cfg, task = config(SHARED | TOKENS), Counted()
    engine = engine_of(model, cfg, with_auto_axes(make_mesh(MeshConfig(data=2))), slots=64)
    params = jax.tree.map(np.asarray, model.params)
    of_host = sampler(engine, GradedTask(task, GraderConfig()), cfg, 3)
    valued = one_stream.sample_valued(of_host, params, problems())
    assert engine.stats.calls == 1 and engine.stats.offshoots
    print(facts(valued.episodes), task.graded, sep="\n")


def facts(episodes: list[Episode]) -> str:
    return repr(
        [(x.tokens, x.reward, x.step_ends, np.asarray(x.values).tolist()) for x in episodes]
    )


@pytest.mark.slow
def test_two_hosts_have_the_episodes_of_one(tiny: Model):
    """Each reads all responses, and grades half of them."""
    command = [sys.executable, "-c", "from rollout import test_one_stream as x; x.on_hosts()"]
    started = [
        subprocess.Popen(command, cwd=TESTS, env=environment, stdout=subprocess.PIPE, text=True)
        for environment in hosts.environments(2)
    ]
    printed = [process.communicate(timeout=300)[0].splitlines()[-2:] for process in started]
    cfg, chosen, task = config(SHARED | TOKENS), problems(), Counted()
    engine, graded = engine_of(tiny, cfg), GradedTask(task, GraderConfig())
    solutions = sample_episodes(engine, tiny.params, graded, chosen, cfg, 3)
    expected = fill_values(engine, tiny.params, graded, chosen, solutions, cfg, 3)
    assert [found for found, _ in printed] == [facts(expected)] * 2
    counts = [int(count) for _, count in printed]
    assert min(counts) > 0 and sum(counts) == task.graded
