"""A method as a record, and the iteration that all policy gradients share.

Each method has a module of its own beside this one: its docstring has the equation and the source,
`METHOD` the record. docs/methods.md has an example of a method of a user's own.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from vinejax.core.errors import ConfigError
from vinejax.core.plugins import place_of, result_of
from vinejax.core.sections import MethodSettings
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode, Rollout, RunState, TrainState
from vinejax.credit.assign import Credit, assigned
from vinejax.learner.packing import passes_for
from vinejax.learner.policy import PolicyLoss, PolicyObjective, clipped
from vinejax.learner.policy_losses import LOSSES
from vinejax.methods.stages import State, monte_carlo, no_values, scored, solutions, update
from vinejax.model.decoder import Decoder
from vinejax.options import adaptive_kl
from vinejax.options.spread import with_spread
from vinejax.rollout.overlong import penalised_episodes
from vinejax.runtime.distributed import barrier
from vinejax.session.iteration import Iteration, Solutions
from vinejax.session.session import Session

# Fields of the clipped loss, which methods of ours with another loss and iteration do not read.
OF_CLIPPED = ("kl", "ppo.clip", "ppo.clip_high", "ppo.epochs", "ppo.gamma", "ppo.whiten")
OF_CLIPPED += ("ppo.shift_mean", "ppo.reduction", "ppo.max_ratio", "ppo.loss", "ppo.dual_clip")
OF_CLIPPED += ("ppo.correction", "ppo.correction_min", "ppo.correction_max")
OF_CLIPPED += ("entropy", "ppo.mask_truncated", "ppo.row_tokens")
OF_CLIPPED += ("rollout.flat", "reward.overlong")
# Fields of a probability ratio, which policy gradients with a loss without one do not read.
OF_RATIO = ("ppo.clip", "ppo.clip_high", "ppo.max_ratio")
# Options of rewards that a method reads if its credit does: `credit.assign.rewards_with_kl`,
# `token_rewards` and `against_group`.
OF_TOKENS = ("kl.place",)
OF_GROUPS = ("kl.place", "reward.scale")


def policy_gradient(method: "Method", it: Iteration, state: RunState) -> RunState:
    """One iteration in four stages: sample solutions, value states, assign credit, update.

    VinePPO samples continuations in the second stage, and its credit is the difference of the
    values after and before each step (`methods/vineppo.py`).
    """
    session = it.session
    with it.log.stage("rollout"):  # 1. sample
        state = method.state.begin(it, state)
        sampled = with_spread(it, lambda: method.sample(it, state))
        sampled = sampled._replace(episodes=penalised_episodes(sampled.episodes, it.cfg))
    if not sampled.episodes:  # all groups were left out
        session.engine.release()
        it.record_sampling(sampled)
        return state
    with it.log.stage("value"):  # 2. value
        episodes = method.values(it, state, sampled)
        session.engine.release()
    with it.log.stage("score"):  # 3. credit
        needs_reference = method.reads_reference(it.cfg)
        rollout = scored(it, state, episodes, method.state, needs_reference)
        state, rollout = adaptive_kl.followed(it, state, rollout)
        credit = method.assign(rollout, it.cfg)
    with it.log.stage("train"):  # 4. update
        barrier("train", [(episode.tokens, episode.rewards) for episode in episodes])
        state = method.state.learn(it, state, rollout, credit)
        objective = method.objective(session.model, it.cfg)
        state = update(it, state, objective, rollout, credit)
    it.record_sampling(sampled._replace(episodes=episodes), credit)
    return state


@dataclasses.dataclass(frozen=True)
class Method:
    """A method: the functions in which it differs, and what 'method' means in its settings.

    The defaults are those of a clipped policy gradient on one policy.
    """

    # Stage 3: the advantages of all tokens (VinePPO's: `vine` in methods/vineppo.py). None: the
    # method has an `iteration` of its own.
    credit: Callable[[Rollout, Config], Credit] | None
    # Stage 1: problems and their solutions.
    sample: Callable[[Iteration, RunState], Solutions] = solutions
    # Stage 2: the episodes, with values of their states if the method samples any.
    values: Callable[[Iteration, RunState, Solutions], list[Episode]] = no_values
    # Stage 4: (log-probabilities [B, T], batch, objective) -> loss per token. `ppo.loss` replaces
    # the clipped one alone.
    loss: Callable[[jax.Array, Batch, PolicyObjective], PolicyLoss] = clipped
    state: State = State()  # what is kept between iterations
    iteration: Callable[["Method", Iteration, RunState], RunState] = policy_gradient
    settings: type[MethodSettings] = MethodSettings  # the method's own
    # What fields of the configuration mean where they say 'method':
    whiten: str = "none"  # `ppo.whiten`: 'iteration', 'minibatch' or 'none'
    reduction: str = "token"  # `ppo.reduction`, see `learner.policy.token_weights`
    clip_high: float | None = None  # `ppo.clip_high` where it is None; None: `ppo.clip`
    positions: str = "steps"  # `values.positions`, where states are: see credit/rules.py
    allocation: str = "uniform"  # `values.allocation`, how many continuations each has
    mask: str = "none"  # `credit.mask`, which tokens are trained on
    flat: str = "keep"  # `rollout.flat`, what becomes of groups whose rewards are all equal
    overlong: float = 0.0  # `reward.overlong` where it is None
    scale: str = "method"  # `reward.scale`; 'method': by the kind of `against_group`
    kl_place: str = "loss"  # `kl.place`
    # What holds for the configuration:
    needs_groups: bool = False  # a solution is compared with the others of its problem
    reads_logprobs: bool = False  # the credit reads log-probabilities of the batch
    measured: bool = True  # `--mode=credit` has all that the credit reads
    on_trees: bool = False  # `sample` draws trees
    in_turns: bool = False  # `sample` is for environments, too
    single_rows: bool = True  # a row of a batch holds one sequence where rows are not packed
    reads: tuple[str, ...] = ()  # sections and fields that it reads and most methods do not
    ignores: tuple[str, ...] = ()  # sections and fields that other methods read, and not this one

    @property
    def is_policy_gradient(self) -> bool:
        """Whether its iterations are those of `policy_gradient`."""
        return self.iteration is policy_gradient

    @property
    def has_continuations(self) -> bool:
        """Whether values of states are sampled."""
        return self.values is not no_values

    def reads_reference(self, cfg: Config) -> bool:
        """Whether log-probabilities by the reference model are needed; a user's method may."""
        return bool(cfg.kl.coef) or self.reads_logprobs or "." in cfg.method

    @property
    def has_own_values(self) -> bool:
        """Whether values of states come from a function of the method's own."""
        return self.values not in (no_values, monte_carlo)

    @property
    def has_own_sampling(self) -> bool:
        """Whether solutions are sampled in another way than one by one from the prompt."""
        return self.sample is not solutions

    def completed(self, cfg: Config) -> Config:
        """The configuration with the method's own settings, if it has any."""
        if not self.settings.section:
            return cfg
        own = {self.settings.section: self.settings.of(cfg)}
        return dataclasses.replace(cfg, sections=cfg.sections | own)

    def applied_to(self, cfg: Config) -> Config:
        """The configuration with the method's own choice in every field that says 'method'."""

        def chosen(field: str, own: str) -> str:
            return own if field == "method" else field

        ppo, values, credit, reward = cfg.ppo, cfg.values, cfg.credit, cfg.reward
        overlong = self.overlong if reward.overlong is None else reward.overlong
        loss = chosen(ppo.loss, "clip" if self.loss is clipped else "method")
        reduction = LOSSES[loss].reduction if loss == ppo.loss != "method" else None
        return dataclasses.replace(
            self.completed(cfg),
            ppo=dataclasses.replace(
                ppo,
                whiten=chosen(ppo.whiten, self.whiten),
                loss=loss,
                reduction=chosen(ppo.reduction, reduction or self.reduction),
                clip_high=ppo.clip_high or self.clip_high or ppo.clip,
            ),
            values=dataclasses.replace(
                values,
                positions=chosen(values.positions, self.positions),
                allocation=chosen(values.allocation, self.allocation),
            ),
            credit=dataclasses.replace(credit, mask=chosen(credit.mask, self.mask)),
            rollout=dataclasses.replace(cfg.rollout, flat=chosen(cfg.rollout.flat, self.flat)),
            reward=dataclasses.replace(
                reward, overlong=overlong, scale=chosen(reward.scale, self.scale)
            ),
            kl=dataclasses.replace(cfg.kl, place=chosen(cfg.kl.place, self.kl_place)),
        )

    def begun(self, session: Session, policy: TrainState) -> RunState:
        """The state of a run before the first iteration."""
        return RunState(policy, self.state.fresh(session), adaptive_kl.fresh(session.cfg))

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
            own=self.settings.of(cfg) if self.settings.section else None,
        )
