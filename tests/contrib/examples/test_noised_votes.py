"""POPri: votes against vectors in NumPy, their noise, and pairs by rank."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.contrib.examples import noised_votes
from vinejax.contrib.methods.popri import pairs_by_rank
from vinejax.contrib.methods.settings import POPriConfig
from vinejax.core.errors import UserError
from vinejax.core.types import Episode
from vinejax.tasks.rewards import function_at

CLIENTS = [["the cat sat", "A cat ate"], ["dogs bark"], ["the the the", "x"]]


@pytest.fixture
def votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function with a file of these clients: votes(response, noise, key)."""
    file = tmp_path / "clients.json"
    monkeypatch.setenv("POPRI_CLIENTS", str(file))

    def called(response: str, noise: float = 0.0, key: str = "k", **fields: Any) -> float:
        content = {"clients": CLIENTS, "noise": noise, "key": key} | fields
        file.write_text(json.dumps(content), encoding="utf-8")
        noised_votes.read.cache_clear()
        return noised_votes.votes(response)

    return called


def vector(text: str, names: list[str]) -> np.ndarray:
    parts = [text.lower()[i : i + 3] for i in range(max(len(text) - 2, 0))]
    return np.array([parts.count(name) for name in names], float)


@pytest.mark.parametrize(
    "response", ["the cat sat", "A CAT", "dogs and cats", "", "no", "日本語だ"]
)
def test_votes_are_means_of_cosines(votes: Any, response: str):
    texts = [response, *(text for client in CLIENTS for text in client)]
    names = sorted({t.lower()[i : i + 3] for t in texts for i in range(max(len(t) - 2, 0))})
    own, means = vector(response, names), []
    for client in CLIENTS:
        others = [vector(text, names) for text in client]
        norms = [float(np.linalg.norm(own) * np.linalg.norm(x)) for x in others]
        pairs = zip(others, norms, strict=True)
        means.append(np.mean([float(own @ x) / n if n else 0.0 for x, n in pairs]))
    assert votes(response) == pytest.approx(np.mean(means), abs=1e-12)
    assert all(0 <= mean <= 1 + 1e-12 for mean in means)


def test_noise_is_normal_and_depends_on_text_and_key(votes: Any):
    plain = votes("the cat")
    drawn = (votes("the cat", 3.0) - plain) * len(CLIENTS) / 3.0
    assert votes("the cat", 3.0) == votes("the cat", 3.0) != votes("the cat", 3.0, "other")
    votes("", 3.0)  # this file stays for the following
    many = np.array([noised_votes.votes(f"{i:02}") for i in range(0, 100)])  # no trigram: vote 0
    many *= len(CLIENTS) / 3.0
    assert abs(many.mean()) < 0.35 and 0.8 < many.std() < 1.25 and abs(drawn) < 5


@pytest.mark.parametrize(
    "fields",
    [{"clients": []}, {"clients": [["a"], []]}, {"noise": "much"}, {"key": "k" * 65}, {"key": 1}],
)
def test_files_that_do_not_fit_are_refused(votes: Any, fields: dict[str, Any]):
    with pytest.raises(UserError, match="POPRI_CLIENTS") as error:
        votes("a", **fields)
    assert "\n" not in str(error.value)


def test_the_file_must_be_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("POPRI_CLIENTS", raising=False)
    found = function_at("reward.functions", f"{noised_votes.__name__}.votes", "task")
    noised_votes.read.cache_clear()
    with pytest.raises(UserError, match="POPRI_CLIENTS"):
        found("a")


def solutions(rewards: dict[str, list[float]]) -> list[Episode]:
    return [
        cases.episode([0, 5], [3, 1], problem_id=problem, reward=reward)
        for problem, row in rewards.items()
        for reward in row
    ]


def test_pairs_are_ranks_one_and_l():
    """As the authors' `chunk_sort` has them; the best solution of a problem is chosen once."""
    rng = np.random.default_rng(0)
    rewards = {name: rng.normal(size=10).tolist() for name in "abc"}
    found = pairs_by_rank(solutions(rewards), POPriConfig(), seed=0)
    ranked = [sorted(row, reverse=True) for row in rewards.values()]
    assert [(a.reward, b.reward) for a, b in found] == [(row[0], row[4]) for row in ranked]
    assert [a.problem_id for a, _ in found] == [b.problem_id for _, b in found] == list("abc")
    more = pairs_by_rank(solutions(rewards), POPriConfig(pairs=99, rank=9), seed=0)
    expected = [(row[i], row[i + 8]) for row in ranked for i in (0, 1)]
    assert [(a.reward, b.reward) for a, b in more] == expected


def test_equal_rewards_and_small_groups_make_no_pair():
    rewards = {"equal": [1.0] * 5, "small": [1.0, 0.0], "tie": [1.0, 1.0, 0.0]}
    assert pairs_by_rank(solutions(rewards), POPriConfig(rank=5), seed=0) == []
    (pair,) = pairs_by_rank(solutions(rewards), POPriConfig(rank=3), seed=0)
    assert (pair[0].problem_id, pair[1].reward) == ("tie", 0.0)


@pytest.mark.parametrize("rank", [1, 9])
def test_a_rank_that_no_solution_has_is_refused(rank: int):
    with refuses("popri.rank"):
        check_config(from_dict({"method": "popri", "popri": {"rank": rank}}))
