"""The fixed parts of a run, which training and evaluation share: task, problems, model, mesh."""

import contextlib
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jax.sharding import Mesh

from vinejax.core.settings import Config, SampleConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import PromptedProblem
from vinejax.engine.engine import Engine
from vinejax.engine.memory import memory_to_use, slots_for
from vinejax.model.decoder import Decoder, Params
from vinejax.model.lora import fresh_adapters, weights_of
from vinejax.model.sharding import platform_of
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.turns import TurnSampler
from vinejax.runtime.lock import WorkdirLock
from vinejax.runtime.offload import to_device
from vinejax.session.budget import longest_sequence
from vinejax.tasks.base import Split, Task
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.rewards import TrainerState


@dataclasses.dataclass(frozen=True)
class Session(contextlib.AbstractContextManager["Session"]):
    """The fixed parts of a run; leaving the context closes the grader and releases the lock.

    In `cfg`, fields that said 'method' have the method's own choice (`Method.resolve`). `start` has
    the weights that the policy starts from, which are also those of the reference model. With
    `offload.reference` these weights are in the host's memory until `load_reference` moves them to
    the devices. If adapters are trained (`model.lora_rank`), `start` has the compute dtype. In a
    training run that does not read these weights again, they are freed (`release_start`).
    """

    cfg: Config
    method: Any  # the run's `methods.base.Method`, whose module imports this one
    workdir: epath.Path
    task: Task
    graded: GradedTask
    mesh: Mesh
    model: Decoder
    start: Params
    tokenizer: Tokenizer
    problems: dict[Split, list[PromptedProblem]]
    lock: WorkdirLock
    loaded: Any = None  # what the method's state loaded (`MethodState.load`), in training runs

    def __post_init__(self):
        self.set_progress(0)

    def set_progress(self, done: int) -> None:
        """Tells reward functions, from now on, that `done` iterations of the run are finished."""
        self.graded.state = TrainerState(done, self.cfg.iterations)

    def __exit__(self, *_: object) -> None:
        try:
            self.graded.close()
        finally:
            self.lock.release()

    def load_reference(self) -> Params:
        """The start's weights on the devices, where they stay while the caller holds them."""
        return to_device(self.start)

    def release_start(self) -> None:
        """Frees the start's weights, unless the method reads them again (`Method.keeps_start`).

        Call this in a training run as soon as its state exists, which never shares their memory.
        """
        if not self.method.keeps_start(self.cfg):
            for weight in jax.tree.leaves(self.start):
                weight.delete()

    @property
    def base(self) -> Params | None:
        """The fixed weights to which adapters are added; None if all weights are trained."""
        return self.start if self.cfg.model.lora_rank else None

    def fresh_params(self) -> Params:
        """The parameters before the first update: the start's weights, or fresh adapters."""
        if self.base is None:
            return self.load_reference()
        rank, targets = self.cfg.model.lora_rank, tuple(self.cfg.model.lora_targets)
        return fresh_adapters(self.model, self.mesh, rank, targets, self.cfg.seed)

    def weights(self, trained: Params) -> Params:
        """The policy's weights: `trained` or, if these are adapters, `base` with them."""
        return weights_of(trained, self.base)

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine of training, made at its first use."""
        return self._make_engine(self.cfg.sample)

    @functools.cached_property
    def evaluator(self) -> Engine:
        """The engine of evaluation, which differs from `engine` only in temperature and top-p."""
        chosen = {"temperature": self.cfg.eval.temperature, "top_p": self.cfg.eval.top_p}
        return self._make_engine(dataclasses.replace(self.cfg.sample, **chosen))

    def sampler(self, iteration: int) -> Sampler:
        """The sampler of an iteration's solutions and continuations."""
        return self.sampler_of(self.engine, self.cfg, iteration)

    def sampler_of(self, engine: Engine, cfg: Config, iteration: int) -> Sampler:
        """The sampler of `iteration` that uses `engine` and the settings `cfg`."""
        kind = TurnSampler if isinstance(self.task, MultiTurn) else Sampler
        return kind(engine, self.graded, cfg, iteration)

    @functools.cached_property
    def slots(self) -> int:
        """`rollout.slots`; if it is None, the number that suits the devices and their free memory.

        All hosts must ask for it the first time together.
        """
        rollout, platform = self.cfg.rollout, platform_of(self.mesh)
        if rollout.slots is not None:
            return rollout.slots
        memory = int((rollout.memory_gib or 0) * 2**30)
        if platform == "gpu" and not memory:
            size = sum(leaf.size for leaf in jax.tree.leaves(self.start))
            copy = size * jnp.dtype(self.model.compute.dtype).itemsize // self.mesh.shape["tensor"]
            memory = memory_to_use(self.mesh, reserved=copy)
        return slots_for(self.model, self.mesh, platform, memory, self.cfg.sample.max_tokens)

    def _make_engine(self, sample: SampleConfig) -> Engine:
        rollout = self.cfg.rollout
        if isinstance(self.task, MultiTurn):
            sample = dataclasses.replace(sample, stop=sample.stop + self.task.ends_turn)
        longest = longest_sequence(self.cfg, self.model.cfg.context)
        return Engine(
            self.model,
            sample,
            self.tokenizer,
            self.mesh,
            slots=self.slots,
            memory_gib=rollout.memory_gib,
            attention=rollout.attention,
            skip_repeats=rollout.skip_repeats,
            limits=(self.cfg.data.max_prompt_tokens, longest),
        )
