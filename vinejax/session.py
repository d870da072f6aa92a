"""What training and evaluation both need, made once: task, problems, model, weights, mesh."""

import dataclasses
import os
from typing import TYPE_CHECKING

import jax
from etils import epath
from jax.sharding import Mesh

from vinejax.baselines.sft import FOLDER, warm_up, with_compute_dtype
from vinejax.config import Config, SampleConfig
from vinejax.errors import ConfigError
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import make_mesh
from vinejax.model.weights import load_pretrained
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import PromptedProblem
from vinejax.tasks.base import Split, Task, load_task
from vinejax.tasks.prompts import load_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclasses.dataclass(frozen=True)
class Session:
    """A run's fixed parts. `start` is where the policy starts and what its KL is measured from."""

    cfg: Config
    task: Task
    mesh: Mesh
    model: Decoder
    start: Params
    tokenizer: "PreTrainedTokenizerBase"

    def problems(self, split: Split) -> tuple[list[PromptedProblem], list[str]]:
        """A split's problems with their prompt ids, and the ids of those that were too long."""
        data = self.cfg.data
        limit = min(data.max_prompt_tokens, self.model.cfg.context - 1)
        return load_problems(self.task, self.tokenizer, split, limit, data.chat_template)

    def engine(self, sample: SampleConfig) -> Engine:
        return Engine(self.model, sample, self.tokenizer, self.mesh, slots=self.cfg.rollout.slots)

    @property
    def sampler(self) -> Engine:
        return self.engine(self.cfg.sample)

    @property
    def evaluator(self) -> Engine:
        """The evaluation's temperature and top-p, the same budget and stop strings."""
        return self.engine(
            dataclasses.replace(
                self.cfg.sample, temperature=self.cfg.eval.temperature, top_p=self.cfg.eval.top_p
            )
        )


def open_session(cfg: Config, workdir: epath.Path) -> Session:
    """Load what the configuration names; without `model.path`, warm a fresh model up first.

    Raises ConfigError when the model's context leaves no room for prompt and response.
    """
    task = load_task(cfg.data)
    mesh = make_mesh(cfg.mesh)
    folder = cfg.model.path
    if not folder:
        folder = os.fspath(workdir / FOLDER)
        if not (workdir / FOLDER / "model.safetensors").exists():
            warm_up(cfg, workdir)
    model, start, tokenizer = load_pretrained(folder, mesh=mesh)
    if cfg.sample.max_tokens >= model.cfg.context:
        raise ConfigError(
            "sample.max_tokens",
            f"leaves no room for a prompt in the model's context of {model.cfg.context}",
            str(cfg.sample.max_tokens),
        )
    jax.block_until_ready(start)
    return Session(
        cfg, task, mesh, with_compute_dtype(model, cfg.model.compute_dtype), start, tokenizer
    )
