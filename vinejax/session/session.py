"""A run's fixed parts, which training and evaluation both need: task, problems, model, mesh."""

import contextlib
import dataclasses
import functools
from typing import Any

from etils import epath
from jax.sharding import Mesh

from vinejax.core.settings import Config, SampleConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import PromptedProblem
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Decoder, Params
from vinejax.model.lora import fresh_adapters, weights_of
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.turns import TurnSampler
from vinejax.runtime.lock import WorkdirLock
from vinejax.runtime.offload import to_device
from vinejax.session.budget import longest_sequence
from vinejax.tasks.base import Split, Task
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.graded import GradedTask


@dataclasses.dataclass(frozen=True)
class Session(contextlib.AbstractContextManager["Session"]):
    """A run's fixed parts. The context manager closes the grader and releases the workdir's lock.

    In `cfg` every field that says 'method' has the method's own choice (`Method.resolve`).
    `start` has the weights that the policy starts from, which are also the reference model's. With
    `offload.reference` they are in the host's memory until `load_reference` brings them. Where
    adapters are trained (`model.lora_rank`), they are in the compute dtype and below the adapters.
    """

    cfg: Config
    method: Any  # the run's `methods.base.Method`, which is above this room
    workdir: epath.Path
    task: Task
    graded: GradedTask
    mesh: Mesh
    model: Decoder
    start: Params
    tokenizer: Tokenizer
    problems: dict[Split, list[PromptedProblem]]
    lock: WorkdirLock

    def __exit__(self, *_: object) -> None:
        try:
            self.graded.close()
        finally:
            self.lock.release()

    def load_reference(self) -> Params:
        """The start's weights, on the devices while the caller holds them."""
        return to_device(self.start)

    @property
    def base(self) -> Params | None:
        """The weights below the adapters that are trained; None where all weights are trained."""
        return self.start if self.cfg.model.lora_rank else None

    def fresh_params(self) -> Params:
        """What is trained, before the first update: the start's weights, or fresh adapters."""
        if self.base is None:
            return self.load_reference()
        rank, targets = self.cfg.model.lora_rank, tuple(self.cfg.model.lora_targets)
        return fresh_adapters(self.model, self.mesh, rank, targets, self.cfg.seed)

    def weights(self, trained: Params) -> Params:
        """The policy's weights: those that are trained, with those below if they are adapters."""
        return weights_of(trained, self.base)

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine of training, made at its first use."""
        return self._make_engine(self.cfg.sample)

    @functools.cached_property
    def evaluator(self) -> Engine:
        """The engine of evaluation: its own temperature and top-p, the rest as in training."""
        chosen = {"temperature": self.cfg.eval.temperature, "top_p": self.cfg.eval.top_p}
        return self._make_engine(dataclasses.replace(self.cfg.sample, **chosen))

    def sampler(self, iteration: int) -> Sampler:
        """Solutions and continuations of an iteration."""
        return self.sampler_of(self.engine, self.cfg, iteration)

    def sampler_of(self, engine: Engine, cfg: Config, iteration: int) -> Sampler:
        """Solutions and continuations by an engine and settings."""
        kind = TurnSampler if isinstance(self.task, MultiTurn) else Sampler
        return kind(engine, self.graded, cfg, iteration)

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
            slots=rollout.slots,
            memory_gib=rollout.memory_gib,
            attention=rollout.attention,
            skip_repeats=rollout.skip_repeats,
            limits=(self.cfg.data.max_prompt_tokens, longest),
        )
