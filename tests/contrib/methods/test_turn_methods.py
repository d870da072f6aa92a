"""Methods with credit of turns, compared with published numbers and with loops in NumPy."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import rl_oracles as oracle
from helpers.applied import applied, assign_credit

from vinejax.contrib.methods import direct
from vinejax.contrib.methods.equations.turn_returns import (
    action_estimates,
    group_scores,
    shared_rewards,
)
from vinejax.contrib.methods.turn_actions import moves_of
from vinejax.core.types import Episode, Rollout, Turn
from vinejax.learner.batch import collate, step_layout
from vinejax.rl.values import returns_to_go


def episode(states: str, rewards: list[float], has_keys: bool = True, **fields: Any) -> Episode:
    """An episode with a prompt of 2 tokens, and per state a turn of 2 and an observation of 1.

    The first state is the problem's; the last turn ends with its action.
    """
    turns = []
    for i, reward in enumerate(rewards):
        seen = [*states, ""][i + 1]
        is_last = i == len(rewards) - 1
        turn = Turn(3 * i + 2, 3 * i + 3 - is_last, "say", seen, reward, seen if has_keys else None)
        turns.append(turn)
    length = 3 * len(rewards) - 1
    plain: dict[str, Any] = {
        "turns": tuple(turns),
        "step_ends": [turn.end for turn in turns],
        "step_rewards": [*rewards[:-1], 0.0],
        "reward": rewards[-1],
    }
    return cases.episode([0, 5], list(range(3, 3 + length)), **plain | fields)


def by_turn(episodes: list[Episode], method: str, **sections: Any) -> list[list[float]]:
    """The advantage of each turn, which all its tokens must have; observations must have 0."""
    batch = collate(episodes, rows=len(episodes))
    rollout = Rollout(episodes, batch, step_layout(batch, episodes))
    sections.setdefault("values", {"k": 9, "max_states": None})
    found = np.asarray(assign_credit(rollout, cases.config(method=method, **sections)).advantages)
    rows = []
    for row, one in zip(found, episodes, strict=True):
        start, values = len(one.prompt), []
        for turn in one.turns:
            tokens = row[start : len(one.prompt) + turn.drawn]
            assert len(set(tokens.tolist())) == 1
            assert not row[len(one.prompt) + turn.drawn : len(one.prompt) + turn.end].any()
            values.append(float(tokens[0]))
            start = len(one.prompt) + turn.end
        assert not row[start:].any()
        rows.append(values)
    return rows


# Two trajectories of one problem: states and rewards of turns, γ 0.9.
TWO = [("ab", [0.0, 1.0]), ("aca", [0.0, 0.0, 0.0])]
GIGPO = {
    "std": ([0.707106, -0.707106], [[1.154698, 0.0], [-0.577349, 0.0, -0.577349]]),
    "mean": ([0.5, -0.5], [[0.6, 0.0], [-0.3, 0.0, -0.3]]),
}


@pytest.mark.parametrize("norm", GIGPO)
@pytest.mark.parametrize("has_keys", [True, False], ids=["keys", "observations"])
def test_gigpo_gives_the_numbers_of_its_authors_code(norm: str, has_keys: bool):
    """The first state has no key; a state that recurs there is a group of its own."""
    episodes = [episode(states, rewards, has_keys=has_keys) for states, rewards in TWO]
    wholes, turns = GIGPO[norm]
    returns = [returns_to_go(rewards, 0.9) for _, rewards in TWO]
    np.testing.assert_allclose(returns[0], [0.9, 1.0])
    states = [state for row, _ in TWO for state in row]
    step = group_scores(np.concatenate(returns), states, norm == "std")
    np.testing.assert_allclose(step, np.concatenate(turns), atol=1e-6)
    own = {"norm": norm, "omega": 2.0}
    found = by_turn(episodes, "gigpo", gigpo=own, ppo={"gamma": 0.9})
    # The problem's first state is entered twice, with returns 0.9 and 0.
    first = 0.9 / 2 / (0.9 / np.sqrt(2) + 1e-6 if norm == "std" else 1)
    np.testing.assert_allclose(found[0], [wholes[0] + 2 * first, wholes[0]], rtol=1e-5)
    np.testing.assert_allclose(found[1], [wholes[1] - 2 * first, *[wholes[1]] * 2], rtol=1e-5)


def test_an_observation_without_text_is_not_the_start_of_an_episode():
    """Without keys, a turn after an empty observation begins in another state than the first."""
    first, second = (episode("s", [1.0]), episode("st", [0.0, 0.0], has_keys=False))
    silent = tuple(turn._replace(observation="") for turn in second.turns)
    second = dataclasses.replace(second, turns=silent)
    assert [move.anchor for move in moves_of(second)] == [None, ("", False)]
    found = by_turn([first, second], "gigpo", gigpo={"norm": "mean"}, ppo={"gamma": 1.0})
    np.testing.assert_allclose(found[0], [0.5 + 0.5], rtol=1e-6)
    np.testing.assert_allclose(found[1], [-0.5 - 0.5, -0.5], rtol=1e-6)


def episode_parts(rewards: list[float], turns: list[int], over_turns: bool) -> np.ndarray:
    """The authors' `episode_norm_reward`: a row per turn, each with its episode's reward."""
    counted = np.repeat(rewards, turns) if over_turns else np.array(rewards)
    return (np.array(rewards) - counted.mean()) / (counted.std(ddof=1) + 1e-6)


@pytest.mark.parametrize("turns", [[2, 2, 2], [1, 1, 9], [9, 1, 1], [5, 2, 7]])
def test_gigpo_counts_an_episode_once_where_its_authors_count_its_turns(turns: list[int]):
    """The departure that the docstring names; with equal numbers of turns the std differs, too."""
    rewards = [1.0, 0.0, 0.0]
    rows = [[0.0] * (n - 1) + [r] for r, n in zip(rewards, turns, strict=True)]
    states = ["s" + "abcdefgh"[: n - 1] for n in turns]
    episodes = [episode(s, r) for s, r in zip(states, rows, strict=True)]
    found = by_turn(episodes, "gigpo", gigpo={"omega": 0.0})
    expected = episode_parts(rewards, turns, over_turns=False)
    for row, n, whole in zip(found, turns, expected, strict=True):
        assert row == pytest.approx([whole] * n, abs=1e-6)
    assert np.abs(expected - episode_parts(rewards, turns, over_turns=True)).max() > 0.1


def test_gigpo_equals_a_loop_over_all_turns():
    rng = np.random.default_rng(0)
    rows = []
    for problem in "pq":
        for _ in range(6):
            n = int(rng.integers(1, 6))
            states = "s" + "".join(rng.choice(list("abc"), n - 1))
            rows.append((problem, states, rng.choice([0.0, 0.5, 1.0], n).tolist()))
    episodes = [episode(s, r, problem_id=p) for p, s, r in rows]
    found = by_turn(episodes, "gigpo", gigpo={"omega": 0.5}, ppo={"gamma": 0.8})

    def z(x: float, others: list[float]) -> float:
        std = np.std(others, ddof=1) if len(set(others)) > 1 else 1.0
        return float((x - np.mean(others)) / (std + 1e-6))

    def value(r: list[float], t: int) -> float:
        return sum(0.8**k * x for k, x in enumerate(r[t:]))

    for (problem, states, rewards), given in zip(rows, found, strict=True):
        whole = z(sum(rewards), [sum(r) for p, _, r in rows if p == problem])
        for t, state in enumerate(states):
            equals = [
                value(r, i)
                for p, other, r in rows
                if p == problem
                for i, x in enumerate(other)
                if x == state and (i == 0) == (t == 0)
            ]
            assert given[t] == pytest.approx(whole + 0.5 * z(value(rewards, t), equals), abs=1e-5)


def test_the_moves_of_an_episode_that_was_cut_in_a_turn():
    """The first turn has two steps, and the rest of the response has the outcome."""
    turn = Turn(4, 6, "say", "seen", 0.25, None)
    one = cases.episode(
        [0, 1],
        list(range(9)),
        turns=(turn,),
        step_ends=[2, 6, 9],
        step_rewards=[0.5, 0.25, 0.0],
        reward=-1.0,
        finished=False,
    )
    assert moves_of(one) == [(6, 0.75, None), (9, -1.0, ("seen", False))]
    plain = cases.episode([0], [4, 5, 6], reward=1.0, step_ends=[1, 3])
    assert moves_of(plain) == [(3, 1.0, None)]


POAD = {
    "values": [[0.4, 0.5], [0.6, 0.8]],
    "rewards": [0.0, 1.0],
    "advantages": [[0.537755, 0.460795], [0.39, 0.2]],
}


def test_poad_gives_the_numbers_of_its_authors_code():
    """There are two actions of two tokens, with γ 0.99 and λ 0.95."""
    one = episode("ab", POAD["rewards"])
    batch = collate([one], rows=1)
    drawn = np.asarray(batch.mask)
    values = np.full(drawn.shape, np.nan, np.float32)
    values[drawn] = np.ravel(POAD["values"])
    cfg = cases.config(method="poad", critic={"lam": 0.95}, ppo={"gamma": 0.99, "whiten": "none"})
    rollout = Rollout([one], batch, step_layout(batch, [one]), values)
    found = assign_credit(rollout, cfg)
    expected = np.ravel(POAD["advantages"])
    np.testing.assert_allclose(np.asarray(found.advantages)[drawn], expected, atol=1e-6)
    assert found.returns is not None
    returns = np.asarray(found.returns)
    np.testing.assert_allclose(returns[drawn], expected + np.ravel(POAD["values"]), atol=1e-6)
    assert not np.asarray(found.advantages)[~drawn].any() and not returns[~drawn].any()


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_actions_of_one_token_and_no_discount_are_generalised_advantage_estimates(lam: float):
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 4, 9)).astype(np.float32)
    mask = np.arange(9) < np.array([9, 1, 0, 5])[:, None]
    tokens = np.where(mask, np.arange(9), -1)
    for gamma, actions in ((0.9, tokens), (1.0, np.minimum(tokens, 3))):
        found = action_estimates(rewards, values, actions, gamma, lam)
        expected = oracle.gae(rewards, values, mask, gamma, lam)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_turn_credit_shares_a_reward_with_the_turns_before_it():
    progress = np.diff([0.2, 0.2, 0.8, 0.6])
    shared = shared_rewards(progress, 0.5)
    np.testing.assert_allclose(shared, [0.171429, 0.342857, -0.114286], atol=1e-6)
    np.testing.assert_allclose(shared_rewards(progress, 0.0), progress)
    np.testing.assert_allclose(shared_rewards([0, 0, 3.0], 1.0), [1, 1, 1])
    episodes = [
        episode("abc", [*progress[:2], progress[2] + 1.0], reward=1.0),
        episode("ab", [0.25, 0.0], reward=0.0),
    ]
    own = progress.tolist(), [0.25, 0.0]
    episodes = [
        dataclasses.replace(e, step_rewards=list(r)) for e, r in zip(episodes, own, strict=True)
    ]
    for gamma in (0.0, 0.5):
        sections: dict[str, Any] = {"turn_credit": {"weight": 2.0, "gamma": gamma}}
        found = by_turn(episodes, "turn_credit", **sections)
        for sign, rewards, given in zip((1, -1), own, found, strict=True):
            np.testing.assert_allclose(given, sign + 2 * shared_rewards(rewards, gamma), rtol=1e-5)


def random_episodes(seed: int) -> list[Episode]:
    """Six episodes of two problems, with 27 turns of different rewards and outcomes of 0 and 1."""
    rng, found = np.random.default_rng(seed), []
    for i, turns in enumerate((3, 5, 6, 4, 2, 7)):
        rewards = rng.normal(size=turns).tolist()
        fields: dict[str, Any] = {"problem_id": "pq"[i // 3], "text": f"{seed} {i}"}
        fields |= {"step_rewards": list(rewards), "reward": float(i % 2)}
        rewards[-1] += fields["reward"]
        found.append(episode("abcdefgh"[:turns], rewards, **fields))
    return found


def parts_of_srgpo(episodes: list[Episode], group: int) -> np.ndarray:
    """The second term of every turn; the first one must be GRPO's advantage."""
    whole, both = (
        by_turn(episodes, "srgpo", srgpo={"weight": w, "group": group}) for w in (0.0, 2.0)
    )
    assert whole == by_turn(episodes, "grpo")
    return (np.concatenate(both) - np.concatenate(whole)) / 2.0


def test_srgpo_compares_the_rewards_of_all_turns_of_the_batch():
    """A group that is larger than the batch has all turns, so the groups are known."""
    episodes = random_episodes(0)
    rewards = np.concatenate([e.step_rewards or [] for e in episodes])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(parts_of_srgpo(episodes, 100), expected, atol=1e-5)


def test_srgpo_draws_groups_at_random_from_all_episodes():
    """Two different numbers differ from their mean by 1/√2 of the std; the last turn is alone."""
    drawn = [parts_of_srgpo(random_episodes(seed), 2) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    for parts in drawn:
        signs = np.sign(np.round(parts, 3))
        np.testing.assert_allclose(parts, signs / np.sqrt(2), atol=1e-4)
        assert sorted(signs) == [-1.0] * 13 + [0.0] + [1.0] * 13
    assert (np.sign(drawn[0]) != np.sign(drawn[2])).any()
    # A group of neighbours alone would compare the first turn of each pair with the second.
    rewards = np.concatenate([e.step_rewards or [] for e in random_episodes(0)])
    neighbours = np.repeat(np.sign(rewards[0:26:2] - rewards[1:26:2]), 2) * np.tile([1, -1], 13)
    assert (np.sign(drawn[0][:26]) != neighbours).sum() > 4


def test_srgpo_takes_no_outcome_from_an_empty_response():
    """Its only turn has no step, whose reward could have the outcome, and so the reward 0."""
    empty = cases.episode([0, 5], [], problem_id="r", reward=1.0)
    episodes = [*random_episodes(0), empty]
    rewards = np.concatenate([e.step_rewards or [0.0] for e in episodes])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(parts_of_srgpo(episodes, 100), expected[:-1], atol=1e-5)


def test_direct_draws_a_step_of_two_turns_as_a_whole():
    """The first step has four tokens with an observation in between, the second has two."""
    one = episode(
        "abc",
        [0.0, 0.0, 1.0],
        step_ends=[6, 8],
        step_rewards=[0.0, 0.0],
        values=np.array([0.2, 0.7], np.float32),
        is_state=np.ones(2, bool),
        value_counts=np.full(2, 9, np.int32),
    )
    batch = collate([one], rows=1)
    layout = step_layout(batch, [one])
    cfg = applied(
        cases.config(method="direct", values={"k": 9, "max_states": None}, direct={"beta": 0.5})
    )
    credit = assign_credit(Rollout([one], batch, layout), cfg, whiten="none")
    moved = np.where(batch.mask, np.float32(0.5), np.float32(0.0))
    rows = batch._replace(advantages=credit.advantages, loss_extra=credit.loss_extra)
    objective = direct.METHOD.objective(cases.model(), cfg)
    found = np.asarray(direct.loss(jnp.asarray(moved), rows, objective).loss)
    by_step = [found[layout.step_ids == c].sum() for c in (0, 1)]
    expected = [0.5 * (4 * 0.5 - 0.5 / 0.5) ** 2, 0.5 * (2 * 0.5 - 0.3 / 0.5) ** 2]
    np.testing.assert_allclose(by_step, expected, rtol=1e-5)
