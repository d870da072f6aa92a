"""The window, which holds the keys and values of the trunks that are resident on a shard.

A window has W rows of S columns. A prefill writes trunks into rows; decoding only reads them. A row
can be copied, so that more slots read a trunk than one row has lanes. Trunks are padded on the
right, where no branch reads.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vinejax.engine import split
from vinejax.engine.layout import WINDOW, JoinedKV, SeparateKV
from vinejax.engine.split import SHARDS, Weights
from vinejax.engine.unpadded_prefill import CompactPlaces, with_padding, without_padding
from vinejax.model import attention
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import on_shards, platform_of


class Window(NamedTuple):
    """Keys and values of the resident trunks in each layer, in the form that attention reads."""

    layers: list[SeparateKV | JoinedKV]  # one of the two forms in all layers


class WindowRows(NamedTuple):
    """For each row, its items that no slot has taken yet.

    These are the entries `next` .. `end` - 1 of the shard's queue.
    """

    next: jax.Array  # i32[W]
    end: jax.Array  # i32[W]
    loaded: jax.Array  # i32[W] number of jobs that entered any row before this row's job


class EnteringTrunks(NamedTuple):
    """Trunks that are written into rows of the window."""

    row: jax.Array  # i32[B] row that each trunk enters; W for padding of the batch
    serves: WindowRows  # items that these rows serve afterwards; fields have B entries


class KnownTrunk(NamedTuple):
    """For each of B trunks, its first columns that need not be computed.

    A row of the window already has the keys and values of these columns.
    """

    row: jax.Array  # i32[B] row with these columns; the trunk may enter another row
    columns: jax.Array  # i32[B] number of these columns

    def joined(
        self, layer: SeparateKV | JoinedKV, lengths: Int[Array, " B"], k: jax.Array, v: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The keys and values [B, S, K, H] of the rows `row`, with `k` and `v` written into them.

        `k` and `v` come directly after the known columns.
        """
        T, old = k.shape[1], layer.of_rows(self.row)
        trunk, past_end = jnp.arange(k.shape[0])[:, None], old[0].shape[1]
        columns = jnp.where(jnp.arange(T) < lengths[:, None], self.positions(T), past_end)
        new = [x.at[trunk, columns].set(n, mode="drop") for x, n in zip(old, (k, v), strict=True)]
        return new[0], new[1]

    def positions(self, T: int) -> Int[Array, "B T"]:
        """The positions of T new tokens, which follow the known columns."""
        return self.columns[:, None] + jnp.arange(T)


class PrefillResult(NamedTuple):
    """The results of a prefill of B trunks."""

    window: Window
    rows: WindowRows
    logprobs: Float[Array, "B T"] | None  # of the trunks' own tokens; None without a temperature
    hidden: Float[Array, "B T D"] | None  # before the final norm; None unless they are kept


@functools.partial(
    jax.jit,
    static_argnames=("model", "mesh", "temperature", "keeps_hidden"),
    donate_argnames=("window", "rows"),
)
def prefill(
    model: Decoder,
    mesh: Mesh,
    temperature: float | None,
    weights: Weights,
    window: Window,
    rows: WindowRows,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    entering: EnteringTrunks,
    keeps_hidden: bool = False,
    known: KnownTrunk | None = None,
    compact_places: CompactPlaces | None = None,
) -> PrefillResult:
    """Computes B trunks and writes them into the rows that they enter.

    `window` and `rows` are donated.
    `lengths` are the trunks' lengths, 0 for padding of the batch. Padding of tokens is on the
    right. With a `temperature` the result has the log-probabilities of the trunks' own tokens, of
    which entry t belongs to tokens[:, t] and entry 0 is 0. With `keeps_hidden` the result has the
    final hidden states. If `known` is given, `tokens` come after the known columns and attend to
    these columns, too. In this case whole rows are written, `temperature` must be None, and
    `keeps_hidden` must be False. Tokens are computed at their `compact_places`; if `compact_places`
    is None, all positions are computed.
    """
    part, axis = split.own_part(model, mesh), split.vocab_axis(model, mesh)

    def one_shard(
        weights: Weights,
        window: Window,
        rows: WindowRows,
        tokens: jax.Array,
        lengths: jax.Array,
        entering: EnteringTrunks,
        known: KnownTrunk | None,
        compact_places: CompactPlaces | None,
    ) -> PrefillResult:
        trunk_kv, x = _trunk_kv(
            part, axis, platform_of(mesh), weights, tokens, lengths,
            compact_places=compact_places, window=window, known=known,
        )  # fmt: skip
        layers = zip(window.layers, trunk_kv, strict=True)
        window = Window([old.with_rows(entering.row, *kv) for old, kv in layers])
        rows = _serve(rows, entering)
        logprobs, hidden = None, with_padding(compact_places, x) if keeps_hidden else None
        if temperature is not None:
            # The definition of log-probabilities in `learner/score.py`.
            following = without_padding(compact_places, jnp.roll(tokens, -1, axis=1))
            scale = temperature or 1.0
            logprobs = part.scores_of(weights, x, following, None, scale, axis).logprob
            logprobs = jnp.pad(with_padding(compact_places, logprobs)[:, :-1], ((0, 0), (1, 0)))
        return PrefillResult(window, rows, logprobs, hidden)

    in_specs = (split.weight_specs(model, mesh, weights), WINDOW.spec, *[SHARDS] * 6)
    out_specs = PrefillResult(WINDOW.spec, SHARDS, SHARDS, SHARDS)  # pyright: ignore
    run = on_shards(mesh, one_shard, in_specs, out_specs)
    result = run(weights, window, rows, tokens, lengths, entering, known, compact_places)
    return result._replace(logprobs=split.readable(mesh, result.logprobs))


def _serve(rows: WindowRows, entering: EnteringTrunks) -> WindowRows:
    """The rows, with new items where trunks enter."""
    return jax.tree.map(
        lambda old, new: old.at[entering.row].set(new, mode="drop"), rows, entering.serves
    )


def _trunk_kv(
    model: Decoder,
    axis: str | None,
    platform: str,
    weights: Weights,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    compact_places: CompactPlaces | None,
    window: Window,
    known: KnownTrunk | None,
) -> tuple[list[tuple[jax.Array, jax.Array]], jax.Array]:
    """Each layer's keys and values [B, T, K, H], and the final hidden states without padding.

    With `known`, keys and values are [B, S, K, H]. They then have the known columns of `window`,
    followed by the computed columns.
    """
    B, T = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(T), (B, T)) if known is None else known.positions(T)
    x = split.embed(model, weights, without_padding(compact_places, tokens), axis)
    trunk_kv = []
    for i, layer in enumerate(weights["layers"]):

        @jax.named_scope("attention")
        def attend(q: jax.Array, k: jax.Array, v: jax.Array, i: int = i):
            name, rule = model.compute.attention, model.cfg.rule(i)
            q, k, v = (
                with_padding(compact_places, q),
                with_padding(compact_places, k),
                with_padding(compact_places, v),
            )
            if known is None:
                mixed = attention.causal_attention(name, platform, q, k, v, rule)
            else:
                k, v = known.joined(window.layers[i], lengths, k, v)
                seen = attention.seen_from(positions, k.shape[1], rule.window)
                mixed = attention.attend_to_all(q, k, v, seen, rule)
            return without_padding(compact_places, mixed), (k, v)

        x, kv = model.block(layer, x, without_padding(compact_places, positions), attend, i)
        trunk_kv.append(kv)
    return trunk_kv, x


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames=("window", "rows"))
def copy_rows(
    mesh: Mesh, window: Window, rows: WindowRows, source: Int[Array, " B"], entering: EnteringTrunks
) -> tuple[Window, WindowRows]:
    """Copies the trunks in the rows `source` into the rows that the trunks enter.

    `window` and `rows` are donated. All sources are read before a row is written.
    """

    def one_shard(window: Window, rows: WindowRows, source: jax.Array, entering: EnteringTrunks):
        window = jax.tree.map(lambda x: x.at[entering.row].set(x[source], mode="drop"), window)
        return window, _serve(rows, entering)

    in_specs, out_specs = (WINDOW.spec, SHARDS, SHARDS, SHARDS), (WINDOW.spec, SHARDS)
    return on_shards(mesh, one_shard, in_specs, out_specs)(window, rows, source, entering)
