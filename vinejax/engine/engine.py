"""The engine, which generates all text by `grow(params, trunks, branches)`.

A trunk is a token sequence whose keys and values many branches read. A branch names a trunk, a
position and a seed. It asks for a continuation after the first `position` tokens of the trunk.
Solutions, Monte Carlo continuations and evaluation answers are all branches.

`row_jobs.py` decides which shard serves a branch. `phase.py` drives a phase from the host.
`window.py` and `decode.py` hold the programs that the devices run. docs/engine.md explains how they
work together.
"""

import dataclasses
import functools
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from vinejax.core.arguments import check_params
from vinejax.core.errors import ConfigError
from vinejax.core.settings import SampleConfig
from vinejax.core.text import Tokenizer, set_shown, special_tokens, token_text
from vinejax.engine import split
from vinejax.engine.accept import REACH
from vinejax.engine.branches import (
    Branch,
    Branches,
    BranchSet,
    Feeder,
    Grown,
    MaxTokens,
    Stream,
    StreamInput,
    StreamPairs,
    Trunks,
    branch_set_of,
    check_sampling,
)
from vinejax.engine.cache import Sizes, use_kernel
from vinejax.engine.collect import DecodedBranch
from vinejax.engine.decode import LENGTH, DecodeConfig
from vinejax.engine.drain import drain_sizes
from vinejax.engine.feed_queue import FeedQueue
from vinejax.engine.finish import Reader
from vinejax.engine.keeping import KeepingPhase
from vinejax.engine.memory import (
    EngineSettings,
    Workload,
    memory_to_use,
    put_on_mesh,
    queue_size,
    sizes_of,
)
from vinejax.engine.phase import Phase, PhaseInputs
from vinejax.engine.queues import make_queue
from vinejax.engine.row_jobs import RowJob, assign
from vinejax.engine.stats import EngineStats
from vinejax.engine.stop import first_states, stop_table
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import mesh_over, num_shards, place_params, platform_of, with_auto_axes
from vinejax.runtime import distributed
from vinejax.runtime.compiles import num_compiles


class _DecodingCopy(NamedTuple):
    """The copy of the weights that decoding reads (`split.for_decoding`)."""

    source: list[Any]  # the arrays from which the copy was made
    weights: split.Weights

    def is_of(self, source: list[Any]) -> bool:
        if len(source) != len(self.source):
            return False
        # A NumPy array never counts as the same: it may have changed in place.
        pairs = zip(source, self.source, strict=True)
        return all(isinstance(x, jax.Array) and x is y for x, y in pairs)


class Engine:
    """Grows branches on trunks with one model, sampling configuration and tokenizer.

    In float32 the arguments from `mesh` on change no token, except by rounding (docs/engine.md).

    Args:
      model: The model that computes logits.
      sample_config: Temperature, top-p, top-k, stop strings and the default budget.
      tokenizer: Detokenises the continuations.
      mesh: Has the axes data, fsdp and tensor; weights on other devices are moved to it. None: the
        model's mesh, or one device.
      slots: Branches that are decoded at once over all shards.
      window_rows: Rows per shard; each holds a trunk. None: chosen by slots and branches.
      chunk: Decode steps between two polls by the host. None: chosen by the largest budget.
      memory_gib: Limit of keys and values on one device. None: a part of its free memory. If
        memory is short, fewer trunks are resident at a time. If it is still short, fewer slots are
        used.
      attention: The attention of decoding: 'xla', 'kernel' (for TPUs and GPUs; a CPU interprets the
        kernel for TPU) or 'auto', which is the kernel where the platform and the model allow it.
      limits: Maximum lengths of the kinds of trunk, in ascending order. Trunks of the last kind
        contain a response, and their branches must set `Branch.response`; trunks of an earlier kind
        are, for example, prompts alone. With limits fewer programs are compiled if lengths vary.
      skip_repeats: Whether decoding skips the tokens with which a branch repeats its trunk. No
        effect at temperature 0.

    Example:
      >>> model, params, tokenizer = vinejax.load_pretrained("configs/tiny_start")
      >>> sample = vinejax.SampleConfig(temperature=0.0, max_tokens=16)
      >>> engine = vinejax.Engine(model, sample, tokenizer, slots=4)
      >>> prompt = tokenizer.encode("7+8-4=")
      >>> after = vinejax.Branch(trunk=0, position=len(prompt), seed=1)
      >>> [grown.finish for grown in engine.grow(params, [prompt], [after])]
      ['eos']
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
        attention: str = "auto",
        limits: tuple[int, ...] = (),
        skip_repeats: bool = True,
    ):
        check_sampling(sample_config, model.cfg.vocab_size)
        for name, value in (("slots", slots), ("window_rows", window_rows), ("chunk", chunk)):
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        self.model = model
        self.sample_config = sample_config
        self.tokenizer = tokenizer
        # Decode programs depend on no other sampling settings.
        self._drawing = SampleConfig(
            sample_config.temperature, sample_config.top_p, sample_config.top_k, max_tokens=1
        )
        self.slots, self.window_rows, self.chunk = slots, window_rows, chunk
        self.memory_gib, self.limits = memory_gib, limits
        # At temperature 0 no token is drawn at random.
        self.skips_repeats = skip_repeats and sample_config.temperature > 0
        self.stats = EngineStats()
        special = special_tokens(tokenizer)
        stops = {special.get(text) for text in sample_config.stop}
        ends = {*model.cfg.eos_ids, *sample_config.stop_ids, *stops, tokenizer.eos_token_id}  # pyright: ignore
        self.eos_ids = tuple(sorted(ends - {None}))
        self._set_shown()
        mesh = mesh or model.mesh or mesh_over((1, 1, 1), jax.devices()[:1])
        self.mesh = with_auto_axes(mesh)
        split.check_tensor(model, self.mesh)
        try:
            device, head_dim = self.mesh.devices.flat[0], model.cfg.head_dim
            is_by_kernel = use_kernel(attention, platform_of(self.mesh), head_dim, device)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        self.attention = "kernel" if is_by_kernel else "xla"
        self._decoding_copy: _DecodingCopy | None = None  # copy of the last parameters
        self._memory_bytes: int | None = None

    def __repr__(self) -> str:
        cfg, sample = self.model.cfg, self.sample_config
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        return (
            f"Engine({cfg.num_layers} layers of width {cfg.width}, {mesh}, slots={self.slots}, "
            f"memory_gib={self.memory_gib}, {sample})"
        )

    def stream(
        self,
        params: Params,
        trunks: Trunks,
        branches: Branches,
        max_tokens: MaxTokens = None,
        scored: bool = False,
        feed: Feeder | None = None,
    ) -> Stream:
        """The pairs (number of a branch, Grown), as branches end while others are decoded.

        A branch's budget is `max_tokens` (default: that of the sampling configuration), or the rest
        of the model's context if that is smaller. Branches of budget 0 come first, with no tokens
        and the finish 'length'. With `scored` the stream has the log-probabilities of all trunks'
        own tokens once the loop has ended. As in `learner.score.score`, they are those of the full
        softmax at the sampling temperature. With a `feed` further trunks and branches enter while
        the stream runs.

        All hosts must make the call and run the loop to its end. Each host gets every pair once:
        the branches that it detokenises (`is_mine`) as they end, the others at the end of their
        phase. With a `feed` every host detokenises all branches and gets the same pairs in the same
        order. The input that a host feeds must depend on these pairs alone.

        Raises at the call, before anything is computed: ValueError for a bad branch or trunk.
        Raises in the loop: ValueError for bad input of the feed; RoomError for too little memory,
        before the first step; DivergedError, a FloatingPointError, for logits that are not finite.
        """
        check_params(params)
        branch_set = self._checked(StreamInput(trunks, branches, max_tokens, scored))
        return Stream(functools.partial(self._grow, params, branch_set, feed))

    def _checked(self, stream_input: StreamInput) -> BranchSet:
        """The checked branches of a call or of a feed's input.

        Raises ValueError for invalid branches or trunks.
        """
        trunks, branches, max_tokens, scored = stream_input
        if max_tokens is None:
            max_tokens = self.sample_config.max_tokens
        reach = REACH if self.skips_repeats else 0
        return branch_set_of(
            trunks, branches, max_tokens, self.model.cfg, scored=scored, reach=reach
        )

    def grow(
        self, params: Params, trunks: Trunks, branches: Branches, max_tokens: MaxTokens = None
    ) -> list[Grown]:
        """The continuations of `stream` as a list, in the order of the branches."""
        return self.stream(params, trunks, branches, max_tokens).in_order()

    @property
    def scores_as_learner(self) -> bool:
        """Whether the learner can use the log-probabilities that prefill computes.

        This requires the compute dtype float32 and a `tensor` axis of size 1.
        """
        return self.model.compute.dtype == "float32" and self.mesh.shape["tensor"] == 1

    def release(self) -> None:
        """Frees the copy of the weights that decoding keeps between two calls."""
        self._decoding_copy = None

    def _grow(self, params: Params, branch_set: BranchSet, feed: Feeder | None) -> StreamPairs:
        self._set_shown()  # another engine of this tokenizer may have chosen others since
        feed_queue, first = FeedQueue(feed, self._checked), 0
        logprobs: list[np.ndarray] = []
        self.stats.calls += any(branch_set.trunks)
        following: BranchSet | None = branch_set
        compiles = num_compiles()
        try:
            while following is not None:
                for i, budget in enumerate(following.budgets, start=first):
                    if budget <= 0:
                        yield i, Grown([], [], "", "length")
                feed_queue.first = first
                count, scores = yield from self._run(params, following, feed_queue, first)
                first += count
                logprobs += scores
                following = feed_queue.next_branch_set()
        finally:
            self.stats.compiles += num_compiles() - compiles
        return logprobs if any(map(len, logprobs)) else []

    def _set_shown(self) -> None:
        set_shown(self.tokenizer, self.eos_ids, self.sample_config.skip_special_tokens)

    def _run(
        self, params: Params, branch_set: BranchSet, feed_queue: FeedQueue, first: int
    ) -> Generator[tuple[int, Grown], None, tuple[int, list[np.ndarray]]]:
        """Runs a phase and yields its pairs (number of a branch, Grown).

        Branches are numbered from `first`. Branches that were cut short (`Reader.read`) are
        resumed. Returns the number of branches, and the log-probabilities of the trunks' own
        tokens.
        """
        if not any(branch_set.trunks):
            return len(branch_set.branches), [np.zeros(0, np.float32)] * len(branch_set.trunks)
        phase = self._phase(params, branch_set, feed_queue)
        branch_set = phase.branch_set  # grows with the feed's input
        stop, is_fed = self.sample_config.stop, feed_queue.feed is not None
        reader = Reader(self.tokenizer, stop, branch_set, self.stats, first, reads_all=is_fed)
        cut_short = yield from reader.read(phase.run())
        logprobs = phase.trunk_logprobs()
        del phase  # frees its caches before the next phase allocates its own
        while cut_short:
            cut_short = yield from reader.read(self._resume(params, branch_set, cut_short))
        return len(branch_set.branches), logprobs

    def _phase(self, params: Params, branch_set: BranchSet, feed_queue: FeedQueue) -> Phase:
        """Makes a phase for these branches and allocates its caches, but computes nothing yet."""
        memory = self._memory(params)
        jobs, sizes = self._assign(branch_set, memory, feed_queue.feed)
        branch_set = branch_set.within(sizes.columns)
        distributed.barrier("grow", (branch_set, sizes))
        table, stops = self._automaton
        match = first_states(table, branch_set)
        inputs = PhaseInputs(
            config=DecodeConfig(self.model, self.mesh, self._drawing, self.eos_ids, sizes),
            drains=drain_sizes(self.model, self.mesh, memory, sizes),
            skips_repeats=self.skips_repeats,
            weights=self._decoding(params),
            queue=make_queue(self.mesh, branch_set, match, jobs, sizes.queue),
            stops=stops,
            table=table,
        )
        kind = Phase if feed_queue.feed is None else KeepingPhase
        return kind(inputs, branch_set, jobs, self.stats, feed_queue)

    def _assign(
        self, branch_set: BranchSet, memory: int, feed: Feeder | None = None
    ) -> tuple[list[list[RowJob]], Sizes]:
        """The row jobs of each shard, and the shapes of the phase.

        The phase's keys and values take at most `memory` bytes per device.
        """
        has_responses = feed or any(branch.response is not None for branch in branch_set.branches)
        settings = EngineSettings(
            slots=self.slots,
            window_rows=self.window_rows,
            chunk=self.chunk,
            attention=self.attention,
            limits=self.limits[-1:] if has_responses else self.limits,
            max_tokens=self.sample_config.max_tokens if self.limits else None,
        )
        workload = Workload(
            trunks=sum(len(trunk) > 0 for trunk in branch_set.trunks),
            branches=sum(budget > 0 for budget in branch_set.budgets),
            longest=branch_set.longest,
            budget=max([feed.budget if feed else 1, *branch_set.budgets]),
        )
        platform = platform_of(self.mesh)
        sizes, num_bytes = sizes_of(
            self.model, self.mesh, platform, memory, settings, workload, feed=feed
        )
        self.stats.cache_bytes = max(self.stats.cache_bytes, num_bytes)
        shards = num_shards(self.mesh)
        row_per_branch = feed is not None and sizes.lanes == 1
        jobs = assign(branch_set, shards, sizes.rows, row_per_branch=row_per_branch)
        if feed is not None:
            return jobs, sizes
        num_items = max(sum(len(job.items) for job in of_shard) for of_shard in jobs)
        # XLA computes empty lanes, too, and a row with one branch needs only one lane.
        is_single = all(len(job.items) <= 1 for of_shard in jobs for job in of_shard)
        lanes = 1 if is_single and not sizes.storage.read_by_kernel else sizes.lanes
        return jobs, dataclasses.replace(sizes, queue=queue_size(num_items), lanes=lanes)

    def _decoding(self, params: Params) -> split.Weights:
        """The copy of the weights that decoding reads.

        The copy of the previous call is reused if `params` has the same JAX arrays as in that call.
        """
        source = jax.tree.leaves(params)
        if self._decoding_copy is None or not self._decoding_copy.is_of(source):
            self._decoding_copy = None  # frees the old copy before the new one is made
            placed = place_params(self.mesh, params)
            weights = split.for_decoding(self.model, self.mesh, placed)
            self._decoding_copy = _DecodingCopy(source, weights)
        return self._decoding_copy.weights

    def _memory(self, params: Params) -> int:
        """The most bytes of keys and values on a device.

        Without `memory_gib` the free memory is measured once, so that the shapes of later phases do
        not change with it.
        """
        if self.memory_gib is not None:
            return int(self.memory_gib * 2**30)
        if self._memory_bytes is None:
            jax.block_until_ready(self._decoding(params))  # the copy takes memory, too
            self._memory_bytes = memory_to_use(self.mesh)
        return self._memory_bytes

    @functools.cached_property
    def _automaton(self) -> tuple[np.ndarray, jax.Array]:
        """The table of the stop strings' automaton, as a NumPy array and as a JAX array."""
        stop, size = self.sample_config.stop, self.model.cfg.vocab_size
        texts = map(token_text(self.tokenizer), range(size)) if stop else [""] * size
        table = stop_table(stop, list(texts))
        return table, put_on_mesh(self.mesh, split.REPLICATED, table)

    def _resume(
        self, params: Params, branch_set: BranchSet, cut_short: Sequence[DecodedBranch]
    ) -> Iterator[DecodedBranch]:
        """Resumes branches that were cut short (`Reader.read`), and yields them as they end.

        A random number depends only on the branch's seed and the token's index. Each branch
        therefore continues after its last token as if decoding had never ended it.
        """
        trunks, resumed, budgets = [], [], []
        for n, decoded in enumerate(cut_short):
            branch = branch_set.branches[decoded.branch]
            prefix = branch_set.trunks[branch.trunk][: branch.position]
            trunks.append(prefix + decoded.tokens.tolist())
            response = branch.position if branch.response is None else branch.response
            resumed.append(Branch(n, len(trunks[n]), branch.seed, response))
            budgets.append(branch_set.budgets[decoded.branch] - len(decoded.tokens))
            if not budgets[n]:
                yield decoded._replace(ended=LENGTH)
        if any(budgets):
            remaining = branch_set_of(trunks, resumed, budgets, self.model.cfg, scored=False)
            for more in self._phase(params, remaining, FeedQueue(None, self._checked)).run():
                before = cut_short[more.branch]
                yield DecodedBranch(
                    branch=before.branch,
                    tokens=np.concatenate([before.tokens, more.tokens]),
                    logprobs=np.concatenate([before.logprobs, more.logprobs]),
                    ended=more.ended,
                )
