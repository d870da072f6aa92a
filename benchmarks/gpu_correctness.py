"""The device against the CPU of the same process, in float32: what `gpu.py` checks first.

One random model, the same weights and the same work on both. `highest` means that the comparison
runs under `jax.default_matmul_precision('highest')`: all matrix products in float32. The default of
a GPU since NVIDIA's Ampere is TF32, whose products keep 10 bits after the leading one; what that
changes is measured too, and has no limit.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from contenders import on_mesh
from packed_rows import episode
from runs import LOGPROB_TOLERANCE, SHARE_ALIKE, greedy_part, likeness
from workload import Run, Workload

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import Batch
from vinejax.learner.batch import collate
from vinejax.learner.packing import Passes
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.score import scores_of
from vinejax.learner.update import gradients
from vinejax.methods import vineppo
from vinejax.model.decoder import Decoder, Params, apply
from vinejax.model.sharding import mesh_over

LOGIT_TOLERANCE = 1e-4  # largest difference over the standard deviation of the logits
GRADIENT_TOLERANCE = 1e-3  # |g - g'| / |g'| of the weight that differs most
# Differences of the log-probabilities of the old and of the new policy: two are well inside PPO's
# clip of 0.2, two well outside, so that rounding cannot move a token over its bounds.
LOG_RATIOS = (-0.5, -0.05, 0.05, 0.5)


class Computed(NamedTuple):
    """What one device makes of the work."""

    logits: np.ndarray  # f32[B, T, V]
    logprobs: np.ndarray  # f32[B, T] of the batch's own tokens
    gradients: Params  # of the policy's loss, on the host
    greedy: Run
    sampled: Run


def compared(work: Workload, count: int, most: int) -> Iterator[dict[str, Any]]:
    """Figures of the first device against the last CPU device, each with its limit.

    `count` branches of at most `most` tokens are decoded, greedily and at the work's temperature.
    """
    device, cpu = jax.devices()[0], jax.devices("cpu")[-1]
    greedy = greedy_part(work, count, most)
    sampled = dataclasses.replace(greedy, sampling=work.sampling)
    batch = batch_of(work)
    with jax.default_matmul_precision("highest"):
        expected = compute(work, batch, greedy, sampled, cpu)
        batch = with_advantages(batch, expected.logprobs)
        expected = expected._replace(gradients=policy_gradient(work, batch, cpu))
        made = compute(work, batch, greedy, sampled, device)
        made = made._replace(gradients=policy_gradient(work, batch, device))
    yield from differences(made, expected)
    if device.platform == "cpu":
        return  # whose default is float32 as well
    found = logits_on(work, batch, device)
    gradient = policy_gradient(work, batch, device)
    for name, value in (
        ("logits", logit_difference(found, expected.logits)),
        ("gradients", gradient_difference(gradient, expected.gradients)),
    ):
        yield {"name": name, "value": value, "unit": "relative", "precision": "default"}


def paths_compared(work: Workload, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Figures of each way to compute the attention of decoding against the first, in float32.

    A way that the device does not have is left out, with the reason as its unit.
    """
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    expected = None
    with jax.default_matmul_precision("highest"):
        for name in names:
            more = {"path": name, "precision": "highest"}
            try:
                made = on_mesh(work, mesh, name)()
            except (ConfigError, ValueError) as error:
                yield {"name": "left out", "value": None, "unit": str(error)} | more
                continue
            if expected is None:
                expected = made
            else:
                for figure in _likeness_figures("drawn", made, expected):
                    yield figure | more


def differences(made: Computed, expected: Computed) -> Iterator[dict[str, Any]]:
    """The figures with limits. A share has a lower limit, `at_least`; a difference an upper one."""
    highest: dict[str, Any] = {"precision": "highest"}
    yield highest | {
        "name": "logits",
        "value": logit_difference(made.logits, expected.logits),
        "unit": "relative",
        "at_most": LOGIT_TOLERANCE,
    }
    yield highest | {
        "name": "log-probabilities",
        "value": float(np.max(np.abs(made.logprobs - expected.logprobs))),
        "unit": "nats",
        "at_most": LOGPROB_TOLERANCE,
    }
    for name in ("greedy", "sampled"):
        for figure in _likeness_figures(name, getattr(made, name), getattr(expected, name)):
            yield highest | figure
    yield highest | {
        "name": "gradients",
        "value": gradient_difference(made.gradients, expected.gradients),
        "unit": "relative",
        "at_most": GRADIENT_TOLERANCE,
    }


def _likeness_figures(name: str, made: Run, expected: Run) -> Iterator[dict[str, Any]]:
    found = likeness(made, expected)
    yield {
        "name": f"{name} tokens",
        "value": found.share if found.has_same_lengths else 0.0,
        "unit": "share of branches with equal ids",
        "at_least": SHARE_ALIKE,
    }
    yield {
        "name": f"{name} log-probabilities",
        "value": found.gap,
        "unit": "nats",
        "at_most": LOGPROB_TOLERANCE,
    }


def batch_of(work: Workload) -> Batch:
    """The trunks of the work as solutions whose prompt is their first token."""
    episodes = [episode(trunk[:1], trunk[1:]) for trunk in work.trunks]
    return collate(episodes, rows=len(episodes))


def with_advantages(batch: Batch, logprobs: np.ndarray) -> Batch:
    """The batch with random advantages, and an old policy near the one of `logprobs` [B, T]."""
    rng = np.random.default_rng(0)
    shape = batch.tokens.shape
    return batch._replace(
        advantages=rng.standard_normal(shape).astype(np.float32),
        old_logprobs=(logprobs - rng.choice(LOG_RATIOS, shape)).astype(np.float32),
        ref_logprobs=(logprobs - rng.normal(0, 0.1, shape)).astype(np.float32),
    )


def compute(
    work: Workload, batch: Batch, greedy: Workload, sampled: Workload, device: Any
) -> Computed:
    """All but the gradients, on one device."""
    mesh = mesh_over((1, 1, 1), [device])
    with jax.default_device(device):
        return Computed(
            logits=logits_on(work, batch, device),
            logprobs=scores_of(
                work.model,
                jax.device_put(work.params, device),
                batch,
                temperature=1.0,
                passes=Passes(len(batch.tokens)),
            ),
            gradients={},
            greedy=on_mesh(greedy, mesh)(),
            sampled=on_mesh(sampled, mesh)(),
        )


@functools.partial(jax.jit, static_argnames="model")
def _logits(model: Decoder, params: Params, tokens: np.ndarray) -> jax.Array:
    return apply(model, params, tokens)


def logits_on(work: Workload, batch: Batch, device: Any) -> np.ndarray:
    """f32[B, T, V] by one device."""
    with jax.default_device(device):
        params = jax.device_put(work.params, device)
        return np.asarray(_logits(work.model, params, batch.tokens))


_gradients = jax.jit(gradients, static_argnames="objective")


def policy_gradient(work: Workload, batch: Batch, device: Any) -> Params:
    """The gradient of VinePPO's loss on the batch, by one device; on the host."""
    with jax.default_device(device):
        params = jax.device_put(work.params, device)
        found, _ = _gradients(objective_of(work.model, len(batch.tokens)), params, batch)
        return jax.device_get(found)


def objective_of(model: Decoder, rows: int) -> PolicyObjective:
    """VinePPO's objective at its default settings, for minibatches of `rows`."""
    cfg = vineppo.METHOD.resolve(Config())
    ppo = dataclasses.replace(cfg.ppo, minibatch=rows)
    return vineppo.METHOD.objective(model, dataclasses.replace(cfg, ppo=ppo))


def logit_difference(made: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the standard deviation of the expected logits."""
    return float(np.max(np.abs(made - expected)) / np.std(expected))


def gradient_difference(made: Params, expected: Params) -> float:
    """The largest |g - g'| / |g'| over the weights, in the Euclidean norm."""
    pairs = zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True)
    return max(float(np.linalg.norm(g - e) / np.linalg.norm(e)) for g, e in pairs)
