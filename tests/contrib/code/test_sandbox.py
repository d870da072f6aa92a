"""The sandbox: hostile programs do not succeed, hang or leave a process, and honest ones run."""

import contextlib
import fcntl
import functools
import http.server
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.contrib.hostile import CHEATS, FORGERIES, HARM, SUM, programs
from helpers.refusals import refuses

from vinejax.contrib.code.sandbox import kernel, outside, pool
from vinejax.contrib.code.sandbox.probes import first_success
from vinejax.contrib.code.sandbox.runner import decode, encode
from vinejax.contrib.code.sandbox.sandbox import Sandbox
from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.code.verdict import run_tests
from vinejax.core.errors import ConfigError

KERNEL = CodeConfig()
SUMS = json.dumps({"stdin": [["2 3\n", "5\n"], ["1 1\n", "2\n"], ["40 2\n", "42\n"]]})
ADDS = json.dumps({"calls": [["add", [2, 3], 5], ["add", [1, 1], 2], ["add", [40, 2], 42]]})


def refusal() -> str:
    """The reason why this machine has no sandbox of the kernel; '' if it has one."""
    try:
        with Sandbox(KERNEL, 1) as sandbox:
            sandbox.run("")
    except ConfigError as reason:
        return str(reason)
    return ""


REFUSAL = refusal()
kernel_only = pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL)


@contextlib.contextmanager
def aimed(folder: Path) -> Iterator[dict[str, Any]]:
    """The targets of `hostile.programs`, which must be unharmed at the end."""
    folder.chmod(0o755)
    secret, target = folder / "secret", folder / "target"
    for file in (secret, target):
        file.write_text("unread", encoding="ascii")
        file.chmod(0o666)
    before = sorted(os.listdir(folder)), target.stat().st_mode, target.stat().st_mtime_ns
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        subprocess.Popen(["sleep", "600"]) as victim,
    ):
        receiver.bind(("127.0.0.1", 0))
        ports = {"tcp": server.getsockname()[1], "udp": receiver.getsockname()[1]}
        try:
            yield {"secret": str(secret), "target": str(target), "victim": victim.pid, **ports}
            is_alive = victim.poll() is None
        finally:
            victim.kill()
        for waiting in (server.accept, lambda: receiver.recv(1)):
            server.setblocking(False)
            receiver.setblocking(False)
            with pytest.raises(BlockingIOError):
                waiting()
    assert is_alive
    assert target.read_text(encoding="ascii") == "unread"
    after = sorted(os.listdir(folder)), target.stat().st_mode, target.stat().st_mtime_ns
    assert after == before


def descendants() -> set[int]:
    """The descendants of this process."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            parents[int(folder.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


@pytest.fixture(params=["this user", pytest.param("nobody", marks=pytest.mark.slow)])
def user(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The user of the sandbox's processes: this one, or for root also one without rights."""
    if request.param == "nobody":
        if os.getuid() or not Path("/usr/bin/python3").exists():
            pytest.skip("needs root and /usr/bin/python3")
        for place in (tmp_path, *tmp_path.parents[:3]):
            place.chmod(place.stat().st_mode | 0o555)
        programs = shutil.copytree(pool.CHILD.parent, tmp_path / "sandbox")
        monkeypatch.setattr(pool, "CHILD", programs / "child.py")
        monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
        options = {"user": 65534, "group": 65534, "extra_groups": []}
        popen = functools.partial(subprocess.Popen, **options)
        monkeypatch.setattr(pool.subprocess, "Popen", popen)
    return request.param


@kernel_only
def test_hostile_programs(user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert len(HARM) + len(CHEATS) + len(FORGERIES) >= 40
    aims = tmp_path / "aims"
    aims.mkdir()
    before = descendants()
    with Sandbox(KERNEL, 6, timeout_s=1.5, memory_mb=300) as sandbox:
        plain = sandbox.run(SUM, "2 3")
        assert (plain.status, plain.out) == ("ok", "5\n"), plain
        with monkeypatch.context() as context:
            context.setattr(pool.subprocess, "Popen", subprocess.Popen)  # ours
            with aimed(aims) as aim:
                jobs = [(name, SUMS, source) for name, source in programs(aim).items()]
                jobs += [(name, ADDS, source) for name, source in FORGERIES.items()]
                start = time.monotonic()
                results = sandbox.run_all(
                    lambda job: run_tests(job[1], job[2], sandbox, True), jobs
                )
                assert time.monotonic() - start < 120
        wrong = {name: result for (name, _, _), result in zip(jobs, results, strict=True)}
        assert not [name for name, result in wrong.items() if result.passed == result.total]
        succeeded = {name: wrong[name] for name in HARM if wrong[name].passed}
        assert not succeeded
        assert wrong["prints the first test's answer"].passed == 1
        # The sandbox still works, and nothing of the programs is left.
        assert run_tests(SUMS, SUM, sandbox, True).passed == 3
        mine = descendants() - before
        assert len(mine) <= 6, mine
    assert descendants() <= before


def honest() -> list[tuple[str, str, str]]:
    """(tests, program, name) of 100 right programs, written in ten ways."""
    found = []
    readers = {
        "input": "n = int(input())\nxs = list(map(int, input().split()))",
        "stdin": "import sys\nn, *xs = map(int, sys.stdin.read().split())",
        "lines": "import sys\nn, xs = [[*map(int, line.split())] for line in sys.stdin]",
        "buffer": "import sys\nn, *xs = map(int, sys.stdin.buffer.read().split())",
        "descriptor": "import os\nn, *xs = map(int, os.read(0, os.fstat(0).st_size).split())",
        "open": "n, *xs = map(int, open(0).read().split())",
        "fileinput": "import fileinput\nn, *xs = map(int, ' '.join(fileinput.input()).split())",
        "iterator": "import sys\nit = sys.stdin\nnext(it)\nxs = [*map(int, next(it).split())]",
        "readline": "import sys\nf = sys.stdin.readline\nf()\nxs = [*map(int, f().split())]",
        "eof": "xs = []\nwhile True:\n try: xs += map(int, input().split())\n"
        " except EOFError: break\nxs = xs[1:]",
    }
    writers = {
        "print": "print(ANSWER)",
        "main": "def main():\n print(ANSWER)\nif __name__ == '__main__':\n main()\n exit()",
        "write": "import sys\nsys.stdout.write(str(ANSWER))",
        "exit": "import sys\nprint(ANSWER)\nsys.exit(0)",
        "descriptor": "import os\nos.write(1, str(ANSWER).encode())",
        "thread": "import sys, threading\nsys.setrecursionlimit(10**6)\n"
        "threading.stack_size(1 << 26)\ndef f(n): return n and 1 + f(n - 1)\n"
        "threading.Thread(target=lambda: print(ANSWER + f(50000) - 50000)).start()",
        "at exit": "import atexit\natexit.register(lambda: print(ANSWER))",
        "buffer": "import io, sys\nsys.stdout = io.StringIO()\nprint(ANSWER)\n"
        "sys.__stdout__.write(sys.stdout.getvalue())",
        "modules": "import collections, fractions, heapq, itertools, string, xml.dom.minidom\n"
        "import decimal, functools, json, re, typing, asyncio, dataclasses\n"
        "@dataclasses.dataclass\nclass A:\n x: int\nprint(A(ANSWER).x)",
        "deep": "import sys\nsys.setrecursionlimit(10**5)\ndef f(n): return n and 1 + f(n - 1)\n"
        "print(ANSWER + f(9000) - 9000)",
    }
    for i, (read, source) in enumerate(readers.items()):
        for j, (write, printed) in enumerate(writers.items()):
            answer = ("sum(xs)", "max(xs) * 2", "len(set(xs))")[(i + j) % 3]
            rows = [[1 + i, 2, 2, j], [40, -3, 7]]
            tests = [
                [f"{len(xs)}\n{' '.join(map(str, xs))}\n", f"{eval(answer, {'xs': xs})}\n"]
                for xs in rows
            ]
            program = f"{source}\n{printed.replace('ANSWER', answer)}"
            found.append((json.dumps({"stdin": tests}), program, f"{read} {write}"))
    return found


@kernel_only
def test_honest_programs():
    jobs = honest()
    assert len(jobs) == 100
    with Sandbox(KERNEL, 2, timeout_s=20) as sandbox:
        results = sandbox.run_all(lambda job: run_tests(job[0], job[1], sandbox, True), jobs)
    failed = {
        name: result.failure
        for (_, _, name), result in zip(jobs, results, strict=True)
        if result.passed < result.total
    }
    assert not failed


@kernel_only
@pytest.mark.parametrize("limits", ["(INF, INF)", "(2**28, INF)", "(2**28, hard)"])
def test_a_program_may_set_its_stack(limits: str):
    source = "import resource\nINF, kind = resource.RLIM_INFINITY, resource.RLIMIT_STACK\n"
    source += f"hard = resource.getrlimit(kind)[1]\nresource.setrlimit(kind, {limits})\n{SUM}"
    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("this machine limits the stack")
    with Sandbox(KERNEL, 1) as sandbox:
        assert run_tests(SUMS, source, sandbox, True).passed == 3


@kernel_only
def test_sets_and_random_numbers_are_the_same_in_every_run():
    source = "import random; print({'a', 'b', 'c', 'd'}, random.random())"
    with Sandbox(KERNEL, 2) as sandbox:
        outputs = sandbox.run_all(lambda _: sandbox.run(source).out, range(4))
    assert len(set(outputs)) == 1


@kernel_only
def test_a_child_that_dies_or_hangs_costs_one_program(monkeypatch: pytest.MonkeyPatch):
    before = descendants()
    monkeypatch.setattr(pool, "SLACK_S", 1.0)
    with Sandbox(KERNEL, 1, timeout_s=1.0) as sandbox:
        for i, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
            assert sandbox.run(f"print({i})").out == f"{i}\n"
            (child,) = descendants() - before
            os.kill(child, number)
            assert sandbox.run("print(9)").status == "lost"
        assert sandbox.run("print(2)").out == "2\n"
    assert descendants() <= before


@kernel_only
def test_nothing_outlives_a_killed_run():
    source = (
        "from vinejax.contrib.code.settings import CodeConfig\n"
        "from vinejax.contrib.code.sandbox.sandbox import Sandbox\n"
        "Sandbox(CodeConfig(), 1, timeout_s=600).run('import time; time.sleep(600)')"
    )
    before = descendants()
    with subprocess.Popen([sys.executable, "-c", source]) as run:
        while len(mine := descendants() - before) < 3:  # the run, its child and the program
            assert run.poll() is None
            time.sleep(0.05)
        run.kill()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in mine):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_values_pass_as_json():
    values = [
        *(None, True, 3, -2.5, "a\ud800", [1, [2]], (1, (2,)), {1, 2}, {1: "a", (2,): [3]}),
        *(1 + 2j, b"\0a", float("inf"), frozenset({1}), {frozenset({1}): ()}),
    ]
    for value in values:
        again = decode(json.loads(json.dumps(encode(value))))
        assert again == value
        assert type(again) is type(value)
    items: Any = decode({"iter": [1, {"tuple": [2]}]})
    assert [*items] == [1, (2,)]
    assert encode(iter([1, (2,)])) == {"iter": [1, {"tuple": [2]}]}
    assert decode(encode(lambda: 0)) != decode(encode(lambda: 0))
    for wrong in ({}, {"a": 1}, {"tuple": 1}, {"set": [[]]}, {"float": []}, {"list": [], "x": 1}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            decode(wrong)


@pytest.mark.parametrize("machine", kernel.MACHINES)
def test_the_filter_allows_no_call_twice(machine: str):
    column = kernel.MACHINES[machine][0]
    numbers = [call.split()[1:][column] for call in kernel.CALLS.split(",")]
    numbers += [str(of[0][column]) for of in (*kernel.EQUAL.values(), *kernel.CLEAR.values())]
    known = [number for number in numbers if number not in ("-", "None")]
    assert len(known) == len(set(known))
    assert len(kernel.seccomp_filter(machine)) // 8 < 4096


@pytest.mark.parametrize("machine", ["i686", "riscv64"])
def test_a_machine_without_rules_is_refused(machine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel.platform, "machine", lambda: machine)
    with pytest.raises(OSError, match=f"no rules for Linux on {machine}"):
        kernel.ruleset([], [], [])


def test_a_sandbox_that_cannot_be_had_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    child = tmp_path / "child.py"
    text = (pool.CHILD.parent / "child.py").read_text(encoding="utf-8")
    (tmp_path / "runner.py").write_text(
        (pool.CHILD.parent / "runner.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    child.write_text(text, encoding="utf-8")
    (tmp_path / "kernel.py").write_text(
        "def ruleset(*_): raise OSError(95, 'Operation not supported')", encoding="utf-8"
    )
    monkeypatch.setattr(pool, "CHILD", child)
    with Sandbox(KERNEL, 1) as sandbox, pytest.raises(ConfigError) as error:
        sandbox.check()
    message = str(error.value)
    assert "\n" not in message
    assert "code.sandbox = 'kernel': cannot be used here: Operation not supported" in message
    assert "Linux 5.13" in message and "code.sandbox='command'" in message


@kernel_only
def test_the_probes_find_nothing_in_the_kernels_sandbox():
    with Sandbox(KERNEL, 1) as sandbox:
        sandbox.check()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ('aim["secret"]', "read a file outside it"),
        ('aim["target"]', "write a file outside it"),
        ("create_connection", "open a connection"),
        ("sendto", "send a datagram"),
        ("os.fork()", "start a process"),
        ("os.kill", "kill a process outside it"),
        ("bytearray", "take more memory than grader.memory_mb"),
    ],
)
def test_each_probe_is_seen(harm: str, words: str):
    """Each probe finds the lack of a sandbox while all other probes are disarmed."""
    from vinejax.contrib.code.sandbox import probes

    calls = [
        'aim["secret"]',
        'aim["target"]',
        "create_connection",
        "sendto",
        "os.fork()",
        "os.kill",
    ]
    program = probes.PROGRAM
    for call in [*calls, "bytearray"]:
        if call != harm:
            program = program.replace(call, "unarmed")
    with Sandbox(CodeConfig(sandbox="none"), 1, timeout_s=30) as sandbox:
        small = functools.partial(_swapped, sandbox, probes.PROGRAM, program)
        assert first_success(small, 1, is_kernel=True) == f"a probe could {words}"


def _swapped(sandbox: Sandbox, old: str, new: str, source: str, stdin: str = "") -> pool.Outcome:
    return sandbox.run(new if source == old else source, stdin)


def test_a_command_that_confines_nothing_is_refused():
    cfg = CodeConfig(sandbox="command", command=("env", sys.executable))
    with Sandbox(cfg, 1, timeout_s=30) as sandbox:
        with refuses("code.sandbox"):
            sandbox.check()


@pytest.mark.skipif(shutil.which("setsid") is None, reason="stands for docker")
def test_a_program_that_its_command_does_not_end_ends_itself(tmp_path: Path):
    command, file = ("setsid", "--fork", "--wait", sys.executable), tmp_path / "locked"
    source = (
        f"import fcntl, time\nfile = open({str(file)!r}, 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
    )
    with Sandbox(CodeConfig(sandbox="command", command=command), 1, timeout_s=3) as sandbox:
        outcome = sandbox.run(f"{source}print(1, flush=True)\ntime.sleep(60)")
    assert (outcome.status, outcome.out) == ("timeout", "1\n")
    start = time.monotonic()
    with file.open() as same:
        fcntl.flock(same, fcntl.LOCK_EX)  # waits until the program has ended
    assert time.monotonic() - start < 45


def test_a_command_that_does_not_exist_is_refused():
    cfg = CodeConfig(sandbox="command", command=("no-such-sandbox", "python3"))
    with Sandbox(cfg, 1) as sandbox:
        with refuses("code.sandbox"):
            sandbox.check()


def test_a_program_without_a_sandbox():
    before = descendants()
    with Sandbox(CodeConfig(sandbox="none"), 2, timeout_s=3, memory_mb=300) as sandbox:
        sandbox.check()  # the sandbox 'none' has no probes
        assert run_tests(SUMS, SUM, sandbox, True).passed == 3
        assert (
            run_tests(ADDS, "def add(a, b):\n print(9)\n return a + b", sandbox, True).passed == 3
        )
        assert sandbox.run("while True: print('x' * 10**6)").status == "flood"
        assert sandbox.run("bytearray(1 << 30)").status == "exit 1"
        assert sandbox.run("import subprocess; subprocess.Popen(['sleep', '60'])").out == ""
        time.sleep(0.1)
    assert descendants() <= before


@pytest.mark.parametrize(
    "source",
    [
        "def add(a, b): return pow(a, 1, 50) + b",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\n"
        "class Pair:\n a: int\n b: int\ndef add(a, b): return (p := Pair(a, b)).a + p.b",
    ],
)
def test_what_called_solutions_take_for_granted(source: str):
    with Sandbox(CodeConfig(sandbox="none"), 1) as sandbox:
        assert run_tests(ADDS, source, sandbox, True).passed == 3


class SandboxFusion(http.server.BaseHTTPRequestHandler):
    """A stand-in for the service, which runs code without a sandbox."""

    answer: dict[str, Any] | None = None

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["language"] == "python"
        answer = self.answer or {"status": "Success", "run_result": self._run(asked)}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def _run(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [sys.executable, "-c", asked["code"]],
                input=asked["stdin"].encode(),
                capture_output=True,
                timeout=asked["run_timeout"],
            )
        except subprocess.TimeoutExpired:
            return {"status": "TimeLimitExceeded", "return_code": None, "stdout": None}
        texts = {"stdout": done.stdout.decode(), "stderr": done.stderr.decode()}
        return {"status": "Finished", "return_code": done.returncode, **texts}

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def service(answer: dict[str, Any] | None = None) -> Iterator[str]:
    handler = type("Handler", (SandboxFusion,), {"answer": answer})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/run_code"
        finally:  # else a test that fails never ends
            server.shutdown()
            thread.join()


def test_a_service_of_sandboxfusions_form():
    with service() as url, Sandbox(CodeConfig(sandbox="http", url=url), 2, timeout_s=3) as sandbox:
        assert run_tests(SUMS, SUM, sandbox, True).passed == 3
        assert run_tests(ADDS, "def add(a, b): return a + b", sandbox, True).passed == 3
        assert sandbox.run("import time; time.sleep(60)").status == "timeout"
        failed = run_tests(SUMS, "1 / 0", sandbox, False)
        assert failed.failure and failed.failure["got"].endswith("division by zero")
        with refuses("code.sandbox"):
            sandbox.check()


def test_a_service_that_restarts(monkeypatch: pytest.MonkeyPatch):
    """Once it has answered, it may be away for about a minute."""
    assert sum(outside.PAUSES_S) > 60
    monkeypatch.setattr(outside, "PAUSES_S", (0.0,) * len(outside.PAUSES_S))
    away, reach = iter(outside.PAUSES_S), outside.urllib.request.urlopen

    def refused_at_first(*args: Any, **kwargs: Any) -> Any:
        if next(away, None) is not None:
            raise ConnectionRefusedError
        return reach(*args, **kwargs)

    with service() as url, Sandbox(CodeConfig(sandbox="http", url=url), 1) as sandbox:
        assert sandbox.run("print(1)").out == "1\n"
        monkeypatch.setattr(outside.urllib.request, "urlopen", refused_at_first)
        assert sandbox.run("print(2)").out == "2\n"
        assert next(away, None) is None


def test_a_service_that_gives_no_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outside, "PAUSES_S", (0.0,) * len(outside.PAUSES_S))
    broken = {"status": "SandboxError", "message": "out of workers", "run_result": None}
    with service(broken) as url, Sandbox(CodeConfig(sandbox="http", url=url), 1) as sandbox:
        with refuses("code.url"):
            sandbox.check()
