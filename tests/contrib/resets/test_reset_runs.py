"""Runs with resets: the records of two iterations, restarts, and budgets."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.paths import CONFIGS

from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.training import loop

START = str(CONFIGS / "tiny_start")  # the start solves a third of the problems
RESETS: dict[str, dict[str, Any]] = {
    "edge": {"source": "both", "at": "edge", "k": 3},
    "gold": {"source": "gold", "share": 0.5},
    "solved": {"source": "solved", "target": 1.0},
}

pytestmark = pytest.mark.slow


def run(name: str, workdir: Path, iterations: int) -> list[dict[str, Any]]:
    """The train records of a run with four groups of three from the prompts per iteration."""
    fields = {
        **{"iterations": iterations, "model": {"path": START}, "sample": {"max_tokens": 24}},
        # Evaluation samples as training does, so that decoding is compiled once.
        **{"eval": {"every": 0, "samples": 3, "problems": 4, "temperature": 0.8}},
        **{"budget": {"episodes": 38}},
    }
    loop.train(methods.config("grpo", **fields, reset=RESETS[name]), workdir)
    lines = cases.read_lines(workdir / "metrics.jsonl")
    return [line for line in lines if line["stage"] == "train"]


def params_of(workdir: Path) -> Any:
    like = load_pretrained(START)[1]
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        return checkpoints.restore_params(2, like)[0]


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations, which no test may change."""
    workdir = tmp_path_factory.mktemp("edges") / "run"
    run("edge", workdir, 2)
    return workdir


def check_run(lines: list[dict[str, Any]], workdir: Path, source: str) -> None:
    groups = [line["reset/groups"] for line in lines]
    assert sum(groups) > 0 and max(groups) <= 4
    for i, line in enumerate(lines):
        assert all(math.isfinite(x) for name, x in line.items() if name != "stage")
        assert line["rollout/logprob_diff/max"] <= 1e-4 and line["actor/grad_norm"] > 0
        # There are as many updates as without resets; their rows are added to the others.
        assert line["total/updates"] == 4 * (i + 1)
        rows = cases.read_lines(workdir / "episodes" / f"{i}.jsonl")
        further = 0 if source == "gold" else 3 * groups[i]
        assert len(rows) == line["actor/rows"] == 12 + further
        assert len([row for row in rows if row["given"]]) == 3 * groups[i]
        for row in rows:
            steps = "".join(step["text"] for step in row["steps"])
            assert row["given"] + steps == row["response"]
    total = lines[-1]["total/episodes"]
    assert total == sum(line["actor/rows"] for line in lines) <= 38


def test_a_run_with_resets_at_the_edge(edges: Path):
    lines = cases.read_lines(edges / "metrics.jsonl")
    trained = [line for line in lines if line["stage"] == "train"]
    check_run(trained, edges, "both")
    assert trained[-1]["total/episodes"] == 36  # the budget leaves room for no further group
    assert (edges / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["gold", "solved"])
def test_other_sources(name: str, tmp_path: Path):
    check_run(run(name, tmp_path, 1), tmp_path, name)


def test_a_run_that_was_interrupted_ends_alike(edges: Path, tmp_path: Path):
    half = tmp_path / "half"
    shutil.copytree(edges, half)
    shutil.rmtree(half / "checkpoints" / "2")
    shutil.rmtree(half / "best", ignore_errors=True)
    run("edge", half, 2)
    cases.assert_equal(params_of(half), params_of(edges))
    for name in ("0.jsonl", "1.jsonl"):
        found, expected = (workdir / "episodes" / name for workdir in (half, edges))
        assert found.read_text() == expected.read_text()
