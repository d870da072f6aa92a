"""Checks sizes against the memory of this host before anything is allocated.

A size is an error if it needs over half of this host's memory (a new model: over all of it). Memory
that the engine and the learner choose is computed elsewhere (`engine/memory.py`, `--mode=plan`).
"""

import dataclasses
import math
from typing import Any

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, ModelConfig, field_of
from vinejax.credit.expected import expected_states
from vinejax.methods import sft
from vinejax.methods.base import Method
from vinejax.runtime.devices import host_memory

# Bytes on the host for a sampled text, and for each token of it: branch, tokens, log-probabilities
# and characters. tracemalloc counts 180 for a branch and 7,140 for a result of 100 tokens (3.11).
BRANCH_BYTES, TOKEN_BYTES = 600, 64
ROW_BYTES = 29  # bytes per token of a batch on the host: learner/batch.py
WEIGHT_BYTES = 12  # bytes per weight of a new model: float32, with Adam's two moments
STEPS = 12  # assumed reasoning steps of a solution
HOST_SHARE = 0.5  # largest share of the host's memory for any one of these arrays


def check_sizes(cfg: Config, method: Method) -> None:
    """Raises ConfigError if this host cannot hold a new model, or an iteration's samples or rows.

    We assume that a sample has a quarter of `sample.max_tokens` tokens, and that a solution has
    STEPS steps. The error names a field and the memory that the field's value would need.
    """
    if not cfg.model.path:
        _check_model(cfg)
    solutions = solutions_of(cfg, method)
    if method is not sft.METHOD:
        is_product = solutions == cfg.rollout.prompts * cfg.rollout.per_prompt  # not so in a tree
        field = "rollout.per_prompt" if is_product else "rollout.prompts"
        _check_samples(field, solutions, "solutions", cfg)
    if method.has_continuations:
        applied = method.resolve(cfg)
        states = expected_states(applied, STEPS, _mean_tokens(cfg))
        count = math.ceil(solutions * len(states.positions) * states.continuations)
        _check_samples("values.k", count, "continuations", cfg)
    _check_samples("eval.samples", cfg.eval.samples, "answers per problem", cfg)
    length = cfg.data.max_prompt_tokens + cfg.sample.max_tokens + cfg.env.observed
    _check_rows("sft.batch", cfg.sft.batch, length, not cfg.model.path)
    _check_rows("ppo.minibatch", cfg.ppo.minibatch, length, not method.is_policy_gradient)


def check_answers(cfg: Config, problems: dict[Any, list[Any]]) -> None:
    """Raises ConfigError if this host cannot hold the answers to `problems` (by split)."""
    _check_samples("eval.samples", _answers(cfg, problems), "answers of an evaluation", cfg)


def most_branches(cfg: Config, method: Method, problems: dict[Any, list[Any]]) -> int:
    """An upper bound on the number of branches in any one phase of a run.

    The phases are evaluation, and the sampling of solutions and of continuations.
    """
    solutions = solutions_of(cfg, method)
    each = cfg.sample.max_tokens * cfg.values.k if method.has_continuations else 1
    return max(_answers(cfg, problems), solutions * each)


def _answers(cfg: Config, problems: dict[Any, list[Any]]) -> int:
    """The number of answers of the largest evaluation; `problems` has the problems of each split.

    The train split is never evaluated.
    """
    evaluated = [found for split, found in problems.items() if split != "train"]
    most = max((len(found[: cfg.eval.problems]) for found in evaluated), default=0)
    return most * cfg.eval.samples


def solutions_of(cfg: Config, method: Method) -> int:
    """The largest number of solutions in an iteration: those of all `rollout.prompts` problems."""
    return cfg.rollout.prompts * method.settings.of(cfg).solutions_per_problem(cfg)


def with_fitting_minibatch(cfg: Config, method: Method, shards: int) -> Config:
    """The configuration, with `ppo.minibatch` reduced if an iteration has fewer solutions.

    Rows without a solution would cost as much as full rows. The reduced number is divisible by
    `shards` and by `ppo.microbatch`. Methods that learn from a fixed set of solutions keep their
    minibatch.
    """
    if not method.is_policy_gradient:
        return cfg
    unit = math.lcm(cfg.ppo.microbatch or 1, shards)
    rows = -(-cfg.rollout.prompts * cfg.rollout.per_prompt // unit) * unit
    if rows >= cfg.ppo.minibatch:
        return cfg
    return dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, minibatch=rows))


def _check_samples(field: str, count: int, what: str, cfg: Config) -> None:
    taken = count * (BRANCH_BYTES + TOKEN_BYTES * _mean_tokens(cfg))
    _check_host(field, field_of(cfg, field), taken, f"{count:,} {what}")


def _check_rows(field: str, rows: int, length: int, is_read: bool) -> None:
    if is_read:
        _check_host(field, rows, rows * length * ROW_BYTES, f"{rows:,} rows of {length} tokens")


def _check_host(field: str, value: int, taken: float, what: str) -> None:
    room = host_memory()
    if taken > HOST_SHARE * room:
        message = f"{what} take about {_gib(taken)} of memory, and this host has {_gib(room)}"
        raise ConfigError(field, f"{message}; lower it", str(value))


def _check_model(cfg: Config) -> None:
    """Raises ConfigError if a new model's weights and moments exceed the host's memory.

    Devices may hold more than their host, but nobody trains a model of that size from nothing.
    """
    model = cfg.model
    kv_width = model.width // model.num_heads * model.num_kv_heads
    layer = 2 * model.width * (model.width + kv_width) + 3 * model.width * model.ffn
    weights = model.num_layers * layer
    taken, room = weights * WEIGHT_BYTES, host_memory()
    if taken <= room:
        return
    sizes = ("width", "num_layers", "ffn")
    field = max(sizes, key=lambda name: getattr(model, name) / getattr(ModelConfig(), name))
    message = f"a new model of {weights:,} weights takes {_gib(taken)} with its optimizer state"
    message += f", and this host has {_gib(room)}; lower it, or name a model in model.path"
    raise ConfigError(f"model.{field}", message, str(getattr(model, field)))


def _mean_tokens(cfg: Config) -> float:
    return max(cfg.sample.max_tokens / 4, 1)


def _gib(size: float) -> str:
    return f"{size / 2**30:,.0f} GiB" if size < 2**50 else f"{size / 2**50:,.0f} PiB"
