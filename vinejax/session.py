"""What training and evaluation both need, made once: task, problems, model, weights, mesh."""

import dataclasses
import json
import os
from typing import TYPE_CHECKING

from etils import epath
from jax.sharding import Mesh

from vinejax.baselines.sft import warm_start, with_compute_dtype
from vinejax.config import Config, SampleConfig
from vinejax.errors import ConfigError
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import make_mesh
from vinejax.model.weights import load_pretrained
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import PromptedProblem
from vinejax.runtime.workdir import check_workdir, record_run, write_atomic
from vinejax.tasks.base import Split, Task, load_task
from vinejax.tasks.prompts import load_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Session:
    """A run's fixed parts. `start` is where the policy starts and what its KL is measured from."""

    cfg: Config
    workdir: epath.Path
    task: Task
    mesh: Mesh
    model: Decoder
    start: Params
    tokenizer: "PreTrainedTokenizerBase"
    problems: dict[Split, list[PromptedProblem]]

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


def open_session(
    cfg: Config, path: str | os.PathLike, splits: tuple[Split, ...] = SPLITS
) -> Session:
    """Load what the configuration names, then open the workdir: what cannot run writes nothing.

    Without `model.path` a fresh model is warmed up first. Only the problems of `splits` are loaded.
    Prompts that are too long are left out: counted on the screen, listed in dropped_prompts.json.
    Raises ConfigError when the model's context leaves no room for the prompts, or for the response.
    """
    workdir = check_workdir(cfg, path)
    task = load_task(cfg.data)
    mesh = make_mesh(cfg.mesh)
    if cfg.model.path:
        folder = cfg.model.path
    else:
        check_context(cfg, cfg.model.context)  # before it is trained
        folder = os.fspath(warm_start(cfg, task, workdir))
    model, start, tokenizer = load_pretrained(folder, mesh=mesh)
    check_context(cfg, model.cfg.context)
    problems, dropped = prompted_problems(cfg, task, tokenizer, splits)
    record_run(cfg, workdir)
    if any(dropped.values()):
        write_atomic(workdir / "dropped_prompts.json", json.dumps(dropped, indent=1) + "\n")
    model = with_compute_dtype(model, cfg.model.compute_dtype)
    return Session(cfg, workdir, task, mesh, model, start, tokenizer, problems)


def check_context(cfg: Config, context: int) -> None:
    """ConfigError unless the model's context has room for prompts, and for responses."""
    for field, value in (
        ("data.max_prompt_tokens", cfg.data.max_prompt_tokens),
        ("sample.max_tokens", cfg.sample.max_tokens),
    ):
        if value >= context:
            raise ConfigError(field, f"the model's context is {context}; lower it", str(value))


def prompted_problems(
    cfg: Config, task: Task, tokenizer: "PreTrainedTokenizerBase", splits: tuple[Split, ...]
) -> tuple[dict[Split, list[PromptedProblem]], dict[Split, list[str]]]:
    """The problems of the splits with their prompt ids, and the ids of those left out.

    Raises ConfigError when an iteration draws more problems than there are to train on.
    """
    limit, chat = cfg.data.max_prompt_tokens, cfg.data.chat_template
    kept: dict[Split, list[PromptedProblem]] = {}
    dropped: dict[Split, list[str]] = {}
    for split in splits:
        kept[split], dropped[split] = load_problems(task, tokenizer, split, limit, chat)
        if dropped[split]:
            total = len(kept[split]) + len(dropped[split])
            print(
                f"{split}: {len(dropped[split])} of {total} prompts have more than "
                f"data.max_prompt_tokens = {limit} tokens and are left out: dropped_prompts.json"
            )
    if "train" in splits and len(kept["train"]) < cfg.rollout.prompts:
        rule = f"the train split has only {len(kept['train'])} problems; lower it"
        raise ConfigError("rollout.prompts", rule, str(cfg.rollout.prompts))
    return kept, dropped
