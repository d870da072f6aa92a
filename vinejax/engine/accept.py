"""Speculative acceptance of a trunk's own tokens: a branch skips the tokens that it would repeat.

The trunk's tokens after a branch's position serve as the draft. The hidden states of the trunk's
prefill give the logits at all places of the draft, and a draw depends on its place and the branch's
seed only. So the device can tell, without decoding, how many tokens of the draft a branch draws,
and which other token it draws at the first place where it departs. Decoding begins after that
token. With equal logits the tokens equal those of decoding everything.

The token of each place, accepted or not, is drawn from a single distribution. The prefill gives
this distribution, except at the trunk's end and where the trunk's token would end the branch (EOS,
a stop string, the budget). There decoding draws the token. If one distribution accepted the trunk's
token and another one drew its replacement, rounding would favour the trunk's token.
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

REACH = 64  # tokens that are kept after a branch as its draft; most branches depart earlier
ITEMS = 512  # items that are compared at a time; divides the sizes of queues


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """Static arguments of a search, which compares branches with their trunks' tokens."""

    model: Decoder
    mesh: Mesh
    sampling: SampleConfig  # only temperature, top-p and top-k are used
    eos_ids: tuple[int, ...]
    places: int  # number of places whose logits are computed at a time


class SearchItems(NamedTuple):
    """The trunks of a prefill on one shard, and the items that may accept tokens of these trunks.

    An item is a branch in the shard's queue.
    """

    first: jax.Array  # i32[B] least position of the trunk's items; the trunk's length without items
    length: jax.Array  # i32[B] length of the trunk
    item: jax.Array  # i32[Q] items, grouped by trunk; Q for padding
    trunk: jax.Array  # i32[Q] index of the item's trunk among the B


class SearchResult(NamedTuple):
    """The result of a search, which the host reads.

    Arrays with one entry per item are in the order of `SearchItems.item`.
    """

    count: jax.Array  # i32[Z * Q] number of accepted tokens, the departing token included
    token: jax.Array  # i32[Z * Q] last accepted token, or the token before the branch
    logprob: jax.Array  # f32[Z * Q] log-probability of `token`
    ended: jax.Array  # i32[Z * Q] GOING, or how `token` ended the branch
    own_logprobs: jax.Array  # f32[Z * B, T] of the trunks' own tokens, from `SearchItems.first` on


@functools.partial(jax.jit, static_argnames="config")
def skip_repeats(
    config: SearchConfig,
    weights: Weights,
    stops: Int[Array, "A V"],
    queue: Queue,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    search_items: SearchItems,
) -> tuple[Queue, SearchResult]:
    """The queue after items have skipped the tokens that they accept, and the result for the host.

    An item is a branch in the queue. In the returned queue an item of `search_items` begins where
    its decoding begins. None of these items may be in a slot already. `hidden` are the trunks'
    final hidden states. An item that ends with its last accepted token gets a budget of one further
    token, which is discarded.
    """

    def one_shard(
        weights: Weights,
        stops: jax.Array,
        queue: Queue,
        hidden: jax.Array,
        tokens: jax.Array,
        search_items: SearchItems,
    ) -> tuple[Queue, SearchResult]:
        draws, own_logprobs = _own_draws(config, weights, hidden, tokens, search_items)
        walk = _walk(config, stops, queue, draws, tokens, search_items)
        token, logprob = _departures(config, weights, queue, hidden, search_items, walk)
        # Where logits are not finite, decoding raises the error that names the branch.
        departs = walk.departs & jnp.isfinite(logprob)
        position, budget = queue.position[search_items.item], queue.budget[search_items.item]
        count = walk.accepted + departs
        last = search_items.trunk * tokens.shape[1] + position + walk.accepted - 1
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
            **{
                name: old[name].at[search_items.item].set(x, mode="drop")
                for name, x in moved.items()
            }
        )
        return queue, SearchResult(count, token, logprob, ended, own_logprobs)

    weight_specs = split.weight_specs(config.model, config.mesh, weights)
    in_specs = (weight_specs, REPLICATED, SHARDS, SHARDS, SHARDS, SHARDS)
    run = on_shards(config.mesh, one_shard, in_specs, (SHARDS, SHARDS))
    queue, result = run(weights, stops, queue, hidden, tokens, search_items)
    return queue, split.readable(config.mesh, result)


def _own_draws(
    config: SearchConfig,
    weights: Weights,
    hidden: jax.Array,
    tokens: jax.Array,
    search_items: SearchItems,
) -> tuple[DrawIntervals, Float[Array, "B T"]]:
    """The draw intervals and log-probabilities of the trunks' own tokens, at all B * T places.

    Both are 0 at padding, and at places before `SearchItems.first`, the least position of a trunk's
    items.
    """
    model = split.own_part(config.model, config.mesh)
    axis = split.vocab_axis(config.model, config.mesh)
    cfg, (B, T), size = config.sampling, tokens.shape, config.places
    form = FORMS[platform_of(config.mesh)]
    index = jnp.arange(T)
    is_needed = (index >= search_items.first[:, None]) & (index < search_items.length[:, None])
    padded = -(-B * T // size) * size
    (needed,) = jnp.nonzero(is_needed.reshape(-1), size=padded, fill_value=B * T)
    flat, flat_tokens = hidden.reshape(B * T, -1), tokens.reshape(-1)

    def of_block(logits: jax.Array, own: jax.Array) -> tuple[DrawIntervals, jax.Array]:
        logprobs = log_softmax(logits / cfg.temperature, axis)
        kept = kept_probs(jnp.exp(logprobs), cfg.top_p, cfg.top_k, axis, form)
        return draw_intervals(kept, own, axis, form), take_token(logprobs, own, axis)

    def some(
        i: jax.Array, results: tuple[DrawIntervals, jax.Array]
    ) -> tuple[DrawIntervals, jax.Array]:
        places = lax.dynamic_slice_in_dim(needed, i * size, size)
        # The place before is in the same trunk, because a branch's position is at least 1.
        logits = model.logits(weights, flat[places - 1])
        new_results = by_blocks(form, of_block, logits, flat_tokens[places])
        return jax.tree.map(lambda x, new: x.at[places].set(new, mode="drop"), results, new_results)

    zeros, steps = jnp.zeros(B * T), jnp.zeros((B * T, 3))
    nothing = DrawIntervals(zeros, steps, steps, steps), zeros
    num_parts = -(-is_needed.sum() // size)
    draws, logprobs = lax.fori_loop(0, num_parts, some, nothing)
    return draws, logprobs.reshape(B, T)


class _Walk(NamedTuple):
    """For each item, the number of its trunk's tokens that it accepts, and what follows them.

    The logits of the trunks' prefill decide which tokens an item accepts.
    """

    accepted: jax.Array  # i32[Q] number of the trunk's tokens that the item accepts
    match: jax.Array  # i32[Q] the automaton's state after these tokens
    departs: jax.Array  # bool[Q] whether the prefill's logits give another token than the trunk's
    is_going: jax.Array  # bool[Q] whether the item may accept the next token


def _walk(
    config: SearchConfig,
    stops: jax.Array,
    queue: Queue,
    draws: DrawIntervals,
    tokens: jax.Array,
    search_items: SearchItems,
) -> _Walk:
    """Finds for each item how many of its trunk's tokens it accepts.

    The items of the result are in the order of `SearchItems.item`.
    """
    T, num_items = tokens.shape[1], queue.position.shape[0]
    flat_tokens = tokens.reshape(-1)

    def of_some(i: jax.Array, walks: _Walk) -> _Walk:
        item = lax.dynamic_slice_in_dim(search_items.item, i * ITEMS, ITEMS)
        trunk = lax.dynamic_slice_in_dim(search_items.trunk, i * ITEMS, ITEMS)
        position, budget, seed = queue.position[item], queue.budget[item], queue.seed[item]
        length = search_items.length[trunk]

        def step(walk: _Walk) -> _Walk:
            index = position + walk.accepted
            place = trunk * T + jnp.minimum(index, T - 1)
            match, outcome = after_token(stops, config.eos_ids, walk.match, flat_tokens[place])
            is_last = (walk.accepted + 1 == budget) | (outcome != GOING)
            decides = walk.is_going & (index < length) & ~is_last
            drawn = is_drawn(jax.tree.map(lambda x: x[place], draws), uniforms(seed, index))
            is_going = decides & drawn
            departs = walk.departs | (decides & ~drawn)
            match = jnp.where(is_going, match, walk.match)
            return _Walk(walk.accepted + is_going, match, departs, is_going)

        is_item = item < num_items
        start = _Walk(jnp.zeros_like(position), queue.match[item], jnp.zeros_like(is_item), is_item)
        walk = lax.while_loop(lambda walk: jnp.any(walk.is_going), step, start)
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_slice_in_dim(x, new, i * ITEMS, 0), walks, walk
        )

    no, zeros = jnp.zeros(num_items, bool), jnp.zeros(num_items, jnp.int32)
    num_parts = -(-(search_items.item < num_items).sum() // ITEMS)
    return lax.fori_loop(0, num_parts, of_some, _Walk(zeros, zeros, no, no))


def _departures(
    config: SearchConfig,
    weights: Weights,
    queue: Queue,
    hidden: jax.Array,
    search_items: SearchItems,
    walk: _Walk,
) -> tuple[Int[Array, " Q"], Float[Array, " Q"]]:
    """For each item that departs from its trunk, the token drawn there and its log-probability.

    Both arrays are in the order of `SearchItems.item`. They are 0 for items that do not depart.
    """
    model = split.own_part(config.model, config.mesh)
    axis = split.vocab_axis(config.model, config.mesh)
    cfg, (B, T, D), size = config.sampling, hidden.shape, config.places
    form = FORMS[platform_of(config.mesh)]
    flat, num_items = hidden.reshape(B * T, D), walk.departs.shape[0]
    padded = -(-num_items // size) * size
    (departing,) = jnp.nonzero(walk.departs, size=padded, fill_value=num_items)

    def some(i: jax.Array, results: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number = lax.dynamic_slice_in_dim(departing, i * size, size)
        item = search_items.item[number]
        index = queue.position[item] + walk.accepted[number]
        logits = model.logits(weights, flat[search_items.trunk[number] * T + index - 1])
        u = uniforms(queue.seed[item], index)
        new_results = sample(logits, u, cfg.temperature, cfg.top_p, cfg.top_k, axis, form)
        return jax.tree.map(lambda x, new: x.at[number].set(new, mode="drop"), results, new_results)

    nothing = jnp.zeros(num_items, jnp.int32), jnp.zeros(num_items)
    return lax.fori_loop(0, -(-walk.departs.sum() // size), some, nothing)


class RunningSearch(NamedTuple):
    """A search that the devices are computing."""

    trunks: list[tuple[int, int, int]]  # (shard, trunk, index of the trunk among the Z * B)
    branches: list[np.ndarray]  # branch numbers per shard, in the order of `SearchItems.item`
    result: SearchResult


class AcceptedPrefixes:
    """The accepted tokens of a phase's branches, on the host.

    A search for a trunk's branches runs when the shard computes the trunk for the first time,
    before any of these branches is in a slot. `order` lists the branches of each shard's queue.
    Unless `is_enabled`, no branch accepts tokens.
    """

    def __init__(
        self,
        branch_set: BranchSet,
        order: Sequence[Sequence[int]],
        stats: EngineStats,
        is_enabled: bool,
    ):
        self._branch_set, self._stats, self._is_enabled = branch_set, stats, is_enabled
        self._order = [np.zeros(0, np.int64) for _ in order]
        # Per branch: the number of accepted tokens, the last of them, its log-probability, how it
        # ended the branch, the branch's position and its shard.
        self._count, self._token, self._ended = np.zeros((3, 0), np.int64)
        self._position, self._shard = np.zeros((2, 0), np.int64)
        self._logprob = np.zeros(0, np.float32)
        # Items that no search has examined yet, by shard and trunk.
        self._items: list[dict[int, list[int]]] = [{} for _ in order]
        # Per trunk: whether some branch of the same call or input may accept its trunk's tokens.
        self.may_accept: list[bool] = []
        self.add_branches(order)
        # Log-probabilities of the trunks' own tokens, by shard and trunk.
        self._logprobs: dict[tuple[int, int], np.ndarray] = {}
        self._started: list[RunningSearch] = []

    def add_branches(self, order: Sequence[Sequence[int]]) -> None:
        """Adds the branches that were appended to the branch set.

        For each shard, `order` lists the numbers of the new branches in the order of the queue.
        """
        branch_set = self._branch_set
        added = branch_set.branches[len(self._count) :]
        positions = np.array([branch.position for branch in added], np.int64)
        self._position = np.concatenate([self._position, positions])
        for name in ("_count", "_token", "_ended", "_shard", "_logprob"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(len(added), old.dtype)]))
        has_items = False
        for shard, of_shard in enumerate(order):
            first = len(self._order[shard])
            self._order[shard] = np.append(self._order[shard], np.array(of_shard, np.int64))
            for item, i in enumerate(of_shard if self._is_enabled else (), start=first):
                self._shard[i] = shard
                trunk = branch_set.branches[i].trunk
                if self._position[i] < len(branch_set.trunks[trunk]) and branch_set.budgets[i] > 1:
                    self._items[shard].setdefault(trunk, []).append(item)
                    has_items = True
        self.may_accept += [has_items] * (len(branch_set.trunks) - len(self.may_accept))

    def start(
        self,
        mesh: Mesh,
        trunks: list[list[int]],
        batch: int,
        queue: int,
        search: Callable[[SearchItems], SearchResult],
    ) -> None:
        """Starts a search for those branches on `trunks` that no search has examined yet.

        `trunks` lists the trunks of each shard. `batch` is the number of trunks per shard in a
        prefill, and `queue` is the length of a shard's queue.
        """
        shards = len(trunks)
        if not any(
            trunk in self._items[shard] for shard in range(shards) for trunk in trunks[shard]
        ):
            return
        first, length = np.zeros((2, shards, batch), np.int32)
        item = np.full((shards, queue), queue, np.int32)
        trunk_of_item = np.zeros((shards, queue), np.int32)
        branches, searched = [], []
        for shard, of_shard in enumerate(trunks):
            end = 0
            for n, trunk in enumerate(of_shard):
                items = self._items[shard].pop(trunk, [])
                here = slice(end, end + len(items))
                item[shard, here], trunk_of_item[shard, here] = items, n
                end += len(items)
                positions = self._position[self._order[shard][items]]
                length[shard, n] = len(self._branch_set.trunks[trunk])
                first[shard, n] = positions.min(initial=length[shard, n])
                searched.append((shard, trunk, shard * batch + n))
            branches.append(self._order[shard][item[shard, :end]])
        on_mesh = SearchItems(
            first=put_on_shards(mesh, first),
            length=put_on_shards(mesh, length),
            item=put_on_shards(mesh, item),
            trunk=put_on_shards(mesh, trunk_of_item),
        )
        self._started.append(RunningSearch(searched, branches, search(on_mesh)))

    def num_accepted(self, branch: int) -> int:
        """The number of a branch's tokens that were accepted and need not be decoded."""
        return int(self._count[branch])

    def take(self) -> list[RunningSearch]:
        """The searches that began since the last call of this method."""
        started, self._started = self._started, []
        return started

    def read(self, searches: list[RunningSearch]) -> None:
        """Waits for the results of searches and stores the results."""
        for trunks, branches, result in searches:
            *of_items, own_logprobs = map(np.asarray, jax.device_get(result))
            for shard, trunk, n in trunks:
                self._logprobs.setdefault((shard, trunk), own_logprobs[n])
            by_shard = (x.reshape(len(branches), -1) for x in of_items)
            for of_shard, *columns in zip(branches, *by_shard, strict=True):
                count, token, logprob, ended = (x[: len(of_shard)] for x in columns)
                self._count[of_shard], self._token[of_shard] = count, token
                self._logprob[of_shard], self._ended[of_shard] = logprob, ended
                # A token that ends its branch is accepted, but one more token is decoded.
                self._stats.repeated_tokens += int(count.sum() - (ended != GOING).sum())

    def with_prefix(self, decoded: DecodedBranch) -> DecodedBranch:
        """The branch with its accepted tokens followed by its decoded tokens."""
        i = decoded.branch
        count = int(self._count[i])
        if not count:
            return decoded
        trunk, begin = self._branch_set.branches[i].trunk, int(self._position[i])
        accepted, ended = slice(begin, begin + count - 1), int(self._ended[i])
        if ended != GOING:
            decoded = DecodedBranch(i, decoded.tokens[:0], decoded.logprobs[:0], ended)
        tokens = np.empty(count + len(decoded.tokens), np.int32)
        logprobs = np.empty(len(tokens), np.float32)
        tokens[: count - 1] = self._branch_set.trunks[trunk][accepted]
        logprobs[: count - 1] = self._logprobs[int(self._shard[i]), trunk][accepted]
        tokens[count - 1], logprobs[count - 1] = self._token[i], self._logprob[i]
        tokens[count:], logprobs[count:] = decoded.tokens, decoded.logprobs
        return decoded._replace(tokens=tokens, logprobs=logprobs)
