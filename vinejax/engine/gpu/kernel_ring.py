"""A ring for GPUs whose attention is one kernel per layer."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vinejax.engine.cache import Allocator, Attend, DecodeStep, Sizes
from vinejax.engine.gpu.attention import KernelInputs, attend
from vinejax.engine.layout import SeparateKV
from vinejax.engine.ring import Ring, RingLayer, RingStorage
from vinejax.engine.shared_attention import HeadQueries
from vinejax.model.attention import AttentionRule
from vinejax.model.config import LayerFacts
from vinejax.model.rope import cos_and_sin


@dataclasses.dataclass(frozen=True)
class KernelRingStorage(RingStorage):
    """The static part of a ring that the kernel for GPU reads, in the layout of any GPU's ring."""

    interpret: bool = False  # whether the kernel runs without a GPU, for tests

    read_by_kernel = draws_by_kernel = True

    def empty(self, new: Allocator, sizes: Sizes) -> "KernelRing":
        return KernelRing(super().empty(new, sizes).layers, self, sizes.slots)

    def columns_read(self, seen: float, columns: int) -> float:
        return seen


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KernelRing(Ring):
    """The ring of one shard or of all shards, with one block per layer."""

    storage: KernelRingStorage = dataclasses.field(metadata=dict(static=True))

    rotates: ClassVar[bool] = True

    def attention(self, step: DecodeStep) -> Attend:
        queries, interpret = step.queries, self.storage.interpret
        trunk = jnp.where(queries.busy, queries.visible, 0)
        of_step = step.number.reshape(1), queries.row, trunk, queries.age

        def attend_in(
            q: HeadQueries, k: Float[Array, "B 1 K H"], v: Float[Array, "B 1 K H"],
            trunks: SeparateKV, ring: RingLayer, rule: AttentionRule, facts: LayerFacts,
        ) -> tuple[HeadQueries, RingLayer]:  # fmt: skip
            heads = [x.reshape(len(q), -1, q.shape[-1]) for x in (q, k, v)]
            positions = queries.position[:, None]
            turn = jnp.stack(cos_and_sin(positions, facts.frequencies, facts.rope_scale), axis=1)
            new = jnp.concatenate(heads, axis=1), turn
            arrays = *of_step, *new, trunks.keys, trunks.values, *ring.keys, *ring.values
            mixed, keys, values = attend(KernelInputs(*arrays), rule, interpret)
            return mixed.reshape(q.shape), RingLayer([keys], [values])

        return attend_in
