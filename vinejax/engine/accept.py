"""Repeats: the tokens that a branch would draw and that its trunk has already.

A draw belongs to its place in the sequence, and the hidden states of a trunk's prefill give the
logits at all of its places. So they tell, without decoding, whether a branch draws its trunk's next
token, and the one after it, and so on, and which other token it draws where it departs. Decoding
begins after that token. With equal logits the tokens are those of decoding it all.

One distribution decides each place, whatever is drawn there: the prefill's, or decoding's at the
trunk's end and where the trunk's token would end the branch (EOS, a stop string, its budget). If
one accepted the trunk's token and the other replaced it, rounding would favour that token.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vinejax.core.settings import SampleConfig
from vinejax.engine import split
from vinejax.engine.branches import BranchSet
from vinejax.engine.collect import DecodedBranch
from vinejax.engine.decode import GOING, Queue, after_token, uniforms
from vinejax.engine.memory import put_on_shards
from vinejax.engine.sampling import (
    FORMS,
    DrawIntervals,
    by_blocks,
    draw_intervals,
    is_drawn,
    kept_probs,
    log_softmax,
    sample,
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


class SearchItems(NamedTuple):
    """On one shard, trunks that were prefilled together, and the items that may repeat them."""

    first: jax.Array  # i32[B] the first position of an item; the length where there is none
    length: jax.Array  # i32[B]
    item: jax.Array  # i32[Q] of all trunks, one trunk's after the other's; Q where it is padded
    place: jax.Array  # i32[Q] the item's trunk among the B


class SearchResult(NamedTuple):
    """What the host reads of a search; the first four are in the order of `SearchItems.item`."""

    count: jax.Array  # i32[Z * Q] tokens of each branch that need no decoding
    token: jax.Array  # i32[Z * Q] the last of them, or the one before the branch
    logprob: jax.Array  # f32[Z * Q] of it
    ended: jax.Array  # i32[Z * Q] GOING, or how the branch ended with it
    own_logprobs: jax.Array  # f32[Z * B, T] of the trunks' own tokens, from `SearchItems.first` on


@functools.partial(jax.jit, static_argnames="config")
def skip_repeats(
    config: SearchConfig,
    weights: Weights,
    stops: Int[Array, "A V"],
    queue: Queue,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    searched: SearchItems,
) -> tuple[Queue, SearchResult]:
    """Moves the items of trunks to where decoding begins: position, token, budget and match.

    `hidden` are the trunks' final hidden states. No item may be in a slot already. One that has
    ended with its last token is given another token to draw, which does not count.
    """

    def one_shard(
        weights: Weights,
        stops: jax.Array,
        queue: Queue,
        hidden: jax.Array,
        tokens: jax.Array,
        searched: SearchItems,
    ) -> tuple[Queue, SearchResult]:
        draws, own_logprobs = _own_draws(config, weights, hidden, tokens, searched)
        walk = _walk(config, stops, queue, draws, tokens, searched)
        token, logprob = _departures(config, weights, queue, hidden, searched, walk)
        # Where logits are not finite, decoding finds it and names the branch.
        departs = walk.departs & jnp.isfinite(logprob)
        position, budget = queue.position[searched.item], queue.budget[searched.item]
        count = walk.repeated + departs
        last = searched.place * tokens.shape[1] + position + walk.repeated - 1
        token = jnp.where(departs, token, tokens.reshape(-1)[last])
        logprob = jnp.where(departs, logprob, own_logprobs.reshape(-1)[last])
        after, outcome = after_token(stops, config.eos_ids, walk.match, token)
        ended = jnp.where(departs, outcome, GOING)
        moved = {
            "position": position + count,
            "token": token,
            "budget": jnp.where(ended == GOING, budget - count, 1),
            "match": jnp.where(departs, after, walk.match),
        }
        old = queue._asdict()
        queue = queue._replace(
            **{name: old[name].at[searched.item].set(x, mode="drop") for name, x in moved.items()}
        )
        return queue, SearchResult(count, token, logprob, ended, own_logprobs)

    weight_specs = split.weight_specs(config.model, config.mesh, weights)
    in_specs = (weight_specs, REPLICATED, SHARDS, SHARDS, SHARDS, SHARDS)
    run = on_shards(config.mesh, one_shard, in_specs, (SHARDS, SHARDS))
    queue, found = run(weights, stops, queue, hidden, tokens, searched)
    return queue, split.readable(config.mesh, found)


def _own_draws(
    config: SearchConfig,
    weights: Weights,
    hidden: jax.Array,
    tokens: jax.Array,
    searched: SearchItems,
) -> tuple[DrawIntervals, Float[Array, "B T"]]:
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

    def of_block(logits: jax.Array, own: jax.Array) -> tuple[DrawIntervals, jax.Array]:
        logprobs = log_softmax(logits / cfg.temperature, axis)
        kept = kept_probs(jnp.exp(logprobs), cfg.top_p, cfg.top_k, axis, form)
        return draw_intervals(kept, own, axis, form), take_token(logprobs, own, axis)

    def some(
        i: jax.Array, found: tuple[DrawIntervals, jax.Array]
    ) -> tuple[DrawIntervals, jax.Array]:
        places = lax.dynamic_slice_in_dim(asked, i * size, size)
        logits = model.logits(weights, flat[places - 1])
        made = by_blocks(form, of_block, logits, own[places])
        return jax.tree.map(lambda x, new: x.at[places].set(new, mode="drop"), found, made)

    zeros, steps = jnp.zeros(B * T), jnp.zeros((B * T, 3))
    nothing = DrawIntervals(zeros, steps, steps, steps), zeros
    num_parts = -(-is_asked.sum() // size)
    draws, logprobs = lax.fori_loop(0, num_parts, some, nothing)
    return draws, logprobs.reshape(B, T)


class _Walk(NamedTuple):
    """How far items have come along their trunks, by the prefill's logits."""

    repeated: jax.Array  # i32[Q] tokens
    match: jax.Array  # i32[Q] the automaton's state after them
    departs: jax.Array  # bool[Q] whether these logits give another token than the trunk's next
    is_going: jax.Array  # bool[Q]


def _walk(
    config: SearchConfig,
    stops: jax.Array,
    queue: Queue,
    draws: DrawIntervals,
    tokens: jax.Array,
    searched: SearchItems,
) -> _Walk:
    """How far each item walks along its trunk, in the order of `SearchItems.item`."""
    T, num_items = tokens.shape[1], queue.position.shape[0]
    own = tokens.reshape(-1)

    def of_some(i: jax.Array, walks: _Walk) -> _Walk:
        item = lax.dynamic_slice_in_dim(searched.item, i * ITEMS, ITEMS)
        trunk = lax.dynamic_slice_in_dim(searched.place, i * ITEMS, ITEMS)
        position, budget, seed = queue.position[item], queue.budget[item], queue.seed[item]
        length = searched.length[trunk]

        def step(walk: _Walk) -> _Walk:
            index = position + walk.repeated
            place = trunk * T + jnp.minimum(index, T - 1)
            match, outcome = after_token(stops, config.eos_ids, walk.match, own[place])
            is_last = (walk.repeated + 1 == budget) | (outcome != GOING)
            decides = walk.is_going & (index < length) & ~is_last
            drawn = is_drawn(jax.tree.map(lambda x: x[place], draws), uniforms(seed, index))
            is_going = decides & drawn
            departs = walk.departs | (decides & ~drawn)
            match = jnp.where(is_going, match, walk.match)
            return _Walk(walk.repeated + is_going, match, departs, is_going)

        is_item = item < num_items
        start = _Walk(jnp.zeros_like(position), queue.match[item], jnp.zeros_like(is_item), is_item)
        walk = lax.while_loop(lambda walk: jnp.any(walk.is_going), step, start)
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_slice_in_dim(x, new, i * ITEMS, 0), walks, walk
        )

    no, zeros = jnp.zeros(num_items, bool), jnp.zeros(num_items, jnp.int32)
    num_parts = -(-(searched.item < num_items).sum() // ITEMS)
    return lax.fori_loop(0, num_parts, of_some, _Walk(zeros, zeros, no, no))


def _departures(
    config: SearchConfig,
    weights: Weights,
    queue: Queue,
    hidden: jax.Array,
    searched: SearchItems,
    walk: _Walk,
) -> tuple[Int[Array, " Q"], Float[Array, " Q"]]:
    """The tokens that departing items draw in place of the trunk's, and log-probabilities.

    They are in the order of `SearchItems.item`. Other items have zeros.
    """
    model = split.own_part(config.model, config.mesh)
    axis = split.vocab_axis(config.model, config.mesh)
    cfg, (B, T, D), size = config.sampling, hidden.shape, config.places
    form = FORMS[platform_of(config.mesh)]
    flat, num_items = hidden.reshape(B * T, D), walk.departs.shape[0]
    padded = -(-num_items // size) * size
    (departing,) = jnp.nonzero(walk.departs, size=padded, fill_value=num_items)

    def some(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number = lax.dynamic_slice_in_dim(departing, i * size, size)
        item = searched.item[number]
        index = queue.position[item] + walk.repeated[number]
        logits = model.logits(weights, flat[searched.place[number] * T + index - 1])
        u = uniforms(queue.seed[item], index)
        made = sample(logits, u, cfg.temperature, cfg.top_p, cfg.top_k, axis, form)
        return jax.tree.map(lambda x, new: x.at[number].set(new, mode="drop"), found, made)

    nothing = jnp.zeros(num_items, jnp.int32), jnp.zeros(num_items)
    return lax.fori_loop(0, -(-walk.departs.sum() // size), some, nothing)


class RunningSearch(NamedTuple):
    """A search that devices compute."""

    places: list[tuple[int, int, int]]  # (shard, trunk, its place among the Z * B)
    branches: list[np.ndarray]  # of each shard, in the order of `SearchItems.item`
    found: SearchResult


class AcceptedPrefixes:
    """The repeats of a phase's branches, as the host knows them.

    A trunk's items are searched when the shard computes it for the first time, before any of them
    is in a slot. `order` has the branches of each shard's queue; without `is_wanted` there are no
    repeats.
    """

    def __init__(
        self,
        branch_set: BranchSet,
        order: Sequence[Sequence[int]],
        stats: EngineStats,
        is_wanted: bool,
    ):
        self._branch_set, self._stats, self._is_wanted = branch_set, stats, is_wanted
        self._order = [np.zeros(0, np.int64) for _ in order]
        # Of each branch: tokens that need no decoding; the last of them, its log-probability, and
        # how the branch ended with it; its position and its shard.
        self.count, self._token, self._ended, self._position, self._shard = np.zeros(
            (5, 0), np.int64
        )
        self._logprob = np.zeros(0, np.float32)
        self._items: list[dict[int, list[int]]] = [{} for _ in order]  # by trunk, not searched yet
        # For each trunk, whether some branch that came with it may repeat its own trunk's tokens.
        self.are_possible: list[bool] = []
        self.add_branches(order)
        self._logprobs: dict[tuple[int, int], np.ndarray] = {}  # by shard and trunk
        self._started: list[RunningSearch] = []

    def add_branches(self, order: Sequence[Sequence[int]]) -> None:
        """Takes the work's new branches and trunks; `order` continues each shard's queue."""
        branch_set, zeros = (
            self._branch_set,
            np.zeros(len(self._branch_set.branches) - len(self.count), np.int64),
        )
        position = np.array([b.position for b in branch_set.branches[len(self.count) :]], np.int64)
        self._position = np.concatenate([self._position, position])
        for name in ("count", "_token", "_ended", "_shard", "_logprob"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, zeros.astype(old.dtype)]))
        found = False
        for shard, of_shard in enumerate(order):
            first = len(self._order[shard])
            self._order[shard] = np.append(self._order[shard], np.array(of_shard, np.int64))
            for item, i in enumerate(of_shard if self._is_wanted else (), start=first):
                self._shard[i] = shard
                trunk = branch_set.branches[i].trunk
                if self._position[i] < len(branch_set.trunks[trunk]) and branch_set.budgets[i] > 1:
                    self._items[shard].setdefault(trunk, []).append(item)
                    found = True
        self.are_possible += [found] * (len(branch_set.trunks) - len(self.are_possible))

    def start(
        self,
        mesh: Mesh,
        trunks: list[list[int]],
        batch: int,
        queue: int,
        search: Callable[[SearchItems], SearchResult],
    ) -> None:
        """Starts a search of the items of these trunks of each shard, if there are any left.

        `batch` is the number of trunks of a prefill, `queue` the length of a queue.
        """
        shards = len(trunks)
        if not any(
            trunk in self._items[shard] for shard in range(shards) for trunk in trunks[shard]
        ):
            return
        first, length, place = (
            np.zeros((shards, size), np.int32) for size in (batch, batch, queue)
        )
        item = np.full((shards, queue), queue, np.int32)
        branches, places = [], []
        for shard, of_shard in enumerate(trunks):
            end = 0
            for n, trunk in enumerate(of_shard):
                items = self._items[shard].pop(trunk, [])
                here = slice(end, end + len(items))
                item[shard, here], place[shard, here] = items, n
                end += len(items)
                positions = self._position[self._order[shard][items]]
                length[shard, n] = len(self._branch_set.trunks[trunk])
                first[shard, n] = positions.min(initial=length[shard, n])
                places.append((shard, trunk, shard * batch + n))
            branches.append(self._order[shard][item[shard, :end]])
        on_mesh = SearchItems(
            first=put_on_shards(mesh, first),
            length=put_on_shards(mesh, length),
            item=put_on_shards(mesh, item),
            place=put_on_shards(mesh, place),
        )
        self._started.append(RunningSearch(places, branches, search(on_mesh)))

    def repeated(self, branch: int) -> int:
        """Tokens of a branch that need no decoding."""
        return int(self.count[branch])

    def take(self) -> list[RunningSearch]:
        """The searches that were started since the last call."""
        started, self._started = self._started, []
        return started

    def read(self, searches: list[RunningSearch]) -> None:
        """Reads searches once they are computed."""
        for places, branches, found in searches:
            *of_items, own_logprobs = map(np.asarray, jax.device_get(found))
            for shard, trunk, place in places:
                self._logprobs.setdefault((shard, trunk), own_logprobs[place])
            by_shard = (x.reshape(len(branches), -1) for x in of_items)
            for of_shard, *columns in zip(branches, *by_shard, strict=True):
                count, token, logprob, ended = (x[: len(of_shard)] for x in columns)
                self.count[of_shard], self._token[of_shard] = count, token
                self._logprob[of_shard], self._ended[of_shard] = logprob, ended
                # In place of a token that ends its branch another is decoded.
                self._stats.repeated_tokens += int(count.sum() - (ended != GOING).sum())

    def with_prefix(self, drawn: DecodedBranch) -> DecodedBranch:
        """The branch with all of its tokens: those that were decoded are its last."""
        count, i = int(self.count[drawn.branch]), drawn.branch
        if not count:
            return drawn
        trunk, begin = self._branch_set.branches[i].trunk, int(self._position[i])
        repeat, ended = slice(begin, begin + count - 1), int(self._ended[i])
        if ended != GOING:
            drawn = DecodedBranch(i, drawn.tokens[:0], drawn.logprobs[:0], ended)
        tokens = np.empty(count + len(drawn.tokens), np.int32)
        logprobs = np.empty(len(tokens), np.float32)
        tokens[: count - 1] = self._branch_set.trunks[trunk][repeat]
        logprobs[: count - 1] = self._logprobs[int(self._shard[i]), trunk][repeat]
        tokens[count - 1], logprobs[count - 1] = self._token[i], self._logprob[i]
        tokens[count:], logprobs[count:] = drawn.tokens, drawn.logprobs
        return drawn._replace(tokens=tokens, logprobs=logprobs)
