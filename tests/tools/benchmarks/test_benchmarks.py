"""The benchmarks run at a toy size, and measure what they say."""

import dataclasses
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import vine_cases as vines
from helpers.applied import applied
from helpers.paths import REPO

from vinejax.core.shapes import bucket
from vinejax.engine.branches import Branch, Stream
from vinejax.engine.stats import EngineStats
from vinejax.learner.packing import Passes, first_fit, packing_for
from vinejax.methods.known import method_names

pytestmark = pytest.mark.nightly

BENCHMARKS = REPO / "benchmarks"
# Prefixes of one padded length and few slots: few programs to compile.
SMALL = ["--devices=1", "--model=tiny", "--trajectories=2", "--k=1", "--slots=8"]
SMALL += ["--prompt=8", "--trajectory=32", "--cap=16", "--repeats=1"]


@pytest.fixture(scope="module")
def rollout() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("rollout")


@pytest.fixture(scope="module")
def compared(rollout: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One comparison of every contender that needs no other project, as written by --json."""
    file = tmp_path_factory.mktemp("benchmark") / "rows.json"
    rollout.main([*SMALL, "--contenders=host,static,static-known", f"--json={file}"])
    return json.loads(file.read_text())


def test_all_contenders_write_the_same(compared):
    said = [line for line in compared["lines"] if "temperature" in line]
    names = ["host", "static", "static-known"]
    assert [line.split(":")[0] for line in said] == [
        f"temperature {t}, {name}" for t in ("0", "0.6") for name in names
    ]
    assert all("100.00% of 16 branches have the same tokens as ours" in line for line in said)


def test_the_table_counts_what_each_did(compared):
    rows = {row["contender"]: row for row in compared["rows"]}
    # Two trunks of 8 states at 8, 11, ..., 29: ours reads each trunk once, up to its last branch.
    assert rows.pop("ours")["prefill_tokens"] == 2 * 29
    positions = 2 * sum(range(8, 32, 3))
    assert {row["prefill_tokens"] for row in rows.values()} == {positions}
    useful = rows["host"]["tokens_per_s"] * rows["host"]["seconds"][0]
    for row in compared["rows"]:
        assert row["tokens_per_s"] * row["seconds"][0] == pytest.approx(useful)
    assert rows["static"]["slot_utilisation"] < rows["static-known"]["slot_utilisation"] <= 1
    # 16 branches in two batches of 8: each step takes 8 slots, and so does the prefill's token.
    steps = rows["static"]["decode_steps"] + 2
    assert rows["static"]["slot_utilisation"] == pytest.approx(useful / (8 * steps))
    table = [line for line in compared["lines"] if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in table] == [
        *("| contender", "| ours", "| host", "| static", "| static-known")
    ]
    assert "programs compiled in the timed rounds: 0" in compared["lines"]


def test_a_contender_that_is_not_installed_is_named(rollout, monkeypatch):
    def absent(work: Any) -> Any:
        raise importlib.import_module("workload").NotInstalled("torch")

    monkeypatch.setitem(rollout.CONTENDERS, "transformers", absent)
    _, lines = rollout.prepare(None, ["transformers"])
    assert lines == ["transformers: not measured, torch is not installed"]


def test_lengths_are_long_tailed(rollout):
    lengths = rollout.Lengths(trajectories=40)
    work = rollout.make_workload("tiny", 512, lengths, slots=8)
    budgets = np.array(work.budgets)
    assert len(budgets) == 40 * 8 * 9 and budgets.min() >= 1 and budgets.max() == lengths.cap
    assert budgets.mean() == pytest.approx(lengths.cap / 4, rel=0.05)
    assert np.median(budgets) < 0.75 * budgets.mean(), "not long-tailed"
    assert {branch.position for branch in work.branches} == set(range(64, 192, 16))
    again = rollout.make_workload("tiny", 512, lengths, slots=8)
    assert (again.trunks, again.branches, again.budgets) == (
        *(work.trunks, work.branches, work.budgets),
    )


def test_solutions_are_one_text_on_each_prompt(rollout):
    some = rollout.make_workload("tiny", 512, rollout.Lengths(trajectories=1), slots=8)
    work = rollout.solutions(some, prompts=12, tokens=5)
    assert list(map(len, work.trunks))[:6] == [71, 30, 60, 36, 123, 57]
    assert [work.prefix(i) for i in range(12)] == work.trunks
    assert work.useful_tokens == 12 * 5 and work.model is some.model


def test_disagreement_is_an_error(rollout):
    def run(odd: list[int], tokens: list[int], logprobs: list[float]) -> Any:
        """200 branches of two tokens, those in `odd` as given."""
        both = [(tokens, logprobs) if i in odd else ([1, 2], [-1.0, -2.0]) for i in range(200)]
        return rollout.Run([t for t, _ in both], [p for _, p in both], 0, 0, 0)

    plain = run([], [], [])
    assert rollout.assert_alike("b", plain, plain).startswith("b: 100.00% of 200 branches")
    # Rounding may turn a few draws; what is drawn after that has its own log-probabilities.
    assert "99.50% of 200" in rollout.assert_alike("b", run([7], [1, 3], [-1.0, -9.0]), plain)
    for odd in (
        run([7, 8, 9], [1, 3], [-1.0, -2.0]),  # too many other tokens
        run([7], [1], [-1.0]),  # another length
        run([7], [1, 2], [-1.0, -2.1]),  # another log-probability
    ):
        with pytest.raises(importlib.import_module("runs").Disagreement, match="b: "):
            rollout.assert_alike("b", odd, plain)


def test_scaling_and_items_print_tables(rollout, capsys: pytest.CaptureFixture[str]):
    rollout.main([*SMALL, "--scaling"])
    printed = capsys.readouterr().out
    assert re.search(r"^\| 1 \| \d+\.\d\d \| [\d,]+ MiB \|$", printed, re.MULTILINE)
    assert re.search(
        r"^time at 2 / time at 1: \d+\.\d\d, CPU time \d+\.\d\d$", printed, re.MULTILINE
    )

    rollout.main([*SMALL, "--items"])
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| ([\d.]+) \| (yes|no) \| [\d,]+ \| (0\.\d+) \| \d\.\d\d \| ",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    counts = [("8", "4"), ("16", "8"), ("32", "16")]
    found = [(n, k, drain) for n, k, _, drain, _ in rows]
    assert found == [(*count, drain) for count in counts for drain in ("yes", "no")]
    # Ends with probability 1/4 a token, cut at 16: (1 - 0.75^16) * 4 on average, 256 branches.
    assert float(rows[-1][2]) == pytest.approx(3.96, abs=0.7)


def test_the_bandwidth_limit_counts_every_byte(rollout):
    bandwidth = importlib.import_module("bandwidth")
    work = rollout.make_workload("tiny", 512, rollout.Lengths(1, 1, 8, 32, 16), slots=4)
    work = dataclasses.replace(work, branches=work.branches[:2], budgets=[3, 1])
    column = 2 * 2 * 2 * 8 * 4  # key and value, layers, heads, width, bytes
    layer = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32
    needed = bandwidth.needed_of(work, decode_steps=10)
    assert needed.weights == 10 * 4 * (2 * layer + 512 * 32 + 32)
    assert needed.trunks == column * (8 * 3 + 11 * 1) / bandwidth.GROUP
    assert needed.suffixes == column * (1 + 2 + 3 + 1)
    assert needed.logits == 2 * 4 * 4 * 512, "four tokens, written and read"
    moved = needed.weights + needed.trunks + needed.suffixes + needed.logits
    assert needed.bytes == moved
    # Two operations per weight and token; scores and sums over 8 * 3 + 11 and 7 positions.
    weights = 2 * layer + 512 * 32 + 32
    assert needed.flops == 2 * 4 * weights + 4 * 2 * 4 * 8 * (8 * 3 + 11 + 7)
    slow_memory, slow_products = (bandwidth.Speeds(*x) for x in ((moved, 1e12), (1e12, 1.0)))
    assert needed.seconds(slow_memory) == 1.0
    assert needed.seconds(slow_products) == needed.flops


def test_device_run(rollout, capsys: pytest.CaptureFixture[str]):
    rollout.main([*SMALL, "--device", "--copy-mib=1"])
    printed = capsys.readouterr().out
    assert re.search(r"^useful tokens/s +[\d,]+$", printed, re.MULTILINE)
    assert re.search(r"^share of the limit \d+\.\d%$", printed, re.MULTILINE)


def test_an_unknown_contender_is_refused(rollout, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        rollout.main(["--contenders=ours,vllm"])
    assert "vllm not among ours, ours-1, host" in capsys.readouterr().err


class Coin(vines.FakeEngine):
    """Half of the solutions take a wrong first step; what follows is certain."""

    def __init__(self):
        super().__init__(self.write)
        self.stats = EngineStats()

    def stream(self, *given: Any, **named: Any) -> Stream:
        self.stats.calls += 1
        return super().stream(*given, **named)

    def write(self, branch: Branch, k: int) -> tuple[str, str]:
        wrong = np.random.default_rng(branch.seed).random() < 0.5
        first, last = ("\n2+3=6", "\n#### 5") if wrong else ("\n2+3=5", "\n#### 4")
        if branch.position > len(vines.PROMPT):
            done = self.tokenizer.decode(self.trunks[branch.trunk][: branch.position])
            first, last = "", "\n#### 5" if done.endswith("6") else "\n#### 4"
        self.stats.decoded_tokens += len(first + "\n1+1=2" + last)
        return first + "\n1+1=2" + last, "eos"


def test_step_credit_measures_the_error_of_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("step_credit")
    session = SimpleNamespace(
        cfg=applied(
            vines.cases.config(
                sample={"max_tokens": vines.MAX_TOKENS},
                rollout={"per_prompt": 8},
                values={"k": 9, "max_states": None},
            )
        ),
        engine=Coin(),
        start={},
        graded=vines.rewards_of(vines.Task()),
        problems={"train": [vines.PROBLEM]},
    )
    file = tmp_path / "rows.jsonl"
    sizes = bench.Sizes(repetitions=16, problems=1, truth=64, uniform=(1, 3, 9))
    rows = {row.name: (row, at) for row, at in bench.run(session, sizes, "K = 3", True, file)}
    three, at = rows["uniform K = 3"]
    assert three.tokens == pytest.approx(1 / 3) and three.error > 1.3
    assert (three.samples, three.reused, three.waves) == (3, 0, 1)
    assert (at.fields, at.tokens, at.error, at.spread, at.step_error) == ({"k": 9}, 1, 1, 0, 1)
    assert three.equal == pytest.approx(1) and at.equal == pytest.approx(1)
    # 7 other solutions at s_0, for the same tokens; all that pass through s_1 are certain.
    reuse, at = rows["K = 3, reuse"]
    assert reuse.tokens == three.tokens and reuse.error < three.error
    assert reuse.samples > 8 and reuse.samples - reuse.reused == pytest.approx(3)
    assert at.fields == {"reuse": True, "k": 9} and at.tokens == 1

    head, *lines = map(json.loads, file.read_text().splitlines())
    assert [line["name"] for line in lines] == list(rows)
    assert lines[0]["scaled"]["error"] == 1
    assert {"commit", "date", "machine", "command"} < head.keys()
    assert head["steps_per_solution"] == {"2": 1.0}
    # Only s_0 is uncertain, with the variance 1/4 / 9, in 6 of 20 tokens.
    printed = capsys.readouterr().out
    assert head["uniform K = 9"]["error"] == pytest.approx(6 / 20 / 36, rel=0.7)
    assert len(re.findall(r"^\| .* \|$", printed, re.MULTILINE)) == len(rows) + 1
    assert "times fewer tokens with" in printed


def test_an_update_takes_a_sixth_of_the_memory_that_all_logits_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """At a vocabulary of 152,000 and a length of 2,048, arguments included. Nothing runs."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("learner")
    file = tmp_path / "rows.json"
    bench.main(["--rows=8", "--programs", "train_step", f"--json={file}"])
    chunks, whole = json.loads(file.read_text())
    assert (chunks["way"], whole["way"]) == ("chunks", "all logits")
    assert chunks["argument"] == whole["argument"]
    assert 6 * chunks["peak"] < whole["peak"]


def test_the_learner_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("learner")
    bench.main(["--rows=2", "--vocab=96", "--length=32", "--repeats=1", "--programs", "score"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["chunks", "all logits"]
    assert all(re.search(r" \| [\d,]+ \|$", line) for line in lines[2:])


def test_packed_rows_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("learner")
    file = tmp_path / "rows.json"
    sizes = ["--model=tiny", "--vocab=32", "--episodes=8", "--timed=4", "--minibatch=4"]
    more = ["--microbatch=1", "--repeats=1", "--lengths", "GSM8K", "--programs", "score"]
    bench.main(["--packing", *sizes, *more, f"--json={file}"])
    (row,) = json.loads(file.read_text())
    assert 0.5 < row["passes_filled"] <= row["rows_filled"] <= 1
    assert row["packed"] > 0 and row["alone"] > 0


def test_shared_prefixes_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("learner")
    monkeypatch.setattr(importlib.import_module("shared_prefixes"), "CONTINUATIONS", 1)
    file = tmp_path / "rows.json"
    sizes = ["--model=tiny", "--vocab=32", "--prompts=2", "--microbatch=1", "--repeats=1"]
    bench.main(["--prefixes", *sizes, "--programs", "score", f"--json={file}"])
    rows = json.loads(file.read_text())
    assert [row["rows"] for row in rows] == ["solutions", "tails"]
    for row in rows:
        assert row["computed"]["shared"] <= row["computed"]["packed"]
        assert min(row["tokens_per_s"].values()) > 0


def test_what_is_shared_fills_fewer_rows(monkeypatch: pytest.MonkeyPatch):
    """Of an iteration of solutions, and of tails, in rows as long as the bucket of the longest."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    packed, shared = (importlib.import_module(x) for x in ("packed_rows", "shared_prefixes"))
    for make, prompts, least in [(shared.solutions, 64, 1.15), (shared.tails, 2, 1.4)]:
        rows = packed.batch_of(list(make(np.random.default_rng(1), prompts, 500)), 1, 500)
        ways = (packing_for(rows, Passes(1, True, x), None) for x in (False, True))
        alone, together = (way.num_passes for way in ways)
        assert alone > least * together


def test_an_update_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Packed and single rows report the same loss and norm, or the benchmark ends; so PyTorch's."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("learner")
    file = tmp_path / "rows.json"
    sizes = ["--model=tiny", "--vocab=32", "--minibatch=8", "--microbatch=2", "--repeats=1"]
    bench.main(["--step", *sizes, "--lengths", "GSM8K", f"--json={file}"])
    packed, alone, *_ = json.loads(file.read_text())
    assert 0 < packed["padding"] < alone["padding"] < 1
    assert packed["tokens_per_s"] > 0 and 0 < packed["of_peak"] < 1
    step = importlib.import_module("learner_step")
    with pytest.raises(ValueError, match="x: grad_norm is 1.1, and ours 1"):
        step.check_alike("x", step.Reported(0.5, 1.1), step.Reported(0.5, 1.0))


@pytest.mark.parametrize("name", ["GSM8K", "lognormal"])
def test_packed_rows_of_an_iteration_are_nearly_full(name: str, monkeypatch: pytest.MonkeyPatch):
    """Of 512 episodes, in rows as long as the bucket of the longest."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("packed_rows")
    times_fewer = []
    for seed in range(4):
        lengths = bench.LENGTHS[name](np.random.default_rng(seed), 512).sum(axis=1)
        room = bucket(int(lengths.max()), least=32)
        bins, _ = first_fit(lengths, room)
        filled = lengths.sum() / ((bins.max() + 1) * room)
        assert filled > 0.95
        times_fewer.append(len(lengths) / (bins.max() + 1))
    assert np.mean(times_fewer) > 2.5


def test_step_credit_interpolates_uniform_errors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("step_credit")
    curve = object.__new__(bench.Bench)
    curve._curve = np.log([0.25, 1.0]), np.log([8.0, 1.0])
    for tokens, error in ((0.25, 8), (0.5, 8**0.5), (1, 1), (0.125, 16), (4, 0.25)):
        assert curve.uniform_error(tokens) == pytest.approx(error)


def test_every_method_has_a_run_on_the_tiny_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("learning_smoke")
    assert list(bench.FILES) == method_names()
    for name in bench.FILES:
        cfg = bench.settings_of(name, tmp_path, ["--config.iterations=2"])
        assert (cfg.method, cfg.iterations) == (name, 2)
        if name == "opd":
            assert cfg.sections["opd"].teacher == str(tmp_path / "vineppo")
