"""Rotary position embedding: how fast each pair of a head's channels turns, and the turning itself.

Frequencies are made on the host in float64 and used as float32 constants. The kinds are those of
Hugging Face's `rope_type` (transformers, modeling_rope_utils.py) and the work behind them: linear
(arXiv 2306.15595), yarn (2309.00071), longrope (2402.13753), llama3 (Llama 3.1), dynamic (NTK).
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# These turn by the length of the whole sequence once it is longer than what the model was
# pretrained at: all keys of a cache would have to be turned again. Up to there they are fixed.
BY_LENGTH = ("dynamic", "longrope")


@dataclasses.dataclass(frozen=True)
class Rope:
    """Fields and their meaning as in Hugging Face's `rope_parameters`.

    `max_position_embeddings` is what the checkpoint claims for a kind of BY_LENGTH, where
    `DecoderConfig.context` ends at `original_max_position_embeddings`; 0 elsewhere.
    """

    rope_type: str = "default"
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 1.0
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    attention_factor: float | None = None  # None: from `factor`
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def rotary_dim(self, head_dim: int) -> int:
        """How many of a head's channels turn, from the first; the others pass."""
        return int(head_dim * self.partial_rotary_factor)

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Radians a position, f32[rotary_dim / 2]."""
        dim = self.rotary_dim(head_dim)
        plain = self.rope_theta ** -(np.arange(0, dim, 2) / dim)
        if self.rope_type == "linear":
            plain = plain / self.factor
        elif self.rope_type == "longrope":
            plain = plain / np.array(self.short_factor)
        elif self.rope_type in ("llama3", "yarn"):
            kept = self._kept_llama3(plain) if self.rope_type == "llama3" else self._kept_yarn(dim)
            plain = plain * (kept + (1 - kept) / self.factor)
        return plain.astype(np.float32)

    def _kept_llama3(self, plain: np.ndarray) -> np.ndarray:
        """Share of each frequency that stays: 0 where it turns slowly, 1 where fast."""
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        return np.clip((turns - low) / (high - low), 0, 1)

    def _kept_yarn(self, dim: int) -> np.ndarray:
        """As for llama3, on a ramp that is linear in the channel."""

        def channel(turns: float) -> float:
            """The channel that turns so many times within the original context."""
            span = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return dim * math.log(span) / (2 * math.log(self.rope_theta))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        return 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)

    def scale(self) -> float:
        """What cosines and sines are multiplied by: attention is sharpened as contexts grow."""
        if self.rope_type not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        grown = math.log(self.factor)
        if self.rope_type == "longrope":
            return math.sqrt(1 + grown / math.log(self.original_max_position_embeddings))
        if self.mscale and self.mscale_all_dim:
            return (0.1 * self.mscale * grown + 1) / (0.1 * self.mscale_all_dim * grown + 1)
        return 0.1 * grown + 1


def rotate(
    x: Float[Array, "B T heads H"],
    positions: Int[Array, "B T"],
    frequencies: Float[Array | np.ndarray, " R"],
    scale: Float[Array | np.ndarray, ""] | float = 1.0,
) -> Float[Array, "B T heads H"]:
    """Turn the first 2R channels, the halves against each other (Hugging Face's layout).

    Angles stay in float32: bfloat16 rounds position 257 to 256, and their sines are far apart.
    """
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles) * scale, jnp.sin(angles) * scale
    half = frequencies.shape[0]
    first, second, rest = jnp.split(x.astype(jnp.float32), [half, 2 * half], axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
