"""Accuracy statistics against enumeration and cases worked by hand."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import REPO

from vinejax.statistics.accuracy import (
    accuracy_metrics,
    bootstrap_interval,
    maj_at_k,
    paired_interval,
    pass_at_1,
    pass_at_k,
)


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample():
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_pass_at_k_refuses_what_has_no_meaning(n: int, c: int, k: int):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_pass_at_1_counts_full_rewards_only():
    assert pass_at_1([[1.0, 0.9], [2.0, 1.0]]) == 0.75


@pytest.mark.parametrize(
    "rewards, answers, expected",
    [
        ([0, 1, 1], ["5", "7", "7"], 1.0),
        ([1, 0, 0], ["5", "7", "7"], 0.0),
        ([1, 0], ["5", "7"], 1.0),  # a tie: the first seen
        ([0, 1], ["7", "5"], 0.0),
        ([0, 0, 1], [None, None, "5"], 1.0),  # None does not vote
        ([0, 1, 0], ["5", "5", None], 0.0),  # graded at its first occurrence
        ([1, 0], [None, None], 1.0),
        ([0.9], ["5"], 0.0),
    ],
)
def test_maj_at_k_by_hand(rewards: list[float], answers: list[str | None], expected: float):
    assert maj_at_k(rewards, answers) == expected


def test_maj_at_k_needs_one_answer_a_reward():
    with pytest.raises(ValueError):
        maj_at_k([1.0], ["5", "7"])
    with pytest.raises(ValueError):
        maj_at_k([], [])


def test_bootstrap_interval_is_that_of_the_normal_limit():
    scores = np.random.default_rng(0).random(2000)
    low, high = bootstrap_interval(scores, seed=1, samples=2000)
    half = 1.96 * scores.std() / np.sqrt(scores.size)
    np.testing.assert_allclose([low, high], scores.mean() + np.array([-half, half]), atol=half / 10)


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(300):
        low, high = bootstrap_interval(rng.random(60) < 0.3, seed, samples=200, level=0.8)
        hits += low <= 0.3 <= high
    assert 0.72 < hits / 300 < 0.86  # 0.8 less the bias of a percentile interval, four deviations


def test_bootstrap_interval_depends_on_the_seed_alone():
    scores = np.arange(20.0)
    assert bootstrap_interval(scores, 3) == bootstrap_interval(scores, 3)
    assert bootstrap_interval(scores, 3) != bootstrap_interval(scores, 4)
    assert bootstrap_interval(np.ones(5), 0) == (1.0, 1.0)
    with pytest.raises(ValueError):
        bootstrap_interval(np.ones((2, 2)), 0)
    with pytest.raises(ValueError):
        bootstrap_interval([], 0)


def test_metrics_by_hand():
    rewards = [[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0.5]]
    answers = [["5", "7", "7", "5", "7", None], [None] * 6, ["3"] * 5 + ["4"]]
    metrics = accuracy_metrics(rewards, answers)
    low, high = metrics.pop("pass_at_1_low"), metrics.pop("pass_at_1_high")
    bounds = {name: metrics.pop(name) for name in list(metrics) if name.endswith(("_low", "_high"))}
    assert metrics == {
        "pass_at_1": pytest.approx((2 / 6 + 0 + 5 / 6) / 3),
        "pass_at_2": pytest.approx(((1 - 6 / 15) + 0 + 1) / 3),
        "pass_at_4": pytest.approx(((1 - 1 / 15) + 0 + 1) / 3),
        "pass_at_6": pytest.approx(2 / 3),
        "maj_at_6": pytest.approx(1 / 3),
    }
    assert (low, high) == bootstrap_interval([2 / 6, 0, 5 / 6], 0)
    per_problem = {
        "pass_at_2": [pass_at_k(6, c, 2) for c in (2, 0, 5)],
        "pass_at_4": [pass_at_k(6, c, 4) for c in (2, 0, 5)],
        "pass_at_6": [1, 0, 1],
        "maj_at_6": [0, 0, 1],
    }
    expected = {name: bootstrap_interval(scores, 0) for name, scores in per_problem.items()}
    assert bounds == {
        f"{name}_{end}": interval[end == "high"]
        for name, interval in expected.items()
        for end in ("low", "high")
    }


def test_intervals_of_pass_at_1_are_those_of_earlier_versions():
    rewards = np.random.default_rng(0).random((40, 8)) < np.linspace(0, 1, 40)[:, None]
    metrics = accuracy_metrics(rewards, [["1"] * 8] * 40, seed=7)
    assert (metrics["pass_at_1_low"], metrics["pass_at_1_high"]) == (0.384375, 0.58125)


@pytest.mark.parametrize("n, ks", [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16])])
def test_metrics_cover_powers_of_two_and_n(n: int, ks: list[int]):
    metrics = accuracy_metrics(np.ones((2, n)), [["1"] * n] * 2)
    measures = {f"pass_at_{k}" for k in ks} | {f"maj_at_{n}"}
    names = {name + end for name in measures for end in ("", "_low", "_high")}
    assert metrics == dict.fromkeys(names, 1.0)
    without = accuracy_metrics(np.ones((2, n)), [[None] * n] * 2)
    assert names - without.keys() == {f"maj_at_{n}{end}" for end in ("", "_low", "_high")}


def test_metrics_refuse_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="2 problems, answers of 1"):
        accuracy_metrics(np.ones((2, 1)), [["1"]])
    with pytest.raises(ValueError, match="shape"):
        accuracy_metrics(np.ones((0, 4)), [])
    with pytest.raises(ValueError, match="3 answers"):
        accuracy_metrics(np.ones((1, 4)), [["1"] * 3])


def runs(difference: float, seed: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Two runs on 80 problems from very easy to very hard, one better by `difference`."""
    rng = np.random.default_rng(seed)
    easiness = rng.random(80) * (1 - difference)
    samples = [rng.random((80, 16)) < (easiness + d)[:, None] for d in (difference, 0.0)]
    first, second = ({str(i): list(map(float, row)) for i, row in enumerate(x)} for x in samples)
    return first, second


def test_a_paired_interval_is_that_of_the_differences():
    first, second = runs(0.1, seed=0)
    found = paired_interval(first, second, seed=5)
    differences = [np.mean(first[i]) - np.mean(second[i]) for i in first]
    assert found.difference == pytest.approx(np.mean(differences))
    assert (found.low, found.high) == pytest.approx(bootstrap_interval(differences, 5))
    fewer_draws = paired_interval(first, second, seed=5, samples=50)
    assert fewer_draws[1:] == pytest.approx(bootstrap_interval(differences, 5, samples=50))
    shuffled = dict(sorted(second.items(), reverse=True))
    assert paired_interval(first, shuffled, seed=5) == found, "problems are paired by their id"
    fewer = {name: rewards[:4] for name, rewards in second.items()}
    assert paired_interval(first, fewer).difference != found.difference
    partial = {name: [0.9 * reward for reward in rewards] for name, rewards in second.items()}
    assert paired_interval(partial, partial) == (0.0, 0.0, 0.0)
    assert paired_interval(first, partial).difference == pytest.approx(
        pass_at_1(list(first.values()))
    )


def test_a_paired_interval_is_narrower_than_the_runs_own():
    covered = 0
    for seed in range(40):
        first, second = runs(0.1, seed)
        _, low, high = paired_interval(first, second, samples=200)
        ends = [
            bootstrap_interval([np.mean(x) for x in r.values()], 0, 200) for r in (first, second)
        ]
        assert high - low < min(own_high - own_low for own_low, own_high in ends)
        covered += low <= 0.1 <= high
    assert covered >= 34  # of 38 expected, three deviations


def test_a_paired_interval_refuses_other_problems():
    with pytest.raises(ValueError, match="only one of the runs has 2 problems, such as b"):
        paired_interval({"a": [1.0], "b": [1.0]}, {"a": [1.0], "c": [1.0]})
    with pytest.raises(ValueError, match="at least one"):
        paired_interval({}, {})
    with pytest.raises(ValueError, match="at least one"):
        paired_interval({"a": []}, {"a": [1.0]})


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch, capsys):
    text = (REPO / "docs" / "metrics.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for folder, rewards in zip(("vineppo", "ppo"), runs(0.1, seed=0), strict=True):
        (tmp_path / "runs" / folder / "eval").mkdir(parents=True)
        rows = [
            {"problem_id": name, "responses": [{"reward": reward} for reward in samples]}
            for name, samples in rewards.items()
        ]
        file = tmp_path / "runs" / folder / "eval" / "test.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/metrics.md", "exec"), {})
    expected = paired_interval(*runs(0.1, seed=0))
    assert capsys.readouterr().out == f"{expected}\n"
