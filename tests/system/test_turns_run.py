"""A run in an environment: the engine's tokens are the learner's, and what its files say."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases

from vinejax.learner import update
from vinejax.tasks.doors import DoorsTask
from vinejax.training.loop import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(train(cases.in_learned_doors(), tmp_path_factory.mktemp("doors")))


def rows_of(run: Path) -> list[dict[str, Any]]:
    return cases.read_lines(run / "episodes" / "0.jsonl")


def line_of(run: Path) -> dict[str, Any]:
    (line,) = [x for x in cases.read_lines(run / "metrics.jsonl") if x["stage"] == "train"]
    return line


def test_the_learner_scores_the_tokens_that_the_engine_drew(run: Path):
    line, rows = line_of(run), rows_of(run)
    assert line["rollout/logprob_diff/max"] < 1e-3
    assert line["turns/mean"] > 2 and line["values/rollouts"] > len(rows)
    assert line["values/waves"] == 1  # all turns are one stream of the engine
    assert line["actor/grad_norm"] > 0


def test_the_rows_say_who_said_what(run: Path):
    tokenizer = DoorsTask().tokenizer()
    lengths = []
    for row in rows_of(run):
        assert "".join(step["text"] for step in row["steps"]) == row["response"]
        length = 0
        for step in row["steps"]:
            text, observed = step["text"], step["observed"]
            for first, end in observed:
                assert text[first:end].strip("ab!") in ("0\n", "1\n")
                text = text[:first] + text[end:]
            length += len(tokenizer.encode(text, add_special_tokens=False))
        assert len(row["steps"]) >= 2 and row["steps"][0]["observed"]
        lengths.append(length)
    assert max(lengths) <= 12
    assert np.mean(lengths) == pytest.approx(line_of(run)["response_length/mean"], abs=1)


def test_a_run_that_was_interrupted_samples_the_same_episodes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With other slots, so that turns end in another order."""
    cfg = cases.in_learned_doors(model={"path": str(run / "warmup")})
    cfg = dataclasses.replace(cfg, rollout=dataclasses.replace(cfg.rollout, slots=8))
    with monkeypatch.context() as patch:
        patch.setattr(update, "update_step", None)  # fails once episodes have their values
        with pytest.raises(TypeError):
            train(cfg, tmp_path)
    train(cfg, tmp_path)
    assert without_rounding(rows_of(tmp_path)) == without_rounding(rows_of(run))


def without_rounding(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["response"], [s["continuations"] for s in row["steps"]]) for row in rows]
