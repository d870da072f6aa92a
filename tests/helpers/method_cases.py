"""A batch of eight episodes, and the gradient that each method takes from it.

For the tests on methods in tests/learner, methods, report and system.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from helpers import loop_cases as cases
from helpers.applied import assign_credit, policy_objective
from vinejax.core.settings import Config, MeshConfig
from vinejax.core.types import Batch, Episode, Rollout
from vinejax.credit.assign import Credit
from vinejax.learner.batch import collate, collate_groups, step_layout
from vinejax.learner.likelihood import Likelihood
from vinejax.learner.score import score, token_logprobs
from vinejax.learner.update import Objective, gradients
from vinejax.methods import dpo_positive
from vinejax.methods.known import METHODS, find_method
from vinejax.methods.pairs import PairObjective
from vinejax.methods.ppo import CriticObjective, Targets, fresh_critic
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import make_mesh, param_shardings


def kinds_of_update(methods: Iterable[str]) -> list[str]:
    """One method of each kind of update: the others change, token by token, a bound or a reward.

    Advantages are made on the host, before the rows are divided.
    """
    kinds: dict[tuple[object, ...], str] = {}
    for name in methods:
        method = find_method(name)
        loss = (method.loss, method.defaults.get("ppo.reduction", "token"))
        kinds.setdefault(loss if method.credit else (name,), name)
    return [*kinds.values()]


PROGRAMS = [*kinds_of_update(METHODS), "critic"]
LENGTHS = [(4, 9), (2, 3), (4, 6), (5, 7), (3, 10), (2, 3), (4, 1), (6, 8)]
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.25, 0.0, 0.0, 0.0]  # two groups of four

grads_of = jax.jit(gradients, static_argnames="objective")


def config(method: str, **sections: Any) -> Config:
    """`cases.config` for the method; only VinePPO keeps its setting of `values`."""
    if method != "vineppo":
        sections["values"] = {"k": 9, "max_states": None}
    return cases.config(method=method, **sections)


@functools.cache
def episodes() -> list[Episode]:
    """Four solutions of each of two problems, in two steps where there is room, with values.

    They are leaves of trees as well, whose nodes are the steps.
    """
    rng = np.random.default_rng(1)
    found = []
    for i, plain in enumerate(cases.random_episodes(LENGTHS)):
        n = len(plain.response)
        ends = [n] if n < 2 else [n // 2, n]
        found.append(
            cases.episode(
                plain.prompt,
                plain.response,
                problem_id=f"p{i // 4}",
                reward=REWARDS[i],
                step_ends=ends,
                # Two solutions each share the first node, if they have two.
                nodes=[[i % 4 // 2, 10 + i], [20 + i]][n < 2],
                values=rng.uniform(0, 1, len(ends)).astype(np.float32),
            )
        )
    return found


@functools.cache
def batch() -> Batch:
    """Old and reference log-probabilities near those of `cases.params()`.

    No ratio is near a clip, and no solution's sum near its reference's: there rounding would
    decide, or be multiplied by the penalty of DPO-Positive.
    """
    plain = collate(episodes(), rows=8)
    rng = np.random.default_rng(2)
    current = np.asarray(score(cases.model(), cases.params(), plain, 0.8))
    old = current + rng.choice([-0.4, -0.1, 0.05, 0.3], size=current.shape)
    ref = current + rng.uniform(-0.8, 0.6, size=current.shape)
    mask = np.asarray(plain.mask)
    moved = np.where(mask, ref - current, 0.0).sum(axis=1)
    wanted = np.array([1.5, -1.2, 1.8, -0.5, 2.0, 1.1, -1.5, 0.9])  # nats, a whole solution
    ref += ((wanted - moved) / mask.sum(axis=1))[:, None]
    old, ref = (np.where(mask, x, 0.0).astype(np.float32) for x in (old, ref))
    # On the device, for functions that are called outside a compiled program.
    return jax.tree.map(jnp.asarray, plain._replace(old_logprobs=old, ref_logprobs=ref))


def values() -> np.ndarray:
    """Values [8, 32] such as a critic might give."""
    return np.random.default_rng(3).uniform(0, 1, (8, 32)).astype(np.float32)


def credit(
    cfg: Config,
    of_critic: np.ndarray | None = None,
    rows: Batch | None = None,
    solutions: list[Episode] | None = None,
) -> Credit:
    """The configured method's credit, whitened as it wants, for `episodes()` unless given others.

    `of_critic` is f32[B, T], the critic's values.
    """
    rows = batch() if rows is None else rows
    solutions = episodes() if solutions is None else solutions
    entropy = np.where(rows.mask, 2.0 + values()[: len(rows.mask)], 0.0)
    rollout = Rollout(solutions, rows, step_layout(rows, solutions), of_critic, entropy=entropy)
    return assign_credit(rollout, cfg, policy_objective(cases.model(), cfg).whiten)


def critic_params() -> Any:
    return fresh_critic(cases.model(), cases.params(), 5, make_mesh(MeshConfig()))


def pairs_of(rows: Batch) -> Batch:
    """A pair in each row: the episode of row b is chosen, that of row b - 3 is rejected."""
    solutions = episodes()
    pairs = [(solutions[b], solutions[b - 3]) for b in range(len(solutions))]
    paired = collate_groups(pairs, rows=len(pairs), longest=0)
    ref = np.zeros(paired.tokens.shape, np.float32)
    for b, (chosen, rejected) in enumerate(pairs):
        first, second = len(chosen.tokens), len(rejected.tokens)
        ref[b, :first] = rows.ref_logprobs[b, :first]
        ref[b, first : first + second] = rows.ref_logprobs[b - 3, :second]
    return paired._replace(ref_logprobs=ref)


def gradient(
    method: str, microbatch: int | None, mesh: Mesh | None = None, model: Decoder | None = None
) -> Any:
    """The gradient of one minibatch, on one device or over a mesh; `model` with the weights of
    `cases.model()`."""
    return gradient_and_sums(method, microbatch, mesh, model)[0]


def gradient_and_sums(
    method: str,
    microbatch: int | None,
    mesh: Mesh | None = None,
    model: Decoder | None = None,
    packed: bool = False,
    **sections: Any,
) -> tuple[Any, Any]:
    """The gradient of `gradient` and the objective's sums; of packed rows, if so wanted.

    `sections` are the method's settings.
    """

    def result(objective: Objective, params: Any, rows: Any) -> tuple[Any, Any]:
        rows = dataclasses.replace(objective, packed=packed).pack(rows)
        return grads_of(objective, params, rows)

    model = dataclasses.replace(model or cases.model(), mesh=mesh)

    def place(params: Any) -> Any:
        return params if mesh is None else jax.device_put(params, param_shardings(mesh, params))

    params = place(cases.params())
    if method == "critic":
        given = credit(config("ppo"), values())
        assert given.returns is not None
        rows = (batch(), Targets(values() + 0.1, given.returns))
        objective = CriticObjective(model=model, microbatch=microbatch, clip=0.2)
        return result(objective, place(critic_params()), rows)
    if method == "dpo_positive":
        loss, own = dpo_positive.loss, dpo_positive.DPOConfig()
        objective = PairObjective(
            model=model, microbatch=microbatch, temperature=0.8, loss=loss, own=own
        )
        return result(objective, params, pairs_of(batch()))
    if method in ("restem", "sft"):
        reduction = "sequence" if method == "restem" else "token"
        objective = Likelihood(
            model=model, microbatch=microbatch, reduction=reduction, temperature=0.8
        )
        return result(objective, params, batch())
    ppo = {"minibatch": 8, "microbatch": microbatch}
    cfg = config(method, ppo=ppo, kl={"coef": 0.1}, **sections)
    given = credit(cfg, values())
    own = None if given.loss_extra is None else jnp.asarray(given.loss_extra)
    rows = batch()._replace(advantages=given.advantages, loss_extra=own)
    # Its whitening is done: without it methods share a program.
    objective = dataclasses.replace(policy_objective(model, cfg), whiten="none")
    return result(objective, params, rows)


def spread(by_row: np.ndarray) -> np.ndarray:
    """Numbers of solutions at all tokens of theirs, [8, 32]; 0 elsewhere."""
    return np.where(batch().mask, by_row[:, None], 0.0)


def reinforce_gradient(advantages: np.ndarray) -> dict:
    """∇ of -Σ A·logπ / tokens, from the log-probabilities alone."""
    rows = batch()

    def loss(params):
        logprobs, _ = token_logprobs(cases.model(), params, rows, 0.8)
        return -jnp.sum(jnp.where(rows.mask, logprobs * advantages, 0.0)) / rows.mask.sum()

    return jax.jit(jax.grad(loss))(cases.params())


def at_ratio_1(rows: Batch) -> Batch:
    """The rows as if the policy of `cases.params()` had sampled them."""
    logprobs, _ = token_logprobs(cases.model(), cases.params(), rows, 0.8)
    return rows._replace(old_logprobs=jnp.where(rows.mask, logprobs, 0.0))
