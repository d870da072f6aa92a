"""The grader's processes: limits, crashes, order, cache, and what they must never do."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from test_extract import rows

import vinejax
import vinejax.grading
from vinejax.core.errors import UserError
from vinejax.grading import Grader, Verdict, grade, readable
from vinejax.grading.pool import grader as pool
from vinejax.grading.pool import process
from vinejax.grading.pool.jobs import LONGEST_ANSWER

HARD = ("x^2-1", "(x-1)(x+1)")
HARD_WRONG = ("x^2-1", "(x-1)(x+2)")
TRUE, FALSE = Verdict(True), Verdict(False)

# Put in the place of the comparison, in a worker that is otherwise the real one.
ACTING_WORKER = """
import os, resource, signal, sys, time
from vinejax.grading.pool import worker

def act(mode, prediction, gold):
    what = gold if prediction is None else prediction[0]
    print("noise on the standard output", flush=True)
    if what == "hang":
        time.sleep(1000)
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    if what == "memory":
        return bytearray(2**40)
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "raise":
        raise RuntimeError("no such comparison")
    if what == "limit":
        return resource.getrlimit(resource.RLIMIT_AS)[0] == 1000 * 2**20
    if what == "modules":
        return not {"jax", "jaxlib", "transformers", "flax"} & sys.modules.keys()
    return prediction == gold

worker.full_verdict = act
worker.main()
"""


@pytest.fixture
def acting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that hang, crash and swallow memory when told to."""
    (tmp_path / "acting_worker.py").write_text(ACTING_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(process, "MODULE", "acting_worker")
    monkeypatch.setattr(pool, "cheap_verdict", lambda job: None)


def worker_pids() -> list[int]:
    """The child processes that run the acting worker."""
    children = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    pids = [pid for pids in children for pid in pids]
    return [
        int(pid) for pid in pids if b"acting_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def reference(workers: int = 1, **settings: Any) -> Grader:
    return Grader(workers, mode="reference", **settings)


def test_verdicts_come_in_order_from_any_iterable():
    with reference(workers=2) as grader:
        pairs = [HARD, ("1", "2"), HARD_WRONG, (None, "1"), ("5", "5.0"), HARD]
        expected = [TRUE, FALSE, FALSE, FALSE, TRUE, TRUE]
        assert grader.grade_many(iter(pairs)) == expected
        assert grader.grade_many([]) == []
        assert (grader.stats.pairs, grader.stats.compared) == (6, 2)
        assert (grader.stats.timeouts, grader.stats.errors) == (0, 0)


def test_cheap_pairs_start_no_worker():
    with Grader() as strict, reference() as lenient, reference(style="gsm8k") as gsm8k:
        pairs = [("1,000", "1000.0"), ("x^2", "x^2"), ("7", "8"), ("", "5"), ("9" * 6000, "1")]
        for grader in (strict, lenient):
            assert [v.correct for v in grader.grade_many(pairs)] == [True, True] + 3 * [False]
        assert gsm8k.grade_many([("1,000 ", "1000"), ("72.0", "72")]) == [TRUE, FALSE]
        assert strict.stats.started == lenient.stats.started == gsm8k.stats.started == 0


def test_readable_golds():
    golds = ["5", r"\frac{x}{2}", r"\text{even}", r"\frac{1}{", "", r"\foo", "9" * 6000, "[0, 1)"]
    with Grader(1) as strict, reference() as lenient, reference(style="gsm8k") as gsm8k:
        found = [v.correct for v in strict.readable_many(iter(golds))]
        assert found == [True, True, True, False, False, False, False, True]
        assert 0 < strict.stats.compared < len(golds)
        assert strict.readable_many([]) == []
        # The reference compares as strings what it cannot read; only nothing is unreadable to it.
        found = [
            v.correct for v in lenient.readable_many([r"\foo", "", r"We have $\boxed{}$ here"])
        ]
        assert found == [True, False, False]
        assert gsm8k.readable_many(["5", " "]) == [TRUE, FALSE]
        assert lenient.stats.started == gsm8k.stats.started == 0
    assert readable(r"x^2") and not readable(r"x^^2")


def test_a_gold_that_takes_too_long_is_not_readable(acting: None):
    with Grader(1, timeout_s=0.5, grace_s=0.2) as grader:
        assert grader.readable_many(["hang"]) == [Verdict(False, "timeout")]


def test_whole_responses():
    items = [
        ("so $\\boxed{2x}$", "We have $\\boxed{x\\cdot2}$", ""),
        ("nothing", "$\\boxed{5}$", ""),
        ("\\boxed{1, 2}", "\\boxed{2, 1}", "separated by commas"),
        ("\\boxed{1, 2}", "\\boxed{2, 1}", ""),
    ]
    with reference() as grader:
        assert [v.correct for v in grader.grade_responses(items)] == [True, False, True, False]
    with Grader() as grader:
        items = [("The answer is 1,000.", "1000", ""), ("?", "1", ""), (r"\boxed{3}", "4", "")]
        assert [v.correct for v in grader.grade_responses(items)] == [True, False, False]


def test_repeated_pairs_are_compared_once():
    with reference(cache=1) as grader:
        grader.grade_many([HARD] * 50)
        grader.grade_many([HARD])
        assert grader.stats.compared == 1
        grader.grade_many([HARD_WRONG])
        grader.grade_many([HARD])
        assert grader.stats.compared == 3


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize(
    ("what", "status"),
    [
        *(("hang", "timeout"), ("stubborn", "timeout")),
        *(("memory", "error"), ("crash", "error"), ("raise", "error")),
    ],
)
def test_a_bad_pair_costs_itself_only(what: str, status: Any):
    with reference(timeout_s=1.5, grace_s=0.2) as grader:
        verdicts = grader.grade_many([("$5$", "5"), (what, "1"), ("$6$", "6"), ("$6$", "7")])
        assert verdicts == [TRUE, Verdict(False, status), TRUE, FALSE]
        assert grader.stats.timeouts + grader.stats.errors == 1
        pids = worker_pids()
        assert grader.grade_many([("$8$", "8")]) == [TRUE]
    assert_gone(pids)


@pytest.mark.usefixtures("acting")
def test_what_a_worker_is():
    with reference(memory_mb=1000) as grader:
        assert grader.grade_many([("limit", "1"), ("modules", "1")]) == [TRUE, TRUE]


@pytest.mark.usefixtures("acting")
def test_a_worker_killed_in_the_middle_of_a_pair():
    with reference(timeout_s=60) as grader:
        grader.grade_many([("$5$", "5")])
        (victim,) = worker_pids()
        threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
        verdicts = grader.grade_many([("hang", "1"), ("$6$", "6")])
        assert verdicts == [Verdict(False, "error"), TRUE]
        assert grader.stats.errors == 1


@pytest.mark.usefixtures("acting")
def test_a_signal_to_the_group_of_the_run_leaves_the_workers():
    """As of a closed terminal, Slurm or `timeout`: what is being graded then is still graded."""
    with reference(workers=2) as grader:
        grader.grade_many([("$5$", "5"), ("$6$", "6")])
        assert all(os.getpgid(pid) == pid for pid in worker_pids())


@pytest.mark.usefixtures("acting")
def test_a_worker_killed_between_pairs_costs_nothing():
    with reference() as grader:
        grader.grade_many([("$5$", "5")])
        (victim,) = worker_pids()
        os.kill(victim, signal.SIGKILL)
        os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        assert grader.grade_many([("$6$", "6")]) == [TRUE]


@pytest.mark.usefixtures("acting")
def test_workers_are_replaced_after_some_pairs():
    with reference(recycle=2) as grader:
        assert grader.grade_many([(f"${i}$", str(i)) for i in range(5)]) == [TRUE] * 5
        assert grader.stats.started == 3
        assert grader.stats.errors == 0


@pytest.mark.usefixtures("acting")
def test_an_interrupted_call_leaves_no_reply_behind(monkeypatch: pytest.MonkeyPatch):
    with reference() as grader:
        grader.grade_many([("$5$", "5")])

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(grader, "_collect", interrupt)
            with pytest.raises(KeyboardInterrupt):
                grader.grade_many([("$6$", "6")])
        assert grader.grade_many([("$7$", "8")]) == [FALSE]


@pytest.mark.usefixtures("acting")
def test_several_threads_share_a_grader():
    results = {}
    with reference(workers=2) as grader:

        def work(i: int) -> None:
            results[i] = grader.grade_many([(f"${i}$", str(i)), (str(i), "no")])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {i: [TRUE, FALSE] for i in range(6)}


def test_workers_that_cannot_start_are_an_error_for_people(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "MODULE", "vinejax.no_such_module")
    with reference() as grader, pytest.raises(UserError, match="cannot start"):
        grader.grade_many([HARD])
    monkeypatch.undo()
    with reference(memory_mb=30) as grader, pytest.raises(UserError, match="cannot start"):
        grader.grade_many([HARD])


def test_settings_without_sense():
    with pytest.raises(ValueError, match="positive"):
        Grader(workers=0)
    grader = Grader()
    grader.close()
    with pytest.raises(ValueError, match="closed"):
        grader.grade_many([("1", "1")])


def test_a_number_is_no_text():
    """Given by iterators, whose entries the tests' check of types does not see."""
    with Grader() as opened:
        grader: Any = opened
        for pair, wrong in ((("7", 7), "7"), ((7.5, "7"), "7.5"), (("7", None), "None")):
            with pytest.raises(ValueError, match=f"^answers .* are texts, and {wrong} is none"):
                grader.grade_many(iter([("1", "1"), pair]))
        with pytest.raises(ValueError, match="and 5 is none"):
            grader.grade_responses(iter([("it is 5", 5, "")]))
        with pytest.raises(ValueError, match="and 5 is none"):
            grader.readable_many(iter([5]))
        assert grader.grade_many([(None, "1")]) == [FALSE]


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


SCRIPT = """
import os, sys, vinejax
with vinejax.Grader(workers=2, mode="reference") as grader:
    verdicts = grader.grade_many([("x^2-1", "(x-1)(x+1)"), ("y+x", "x+y+1")])
    print([v.correct for v in verdicts], "jax" in sys.modules)
print(vinejax.grade("2x", "x+x", mode="reference"))
"""


@pytest.mark.parametrize("how", ["stdin", "script"])
def test_it_works_without_a_main_guard(how: str, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    environment = {**os.environ, "PYTHONPATH": str(Path(vinejax.__file__).parents[1])}
    text = SCRIPT if how == "stdin" else None
    command = [sys.executable, "-W", "error", "-" if how == "stdin" else str(script)]
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=tmp_path,
    )
    assert done.stdout.split("\n")[:2] == ["[True, False] False", "True"], done.stderr
    assert done.stderr == ""


@pytest.mark.usefixtures("acting")
def test_a_worker_ends_with_its_pool(tmp_path: Path):
    script = (
        "import os\nfrom vinejax.grading.pool import process\nprocess.MODULE = 'acting_worker'\n"
        "from vinejax.grading import Grader\n"
        "g = Grader(workers=1, mode='reference')\n"
        "g.grade_many([('x+1', '1+x')])\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\nos._exit(1)\n"
    )
    paths = f"{Path(vinejax.__file__).parents[1]}{os.pathsep}{tmp_path}"
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120
    )
    pid = int(done.stdout)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reference", "strict"])
def test_pathological_pairs(mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pairs = [(row["prediction"], row["gold"]) for row in rows("pathological")]
    with Grader(workers=1, mode=mode, timeout_s=5, cache=0) as grader:
        for row, pair in zip(rows("pathological"), pairs, strict=True):
            start = time.monotonic()
            (verdict,) = grader.grade_many([pair])
            assert time.monotonic() - start < row["limit_s"], row["id"]
            if mode == "strict" and row["expected"] is not None:
                assert verdict.correct == row["expected"], row["id"]
            assert grader.grade_many([("x+1+1", "2+x")]) == [TRUE]
        assert grader.stats.errors == 0
    assert list(tmp_path.iterdir()) == []  # no canary


def test_a_long_answer_never_reaches_a_worker():
    assert not grade("1+" * LONGEST_ANSWER + "1", "7", mode="reference")
    assert grade("1+" * LONGEST_ANSWER + "1", "1+" * LONGEST_ANSWER + "1")


def test_text_that_is_no_text():
    with reference() as grader:
        strange = "\ud800 \x00 \u2028 \\frac{1}{2}"
        assert grader.grade_many([(strange, "x+1"), HARD]) == [FALSE, TRUE]
