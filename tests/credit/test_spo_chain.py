"""SPO-chain: our rules reproduce the numbers of the paper's code and of a slow loop."""

import math

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import assign_credit
from helpers.chain_cases import fill_drawn
from helpers.vine_cases import MAX_TOKENS, PROBLEM, PROMPT, fill

from vinejax.core.settings import Config
from vinejax.core.types import Episode, Rollout
from vinejax.credit.assign import Credit
from vinejax.credit.samples import Sample
from vinejax.engine.branches import Branch
from vinejax.learner.batch import collate, step_layout
from vinejax.rollout.sampler import ValuedState

P = [0.95, 0.4, 0.99, 0.8, 0.97, 0.5, 0.98, 0.3, 0.99, 0.95]
P_FIRST = [0.4, *P[1:]]
K = 18
# Number of right continuations, of 18, at each state, by the number of tokens before the state. The
# cut of SPO's code is one less.
RIGHT = {0: 9, 1: 8, 3: 12, 5: 6, 7: 16}


def config(every: int, k: int = K) -> Config:
    values = {"k": k, "every": every, "max_states": None}
    return cases.config(method="spo_chain", values=values, sample={"max_tokens": MAX_TOKENS})


def credit_of(episodes: list[Episode], cfg: Config) -> tuple[np.ndarray, np.ndarray, Credit]:
    """(advantages, mask, credit), the first two of response tokens, with one row per episode."""
    batch = collate(episodes, len(episodes))
    credit = assign_credit(Rollout(episodes, batch, step_layout(batch, episodes)), cfg, "none")
    assert credit.mask is not None
    start, end = len(episodes[0].prompt), max(len(e.tokens) for e in episodes)
    return credit.advantages[:, start:end], credit.mask[:, start:end], credit


@pytest.mark.parametrize(
    "p, every, states, expected",
    [
        (P, 1, [1, 3, 5, 7], [0, 0.2222, 0, -0.3333, 0, 0.5556, 0, 0.1111, 0, 0]),
        (P, 2, [1, 5], [0, -0.1111, 0, -0.1111, 0, 0.6667, 0, 0.6667, 0, 0]),
        (P_FIRST, 2, [0, 3, 7], [0.1667, 0.1667, 0, 0.2222, 0, 0.2222, 0, 0.1111, 0, 0]),
    ],
)
def test_the_worked_numbers(p, every, states, expected):
    one = cases.episode(
        PROMPT, [3] * 10, logprobs=[math.log(x) for x in p], problem_id=PROBLEM[0].id, reward=1.0
    )

    def script(branch: Branch, k: int) -> tuple[str, str]:
        is_right = k < RIGHT[branch.position - len(PROMPT)]
        return ("\n#### 4" if is_right else "\n#### 5"), "eos"

    cfg = config(every)
    (filled,), engine = fill([one], cfg, script)
    assert [position - len(PROMPT) for _, position in engine.states()] == states
    assert len(engine.branches) == K * len(states)
    (advantages,), (mask,), _ = credit_of([filled], cfg)
    np.testing.assert_allclose(np.where(mask, advantages, 0), expected, atol=5e-5)
    np.testing.assert_array_equal(mask, np.array(p) < 0.9)
    before = states[0]  # tokens before the first state have no advantage
    assert not advantages[:before].any()
    value = RIGHT[before] / K
    _, _, credit = credit_of([filled], cfg)
    np.testing.assert_allclose(np.asarray(credit.by_step).sum(), 1 - value, atol=1e-6)


def slow_loop(p: list[float], reward: float, value_of: dict[int, float], m: int):
    """(cuts, advantages, mask) token by token; c counts tokens as SPO's code does."""
    low = [t for t, x in enumerate(p) if x < 0.9]
    cuts = [low[i] - 1 for i in range(0, len(low), m)]
    advantages = [0.0] * len(p)
    for t in range(len(p)):
        if not cuts or p[t] > 0.9:
            continue
        before = [c for c in cuts if c < t]
        after = [c for c in cuts if c >= t and c < len(p) - 1]
        if before:
            value_after = value_of[after[0]] if after else reward
            advantages[t] = value_after - value_of[before[-1]]
    return cuts, advantages, [x < 0.9 for x in p]


def test_a_thousand_random_episodes_equal_the_loop():
    rng, episodes, values = np.random.default_rng(0), [], []
    for i in range(1000):
        n = int(rng.integers(1, 25))
        p = np.where(rng.random(n) < rng.choice([0.1, 0.5, 0.9]), 0.95, rng.uniform(0.05, 0.85, n))
        logprobs = np.log(p).tolist()
        fields = {"problem_id": str(i), "logprobs": logprobs, "reward": float(rng.integers(2))}
        episodes.append(cases.episode([cases.BOS], [3] * n, **fields))
        values.append({c: int(rng.integers(5)) for c in range(-1, n)})  # right ones of K = 4

    def draw(wanted: list[ValuedState]) -> list[Sample]:
        seen: dict[tuple[str, int], int] = {}
        samples = []
        for state in wanted:
            place = (state.problem.id, state.used)
            k = seen[place] = seen.get(place, -1) + 1
            outcome = float(k < values[int(state.problem.id)][state.used - 1])
            samples.append(Sample(np.zeros(0, np.int32), state.used, [], [], outcome))
        return samples

    for m in (1, 5):
        cfg = config(m, k=4)
        filled, (drawn,) = fill_drawn(episodes, cfg, draw)
        advantages, mask, _ = credit_of(filled, cfg)
        num_states = 0
        for i, e in enumerate(episodes):
            value_of = {c: n / 4 for c, n in values[i].items()}
            p, n = np.exp(e.logprobs).tolist(), len(e.response)
            cuts, expected, is_trained = slow_loop(p, e.reward, value_of, m)
            num_states += len(cuts)
            assert mask[i].tolist() == is_trained + [False] * (mask.shape[1] - n)
            found = np.where(mask[i], advantages[i], 0)
            np.testing.assert_allclose(found[:n], expected, atol=1e-6)
            starts = [0, *filled[i].step_ends[:-1]]
            assert [c + 1 for c in cuts] == (starts if cuts[:1] == [-1] else starts[1:])
        assert drawn == 4 * num_states > 4000


def test_its_advantages_are_whitened_over_the_trained_tokens():
    rng = np.random.default_rng(1)
    one = cases.episode(
        PROMPT,
        [3] * 10,
        logprobs=np.log(P).tolist(),
        step_ends=[1, 3, 5, 7, 10],
        reward=1.0,
        values=rng.random(5).astype(np.float32),
    )
    batch, cfg = collate([one], 1), config(1)
    rollout = Rollout([one], batch, step_layout(batch, [one]))
    plain, white = (assign_credit(rollout, cfg, how) for how in ("none", "iteration"))
    assert white.mask is not None and white.mask.sum() == 4
    trained = plain.advantages[white.mask]
    expected = (trained - trained.mean()) / trained.std(ddof=1)
    np.testing.assert_allclose(white.advantages[white.mask], expected, rtol=1e-4)
    assert not white.advantages[~white.mask].any()
