"""`benchmarks/gpu.py`: its parts run on a CPU, are stopped at their limits, and end no other."""

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import REPO

pytestmark = pytest.mark.nightly

BENCHMARKS = REPO / "benchmarks"
# A stand-in for gpu_parts.py: what it does depends on the part.
STUB = """
import json, sys, time
part, folder = sys.argv[1], sys.argv[2].removeprefix("--folder=")
with open(f"{folder}/{part.replace(':', '_')}.jsonl", "w") as stream:
    def write(**fields):
        print(json.dumps(fields), file=stream, flush=True)
    if part == "machine":
        write(record={"device": "a stub", "driver": "1.0", "jax": "0", "platform": "stub"})
        sys.exit()
    write(name="speed", value=1234.5, unit="tokens/s", low=1000, high=2000, slots=4)
    if part == "decode:a.b":
        stream.write('{"name": "cut')
        stream.flush()
        time.sleep(60)
    if part == "update":
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
    parts = {"paths": 60.0, "decode:a.b": 1.5, "update": 60.0}
    monkeypatch.setattr(gpu, "SMALL_CALLS", {"decode": parts})
    return tmp_path / "gpu.json"


def run(gpu: Any, output: Path, *arguments: str) -> int:
    return gpu.main(["--small", f"--output={output}", *arguments])


def test_a_part_that_fails_or_is_stopped_ends_no_other(gpu, stubbed, capsys):
    assert run(gpu, stubbed) == 1
    result = json.loads(stubbed.read_text())
    assert result["device"]["device"] == "a stub"
    assert {"commit", "command", "date", "machine"} < result.keys()
    parts = result["parts"]
    assert list(parts) == ["paths", "decode:a.b", "update"]
    assert parts["decode:a.b"]["failure"] == "stopped after 2 seconds, its limit"
    assert parts["update"]["failure"] == "exit status 1: room"
    assert parts["paths"]["failure"] is None
    first = {"name": "speed", "value": 1234.5, "unit": "tokens/s", "low": 1000, "high": 2000}
    assert all(part["figures"][0] == first | {"slots": 4} for part in parts.values())
    assert [len(part["figures"]) for part in parts.values()] == [4, 1, 1], "a cut line counts"
    holds = [figure.get("holds") for figure in parts["paths"]["figures"]]
    assert holds == [None, False, False, True]
    assert parts["paths"]["figures"][2]["value"] is None, "not a number is not JSON"
    shown = capsys.readouterr().out
    assert "| decode:a.b | speed, slots 4 | 1,234 | tokens/s | 1,000 to 2,000 |" in shown
    assert "| paths | likeness | 0.5 | share | at least 0.99: DOES NOT HOLD |" in shown
    assert "update FAILED: exit status 1: room" in shown and str(stubbed) in shown


def test_time_of_all_parts_together(gpu, stubbed, monkeypatch):
    monkeypatch.setattr(gpu, "SMALL_CALLS", {"decode": {"decode:a.b": 60.0, "update": 60.0}})
    monkeypatch.setattr(gpu, "MOST", 2.2)
    assert run(gpu, stubbed) == 1
    parts = json.loads(stubbed.read_text())["parts"]
    assert parts["decode:a.b"]["took_s"] < 2.2 and parts["update"]["figures"] == []
    assert parts["update"]["failure"] == "not begun: the time of all parts was over"


def test_no_device_is_one_line(gpu, stubbed, capsys):
    (stubbed.parent / "stub.py").write_text("raise RuntimeError('no CUDA here')")
    assert gpu.main([f"--output={stubbed}"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    begin = "gpu.py: error: no device that JAX can use (exit status 1: RuntimeError: no CUDA here)"
    assert said.startswith(begin) and "JAX_PLATFORMS=cpu and --small" in said
    assert not stubbed.exists()


def test_a_call_takes_six_minutes_at_most(gpu):
    parts = importlib.import_module("gpu_parts")
    assert all(sum(limits.values()) <= gpu.MOST < 360 for limits in gpu.CALLS.values())
    names = {name for limits in gpu.CALLS.values() for name in limits}
    assert {name.partition(":")[0] for name in names} | {"machine"} == set(parts.PARTS)
    shapes = {name.partition(":")[2] for name in names} - {""}
    assert shapes == {"135m", "0.5b", "1.1b", "7b"} and shapes < set(parts.SHAPES)


def test_one_gpu_and_the_cpu(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    own = gpu.environment(tmp_path, tmp_path / "tiles")
    assert (own["JAX_PLATFORMS"], own["CUDA_VISIBLE_DEVICES"]) == ("cuda,cpu", "3")
    flag = f"--xla_gpu_dump_autotune_results_to={tmp_path / 'tiles'}"
    assert own["XLA_FLAGS"] == f"--mine {flag}"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu.environment(tmp_path, tmp_path / "tiles")["CUDA_VISIBLE_DEVICES"] == "0"
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert gpu.environment(tmp_path, tmp_path / "tiles")["XLA_FLAGS"] == "--mine"


def test_tiles_of_all_parts_are_one_file(gpu, tmp_path):
    assert gpu.write_tiles(tmp_path, tmp_path / "gpu.json") is None
    for name in ("a", "b"):
        text = f'version: 3\nresults {{\n  hlo: "{name}"\n}}\n'
        (tmp_path / f"{name}.autotune").write_text(text)
    joined = gpu.write_tiles(tmp_path, tmp_path / "gpu.json").read_text()
    assert joined.count("version: 3\n") == 1 and joined.count("results {") == 2


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


def test_the_parts_run_on_a_cpu(gpu, tmp_path):
    """In this process, whose one device is both sides of the comparison."""
    parts = importlib.import_module("gpu_parts")
    given = parts.Given(parts.SMALL, tmp_path)
    figures: dict[str, Any] = {}
    for part, shape in (("correctness", ""), ("decode", "tiny"), ("update", "")):
        made = parts.PARTS[part](given._replace(shape=shape))
        figures[part] = list(map(gpu.checked, made))
    assert all({"name", "value", "unit"} <= f.keys() for own in figures.values() for f in own)
    assert json.loads(json.dumps(figures)) == figures
    checks = [f for f in figures["correctness"] if f["precision"] == "highest"]
    assert len(checks) == 7 and all(f["holds"] for f in checks)
    of_xla = {f["name"]: f["value"] for f in figures["decode"] if f.get("path") == "xla"}
    assert of_xla["sampled"] == pytest.approx(8 / (of_xla["step"] / 1e3))
    limits = [of_xla[f"limit, {x}"] for x in ("weights", "trunks", "suffixes", "logits")]
    least = max(sum(limits), of_xla["limit, FLOP"])
    assert of_xla["of the limit"] == pytest.approx(least / of_xla["step"])
    trained = next(f["value"] for f in figures["decode"] if f["name"] == "trained token")
    price = of_xla["price of a sampled token"]
    assert price == pytest.approx(1e6 / of_xla["sampled"] / trained)
    mfu = next(f for f in figures["update"] if f["name"] == "MFU of an update")
    assert mfu["value"] > 0 and math.isfinite(mfu["value"])
    table = "".join(gpu.table({"parts": {"decode": {"figures": figures["decode"], "failure": ""}}}))
    assert "| sampled, slots 8, path xla |" in table


def test_a_run_and_both_paths(gpu, tmp_path):
    """Two iterations as a user starts them; the interpreted kernel draws the same tokens."""
    parts = importlib.import_module("gpu_parts")
    given = parts.Given(parts.SMALL, tmp_path)
    found = list(parts.train(given))
    stages = {"rollout", "value", "score", "train"}
    assert {f["name"] for f in found} == {"whole run", "reward"} | stages
    assert {f["iteration"] for f in found if "iteration" in f} == {0, 1}
    alike = list(map(gpu.checked, parts.paths(given)))
    assert alike and all(f["holds"] for f in alike) and alike[0]["path"] == "kernel"
