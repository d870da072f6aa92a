"""The one way to generate text: `grow(params, trunks, branches)`.

A trunk is a token sequence whose KV is computed once and then only read. A branch is (trunk,
position, seed): a continuation that starts after `position` tokens of its trunk. Sampling
solutions, Monte Carlo values and evaluation are all branches.

Trunks pass through in waves. A wave has P rows of G slots; a row serves the branches of one trunk,
and a slot whose branch has ended takes the row's next one inside the compiled loop (`decode.py`).
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vinejax.config import GROUP, SampleConfig
from vinejax.model.decoder import Decoder, Params
from vinejax.rollout.decode import EOS, NOT_FINITE, Queue, TrunkKV, decode_wave, prefill
from vinejax.runtime.compiles import num_compiles
from vinejax.tasks.text import cut_at_stop, decode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_ITEMS_A_SLOT = 16  # of one wave: it bounds the queue, whose size is part of a compiled program


@dataclasses.dataclass(frozen=True)
class Branch:
    """A continuation to be drawn after the first `position` tokens of trunk number `trunk`."""

    trunk: int
    position: int  # 1 <= position <= len(trunk)
    seed: int  # 0 <= seed < 2**64; draw n (absolute token index) uses fold_in(row key, n)


@dataclasses.dataclass(frozen=True)
class Grown:
    """What grew on a branch."""

    tokens: list[int]
    logprobs: list[float]  # temperature-scaled, full softmax
    text: str  # ends before a stop string
    finish: str  # 'eos' | 'stop' | 'length'


@dataclasses.dataclass
class EngineStats:
    """Counted since the engine was made. A slot-step is one slot in one decode step."""

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    decode_steps: int = 0
    slot_steps: int = 0
    compiles: int = 0

    @property
    def slot_utilisation(self) -> float:
        """Share of slot-steps that gave a token."""
        return self.decoded_tokens / max(self.slot_steps, 1)

    def minus(self, earlier: "EngineStats") -> "EngineStats":
        """What was counted since `earlier`, a copy taken with dataclasses.replace."""
        now, then = dataclasses.astuple(self), dataclasses.astuple(earlier)
        return EngineStats(*(a - b for a, b in zip(now, then, strict=True)))


def bucket(length: int, least: int = 16) -> int:
    """The next length of 16, 24, 32, 48, 64, 96 ...: few programs, at most a third of padding."""
    size = least
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@dataclasses.dataclass(frozen=True)
class _Row:
    trunk: int
    branches: list[int]  # longest expected first


class Engine:
    """Grows branches on trunks with one model, sampling configuration and tokenizer.

    `slots` rows are decoded at once, `group` of them on one trunk; both fix compiled shapes, so
    that a branch's tokens depend on neither its neighbours nor how many there are.
    """

    def __init__(
        self,
        model: Decoder,
        sample_config: SampleConfig,
        tokenizer: "PreTrainedTokenizerBase",
        mesh: Mesh | None = None,
        slots: int = 64,
        group: int = GROUP,
    ):
        if slots % group:
            raise ValueError(f"slots = {slots} must be a multiple of group = {group}")
        cfg = sample_config
        if cfg.temperature < 0 or not 0 < cfg.top_p <= 1 or cfg.top_k < 0:
            raise ValueError(f"{cfg}: temperature >= 0, 0 < top_p <= 1 and top_k >= 0 are needed")
        self.model, self.sample_config, self.tokenizer = model, sample_config, tokenizer
        # What decoding compiles for: stop strings and budgets are no part of the program.
        self._drawing = dataclasses.replace(sample_config, max_tokens=1, stop=())
        self.num_rows, self.group = slots // group, group
        self.stats = EngineStats()
        own: Any = tokenizer.eos_token_id
        self.eos_ids = tuple(sorted({*model.cfg.eos_ids} | ({own} - {None})))
        self._mesh = mesh

    def grow(
        self,
        params: Params,
        trunks: list[list[int]],
        branches: list[Branch],
        max_tokens: int | list[int] | None = None,
    ) -> list[Grown]:
        """Continuations, one a branch, in the branches' order.

        `max_tokens` bounds each (default: the sampling configuration's), and so does the model's
        context less the position; a bound of 0 gives an empty 'length'. Raises ValueError naming a
        bad branch or trunk, FloatingPointError naming a trunk whose logits are not finite.
        """
        self._check(trunks, branches)
        if max_tokens is None:
            max_tokens = self.sample_config.max_tokens
        limits = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(branches)
        if len(limits) != len(branches):
            raise ValueError(f"{len(limits)} entries of max_tokens for {len(branches)} branches")
        budgets = [
            min(limit, self.model.cfg.context - branch.position)
            for limit, branch in zip(limits, branches, strict=True)
        ]
        compiles = num_compiles()
        results = [Grown([], [], "", "length") for _ in branches]
        rows = self._rows(branches, budgets)
        for start in range(0, len(rows), self.num_rows):
            wave = rows[start : start + self.num_rows]
            for index, grown in self._grow_wave(params, trunks, branches, budgets, wave):
                results[index] = grown
        self.stats.compiles += num_compiles() - compiles
        return results

    def _check(self, trunks: list[list[int]], branches: list[Branch]) -> None:
        for i, trunk in enumerate(trunks):
            if not trunk:
                raise ValueError(f"trunk {i} is empty")
            if len(trunk) > self.model.cfg.context:
                raise ValueError(
                    f"trunk {i} has {len(trunk)} tokens, the context is {self.model.cfg.context}"
                )
            if min(trunk) < 0 or max(trunk) >= self.model.cfg.vocab_size:
                raise ValueError(f"trunk {i} has ids outside 0 .. {self.model.cfg.vocab_size - 1}")
        for i, branch in enumerate(branches):
            if not 0 <= branch.trunk < len(trunks):
                raise ValueError(f"branch {i}: no trunk {branch.trunk} among {len(trunks)}")
            if not 1 <= branch.position <= len(trunks[branch.trunk]):
                raise ValueError(
                    f"branch {i}: position {branch.position} is outside "
                    f"1 .. {len(trunks[branch.trunk])}, the length of trunk {branch.trunk}"
                )
            if not 0 <= branch.seed < 2**64:
                raise ValueError(f"branch {i}: seed {branch.seed} is not a 64-bit number")

    def _rows(self, branches: list[Branch], budgets: list[int]) -> list[_Row]:
        """Branches by trunk. A trunk with more than its share of the work gets several rows."""
        by_trunk: dict[int, list[int]] = {}
        for i, branch in enumerate(branches):
            if budgets[i] > 0:
                by_trunk.setdefault(branch.trunk, []).append(i)
        total = sum(map(len, by_trunk.values()))
        share = min(max(self.group, -(-total // self.num_rows)), self.group * MAX_ITEMS_A_SLOT)
        rows = []
        for trunk, indices in by_trunk.items():
            indices = sorted(indices, key=lambda i: -budgets[i])
            parts = -(-len(indices) // share)
            rows += [_Row(trunk, indices[part::parts]) for part in range(parts)]
        # Rows of like work share a wave: a wave lasts as long as its longest row.
        return sorted(rows, key=lambda row: -sum(budgets[i] for i in row.branches))

    def _grow_wave(
        self,
        params: Params,
        trunks: list[list[int]],
        branches: list[Branch],
        budgets: list[int],
        wave: list[_Row],
    ) -> Iterator[tuple[int, Grown]]:
        """Grow the branches of up to P rows; yields (branch index, result)."""
        items = [i for row in wave for i in row.branches]
        trunk_kv = self._prefill(params, trunks, branches, wave)
        queue = self._queue(trunks, branches, budgets, wave)
        width = bucket(max(budgets[i] for i in items))
        out, steps = decode_wave(
            self.model, self._drawing, self.eos_ids, width, self.group,
            params, trunk_kv, queue,
        )  # fmt: skip
        out = jax.device_get(out)
        self.stats.decode_steps += int(steps)
        self.stats.slot_steps += int(steps) * self.num_rows * self.group
        prefix_texts: dict[tuple[int, int], str] = {}
        for item, i in enumerate(items):
            branch, length = branches[i], int(out.lengths[item])
            if out.ended[item] == NOT_FINITE:
                raise FloatingPointError(
                    f"branch {i} on trunk {branch.trunk}: the logits of its token {length} are not "
                    f"finite; the weights have diverged"
                )
            self.stats.decoded_tokens += length
            prefix = trunks[branch.trunk][: branch.position]
            place = (branch.trunk, branch.position)
            if place not in prefix_texts:
                prefix_texts[place] = decode(self.tokenizer, prefix)
            tokens = out.tokens[item, :length].tolist()
            kept, text, hit = cut_at_stop(
                self.tokenizer, prefix, prefix_texts[place], tokens, self.sample_config.stop
            )
            finish = "stop" if hit else "eos" if out.ended[item] == EOS else "length"
            yield i, Grown(tokens[:kept], out.logprobs[item, :kept].tolist(), text, finish)

    def _prefill(
        self, params: Params, trunks: list[list[int]], branches: list[Branch], wave: list[_Row]
    ) -> TrunkKV:
        """KV of the wave's trunks up to their last branch, each computed once."""
        needed: dict[int, int] = {}
        for row in wave:
            last = max(branches[i].position for i in row.branches)
            needed[row.trunk] = max(last, needed.get(row.trunk, 0))
        tokens = np.zeros((self.num_rows, bucket(max(needed.values()), least=32)), np.int32)
        for n, (trunk, length) in enumerate(needed.items()):
            tokens[n, :length] = trunks[trunk][:length]
        self.stats.prefill_tokens += sum(needed.values())
        place = {trunk: n for n, trunk in enumerate(needed)}
        row_of = np.zeros(self.num_rows, np.int32)
        row_of[: len(wave)] = [place[row.trunk] for row in wave]
        return prefill(self.model, params, self._put(tokens), self._put(row_of))

    def _queue(
        self,
        trunks: list[list[int]],
        branches: list[Branch],
        budgets: list[int],
        wave: list[_Row],
    ) -> Queue:
        """The wave's branches row by row, in arrays of one fixed size."""
        capacity = self.num_rows * self.group * MAX_ITEMS_A_SLOT
        position, token, budget = (np.ones(capacity, np.int32) for _ in range(3))
        seed = np.zeros((capacity, 2), np.uint32)
        ends = np.cumsum([len(row.branches) for row in wave])
        for item, i in enumerate(i for row in wave for i in row.branches):
            branch = branches[i]
            position[item], budget[item] = branch.position, budgets[i]
            token[item] = trunks[branch.trunk][branch.position - 1]
            seed[item] = branch.seed >> 32, branch.seed & 0xFFFFFFFF
        end = np.full(self.num_rows, ends[-1], np.int32)
        end[: len(wave)] = ends
        first = np.concatenate([[0], end[:-1]]).astype(np.int32)
        arrays = (position, token, seed, budget, first, end)
        return Queue(*(self._put(x) for x in arrays))

    def _put(self, x: np.ndarray) -> jax.Array:
        """Onto the mesh, on every device of it."""
        if self._mesh is None:
            return jax.numpy.asarray(x)
        return jax.device_put(x, NamedSharding(self._mesh, PartitionSpec()))
