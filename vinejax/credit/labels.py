"""Labels: a continuation is trained on where it leaves the solution that it continues.

A continuation of a state repeats the solution for some tokens, and then leaves it by another token.
At every position that it passes, its token is one more draw of the policy, whose logits the update
of the solution computes anyway. Every token that is trained on has a coefficient, which is its
advantage in a run without labels. Where the continuation draws the solution's own token, it changes
the coefficient of that token. Where it leaves, its token becomes a *label*: a further token that is
trained on at this position, with a coefficient of its own.

The samples that count at a solution's positions are the continuations of its own states and, with
`values.reuse`, the other solutions of the problem and their continuations. `rl/labels.py` has the
equations. Labels need no sample, and no forward pass, that the values do not need.

In shapes, N is the number of samples at all positions of an episode, or of a batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.shapes import label_columns
from vinejax.core.types import Batch, Departure, Episode, Labels, PassingTokens, Rollout
from vinejax.credit.assign import Credit, before_steps
from vinejax.credit.samples import Sample, num_shared
from vinejax.rl.advantages import token_advantages
from vinejax.rl.by_role import role_outcomes
from vinejax.rl.labels import blended_coefficients, group_coefficients, mixed_coefficients

TOKEN_BITS = 32  # of a key, which also has a place; token ids are smaller
ROUNDING = 1e-7  # a sum of coefficients of at most this size counts as 0
NOTHING_PASSES = PassingTokens(
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros(0),
    np.zeros(0, np.float32),
    np.zeros(0, bool),
)


def passing_tokens(
    episode: Episode, continuations: Sequence[Sample], solutions: Sequence[Sample], gamma: float
) -> PassingTokens:
    """The tokens that samples draw at the positions of an episode that they pass.

    A sample counts from the first token that it drew, as long as it repeats the episode's response,
    and at the position where it leaves the response. `solutions` are other solutions of the
    problem. `gamma` discounts the returns.
    """
    response = np.array(episode.response)
    positions, tokens, returns, logprobs, is_solution = [], [], [], [], []
    for number, sample in enumerate([*continuations, *solutions]):
        end = min(num_shared(sample.tokens, response) + 1, len(sample.tokens), len(response))
        if end <= sample.start:
            continue
        used = np.arange(sample.start, end)
        positions.append(used)
        tokens.append(sample.tokens[sample.start : end])
        returns.append(_returns_from(sample, used, gamma))
        logprobs.append(np.array(sample.logprobs[: len(used)], np.float32))
        is_solution.append(np.full(len(used), number >= len(continuations)))
    if not positions:
        return NOTHING_PASSES
    return PassingTokens(*map(np.concatenate, (positions, tokens, returns, logprobs, is_solution)))


def departure_of(sample: Sample, response: Sequence[int], gamma: float) -> Departure | None:
    """Where a continuation leaves the response; None if one of the two ends before they differ."""
    shared = num_shared(sample.tokens, np.array(response))
    if shared == min(len(sample.tokens), len(response)):
        return None
    return Departure(shared, int(sample.tokens[shared]), sample.return_from(shared, gamma))


def _returns_from(sample: Sample, used: np.ndarray, gamma: float) -> np.ndarray:
    """f64: the return of the sample from the state after each number of tokens in `used`."""
    # The return is the same between two ends of steps.
    ends, number = np.unique(np.searchsorted(sample.ends, used, side="right"), return_inverse=True)
    starts = [sample.ends[i - 1] if i else 0 for i in ends.tolist()]
    return np.array([sample.return_from(n, gamma) for n in starts], np.float64)[number]


class BatchTokens(NamedTuple):
    """The `PassingTokens` of all episodes of a batch, at positions whose token the policy drew."""

    place: np.ndarray  # i64[N] index of the position in the flattened batch [B, T]
    token: np.ndarray  # i64[N]
    returns: np.ndarray  # f64[N]
    logprobs: np.ndarray  # f32[N]
    is_solution: np.ndarray  # bool[N]

    @property
    def key(self) -> np.ndarray:
        """i64[N]: the `key_of` each place and token."""
        return key_of(self.place, self.token)


def key_of(place: np.ndarray, token: np.ndarray) -> np.ndarray:
    """i64: a number for each pair of place and token. It orders pairs by place."""
    return (place.astype(np.int64) << TOKEN_BITS) | token


def label_keys(labels: Labels, length: int) -> np.ndarray:
    """i64[L]: the `key_of` each label in rows of `length` tokens, row by row."""
    row, column = np.nonzero(labels.position)
    return key_of(row * length + labels.position[row, column], labels.token[row, column])


def batch_tokens(batch: Batch, episodes: Sequence[Episode]) -> BatchTokens:
    """The tokens of samples at the positions of a batch, whose row i is the episode i."""
    length = batch.tokens.shape[1]
    of_episodes = [episode.passing or NOTHING_PASSES for episode in episodes]
    passing = PassingTokens(*map(np.concatenate, zip(*of_episodes, strict=True)))
    first = [i * length + len(episode.prompt) for i, episode in enumerate(episodes)]
    place = np.repeat(first, [len(x.position) for x in of_episodes]) + passing.position
    is_drawn = np.asarray(batch.mask).reshape(-1)[place]
    return BatchTokens(place[is_drawn], *(x[is_drawn] for x in passing[1:]))


def with_batch_labels(batch: Batch, episodes: Sequence[Episode], cfg: Config) -> Batch:
    """The batch with the labels of its episodes, if the configuration asks for labels."""
    if cfg.credit.labels == "off":
        return batch
    return batch._replace(labels=batch_labels(batch, episodes))


def batch_labels(batch: Batch, episodes: Sequence[Episode]) -> Labels:
    """The labels of a batch, whose row i is the episode i, with coefficients of 0.

    Their old log-probabilities are those of the sampler, until a scoring pass computes the
    learner's.
    """
    drawn = batch_tokens(batch, episodes)
    is_label = drawn.token != np.asarray(batch.tokens).reshape(-1)[drawn.place]
    keys, logprobs = drawn.key[is_label], drawn.logprobs[is_label]
    keys, chosen = np.unique(keys, return_index=True)
    rows = LabelRows.of(batch, keys)
    old = rows.array(logprobs[chosen], np.float32)
    return rows.labels._replace(old_logprobs=old, sampler_logprobs=old)


class LabelRows(NamedTuple):
    """Labels [B, N] of a batch with the given keys, and the place of each key among them."""

    labels: Labels  # with zeros as coefficients and log-probabilities
    row: np.ndarray  # i64[L]
    column: np.ndarray  # i64[L]

    @classmethod
    def of(cls, batch: Batch, keys: np.ndarray) -> "LabelRows":
        """`keys`, i64[L], are the `key_of` different labels, in increasing order."""
        (rows, length), places = batch.tokens.shape, keys >> TOKEN_BITS
        row = places // length
        column, width = label_columns(row, rows, length)
        shape = (rows, width)
        zeros = np.zeros(shape, np.float32)
        empty = cls(Labels(np.zeros(shape, np.int32), zeros, zeros, zeros), row, column)
        position = empty.array(places % length, np.int32)
        token = empty.array(keys & ((1 << TOKEN_BITS) - 1), np.int32)
        return empty._replace(labels=Labels(position, token, zeros, zeros))

    def array(self, x: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
        """[B, N]: one number of `x` for each label, and 0 at padding."""
        result = np.zeros(self.labels.position.shape, dtype)
        result[self.row, self.column] = x
        return result


def with_labels(credit: Credit, rollout: Rollout, cfg: Config) -> Credit:
    """The credit with coefficients of labels, and of own tokens where samples pass.

    The advantages of `credit` are A_t of `rl/labels.py`. In the result the coefficients of own
    tokens replace them wherever a sample passes.
    """
    batch, labels = rollout.batch, rollout.batch.labels
    assert labels is not None, "`with_batch_labels` gives the batch its labels"
    drawn = batch_tokens(batch, rollout.episodes)
    covered, position = np.unique(drawn.place, return_inverse=True)
    own, coefficients = _coefficients(credit, rollout, drawn, covered, position, cfg)
    # The coefficients of samples that draw the same token at the same place add up.
    keys, number = np.unique(drawn.key, return_inverse=True)
    sums = np.bincount(number, coefficients, len(keys))
    sums[np.abs(sums) <= ROUNDING] = 0
    own_keys = key_of(covered, np.asarray(batch.tokens).reshape(-1)[covered])
    is_drawn = np.isin(own_keys, keys)
    own[is_drawn] += sums[np.searchsorted(keys, own_keys[is_drawn])]
    own[np.abs(own) <= ROUNDING] = 0
    advantages = np.float64(credit.advantages).reshape(-1)
    advantages[covered] = own
    of_labels = np.zeros(labels.token.shape, np.float32)
    wanted = label_keys(labels, batch.tokens.shape[1])
    of_labels[labels.position > 0] = sums[np.searchsorted(keys, wanted)]
    return credit._replace(
        advantages=advantages.astype(np.float32).reshape(batch.tokens.shape),
        labels=labels._replace(coefficients=of_labels),
    )


def _coefficients(
    credit: Credit,
    rollout: Rollout,
    drawn: BatchTokens,
    covered: np.ndarray,
    position: np.ndarray,
    cfg: Config,
) -> tuple[np.ndarray, np.ndarray]:
    """(f64[P], f64[N]): coefficients of own tokens at the places `covered`, and of the samples.

    `position`, i64[N], is the index in `covered` of each sample's place.
    """
    steps, kind, weight = rollout.steps, cfg.credit.labels, cfg.credit.label_weight
    by_step = role_outcomes(
        steps.values,
        steps.rewards,
        steps.counts > 0,
        cfg.credit.lambda_,
        cfg.ppo.gamma,
    )

    def at_covered(of_steps: np.ndarray) -> np.ndarray:
        of_tokens = np.asarray(token_advantages(of_steps, steps.step_ids))
        return of_tokens.reshape(-1)[covered].astype(np.float64)

    outcomes = at_covered(np.asarray(by_step))
    if kind == "group":
        return group_coefficients(outcomes, drawn.returns, position)
    plain = np.float64(credit.advantages).reshape(-1)[covered]
    if kind == "mixed":
        return mixed_coefficients(plain, outcomes, drawn.returns, position, weight)
    assert rollout.values is not None, "'blend' needs a learned value"
    learned = at_covered(_of_last_state(before_steps(rollout.values, steps), steps.counts >= 0))
    return blended_coefficients(
        plain, outcomes, drawn.returns, position, weight, learned, drawn.is_solution
    )


def _of_last_state(values: np.ndarray, is_state: np.ndarray) -> np.ndarray:
    """f32[B, C]: for each step the value of the last state at or before the step's first token.

    With `values.max_states` the last steps begin at no state. Before the first state of a row, the
    result is the number that `values`, f32[B, C], has at step 0.
    """
    last = np.maximum.accumulate(np.where(is_state, np.arange(values.shape[1]), 0), axis=1)
    return np.take_along_axis(values, last, axis=1)


def label_metrics(credit: Credit, rollout: Rollout) -> dict[str, float]:
    """Metrics of the labels that are trained on.

    `credit/labels` is their number per trained token. `credit/coverage` is the share of trained
    tokens at whose position a sample passes. `credit/agreement` is the share of the samples' tokens
    at these positions that equal the solution's own token; it is left out if no sample passes.
    """
    assert credit.labels is not None and credit.mask is not None
    mask = np.asarray(credit.mask).reshape(-1)
    drawn = batch_tokens(rollout.batch, rollout.episodes)
    place, token = (x[mask[drawn.place]] for x in drawn[:2])
    trained = max(np.count_nonzero(mask), 1)
    is_own = token == np.asarray(rollout.batch.tokens).reshape(-1)[place]
    metrics = {
        "credit/labels": np.count_nonzero(credit.labels.position) / trained,
        "credit/coverage": len(np.unique(place)) / trained,
    }
    return metrics | ({"credit/agreement": float(is_own.mean())} if len(is_own) else {})
