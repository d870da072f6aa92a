"""The window: trunks that are resident on a shard, computed once and then only read.

P rows of T columns. Prefill writes trunks into rows; a row can be copied, so that more slots read
the trunk than one row has lanes for. Padding is on the right, where no branch ever looks.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vinejax.model import attention
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import platform_of
from vinejax.rollout.sampling import log_softmax, take
from vinejax.rollout.split import CACHE, SHARDS, embed, own_part, readable, vocab_axis, weight_specs


class Window(NamedTuple):
    """Keys and values of the resident trunks, one entry a layer."""

    keys: list[jax.Array]  # [P, K, T, H]
    values: list[jax.Array]  # [P, K, T, H]


class Rows(NamedTuple):
    """What each row of the window still serves: items next .. end - 1 of the queue."""

    next: jax.Array  # i32[P]
    end: jax.Array  # i32[P]
    loaded: jax.Array  # i32[P] how many rows were loaded before it


@functools.partial(
    jax.jit,
    static_argnames=("model", "mesh", "temperature"),
    donate_argnames=("window", "rows"),
)
def prefill(
    model: Decoder, mesh: Mesh, temperature: float | None, params: Any,
    window: Window, rows: Rows, tokens: Int[Array, "B t"], into: Int[Array, " B"], served: Rows,
) -> tuple[Window, Rows, Any]:  # fmt: skip
    """B trunks into rows `into` of the window (P: nowhere), which then serve `served`.

    With a `temperature` also the trunks' own token log-probabilities, f32[B, t], entry t that of
    tokens[:, t], entry 0 being 0. Padding is on the right.
    """

    part, axis = own_part(model, mesh), vocab_axis(model, mesh)

    def one_shard(
        params: Any, window: Window, rows: Rows, tokens: Any, into: Any, served: Rows
    ) -> tuple[Window, Rows, Any]:
        keys, values, x = _trunk_kv(part, axis, platform_of(mesh), params, tokens)
        length = tokens.shape[1]

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[into, :, :length].set(new.transpose(0, 2, 1, 3), mode="drop")

        window = Window(
            [put(*x) for x in zip(window.keys, keys, strict=True)],
            [put(*x) for x in zip(window.values, values, strict=True)],
        )
        rows = _serve(rows, into, served)
        if temperature is None:
            return window, rows, None
        return window, rows, _own_logprobs(part, axis, params, x, tokens, temperature)

    window, rows, logprobs = jax.shard_map(
        one_shard, mesh=mesh, check_vma=False,
        in_specs=(weight_specs(model, mesh), CACHE, SHARDS, SHARDS, SHARDS, SHARDS),
        out_specs=(CACHE, SHARDS, SHARDS),
    )(params, window, rows, tokens, into, served)  # fmt: skip
    return window, rows, None if logprobs is None else readable(mesh, logprobs)


def _serve(rows: Rows, into: Int[Array, " B"], served: Rows) -> Rows:
    return jax.tree.map(lambda old, new: old.at[into].set(new, mode="drop"), rows, served)


def _trunk_kv(
    model: Decoder, axis: str | None, platform: str, params: Any, tokens: Int[Array, "B t"]
) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """Each layer's keys and values [B, t, K, H], and the final hidden states."""
    cfg = model.cfg
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    x = embed(model, params, tokens, axis)
    keys, values = [], []
    for i, layer in enumerate(params["layers"]):
        rule = dataclasses.replace(cfg.rule, window=cfg.window(i))

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, rule: attention.AttentionRule = rule):
            name = model.compute.attention
            return attention.causal_attention(name, platform, q, k, v, rule), (k, v)

        x, (k, v) = model.block(layer, x, positions, attend, i)
        keys.append(k)
        values.append(v)
    return keys, values, x


def _own_logprobs(
    model: Decoder, axis: str | None, params: Any, x: jax.Array, tokens: Int[Array, "B t"],
    temperature: float,
) -> Float[Array, "B t"]:  # fmt: skip
    """As `learner/score.py` defines them; trunk by trunk, for the logits are large."""

    def one(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden, ids = row
        logits = model.logits(params, hidden[:-1]) / (temperature or 1.0)
        return take(log_softmax(logits, axis), ids[1:], axis)

    return jnp.pad(lax.map(one, (x, tokens)), ((0, 0), (1, 0)))


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames=("window", "rows"))
def copy_rows(
    mesh: Mesh, window: Window, rows: Rows, source: Int[Array, " B"], into: Int[Array, " B"],
    served: Rows,
) -> tuple[Window, Rows]:  # fmt: skip
    """Rows `into` (P: nowhere) become copies of rows `source` that serve items of their own."""

    def one_shard(
        window: Window, rows: Rows, source: Any, into: Any, served: Rows
    ) -> tuple[Window, Rows]:
        window = jax.tree.map(lambda x: x.at[into].set(x[source], mode="drop"), window)
        return window, _serve(rows, into, served)

    return jax.shard_map(
        one_shard, mesh=mesh, check_vma=False,
        in_specs=(CACHE, SHARDS, SHARDS, SHARDS, SHARDS), out_specs=(CACHE, SHARDS),
    )(window, rows, source, into, served)  # fmt: skip
