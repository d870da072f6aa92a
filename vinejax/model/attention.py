"""Self-attention over whole sequences, and the choice between its implementations.

There are three kinds. 'xla' is plain matrix products and runs everywhere. 'splash' is the Pallas
kernel for TPU, and 'cudnn' is the fused kernel for NVIDIA GPU; neither writes scores to memory.
Decoding, one query at a time against a cache, has its own attention (`engine/shared_attention.py`).

Rows of a batch are split over the mesh's `data` and `fsdp`, heads over `tensor`. Each device
computes its part in a `shard_map`, so that no layout chosen elsewhere affects the scores.
"""

import dataclasses
import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from vinejax.model.sharding import ROWS, drop_uneven_axes, on_shards

# Checkpoint name of the arrays that a kernel saves for its backward pass.
SAVED_ARRAYS = "attention"
LANES = 128  # numbers in a TPU's vector; splash takes lengths and head widths in multiples of it
BLOCK = 512  # maximum number of queries, and of keys, in a step of splash; it divides the length
CUDNN_HEAD = 128  # widest head that cuDNN's kernel takes on every card; widths are multiples of 8
QUERY_BLOCK = 128  # minimum number of queries in a block of 'xla'
MAX_BLOCKS = 8  # maximum number of blocks of 'xla'; more save little, and each is compiled
KERNELS = {"tpu": "splash", "gpu": "cudnn"}  # platform -> kind of attention

Queries = Float[Array, "B T N H"]
Keys = Float[Array, "B T K H"]  # values have this shape too
Mask = Bool[Array, "B T S"]  # True where query t sees position s; S < T only in blocks
SegmentIds = Int[Array, "B T"]  # sequence of a packed row that each position belongs to
Lengths = Int[Array, " B"]  # number of tokens in rows of one sequence, padded on the right
Visibility = SegmentIds | Mask | Lengths  # the forms of the result of `visibility_for`


@dataclasses.dataclass(frozen=True)
class AttentionRule:
    """The positions that a query sees, and the scale and bound of its scores."""

    scale: float  # factor on q . k
    softcap: float | None = None  # c in the bounded scores c tanh(score / c)
    window: int | None = None  # number of positions that a query sees, its own included

    def scores(self, products: jax.Array) -> jax.Array:
        """The scores for products q . k: scaled and, if there is a `softcap`, bounded."""
        return softcap(products * self.scale, self.softcap)


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
    """cap * tanh(x / cap), which lies in (-cap, cap); x itself if `cap` is None."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def causal_mask(length: int, window: ArrayLike | None) -> Bool[Array, "T S"]:
    """True where query t sees position s, which is t or an earlier position in its window."""
    return seen_from(jnp.arange(length), length, window)


def seen_from(
    positions: Int[Array, "*B T"], length: int, window: ArrayLike | None
) -> Bool[Array, "*B T S"]:
    """True where the query at positions[t] sees the key at s, for s from 0 to `length` - 1.

    A query sees its own position and the earlier positions in its window, as in `causal_mask`.
    """
    distance = positions[..., None] - jnp.arange(length)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def visibility_for(
    kind: str,
    positions: Int[Array, "B T"],
    segment_ids: SegmentIds,
    seen_until: Int[Array, "B T"] | None,
    window: ArrayLike | None,
    single_rows: bool = False,
) -> Visibility:
    """The positions that each query sees, in the form that attention of this `kind` takes.

    The form is segment ids for 'splash', lengths for 'cudnn' with `single_rows` (see `Compute`),
    and otherwise a mask.

    Query t sees itself and the earlier places of its segment. If `seen_until` is given, segments
    share prefixes: query t sees itself and the places s < t with seen_until[s] > t. The distance
    that the window limits is then a difference of `positions`, and not of places.
    """
    if kind == "splash":
        assert seen_until is None, "splash attention cannot share prefixes"
        return segment_ids
    if kind == "cudnn" and single_rows and seen_until is None:
        return jnp.sum(segment_ids > 0, axis=1, dtype=jnp.int32)
    T = segment_ids.shape[1]
    if seen_until is None:
        return (segment_ids[:, :, None] == segment_ids[:, None, :]) & causal_mask(T, window)
    sees = (jnp.arange(T)[:, None] < seen_until[:, None, :]) & causal_mask(T, None)
    return sees if window is None else sees & in_window(positions, window)


def in_window(positions: Int[Array, "*B T"], window: ArrayLike) -> Bool[Array, "*B T S"]:
    """True where positions[t] - positions[s] is less than `window`."""
    return positions[..., :, None] - positions[..., None, :] < window


# --- the three kinds, on the arrays of one device


def self_attention(q: Queries, k: Keys, v: Keys, visible: Mask, rule: AttentionRule) -> Queries:
    """Grouped-query attention by plain matrix products, with scores and softmax in float32.

    `visible` must be causal. Queries are computed in blocks, and the keys of a block end where the
    block ends, so that little more than half of the T x T scores are computed.
    """
    T = q.shape[1]
    size = max(QUERY_BLOCK, -(-T // MAX_BLOCKS))

    def block(start: int) -> Queries:
        end = min(start + size, T)
        visibility = visible[:, start:end, :end]
        return attend_to_all(q[:, start:end], k[:, :end], v[:, :end], visibility, rule)

    return jnp.concatenate([block(start) for start in range(0, T, size)], axis=1)


def attend_to_all(
    q: Queries,
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    visible: Mask,
    rule: AttentionRule,
) -> Queries:
    """`self_attention` without blocks: computes the scores of all queries with all keys."""
    B, T, N, H = q.shape
    K = k.shape[2]
    # All queries of a KV head are the rows of one matrix, with the axes B and K in front. In other
    # orders, XLA's products on CPU copy their operands and take up to twice as long.
    rows = q.reshape(B, T, K, -1, H).transpose(0, 2, 3, 1, 4).reshape(B, K, -1, H)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    scores = jnp.einsum("bkqh,bksh->bkqs", rows, k, preferred_element_type=jnp.float32)
    scores = rule.scores(scores).reshape(B, K, -1, *visible.shape[1:])
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, -jnp.inf), axis=-1)
    weights = weights.reshape(B, K, rows.shape[2], -1).astype(v.dtype)
    mixed = jnp.einsum("bkqs,bksh->bkqh", weights, v).reshape(B, K, -1, T, H)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(B, T, N, H)


def splash_attention(
    q: Queries, k: Keys, v: Keys, segment_ids: SegmentIds | None, rule: AttentionRule
) -> Queries:
    """Causal attention by the splash kernel. A query sees only keys of its own segment.

    T must be a multiple of 128. The function pads head widths to a multiple of 128, which does not
    change the scores.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    T, N, H = q.shape[1:]
    causal, window = masks.CausalMask((T, T)), rule.window
    mask = causal if window is None else masks.LocalMask((T, T), (window - 1, 0), 0)
    axes = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    sizes = dict.fromkeys(axes, math.gcd(T, BLOCK))
    # The kernel takes one row: q, k and v as [N, T, H], and segment ids if the row is packed.
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * N),
        block_sizes=splash.BlockSizes(**sizes),
        attn_logits_soft_cap=rule.softcap,
        residual_checkpoint_name=SAVED_ARRAYS,
    )
    padding = ((0, 0), (0, 0), (0, 0), (0, -H % LANES))
    q, k, v = (jnp.pad(x, padding).swapaxes(1, 2) for x in (q * rule.scale, k, v))
    segments = None if segment_ids is None else splash.SegmentIds(segment_ids, segment_ids)
    return jax.vmap(kernel)(q, k, v, segments).swapaxes(1, 2)[..., :H]  # pyright: ignore


def cudnn_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    visibility: Mask | Lengths | None,
    rule: AttentionRule,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Queries:
    """Attention by cuDNN's fused kernel. `implementation` 'xla' is for tests without a GPU.

    If `visibility` is a mask, which becomes a bias [B, 1, T, T], the kernel computes all pairs.
    Otherwise, each row holds one right-padded sequence, and the kernel skips keys after a query or
    outside its window. With lengths, the kernel also skips padding, where outputs are 0.
    """
    attend = functools.partial(
        jax.nn.dot_product_attention, scale=rule.scale, implementation=implementation
    )
    if visibility is not None and visibility.ndim == 3:
        return attend(q, k, v, mask=visibility[:, None])
    window = None if rule.window is None else (rule.window - 1, 0)
    attend = functools.partial(attend, is_causal=True, local_window_size=window)
    if visibility is None:
        return attend(q, k, v)
    is_token = (jnp.arange(q.shape[1]) < visibility[:, None])[..., None, None]
    # cuDNN's documentation does not say which outputs and gradients it leaves beyond a row's
    # length. A NaN there would reach the gradients of all weights.
    q, k, v = (jnp.where(is_token, x, 0) for x in (q, k, v))
    mixed = attend(q, k, v, query_seq_lengths=visibility, key_value_seq_lengths=visibility)
    return jnp.where(is_token, mixed, 0)


def attend_on_device(
    kind: str, q: Queries, k: Keys, v: Keys, visibility: Visibility, rule: AttentionRule
) -> Queries:
    """Attention of the chosen `kind`, on the arrays of one device."""
    if kind == "splash":
        return splash_attention(q, k, v, visibility, rule)
    if kind == "cudnn":
        return cudnn_attention(q, k, v, visibility, rule)
    return self_attention(q, k, v, visibility, rule)


# --- the choice


def choose_kind(
    name: str, platform: str, rule: AttentionRule, length: int, head_dim: int, dtype: str
) -> str:
    """'xla', 'splash' or 'cudnn' for sequences of `length` tokens.

    `name` is the value of the setting model.attention. 'auto' chooses the kernel of the platform,
    or 'xla' if the kernel cannot compute the model or the length. If a named kernel cannot take the
    length, the result is also 'xla', because short sequences gain nothing from a kernel.
    """
    kind = KERNELS.get(platform, "xla") if name == "auto" else name
    is_ragged = kind == "splash" and length % LANES != 0
    return "xla" if is_ragged or why_impossible(kind, rule, head_dim, dtype) else kind


def why_impossible(kind: str, rule: AttentionRule, head_dim: int, dtype: str) -> str:
    """The reason why this kind of attention cannot compute the model; '' if it can."""
    if kind != "cudnn":
        return ""
    if dtype != "bfloat16":
        return f"needs model.compute_dtype = 'bfloat16', not {dtype!r}"
    if rule.softcap is not None:
        return "cannot bound the scores, as this model does"
    if head_dim % 8 or head_dim > CUDNN_HEAD:
        return f"needs heads of a multiple of 8 up to {CUDNN_HEAD}, not of {head_dim}"
    return ""


# --- whole sequences: on one device, and over a mesh


def causal_attention(
    name: str, platform: str, q: Queries, k: Keys, v: Keys, rule: AttentionRule
) -> Queries:
    """Attention over sequences with padding on the right, on the arrays of one device.

    `name` is the value of the setting model.attention. Outputs at padding are undefined.
    """
    B, T, _, H = q.shape
    kind = choose_kind(name, platform, rule, T, H, q.dtype.name)
    if kind == "splash":
        return splash_attention(q, k, v, None, rule)
    if kind == "cudnn":
        return cudnn_attention(q, k, v, None, rule)
    visible = jnp.broadcast_to(causal_mask(T, rule.window), (B, T, T))
    return attend_on_device(kind, q, k, v, visible, rule)


def attend_over_mesh(
    kind: str,
    mesh: Mesh | None,
    q: Queries,
    k: Keys,
    v: Keys,
    visibility: Visibility,
    rule: AttentionRule,
) -> Queries:
    """Attention on a mesh, with rows split over `data` and `fsdp`, and heads over `tensor`.

    If `tensor` does not divide the KV heads, the KV heads are repeated until it does.
    """
    if mesh is None or mesh.size == 1:
        return attend_on_device(kind, q, k, v, visibility, rule)
    heads = drop_uneven_axes(P(ROWS, None, "tensor", None), q.shape, mesh)
    parts = 1 if heads[2] is None else mesh.shape["tensor"]
    # N is a multiple of K and of the parts, and so of their least common multiple.
    repeats = math.lcm(k.shape[2], parts) // k.shape[2]
    if repeats > 1:
        k, v = (jnp.repeat(x, repeats, axis=2) for x in (k, v))
    rows = P(heads[0], *[None] * (visibility.ndim - 1))
    local = functools.partial(attend_on_device, kind, rule=rule)
    return on_shards(mesh, local, (heads, heads, heads, rows), heads)(q, k, v, visibility)
