"""The one way to generate text: `grow(params, trunks, branches)`.

A trunk is a token sequence whose KV is computed once and then only read. A branch is (trunk,
position, seed): a continuation that starts after `position` tokens of its trunk. Sampling
solutions, Monte Carlo values and evaluation are all branches.

`plan.py` says which shard serves a branch, `phase.py` drives a phase from the host, `window.py` and
`decode.py` hold the programs that the devices run.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import place_params, with_auto_axes
from vinejax.rollout import arrays as layout
from vinejax.rollout import decode, split, window
from vinejax.rollout.assign import Load, Sizes, assign
from vinejax.rollout.branches import (
    Branch,
    Grown,
    MaxTokens,
    OnGrown,
    Trunks,
    Work,
    as_lists,
    budgets_of,
    check,
    check_sampling,
    work_of,
)
from vinejax.rollout.finish import Ending
from vinejax.rollout.phase import Drawn, Phase, Programs, queue_fields
from vinejax.rollout.stats import EngineStats
from vinejax.rollout.stop import first_states, stop_table, token_texts
from vinejax.runtime import distributed
from vinejax.runtime.compiles import num_compiles
from vinejax.settings import SampleConfig
from vinejax.text import Tokenizer


class Scored(NamedTuple):
    """`grow_scored`'s results."""

    grown: list[Grown]
    trunk_logprobs: list[np.ndarray]  # a trunk: f32[length], 0 at the first token


class Engine:
    """Grows branches on trunks with one model, sampling configuration and tokenizer.

    `mesh` has the axes data, fsdp and tensor; None: the model's own, else one device. Weights that
    lie elsewhere are brought there. `slots` branches are decoded at once over all its shards,
    `chunk` steps between two looks of the host (None: by the longest branch). `memory_gib` bounds
    what keys and values take on one device (None: a share of what it has): fewer trunks are then
    resident at a time, and fewer slots where that is not enough. `window_rows` fixes the resident
    trunks of a shard. None of these changes a token.
    """

    def __init__(
        self,
        model: Decoder,
        sample_config: SampleConfig,
        tokenizer: Tokenizer,
        mesh: Mesh | None = None,
        slots: int = 64,
        window_rows: int | None = None,
        chunk: int | None = None,
        memory_gib: float | None = None,
    ):
        cfg = sample_config
        check_sampling(cfg)
        for name, value in (("slots", slots), ("window_rows", window_rows), ("chunk", chunk)):
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        self.model, self.sample_config, self.tokenizer = model, cfg, tokenizer
        # What decoding compiles for: stop strings and budgets are no part of the program.
        self._drawing = dataclasses.replace(cfg, max_tokens=1, stop=())
        self.slots, self.window_rows, self.chunk = slots, window_rows, chunk
        self.memory_gib = memory_gib
        self.stats = EngineStats()
        own: Any = tokenizer.eos_token_id
        self.eos_ids = tuple(sorted({*model.cfg.eos_ids} | ({own} - {None})))
        wanted = mesh or model.mesh
        self.mesh = layout.one_device_mesh() if wanted is None else with_auto_axes(wanted)
        split.check_tensor(model, self.mesh)
        self._weights: tuple[list[Any], Any] | None = None  # as trained, as decoding wants them
        self._room: int | None = None

    def grow(
        self,
        params: Params,
        trunks: Trunks,
        branches: Sequence[Branch],
        max_tokens: MaxTokens = None,
        on_grown: OnGrown | None = None,
    ) -> list[Grown]:
        """Continuations, one a branch, in the branches' order.

        `max_tokens` bounds each (default: the sampling configuration's), and so does the model's
        context less the position; a bound of 0 gives an empty 'length'. `on_grown(i, grown)` is
        called once for each branch as it ends, while the devices go on with the others; of several
        hosts, which all make the call, on the one whose item the branch is.

        Raises ValueError naming a bad branch or trunk, or the memory that is too small;
        DivergedError, a FloatingPointError, naming a trunk whose logits are not finite.
        """
        return self._grow(params, trunks, branches, max_tokens, on_grown, scored=False).grown

    def grow_scored(
        self,
        params: Params,
        trunks: Trunks,
        branches: Sequence[Branch],
        max_tokens: MaxTokens = None,
        on_grown: OnGrown | None = None,
    ) -> Scored:
        """As `grow`, and the log-probabilities of the trunks' own tokens, read off their prefill.

        They are scaled by the temperature, of the full softmax, as `learner.score.score` has them.
        Raises DivergedError for a trunk without branches too.
        """
        return self._grow(params, trunks, branches, max_tokens, on_grown, scored=True)

    @property
    def scores_as_learner(self) -> bool:
        """Whether the trunks' log-probabilities are computed from the learner's own weights: in
        float32, and not summed in parts over the tensor axis."""
        return self.model.compute.dtype == "float32" and self.mesh.shape["tensor"] == 1

    def release(self) -> None:
        """Give up the copy of the weights that decoding keeps between two calls."""
        self._weights = None

    def _grow(
        self,
        params: Params,
        trunks: Trunks,
        branches: Sequence[Branch],
        max_tokens: MaxTokens,
        on_grown: OnGrown | None,
        scored: bool,
    ) -> Scored:
        trunks = as_lists(trunks)
        check(trunks, branches, self.model.cfg)
        if max_tokens is None:
            max_tokens = self.sample_config.max_tokens
        budgets = budgets_of(branches, max_tokens, self.model.cfg.context)
        results = [Grown([], [], "", "length") for _ in branches]
        for i, budget in enumerate(budgets):
            if budget <= 0 and on_grown is not None and distributed.is_mine(i):
                on_grown(i, results[i])
        if not (scored and trunks) and not any(budget > 0 for budget in budgets):
            return Scored(results, [])
        compiles = num_compiles()
        phase = self._phase(params, trunks, branches, budgets, scored)
        ending = Ending(self.tokenizer, self.sample_config.stop, trunks, branches, on_grown)
        cut_short = ending.take(phase.run(), results)
        logprobs = phase.trunk_logprobs()
        del phase  # and its caches, before others are made
        while cut_short:
            going_on = self._go_on(params, trunks, branches, budgets, cut_short)
            cut_short = ending.take(going_on, results)
        self.stats.compiles += num_compiles() - compiles
        self.stats.useful_tokens += sum(len(grown.tokens) for grown in results)
        return Scored(results, [logprobs[i] for i in range(len(trunks))] if scored else [])

    def _plan(self, work: Work, scored: bool, memory: int) -> tuple[list[list[Load]], Sizes]:
        """The shards' loads and the shapes of the phase, within so many bytes a device."""
        sizes, taken = layout.sizes_of(
            self.model, self.mesh, self.mesh.devices.flat[0].platform, memory, self.slots,
            num_trunks=sum(map(bool, work.trunks)), num_branches=sum(n > 0 for n in work.budget),
            longest=max(map(len, work.trunks), default=1), budget=max(work.budget, default=1),
            window_rows=self.window_rows, chunk=self.chunk,
        )  # fmt: skip
        self.stats.cache_bytes = max(self.stats.cache_bytes, taken)
        shards = split.num_shards(self.mesh)
        loads = assign(work.trunk, work.budget, shards, sizes.rows)
        if scored:
            with_branches = {load.trunk for own in loads for load in own}
            for i in range(len(work.trunks)):
                if i not in with_branches:
                    loads[i % shards].append(Load(i, [], 0))
        most = max(sum(len(load.items) for load in own) for own in loads)
        return loads, dataclasses.replace(sizes, queue=layout.queue_size(most))

    def _phase(
        self,
        params: Params,
        trunks: list[list[int]],
        branches: Sequence[Branch],
        budgets: list[int],
        scored: bool,
    ) -> Phase:
        """A phase of these branches, planned, its programs at hand, nothing computed."""
        match = first_states(self._table, trunks, branches)
        work = work_of(trunks, branches, budgets, match, scored)
        loads, sizes = self._plan(work, scored, self._memory(params))
        distributed.barrier("grow", (trunks, branches, budgets, sizes))
        model, mesh, weights = self.model, self.mesh, self._decoding(params)
        temperature = self.sample_config.temperature if scored else None
        queue = layout.queue_on_shards(mesh, queue_fields(work, loads, sizes.queue))

        def decode_chunk(held: Any, waiting: Any, slots: Any, rows: Any) -> Any:
            return decode.decode_chunk(
                model, self._drawing, mesh, self.eos_ids, sizes,
                weights, held, queue, self._stops, waiting, slots, rows,
            )  # fmt: skip

        programs = Programs(
            prefill=functools.partial(window.prefill, model, mesh, temperature, weights),
            copy=functools.partial(window.copy_rows, mesh),
            decode=decode_chunk,
        )
        empty = layout.empty(model, mesh, sizes)
        return Phase(mesh, programs, work, loads, sizes, empty, self.stats)

    def _decoding(self, params: Params) -> Any:
        """The weights for decoding; made once for all phases with the same arrays."""
        leaves = jax.tree.leaves(params)
        if self._weights is None or not _same(leaves, self._weights[0]):
            self._weights = None  # before the next are made
            made = split.for_decoding(self.model, self.mesh, place_params(self.mesh, params))
            self._weights = leaves, made
        return self._weights[1]

    def _memory(self, params: Params) -> int:
        """Bytes for keys and values on each device, settled once: shapes depend on it."""
        if self.memory_gib is not None:
            return int(self.memory_gib * 2**30)
        if self._room is None:
            jax.block_until_ready(self._decoding(params))  # which take their own
            # Hosts may have different room left, and must come to the same shapes.
            self._room = int(min(distributed.exchange(layout.memory_to_use(self.mesh))))
        return self._room

    @functools.cached_property
    def _table(self) -> np.ndarray:
        """The automaton of the stop strings."""
        stop, size = self.sample_config.stop, self.model.cfg.vocab_size
        return stop_table(stop, token_texts(self.tokenizer, size) if stop else [""] * size)

    @functools.cached_property
    def _stops(self) -> jax.Array:
        """The same on every device."""
        return layout.everywhere(self.mesh, self._table)

    def _go_on(
        self,
        params: Params,
        trunks: list[list[int]],
        branches: Sequence[Branch],
        budgets: list[int],
        cut_short: Sequence[Drawn],
    ) -> Iterator[Drawn]:
        """Branches that the devices ended at a stop string that the decoded text does not have.

        A draw belongs to its place in the sequence, so each goes on from its own last token with
        its own seed, as if it had never been interrupted.
        """
        longer, again, left = [], [], []
        for n, drawn in enumerate(cut_short):
            branch = branches[drawn.branch]
            longer.append(trunks[branch.trunk][: branch.position] + drawn.tokens)
            began = branch.position if branch.response is None else branch.response
            again.append(Branch(n, len(longer[n]), branch.seed, began))
            left.append(budgets[drawn.branch] - len(drawn.tokens))
            if not left[n]:
                yield drawn._replace(ended=decode.LENGTH)
        if any(left):
            for more in self._phase(params, longer, again, left, scored=False).run():
                i, tokens, logprobs, _ = cut_short[more.branch]
                yield Drawn(i, tokens + more.tokens, logprobs + more.logprobs, more.ended)


def _same(leaves: list[Any], known: list[Any]) -> bool:
    """Whether these are the very arrays. NumPy's never are: they may have changed in place."""
    return len(leaves) == len(known) and all(
        x is y and isinstance(x, jax.Array) for x, y in zip(leaves, known, strict=True)
    )
