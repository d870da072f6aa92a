"""Repeats: the tokens that a branch would draw and that its trunk has already.

A draw belongs to its place in the sequence, and the hidden states of a trunk's prefill give the
logits at all of its places. So they tell, without decoding, whether a branch draws its trunk's next
token, and the one after it, and so on. The branch then begins where it first differs, its repeat is
put in front of what it draws there. With equal logits the tokens are those of decoding it all.

A branch decodes its last token in any case: its repeat ends before a token that would end it, at
EOS, at a stop string or by its budget.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vinejax.core.settings import SampleConfig
from vinejax.engine import split
from vinejax.engine.branches import Work
from vinejax.engine.collect import Drawn
from vinejax.engine.decode import Queue, uniforms
from vinejax.engine.memory import put_on_shards
from vinejax.engine.sampling import (
    FORMS,
    Draws,
    draws_of,
    is_drawn,
    kept_probs,
    log_softmax,
    take_token,
)
from vinejax.engine.split import REPLICATED, SHARDS, Weights
from vinejax.engine.stats import EngineStats
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import on_shards, platform_of

REACH = 64  # tokens of a trunk that are prefilled after its last branch: most repeats end there
ITEMS = 512  # compared at a time; divides the sizes of queues


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """Everything beside shapes that a search is compiled for."""

    model: Decoder
    mesh: Mesh
    sampling: SampleConfig  # only temperature, top-p and top-k are used
    eos_ids: tuple[int, ...]
    places: int  # whose logits are computed at a time


class Searched(NamedTuple):
    """On one shard, trunks that were prefilled together, and the items that may repeat them."""

    first: jax.Array  # i32[B] the first position of an item; the length where there is none
    length: jax.Array  # i32[B]
    item: jax.Array  # i32[Q] of all trunks, one trunk's after the other's; Q where it is padded
    place: jax.Array  # i32[Q] the item's trunk among the B


class Found(NamedTuple):
    """What the host reads of a search."""

    position: jax.Array  # i32[Z * Q] where each item of the shards' queues now begins
    logprob: jax.Array  # f32[Z * B, T] of the trunks' own tokens, from `Searched.first` on


@functools.partial(jax.jit, static_argnames="config")
def skip_repeats(
    config: SearchConfig,
    weights: Weights,
    stops: Int[Array, "A V"],
    queue: Queue,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    searched: Searched,
) -> tuple[Queue, Found]:
    """Moves the items of trunks behind their repeats: position, token, budget and match.

    `hidden` are the trunks' final hidden states. No item may be in a slot already.
    """

    def one_shard(
        weights: Weights,
        stops: jax.Array,
        queue: Queue,
        hidden: jax.Array,
        tokens: jax.Array,
        searched: Searched,
    ) -> tuple[Queue, Found]:
        draws, logprobs = _own_draws(config, weights, hidden, tokens, searched)
        moved = _move(config, stops, queue, draws, tokens, searched)
        return moved, Found(moved.position, logprobs)

    weight_specs = split.weight_specs(config.model, config.mesh, weights)
    in_specs = (weight_specs, REPLICATED, SHARDS, SHARDS, SHARDS, SHARDS)
    run = on_shards(config.mesh, one_shard, in_specs, (SHARDS, SHARDS))
    queue, found = run(weights, stops, queue, hidden, tokens, searched)
    return queue, split.readable(config.mesh, found)


def _own_draws(
    config: SearchConfig, weights: Weights, hidden: jax.Array, tokens: jax.Array, searched: Searched
) -> tuple[Draws, Float[Array, "B T"]]:
    """The numbers that draw each trunk's own tokens, for all B * T places, and log-probabilities.

    Logits are computed only of places that some item asks for; the others have zeros.
    """
    model = split.own_part(config.model, config.mesh)
    axis = split.vocab_axis(config.model, config.mesh)
    cfg, (B, T), size = config.sampling, tokens.shape, config.places
    form = FORMS[platform_of(config.mesh)]
    index = jnp.arange(T)
    is_asked = (index >= searched.first[:, None]) & (index < searched.length[:, None])
    padded = -(-B * T // size) * size
    (asked,) = jnp.nonzero(is_asked.reshape(-1), size=padded, fill_value=B * T)
    flat, own = hidden.reshape(B * T, -1), tokens.reshape(-1)

    def some(i: jax.Array, found: tuple[Draws, jax.Array]) -> tuple[Draws, jax.Array]:
        places = lax.dynamic_slice_in_dim(asked, i * size, size)
        logits = model.logits(weights, flat[places - 1])
        logprobs = log_softmax(logits / cfg.temperature, axis)
        kept = kept_probs(jnp.exp(logprobs), cfg.top_p, cfg.top_k, axis, form)
        made = draws_of(kept, own[places], axis, form), take_token(logprobs, own[places], axis)
        return jax.tree.map(lambda x, new: x.at[places].set(new, mode="drop"), found, made)

    zeros, steps = jnp.zeros(B * T), jnp.zeros((B * T, 3))
    nothing = Draws(zeros, steps, steps, steps), zeros
    num_parts = -(-is_asked.sum() // size)
    draws, logprobs = lax.fori_loop(0, num_parts, some, nothing)
    return draws, logprobs.reshape(B, T)


class _Walk(NamedTuple):
    """How far some items have come along their trunks."""

    repeated: jax.Array  # i32[I] tokens
    match: jax.Array  # i32[I] the automaton's state after them
    is_going: jax.Array  # bool[I]


def _move(
    config: SearchConfig,
    stops: jax.Array,
    queue: Queue,
    draws: Draws,
    tokens: jax.Array,
    searched: Searched,
) -> Queue:
    """The queue, with the items behind their repeats; a part of them after the other."""
    T, num_items = tokens.shape[1], queue.position.shape[0]
    own, eos_ids = tokens.reshape(-1), jnp.array(config.eos_ids, jnp.int32)

    def of_some(i: jax.Array, queue: Queue) -> Queue:
        item = lax.dynamic_slice_in_dim(searched.item, i * ITEMS, ITEMS)
        trunk = lax.dynamic_slice_in_dim(searched.place, i * ITEMS, ITEMS)
        position, budget, seed = queue.position[item], queue.budget[item], queue.seed[item]
        length = searched.length[trunk]

        def step(walk: _Walk) -> _Walk:
            index = position + walk.repeated
            place = trunk * T + jnp.minimum(index, T - 1)
            token = own[place]
            match = stops[walk.match, token] if stops.shape[0] else walk.match
            drawn = is_drawn(jax.tree.map(lambda x: x[place], draws), uniforms(seed, index))
            is_last = (walk.repeated + 1 == budget) | (match < 0) | jnp.isin(token, eos_ids)
            is_going = walk.is_going & (index < length) & drawn & ~is_last
            match = jnp.where(is_going, match, walk.match)
            return _Walk(walk.repeated + is_going, match, is_going)

        start = _Walk(jnp.zeros_like(position), queue.match[item], item < num_items)
        walk = lax.while_loop(lambda walk: jnp.any(walk.is_going), step, start)
        position = position + walk.repeated
        new = {
            "position": position,
            "token": own[trunk * T + position - 1],
            "budget": budget - walk.repeated,
            "match": walk.match,
        }
        old = queue._asdict()
        return queue._replace(
            **{name: old[name].at[item].set(x, mode="drop") for name, x in new.items()}
        )

    num_parts = -(-(searched.item < num_items).sum() // ITEMS)
    return lax.fori_loop(0, num_parts, of_some, queue)


class Search(NamedTuple):
    """A search that devices compute."""

    places: list[tuple[int, int, int]]  # (shard, trunk, its place among the Z * B)
    found: Found


class Repeats:
    """The repeats of a phase's branches, as the host knows them.

    A trunk's items are searched when the shard computes it for the first time, before any of them
    is in a slot. `order` has the branches of each shard's queue; without `is_wanted` there are no
    repeats.
    """

    def __init__(
        self, work: Work, order: Sequence[Sequence[int]], stats: EngineStats, is_wanted: bool
    ):
        self._work, self._stats = work, stats
        self._order = [np.array(of_shard, np.int64) for of_shard in order]
        self.count = np.zeros(len(work.branches), np.int64)  # tokens that each branch repeats
        self._position = np.array([branch.position for branch in work.branches], np.int64)
        self._shard = np.zeros(len(work.branches), np.int64)
        self._items: list[dict[int, list[int]]] = [{} for _ in order]  # by trunk, not searched yet
        for shard, of_shard in enumerate(order):
            for item, i in enumerate(of_shard if is_wanted else ()):
                self._shard[i] = shard
                trunk = work.branches[i].trunk
                if self._position[i] < len(work.trunks[trunk]) and work.budgets[i] > 1:
                    self._items[shard].setdefault(trunk, []).append(item)
        self.are_possible = any(self._items)
        self._logprobs: dict[tuple[int, int], np.ndarray] = {}  # by shard and trunk
        self._started: list[Search] = []

    def are_left(self, trunks: list[list[int]]) -> bool:
        """Whether a shard has items to be searched for its `trunks`."""
        return any(
            trunk in items
            for items, of_shard in zip(self._items, trunks, strict=True)
            for trunk in of_shard
        )

    def searched(self, mesh: Mesh, trunks: list[list[int]], batch: int, queue: int) -> Searched:
        """The items of these trunks of each shard, which are then no longer left.

        `batch` is the number of trunks of a prefill, `queue` the length of a queue.
        """
        shards = len(trunks)
        first, length, place = (
            np.zeros((shards, size), np.int32) for size in (batch, batch, queue)
        )
        item = np.full((shards, queue), queue, np.int32)
        for shard, of_shard in enumerate(trunks):
            end = 0
            for n, trunk in enumerate(of_shard):
                items = self._items[shard].pop(trunk, [])
                here = slice(end, end + len(items))
                item[shard, here], place[shard, here] = items, n
                end += len(items)
                positions = self._position[self._order[shard][items]]
                length[shard, n] = len(self._work.trunks[trunk])
                first[shard, n] = positions.min(initial=length[shard, n])
        return Searched(*(put_on_shards(mesh, x) for x in (first, length, item, place)))

    def start(self, trunks: list[list[int]], batch: int, found: Found) -> None:
        """Notes a search that devices compute."""
        places = [
            (shard, trunk, shard * batch + n)
            for shard, of_shard in enumerate(trunks)
            for n, trunk in enumerate(of_shard)
        ]
        self._started.append(Search(places, found))

    def take(self) -> list[Search]:
        """The searches that were started since the last call."""
        started, self._started = self._started, []
        return started

    def read(self, searches: list[Search]) -> None:
        """Reads searches, in the order in which they were started, once they are computed."""
        for places, found in searches:
            position, logprobs = map(np.asarray, jax.device_get(found))
            for shard, trunk, place in places:
                self._logprobs.setdefault((shard, trunk), logprobs[place])
        if searches:
            before = self.count.sum()
            for branches, begins in zip(
                self._order, position.reshape(len(self._order), -1), strict=True
            ):
                self.count[branches] = begins[: len(branches)] - self._position[branches]
            self._stats.repeated_tokens += int(self.count.sum() - before)

    def whole(self, drawn: Drawn) -> Drawn:
        """The branch with its repeat in front of the tokens that were decoded."""
        count, i = int(self.count[drawn.branch]), drawn.branch
        if not count:
            return drawn
        trunk, begin = self._work.branches[i].trunk, int(self._position[i])
        repeat = slice(begin, begin + count)
        tokens = np.array(self._work.trunks[trunk][repeat], np.int32)
        logprobs = self._logprobs[int(self._shard[i]), trunk][repeat]
        return drawn._replace(
            tokens=np.concatenate([tokens, drawn.tokens]),
            logprobs=np.concatenate([logprobs, drawn.logprobs]),
        )
