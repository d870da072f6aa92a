"""The programs of an iteration, traced for chips that are not there.

Every argument is a shape with its place on the mesh, as the run itself would hand it over.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from vinejax.baselines.critic import Targets, critic_step, fresh_critic, make_critic_optimizer
from vinejax.learner.objective import METHODS, objective_of
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.score import score
from vinejax.learner.step import train_step
from vinejax.learner.update import state_shardings
from vinejax.model.decoder import Decoder
from vinejax.model.hf.names import abstract_params
from vinejax.model.sharding import param_shardings
from vinejax.plan.case import Case
from vinejax.plan.memory import Phase, train_length
from vinejax.plan.work import pass_rows
from vinejax.rollout import arrays, decode, split, window
from vinejax.rollout.cache import WINDOW, CacheLayout
from vinejax.types import Batch, TrainState

UPDATES = 1000  # of a run: part of the learning rate's schedule, but of no shape


class Programs:
    """Lowers each program of a case, by its name in `names`."""

    def __init__(self, case: Case, phase: Phase, mesh: Mesh):
        self.case, self.phase, self.mesh = case, phase, mesh
        self.model = Decoder(case.model.cfg, mesh)
        self.params = self._placed(
            abstract_params(self.model), param_shardings(mesh, abstract_params(self.model))
        )

    def lower(self, name: str) -> Any:
        """A `jax.stages.Lowered`."""
        return {
            "decode copy": self._decode_copy,
            "prefill": self._prefill,
            "decode": self._decode,
            "score": self._score,
            "train_step": self._train_step,
            "critic_step": self._critic_step,
        }[name]()

    def _decode_copy(self) -> Any:
        return split.for_decoding.lower(self.model, self.mesh, self.params)

    def _prefill(self) -> Any:
        places = split.num_shards(self.mesh) * self.phase.sizes.batch
        held, rows, _ = self._caches()
        served = window.Rows(*(self._numbers(places) for _ in range(3)))
        tokens = self._numbers(places, self.phase.sizes.columns)
        temperature = None  # of a model in float32 on one place, it also scores
        if self.model.cfg.compute_dtype == "float32" and self.case.tensor == 1:
            temperature = self.case.cfg.sample.temperature
        return window.prefill.lower(
            self.model, self.mesh, temperature, self._weights(), held, rows, tokens,
            window.Entering(self._numbers(places), served),
        )  # fmt: skip

    def _decode(self) -> Any:
        cfg, sizes = self.case.cfg.sample, self.phase.sizes
        drawing = type(cfg)(cfg.temperature, cfg.top_p, cfg.top_k, max_tokens=1)
        held, rows, slots = self._caches()
        n = split.num_shards(self.mesh) * sizes.queue
        seed = self._shape((n, 2), jnp.uint32, split.SHARDS)
        queue = decode.Queue(
            position=self._numbers(n), token=self._numbers(n), seed=seed, budget=self._numbers(n),
            match=self._numbers(n), before=self._numbers(n),
        )  # fmt: skip
        # A state a letter of the stop strings: their tokens are not known here, this is their most.
        states = sum(map(len, cfg.stop))
        stops = self._shape((states, self.model.cfg.vocab_size), jnp.int32, Spec())
        waiting = jax.ShapeDtypeStruct((), jnp.bool_)
        config = decode.DecodeConfig(self.model, self.mesh, drawing, self.model.cfg.eos_ids, sizes)
        inputs: Any = decode.Inputs._make([self._weights(), held, queue, stops, waiting])
        return decode.decode_chunk.lower(config, inputs, slots, rows)

    def _score(self) -> Any:
        batch = self._batch(pass_rows(self.case))
        return score.lower(self.model, self.params, batch, self.case.cfg.sample.temperature)

    def _train_step(self) -> Any:
        cfg = self.case.cfg
        # Methods that sample first train on pairs or likelihoods: as large a step as VinePPO's.
        objective = objective_of(cfg if cfg.method in METHODS else type(cfg)())
        optimizer = make_optimizer(cfg.optimizer, UPDATES)
        state = self._state(self.params, optimizer)
        batch = self._batch(cfg.ppo.minibatch)
        return train_step.lower(self.model, optimizer, objective, state, batch)

    def _critic_step(self) -> Any:
        cfg = self.case.cfg
        start = jax.eval_shape(
            lambda params: fresh_critic(self.model, params, cfg.seed, self.mesh), self.params
        )
        params = self._placed(start, param_shardings(self.mesh, start))
        optimizer = make_critic_optimizer(cfg, UPDATES)
        batch = self._batch(cfg.ppo.minibatch)
        rows = batch, Targets(batch.advantages, batch.advantages)
        return critic_step.lower(
            self.model, optimizer, cfg.critic.clip, cfg.ppo.microbatch,
            self._state(params, optimizer), rows,
        )  # fmt: skip

    # --- arguments

    def _placed(self, shapes: Any, shardings: Any) -> Any:
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes, shardings,
        )  # fmt: skip

    def _shape(self, shape: tuple[int, ...], dtype: Any, spec: Spec) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, spec))

    def _numbers(self, *shape: int) -> Any:
        return self._shape(shape, jnp.int32, split.SHARDS)

    def _weights(self) -> Any:
        shapes = jax.eval_shape(
            lambda params: split.for_decoding(self.model, self.mesh, params), self.params
        )
        specs = split.weight_specs(self.model, self.mesh)
        return jax.tree.map(lambda x, spec: self._shape(x.shape, x.dtype, spec), shapes, specs)

    def _caches(self) -> tuple[window.Window, window.Rows, decode.Slots]:
        held, rows, slots = jax.eval_shape(
            lambda: arrays.empty_caches(self.model, self.mesh, self.phase.sizes)
        )

        def placed(tree: Any, spec: Spec) -> Any:
            return jax.tree.map(lambda x: self._shape(x.shape, x.dtype, spec), tree)

        def cache(tree: Any, layout: CacheLayout) -> Any:
            return placed(tree, layout.spec)

        keys, values = map(cache, (slots.keys, slots.values), self.phase.sizes.ring)
        numbers = placed(slots._replace(keys=[], values=[]), split.SHARDS)
        slots = numbers._replace(keys=keys, values=values)
        return cache(held, WINDOW), placed(rows, split.SHARDS), slots

    def _batch(self, rows: int) -> Batch:
        """On the host, as the loop has it."""
        shape = (rows, train_length(self.case))
        kinds = [np.int32] * 3 + [np.bool_] + [np.float32] * 3
        return Batch(*(jax.ShapeDtypeStruct(shape, kind) for kind in kinds))  # pyright: ignore

    def _state(self, params: Any, optimizer: Any) -> TrainState:
        step: Any = jax.ShapeDtypeStruct((), jnp.int32)
        shapes = TrainState(step, params, jax.eval_shape(optimizer.init, params))
        return self._placed(shapes, state_shardings(params, optimizer, self.mesh))
