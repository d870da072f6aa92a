"""Tests the loop on a tiny model: one run that many tests read, and runs that must equal it."""

import dataclasses
import gc
import json
import math
import re
import shutil
import signal
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.applied import stand_in

from vinejax.core.errors import DivergedError
from vinejax.core.settings import MeshConfig
from vinejax.core.types import Problem, RunState, TrainState
from vinejax.learner import update
from vinejax.methods import base
from vinejax.methods.stages import MethodState
from vinejax.model.hf.weights import load_pretrained
from vinejax.model.sharding import make_mesh
from vinejax.runtime import stopping
from vinejax.runtime.checkpoint import Checkpoints, find_policy
from vinejax.runtime.compiles import Compiles
from vinejax.runtime.status import read_status
from vinejax.session.session import Session
from vinejax.training import loop
from vinejax.training.startup import open_session

TRAIN_NAMES = (
    *("reward/mean", "frac_reward_zero_std", "values/mean", "values/rollouts"),
    *("actor/kl", "actor/entropy", "actor/clip_frac", "actor/grad_norm"),
    *("response_length/mean", "response_length/max", "response_length/clip_ratio"),
    *("rollout/logprob_diff/mean", "rollout/logprob_diff/max"),
    *(f"by_eighth/{name}/1" for name in ("entropy", "ratio", "clip_frac", "logprob_diff")),
    *("timing_s/rollout", "timing_s/value", "timing_s/score", "timing_s/train"),
    "perf/tokens_per_s",
)
EVAL_NAMES = ("pass_at_1", "pass_at_1_low", "pass_at_1_high", "pass_at_2", "maj_at_2")


@pytest.fixture(scope="module")
def run(finished_run: cases.Run) -> cases.Run:
    return finished_run


def metrics(workdir: Path, stage: str) -> list[dict[str, Any]]:
    lines = cases.read_lines(workdir / "metrics.jsonl")
    return [line for line in lines if line["stage"] == stage]


def params_of(workdir: Path, iteration: int) -> Any:
    like = load_pretrained(str(workdir / "warmup"))[1]
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        return checkpoints.restore_params(iteration, like)[0]


# --- what a run leaves


def test_every_line_says_where_it_belongs(run):
    workdir = run.workdir
    places = [
        (line["stage"], line["iteration"], line["step"])
        for line in cases.read_lines(workdir / "metrics.jsonl")
    ]
    updates = 4  # an iteration: 12 episodes in minibatches of 8, twice
    assert places == [
        *[("sft", 0, 20), ("sft", 0, 25), ("test", 0, 0), ("eval", 0, 0)],
        *[("train", 0, updates), ("eval", 1, updates)],
        *[("train", 1, 2 * updates), ("eval", 2, 2 * updates)],
        *[("train", 2, 3 * updates), ("eval", 3, 3 * updates), ("test", 3, 3 * updates)],
    ]


def test_the_stable_names_are_there_and_make_sense(run):
    workdir = run.workdir
    for line in metrics(workdir, "train"):
        assert set(TRAIN_NAMES) <= line.keys()
        assert all(math.isfinite(value) for key, value in line.items() if key != "stage")
        assert 0 <= line["rollout/logprob_diff/mean"] <= line["rollout/logprob_diff/max"] <= 1e-4
        assert 0 <= line["reward/mean"] <= 1 and 0 <= line["values/mean"] <= 1
        assert 0 < line["actor/entropy"] < np.log(cases.VOCAB)
        assert line["actor/grad_norm"] > 0 and line["actor/skipped_updates"] == 0
        assert 1 <= line["response_length/mean"] <= line["response_length/max"] <= 16
        assert 0 <= line["frac_reward_zero_std"] <= 1 and line["values/rollouts"] % 3 == 0
    for stage, prefix in (("eval", "eval"), ("test", "test")):
        for line in metrics(workdir, stage):
            assert {f"{prefix}/{name}" for name in EVAL_NAMES} <= line.keys()


def test_an_iteration_starts_at_ratio_1(run):
    """The KL is measured from the start of the run, not from that of the iteration."""
    stats = [update.sums for _, update in run.updates]
    assert max(abs(x.ratio / x.tokens - 1) for x in stats) > 1e-3
    for i in (0, 4, 8):
        first = stats[i]
        assert abs(first.ratio / first.tokens - 1) <= 1e-5
        assert first.old_kl / first.tokens <= 1e-8
        assert (first.kl / first.tokens <= 1e-8) == (i == 0)


def episodes(workdir: Path) -> list[list[dict[str, Any]]]:
    return [cases.read_lines(workdir / "episodes" / f"{i}.jsonl") for i in range(3)]


def test_episodes_hold_whole_vines(run):
    for iteration, rows in enumerate(episodes(run.workdir)):
        assert len(rows) == 12 and len({row["problem_id"] for row in rows}) == 4
        for i, row in enumerate(rows):
            steps = row["steps"]
            assert row["iteration"] == iteration and row["prompt"] == f"{row['question']}="
            assert "".join(step["text"] for step in steps) == row["response"]
            total = sum(step["advantage"] for step in steps)
            assert total == pytest.approx(row["reward"] - steps[0]["value"], abs=1e-5)
            assert row["finished"] or row["reward"] == 0
            for c, step in enumerate(steps):
                after = steps[c + 1]["value"] if c + 1 < len(steps) else 0.0
                assert step["value_after"] == after
                assert step["count"] == (3 if c < 2 else 0)  # s_0 and max_states = 1 more
                kept = [x["reward"] for x in step["continuations"]]
                assert len(kept) == (step["count"] if i < 8 else 0)  # log.vines
                if kept:
                    assert step["value"] == pytest.approx(np.mean(kept))


def test_metrics_are_those_of_the_episodes(run):
    for line, rows in zip(metrics(run.workdir, "train"), episodes(run.workdir), strict=True):
        assert line["reward/mean"] == pytest.approx(np.mean([row["reward"] for row in rows]))
        counts = [len(row["steps"]) for row in rows]
        assert max(counts) > 2 and line["steps/mean"] == pytest.approx(np.mean(counts))
        cut = [not row["finished"] for row in rows]
        assert line["response_length/clip_ratio"] == pytest.approx(np.mean(cut))
        groups: dict[str, set[float]] = {}
        for row in rows:
            groups.setdefault(row["problem_id"], set()).add(row["reward"])
        is_flat = [len(rewards) == 1 for rewards in groups.values()]
        assert line["frac_reward_zero_std"] == pytest.approx(np.mean(is_flat))
        values = [step["value"] for row in rows for step in row["steps"] if step["count"]]
        assert line["values/mean"] == pytest.approx(np.mean(values), abs=1e-6)
        states = {  # rollouts of a problem that begin alike share their states
            (row["problem_id"], "".join(step["text"] for step in row["steps"][:c]))
            for row in rows
            for c in range(min(len(row["steps"]), 2))
        }
        assert line["values/rollouts"] == 3 * len(states)


def test_problems_are_drawn_anew_each_iteration(run):
    drawn = [{row["problem_id"] for row in rows} for rows in episodes(run.workdir)]
    assert drawn[0] != drawn[1] or drawn[1] != drawn[2]
    assert all(name.startswith("train/") for names in drawn for name in names)


def test_the_rest_of_the_workdir(run):
    workdir = run.workdir
    assert {"config.json", "warmup", "checkpoints", "episodes", "tensorboard", "best"} <= {
        path.name for path in workdir.iterdir()
    }
    assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["2", "3"]
    start, end = load_pretrained(str(workdir / "warmup"))[1], params_of(workdir, 3)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), start, end)
    assert 1e-5 < min(jax.tree.leaves(moved)) < 0.1


def test_equal_policies_are_scored_once(run):
    """The prefill gives the policy's log-probabilities, at first also those of the reference."""
    assert run.scored == [0, 1, 1]


def test_seen_shapes_compile_nothing(run):
    """The number of states and of tokens differs from iteration to iteration."""
    # The first iteration scores nothing: the program is compiled in the second.
    assert run.iterations[0] > 5 and run.iterations[1:] == [1, 0]
    first, *others = (compiled for compiled, _ in run.updates)
    assert first > 0 and others == [0] * 11
    lines = metrics(run.workdir, "train")
    assert [line["rollout/compiles"] for line in lines[1:]] == [0, 0]
    assert len({line["values/rollouts"] for line in lines}) > 1


def best_of(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "best").iterdir())


def test_the_best_policy_is_written_before_the_checkpoint_that_counts_it():
    calls: list[str] = []
    stub: Any = SimpleNamespace(
        best=SimpleNamespace(wait=lambda: calls.append("best is written")),
        checkpoints=SimpleNamespace(save=lambda *given: calls.append("checkpoint")),
        progress=loop.Progress(),
    )
    loop.TrainingRun._save(stub, RunState(TrainState(jnp.int32(0), {}, ())))
    assert calls == ["best is written", "checkpoint"]


def test_a_stop_says_that_the_last_validation_is_lacking():
    """Until it is done, the best policy is the best of the earlier iterations."""
    stub: Any = SimpleNamespace(
        session=SimpleNamespace(cfg=cases.config(iterations=3)),
        progress=loop.Progress(done=3, evaluated=2),
        **{"spare": None, "state": None, "_save": lambda state: None, "_wait": lambda: None},
    )
    assert loop.TrainingRun.keep(stub).endswith("the same command does the last validation")
    stub.progress.evaluated = 3
    assert loop.TrainingRun.keep(stub).endswith("the same command resumes there")


@pytest.mark.parametrize(("programs", "line"), [(7, "2 compiled in 3"), (5, "none compiled")])
def test_programs_of_an_earlier_run_of_the_process_do_not_count(
    programs: int, line: str, monkeypatch: pytest.MonkeyPatch
):
    """As in a notebook, which trains twice."""
    said: list[str] = []
    state = RunState(TrainState(jnp.int32(0), {}, ()))
    method = SimpleNamespace(iteration=lambda *given: state)
    stub: Any = SimpleNamespace(
        session=SimpleNamespace(cfg=cases.config(), method=method),
        log=SimpleNamespace(message=said.append),
        checkpoints=SimpleNamespace(has=lambda done: True, raise_failure=lambda: None),
        health=SimpleNamespace(look=lambda iteration: None),
        **{"progress": loop.Progress(tested_by="x"), "page": SimpleNamespace(), "state": state},
        **{"is_first": True, "compiled": Compiles(5, 1, 60.0)},
    )
    monkeypatch.setattr(loop, "Iteration", lambda *given: SimpleNamespace(record=lambda step: None))
    monkeypatch.setattr(loop, "compiles", lambda: Compiles(programs, 1, 63.0))
    loop.TrainingRun._train_iteration(stub)
    assert said[0].startswith(f"programs: {line}")
    assert stub.progress.tested_by == ""  # the evaluation on test was of an earlier iteration


def test_accuracies_of_other_settings_are_not_compared():
    said: list[str] = []
    data = {"validation": [(Problem("a", "1+1", "2"), [5])]}
    stub: Any = SimpleNamespace(
        session=stand_in(Session, cfg=cases.config(), problems=data),
        log=SimpleNamespace(message=said.append),
        progress=loop.Progress(done=1, best_accuracy=0.5),
    )
    loop.TrainingRun._forget_stale_best(stub)
    assert stub.progress.best_accuracy == -math.inf and "is chosen anew" in said.pop()
    stub.progress.best_accuracy, stub.session.cfg = 0.5, cases.config(eval={"every": 7})
    loop.TrainingRun._forget_stale_best(stub)
    assert stub.progress.best_accuracy == 0.5 and not said
    data["validation"].append((Problem("b", "1+2", "3"), [6]))
    loop.TrainingRun._forget_stale_best(stub)
    assert stub.progress.best_accuracy == -math.inf and "is chosen anew" in said.pop()


def test_the_best_policy_is_kept(run):
    """It is the first one with the highest validation accuracy, if the start does not have it."""
    found = [line["eval/pass_at_1"] for line in metrics(run.workdir, "eval")]
    best = found.index(max(found))
    assert len(set(found)) > 1 and best_of(run.workdir) == ([str(best)] if best else [])


# --- runs that must be the same


@pytest.fixture(scope="module")
def resumed(run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """(workdir, metrics at the interruption) of a run that died in its second iteration's updates.

    The first start also traces its first iteration.
    """
    workdir, update_step, updates = tmp_path_factory.mktemp("resumed"), update.update_step, []

    def dying(*args: Any):
        updates.append(None)
        if len(updates) == 6:
            raise KeyboardInterrupt
        return update_step(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "update_step", dying)
        with pytest.raises(KeyboardInterrupt):
            loop.train(cases.config(profile="0:1"), workdir)
    before = cases.read_lines(workdir / "metrics.jsonl")
    loop.train(cases.config(), workdir)
    return workdir, before


def test_the_same_seed_gives_the_same_run(run, resumed):
    _, before = resumed
    whole = cases.read_lines(run.workdir / "metrics.jsonl")
    assert len(before) == 6 and cases.without_clock(before) == cases.without_clock(whole[:6])


def test_a_resumed_run_equals_one_that_was_not_interrupted(run, resumed):
    workdir, _ = resumed
    found = cases.read_lines(workdir / "metrics.jsonl")
    expected = cases.read_lines(run.workdir / "metrics.jsonl")
    assert cases.without_clock(found) == cases.without_clock(expected)
    for iteration in range(3):
        name = f"episodes/{iteration}.jsonl"
        assert (workdir / name).read_bytes() == (run.workdir / name).read_bytes()
    cases.assert_equal(params_of(workdir, 3), params_of(run.workdir, 3))
    assert best_of(workdir) == best_of(run.workdir)


def test_a_stop_saves_the_last_finished_iteration_and_nothing_is_lost(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Stopped within the updates of the second iteration, then within the validation after it,
    which the last start does; `checkpoint.every` alone would have saved neither."""
    for name in ("config.json", "warmup"):
        copy = shutil.copytree if name == "warmup" else shutil.copy
        copy(run.workdir / name, tmp_path / name)
    cfg = cases.config(checkpoint={"every": 10, "keep": 2})
    update_step, evaluate, updates = update.update_step, loop.evaluate, []

    def in_an_update(*args: Any):
        updates.append(None)
        if len(updates) == 6:
            stopping.request(signal.SIGTERM)
        return update_step(*args)

    def in_validation(session: Any, policy: Any, split: str, done: int, log: Any):
        if done == 2:
            stopping.request(signal.SIGINT)
        return evaluate(session, policy, split, done, log)  # pyright: ignore

    for place, replaced, code, done in (
        ((update, "update_step"), in_an_update, 143, 1),
        ((loop, "evaluate"), in_validation, 130, 2),
    ):
        with monkeypatch.context() as patch, pytest.raises(stopping.Stopped) as stop:
            patch.setattr(*place, replaced)
            loop.train(cfg, tmp_path)
        assert stop.value.exit_code == code
        assert (
            stop.value.next_start == f"checkpoints/{done} is saved; the same command resumes there"
        )
        assert (tmp_path / f"checkpoints/{done}/checksums.0-of-1.json").exists()
    assert len(updates) == 6
    loop.train(cfg, tmp_path)
    found = cases.read_lines(tmp_path / "metrics.jsonl")
    expected = cases.read_lines(run.workdir / "metrics.jsonl")[2:]  # the warm-up was not repeated
    assert cases.without_clock(found) == cases.without_clock(expected)
    cases.assert_equal(params_of(tmp_path, 3), params_of(run.workdir, 3))
    assert best_of(tmp_path) == best_of(run.workdir)


@pytest.mark.slow
def test_a_run_whose_updates_are_all_skipped_ends_with_their_batch(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Three iterations in a row with gradients that are not finite end a run; others do not."""
    good, given, assigned = {0, 2}, [], base.assigned

    def of_nan(*args: Any):
        credit = assigned(*args)
        given.append(credit)
        number = len(given) - 1
        nan = credit.advantages * float("nan")
        return credit if number in good else credit._replace(advantages=nan)

    monkeypatch.setattr(base, "assigned", of_nan)
    cfg = cases.config(iterations=9, eval={"every": 0}, model={"path": str(run.workdir / "warmup")})
    file = tmp_path / "not_finite.npz"
    with pytest.raises(DivergedError) as error:
        loop.train(cfg, tmp_path)
    assert str(error.value).startswith("iteration 6: all updates of 3 iterations in a row")
    assert str(file) in str(error.value) and len(given) == 6
    failed = read_status(epath.Path(tmp_path))
    assert failed is not None and (failed.state, failed.done, failed.total) == ("failed", 6, 9)
    assert failed.why == str(error.value)
    skipped = [line["actor/skipped_updates"] for line in metrics(tmp_path, "train")]
    assert skipped == [0, 4, 0, 4, 4, 4]
    with np.load(file) as batch:
        assert batch["tokens"].ndim == 2 and np.isnan(batch["advantages"]).any()


def test_a_stop_in_the_first_iteration_saves_nothing(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cfg = cases.config(model={"path": str(run.workdir / "warmup")})
    monkeypatch.setattr(loop, "evaluate", lambda *_: stopping.request(signal.SIGHUP) or 0.5)
    with pytest.raises(stopping.Stopped, match="SIGHUP") as stop:
        loop.train(cfg, tmp_path)
    assert stop.value.next_start.startswith("no iteration was finished")
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_profile_is_a_trace_of_its_iterations(resumed):
    assert list((resumed[0] / "profile").rglob("*.xplane.pb"))


def test_no_iterations_evaluate_the_start_once(run, tmp_path: Path, capsys: Any):
    loop.train(cases.config(iterations=0, model={"path": str(run.workdir / "warmup")}), tmp_path)
    lines = cases.read_lines(tmp_path / "metrics.jsonl")
    assert [(line["stage"], line["iteration"]) for line in lines] == [("test", 0), ("eval", 0)]
    head, begin, *_ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"vineppo on \S+: \S+/warmup, [\d,]+ parameters, \d x CPU; \S+", head)
    assert begin.startswith("begins: 0 iterations; ")
    assert (
        cases.without_clock(lines)
        == cases.without_clock(cases.read_lines(run.workdir / "metrics.jsonl"))[2:4]
    )


@pytest.mark.slow
def test_another_seed_gives_another_run(run, tmp_path: Path):
    cfg = cases.config(seed=7, iterations=1, model={"path": str(run.workdir / "warmup")})
    loop.train(cfg, tmp_path)
    (line,) = metrics(tmp_path, "train")
    first = metrics(run.workdir, "train")[0]
    assert line["actor/entropy"] != first["actor/entropy"]
    assert not (tmp_path / "warmup").exists()


def test_a_finished_run_is_left_as_it_is(run, tmp_path: Path, capsys: Any):
    workdir = tmp_path / "copy"
    shutil.copytree(run.workdir, workdir)
    loop.train(cases.config(), workdir)
    said = capsys.readouterr().out
    assert "ended after iteration 3; with iterations above 3 it would go on" in said
    assert ", test pass@1 " in said and (workdir / "report.html").exists()
    # Not even evaluated again: the times on record are those of the run.
    assert (workdir / "metrics.jsonl").read_bytes() == (run.workdir / "metrics.jsonl").read_bytes()
    cases.assert_equal(params_of(workdir, 3), params_of(run.workdir, 3))


def test_the_end_is_evaluated_on_test_once_and_again_with_other_settings(tmp_path: Path):
    """A stop within an evaluation leaves it to the next start."""
    params, calls = {"w": jnp.ones(1)}, []
    state = RunState(TrainState(jnp.int32(0), params, params))
    stale: dict[str, Any] = {"best_accuracy": -math.inf, "spent": loop.RunTotals()}
    data = {"test": [(Problem("a", "1+1", "2"), [5])]}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        first = loop.Progress(done=3, best_accuracy=0.5, judged_by="other settings")
        checkpoints.save(3, state, dataclasses.asdict(first))

        def start(samples: int, stops: bool = False) -> None:
            """Begins at the checkpoint, with a best accuracy that other settings made stale."""

            def evaluate(split: str) -> None:
                calls.append((split, samples))
                if stops:
                    raise stopping.Stopped(signal.SIGTERM)

            stub: Any = SimpleNamespace(
                session=stand_in(
                    Session, cfg=cases.config(eval={"samples": samples}), problems=data
                ),
                progress=loop.Progress(**checkpoints.meta(3) | stale),
                **{"checkpoints": checkpoints, "_evaluate": evaluate, "_wait": checkpoints.wait},
            )
            loop.TrainingRun._test_result(stub)

        with pytest.raises(stopping.Stopped):
            start(2, stops=True)
        for samples in (2, 2, 3, 3, 2):
            start(samples)
        assert calls == [("test", samples) for samples in (2, 2, 3, 2)]
        data["test"].append((Problem("b", "1+2", "3"), [6]))
        start(2)
        assert len(calls) == 5
        meta = checkpoints.meta(3)
    assert meta["best_accuracy"] == 0.5 and meta["judged_by"] == "other settings"


def test_a_resumed_run_has_one_state_on_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A fresh state beside the restored one would need more memory than training does."""
    shape, numbers = (61, 67), []
    session = object.__new__(Session)  # only with what a resume reads
    vars(session).update(
        cfg=cases.config(),
        mesh=make_mesh(MeshConfig()),
        method=SimpleNamespace(state=MethodState()),
        fresh_params=lambda: {"embed": jnp.ones(shape)},
    )
    restore = Checkpoints.restore

    def counted(*arguments: Any) -> Any:
        numbers.append(sum(x.shape == shape for x in jax.live_arrays()))
        return restore(*arguments)

    monkeypatch.setattr(Checkpoints, "restore", counted)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        fresh, progress = loop.resume(session, checkpoints)
        assert progress == loop.Progress() and numbers == []
        checkpoints.save(4, fresh, dataclasses.asdict(loop.Progress(done=4)))
        expected = jax.tree.map(np.array, fresh)  # copies
        del fresh
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        found, progress = loop.resume(session, checkpoints)
    assert progress.done == 4 and numbers == [0]
    cases.assert_equal(found, expected)


def test_the_first_state_is_freed(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With `offload.optimizer` its arrays are in host memory, and no update consumes them."""
    alive = []

    def end(training: loop.TrainingRun, _: object) -> None:
        arrays = [weakref.ref(x) for x in jax.tree.leaves(training.state.policy)]
        training.state = RunState(training.state.policy._replace(params={}, opt_state=()))
        gc.collect()
        alive.extend(array() is not None for array in arrays)

    monkeypatch.setattr(loop.TrainingRun, "run", end)
    loop.train(cases.config(model={"path": str(run.workdir / "warmup")}), tmp_path)
    assert len(alive) > 20 and sum(alive) == 1  # the number of updates


def test_a_policy_gradient_without_a_kl_keeps_no_reference_model(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    freed, path = [], str(run.workdir / "warmup")

    def end(training: loop.TrainingRun, _: object) -> None:
        freed.append({x.is_deleted() for x in jax.tree.leaves(training.session.start)})
        jax.block_until_ready(training.state.policy)  # has its own copy

    monkeypatch.setattr(loop.TrainingRun, "run", end)
    for folder, coef in [("none", 0.0), ("small", 1e-4)]:
        loop.train(cases.config(model={"path": path}, kl={"coef": coef}), tmp_path / folder)
    assert freed == [{True}, {False}]


def test_any_policy_may_replace_a_damaged_best_one(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Else a run that becomes no better would end without a best policy to export."""
    workdir, found = Path(shutil.copytree(run.workdir, tmp_path / "copy")), []
    shutil.rmtree(workdir / "best")
    with Checkpoints(workdir / "best", keep=1) as best:
        best.save_params(2, params_of(workdir, 3), {"pass_at_1": 0.5})
    monkeypatch.setattr(
        loop.TrainingRun, "run", lambda self, _: found.append(self.progress.best_accuracy)
    )
    loop.train(cases.config(), workdir)
    (workdir / "best/2/meta/metadata").write_text("{}")
    loop.train(cases.config(), workdir)
    assert math.isfinite(found[0]) and found[1] == -math.inf
    assert "best/2: is damaged" in capfd.readouterr().err


def test_a_worse_policy_does_not_replace_the_best_that_no_checkpoint_counts(tmp_path: Path):
    """A start that does the validation in which a process was stopped may be killed after it."""
    with Checkpoints(tmp_path, keep=1) as best:
        best.save_params(3, {"w": jnp.ones(1)}, {"pass_at_1": 0.9})
        for done, expected in ((2, 0.5), (3, 0.9), (4, 0.5)):
            progress = loop.Progress(done=done, best_accuracy=0.5)
            assert loop.accuracy_to_exceed(best, progress) == expected


def test_a_validation_that_a_stop_has_put_off_is_recorded(tmp_path: Path):
    """Else later starts do it again, and the start of the run, which was better, is not chosen."""
    progress, params = loop.Progress(done=3, best_accuracy=0.5), {"w": jnp.ones(1)}
    state = RunState(TrainState(jnp.int32(0), params, params))
    with (
        Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints,
        Checkpoints(tmp_path / "best", keep=1) as best,
    ):
        checkpoints.save(3, state, dataclasses.asdict(progress))
        stub: Any = SimpleNamespace(
            session=SimpleNamespace(cfg=cases.config(iterations=3)),
            **{"progress": progress, "state": state, "checkpoints": checkpoints, "best": best},
            **{"_evaluate": lambda split: 0.25, "_save": lambda state: None},
        )
        loop.TrainingRun._finish_iteration(stub)
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        found, meta = checkpoints.restore(3, state)
    assert meta["evaluated"] == 3 and meta["best_accuracy"] == 0.5
    cases.assert_equal(found.policy.params, params)
    assert find_policy(epath.Path(tmp_path), "best") is None


@pytest.mark.parametrize("damage", ["flip", "lacks", "number"])
def test_a_run_goes_back_to_the_checkpoint_before_a_damaged_one(
    run, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str
):
    """The newest has a flipped bit or, without checksums, a meta with no key or of another run."""
    workdir = Path(shutil.copytree(run.workdir, tmp_path / "copy"))
    newest = workdir / "checkpoints/3"
    if damage == "flip":
        file = max((newest / "params").rglob("?" * 32), key=lambda path: path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[-5] ^= 4
        file.write_bytes(data)
    else:
        (newest / "checksums.0-of-1.json").unlink()
        meta = json.loads((newest / "meta/metadata").read_text())
        meta = meta | {"done": 7} if damage == "number" else {"done": 3}
        (newest / "meta/metadata").write_text(json.dumps(meta))
    with open_session(cases.config(), workdir) as session:
        with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
            state, at = loop.resume(session, checkpoints)
    assert at.done == 2
    cases.assert_equal(state.policy.params, params_of(workdir, 2))
    reason = {"flip": "is not as it was saved", "lacks": "its meta lacks 'spent'"}
    said = capfd.readouterr().err
    assert f"{newest}: is damaged (" in said
    assert reason.get(damage, "it was saved as 7") in said
