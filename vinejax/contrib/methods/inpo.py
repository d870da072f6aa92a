"""INPO: a step of a game for preferences between right and wrong solutions.

    loss of a pair: (h - 1 / (2η))²    h = Δπ - (τ/η)·Δπ_ref - (1 - τ/η)·Δπ_old
    Δ: log-probability of the right solution minus that of the wrong one

Source: https://arxiv.org/abs/2407.00617, equation 7.

Departs: the rewards say which of two solutions is better, in the paper a model of preferences.
"""

import jax
import numpy as np

from vinejax.contrib.methods.settings import INPOConfig
from vinejax.methods.pairs import pair_method


def anchor(settings: INPOConfig, ref: np.ndarray, old: np.ndarray) -> np.ndarray:
    """The anchor per token, (τ/η)·logπ_ref + (1 - τ/η)·logπ_old: h is a difference of log-ratios
    to it."""
    return np.float32(settings.ratio) * ref + np.float32(1 - settings.ratio) * old


def loss(chosen: jax.Array, rejected: jax.Array, settings: INPOConfig) -> jax.Array:
    """The loss of each pair, f32[pairs], from log-ratios to the anchor, in nats."""
    return (chosen - rejected - 0.5 / settings.eta) ** 2


METHOD = pair_method(loss, INPOConfig, __doc__ or "", anchor)
