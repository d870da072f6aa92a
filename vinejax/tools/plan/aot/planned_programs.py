"""Lowers the programs of an iteration for chips that this machine does not have.

Every argument is a shape with the sharding that a run on these chips would use.
"""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jax.stages import Lowered
from jax.typing import DTypeLike
from jaxtyping import PyTree

from vinejax.core.types import Batch, TrainState
from vinejax.engine import decode, split, window
from vinejax.engine import memory as arrays
from vinejax.engine.layout import WINDOW
from vinejax.engine.unpadded_prefill import CompactPlaces, place_counts
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.score import score
from vinejax.learner.update import state_shardings, update_step
from vinejax.methods import vineppo
from vinejax.methods.ppo import Targets, critic_objective, fresh_critic, make_critic_optimizer
from vinejax.model.hf.names import abstract_params
from vinejax.model.lora import abstract_adapters, with_adapters
from vinejax.model.sharding import num_shards, placed_shapes, platform_of
from vinejax.tools.plan.case import Case
from vinejax.tools.plan.planned_memory import PlannedPhase, is_decode, train_length

UPDATES = 1000  # any number, for the schedule of the learning rate; no shape depends on it


class Lowering:
    """Lowers the programs of a case for a mesh, with the sizes of a phase of the engine."""

    def __init__(self, case: Case, phase: PlannedPhase, mesh: Mesh):
        self.case = case
        self.phase = phase
        self.mesh = mesh
        self.model = dataclasses.replace(case.model, mesh=mesh)
        self.trained = placed_shapes(mesh, abstract_params(self.model))
        self.base = None
        settings = case.cfg.model
        if settings.lora_rank:
            dtype = self.model.compute.dtype
            self.base = placed_shapes(mesh, self.trained, dtype)
            adapters = abstract_adapters(self.model, settings)
            self.trained = placed_shapes(mesh, adapters)
        # All weights of the policy.
        self.params = self.trained if self.base is None else with_adapters(self.base, self.trained)

    def lower(self, name: str) -> Lowered:
        """Lowers the program with this name. Raises KeyError for an unknown name."""
        return {
            "decode copy": lambda: split.for_decoding.lower(self.model, self.mesh, self.params),
            "prefill": self._prefill,
            "decode": self._decode,
            "score": self._score,
            "train_step": self._train_step,
            "critic_step": self._critic_step,
        }["decode" if is_decode(name) else name]()

    def _prefill(self) -> Lowered:
        places = num_shards(self.mesh) * self.phase.sizes.batch
        cache, rows, _ = self._caches()
        served = window.WindowRows(*(self._numbers(places) for _ in range(3)))
        entering = window.EnteringTrunks(self._numbers(places), served)
        tokens = self._numbers(places, self.phase.sizes.columns)
        temperature = None  # set where prefill also scores: in float32 and without a tensor axis
        if self.model.compute.dtype == "float32" and self.case.tensor == 1:
            temperature = self.case.cfg.sample.temperature
        weights = self._weights()
        cfg = self.case.cfg
        keeps_hidden = (  # where continuations skip tokens that repeat their trunk
            self.phase.name == "values" and cfg.rollout.skip_repeats and cfg.sample.temperature > 0
        )
        lengths, compact_places, sizes = self._numbers(places), None, self.phase.sizes
        if computed := place_counts(self.case.platform, sizes.batch, sizes.columns):
            own = num_shards(self.mesh) * computed[-1]
            compact_places = CompactPlaces(self._numbers(own), self._numbers(places, sizes.columns))
        return window.prefill.lower(
            self.model, self.mesh, temperature, weights, cache, rows, tokens, lengths, entering,
            keeps_hidden, compact_places=compact_places,
        )  # fmt: skip

    def _decode(self) -> Lowered:
        cfg = self.case.cfg.sample
        sizes = self.phase.sizes
        drawing = type(cfg)(cfg.temperature, cfg.top_p, cfg.top_k, max_tokens=1)
        cache, rows, slots = self._caches()
        branches = num_shards(self.mesh) * sizes.queue
        queue = decode.Queue._make(self._numbers(branches) for _ in decode.Queue._fields)
        queue = queue._replace(seed=self._shape((branches, 2), jnp.uint32, split.SHARDS))
        # The stop strings are not tokenized here; they have at most one state per character.
        states = sum(map(len, cfg.stop))
        stops = self._shape((states, self.model.cfg.vocab_size), jnp.int32, Spec())
        waiting = jax.ShapeDtypeStruct((), jnp.bool_)
        config = decode.DecodeConfig(self.model, self.mesh, drawing, self.model.cfg.eos_ids, sizes)
        inputs = decode.ChunkInputs._make([self._weights(), cache, queue, stops, waiting])
        return decode.chunk_program(platform_of(self.mesh)).lower(config, inputs, slots, rows)

    def _score(self) -> Lowered:
        batch = self._batch(self.case.pass_rows)
        return score.lower(self.model, self.params, batch, self.case.cfg.sample.temperature)

    def _train_step(self) -> Lowered:
        cfg, method = self.case.cfg, self.case.method
        if method.credit is None:  # trains on pairs or likelihoods, in steps of VinePPO's size
            method = vineppo.METHOD
        objective = method.objective(self.model, cfg)
        optimizer = make_optimizer(cfg.optimizer, UPDATES)
        state, batch = self._state(self.trained, optimizer), self._batch(cfg.ppo.minibatch)
        if cfg.ppo.correction != "none":
            batch = batch._replace(weights=batch.advantages)
        return update_step.lower(objective, optimizer, state, batch, self.base)

    def _critic_step(self) -> Lowered:
        cfg = self.case.cfg
        start = jax.eval_shape(
            lambda params: fresh_critic(self.model, params, cfg.seed, self.mesh), self.trained
        )
        params = placed_shapes(self.mesh, start)
        optimizer = make_critic_optimizer(cfg, UPDATES)
        batch = self._batch(cfg.ppo.minibatch)
        rows = batch, Targets(batch.advantages, batch.advantages)
        objective = critic_objective(self.model, cfg)
        state = self._state(params, optimizer)
        return update_step.lower(objective, optimizer, state, rows, self.base)

    # --- arguments

    def _shape(self, shape: tuple[int, ...], dtype: DTypeLike, spec: Spec) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, spec))

    def _numbers(self, *shape: int) -> Any:
        """A ShapeDtypeStruct of an int32 array whose first axis is split over the shards."""
        return self._shape(shape, jnp.int32, split.SHARDS)

    def _weights(self) -> split.Weights:
        return split.abstract_weights(self.model, self.mesh, self.params)

    def _caches(self) -> tuple[window.Window, window.WindowRows, decode.Slots]:
        cache, rows, slots = jax.eval_shape(
            lambda: arrays.empty_caches(self.model, self.mesh, self.phase.sizes)
        )

        def placed(tree: PyTree, spec: Spec) -> PyTree:
            return jax.tree.map(lambda x: self._shape(x.shape, x.dtype, spec), tree)

        specs = decode.specs_of(slots, self.phase.sizes.slots)
        slots = jax.tree.map(lambda x, spec: self._shape(x.shape, x.dtype, spec), slots, specs)
        return placed(cache, WINDOW.spec), placed(rows, split.SHARDS), slots

    def _batch(self, rows: int) -> Batch:
        """The batch of host arrays that the training loop passes, as shapes without shardings."""
        shape = (rows, train_length(self.case))
        integers, flags, floats = (
            cast(np.ndarray, jax.ShapeDtypeStruct(shape, kind))
            for kind in (np.int32, np.bool_, np.float32)
        )
        is_shared = self.case.cfg.ppo.share_prefixes
        return Batch(
            tokens=integers,
            segment_ids=integers,
            positions=integers,
            mask=flags,
            advantages=floats,
            old_logprobs=floats,
            ref_logprobs=floats,
            seen_until=integers if is_shared else None,
        )

    def _state(self, params: PyTree, optimizer: optax.GradientTransformation) -> TrainState:
        step = cast(jax.Array, jax.ShapeDtypeStruct((), jnp.int32))
        shapes = TrainState(step, params, jax.eval_shape(optimizer.init, params))
        shardings = state_shardings(params, optimizer, self.mesh)
        return jax.tree.map(lambda x, at: self._shape(x.shape, x.dtype, at.spec), shapes, shardings)
