"""The supervised warm-up, which trains a start for RL on the task's worked solutions.

`--mode=sft` runs it, and a run without `model.path` runs it first. The loss is that of
`learner/likelihood.py`, over the tokens of the response and EOS.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh

from vinejax.core.errors import WorkdirError
from vinejax.core.seeds import host_rng
from vinejax.core.settings import Config, ModelConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import collate
from vinejax.learner.update import Update, fresh_state, num_accepted, update_step
from vinejax.methods.sft import list_left_out, sft_objective, sft_optimizer, worked_examples
from vinejax.model.decoder import Decoder, DecoderConfig, Params
from vinejax.model.hf.tensors import INDEX, SINGLE
from vinejax.model.hf.weights import save_pretrained
from vinejax.model.sharding import check_heads, check_rows, make_mesh, param_shardings
from vinejax.runtime.clock import CLOCK
from vinejax.runtime.compile_cache import use_compile_cache
from vinejax.runtime.devices import on_devices, with_dtype
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.lock import WorkdirLock
from vinejax.runtime.log import RunLog
from vinejax.runtime.status import read_status
from vinejax.runtime.workdir import check_workdir, record_run, recorded_start
from vinejax.tasks.base import Task, load_task, shipped_tokenizer
from vinejax.training.start_weights import WARM_UP, load_weights

LOG_EVERY = 20  # steps


def fresh_model(cfg: Config, task: Task, mesh: Mesh) -> tuple[Decoder, Params, Tokenizer]:
    """A model of the configured sizes with random weights, and the tokenizer of its task.

    Raises ConfigError for a task without a tokenizer, or for sizes that the mesh does not divide.
    """
    check_heads(mesh, cfg.model.num_heads, cfg.model.ffn)
    tokenizer = shipped_tokenizer(task, "name a model folder")
    model = Decoder(fresh_sizes(cfg.model, tokenizer), mesh)
    model = model.computing(cfg.model)
    key = jax.random.key(cfg.seed)
    shardings = param_shardings(mesh, jax.eval_shape(model.init, key))
    return model, jax.jit(lambda: model.init(key), out_shardings=shardings)(), tokenizer


def fresh_sizes(sizes: ModelConfig, tokenizer: Tokenizer) -> DecoderConfig:
    """The architecture of a new model with the configured sizes, for this tokenizer."""
    bos: Any = tokenizer.bos_token_id
    eos: Any = tokenizer.eos_token_id
    return DecoderConfig(
        vocab_size=1 + max(tokenizer.get_vocab().values()),  # ids may have gaps
        num_layers=sizes.num_layers,
        width=sizes.width,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.width // sizes.num_heads,
        ffn=sizes.ffn,
        context=sizes.context,
        bos_id=bos,
        eos_ids=(eos,),
    )


def batches_of(examples: list[Episode], cfg: Config) -> Iterator[Batch]:
    """Yields `sft.steps` batches of one shape; each epoch has its own order of examples."""
    longest = max(len(example.tokens) for example in examples)
    epoch, order = 0, []
    for _ in range(cfg.sft.steps):
        while len(order) < cfg.sft.batch:
            rng = host_rng(cfg.seed, 0, "sft", epoch)
            order, epoch = [*order, *rng.permutation(len(examples))], epoch + 1
        chosen = [examples[i] for i in order[: cfg.sft.batch]]
        order = order[cfg.sft.batch :]
        yield collate(chosen, cfg.sft.batch, longest)


def train_supervised(
    model: Decoder, params: Params, examples: list[Episode], cfg: Config, mesh: Mesh, log: RunLog
) -> Params:
    """The parameters after `sft.steps` updates.

    Every `LOG_EVERY` steps, the last loss and the number of skipped updates are recorded after the
    next update has started, so that no device waits for the host.
    """
    objective = sft_objective(model, cfg)
    optimizer = sft_optimizer(cfg, cfg.sft.steps)
    state = fresh_state(params, optimizer, mesh)
    updates: list[Update] = []  # since the last record
    with log.stage("sft"):
        for step, batch in enumerate(batches_of(examples, cfg)):
            state, update = update_step(objective, optimizer, state, objective.pack(batch))
            log.progress(step + 1, cfg.sft.steps)
            if len(updates) == LOG_EVERY:
                log.metrics(0, step, "sft", update_metrics(updates))
                updates = []
            updates.append(update)
        if updates:
            log.metrics(0, cfg.sft.steps, "sft", update_metrics(updates))
    return state.params


def update_metrics(updates: Sequence[Update]) -> dict[str, object]:
    """The loss of the last update, and the number of updates that were not made."""
    skipped = float(len(updates) - num_accepted(updates))
    return {"sft/loss": updates[-1].sums, "sft/skipped_updates": skipped}


def warm_up(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """`--mode=sft`: fine-tunes `model.path`, or a fresh model, into `<workdir>/warmup`.

    An existing warm-up is used as it is, and a line reports that. Returns the folder. Raises
    WorkdirError if another process trains in the workdir, or if a run that started from
    `model.path` is there.
    """
    cfg = with_dtype(cfg)
    workdir, task, cfg = check_workdir(cfg, path), load_task(cfg.data), on_devices(cfg)
    if cfg.model.path and read_status(workdir) is not None:
        message = "holds a run that began without supervised training; choose another --workdir"
        raise WorkdirError(f"{workdir}: {message}")
    use_compile_cache(cfg.compile_cache, workdir)
    with WorkdirLock(workdir, is_writer()) as lock:
        lock.take(make=False)
        is_there = is_warm(workdir)
        folder = warm_start(cfg, task, workdir, make_mesh(cfg.mesh), lock)
    if is_there and is_writer():
        print(f"supervised start: {folder} is there already; to train anew, choose a --workdir")
    return folder


def is_warm(workdir: epath.Path) -> bool:
    """Whether the workdir has the weights of a supervised warm-up."""
    return any((workdir / WARM_UP / name).exists() for name in (SINGLE, INDEX))


def check_start_is_read(cfg: Config, workdir: epath.Path) -> None:
    """Raises WorkdirError for a new run with `model.path` in a workdir with a warm-up.

    The run would start from `model.path`, although the warm-up was made of that model.
    """
    if cfg.model.path and is_warm(workdir) and not (workdir / "checkpoints").exists():
        message = f"a run from model.path = {cfg.model.path} does not read this supervised start"
        remedy = f"set model.path={workdir / WARM_UP}, and choose another --workdir"
        raise WorkdirError(f"{workdir / WARM_UP}: {message}; {remedy}")


def warm_start(
    cfg: Config, task: Task, workdir: epath.Path, mesh: Mesh, lock: WorkdirLock
) -> epath.Path:
    """Like `warm_up`, for a workdir that is already checked. Takes `lock` before training.

    Raises ConfigError if the mesh does not divide the rows of a pass.
    """
    folder = workdir / WARM_UP
    is_there = is_warm(workdir)
    barrier("warm-up", is_there)
    CLOCK.pin(workdir)
    if is_there:
        return folder
    field = "sft.batch" if cfg.ppo.microbatch is None else "ppo.microbatch"
    check_rows(mesh, {field: cfg.ppo.microbatch or cfg.sft.batch})
    if cfg.model.path:
        model, params, tokenizer = load_weights(cfg.model.path, mesh)
        model = model.computing(cfg.model)
    else:
        model, params, tokenizer = fresh_model(cfg, task, mesh)
    examples, left_out = worked_examples(task, tokenizer, cfg, model.cfg.context)
    lock.take()
    if is_writer():
        # Only now: a run that cannot start writes nothing.
        record_run(cfg, workdir, *recorded_start(workdir))
        CLOCK.keep(workdir)
    list_left_out(left_out, len(examples), workdir)
    with RunLog(workdir, cfg.log, cfg.iterations, is_writer()) as log:
        params = train_supervised(model, params, examples, cfg, mesh, log)
        save_pretrained(os.fspath(folder), model, params, tokenizer)
        log.message(f"supervised start: {folder}")
    barrier("warm-up is saved")
    return folder
