"""Supervised fine-tuning on the task's worked solutions: the policy that reinforcement starts from.

Loss on the response only, EOS included: a mean over the tokens of the batch or, with
`sft.reduction='sequence'`, of the means of its responses, as the reference's
`trainers/mle_trainer.py:621-645`.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from etils import epath
from jax.sharding import Mesh

from vinejax.errors import ConfigError, DataError
from vinejax.learner.batch import collate
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.score import token_logprobs
from vinejax.learner.step import token_weights
from vinejax.learner.update import accumulate, apply, fresh_state
from vinejax.model.decoder import Decoder, DecoderConfig, Params
from vinejax.model.hf.tensors import INDEX, SINGLE
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.model.sharding import check_heads, make_mesh, param_shardings
from vinejax.runtime.devices import on_devices
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.log import RunLog
from vinejax.runtime.workdir import check_workdir, record_run, write_atomic
from vinejax.seeds import host_rng
from vinejax.settings import Config, OptimizerConfig
from vinejax.tasks.base import Task, load_task
from vinejax.tasks.prompts import encode_response, load_problems
from vinejax.text import Tokenizer
from vinejax.types import Batch, Episode, TrainState

FOLDER = "warmup"  # of the workdir: the model, in Hugging Face's layout
LEFT_OUT = "dropped_examples.json"  # of the workdir
LOG_EVERY = 20  # steps


def fresh_model(cfg: Config, task: Task, mesh: Mesh) -> tuple[Decoder, Params, Tokenizer]:
    """A model of the configured sizes with random weights, on the tokenizer that the task ships.

    Raises ConfigError for a task that has none: such a task needs `model.path`; and for sizes that
    do not divide over the mesh.
    """
    check_heads(mesh, cfg.model.num_heads, cfg.model.ffn)
    make_tokenizer = getattr(task, "tokenizer", None)
    if make_tokenizer is None:
        raise ConfigError("model.path", f"task {task.name} ships no tokenizer; name a model folder")
    tokenizer, sizes = make_tokenizer(), cfg.model
    model = Decoder(
        DecoderConfig(
            vocab_size=len(tokenizer),
            num_layers=sizes.num_layers,
            width=sizes.width,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.width // sizes.num_heads,
            ffn=sizes.ffn,
            context=sizes.context,
            bos_id=tokenizer.bos_token_id,
            eos_ids=(tokenizer.eos_token_id,),
        ),
        mesh,
    )
    model = model.computing(cfg.model)
    key = jax.random.key(cfg.seed)
    shardings = param_shardings(mesh, jax.eval_shape(model.init, key))
    return model, jax.jit(lambda: model.init(key), out_shardings=shardings)(), tokenizer


class Likelihood(NamedTuple):
    """How likely a model is to make the batch's responses; static in compiled programs."""

    reduction: str = "token"  # or 'sequence': see `learner.step.token_weights`
    temperature: float = 1.0
    microbatch: int | None = None  # rows a forward and backward pass; None: all


BY_TOKEN = Likelihood()


def likelihood_gradients(
    model: Decoder, params: Params, batch: Batch, how: Likelihood
) -> tuple[Params, jax.Array]:
    """Gradient of the mean negative log-likelihood of the response tokens, and the mean."""
    weights = token_weights(batch.mask, how.reduction)

    def loss(params: Params, micro: tuple[Batch, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, weights = micro
        logprobs, _ = token_logprobs(model, params, rows, how.temperature)
        mean = -jnp.sum(weights * jnp.where(rows.mask, logprobs, 0.0))
        return mean, mean

    return accumulate(loss, params, (batch, weights), how.microbatch, model.mesh, model.ready)


@functools.partial(jax.jit, static_argnames=("model", "optimizer", "how"), donate_argnames="state")
def sft_step(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batch: Batch,
    how: Likelihood = BY_TOKEN,
) -> tuple[TrainState, jax.Array]:
    """One update on the mean negative log-likelihood of the batch's response tokens."""
    grads, value = likelihood_gradients(model, state.params, batch, how)
    state, _, _ = apply(optimizer, state, grads, model.mesh)
    return state, value


def worked_examples(
    task: Task, tokenizer: Tokenizer, cfg: Config, context: int
) -> tuple[list[Episode], list[dict[str, str]]]:
    """The train split as episodes whose response is the worked solution; (those, the others).

    The others are records of the problems whose prompt is too long, or whose solution does not fit
    the context after it. DataError when none fits.
    """
    limit = min(cfg.data.max_prompt_tokens, context - 1)
    problems, too_long = load_problems(task, tokenizer, "train", limit, cfg.data.chat_template)
    reason = f"the prompt has more than {limit} tokens"
    examples, left_out = [], [{"id": name, "reason": reason} for name in too_long]
    for problem, prompt in problems:
        text = task.solution(problem)
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
    return examples, left_out


def list_left_out(left_out: list[dict[str, str]], kept: int, workdir: epath.Path) -> None:
    """Counts on the screen, and lists in the workdir, what is not trained on; once a workdir."""
    file = workdir / LEFT_OUT
    if left_out and is_writer() and not file.exists():
        count, total = len(left_out), len(left_out) + kept
        print(f"sft: {count} of {total} worked solutions are too long and left out: {LEFT_OUT}")
        write_atomic(file, json.dumps(left_out, indent=1) + "\n")


def _batches(examples: list[Episode], cfg: Config) -> Iterator[Batch]:
    """`sft.steps` batches, epoch after epoch, each in an order of its own; one compiled shape."""
    longest = max(len(example.tokens) for example in examples)
    epoch, order = 0, []
    for _ in range(cfg.sft.steps):
        while len(order) < cfg.sft.batch:
            rng = host_rng(cfg.seed, 0, "sft", epoch)
            order, epoch = [*order, *rng.permutation(len(examples))], epoch + 1
        chosen = [examples[i] for i in order[: cfg.sft.batch]]
        order = order[cfg.sft.batch :]
        yield collate(chosen, cfg.sft.batch, longest)


def sft_likelihood(cfg: Config) -> Likelihood:
    return Likelihood(cfg.sft.reduction, microbatch=cfg.ppo.microbatch)


def sft_optimizer(cfg: Config, num_updates: int) -> optax.GradientTransformation:
    schedule = dataclasses.replace(
        OptimizerConfig(),
        learning_rate=cfg.sft.learning_rate,
        warmup_fraction=cfg.sft.warmup_fraction,
    )
    return make_optimizer(schedule, num_updates)


def train_supervised(
    model: Decoder, params: Params, examples: list[Episode], cfg: Config, mesh: Mesh, log: RunLog
) -> Params:
    """The parameters after `sft.steps` updates."""
    optimizer, how = sft_optimizer(cfg, cfg.sft.steps), sft_likelihood(cfg)
    state = fresh_state(params, optimizer, mesh)
    with log.stage("sft"):
        for step, batch in enumerate(_batches(examples, cfg), start=1):
            state, loss = sft_step(model, optimizer, state, batch, how)
            log.progress(step, cfg.sft.steps)
            if step % LOG_EVERY == 0 or step == cfg.sft.steps:
                log.metrics(0, step, "sft", {"sft/loss": loss})
    return state.params


def warm_up(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """`--mode=sft`: fine-tune `model.path`, or a fresh model, into `<workdir>/warmup`.

    A warm-up that is there already is used as it is. Returns the folder.
    """
    workdir, task, cfg = check_workdir(cfg, path), load_task(cfg.data), on_devices(cfg)
    return warm_start(cfg, task, workdir, make_mesh(cfg.mesh))


def warm_start(cfg: Config, task: Task, workdir: epath.Path, mesh: Mesh) -> epath.Path:
    """As `warm_up`, in a workdir that has been checked."""
    folder = workdir / FOLDER
    is_there = any((folder / name).exists() for name in (SINGLE, INDEX))
    barrier("warm-up", is_there)
    if is_there:
        return folder
    if cfg.model.path:
        model, params, tokenizer = load_pretrained(cfg.model.path, mesh=mesh)
        model = model.computing(cfg.model)
    else:
        model, params, tokenizer = fresh_model(cfg, task, mesh)
    examples, left_out = worked_examples(task, tokenizer, cfg, model.cfg.context)
    if is_writer():
        record_run(cfg, workdir)  # only now: what cannot run writes nothing
    list_left_out(left_out, len(examples), workdir)
    with RunLog(workdir, cfg.log, cfg.iterations, is_writer()) as log:
        params = train_supervised(model, params, examples, cfg, mesh, log)
        save_pretrained(os.fspath(folder), model, params, tokenizer)
        log.message(f"supervised start: {folder}")
    barrier("warm-up is saved")
    return folder
