"""The losses of `ppo.loss` with all that can be added to them, and their gradient by plain loops.

For tests/learner: on one device, in packed rows and microbatches, and on a mesh.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import policy_objective
from vinejax.core.types import Batch
from vinejax.learner.policy import PolicyObjective
from vinejax.model.decoder import Decoder

NAMES = ("clip", "gspo", "cispo", "sapo")
BOUNDS = {"gspo": (0.05, 0.05), "cispo": (0.2, 0.2), "sapo": (1.0, 1.05)}
TEMPERATURE, KL, BONUS = 0.8, 0.1, 0.05
SEQUENCE = ("gspo", "sapo")  # their authors' mean


def objective(name: str, model: Decoder, microbatch: int | None = None) -> PolicyObjective:
    """The objective of a run with GRPO's advantages, this loss, KL and bonus."""
    ppo: dict[str, Any] = {"minibatch": 8, "microbatch": microbatch, "loss": name}
    if name == "clip":
        ppo["dual_clip"] = 1.3
    else:
        ppo["sapo_tau" if name == "sapo" else f"{name}_clip"] = BOUNDS[name]
    cfg = methods.config("grpo", ppo=ppo, kl={"coef": KL}, entropy={"coef": BONUS})
    return policy_objective(model, cfg)


@functools.cache
def rows() -> Batch:
    """GRPO's advantages; weights of whole solutions, 0 among them."""
    batch = methods.batch()
    advantages = methods.credit(methods.config("grpo")).advantages
    weights = np.array([1.0, 0.5, 1.7, 0.0, 2.5, 1.0, 0.8, 1.2], np.float32)[:, None]
    return batch._replace(advantages=advantages, weights=weights * np.asarray(batch.mask))


def _per_solution(name: str, d: Any, logprobs: Any, advantage: float) -> Any:
    """The published loss of a solution's tokens; of the whole solution for GSPO."""
    ratio = jnp.exp(d)
    if name == "clip":
        loss = jnp.maximum(-advantage * ratio, -advantage * jnp.clip(ratio, 0.8, 1.2))
        return jnp.minimum(loss, -advantage * 1.3) if advantage < 0 else loss
    low, high = BOUNDS[name]
    if name == "gspo":
        s = jnp.exp(jnp.mean(d))
        return jnp.maximum(-advantage * s, -advantage * jnp.clip(s, 1 - low, 1 + high))
    if name == "cispo":
        return -jax.lax.stop_gradient(jnp.clip(ratio, 1 - low, 1 + high)) * advantage * logprobs
    tau = low if advantage > 0 else high
    return -advantage * 4 / tau * jax.nn.sigmoid(tau * (ratio - 1))


def _total(name: str, logprobs: list[Any], entropy: list[Any]) -> Any:
    """The whole loss of `rows()` from each solution's log-probabilities and entropies."""
    batch = jax.tree.map(np.asarray, rows())
    tokens, total = batch.mask.sum(), 0.0
    for row, mask in enumerate(batch.mask):
        now, advantage = logprobs[row], float(batch.advantages[row][mask][0])
        old, ref = batch.old_logprobs[row][mask], batch.ref_logprobs[row][mask]
        loss = _per_solution(name, now - old, now, advantage) * batch.weights[row][mask][0]
        kl = jnp.exp(ref - now) - (ref - now) - 1
        count = mask.sum() * 8 if name in SEQUENCE else tokens
        total += jnp.sum(loss + KL * kl) / count - BONUS * jnp.sum(entropy[row]) / tokens
    return total


@functools.cache
def _forward() -> Any:
    """(each solution's log-probabilities and entropies alone and unpadded, their pull-back)."""
    batch = jax.tree.map(np.asarray, rows())
    lengths = [p + r for p, r in methods.LENGTHS]

    def forward(params: Any) -> tuple[list[Any], list[Any]]:
        found = []
        for row, (length, (prompt, _)) in enumerate(zip(lengths, methods.LENGTHS, strict=True)):
            tokens = batch.tokens[row, :length]
            log_p = jax.nn.log_softmax(cases.logits(params, tokens[None])[0] / TEMPERATURE)
            at = np.arange(prompt, length)
            entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=1)
            found.append((log_p[at - 1, tokens[at]], entropy[at - 1]))
        return [x for x, _ in found], [x for _, x in found]

    @jax.jit
    def pulled(params: Any, cotangents: Any) -> Any:
        return jax.vjp(forward, params)[1](cotangents)[0]

    return jax.jit(forward)(cases.params()), pulled


def expected(name: str) -> Any:
    """The gradient of the loss, by autograd through the formula and each solution by itself."""
    found, pulled = _forward()
    cotangents = jax.jit(jax.grad(lambda x: _total(name, *x)))(found)
    return pulled(cases.params(), cotangents)
