"""A method as a record, and the iteration that all policy gradients share.

Each method has a module of its own beside this one: its docstring has the equation and the source,
`METHOD` the record. docs/methods.md has an example of a method of a user's own.
"""

import dataclasses
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

# Fields of the clipped loss, which methods of ours with another loss and iteration do not read.
OF_CLIPPED = ("kl", "ppo.clip", "ppo.clip_high", "ppo.epochs", "ppo.gamma", "ppo.whiten")
OF_CLIPPED += ("ppo.shift_mean", "ppo.reduction", "ppo.max_ratio", "ppo.loss", "ppo.dual_clip")
OF_CLIPPED += ("ppo.correction", "ppo.correction_min", "ppo.correction_max")
OF_CLIPPED += ("entropy", "ppo.mask_truncated", "ppo.row_tokens")
OF_CLIPPED += ("rollout.zero_variance", "reward.overlong")
# Fields of a probability ratio, which policy gradients with a loss without one do not read.
OF_RATIO = ("ppo.clip", "ppo.clip_high", "ppo.max_ratio")
# Options of rewards that a method reads if its credit does: `credit.assign.rewards_with_kl`,
# `token_rewards` and `against_group`.
OF_TOKENS = ("kl.place",)
OF_GROUPS = ("kl.place", "reward.scale")

# What holds for a method: a solution is compared with the others of its problem; the credit reads
# log-probabilities of the batch; `--mode=credit` lacks something that the credit reads; `sample`
# draws trees; `sample` is for environments, too; a row of a batch holds a pair of sequences.
Flag = Literal["groups", "logprobs", "unmeasured", "trees", "turns", "paired_rows"]

# What 'method' (and None, for the two that may be None) means in a field, unless the method's
# `defaults` say otherwise.
DEFAULTS: Mapping[str, Any] = {
    "ppo.whiten": "none",  # 'iteration', 'minibatch' or 'none'
    "ppo.reduction": "token",  # see `learner.policy.token_weights`
    "ppo.clip_high": None,  # None: `ppo.clip`
    "ppo.loss": "clip",  # 'method' for a method with a loss of its own
    "values.positions": "steps",  # where states are: see credit/rules.py
    "values.allocation": "uniform",  # how many continuations each has
    "credit.mask": "none",  # which tokens are trained on
    "rollout.zero_variance": "keep",  # what becomes of groups whose rewards are all equal
    "reward.overlong": 0.0,
    "reward.scale": "method",  # by the kind of `credit.assign.against_group`
    "kl.place": "loss",
}
OPEN = ("method", None)  # values that leave a field to the method


def policy_gradient(method: "Method", iteration: Iteration, state: RunState) -> RunState:
    """One iteration of VinePPO, or of any method that replaces a stage.

    VinePPO samples continuations of every step in `values`, and its credit is the difference of the
    values after and before each step (`methods/vineppo.py`).
    """
    problems = method.draw(iteration, state)
    solutions = method.sample(iteration, state, problems)
    episodes = method.values(iteration, state, solutions)
    rollout = method.score(iteration, state, episodes)
    credit = method.assign(rollout, iteration.cfg)
    return method.update(iteration, state, rollout, credit)


def update(iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit) -> RunState:
    """The state after the policy's updates on the rollout, with the loss of the run's method."""
    objective = iteration.session.method.objective(iteration.session.model, iteration.cfg)
    return stages.updated(iteration, state, rollout, credit, objective)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method: the functions in which it differs, and what 'method' means in its settings.

    The defaults are those of a clipped policy gradient on one policy. The functions of a stage take
    the iteration and the run's state first.
    """

    # The advantages of all tokens (VinePPO's: `vine` in methods/vineppo.py). None: the method has
    # an `iteration` of its own.
    credit: Callable[[Rollout, Config], Credit] | None
    # The problems of an iteration.
    draw: Callable[[Iteration, RunState], list[PromptedProblem]] = stages.draw
    # Their solutions.
    sample: Callable[[Iteration, RunState, list[PromptedProblem]], Solutions] = stages.solutions
    # The episodes, with values of their states if the method samples any.
    values: Callable[[Iteration, RunState, Solutions], list[Episode]] = no_values
    # The episodes as a batch with log-probabilities; see `stages.scored` for its arguments.
    score: Callable[..., Rollout] = stages.scored
    # The state after the updates of what the run trains.
    update: Callable[[Iteration, RunState, Rollout, Credit], RunState] = update
    # (log-probabilities [B, T], batch, objective) -> loss per token. `ppo.loss` replaces the
    # clipped one alone.
    loss: Callable[[jax.Array, Batch, PolicyObjective], PolicyLoss] = clipped_loss
    state: MethodState = MethodState()  # what is kept between iterations
    iteration: Callable[["Method", Iteration, RunState], RunState] = policy_gradient
    settings: type[MethodSettings] = MethodSettings  # the method's own
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # over `DEFAULTS`
    flags: Set[Flag] = frozenset()
    reads: tuple[str, ...] = ()  # sections and fields that it reads and most methods do not
    ignores: tuple[str, ...] = ()  # sections and fields that other methods read, and not this one
    about: str = ""  # title, equation, source and departures; "": the docstring of its module

    def __post_init__(self) -> None:
        unknown = sorted(set(self.defaults) - set(DEFAULTS))
        assert not unknown, f"{unknown}: no field of `DEFAULTS`"

    @property
    def is_policy_gradient(self) -> bool:
        """Whether its iterations assign credit to tokens, as those of `policy_gradient` do."""
        return self.credit is not None

    @property
    def has_continuations(self) -> bool:
        """Whether values of states are sampled."""
        return self.values is not no_values

    @property
    def has_own_values(self) -> bool:
        """Whether values of states come from a function of the method's own."""
        return self.values not in (no_values, monte_carlo)

    @property
    def has_own_sampling(self) -> bool:
        """Whether problems or solutions come in another way than one by one from the prompt."""
        return self.sample is not stages.solutions or self.draw is not stages.draw

    def reads_reference(self, cfg: Config) -> bool:
        """Whether log-probabilities by the reference model are needed; a user's method may."""
        return bool(cfg.kl.coef) or "logprobs" in self.flags or "." in cfg.method

    def with_settings(self, cfg: Config) -> Config:
        """The configuration with the method's own settings, if it has any."""
        if not self.settings.section:
            return cfg
        own = {self.settings.section: self.settings.of(cfg)}
        return dataclasses.replace(cfg, sections=cfg.sections | own)

    def resolve(self, cfg: Config) -> Config:
        """The configuration with the method's own choice in every field that leaves it open."""
        chosen = {**DEFAULTS, "ppo.loss": "clip" if self.loss is clipped_loss else "method"}
        chosen |= self.defaults
        if cfg.ppo.loss != "method" and (reduction := LOSSES[cfg.ppo.loss].reduction):
            chosen["ppo.reduction"] = reduction  # of the loss that the user has named
        chosen["ppo.clip_high"] = chosen["ppo.clip_high"] or cfg.ppo.clip
        left_open = {name: x for name, x in chosen.items() if field_of(cfg, name) in OPEN}
        return with_fields(self.with_settings(cfg), left_open)

    def assign(self, rollout: Rollout, cfg: Config) -> Credit:
        """The credit of a rollout, whitened over the iteration if `ppo.whiten` says so.

        Raises ConfigError, with file and line, if a method of a user's own fails to give one.
        """
        assert self.credit is not None, "the method has no advantages"
        if "." not in cfg.method:
            return assigned(self.credit(rollout, cfg), rollout, cfg)
        credit = result_of("method", cfg.method, self.credit, rollout, cfg)
        shape = rollout.batch.mask.shape
        if not isinstance(credit, Credit) or np.shape(credit.advantages) != shape:
            found = type(credit).__name__
            if isinstance(credit, Credit):
                found += f" with advantages {list(np.shape(credit.advantages))}"
            rule = f"gave {found}; needed is a Credit with advantages [B, T] = {list(shape)}"
            raise ConfigError("method", f"{place_of(self.credit)}: {rule}", repr(cfg.method))
        return assigned(credit, rollout, cfg)

    def objective(self, model: Decoder, cfg: Config) -> PolicyObjective:
        """The loss of an update, for a configuration that the method was applied to."""
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
            loss=self.loss if ppo.loss == "method" else named.function,
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
