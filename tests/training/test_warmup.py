"""Tests the supervised warm-up: its loss, its batches, its folder and its errors."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.refusals import refuses
from jax.sharding import Mesh
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.core.errors import DataError, ModelError, WorkdirError
from vinejax.core.settings import MeshConfig
from vinejax.core.types import Episode, Problem, RunState, TrainState
from vinejax.learner.batch import collate
from vinejax.learner.likelihood import Likelihood
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import Update, update_step
from vinejax.methods import sft
from vinejax.model.hf.weights import load_pretrained
from vinejax.model.sharding import AXES, make_mesh
from vinejax.runtime.status import Status, write_status
from vinejax.runtime.workdir import record_run
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session
from vinejax.tasks.prompts import encode_prompt
from vinejax.training import warmup
from vinejax.training.startup import open_session

TASK = cases.FewProblems()


def examples(context: int = 48) -> list[Episode]:
    return warmup.worked_examples(TASK, cases.tokenizer(), cases.config(), context)[0]


def test_examples_are_the_train_split_worked_out():
    found = examples()
    tokenizer = cases.tokenizer()
    for example, problem in zip(found, TASK.load("train"), strict=True):
        assert example.prompt == encode_prompt(tokenizer, TASK.prompt(problem), False)
        assert example.response[-1] == cases.EOS
        assert tokenizer.decode(example.response[:-1]) == TASK.solution(problem)


def test_what_does_not_fit_the_context_is_left_out():
    whole = examples()
    longest = max(len(example.tokens) for example in whole)
    fewer = examples(longest - 1)
    assert 0 < len(fewer) < len(whole) == len(examples(longest))
    with pytest.raises(DataError, match="no worked solution fits 12 tokens"):
        examples(12)


def test_half_a_character_in_a_solution_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TASK, "solution", lambda problem: "so \ud83d it", raising=False)
    first = TASK.load("train")[0].id
    with pytest.raises(DataError, match=rf"train: the solution of problem {first} holds '\\ud83d'"):
        examples()


def test_a_blank_solution_teaches_nothing(monkeypatch: pytest.MonkeyPatch):
    first = TASK.load("train")[0].id
    worked = TASK.solution

    def solution(problem: Problem) -> str:
        return " \n" if problem.id == first else worked(problem)

    monkeypatch.setattr(TASK, "solution", solution, raising=False)
    found, left_out = warmup.worked_examples(TASK, cases.tokenizer(), cases.config(), 48)
    assert left_out == [{"id": first, "reason": "the worked solution is blank"}]
    assert len(found) == len(TASK.load("train")) - 1


def test_a_solution_is_not_trained_as_thinking(monkeypatch: pytest.MonkeyPatch):
    """A response that never ends the thinking that its prompt opens would earn nothing."""
    problem, encoded = Problem("q", "1+2=", "3", opening="<think>"), []
    monkeypatch.setattr(sft, "load_problems", lambda *_: ([(problem, [5])], []))
    monkeypatch.setattr(sft, "encode_response", lambda _, text: encoded.append(text) or [6])
    monkeypatch.setattr(TASK, "solution", lambda problem: "1+2=3", raising=False)
    (example,) = examples()
    assert encoded == [example.text] == ["\n</think>\n\n1+2=3"]


def test_what_is_left_out_is_counted_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    tokenizer = cases.tokenizer()
    sizes = {e.problem_id: len(e.tokens) for e in examples()}
    prompts = {
        p.id: len(encode_prompt(tokenizer, TASK.prompt(p), False)) for p in TASK.load("train")
    }
    longest, widest = max(sizes.values()), max(prompts.values())
    model = {"context": longest - 1}
    data = {"max_prompt_tokens": widest - 1}
    warmup.warm_up(cases.config(model=model, data=data, sft={"steps": 0}), tmp_path)
    listed = json.loads((tmp_path / "dropped_examples.json").read_text())
    reasons = {x["id"]: x["reason"] for x in listed}
    assert {
        name for name in sizes if sizes[name] == longest or prompts[name] == widest
    } == reasons.keys()
    for name, reason in reasons.items():
        assert reason == (
            f"the prompt has more than {widest - 1} tokens"
            if prompts[name] == widest
            else f"prompt and solution have {longest} tokens, the context {longest - 1}"
        )
    said = f"sft: {len(listed)} of {len(sizes)} worked solutions are blank or too long and left out"
    assert said in capsys.readouterr().out


def test_the_method_reads_the_worked_solutions_once(tmp_path: Path):
    """A file that changes while a run goes on does not change what the run trains on."""
    given, cfg = [], cases.config(method="sft", sft={"batch": 5})

    def train(objective: Any, optimizer: Any, policy: Any, batches: Any, total: int) -> Any:
        given.append(list(batches))
        assert len(given[-1]) == total == 3
        return policy, [SimpleNamespace(sums=2.0), SimpleNamespace(sums=1.0)]

    loaded = sft.METHOD.state.load(cfg, TASK, cases.model(context=48), cases.tokenizer())
    workdir = epath.Path(tmp_path)
    session = Mock(spec=Session, model=cases.model(), workdir=workdir, loaded=loaded)
    for number in (0, 1):
        iteration = Mock(
            spec=Iteration, cfg=cfg, session=session, number=number, metrics={}, train=train
        )
        state = RunState(TrainState(jnp.int32(0), {}, ()))
        assert sft.supervised(sft.METHOD, iteration, state) == state
        assert iteration.metrics == {"sft/loss": 1.5}
    rows = [sorted(map(bytes, np.concatenate([b.tokens for b in each]))) for each in given]
    assert rows[0] == rows[1] and len(rows[0]) == 15 > len(loaded[0]) == len(examples())


def test_the_method_refuses_an_optimizer_that_it_does_not_read():
    check_config(from_dict({"method": "sft", "sft": {"learning_rate": 1e-4}}))
    check_config(from_dict({"method": "restem", "optimizer": {"b2": 0.95}}))
    with refuses("optimizer.b2"):
        check_config(from_dict({"method": "sft", "optimizer": {"b2": 0.95}}))


def test_loss_is_the_mean_over_response_tokens_alone():
    episodes = cases.random_episodes([(4, 9), (2, 3), (4, 9)])
    batch = collate(episodes, rows=4)
    response, prompt = [], []
    for e in episodes:
        z = np.asarray(cases.logits(cases.params(), jnp.array([e.tokens]))[0], np.float64)
        for t in range(1, len(e.tokens)):
            loss = np.log(np.exp(z[t - 1]).sum()) - z[t - 1, e.tokens[t]]
            (response if t >= len(e.prompt) else prompt).append(loss)
    assert len(response) == 21 and abs(np.mean(response + prompt) - np.mean(response)) > 1e-3
    optimizer = optax.sgd(1.0)
    state = TrainState(jnp.int32(0), cases.params(), optimizer.init(cases.params()))
    state, made = update_step(Likelihood(model=cases.model()), optimizer, state, batch)
    np.testing.assert_allclose(made.sums, np.mean(response), rtol=1e-5)
    assert state.step == 1


@pytest.mark.slow
def test_loss_falls():
    cfg = cases.config()
    model, params, _ = warmup.fresh_model(cfg, TASK, make_mesh(cfg.mesh))
    optimizer = make_optimizer(dataclasses.replace(cfg.optimizer, learning_rate=1e-2), 20)
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    losses = []
    for batch in warmup.batches_of(examples(), cases.config(sft={"steps": 20})):
        state, made = update_step(Likelihood(model=model), optimizer, state, batch)
        losses.append(float(made.sums))
    assert len(losses) == 20
    assert losses[0] == pytest.approx(np.log(cases.VOCAB), rel=0.3)  # a fresh model guesses
    assert np.mean(losses[-3:]) < 0.75 * losses[0]


def test_batches_are_epochs_of_one_shape():
    cfg = cases.config(sft={"steps": 9, "batch": 8})  # 72 rows of 12 examples: six epochs
    found = list(warmup.batches_of(examples(), cfg))
    assert len({batch.tokens.shape for batch in found}) == 1 and len(found) == 9
    rows = [tuple(np.asarray(row).tolist()) for batch in found for row in batch.tokens]
    epochs = [rows[i : i + 12] for i in range(0, 72, 12)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len(set(epochs[0])) == 12 and epochs[0] != epochs[1]
    again = list(warmup.batches_of(examples(), cfg))
    assert all((a.tokens == b.tokens).all() for a, b in zip(found, again, strict=True))


def test_a_new_model_has_a_row_for_every_id_of_a_vocabulary_with_gaps():
    words = Backend(WordLevel({"<eos>": 0, "a": 1, "b": 9}, unk_token="<eos>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")
    assert warmup.fresh_sizes(cases.config().model, tokenizer).vocab_size == 10


def test_a_task_without_a_tokenizer_needs_a_model(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text('{"question": "1+1?", "answer": "2\\n#### 2"}\n' * 3)
    cfg = cases.config(data={"task": "vinejax.tasks.gsm8k", "path": str(tmp_path)})
    with refuses("model.path") as error:
        warmup.warm_up(cfg, tmp_path / "run")
    assert "ships no tokenizer" in str(error.value)


@pytest.mark.parametrize(
    "field, fields",
    [
        ("ppo.microbatch", {"ppo": {"microbatch": 4}, "sft": {"batch": 8}}),
        ("sft.batch", {"ppo": {"microbatch": None}}),
    ],
)
def test_the_mesh_must_divide_the_rows_of_a_pass(
    field: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rows are packed per shard: without rows for each of them episodes would share places."""
    mesh = Mesh(np.full((4, 2, 1), jax.devices()[0]), AXES)
    monkeypatch.setattr(warmup, "make_mesh", lambda _: mesh)
    with refuses(field):
        warmup.warm_up(cases.config(**fields), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("sft")
    folder = warmup.warm_up(cases.config(sft={"steps": 25}), workdir)
    assert Path(folder) == workdir / "warmup"
    return workdir


def test_warm_up_leaves_a_model_and_its_losses(warmed: Path):
    model, params, tokenizer = load_pretrained(str(warmed / "warmup"))
    fresh, start, _ = warmup.fresh_model(cases.config(), TASK, make_mesh(MeshConfig()))
    assert model.cfg == fresh.cfg
    assert len(tokenizer) == cases.VOCAB
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), params, start)
    assert min(jax.tree.leaves(moved)) > 1e-3
    lines = cases.read_lines(warmed / "metrics.jsonl")
    assert [(x["stage"], x["iteration"], x["step"]) for x in lines] == [
        ("sft", 0, step) for step in (20, 25)
    ]
    assert all(0 < x["sft/loss"] < np.log(cases.VOCAB) for x in lines)
    assert all(x["sft/skipped_updates"] == 0 for x in lines)


def test_updates_that_are_skipped_are_counted():
    """Their losses alone would not show them: one in `LOG_EVERY` is recorded."""
    reports = ((2.0, True), (math.nan, False), (1.5, True))
    updates = [Update(jnp.float32(x), jnp.float32(0), jnp.bool_(made)) for x, made in reports]
    assert warmup.update_metrics(updates) == {"sft/loss": 1.5, "sft/skipped_updates": 1}


def test_a_warm_up_that_is_there_is_used(warmed: Path, monkeypatch: pytest.MonkeyPatch):
    def train(*args: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(warmup, "train_supervised", train)
    cfg = cases.config(sft={"steps": 25})
    weights = (warmed / "warmup" / "model.safetensors").read_bytes()
    warmup.warm_up(cfg, warmed)
    session = open_session(cfg, warmed)
    _, params, _ = load_pretrained(str(warmed / "warmup"))
    cases.assert_equal(session.start, params)
    assert (warmed / "warmup" / "model.safetensors").read_bytes() == weights


def test_warm_up_of_a_given_model(warmed: Path, tmp_path: Path):
    """`--mode=sft` on `model.path` starts from those weights and leaves them alone."""
    weights = (warmed / "warmup" / "model.safetensors").read_bytes()
    cfg = cases.config(model={"path": str(warmed / "warmup")}, sft={"steps": 0})
    warmup.warm_up(cfg, tmp_path)
    assert (tmp_path / "warmup" / "model.safetensors").read_bytes() == weights
    assert (warmed / "warmup" / "model.safetensors").read_bytes() == weights


def test_a_run_that_must_not_exist_may_still_warm_up(tmp_path: Path):
    """resume=False is an error for a folder with a run, but not for the run that just began."""
    cfg = cases.config(resume=False, sft={"steps": 0})
    open_session(cfg, tmp_path)
    with pytest.raises(WorkdirError, match="holds a run"):
        open_session(cfg, tmp_path)


def test_a_run_that_began_without_is_left_alone(warmed: Path, tmp_path: Path):
    cfg = cases.config(model={"path": str(warmed / "warmup")}, sft={"steps": 1})
    write_status(epath.Path(tmp_path), Status("finished", 1, 1, 0.0))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(WorkdirError, match="holds a run that began without supervised training"):
        warmup.warm_up(cfg, tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_would_not_read_its_warm_up_is_refused(tmp_path: Path):
    """`--mode=sft` on `model.path`, and then training by the same command in the same workdir."""
    folder = tmp_path / "warmup"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    cfg = cases.config(model={"path": str(tmp_path / "base")})
    with pytest.raises(WorkdirError) as error:
        open_session(cfg, tmp_path, trains=True)
    assert str(error.value) == (
        f"{folder}: a run from model.path = {tmp_path}/base does not read this supervised start; "
        f"set model.path={folder}, and choose another --workdir"
    )
    record_run(cfg, epath.Path(tmp_path))  # a run that began goes on, here to a missing folder
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ModelError, match="no such model folder"):
        open_session(cfg, tmp_path, trains=True)
