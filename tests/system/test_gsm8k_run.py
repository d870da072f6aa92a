"""An iteration of the shipped config on real problems, with a real tokenizer and real weights."""

import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.paths import CONFIGS, REPO

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.core.settings import Config
from vinejax.model.hf.weights import load_pretrained
from vinejax.tasks.gsm8k import GSM8K
from vinejax.training.loop import train

CONFIG = CONFIGS / "gsm8k_tiny.py"


def small() -> Config:
    """The config with the sizes cut down; what is tested is that everything meets.

    Evaluation samples as training does, so that decoding is compiled once.
    """
    cfg = from_dict(runpy.run_path(str(CONFIG))["get_config"]())
    check_config(cfg)
    sample = dataclasses.replace(cfg.sample, max_tokens=32)
    as_trained = {"temperature": sample.temperature, "top_p": sample.top_p}
    data = dataclasses.replace(cfg.data, path=str(REPO / cfg.data.path))
    model = dataclasses.replace(cfg.model, path=str(REPO / cfg.model.path))
    return dataclasses.replace(
        cfg,
        data=data,
        model=model,
        iterations=1,
        sample=sample,
        rollout=dataclasses.replace(cfg.rollout, prompts=4, per_prompt=2, slots=32),
        values=dataclasses.replace(cfg.values, k=2),
        ppo=dataclasses.replace(cfg.ppo, epochs=1),
        eval=dataclasses.replace(cfg.eval, problems=4, **as_trained),
    )


@pytest.mark.slow
def test_an_iteration_on_real_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cfg = small()
    train(cfg, tmp_path)
    lines = cases.read_lines(tmp_path / "metrics.jsonl")
    assert [line["stage"] for line in lines] == ["test", "eval", "train", "eval", "test"]
    trained = lines[2]
    assert trained["rollout/logprob_diff/max"] < 1e-4
    assert np.isfinite(trained["actor/grad_norm"]) and trained["actor/skipped_updates"] == 0
    assert 0 < trained["response_length/max"] <= 32

    by_id = {problem.id: problem for problem in GSM8K(cfg.data.path).load("train")}
    *_, tokenizer = load_pretrained(cfg.model.path)
    rows = cases.read_lines(tmp_path / "episodes" / "0.jsonl")
    assert len(rows) == 8
    for row in rows:
        problem = by_id[row["problem_id"]]
        assert (row["question"], row["answer"]) == (problem.question, problem.answer)
        assert row["prompt"] == f"[MATH_TASK] Problem:\n{problem.question}\n\nSolution:"
        assert "".join(step["text"] for step in row["steps"]) == row["response"]
        total = sum(step["advantage"] for step in row["steps"])
        assert total == pytest.approx(row["reward"] - row["steps"][0]["value"], abs=1e-6)
        assert 0 < len(tokenizer.encode(row["response"])) <= 40

    # Prompts that are too long are counted and listed.
    assert "prompts have more than data.max_prompt_tokens = 256 tokens" in capsys.readouterr().out
    assert (tmp_path / "dropped_problems.json").exists()
