"""SubPO's task: gains against a bit mask in NumPy, diminishing returns, and returns to go."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_runs
from helpers.applied import assign_credit

from vinejax.contrib.examples import coverage
from vinejax.contrib.examples.coverage import PICKS, SETS, Coverage, covered, most, sets_of
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem, Rollout
from vinejax.learner.batch import collate, step_layout
from vinejax.tasks.base import StepRewarded, load_task


@pytest.fixture(scope="module")
def task() -> Coverage:
    found = load_task(DataConfig(task=coverage.__name__))
    assert isinstance(found, Coverage) and isinstance(found, StepRewarded)
    return found


def covers(question: str) -> np.ndarray:
    """bool[sets, letters]."""
    sets = sets_of(question).values()
    return np.array([[letter in s for letter in coverage.LETTERS] for s in sets])


def earned(task: Coverage, question: str, response: str) -> tuple[list[float], float]:
    """(the rewards of the steps, the whole return) of a response in training."""
    problem = Problem("p", question, "")
    bounds = task.split(response)
    steps = [response[a:b] for a, b in itertools.pairwise(bounds)]
    rewards = task.step_rewards(problem, steps)
    return rewards, sum(rewards) + task.reward(problem, response)


def test_problems_have_sets_and_splits_share_none(task: Coverage):
    splits = [task.load(split) for split in ("train", "validation", "test")]
    questions = [{p.question for p in split} for split in splits]
    assert min(map(len, questions)) > 150 and len(set().union(*questions)) == sum(
        map(len, questions)
    )
    tokenizer = task.tokenizer()
    assert tokenizer.unk_token_id not in tokenizer.encode("".join(questions[1]))
    for problem in splits[1]:
        sets = sets_of(problem.question)
        assert [*sets] == [str(i) for i in range(SETS)]
        assert all(2 <= len(s) <= 4 and covered([s]) == len(s) for s in sets.values())
        lines = task.solution(problem).split("\n")
        assert len(lines) == PICKS and set(lines) <= set(sets)


def test_gains_are_those_of_the_bit_mask(task: Coverage):
    """Of every choice of two sets, repeated ones too, with the outcome taken from the last."""
    for problem in task.load("test")[:10]:
        has = covers(problem.question)
        pairs = [*itertools.product(range(SETS), repeat=PICKS)]
        best = max((has[i] | has[j]).sum() for i, j in pairs)
        assert most(problem.question) == best
        for i, j in pairs:
            rewards, whole = earned(task, problem.question, f"{i}\n{j}\n")
            both = (has[i] | has[j]).sum()
            is_best = float(both == best)
            expected = [has[i].sum() / best, (both - has[i].sum()) / best - is_best]
            np.testing.assert_allclose(rewards, expected, atol=1e-12)
            assert whole == pytest.approx(both / best)
            assert task.reward(problem, f"{i}\n{j}") == is_best


def test_gains_diminish():
    """F(A + s) - F(A) >= F(B + s) - F(B) for A within B, and no gain is negative."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        sets = ["".join(rng.choice(list("abcdef"), rng.integers(1, 5))) for _ in range(5)]
        size = int(rng.integers(0, 4))
        small = [covered(x) for x in (sets[:size], [*sets[:size], sets[4]])]
        large = [covered(x) for x in (sets[:4], sets)]
        assert small[1] - small[0] >= large[1] - large[0] >= 0


@pytest.mark.parametrize(
    ("response", "gained"),
    [
        ("", [0]),
        ("\n\n", [0]),
        ("0\n0\n2", [2, 0, 0]),  # the third line is beyond `PICKS`
        ("9\n0\n2", [0, 2, 3]),
        ("0 2", [0]),  # two numbers on one line are none of the prompt's
        ("ab\nset 0", [0, 0]),
        ("  2 \n\n0", [3, 2]),
    ],
)
def test_lines_that_pick_nothing_gain_nothing(task: Coverage, response: str, gained: list[int]):
    rewards, whole = earned(task, "0ab 1bc 2cde", response)
    outcome = float(sum(gained) == 5)
    expected = [n / 5 for n in gained]
    expected[-1:] = [x - outcome for x in expected[-1:]]
    np.testing.assert_allclose(rewards, expected, atol=1e-12)
    assert whole == pytest.approx(sum(gained) / 5)


@pytest.mark.parametrize(("response", "in_all"), [("0\n2\n1\n", 0.0), ("0\n1\n2\n", 3 / 5)])
def test_a_response_that_the_budget_cuts(task: Coverage, response: str, in_all: float):
    """Its outcome is 0 in place of the task's reward, which the last step is still less by."""
    rewards, _ = earned(task, "0ab 1bc 2cde", response)
    assert sum(rewards) == pytest.approx(in_all)


def test_the_gradient_weighs_a_step_by_the_gains_from_it_on(task: Coverage):
    """SubPO's Σ_{j≥i} r_j, before the mean is taken out, at all tokens of step i."""
    rewards, whole = earned(task, "0ab 1bc 2cde", "1\n2\n")
    outcome = whole - sum(rewards)
    fields = {"step_ends": [3, 7], "step_rewards": rewards, "reward": outcome}
    episodes = [cases.episode([0, 5], [3] * 7, **fields)]
    batch = collate(episodes, rows=1)
    cfg = cases.config(method="reinforce++", kl={"coef": 0.0}, values={"k": 9, "max_states": None})
    rollout = Rollout(episodes, batch, step_layout(batch, episodes))
    found = np.asarray(assign_credit(rollout, cfg, whiten="none").advantages)[batch.mask]
    np.testing.assert_allclose(found, [4 / 5] * 3 + [2 / 5] * 4, atol=1e-6)


@pytest.mark.slow
def test_the_config_trains_for_three_iterations(tmp_path: Path):
    small = {"sft.steps": 20, "rollout.prompts": 16, "ppo.minibatch": 16, "rollout.slots": 32}
    method_runs.check_config_file("contrib/coverage.py", tmp_path, **small)
