"""Distillation: equations against TRL's numbers, the teacher that is refused, whom SDPO teaches.

`make_trl_distillation.py` made the numbers, with TRL's own code.
"""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers import method_runs
from helpers.paths import CONFIGS
from helpers.refusals import refuses
from jax.sharding import AbstractMesh

from vinejax.contrib.methods import opd, sdpo
from vinejax.contrib.methods.equations.distillation import Taught, log_ratios, mean_reverse_kl
from vinejax.contrib.methods.settings import SDPOConfig
from vinejax.core.errors import ConfigError, WorkdirError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem, Rollout, RunState, TrainState
from vinejax.learner.batch import collate, step_layout
from vinejax.learner.score import scores_of
from vinejax.model.sharding import AUTO, AXES
from vinejax.rl.losses import ppo_clip
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.workdir import check_workdir, record_run
from vinejax.session.iteration import Iteration
from vinejax.tasks.base import load_task
from vinejax.training import loop

START = str(CONFIGS / "tiny_start")  # has the tokenizer of the tests' task


# --- equations


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Inputs and results of TRL's functions, and what the policy and the teacher say of `ids`."""

    trl: dict[str, Any]
    student: np.ndarray  # f64[B, T, V] log-probabilities of all tokens
    teacher: np.ndarray
    mask: np.ndarray
    of_ids: tuple[np.ndarray, np.ndarray]  # f64[B, T] by the student, by the teacher
    one_hot: np.ndarray  # f64[B, T, V] of `ids`

    @property
    def taught(self) -> Taught:
        return Taught(self.of_ids[1], np.ones(len(self.mask), bool))


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    file = Path(__file__).with_name("trl_distillation.json")
    trl = json.loads(file.read_text(encoding="utf-8"))
    student, teacher = (log_softmax(np.array(trl[name])) for name in ("student", "teacher"))
    one_hot = np.eye(student.shape[-1])[trl["ids"]]
    student_ids, teacher_ids = ((x * one_hot).sum(axis=-1) for x in (student, teacher))
    mask = np.array(trl["mask"], bool)
    return Vectors(trl, student, teacher, mask, (student_ids, teacher_ids), one_hot)


def test_advantages_are_those_of_minillm(vectors: Vectors):
    found = log_ratios(vectors.taught, vectors.of_ids[0], vectors.mask)
    assert np.abs(found[vectors.mask]).min() > 0.01
    np.testing.assert_allclose(found, vectors.trl["minillm_advantages"], atol=1e-8)


def test_the_gradient_of_a_sampled_token_is_that_of_sdpo(vectors: Vectors):
    """Of the default loss, whose ratio is 1: -A·(one-hot - π)."""
    ids, mask = jnp.asarray(vectors.trl["ids"]), vectors.mask
    advantages = log_ratios(vectors.taught, vectors.of_ids[0], mask)
    old = jnp.asarray(vectors.of_ids[0], jnp.float32)

    @jax.jit
    def loss(logits: jax.Array) -> jax.Array:
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)[..., 0]
        return ppo_clip(logprobs, old, jnp.asarray(advantages, jnp.float32), 0.2).sum()

    found = jax.jit(jax.grad(loss))(jnp.asarray(vectors.trl["student"], jnp.float32))
    np.testing.assert_allclose(found, vectors.trl["sdpo_grad"], atol=2e-6)
    oracle = -advantages[..., None] * (vectors.one_hot - np.exp(vectors.student))
    np.testing.assert_allclose(oracle, vectors.trl["sdpo_grad"], atol=1e-8)


def test_the_expected_gradient_is_that_of_gkd(vectors: Vectors):
    """Over all tokens that the policy may draw, the reverse KL's gradient."""
    tokens = np.eye(vectors.student.shape[-1])
    probabilities, expected = np.exp(vectors.student), 0.0
    for i, one_hot in enumerate(tokens):
        taught = Taught(vectors.teacher[..., i], vectors.taught.rows)
        ratios = log_ratios(taught, vectors.student[..., i], vectors.mask)
        weights = (probabilities[..., i] * ratios)[..., None]
        expected = expected - weights * (one_hot - probabilities)
    np.testing.assert_allclose(expected, vectors.trl["gkd_grad"], atol=1e-8)


def test_the_estimate_of_the_reverse_kl(vectors: Vectors):
    """A mean over the tokens of the solutions that have a teacher; 0 if none has."""
    rows = np.array([1, 0, 1, 1, 1, 1], bool)
    taught = vectors.taught._replace(rows=rows)
    ratios = log_ratios(taught, vectors.of_ids[0], vectors.mask)
    assert not ratios[1].any() and ratios[0].any()
    pairs = [
        vectors.of_ids[0][b, t] - vectors.of_ids[1][b, t]
        for b, t in zip(*np.nonzero(vectors.mask), strict=True)
        if b != 1
    ]
    found = mean_reverse_kl(ratios, vectors.mask, rows)
    np.testing.assert_allclose(found, np.mean(pairs), rtol=1e-12)
    nobody = np.zeros(6, bool)
    assert mean_reverse_kl(np.zeros_like(ratios), vectors.mask, nobody) == 0.0


# --- who is taught by whom


def test_solutions_and_prompts_that_are_shown_are_those_of_trl(vectors: Vectors):
    trl = vectors.trl
    episodes = [cases.episode([1], [2], reward=reward) for reward in trl["rewards"]]
    groups = np.split(np.arange(len(episodes)), len(episodes) // trl["group"])
    shown = sdpo.shown_solutions(episodes, groups)
    assert shown == [1, 2, 1, 4, None, 4]
    assert [float(x is not None) for x in shown] == trl["has_teacher"]
    for i, j in enumerate(shown):
        question = trl["prompts"][i]
        text = sdpo.question_with(SDPOConfig().text, question, trl["texts"][j or 0])
        assert (question if j is None else text) == trl["teacher_prompts"][i]


def test_a_question_may_have_the_names_of_places():
    found = sdpo.question_with("{solution};{question}", "a {solution}", "b {question}")
    assert found == "b {question};a {solution}"


def test_no_right_solution_teaches_nobody():
    episodes = [cases.episode([1], [2], reward=reward) for reward in (0.0, 0.9, 0.0, 1.0)]
    assert sdpo.shown_solutions(episodes, [np.array([0, 1]), np.array([2, 3])]) == [
        *(None, None),
        *(3, None),
    ]


def test_a_task_of_several_turns_is_refused():
    """Its prompts begin with the environment's text, which the teacher's prompt would lack."""
    cfg, state = methods.config("sdpo"), sdpo.METHOD.state
    names = ("vinejax.tasks.doors", "vinejax.tasks.countdown")
    task, plain = (load_task(DataConfig(name)) for name in names)
    problem = Problem("p", "0042", "")
    state.check_problem(cfg, plain, problem)
    with pytest.raises(ConfigError, match="method.*'sdpo'.* task doors has turns; take opd"):
        state.check_problem(cfg, task, problem)


def rollout_with(taught: Taught) -> Rollout:
    episodes = methods.episodes()
    plain = collate(episodes, 8)
    old = np.random.default_rng(6).normal(-1, 1, plain.mask.shape).astype(np.float32)
    batch = plain._replace(old_logprobs=old)
    return Rollout(episodes, batch, step_layout(batch, episodes), extra=taught)


def test_credit_is_masked_where_nobody_teaches():
    rows = np.array([1, 1, 0, 1, 0, 0, 0, 1], bool)
    taught = Taught(np.full((8, 32), -0.5, np.float32), rows)
    batch = rollout_with(taught).batch
    has_teacher = batch.mask & rows[:, None]
    expected = np.where(has_teacher, -0.5 - batch.old_logprobs, 0.0)
    cfg = methods.config("sdpo")
    credit = sdpo.METHOD.assign(rollout_with(taught), sdpo.METHOD.resolve(cfg))
    np.testing.assert_allclose(credit.advantages, expected, atol=1e-6)
    np.testing.assert_array_equal(credit.mask, has_teacher)
    every = taught._replace(rows=np.ones(8, bool))
    fields = methods.config("opd", opd={"teacher": START})
    of_all = opd.METHOD.assign(rollout_with(every), opd.METHOD.resolve(fields))
    np.testing.assert_array_equal(of_all.mask, batch.mask)


def test_scores_return_to_the_places_of_the_solutions():
    """Prompts of the teacher are longer than those of the batch, and few rows have one."""
    model, params, episodes = cases.model(), cases.params(), methods.episodes()
    cfg = methods.config("sdpo", ppo={"packing": False, "microbatch": None, "minibatch": 8})
    taught = {
        i: dataclasses.replace(episodes[i], prompt=[1, *range(3, 3 + more), *episodes[i].prompt])
        for i, more in ((1, 2), (4, 6), (6, 1))
    }
    session = types.SimpleNamespace(model=model, mesh=None, weights=lambda params: params)
    iteration = object.__new__(Iteration)
    iteration.session = cast(Any, session)
    session.cfg = cfg
    state = RunState(TrainState(jnp.int32(1), params, None))
    rollout = rollout_with(Taught(np.zeros(()), np.zeros(8, bool)))
    found = sdpo.teacher_scores(iteration, state, rollout, taught)
    plain = collate([*taught.values()], 8)
    passes = sdpo.passes_for(cfg, 8, None)
    expected = scores_of(model, params, plain, 0.8, passes)
    for i, row in zip((1, 4, 6), expected, strict=False):
        drawn = rollout.batch.mask[i]
        np.testing.assert_array_equal(found[i, drawn], row[row != 0])
        assert len(row[row != 0]) == len(episodes[i].response)
    np.testing.assert_array_equal(found[[0, 2, 3, 5, 7]], 0.0)
    assert not sdpo.teacher_scores(iteration, state, rollout, {}).any()


# --- the teacher of opd


def with_teacher(path: str = START, **sections: Any) -> Any:
    model = {"path": START} | sections.pop("model", {})
    return methods.config("opd", opd={"teacher": path}, model=model, **sections)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere", "/nowhere: no such model folder"),
        (str(CONFIGS / "free_order_start"), "its tokenizer is not the policy's (55 tokens against"),
    ],
)
def test_another_tokenizer_and_a_missing_folder_are_refused(path: str, message: str):
    with refuses("opd.teacher") as error:
        opd.LoadedTeacher().check_loading(with_teacher(path))
    assert message in str(error.value)


def test_a_refused_teacher_leaves_no_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="opd.teacher"):
        loop.train(with_teacher("/nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sizes_of_a_teacher():
    """More rows of the output matrix are allowed, fewer are not; the context must do."""
    cfg = with_teacher()
    (model, tokenizer) = opd.unloaded_teacher(cfg)
    vocabulary, context = model.cfg.vocab_size, model.cfg.context

    def check(policy: int = vocabulary, **changes: int) -> None:
        teacher, its = (
            dataclasses.replace(model, cfg=dataclasses.replace(model.cfg, **sizes))
            for sizes in (changes, {"vocab_size": policy})
        )
        opd.check_teacher(cfg, (teacher, tokenizer), (its, tokenizer))

    check(vocab_size=vocabulary + 44)
    check(context=31)  # 15 tokens of a prompt and 16 of a response
    with pytest.raises(ConfigError, match=f"has {vocabulary} entries, the policy's 21; the"):
        check(policy=vocabulary + 1)
    with pytest.raises(ConfigError, match="its context is 30, and a prompt with its response may"):
        check(context=30)
    assert context == 96


def test_the_plan_can_count_the_teacher():
    """All weights, in the compute dtype, without loading any."""
    cfg = with_teacher(model={"compute_dtype": "bfloat16"})
    model, _ = opd.unloaded_teacher(cfg)
    model = dataclasses.replace(model, compute=dataclasses.replace(model.compute, dtype="bfloat16"))
    mesh = AbstractMesh((1, 2, 1), AXES, axis_types=AUTO)
    shapes = jax.tree.leaves(opd.LoadedTeacher().loaded_shapes(cfg, model, mesh))
    assert {x.dtype.name for x in shapes} == {"bfloat16"}
    assert sum(x.size for x in shapes) == 150_464 and all(x.sharding.mesh == mesh for x in shapes)


def test_a_run_cannot_go_on_with_another_teacher(tmp_path: Path):
    folder = epath.Path(tmp_path / "run")
    record_run(with_teacher(), folder)
    check_workdir(with_teacher(), folder)
    with pytest.raises(WorkdirError, match="opd.teacher was .* and is now"):
        check_workdir(with_teacher(str(CONFIGS)), folder)


@pytest.mark.slow
def test_a_run_whose_teacher_is_its_start(start: str, tmp_path: Path):
    """It has nothing to learn; its checkpoint has no teacher, and its next start loads it."""
    for iterations in (1, 2):
        lines = method_runs.run(
            "opd", start, tmp_path, opd={"teacher": start}, iterations=iterations, kl={"coef": 0.0}
        )
    trained = [line for line in lines if line["stage"] == "train"]
    assert [line["opd/reverse_kl"] for line in trained] == [0.0, pytest.approx(0.0, abs=1e-3)]
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        assert checkpoints.latest() == 2
    fields = {"opd": {"teacher": start}, "kl": {"coef": 0.0}, "iterations": 2}
    state, _ = method_runs.state_of(start, tmp_path, "opd", **fields)
    assert state.kept is None


@pytest.mark.slow
def test_a_teacher_that_sees_the_same_prompt_agrees(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With packed rows of the run's own lengths."""

    def same(iteration: Any, problem: Any, solution: str) -> list[int]:
        return next(ids for p, ids in iteration.session.problems["train"] if p is problem)

    monkeypatch.setattr(sdpo, "teacher_prompt", same)
    *_, line, _, _ = method_runs.run("sdpo", start, tmp_path)
    assert line["stage"] == "train" and line["sdpo/taught"] > 0 and line["sdpo/right_groups"] > 0
    assert abs(line["sdpo/reverse_kl"]) < 1e-5
