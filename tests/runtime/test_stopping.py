"""Tests requests to stop, which wait for the next poll of a loop or act at once."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

from vinejax.runtime import distributed, stopping, watchdog
from vinejax.runtime.stopping import Stopped, Watch, deferred

PROCESS = """
import os, signal, sys, time, types
from vinejax.runtime import stopping

for number in stopping.SIGNALS:  # a shell starts processes in the background that ignore SIGINT
    signal.signal(number, signal.SIG_DFL)
sys.modules["jax"] = types.SimpleNamespace(process_count=lambda: 1)  # quicker than the real one
mode = sys.argv[1]
workers = []
stopping.listen()

def loop():
    watch = stopping.Watch()
    if mode == "forking":
        if not (child := os.fork()):
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
            os._exit(0)
        workers.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("ready", flush=True)  # and no more: a reader of this line may take what follows it, too
    while True:
        time.sleep(0.01)
        if mode != "deaf":
            watch.look()

if mode == "outside":
    loop()
with stopping.deferred():
    try:
        loop()
    except stopping.Stopped as stop:
        print(stop, stop.exit_code, *workers, flush=True)
"""


def outcome(mode: str, *numbers: int) -> tuple[int, str, str]:
    """(status, output, errors) of a process that gets these signals, one after the other."""
    command = [sys.executable, "-c", PROCESS, mode]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # pyright: ignore
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.2)  # two signals of one number that wait together count as one
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_ends_the_loop_where_it_looks(number: signal.Signals):
    status, out, err = outcome("loop", number)
    assert (status, out) == (0, f"stopped by {number.name} {128 + number}\n")
    note = "vinejax: stops after this chunk or minibatch and saves; Ctrl-C again: at once\n"
    assert err == (note if number == signal.SIGINT else "")


def test_signals_to_a_forked_process_are_not_the_runs():
    """Such as a worker of multiprocessing in a reward function, which ends it by SIGTERM."""
    status, out, _ = outcome("forking", signal.SIGHUP)
    expected = f"stopped by SIGHUP {128 + signal.SIGHUP} {-signal.SIGTERM}\n"
    assert (status, out) == (0, expected)


def test_outside_a_deferral_the_process_ends_at_once():
    status, out, err = outcome("outside", signal.SIGTERM)
    assert (status, out) == (143, "")
    assert err.startswith("vinejax: stopped by SIGTERM; nothing of this stage is kept")
    assert err.count("\n") == 1


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_second_ctrl_c_ends_a_loop_that_does_not_look(first: signal.Signals):
    """Also if the first request to stop came from somewhere else, such as a scheduler."""
    second = signal.SIGTERM if first == signal.SIGINT else signal.SIGINT
    status, _, err = outcome("deaf", first, second, signal.SIGINT)
    assert status == 130 and err.splitlines()[-1].startswith("vinejax: stopped by SIGINT; at once")


def test_a_run_that_has_saved_is_not_said_to_keep_nothing(monkeypatch: pytest.MonkeyPatch):
    """A second Ctrl-C often comes while W&B, the grader and the files of a run are closed."""
    said: list[str] = []
    monkeypatch.setattr(stopping, "_leave", lambda number, what: said.append(what))
    with deferred():
        stopping.request(signal.SIGINT)
    stopping.request(signal.SIGINT)
    assert said == ["at once; the same command goes on from the newest checkpoint"]
    with deferred():  # of the next run in this process, whose first Ctrl-C this is
        stopping.request(signal.SIGINT)
    assert len(said) == 1


def test_what_was_ignored_stays_ignored(tmp_path: pathlib.Path):
    """`nohup` ignores SIGHUP, and a shell ignores SIGINT for processes in the background."""
    code = "import signal; from vinejax.runtime import stopping\n"
    # What the tests themselves were started with is not the question.
    code += "[signal.signal(n, signal.SIG_DFL) for n in stopping.SIGNALS if n != signal.SIGHUP]\n"
    code += "stopping.listen()\n"
    code += "print([signal.getsignal(n) == signal.SIG_IGN for n in stopping.SIGNALS])"
    command = ["sh", "-c", f'trap "" HUP; exec {sys.executable} -c "$0"', code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[False, False, True]\n"


def test_signals_of_other_libraries_stop_nothing(monkeypatch: pytest.MonkeyPatch):
    """Python writes the number of every signal that has a handler to the pipe."""
    requested: list[int] = []
    monkeypatch.setattr(stopping, "request", requested.append)
    read_end, write_end = os.pipe()
    os.write(write_end, bytes([signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD]))
    os.close(write_end)
    stopping._read(read_end)
    os.close(read_end)
    assert requested == [signal.SIGTERM]


def test_a_request_counts_also_if_the_terminal_is_closed(monkeypatch: pytest.MonkeyPatch):
    """An error would end the thread that reads the signals, and the run would ignore the next."""

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with deferred(), monkeypatch.context() as closed:
        closed.setattr(os, "write", fail)
        stopping.request(signal.SIGINT)
        with pytest.raises(Stopped, match="SIGINT"):
            Watch().look()


def test_the_watch_looks_only_within_a_deferral():
    watch, count = Watch(), watchdog.OWN_SIGNS.count
    watch.look()
    assert watchdog.OWN_SIGNS.count == count + 1  # else a long stage would count as silence
    with deferred():
        watch.look(jnp.ones(2))
        stopping.request(signal.SIGTERM)
        stopping.request(signal.SIGHUP)  # the first one counts
        with pytest.raises(Stopped, match="SIGTERM") as stop:
            watch.look(jnp.ones(2))
        assert stop.value.exit_code == 128 + 15
    watch.look()
    with deferred():  # of the next run in this process, if any
        watch.look()


def test_the_host_is_at_most_one_step_ahead_of_the_devices(monkeypatch: pytest.MonkeyPatch):
    waited: list[str] = []
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    watch = Watch()
    with deferred():
        for step, done in (("first", []), ("second", ["first"]), (None, ["first", "second"])):
            watch.look(step)
            assert waited == done


@pytest.mark.parametrize("backend", ["cpu", "tpu"])
def test_several_hosts_stop_by_the_maximum_of_their_numbers(
    backend: str, monkeypatch: pytest.MonkeyPatch
):
    """Another host has the request. Devices other than CPUs never wait for the hosts."""
    started: list[int] = []
    waited: list[str] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    monkeypatch.setattr(
        distributed, "start_maximum", lambda number: started.append(number) or signal.SIGTERM
    )
    watch = Watch()
    with deferred():
        watch.look()
        assert started == ([] if backend == "cpu" else [0])
        with pytest.raises(Stopped, match="SIGTERM"):
            watch.look("step")
    assert waited == (["step"] if backend == "cpu" else [])
    with deferred(), pytest.raises(Stopped, match="SIGTERM"):
        stopping.request(signal.SIGHUP)
        for _ in range(2):
            watch.look("step")
    assert started[-1] == signal.SIGHUP  # the other hosts get it


HOST = """
import os, signal, sys, time
import jax, jax.numpy as jnp
from vinejax.runtime import distributed, stopping
from vinejax.core.settings import DistributedConfig

distributed.initialize(DistributedConfig(timeout_s=100))
stopping.listen()
with stopping.deferred():
    watch, step = stopping.Watch(), 0
    try:
        while True:
            if jax.process_index() == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            if jax.process_index() == 0:
                time.sleep(0.1)  # the hosts are not in step
            watch.look(jnp.zeros(()))
            step += 1
    except stopping.Stopped as stop:
        print(step, stop, flush=True)
distributed.barrier("the end")
"""


@pytest.mark.slow
def test_all_hosts_stop_at_the_step_at_which_one_is_asked_to():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    started = []
    for process in range(2):
        environment = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(process)}
        environment |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_CPU_DEVICES": "2"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", HOST],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    lines = [process.communicate()[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    # The transport between the hosts writes lines of its own.
    first, second = ([x for x in own if x.endswith(" stopped by SIGTERM")] for own in lines)
    assert first == second and len(first) == 1
    assert int(first[0].split()[0]) >= 5  # where one host was asked


def test_does_not_import_jax():
    code = "import sys, vinejax.runtime.stopping; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0
