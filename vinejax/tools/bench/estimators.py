"""The estimators that the credit bench compares, and the credit that each gives to solutions.

An estimator is a method with options, given as fields that replace those of the run's
configuration. All estimators get the same solutions, so only their credit differs.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vinejax.config.checks import check_config
from vinejax.core.errors import ConfigError, nearest_hint
from vinejax.core.settings import Config, ValuesConfig, flatten, with_fields
from vinejax.core.types import Batch, Episode, Labels, PromptedProblem, Rollout
from vinejax.credit.allocation import Seen
from vinejax.credit.assign import group_numbers, solution_rewards, state_numbers
from vinejax.credit.labels import with_batch_labels
from vinejax.learner.batch import collate, step_layout
from vinejax.learner.packing import Passes, passes_for
from vinejax.learner.score import hidden_of, policy_outputs, with_logprobs
from vinejax.methods.compose import method_of
from vinejax.methods.known import METHODS
from vinejax.methods.learned_value import LearnedValue
from vinejax.methods.ppo import critic_values, critic_weights
from vinejax.methods.stages import HIDDEN
from vinejax.model.decoder import Params
from vinejax.rl.advantages import group_advantages
from vinejax.rollout.overlong import penalised_episodes
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.vine import sampled_states, valued_episodes
from vinejax.session.budget import packed_tokens
from vinejax.session.session import Session
from vinejax.tools.bench.branches import Branches, with_branches
from vinejax.tools.bench.settings import BenchConfig
from vinejax.tools.bench.truth import SolutionState, values_at

RUN = "run"  # the estimator that the configuration itself sets
EXACT = "exact"  # `bench.truth` continuations of every state
# The noisier the single values are, the more of them an average by role should take.
ROLES_K1 = {"values.k": 1, "credit.lambda_": 0.7, "credit.baseline_lambda": 0.3}
ROLES_K3 = {"values.k": 3, "credit.lambda_": 0.4, "credit.baseline_lambda": 0.3}
LABELS = {
    "values.positions": "tokens",  # these do not look ahead
    "values.every": 10,
    "credit.lambda_": 0.5,
    "credit.baseline_lambda": 0.5,
    "credit.labels": "group",
}
BLEND = LABELS | {"credit.labels": "blend", "values.reuse": True, "values.prior": "probe"}
ESTIMATORS: dict[str, dict[str, Any]] = {
    RUN: {},
    "rloo": {"method": "rloo"},
    "grpo": {"method": "grpo"},
    "ppo": {"method": "ppo"},
    "vineppo_k1": {"values.k": 1},
    "vineppo_k3": {"values.k": 3},
    "vineppo_k9": {},
    "spread": {"values.num_states": 4},
    "bisection": {"values.allocation": "bisection"},
    "reuse": {"values.reuse": True},
    "bisection_reuse": {"values.allocation": "bisection", "values.reuse": True},
    "backup": {
        "values.k": 3,
        "values.num_states": 8,
        "values.reuse": True,
        "values.backup": True,
    },
    "role_k1": ROLES_K1,
    "role_k3": ROLES_K3,
    "probe_k0": {"values.prior": "probe", "values.allocation": f"{__name__}.nowhere"},
    "probe_k1": {**ROLES_K1, "values.prior": "probe"},
    "probe_k3": {**ROLES_K3, "values.prior": "probe"},
    "labels_k1": {**LABELS, "values.k": 1},
    "labels_k3": {**LABELS, "values.k": 3},
    "blend_k1": {**BLEND, "values.k": 1, "values.every": 5},
    "blend_k3": {**BLEND, "values.k": 3},
    "spo_chain": {"method": "spo_chain"},
    EXACT: {},
}
# Sections and fields that have their defaults in every estimator but RUN. Either only some methods
# read them, or the reference gradient, which depends only on rewards, is computed without them.
SHARED = {name for method in METHODS.values() for name in method.reads}
SHARED |= {"rollout.zero_variance", "rollout.rounds", "reward.overlong", "ppo.mask_truncated"}


def nowhere(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """Allocates no continuations to any state, whatever the arguments are.

    With this allocation, the credit of estimator `probe_k0` is the return minus the value that the
    learned prior predicts.
    """
    return None


class FixedParts(NamedTuple):
    """The parts that all estimators share, such as the policy and the problems."""

    session: Session
    params: Params  # trained parameters of the policy: all weights, or adapters
    critic: Params | None  # trained parameters of the critic; None without a critic
    problems: list[PromptedProblem]

    @property
    def weights(self) -> Params:
        """The policy's weights."""
        return self.session.weights(self.params)

    def sampler(self, cfg: Config, iteration: int) -> Sampler:
        """A sampler with the engine and grader of `self.session`, and with the settings `cfg`."""
        return Sampler(self.session.engine, self.session.graded, cfg, iteration)

    def passes(self, cfg: Config) -> Passes:
        """The division of a batch into forward and backward passes, as in training."""
        return passes_for(cfg, cfg.ppo.minibatch, self.session.mesh)

    def batch(self, cfg: Config, episodes: list[Episode], rows: int) -> Batch:
        """The episodes as a batch whose rows are as long as in training.

        The batch is padded with empty rows to a multiple of `rows` rows.
        """
        context, is_packed = self.session.model.cfg.context, self.passes(cfg).packed
        longest = packed_tokens(cfg, context, episodes) if is_packed else 0
        return collate(episodes, rows, longest)

    def scored(
        self, cfg: Config, episodes: list[Episode], batch: Batch, needs_reference: bool = True
    ) -> Batch:
        """The batch with log-probabilities by the policy and, if needed, by the reference model."""
        model, temperature, passes = self.session.model, cfg.sample.temperature, self.passes(cfg)
        reference = self.session.load_reference() if needs_reference else None
        outputs = policy_outputs(model, self.weights, batch, episodes, temperature, passes)
        return with_logprobs(model, reference, batch, outputs, temperature, passes)

    def critic_values(self, cfg: Config, batch: Batch) -> np.ndarray:
        """f32[B, T]: the critic's value of the state before each token."""
        assert self.critic is not None
        weights = critic_weights(self.critic, self.session.base)
        return critic_values(self.session.model, weights, batch, self.passes(cfg))


class EstimatedCredit(NamedTuple):
    """The credit that an estimator gives to the solutions of a batch, and what the credit costs."""

    advantages: np.ndarray  # f32[B, T], 0 where a token is not trained on
    episodes: list[Episode]  # the solutions, with Monte Carlo values if the estimator has any
    critic: np.ndarray | None  # f32[B, T] a critic's values before each token
    tokens: int  # tokens decoded for the credit, without those of the solutions
    seconds: float  # time spent on the credit, without sampling the solutions
    prior_state: Any = None  # state of the prior after these solutions; None without a prior
    labels: Labels | None = None  # further tokens to train on; None: there are none
    branches: Branches | None = None  # further rows to train on


def estimator_config(cfg: Config, name: str) -> Config:
    """The run's configuration, with the fields of estimator `name` in place of the run's.

    A field with the value 'method' leaves a choice to the method; in the configuration that is
    returned, the estimator's method has made these choices.

    Raises ConfigError if there is no estimator of this name, or if the bench cannot measure its
    method, for instance because the method samples trees or has no advantages.
    """
    if name not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        hint = nearest_hint(name, ESTIMATORS)
        raise ConfigError("bench.estimators", f"must be of {known}{hint}", repr(name))
    config = cfg if name == RUN else _with_fields(_plain(cfg), ESTIMATORS[name])
    if name == EXACT:
        config = _with_fields(config, {"values.k": BenchConfig.of(cfg).truth})
    method, label = method_of(config), f"method {config.method!r}"
    applied = method.resolve(config)
    reasons = {
        f"{label} has no advantages of sampled solutions": method.credit is None
        or not method.is_policy_gradient,
        f"{label} compares with earlier iterations": method.state.keeps(config)
        and not (method.state.has_critic or config.values.prior),
        f"{label} samples trees": "trees" in method.flags,
        f"{label} has values of its own": method.has_own_values,
        f"{label} takes the KL from its rewards": applied.kl.place == "reward",
        f"{label} reads entropies or a teacher": "unmeasured" in method.flags,
        "credit.mask = 'top_entropy' reads entropies": applied.credit.mask == "top_entropy",
        f"{label} and its options sample in a way of their own": method.has_own_sampling,
    }
    for reason, holds in reasons.items():
        if holds:
            message = f"cannot be measured: {reason}; name other estimators"
            raise ConfigError("bench.estimators", message, repr(name))
    check_config(config)
    return applied


def _plain(cfg: Config) -> Config:
    """The run's configuration with method 'vineppo', and with defaults for all fields in SHARED.

    All estimators except 'run' start from it, so options of the run's own method do not reach them.
    """
    defaults = Config()
    plain = {name: x for name, x in flatten(defaults) if {name, name.partition(".")[0]} & SHARED}
    sections = {name: section for name, section in cfg.sections.items() if name == "bench"}
    if "bench" in sections:  # whose branches are those of estimator RUN alone
        sections["bench"] = dataclasses.replace(BenchConfig.of(cfg), branches="off")
    cfg = dataclasses.replace(cfg, method="vineppo", sections=sections)
    return _with_fields(cfg, plain)


def _with_fields(cfg: Config, fields: dict[str, Any]) -> Config:
    """A copy of `cfg` with these fields, also those of the section 'bench'."""
    own = {name: x for name, x in fields.items() if name.startswith("bench.")}
    cfg = with_fields(cfg, {name: x for name, x in fields.items() if name not in own})
    if not own:
        return cfg
    settings = {name.removeprefix("bench."): x for name, x in own.items()}
    bench = dataclasses.replace(BenchConfig.of(cfg), **settings)
    return dataclasses.replace(cfg, sections=cfg.sections | {"bench": bench})


def needs_critic(cfg: Config) -> bool:
    """Whether the configured method takes its values from a critic."""
    return method_of(cfg).state.has_critic


def reads_logprobs(cfg: Config) -> bool:
    """Whether the configured method's credit may read log-probabilities of the batch.

    The result is always True for a method that a user has written.
    """
    method = method_of(cfg)
    return method.is_users or "logprobs" in method.flags


def estimate(
    parts: FixedParts,
    cfg: Config,
    episodes: list[Episode],
    batch: Batch,
    repeat: int,
    prior_state: Any = None,
) -> EstimatedCredit:
    """The credit that the estimator of `cfg` gives to the solutions of a batch.

    `batch` holds `episodes` in this order, with log-probabilities if `reads_logprobs` is true for
    `cfg`. The advantages are not whitened. `prior_state` is the state of the estimator's prior
    after the earlier repeats.
    """
    session, method = parts.session, method_of(cfg)
    episodes = penalised_episodes(episodes, cfg)
    rows, critic, states = episodes, None, []
    before = session.engine.stats.decoded_tokens
    start = time.perf_counter()
    if method.has_continuations:
        sampler = parts.sampler(cfg, repeat)
        states, logprobs = sampled_states(sampler, parts.weights, parts.problems, episodes)
        rows = valued_episodes(states, logprobs, cfg.ppo.gamma)
    elif method.state.has_critic:
        critic = parts.critic_values(cfg, batch)
    batch = with_batch_labels(batch, rows, cfg)
    rollout = Rollout(rows, batch, step_layout(batch, rows), values=critic)
    if cfg.values.prior:
        rollout, prior_state = _with_prior(parts, cfg, rollout, prior_state)
    seconds = time.perf_counter() - start
    plain = dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, whiten="none"))
    credit = method.assign(rollout, plain)
    mask = np.asarray(credit.mask if credit.mask is not None else batch.mask)
    advantages = np.where(mask, credit.advantages, np.float32(0))
    grown = None
    if BenchConfig.of(cfg).branches != "off":
        advantages, grown = with_branches(rollout, advantages, states, cfg)
    return EstimatedCredit(
        advantages=advantages,
        episodes=rows,
        critic=critic,
        tokens=session.engine.stats.decoded_tokens - before,
        seconds=seconds,
        prior_state=prior_state,
        labels=credit.labels,
        branches=grown,
    )


def _with_prior(
    parts: FixedParts, cfg: Config, rollout: Rollout, prior_state: Any
) -> tuple[Rollout, Any]:
    """The rollout with values that the method's prior predicts, and the prior's new state.

    The new state is the result of training the prior on this rollout.
    """
    session, state = parts.session, method_of(cfg).state
    assert isinstance(state, LearnedValue)
    prior_state = prior_state or state.fresh_prior(session.model, cfg)
    if HIDDEN in state.reads(cfg):
        hidden = hidden_of(
            session.model,
            parts.weights,
            rollout.batch,
            number=state_numbers(rollout.steps),
            passes=parts.passes(cfg),
        )
        rollout = rollout._replace(hidden=hidden)
    rollout = state.with_prior(session, rollout, prior_state, cfg)
    return rollout, state.learned(prior_state, rollout, cfg)[0]


def predicted_values(
    cfg: Config, estimated: EstimatedCredit, states: Sequence[SolutionState]
) -> np.ndarray:
    """f64[S]: the values that the estimator of `cfg` gives to the states; nan for no value.

    A method that compares a solution with its group has one value for all states of the solution.
    The value is the mean reward of the whole group or, with RLOO, of the group's other solutions.
    """
    method, episodes = method_of(cfg), estimated.episodes
    if method.has_continuations:
        return values_at(episodes, states, cfg.values.max_states)
    if estimated.critic is not None:
        entries = [(i, len(episodes[i].prompt) + used) for i, _, used in states]
        return np.array([estimated.critic[entry] for entry in entries], np.float64)
    if "groups" not in method.flags:
        return np.full(len(states), np.nan)
    rewards, groups = solution_rewards(episodes), group_numbers(episodes)
    baselines = rewards - np.asarray(
        group_advantages(rewards, groups, "rloo" if cfg.method == "rloo" else "mean")
    )
    return baselines[[state.episode for state in states]].astype(np.float64)
