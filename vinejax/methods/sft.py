"""Supervised fine-tuning on the data set's worked solutions: an iteration is an epoch.

    loss: -logπ

The loss is that of `learner/likelihood.py`, on the tokens of the response with EOS. The rate is
`sft.learning_rate`, and the settings `optimizer.*` are not read. `training/warmup.py` uses the same
functions for `--mode=sft`, which trains for `sft.steps`, and for a run without `model.path`, which
first trains its start.
"""

import dataclasses
import json
import math

import numpy as np
import optax
from etils import epath

from vinejax.core.errors import DataError
from vinejax.core.settings import Config, OptimizerConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import Episode, RunState
from vinejax.learner.batch import epochs_of
from vinejax.learner.likelihood import Likelihood
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.packing import passes_for, with_single_rows
from vinejax.methods.base import OF_POLICY_GRADIENTS, Method
from vinejax.methods.stages import MethodState
from vinejax.model.decoder import Decoder
from vinejax.runtime.distributed import is_writer
from vinejax.runtime.offload import to_device
from vinejax.runtime.workdir import write_atomic
from vinejax.session.iteration import Iteration
from vinejax.tasks.base import Task
from vinejax.tasks.files import check_text
from vinejax.tasks.prompts import encode_response, load_problems, worked_response
from vinejax.tasks.spelling import warn_unspelled

LEFT_OUT = "dropped_examples.json"  # file in the workdir


def supervised(method: Method, iteration: Iteration, state: RunState) -> RunState:
    """The state after one iteration, an epoch over the data set's worked solutions."""
    cfg, session = iteration.cfg, iteration.session
    examples, left_out = session.loaded
    list_left_out(left_out, len(examples), session.workdir)
    total = math.ceil(len(examples) / cfg.sft.batch)
    objective = sft_objective(session.model, cfg)
    optimizer = sft_optimizer(cfg, cfg.iterations * total)
    batches = epochs_of(examples, 1, cfg.sft.batch, cfg.seed, iteration.number)
    policy = to_device(state.policy)
    policy, updates = iteration.train(objective, optimizer, policy, batches, total)
    iteration.metrics["sft/loss"] = np.mean([update.sums for update in updates])
    return RunState(policy)


class LoadedExamples(MethodState):
    """The state of the method: it keeps nothing, and reads the worked solutions at every start."""

    def load(
        self, cfg: Config, task: Task, model: Decoder, tokenizer: Tokenizer
    ) -> tuple[list[Episode], list[dict[str, str]]]:
        return worked_examples(task, tokenizer, cfg, model.cfg.context)


def worked_examples(
    task: Task, tokenizer: Tokenizer, cfg: Config, context: int
) -> tuple[list[Episode], list[dict[str, str]]]:
    """(the train split's worked solutions as episodes, records of problems left out).

    A problem is left out if its prompt is too long, if prompt and solution do not fit the context,
    or if the solution is blank, which would teach the policy to say nothing. Thinking that the
    prompt opens is ended first (`worked_response`). Raises DataError if all problems are left out,
    or for a solution with a lone surrogate.
    """
    limit = min(cfg.data.max_prompt_tokens, context - 1)
    data = dataclasses.replace(cfg.data, max_prompt_tokens=limit)
    problems, too_long = load_problems(task, tokenizer, "train", data)
    reason = f"the prompt has more than {limit} tokens"
    examples, left_out = [], [{"id": name, "reason": reason} for name in too_long]
    for problem, prompt in problems:
        text = task.solution(problem)
        if not text.strip():
            left_out.append({"id": problem.id, "reason": "the worked solution is blank"})
            continue
        check_text(text, f"the solution of problem {problem.id}", f"{task.name} train", None)
        text = worked_response(problem, text)
        response = encode_response(tokenizer, text)
        size = len(prompt) + len(response)
        if size > context:
            reason = f"prompt and solution have {size} tokens, the context {context}"
            left_out.append({"id": problem.id, "reason": reason})
            continue
        nothing = [0.0] * len(response)
        examples.append(
            Episode(problem.id, prompt, response, nothing, text, True, 1.0, [len(response)])
        )
    if not examples:
        raise DataError(f"{task.name} train", None, f"no worked solution fits {context} tokens")
    warn_unspelled(tokenizer, [example.text for example in examples], "worked solutions")
    return examples, left_out


def list_left_out(left_out: list[dict[str, str]], kept: int, workdir: epath.Path) -> None:
    """Prints how many solutions are left out and writes their list, if it does not exist yet."""
    file = workdir / LEFT_OUT
    if left_out and is_writer() and not file.exists():
        count, total = len(left_out), len(left_out) + kept
        what = "worked solutions are blank or too long and left out"
        print(f"sft: {count} of {total} {what}: {LEFT_OUT}")
        write_atomic(file, json.dumps(left_out, indent=1) + "\n")


def sft_objective(model: Decoder, cfg: Config) -> Likelihood:
    """The negative log-likelihood objective, reduced as `sft.reduction` says."""
    size, packed, _ = passes_for(cfg, cfg.sft.batch, model.mesh)  # problems have one solution each
    model = with_single_rows(model, cfg)
    return Likelihood(model=model, microbatch=size, packed=packed, reduction=cfg.sft.reduction)


def sft_optimizer(cfg: Config, num_updates: int) -> optax.GradientTransformation:
    """AdamW with the rate and warm-up of `sft.*`, and defaults for all other settings."""
    schedule = dataclasses.replace(
        OptimizerConfig(),
        learning_rate=cfg.sft.learning_rate,
        warmup_fraction=cfg.sft.warmup_fraction,
    )
    return make_optimizer(schedule, num_updates)


METHOD = Method(
    None,
    state=LoadedExamples(),
    iteration=supervised,
    ignores=("optimizer", *OF_POLICY_GRADIENTS),
)
