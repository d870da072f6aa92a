"""A task, a configuration, a model and batches small enough to run the whole loop in seconds.

For the tests on training, evaluation, the learner, checkpoints and credit.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vinejax
from helpers.applied import run_instead
from vinejax.config.load import from_dict
from vinejax.core.settings import Config, DataConfig
from vinejax.core.types import Batch, Episode, Problem
from vinejax.learner import score, update
from vinejax.learner.update import Update
from vinejax.methods.base import policy_gradient
from vinejax.model.decoder import Decoder, DecoderConfig, Params
from vinejax.runtime.compiles import num_compiles
from vinejax.tasks import arithmetic
from vinejax.tasks.base import Split
from vinejax.training import loop

SIZES: dict[Split, int] = {"train": 12, "validation": 4, "test": 6}
VOCAB, BOS, EOS = 20, 0, 1  # of the arithmetic tokenizer


class FewProblems(arithmetic.Arithmetic):
    """The embedded task with the first problems of each split, graded leniently.

    A near answer is right and a line of work earns a quarter: a model that can hardly write then
    gets rewards that differ. Without them all results would be 0, and equal for the wrong reason.
    """

    def load(self, split: Split) -> list[Problem]:
        return _problems(split)[: SIZES[split]]

    def reward(self, problem: Problem, response: str) -> float:
        answer, gold = self.answer(response), self.answer(problem.answer)
        if answer and gold and abs(int(answer) - int(gold)) <= 4:
            return 1.0
        return 0.25 if "=" in response else 0.0


def only_the_data(_: FewProblems, problem: Problem, response: str) -> float:
    """A reward that nothing earns but the data's own solution, so that no sample is right."""
    return float(response.strip() == problem.answer.strip())


@functools.cache
def _problems(split: Split) -> list[Problem]:
    return arithmetic.Arithmetic().load(split)


def make(data: DataConfig) -> FewProblems:
    return FewProblems()


@functools.cache
def tokenizer() -> Any:
    return arithmetic.Arithmetic().tokenizer()


def config(**sections: Any) -> Config:
    """Three iterations of two epochs with two updates each; values={"k": 1} changes a field.

    Prompt and response have at most 32 tokens together, so that all iterations have equal shapes.
    """
    fields: dict[str, Any] = {
        "iterations": 3,
        "data": {"task": "helpers.loop_cases", "max_prompt_tokens": 15},
        "model": {
            **{"compute_dtype": "float32", "num_layers": 1, "width": 32, "num_heads": 4},
            **{"num_kv_heads": 2, "ffn": 64, "context": 48},
        },
        "sample": {"max_tokens": 16, "temperature": 0.8},
        "rollout": {"prompts": 4, "per_prompt": 3, "slots": 32},
        "values": {"k": 3, "max_states": 1},
        "ppo": {"minibatch": 8, "microbatch": 4, "epochs": 2},
        "optimizer": {"learning_rate": 3e-4, "weight_decay": 0.01},
        "sft": {"steps": 25, "batch": 12, "learning_rate": 1e-2},
        "eval": {"every": 1, "samples": 2, "temperature": 1.0, "top_p": 1.0},
        "checkpoint": {"every": 1, "keep": 2},
        "log": {"vines": 8},
    }
    for name, value in sections.items():
        fields[name] = fields.get(name, {}) | value if isinstance(value, dict) else value
    return from_dict(fields)


def in_doors(**sections: Any) -> Config:
    """A run of one iteration in the environment `doors`, whose episodes have turns."""
    fields: dict[str, Any] = {
        "iterations": 1,
        "data": {"task": "vinejax.tasks.doors", "max_prompt_tokens": 12},
        "sample": {"max_tokens": 12, "temperature": 1.0},
        "env": {"observed": 16, "turn_tokens": 3},
        "eval": {"every": 0, "samples": 1, "problems": 4},
    }
    return config(**fields | sections)


def in_learned_doors(**sections: Any) -> Config:
    """The same with values of turns, for a model that a warm-up has taught to say arms."""
    fields: dict[str, Any] = {
        "values": {"k": 2, "positions": "turns", "max_states": None},
        "sft": {"steps": 150, "batch": 12, "learning_rate": 1e-2},
    }
    return in_doors(**fields | sections)


def encode(text: str) -> list[int]:
    """Ids of a text within a sequence: without the BOS that begins one."""
    return list(tokenizer().encode(text, add_special_tokens=False))


class Run(NamedTuple):
    """The workdir of a finished run, with counts taken on the way."""

    workdir: Path  # not to be changed
    iterations: list[int]  # programs compiled in each iteration
    updates: list[tuple[int, Update]]  # programs compiled in each update, and what it reports
    scored: list[int]  # times that an iteration's rows were scored, in each iteration


def counted_run(workdir: Path) -> Run:
    """Trains `config()` without interruption; tests take it from the fixture `finished_run`."""
    compiles, updates, scored = [], [], []
    update_step = update.update_step
    scores_of = score.scores_of

    def counted_scores(*args: Any):
        scored[-1] += 1
        return scores_of(*args)

    def counted_iteration(*args: Any):
        before = num_compiles()
        scored.append(0)
        state = policy_gradient(*args)
        compiles.append(num_compiles() - before)
        return state

    def counted_update(*args: Any):
        before = num_compiles()
        state, made = update_step(*args)
        updates.append((num_compiles() - before, made))
        return state, made

    with pytest.MonkeyPatch.context() as patch:
        run_instead(patch, counted_iteration)
        patch.setattr(update, "update_step", counted_update)
        patch.setattr(score, "scores_of", counted_scores)
        return Run(Path(loop.train(config(), workdir)), compiles, updates, scored)


@functools.cache
def model(**changes: Any) -> Decoder:
    sizes = DecoderConfig(
        vocab_size=VOCAB,
        num_layers=2,
        width=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        ffn=64,
        context=64,
        bos_id=BOS,
        eos_ids=(EOS,),
    )
    return Decoder(dataclasses.replace(sizes, **changes))


def params(seed: int = 0) -> Params:
    """Weights of `model()`; a copy, which a train step may donate."""
    return jax.tree.map(jnp.array, _params(seed))


@functools.cache
def _params(seed: int) -> Params:
    return jax.device_get(jax.jit(model().init)(jax.random.key(seed)))


@jax.jit
def logits(params: Params, tokens: jax.Array) -> jax.Array:
    """[B, T, V] of sequences without padding."""
    return vinejax.apply(model(), params, tokens)


def episode(prompt: list[int], response: list[int], **fields: Any) -> Episode:
    """An episode with everything that `collate` reads: a single step unless `fields` differ."""
    plain: dict[str, Any] = {
        **{"problem_id": "p", "logprobs": [0.0] * len(response), "text": "", "finished": True},
        **{"reward": 0.0, "step_ends": [len(response)] if response else []},
    }
    return Episode(prompt=prompt, response=response, **plain | fields)


def random_episodes(lengths: list[tuple[int, int]], seed: int = 0) -> list[Episode]:
    """Episodes of random tokens with these lengths of prompt and response."""
    rng = np.random.default_rng(seed)
    return [
        episode([BOS, *rng.integers(3, VOCAB, p - 1).tolist()], rng.integers(3, VOCAB, r).tolist())
        for p, r in lengths
    ]


def with_arrays_of_chance(batch: Batch, rng: np.random.Generator) -> Batch:
    """The batch with normal advantages and log-probabilities."""
    shape = batch.tokens.shape
    old, ref = (rng.normal(-3, 0.2, shape).astype(np.float32) for _ in range(2))
    advantages = rng.normal(size=shape).astype(np.float32)
    return batch._replace(advantages=advantages, old_logprobs=old, ref_logprobs=ref)


# What sums in another order may change, over the norm of a gradient. Other versions of XLA order
# them in other ways: 4e-6 with jax 0.10.2 and 5e-6 with 0.12. A wrong weight changes 1e-2 and more.
ROUNDING = 1e-5


def leaves(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their paths."""
    return {
        jax.tree_util.keystr(path): np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Compares two trees: the norm of each difference over the norm of the expected tensor."""
    found, expected = leaves(found), leaves(expected)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        x, difference = x.astype(np.float64), found[name].astype(np.float64) - x
        assert np.linalg.norm(x) > 0, f"{name} is 0 everywhere: nothing is compared"
        assert np.linalg.norm(difference) <= tolerance * np.linalg.norm(x), name


def assert_equal(found: Any, expected: Any) -> None:
    """Compares two trees bit for bit."""
    found, expected = leaves(found), leaves(expected)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)


CLOCK = ("timing_s/", "perf/", "rollout/compiles")  # what two equal runs need not share


def without_clock(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of metrics.jsonl without what is the process's own."""
    return [{k: v for k, v in line.items() if not k.startswith(CLOCK)} for line in lines]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
