"""Solutions of trees: their shared tokens, their trained tokens and their grading."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import assign_credit
from helpers.contrib.trees import sample_trees

from vinejax.core.settings import Config, GraderConfig, SampleConfig
from vinejax.core.types import Episode, Problem, Rollout
from vinejax.engine.engine import Engine
from vinejax.learner.batch import collate, step_layout
from vinejax.learner.score import score
from vinejax.tasks.graded import GradedTask

TEMPERATURE = 0.8
OF_TREES: dict[str, dict[str, Any]] = {
    "spo_tree": {"branching": (2, 2, 2), "segment": 4},
    "treepo": {"segment": 4},
    "treerl": {"forks": 1},
    "tree_grpo": {"forks": 1, "branches": 2},
}


class Lines(cases.FewProblems):
    """Four characters are a step, and the reward depends on the length: the model is untrained."""

    def split(self, text: str) -> list[int]:
        return [*range(0, len(text), 4), len(text)]

    def reward(self, problem: Problem, response: str) -> float:
        return len(response) % 3 / 10


def config(method: str) -> Config:
    fields = {"method": method, method: OF_TREES[method], "values": {"k": 9, "max_states": None}}
    sample = {"max_tokens": 16, "temperature": TEMPERATURE}
    return cases.config(**fields, sample=sample, rollout={"per_prompt": 4})


@pytest.fixture(scope="module")
def sampled() -> dict[str, list[Episode]]:
    return {method: sample(config(method)) for method in OF_TREES}


def sample(cfg: Config, task: Any = None) -> list[Episode]:
    task, tokenizer = task or Lines(), cases.tokenizer()
    sampling = SampleConfig(temperature=TEMPERATURE, max_tokens=cfg.sample.max_tokens)
    settings: dict[str, Any] = {"slots": 16, "chunk": 4, "skip_repeats": False}
    engine = Engine(cases.model(), sampling, tokenizer, **settings)
    problems = [(p, cases.encode(task.prompt(p))) for p in task.load("train")[:2]]
    graded = GradedTask(task, GraderConfig())
    return sample_trees(engine, cases.params(), graded, problems, cfg, iteration=1)


def by_problem(episodes: list[Episode]) -> list[list[Episode]]:
    names = dict.fromkeys(episode.problem_id for episode in episodes)
    return [[e for e in episodes if e.problem_id == name] for name in names]


@pytest.mark.parametrize("method", OF_TREES)
def test_leaves_share_the_tokens_of_the_nodes_that_they_share(method: str, sampled):
    forks = 0
    for leaves in by_problem(sampled[method]):
        pieces: dict[int, tuple[int, list[int]]] = {}
        for leaf in leaves:
            assert leaf.nodes is not None and leaf.step_ends[-1] == len(leaf.response)
            steps = len(leaf.step_ends)
            starts = [leaf.given, *leaf.step_ends[:-1]]
            for node, start, end in zip(leaf.nodes[-steps:], starts, leaf.step_ends, strict=True):
                assert start < end
                piece = (start, leaf.response[:end])
                assert pieces.setdefault(node, piece) == piece
        forks += sum(len(leaf.nodes or ()) > 1 for leaf in leaves)
    assert forks > 2


@pytest.mark.parametrize("method", OF_TREES)
def test_log_probabilities_are_those_of_the_learner(method: str, sampled):
    episodes = sampled[method]
    batch = collate(episodes, len(episodes))
    scored = np.asarray(score(cases.model(), cases.params(), batch, TEMPERATURE))
    for row, episode in enumerate(episodes):
        start = len(episode.prompt)
        found = scored[row, start : start + len(episode.response)]
        np.testing.assert_allclose(found, episode.logprobs, atol=2e-5)


def test_every_node_of_spo_tree_is_trained_on_once(sampled):
    for leaves in by_problem(sampled["spo_tree"]):
        assert leaves[0].given == 0 and any(leaf.given for leaf in leaves)
        trained = [node for leaf in leaves for node in (leaf.nodes or [])[-len(leaf.step_ends) :]]
        assert sorted(trained) == sorted({node for leaf in leaves for node in leaf.nodes or []})
    assert not any(leaf.given for method in ("treepo", "treerl") for leaf in sampled[method])


@pytest.mark.parametrize("method", OF_TREES)
def test_the_reward_is_that_of_the_whole_text(method: str, sampled):
    task = Lines()
    problems = {problem.id: problem for problem in task.load("train")}
    for episode in sampled[method]:
        assert cases.tokenizer().decode(episode.response, True) == episode.text
        expected = float(np.float32(task.reward(problems[episode.problem_id], episode.text)))
        assert episode.reward == (expected if episode.finished else 0.0)
        assert episode.finished == (episode.response[-1] == cases.EOS)
    assert len({episode.reward for episode in sampled[method]}) > 1


def test_the_same_again_and_another_with_another_seed(sampled):
    cfg = config("treerl")
    again = sample(cfg)
    assert [e.response for e in again] == [e.response for e in sampled["treerl"]]
    other = sample(dataclasses.replace(cfg, seed=cfg.seed + 1))
    assert [e.response for e in other] != [e.response for e in again]


@pytest.mark.parametrize("method", OF_TREES)
def test_credit_is_finite_and_belongs_to_nodes(method: str, sampled):
    episodes = sampled[method]
    batch = collate(episodes, len(episodes))
    rollout = Rollout(episodes, batch, step_layout(batch, episodes))
    credit = assign_credit(rollout, config(method), "none")
    assert np.isfinite(credit.advantages).all() and np.abs(credit.advantages).max() > 0
    assert credit.mask is not None and not (credit.mask & ~batch.mask).any()
    if method in ("spo_tree", "treerl"):
        by_node: dict[tuple[str, int], float] = {}
        for row, episode in enumerate(episodes):
            steps = len(episode.step_ends)
            for c, node in enumerate((episode.nodes or [])[-steps:]):
                value = float(np.asarray(credit.by_step)[row, c])
                assert by_node.setdefault((episode.problem_id, node), value) == value
    else:
        for advantages, mask in zip(credit.advantages, batch.mask, strict=True):
            assert np.ptp(advantages[mask]) == 0


class Paid(Lines):
    """A task in which each step earns a tenth of its number of characters."""

    def step_rewards(self, problem: Problem, steps: list[str]) -> list[float]:
        return [len(step) / 10 for step in steps]


@pytest.mark.parametrize("method", ["spo_tree", "treerl"])
def test_the_steps_rewards_are_part_of_a_leafs(method: str, sampled):
    paid = sample(config(method), Paid())
    assert [leaf.response for leaf in paid] == [leaf.response for leaf in sampled[method]]
    for one, plain in zip(paid, sampled[method], strict=True):
        assert one.step_rewards is not None and len(one.step_rewards) == len(one.step_ends)
        expected = plain.reward + len(one.text) / 10 * (len(one.text) > 0)
        assert sum(one.rewards) == pytest.approx(expected)
