"""`benchmarks/gpu.py`: its parts run on a CPU, are stopped at their limits, and end no other."""

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.paths import REPO

from vinejax.tools.bench.settings import BenchConfig

pytestmark = pytest.mark.nightly

BENCHMARKS = REPO / "benchmarks"
# A stand-in for gpu_parts.py: what it does depends on the part.
STUB = """
import json, sys, time
part, folder = sys.argv[1], sys.argv[2].removeprefix("--folder=")
with open(f"{folder}/{part}.jsonl", "w") as stream:
    def write(**fields):
        print(json.dumps(fields), file=stream, flush=True)
    if part == "machine":
        write(record={"device": "a stub", "driver": "1.0", "jax": "0"})
        sys.exit()
    write(name="speed", value=1234.5, unit="tokens/s", low=1000, high=2000, slots=4)
    if part == "sampling":
        stream.write('{"name": "cut')
        stream.flush()
        time.sleep(60)
    if part == "training":
        print("a line before")
        raise ValueError("not enough\\nroom")
    write(name="likeness", value=0.5, unit="share", at_least=0.99)
    write(name="logits", value=float("nan"), unit="relative", at_most=1e-4)
    write(name="gradients", value=1e-5, unit="relative", at_most=1e-4)
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("gpu")


@pytest.fixture
def stubbed(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """gpu.py with the stub for its parts; where the result is written."""
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setattr(gpu, "PARTS_FILE", tmp_path / "stub.py")
    monkeypatch.setattr(gpu, "LIMITS", gpu.LIMITS | {"sampling": 1.5})
    return tmp_path / "gpu.json"


def run(gpu: Any, output: Path, *arguments: str) -> int:
    return gpu.main(["--device=cpu", "--tiny", f"--output={output}", *arguments])


def test_a_part_that_fails_or_is_stopped_ends_no_other(gpu, stubbed, capsys):
    assert run(gpu, stubbed, "--parts=training,sampling,correctness") == 1
    result = json.loads(stubbed.read_text())
    assert result["device"] == {"device": "a stub", "driver": "1.0", "jax": "0"}
    assert {"commit", "command", "date", "machine", "model"} < result.keys()
    parts = result["parts"]
    assert list(parts) == ["correctness", "sampling", "training"]
    assert parts["sampling"]["failure"] == "stopped after 2 seconds, its limit"
    assert parts["training"]["failure"] == "exit status 1: room"
    assert parts["correctness"]["failure"] is None
    first = {"name": "speed", "value": 1234.5, "unit": "tokens/s", "low": 1000, "high": 2000}
    assert all(part["figures"][0] == first | {"slots": 4} for part in parts.values())
    assert [len(part["figures"]) for part in parts.values()] == [4, 1, 1], "a cut line counts"
    holds = [figure.get("holds") for figure in parts["correctness"]["figures"]]
    assert holds == [None, False, False, True]
    assert parts["correctness"]["figures"][2]["value"] is None, "not a number is not JSON"
    shown = capsys.readouterr().out
    assert "| sampling | speed, slots 4 | 1,234 | tokens/s | 1,000 to 2,000 |" in shown
    assert "| correctness | likeness | 0.5 | share | at least 0.99: DOES NOT HOLD |" in shown
    assert "training FAILED: exit status 1: room" in shown and str(stubbed) in shown


def test_time_of_all_parts_together(gpu, stubbed, monkeypatch):
    monkeypatch.setattr(gpu, "MOST", 2.2)
    assert run(gpu, stubbed, "--parts=sampling,training") == 1
    parts = json.loads(stubbed.read_text())["parts"]
    assert parts["sampling"]["took_s"] < 2.2 and parts["training"]["figures"] == []
    assert parts["training"]["failure"] == "not begun: the time of all parts was over"


def test_no_device_is_one_line(gpu, stubbed, capsys):
    (stubbed.parent / "stub.py").write_text("raise RuntimeError('no CUDA here')")
    assert gpu.main([f"--output={stubbed}"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("gpu.py: error: no gpu that JAX can use (exit status 1: RuntimeError: ")
    assert "no CUDA here" in said and "--device=cpu --tiny" in said and not stubbed.exists()


def test_the_device_is_in_the_result(gpu, tmp_path):
    """The real process of a part."""
    assert run(gpu, tmp_path / "gpu.json", "--parts=machine") == 0
    device = json.loads((tmp_path / "gpu.json").read_text())["device"]
    assert (device["platform"], device["devices found"], device["driver"]) == ("cpu", 2, None)


def test_parts_bring_what_they_need(gpu, capsys):
    assert gpu.chosen_parts("credit") == ["machine", "start", "credit"]
    assert gpu.chosen_parts("sampling,correctness") == ["machine", "correctness", "sampling"]
    assert gpu.chosen_parts("") == list(gpu.LIMITS)
    assert list(importlib.import_module("gpu_parts").PARTS) == list(gpu.LIMITS)
    assert sum(gpu.LIMITS.values()) - gpu.LIMITS["machine"] <= gpu.MOST < 600
    for arguments, message in (
        (["--parts=sampling,trianing"], "--parts: 'trianing' is not among machine, correctness"),
        (["--device=cpu"], "--device=cpu needs --tiny"),
    ):
        with pytest.raises(SystemExit, match="2"):
            gpu.main(arguments)
        assert message in capsys.readouterr().err


def test_one_gpu_and_the_cpu(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    own = gpu.environment("gpu", tmp_path)
    assert (own["JAX_PLATFORMS"], own["CUDA_VISIBLE_DEVICES"]) == ("cuda,cpu", "3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu.environment("gpu", tmp_path)["CUDA_VISIBLE_DEVICES"] == "0"


def test_differences_of_two_devices(gpu):
    """Worked by hand: half of the logits' deviation, the worst weight, one of four branches."""
    checks = importlib.import_module("gpu_correctness")
    logits = np.array([[[1.0, -1.0]], [[1.0, -1.0]]], np.float32)
    assert checks.logit_difference(logits + np.array([0.5, 0.0], np.float32), logits) == 0.5
    weights = {"a": np.array([3.0, 4.0]), "b": np.array([10.0])}
    others = {"a": np.array([3.0, 3.0]), "b": np.array([11.0])}
    assert checks.gradient_difference(others, weights) == pytest.approx(0.2)
    made = checks.Run([[1, 2], [1, 3], [1, 2], [1, 2]], [[-1.0, -2.0]] * 4, 0, 0, 0)
    expected = checks.Run([[1, 2]] * 4, [[-1.0, -2.5], *[[-1.0, -2.0]] * 3], 0, 0, 0)
    figures: Any = checks.differences(
        checks.Computed(logits, logits[..., 0], others, made, made),
        checks.Computed(logits, logits[..., 0], weights, expected, expected),
    )
    values = {figure["name"]: figure for figure in map(gpu.checked, figures)}
    assert values["logits"]["value"] == 0 and values["logits"]["holds"]
    assert values["greedy tokens"]["value"] == 0.75 and not values["greedy tokens"]["holds"]
    assert values["sampled log-probabilities"]["value"] == 0.5
    assert values["gradients"]["value"] == pytest.approx(0.2) and not values["gradients"]["holds"]


def test_a_larger_bench_only_where_it_fits(gpu, tmp_path, monkeypatch):
    parts = importlib.import_module("gpu_parts")
    clock = SimpleNamespace(now=0.0, sizes=[])

    def bench(cfg: Any, workdir: Path) -> Any:
        clock.now += 10.0 * BenchConfig.of(cfg).repeats
        clock.sizes.append(BenchConfig.of(cfg).repeats)
        assert BenchConfig.of(cfg).estimators == parts.FULL.estimators and cfg.rollout.slots == 1024
        assert (cfg.model.path, cfg.rollout.per_prompt, cfg.ppo.minibatch) == ("somewhere", 8, 64)
        return BenchConfig.of(cfg).repeats

    monkeypatch.setattr(parts, "credit_bench", bench)
    monkeypatch.setattr(parts.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(parts, "as_json", lambda result: {"result": result})
    monkeypatch.setattr(parts, "figures_of", lambda result, bench: [])
    with pytest.raises(RuntimeError, match="part start made no weights"):
        list(parts.credit(parts.Given(parts.FULL, tmp_path, 131.0)))
    (tmp_path / parts.START).write_text("somewhere")
    figures = list(parts.credit(parts.Given(parts.FULL, tmp_path, 131.0)))
    assert [f["record"]["result"] for f in figures if "record" in f] == [3, 10]
    figures = list(parts.credit(parts.Given(parts.FULL, tmp_path, 129.0)))
    assert clock.sizes == [3, 10, 3] and figures[-1]["name"] == "sizes left out for time"


def test_the_parts_run_on_a_cpu(gpu, tmp_path):
    """All but the credit bench, whose own slow tests are in test_credit_mode.py.

    In this process, whose one device is both sides of the comparison.
    """
    parts = importlib.import_module("gpu_parts")
    given = parts.Given(parts.TINY, tmp_path, 3600.0)
    names = ("correctness", "sampling", "generate", "training", "start", "price")
    figures = {name: list(map(gpu.checked, parts.PARTS[name](given))) for name in names}
    assert all({"name", "value", "unit"} <= f.keys() for own in figures.values() for f in own)
    assert json.loads(json.dumps(figures)) == figures
    checks = [f for f in figures["correctness"] if f["precision"] == "highest"]
    assert len(checks) == 7 and all(f["holds"] for f in checks)
    losses = [f for f in figures["start"] if f["name"] == "loss of the warm-up"]
    assert [f["round"] for f in losses] == [1, 2], "two rounds, of two small steps"
    last = {name: {f["name"]: f["value"] for f in own} for name, own in figures.items()}
    for part, name in (
        *(("sampling", "sampling"), ("generate", "generate"), ("training", "training")),
        *(("price", "w"), ("start", "reward of the start")),
    ):
        assert last[part][name] > 0 and math.isfinite(last[part][name])
    sampled, trained = (last["price"][f"price of a {x} token"] for x in ("sampled", "trained"))
    assert last["price"]["w"] == pytest.approx(trained / sampled)
    assert "| w, slots 8, solutions 16, dtype float32 |" in "".join(
        gpu.table({"parts": {"price": {"figures": figures["price"], "failure": None}}})
    )
