"""Rotary position embedding (RoPE): its frequencies, and the rotation of queries and keys.

The host computes frequencies in float64, and programs contain them as float32 constants. The kinds
are those of Hugging Face's `rope_type` (transformers, modeling_rope_utils.py). Their sources are:
linear (arXiv 2306.15595), yarn (2309.00071), longrope (2402.13753), llama3 (Llama 3.1), dynamic
(NTK).
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Kinds whose frequencies depend on the length of the sequence if it exceeds the pretraining length.
# We do not support such lengths: all keys of a cache would have to be rotated again.
BY_LENGTH = ("dynamic", "longrope")


@dataclasses.dataclass(frozen=True)
class Rope:
    """The parameters of RoPE, with the names and meanings of Hugging Face's `rope_parameters`.

    The frequencies of the kinds in BY_LENGTH change with the length of a sequence. For these kinds,
    `max_position_embeddings` is the checkpoint's value, while `DecoderConfig.context` is at most
    `original_max_position_embeddings`. For any other kind, `max_position_embeddings` is 0.
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
    attention_factor: float | None = None  # None: computed from `factor`
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def rotary_dim(self, head_dim: int) -> int:
        """The number of channels of a head that are rotated, which are the first channels."""
        return int(head_dim * self.partial_rotary_factor)

    def frequencies(self, head_dim: int) -> np.ndarray:
        """f32[rotary_dim / 2]: the angle per position, in radians, of each pair of channels."""
        dim = self.rotary_dim(head_dim)
        plain = self.rope_theta ** -(np.arange(0, dim, 2) / dim)
        if self.rope_type == "linear":
            plain = plain / self.factor
        elif self.rope_type == "longrope":
            plain = plain / np.array(self.short_factor)
        elif self.rope_type in ("llama3", "yarn"):
            is_llama3 = self.rope_type == "llama3"
            share = self._llama3_share(plain) if is_llama3 else self._yarn_share(dim)
            plain = plain * (share + (1 - share) / self.factor)
        return plain.astype(np.float32)

    def _llama3_share(self, plain: np.ndarray) -> np.ndarray:
        """The share of each frequency that is kept; `factor` divides the rest of the frequency.

        The share rises from 0 for slow rotations to 1 for fast rotations.
        """
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        return np.clip((turns - low) / (high - low), 0, 1)

    def _yarn_share(self, dim: int) -> np.ndarray:
        """The share of each frequency that is kept; `factor` divides the rest of the frequency.

        The share falls linearly, over a range of channels, from 1 to 0.
        """

        def channel(turns: float) -> float:
            """The channel, as a real number, that makes `turns` turns in the original context."""
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
        """The factor on cosines and sines, which sharpens attention in extended contexts."""
        if self.rope_type not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        log_factor = math.log(self.factor)
        if self.rope_type == "longrope":
            return math.sqrt(1 + log_factor / math.log(self.original_max_position_embeddings))
        if self.mscale and self.mscale_all_dim:
            numerator = 0.1 * self.mscale * log_factor + 1
            return numerator / (0.1 * self.mscale_all_dim * log_factor + 1)
        return 0.1 * log_factor + 1


def cos_and_sin(
    positions: Int[Array, "*B 1"],
    frequencies: Float[Array | np.ndarray, " pairs"],
    scale: Float[Array | np.ndarray, ""] | float = 1.0,
) -> tuple[Float[Array, "*B pairs"], Float[Array, "*B pairs"]]:
    """The scaled cosines and sines by which pairs of channels are rotated.

    Angles are float32, because bfloat16 would round position 257 to 256.
    """
    angles = positions.astype(jnp.float32) * frequencies
    return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def rotate(
    x: Float[Array, "B T heads H"],
    positions: Int[Array, "B T"],
    frequencies: Float[Array | np.ndarray, " pairs"],
    scale: Float[Array | np.ndarray, ""] | float = 1.0,
) -> Float[Array, "B T heads H"]:
    """x with its first 2 * pairs channels rotated. Channels i and i + pairs are a pair."""
    pairs = frequencies.shape[0]
    if not pairs:
        return x
    cos, sin = cos_and_sin(positions[..., None, None], frequencies, scale)
    first, second, rest = jnp.split(x.astype(jnp.float32), [pairs, 2 * pairs], axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
