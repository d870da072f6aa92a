"""Types that many files share: problems and episodes on the host, batches and states on devices.

Letters used in the whole package. Reinforcement learning: C reasoning steps, M Monte Carlo
rollouts per state (the paper's K), B sequences, T tokens. The letters of the model's arrays are in
`model/decoder.py`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vinejax.core.seeds import row_seed as row_seed  # part of the public names

# Graders give a correct solution 1. A smaller reward is partial credit, which counts as wrong in
# pass@1, in the choice of solutions to learn from, and in the report.
CORRECT_REWARD = 1.0


def is_correct(reward: float) -> bool:
    """Whether a reward is at least `CORRECT_REWARD`."""
    return reward >= CORRECT_REWARD


@dataclasses.dataclass(frozen=True)
class Problem:
    """One row of a data set; `answer` is the answer that the data set gives.

    `columns` has the whole row by the names of its columns, for reward functions, if the task
    provides it. `context` has the messages before the question, (role, text) each, for a chat
    template. `opening` is the tag at the end of the prompt that opens a thinking block, such as
    `<think>`, or ''.
    """

    id: str
    question: str
    answer: str
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    context: tuple[tuple[str, str], ...] = ()
    opening: str = dataclasses.field(default="", compare=False, repr=False)

    def opened(self, response: str) -> str:
        """The response as a task reads it: after `opening`."""
        return f"{self.opening}{response}"


PromptedProblem = tuple[Problem, list[int]]  # a problem and the ids of its prompt


class Departure(NamedTuple):
    """Where a continuation leaves an episode's response."""

    position: int  # number of response tokens before the continuation's differing token
    token: int  # the continuation's token there
    return_from: float  # return of the continuation from the state before that token


@dataclasses.dataclass(frozen=True)
class Continuation:
    """One Monte Carlo continuation of a state: its text after the state, and its return.

    The return is the discounted sum of the rewards after the state, of steps and of the outcome.
    """

    text: str
    reward: float
    finish: str  # 'eos' | 'stop' | 'length'
    outcome: float  # reward of its answer alone, without discount and length penalty


class PassingTokens(NamedTuple):
    """The tokens that samples draw at positions of an episode that they pass: `credit/labels.py`.

    Sample k at a position is a continuation, or another solution of the problem, that repeats all
    response tokens before the position. A sample has an entry for each position that it passes.
    """

    position: np.ndarray  # i64[N] number of response tokens before the position
    token: np.ndarray  # i64[N] the sample's token at the position
    returns: np.ndarray  # f64[N] return of the sample from the state before that token
    logprobs: np.ndarray  # f32[N] log-probability of the token, in nats, by the sampler
    is_solution: np.ndarray  # bool[N] whether the sample is another solution


class Turn(NamedTuple):
    """A turn of an episode in an environment: what the policy and the environment said."""

    drawn: int  # index of the response token after the policy's tokens of the turn
    end: int  # index of the response token after the observation, where the next turn begins
    action: str
    observation: str  # text of the environment, without the markup of a chat
    reward: float
    key: str | None  # key of the environment's state after the turn


def is_unobserved(turns: Sequence[Turn], count: int) -> np.ndarray:
    """bool[count] Which of `count` response tokens are not tokens of an observation."""
    unobserved = np.ones(count, bool)
    for turn in turns:
        unobserved[turn.drawn : turn.end] = False
    return unobserved


@dataclasses.dataclass(frozen=True)
class Episode:
    """One sampled solution. Token ids are the sampled ones: they are never decoded and re-encoded.

    States are s_0 (the prompt's end), s_1, ..., s_C: s_c is the prompt and the first
    `step_ends[c - 1]` response tokens. s_C is terminal and has no entry in `values`. If an episode
    began in mid-solution, its first `given` response tokens have log-probability 0, s_0 is the
    state after them, and all steps end later. The observations of an environment are tokens of the
    response, with log-probability 0, and belong to the step before them.

    `Sampler` fills all fields down to `given`, but `step_rewards` only for tasks that reward steps.
    For methods with Monte Carlo values, `fill_values` adds the fields from `values` on.
    """

    problem_id: str
    prompt: list[int]
    response: list[int]
    logprobs: list[float]  # the sampler's, one per response token
    text: str  # the response as graded: ends before a stop string
    finished: bool  # False when the token budget cut it
    reward: float  # reward of the outcome, which comes with the last step
    step_ends: list[int]  # [C] index of the response token after each step
    step_rewards: list[float] | None = None  # [C] for tasks that reward steps
    reward_parts: dict[str, float] | None = None  # by `reward.functions`; None: there are none
    penalty: float | None = None  # penalty for the length; None: lengths are not penalised
    given: int = 0  # leading response tokens from elsewhere, or from another row: not trained on
    turns: tuple[Turn, ...] = ()  # finished turns, of tasks with an environment
    nodes: list[int] | None = None  # path in the tree to this leaf; the last C nodes are the steps
    scored: list[float] | None = None  # log-probs of the response by the engine's prefill
    values: np.ndarray | None = None  # f32[C] V(s_0) .. V(s_{C-1})
    is_state: np.ndarray | None = None  # bool[C] steps that begin at a state; others have A = 0
    value_counts: np.ndarray | None = None  # i32[C] returns behind each value; 0: none was sampled
    value_errors: np.ndarray | None = None  # f32[C] standard error of each value; NaN: unknown
    reused: np.ndarray | None = None  # i32[C] returns of each value not sampled at its state
    continuations: tuple[tuple[Continuation, ...], ...] = ()  # [C][M]
    # With `credit.labels`; None: no sample's tokens are trained on.
    passing: PassingTokens | None = None
    # [C][M] with `credit.labels`; None: continuation or response ends before they differ
    departures: tuple[tuple[Departure | None, ...], ...] = ()

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.response

    @property
    def is_drawn(self) -> np.ndarray:
        """bool[T] Which response tokens the policy drew; the others were given or observed."""
        drawn = is_unobserved(self.turns, len(self.response))
        drawn[: self.given] = False
        return drawn

    @property
    def length(self) -> int:
        """The number of response tokens except observations, at most `sample.max_tokens`."""
        return len(self.response) - sum(turn.end - turn.drawn for turn in self.turns)

    @property
    def outcome(self) -> float:
        """`reward` less the penalty for the length; the policy is trained on this difference."""
        return self.reward - (self.penalty or 0.0)

    @property
    def rewards(self) -> list[float]:
        """[C] the reward of each step, from `step_rewards`; the last also includes `outcome`."""
        rewards = list(self.step_rewards or [0.0] * len(self.step_ends))
        if rewards:
            rewards[-1] += self.outcome
        return rewards


Array = Any  # NumPy's on the host, jax's on devices; type checkers know no type for both


class Labels(NamedTuple):
    """Labels of a batch: further tokens that an update trains on, at positions of its rows.

    A label is a token that the policy drew after the tokens before its position, in place of the
    row's own token (`credit/labels.py`). No position has a label twice, or its own token as a
    label. N is at least the largest number of labels of a row. Padding has the position 0, where
    no row has a label, and zeros in the other arrays.
    """

    position: Array  # i32[B, N] index, in its row, of the token that the label stands beside
    token: Array  # i32[B, N]
    coefficients: Array  # f32[B, N] what the advantage is for a row's own token
    old_logprobs: Array  # f32[B, N] as in `Batch`
    sampler_logprobs: Array | None = None  # f32[B, N] by the sampler; None in an update
    weights: Array | None = None  # f32[B, N] as in `Batch`


class Batch(NamedTuple):
    """Episodes padded to equal lengths. Entry t of every per-token array belongs to `tokens[:, t]`.

    Arrays are NumPy's on the host and jax's in a compiled program.
    """

    tokens: Array  # i32[B, T]
    segment_ids: Array  # i32[B, T] 0 is padding; equal ids attend to each other
    positions: Array  # i32[B, T] within the segment
    mask: Array  # bool[B, T] response tokens that the policy drew
    advantages: Array  # f32[B, T]
    old_logprobs: Array  # f32[B, T] log-probabilities, in nats, by the policy that sampled
    ref_logprobs: Array  # f32[B, T] by the reference model
    # i32[B, T] one past the last place that sees each token, in packed rows that share prefixes.
    seen_until: Array | None = None
    # Inputs of an update that are None unless configured (learner/sampler_correction.py):
    weights: Array | None = None  # f32[B, T] factor of a token's policy loss; None: 1
    loss_extra: Array | None = None  # [B, T] numbers that a method's credit has for its loss
    labels: Labels | None = None  # further tokens to train on; None: there are none


class StepLayout(NamedTuple):
    """Where the steps of episodes lie in the rows of their batch, with rewards and values."""

    step_ids: np.ndarray  # i32[B, T] the step of each token that the policy drew, -1 elsewhere
    num_steps: np.ndarray  # i32[B]
    rewards: np.ndarray  # f32[B, C]
    values: np.ndarray  # f32[B, C] Monte Carlo values, 0 where there are none
    counts: np.ndarray  # i32[B, C] returns behind each value; -1 where a step begins at no state

    @property
    def is_step(self) -> np.ndarray:
        """bool[B, C] Entry [b, c] tells whether row b has a step with index c."""
        return np.arange(self.rewards.shape[1]) < self.num_steps[:, None]


class Rollout(NamedTuple):
    """An iteration's episodes, and arrays for them.

    In arrays with B rows, row b is for episode b, and rows after the last episode are empty.
    """

    episodes: list[Episode]
    batch: Batch
    steps: StepLayout
    values: np.ndarray | None = None  # f32[B, T] learned value of the state before each token
    hidden: np.ndarray | None = None  # f32[S, R] hidden states of the policy at all states
    prediction: Any = None  # the probe's `Prediction` of all states, if the method has a probe
    weight: float = 1.0  # μ of `values`, where they are mixed into a baseline
    entropy: np.ndarray | None = None  # f32[B, T] the policy's entropy before each token
    kl_coef: float | None = None  # this iteration's, if it is adapted; None: `kl.coef`
    extra: Any = None  # what a method's own `score` has for its credit


class TrainState(NamedTuple):
    """The state of a model in training, which every update changes."""

    step: jax.Array  # i32[] optimizer updates applied
    params: Any
    opt_state: Any


class RunState(NamedTuple):
    """The state of a run: the policy, and everything else that is kept between iterations."""

    policy: TrainState
    kept: Any = None  # the method's state (`methods.stages.MethodState`)
    options: Any = None  # dict of arrays, the state of `methods/adaptive_kl.py`; None: it has none
