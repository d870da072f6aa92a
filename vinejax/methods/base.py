"""A method as a record, and the iteration that all policy gradients share.

Methods are in modules beside this one. A module's docstring has the equation and the source, and
its `METHOD` is the record; baselines.py has several records. docs/methods.md has an example of a
user's own method.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Set
from typing import Any, Literal

import jax
import numpy as np

from vinejax.core.errors import ConfigError
from vinejax.core.plugins import place_of, result_of
from vinejax.core.sections import MethodSettings
from vinejax.core.settings import Config, field_of, with_fields
from vinejax.core.types import Batch, Episode, PromptedProblem, Rollout, RunState
from vinejax.credit.assign import Credit, assigned
from vinejax.learner.packing import passes_for
from vinejax.learner.policy import PolicyLoss, PolicyObjective, clipped_loss
from vinejax.learner.policy_losses import LOSSES
from vinejax.methods import stages
from vinejax.methods.stages import MethodState, monte_carlo, no_values
from vinejax.model.decoder import Decoder
from vinejax.session.iteration import Iteration, Solutions


def policy_gradient(method: "Method", iteration: Iteration, state: RunState) -> RunState:
    """The state after one iteration of VinePPO, or of a method that replaces some of its stages.

    VinePPO's `values` samples continuations from the start of every step (`stages.monte_carlo`).
    Its credit is the value after each step less the value before it (`vineppo.vine`).
    """
    problems = method.draw(iteration, state)
    solutions = method.sample(iteration, state, problems)  # with their rewards
    episodes = method.values(iteration, state, solutions)  # with V(s) of their states
    rollout = method.score(iteration, state, episodes)  # a batch with log-probabilities
    credit = method.assign(rollout, iteration.cfg)  # the advantages of all tokens
    return method.update(iteration, state, rollout, credit)


def update(iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit) -> RunState:
    """The state after the policy's updates on the rollout, with the loss of the run's method."""
    objective = iteration.session.method.objective(iteration.session.model, iteration.cfg)
    return stages.updated(iteration, state, rollout, credit, objective)


# Fields that only `policy_gradient` reads. Methods with another iteration ignore these fields.
OF_POLICY_GRADIENTS = (
    "kl",
    "ppo.clip",
    "ppo.clip_high",
    "ppo.epochs",
    "ppo.gamma",
    "ppo.whiten",
    "ppo.shift_mean",
    "ppo.reduction",
    "ppo.max_ratio",
    "ppo.loss",
    "ppo.dual_clip",
    "ppo.correction",
    "ppo.correction_min",
    "ppo.correction_max",
    "entropy",
    "ppo.mask_truncated",
    "ppo.row_tokens",
    "rollout.zero_variance",
    "reward.overlong",
)
# Fields of the probability ratio, which policy gradients without a ratio in the loss ignore.
OF_RATIO = ("ppo.clip", "ppo.clip_high", "ppo.max_ratio")
# Fields of returns, which policy gradients ignore whose credit does not add up later rewards.
OF_RETURNS = ("ppo.gamma",)
# Options that a method reads if its credit calls `rewards_with_kl` or `token_rewards` (OF_TOKENS),
# or `against_group` (OF_GROUPS). These functions are in credit/assign.py.
OF_TOKENS = ("kl.place",)
OF_GROUPS = ("kl.place", "reward.scale")

Flag = Literal[
    "groups",  # the credit compares a solution with the others of its problem
    "logprobs",  # the credit reads the policy's log-probabilities in the batch
    "unmeasured",  # `--mode=credit` lacks something that the method's credit reads
    "trees",  # `sample` draws trees of solutions
    "turns",  # the method's own `sample` works in environments, too
    "paired_rows",  # a row of a batch holds a pair of sequences
]

# The values of fields that a configuration leaves to the method, by 'method' or None. A method's
# `defaults` take precedence over these.
DEFAULTS: Mapping[str, Any] = {
    "ppo.whiten": "none",  # 'iteration', 'minibatch' or 'none'
    "ppo.reduction": "token",  # see `learner.policy.token_weights`
    "ppo.clip_high": None,  # None: `ppo.clip`
    "ppo.loss": "clip",  # 'method' for a method with a loss of its own
    "values.positions": "steps",  # where states are: see credit/rules.py
    "values.allocation": "uniform",  # how many continuations each state has
    "credit.mask": "none",  # which tokens are trained on
    "rollout.zero_variance": "keep",  # treatment of groups with equal rewards: group_filter.py
    "reward.overlong": 0.0,
    "reward.scale": "method",  # as the kind in `credit.assign.against_group` says
    "kl.place": "loss",
}
OPEN = ("method", None)  # values that leave a field to the method


@dataclasses.dataclass(frozen=True)
class Method:
    """A method: its stages, its loss, and its defaults for settings that are left to the method.

    With `credit` as its only argument, a record is a policy gradient with the clipped loss. Each
    stage except `credit` is a function whose first arguments are the iteration and the run's state.
    """

    # The advantages of all tokens (VinePPO's: `vine` in methods/vineppo.py). None: the method has
    # an `iteration` of its own.
    credit: Callable[[Rollout, Config], Credit] | None
    # The problems of an iteration.
    draw: Callable[[Iteration, RunState], list[PromptedProblem]] = stages.draw
    # The solutions of these problems.
    sample: Callable[[Iteration, RunState, list[PromptedProblem]], Solutions] = stages.solutions
    # The episodes, with values of their states if the method estimates values by sampling.
    values: Callable[[Iteration, RunState, Solutions], list[Episode]] = no_values
    # The episodes as a batch with log-probabilities; see `stages.scored` for its arguments.
    score: Callable[..., Rollout] = stages.scored
    # The state after the updates of what the run trains.
    update: Callable[[Iteration, RunState, Rollout, Credit], RunState] = update
    # (log-probabilities [B, T], batch, objective) -> `PolicyLoss`, which has the loss per token.
    # Only a method with the clipped loss lets `ppo.loss` replace it.
    loss: Callable[[jax.Array, Batch, PolicyObjective], PolicyLoss] = clipped_loss
    state: MethodState = MethodState()  # handles what the method keeps between iterations
    iteration: Callable[["Method", Iteration, RunState], RunState] = policy_gradient
    settings: type[MethodSettings] = MethodSettings  # section of the method's own settings
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # before `DEFAULTS`
    flags: Set[Flag] = frozenset()
    reads: tuple[str, ...] = ()  # sections and fields that this method reads and most do not
    ignores: tuple[str, ...] = ()  # sections and fields that others read and this method does not
    is_users: bool = False  # whether a user wrote the method; set where it is found by its name
    about: str = ""  # title, equation, source and departures; "": the docstring of its module

    def __post_init__(self) -> None:
        unknown = sorted(set(self.defaults) - set(DEFAULTS))
        assert not unknown, f"{unknown}: no field of `DEFAULTS`"

    @property
    def is_policy_gradient(self) -> bool:
        """Whether the method assigns credit to tokens, as `policy_gradient` does."""
        return self.credit is not None

    @property
    def has_continuations(self) -> bool:
        """Whether the method estimates values of states by sampling."""
        return self.values is not no_values

    @property
    def has_own_values(self) -> bool:
        """Whether the method has its own function for sampled values of states."""
        return self.values not in (no_values, monte_carlo)

    @property
    def has_own_sampling(self) -> bool:
        """Whether the method has its own function for drawing problems or sampling solutions."""
        return self.sample is not stages.solutions or self.draw is not stages.draw

    def reads_reference(self, cfg: Config) -> bool:
        """Whether the reference model must score solutions; True for every method of a user."""
        return bool(cfg.kl.coef) or self.is_users

    def keeps_start(self, cfg: Config) -> bool:
        """Whether a run reads the weights that it started from after it has made its first state.

        A policy gradient reads them as its reference model, adapters are added to them, and methods
        without credit keep them.
        """
        is_below_adapters = cfg.model.lora_rank > 0
        return is_below_adapters or not self.is_policy_gradient or self.reads_reference(cfg)

    def with_settings(self, cfg: Config) -> Config:
        """The configuration with the method's own settings, if it has any."""
        if not self.settings.section:
            return cfg
        own = {self.settings.section: self.settings.of(cfg)}
        return dataclasses.replace(cfg, sections=cfg.sections | own)

    def resolve(self, cfg: Config) -> Config:
        """The configuration, in which the method has set all fields that were left to it."""
        chosen = {**DEFAULTS, "ppo.loss": "clip" if self.loss is clipped_loss else "method"}
        chosen |= self.defaults
        if cfg.ppo.loss != "method" and (reduction := LOSSES[cfg.ppo.loss].reduction):
            chosen["ppo.reduction"] = reduction  # a loss that the user named has its own reduction
        chosen["ppo.clip_high"] = chosen["ppo.clip_high"] or cfg.ppo.clip
        left_open = {name: x for name, x in chosen.items() if field_of(cfg, name) in OPEN}
        return with_fields(self.with_settings(cfg), left_open)

    def assign(self, rollout: Rollout, cfg: Config) -> Credit:
        """The credit of a rollout, whitened over the iteration if `ppo.whiten` is 'iteration'.

        Raises ConfigError, with file and line, if a user's method fails, returns no Credit, or
        returns one with an array of a wrong shape.
        """
        assert self.credit is not None, "the method has no advantages"
        if not self.is_users:
            return assigned(self.credit(rollout, cfg), rollout, cfg)
        credit = result_of("method", cfg.method, self.credit, rollout, cfg)
        if message := _wrong_credit(credit, rollout):
            raise ConfigError("method", f"{place_of(self.credit)}: {message}", repr(cfg.method))
        return assigned(credit, rollout, cfg)

    def _own_loss(self, cfg: Config) -> Callable[..., PolicyLoss]:
        """The method's loss; that of a user's method is checked (`_checked_loss`)."""
        return _checked_loss(cfg.method, self.loss) if self.is_users else self.loss

    def objective(self, model: Decoder, cfg: Config) -> PolicyObjective:
        """The objective of the policy's updates; `cfg` must come from `resolve`."""
        ppo = cfg.ppo
        passes = passes_for(cfg, ppo.minibatch, model.mesh)
        named = LOSSES["clip" if ppo.loss == "method" else ppo.loss]
        low, high = named.bounds(ppo)
        return PolicyObjective(
            model=model,
            microbatch=passes.rows,
            packed=passes.packed,
            shared=passes.shared,
            temperature=cfg.sample.temperature,
            loss=self._own_loss(cfg) if ppo.loss == "method" else named.function,
            reduction=ppo.reduction,
            whiten=ppo.whiten,
            shift_mean=ppo.shift_mean,
            clip=(low, high),
            dual_clip=ppo.dual_clip,
            entropy_coef=cfg.entropy.coef,
            max_ratio=ppo.max_ratio,
            kl_coef=0.0 if cfg.kl.place == "reward" else cfg.kl.coef,
            kl_reduction=cfg.kl.reduction,
            max_tokens=cfg.sample.max_tokens,
            method_settings=self.settings.of(cfg) if self.settings.section else None,
        )


def _wrong_credit(credit: Any, rollout: Rollout) -> str:
    """What is wrong with the result of a user's credit; '' if nothing is."""
    by_token, by_step = rollout.batch.mask.shape, rollout.steps.rewards.shape
    if not isinstance(credit, Credit):
        needed = f"a Credit with advantages [B, T] = {list(by_token)}"
        return f"gave {type(credit).__name__}; needed is {needed}"
    for name in ("advantages", "mask", "loss_extra", "returns", "by_step", "values"):
        array, letters, shape = getattr(credit, name), "[B, T]", by_token
        if name in ("by_step", "values"):
            letters, shape = "[B, C]", by_step
        found = () if array is None else np.shape(array)
        if found != shape and (array is not None or name == "advantages"):
            needed = f"{letters} = {list(shape)}"
            return f"gave Credit with {name} {list(found)}; needed is {needed}"
    return ""


@functools.cache  # compiled programs are found by the function
def _checked_loss(name: str, loss: Callable[..., PolicyLoss]) -> Callable[..., PolicyLoss]:
    """The loss of the user's method `name`, whose results are checked.

    It raises ConfigError, with file and line, if `loss` fails or gives no PolicyLoss.
    """

    @functools.wraps(loss)
    def checked(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
        result = result_of("method", name, loss, logprobs, batch, objective)
        found = type(result).__name__
        if isinstance(result, tuple) and len(result) == len(PolicyLoss._fields):
            shapes = [np.shape(x) for x in result if x is not None]
            if shapes and all(shape == logprobs.shape for shape in shapes):
                return PolicyLoss(*result)
            found += "".join(f" {list(shape)}" for shape in shapes)
        message = f"gave {found}; needed is a PolicyLoss of arrays [B, T] = {list(logprobs.shape)}"
        raise ConfigError("method", f"{place_of(loss)}: {message}", repr(name))

    return checked
