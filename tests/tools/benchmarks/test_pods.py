"""benchmarks/learning/pods.py: which solutions are trained on, and with what advantages."""

import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.paths import CONFIGS, REPO

import vinejax
from vinejax.config.load import from_dict, from_file
from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.methods.known import find_method

PODS = "benchmarks.learning.pods"


@pytest.fixture(scope="module", autouse=True)
def _repository_on_the_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPO)
        yield


def largest_spread(rewards: list[float], count: int) -> list[int]:
    found = importlib.import_module(PODS).largest_spread(np.array(rewards, np.float32), count)
    return found.tolist()


def test_the_spread_of_the_chosen_is_the_largest():
    """Against all choices, on rewards with and without ties."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        size = int(rng.integers(1, 8))
        rewards = rng.choice([0.0, 0.25, 0.5, 1.0, rng.random()], size)
        for count in range(1, size + 2):
            kept = largest_spread(rewards.tolist(), count)
            assert kept == sorted(set(kept)) and len(kept) == min(size, count)
            every = itertools.combinations(rewards, len(kept))
            assert np.var(rewards[kept]) == pytest.approx(max(map(np.var, every)), abs=1e-6)


def test_known_choices():
    assert largest_spread([0, 1, 0, 0, 1, 0, 0, 0], 4) == [1, 4, 6, 7]  # two right, two wrong
    assert largest_spread([0, 0, 1, 0], 2) == [2, 3]
    assert largest_spread([1, 0, 0.5], 3) == [0, 1, 2]
    assert largest_spread([0.5, 0.5], 4) == [0, 1]


def episode(problem: str, reward: float) -> Episode:
    return Episode(problem, [1], [2, 3], [-0.1, -0.1], "", True, reward, [2])


def test_every_group_keeps_its_own():
    episodes = [episode("a", 0), episode("b", 1), episode("a", 1), episode("a", 1)]
    episodes += [episode("b", 1), episode("b", 1)]
    kept = importlib.import_module(PODS).spread_out(episodes, 2)
    assert [(x.problem_id, x.reward) for x in kept] == [("a", 0), ("a", 1), ("b", 1), ("b", 1)]


def test_the_method_is_found_with_its_setting():
    fields = from_file(str(CONFIGS), "configs/tiny.py")
    fields.method = PODS
    cfg = find_method(PODS).resolve(from_dict(fields))
    assert isinstance(cfg, Config) and cfg.reward.scale == "group"
    assert importlib.import_module(PODS).PodsConfig.of(cfg).trained == 4


@pytest.mark.slow
def test_a_run_trains_on_half_of_what_it_samples(tmp_path: Path):
    """And GRPO's advantages of four solutions have mean 0."""
    fields = {"method": PODS, "iterations": 2, "rollout.prompts": 4, "rollout.per_prompt": 8}
    fields |= {"ppo.minibatch": 32, "rollout.slots": 32, "eval.every": 0, "eval.problems": 4}
    fields |= {"eval.samples": 1}
    vinejax.train(CONFIGS / "tiny.py", fields, workdir=tmp_path / "run")
    lines = cases.read_lines(tmp_path / "run" / "metrics.jsonl")
    for line in (line for line in lines if line["stage"] == "train"):
        assert line["actor/rows"] == 16 and line["rollout/discarded"] == 16
        assert line["total/updates"] % 2 == 0  # one an epoch
    rows = cases.read_lines(tmp_path / "run" / "episodes" / "0.jsonl")
    for _, group in itertools.groupby(rows, key=lambda row: row["problem_id"]):
        advantages = [row["steps"][0]["advantage"] for row in group]
        assert len(advantages) == 4 and sum(advantages) == pytest.approx(0, abs=1e-5)
