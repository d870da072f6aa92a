"""Attention of whole sequences to themselves: the one place that chooses how it is computed.

'xla' is plain matrix products, and goes everywhere; 'splash' is the Pallas kernel for TPU and
'cudnn' the fused one for NVIDIA GPU, both of which never write the scores to memory. Decoding, one
query at a time against a cache, has its own (`rollout/attention.py`).

The rows of a batch are split over the mesh's `data` and `fsdp`, the heads over `tensor`; each place
attends by itself in a `shard_map`, so that no layout chosen elsewhere can leak into the scores.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from vinejax.model.sharding import ROWS, fit

SAVED = "attention"  # the name of what a kernel leaves for its backward pass
LANES = 128  # of a TPU's vector: splash wants lengths and head widths in multiples of it
BLOCK = 512  # queries, and keys, of one step of splash: the largest that divides the length
CUDNN_HEAD = 128  # the widest head that its kernel takes on every card, in multiples of 8
BY_PLATFORM = {"tpu": "splash", "gpu": "cudnn"}


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a query sees, and how its scores are made."""

    scale: float  # of q . k
    softcap: float | None = None  # c: scores become c tanh(score / c)
    window: int | None = None  # positions that a query sees, itself included; None: all before it


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
    """cap * tanh(x / cap): x bounded to (-cap, cap); None leaves it."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def before(length: int, window: ArrayLike | None) -> Bool[Array, "T T"]:
    """Whether query t sees position s: itself and those before it, as far as a window goes."""
    distance = jnp.arange(length)[:, None] - jnp.arange(length)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


# --- the three, of the arrays of one place


def self_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    visible: Bool[Array, "B T T"],
    scale: float,
    cap: float | None = None,
) -> Float[Array, "B T N H"]:
    """Grouped-query attention over the sequence itself; scores and softmax in float32.

    Scores are q . k times `scale`, bounded by `cap` where the model has one.
    """
    B, T, N, H = q.shape
    grouped = q.reshape(B, T, k.shape[2], -1, H)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], softcap(scores * scale, cap), -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(B, T, N, H)


def splash_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    segment_ids: Int[Array, "B T"] | None,
    rule: Rule,
) -> Float[Array, "B T N H"]:
    """As `self_attention` where a position sees what is before it in its own segment.

    T is a multiple of 128. Heads are padded to as many lanes, which changes no score.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    T, N, H = q.shape[1:]
    wide = ((0, 0), (0, 0), (0, 0), (0, -H % LANES))
    q, k, v = (jnp.pad(x, wide).swapaxes(1, 2) for x in (q * rule.scale, k, v))
    kernel = _splash_kernel(N, T, rule.window, rule.softcap)
    if segment_ids is None:
        mixed = jax.vmap(kernel)(q, k, v)
    else:
        mixed = jax.vmap(kernel)(q, k, v, splash.SegmentIds(segment_ids, segment_ids))
    return mixed.swapaxes(1, 2)[..., :H]


def _splash_kernel(num_heads: int, length: int, window: int | None, cap: float | None) -> Callable:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (length, length)
    mask = masks.CausalMask(shape) if window is None else masks.LocalMask(shape, (window - 1, 0), 0)
    size = math.gcd(length, BLOCK)
    return splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * num_heads),
        block_sizes=splash.BlockSizes(
            block_q=size, block_kv=size, block_q_dkv=size, block_kv_dkv=size,
            block_q_dq=size, block_kv_dq=size,
        ),
        attn_logits_soft_cap=cap,
        residual_checkpoint_name=SAVED,
    )  # fmt: skip


def cudnn_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    visible: Bool[Array, "B T T"],
    scale: float,
) -> Float[Array, "B T N H"]:
    """As `self_attention`, without a bound on the scores, in bfloat16."""
    return jax.nn.dot_product_attention(
        q, k, v, mask=visible[:, None], scale=scale, implementation="cudnn"
    )


def attend(
    kind: str,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    seen: Int[Array, "B T"] | Bool[Array, "B T T"],
    rule: Rule,
) -> Float[Array, "B T N H"]:
    """By the `kind` that was chosen. `seen`: segment ids for 'splash', a mask for the others."""
    if kind == "splash":
        return splash_attention(q, k, v, seen, rule)
    if kind == "cudnn":
        return cudnn_attention(q, k, v, seen, rule.scale)
    return self_attention(q, k, v, seen, rule.scale, rule.softcap)


# --- the choice


def choose(name: str, platform: str, rule: Rule, length: int, head_dim: int, dtype: str) -> str:
    """'xla', 'splash' or 'cudnn' for sequences of `length` tokens; `name` is model.attention.

    What 'auto' would take but the model or the length forbids is 'xla', and so is a length that a
    named kernel cannot take: short sequences gain nothing from it.
    """
    kind = BY_PLATFORM.get(platform, "xla") if name == "auto" else name
    is_odd = kind == "splash" and length % LANES != 0
    return "xla" if is_odd or refusal(kind, rule, head_dim, dtype) else kind


def refusal(kind: str, rule: Rule, head_dim: int, dtype: str) -> str:
    """Why a model cannot be computed so, or ''."""
    if kind != "cudnn":
        return ""
    if dtype != "bfloat16":
        return f"needs model.compute_dtype = 'bfloat16', not {dtype!r}"
    if rule.softcap is not None:
        return "knows no bound on the scores, which this model has"
    if head_dim % 8 or head_dim > CUDNN_HEAD:
        return f"needs heads of a multiple of 8 up to {CUDNN_HEAD}, not of {head_dim}"
    return ""


# --- whole sequences: of one place, and over a mesh


def causal(
    name: str,
    platform: str,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    rule: Rule,
) -> Float[Array, "B T N H"]:
    """Sequences that are padded on the right, on the place that has them; `name`: as of `choose`.

    What the padding's own positions come to means nothing.
    """
    B, T, _, H = q.shape
    kind = choose(name, platform, rule, T, H, q.dtype.name)
    if kind == "splash":
        return splash_attention(q, k, v, None, rule)
    return attend(kind, q, k, v, jnp.broadcast_to(before(T, rule.window), (B, T, T)), rule)


def over_mesh(
    kind: str,
    mesh: Mesh | None,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    seen: Int[Array, "B T"] | Bool[Array, "B T T"],
    rule: Rule,
) -> Float[Array, "B T N H"]:
    """As `attend`, of whole arrays: rows over `data` and `fsdp`, heads over `tensor`.

    KV heads that do not divide over `tensor` are repeated until they do.
    """
    if mesh is None or mesh.size == 1:
        return attend(kind, q, k, v, seen, rule)
    heads = fit(P(ROWS, None, "tensor", None), q.shape, mesh)
    places = 1 if heads[2] is None else mesh.shape["tensor"]
    # N is a multiple of K and of the places, so of their least common multiple.
    repeats = math.lcm(k.shape[2], places) // k.shape[2]
    if repeats > 1:
        k, v = (jnp.repeat(x, repeats, axis=2) for x in (k, v))
    rows = P(heads[0], *[None] * (seen.ndim - 1))
    local = functools.partial(attend, kind, rule=rule)
    return jax.shard_map(
        local, mesh=mesh, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False
    )(q, k, v, seen)
