"""Several processes are one program: same tokens, same metrics, one set of files, one end."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers import hosts
from helpers.paths import REPO

from vinejax.core.errors import UserError
from vinejax.core.settings import Config, DistributedConfig
from vinejax.runtime import distributed
from vinejax.runtime.devices import on_devices

ROOT = REPO
TINY = ROOT / "configs" / "tiny.py"
# Evaluation samples as training does, so that programs are compiled once.
SMALL = {
    **{"iterations": 2, "rollout.prompts": 4, "rollout.per_prompt": 2, "rollout.slots": 16},
    **{"seed": 2, "values.k": 2, "sample.max_tokens": 24, "sample.top_p": 0.9},
    **{"ppo.minibatch": 8, "ppo.epochs": 1, "checkpoint.every": 1, "checkpoint.keep": 3},
    **{"eval.problems": 4, "eval.samples": 2, "eval.every": 1, "eval.temperature": 1.0},
}
# The devices choose the row: four of one process or of two, and two of another start. States are
# many, sampled in waves that depend on the returns of the ones before, and samples are shared. What
# an adaptive KL keeps is alike on all hosts; the reference is in hosts' memory.
WITH_ROWS = f"""
from vinejax.config import from_file

def get_config():
    cfg = from_file({str(TINY)!r}, "tiny.py")
    cfg.sample.stop = ("=15", "5\\n")
    cfg.values.positions, cfg.values.every = "tokens", 3
    cfg.values.allocation, cfg.values.reuse = "bisection", True
    cfg.kl.coef, cfg.kl.target, cfg.kl.horizon = 0.1, 0.05, 16
    cfg.offload.reference = True
    cfg.meshes["cpu:4"] = dict(data=2, tensor=2, microbatch=4)
    cfg.meshes["cpu:2"] = dict(fsdp=2, slots=8, microbatch=2)
    return cfg
"""
# What is not the run's but the machine's, or a compilation that another mesh does without.
OF_THE_MACHINE = ("timing_s/", "perf/", "rollout/compiles")


def start(processes: int, devices: int, config: Path, workdir: Path, **fields) -> list:
    """The processes of one run on CPU devices; what they print goes to files beside the workdir."""
    started = []
    settings = SMALL | {name.replace("__", "."): value for name, value in fields.items()}
    command = [sys.executable, "-m", "vinejax.main", f"--config={config}", f"--workdir={workdir}"]
    command += [f"--config.{name}={value}" for name, value in settings.items()]
    for process, environment in enumerate(hosts.environments(processes, devices)):
        with open(f"{workdir}.{process}.log", "w") as log:
            started.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            )
    return started


def wait_for(file: Path, processes: list) -> None:
    """Waits until a run that goes on has written a file."""
    deadline = time.monotonic() + 600
    while not file.exists():
        assert all(process.poll() is None for process in processes), "a process has ended"
        assert time.monotonic() < deadline, f"{file} was never written"
        time.sleep(0.02)


def log_of(workdir: Path, process: int) -> str:
    """What a process has printed."""
    return Path(f"{workdir}.{process}.log").read_text()


def run(processes: int, devices: int, config: Path, workdir: Path, **fields) -> None:
    for i, process in enumerate(start(processes, devices, config, workdir, **fields)):
        status = process.wait(timeout=600)
        assert status == 0, log_of(workdir, i)[-3000:]


def records_of(workdir: Path) -> dict[tuple[str, int], dict]:
    """The lines of metrics.jsonl by stage and iteration."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {(line["stage"], line["iteration"]): line for line in lines}


def episodes_of(workdir: Path, iteration: int) -> list[dict]:
    text = (workdir / "episodes" / f"{iteration}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def assert_same_record(one: dict, other: dict, but_for: tuple[str, ...] = ()) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if name != "stage" and not name.startswith((*OF_THE_MACHINE, *but_for)):
            np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "rows.py"
    file.write_text(WITH_ROWS)
    return file


@pytest.fixture(scope="module")
def alone(tmp_path_factory, config):
    """Three iterations of one process with four devices."""
    workdir = tmp_path_factory.mktemp("hosts") / "alone"
    run(1, 4, config, workdir, iterations=3)
    return workdir


@pytest.mark.slow
def test_several_processes_do_what_one_does(alone, config, tmp_path):
    """Two processes, of which one is killed after the first iteration's save. The other ends, both
    are started again, and their checkpoint goes on with half the devices, another row of meshes."""
    workdir = tmp_path / "run"
    first, second = start(2, 2, config, workdir, distributed__heartbeat_s=10)
    for process in range(2):
        wait_for(workdir / "checkpoints" / "1" / f"checksums.{process}-of-2.json", [first, second])
    second.kill()
    assert all(process.wait(timeout=60) != 0 for process in (first, second))
    run(2, 2, config, workdir)
    assert "resumes after iteration 1 of 2" in log_of(workdir, 0)
    for iteration in range(2):
        assert episodes_of(workdir, iteration) == episodes_of(alone, iteration)
    mine, theirs = records_of(workdir), records_of(alone)
    del mine["test", 2]  # the other goes on, and is tested later
    assert list(mine) == [place for place in theirs if place[1] + (place[0] == "train") <= 2]
    for place, record in mine.items():
        assert_same_record(record, theirs[place])
    assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["1", "2"]
    events = list((workdir / "tensorboard" / "train").iterdir())
    assert len(events) == 2  # of the first process of each start
    assert "iteration" not in log_of(workdir, 1)

    run(2, 1, config, workdir, iterations=3)
    assert episodes_of(workdir, 2) == episodes_of(alone, 2)
    last = records_of(workdir)["train", 2]
    # The other row has fewer slots, so that other tokens are repeated.
    of_slots = ("rollout/", "total/tokens")
    assert_same_record(last, theirs["train", 2], of_slots)
    drawn = ("rollout/decoded_tokens", "rollout/repeated_tokens")
    assert sum(last[name] for name in drawn) == sum(theirs["train", 2][name] for name in drawn)


@pytest.mark.slow
def test_what_is_compared_has_something_to_differ_in(alone):
    """Rewards that differ, updates that move the policy, texts that a stop string ended, waves."""
    records = records_of(alone)
    trained = [records["train", i] for i in range(3)]
    assert any(record["frac_reward_zero_std"] < 1 for record in trained)
    assert all(record["actor/grad_norm"] > 0 for record in trained)
    assert all(record["values/waves"] > 1 for record in trained)
    assert len({record["kl/coef"] for record in trained}) == 3
    rows = [row for i in range(3) for row in episodes_of(alone, i)]
    assert any(step["reused"] for row in rows for step in row["steps"])
    texts = [row["response"] for row in rows if row["finished"]]
    assert any("####" not in text for text in texts) and any("####" in text for text in texts)


@pytest.mark.slow
def test_hosts_that_differ_are_told(tmp_path):
    """One of them has another seed."""
    started = []
    for process, environment in enumerate(hosts.environments(2)):
        command = [sys.executable, "-m", "vinejax.main", "--config=configs/tiny.py"]
        command += [f"--workdir={tmp_path}/run", f"--config.seed={process}"]
        started.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        )
    texts = [process.communicate(timeout=120)[1] for process in started]
    assert all(process.returncode != 0 for process in started)
    assert any("start: the hosts differ in what they are about to do" in text for text in texts)
    assert not (tmp_path / "run").exists()


@pytest.mark.first
@pytest.mark.parametrize(
    ("here", "message"),
    [("1", "distributed.timeout_s = 2"), ("0", "not all of 2 hosts came within 2 s (distributed.")],
)
def test_a_host_that_never_comes_is_one_line(here: str, message: str, tmp_path: Path):
    environment = hosts.environments(2)[int(here)]
    command = [sys.executable, "-m", "vinejax.main", "--config=configs/tiny.py"]
    command += [f"--workdir={tmp_path}/run", "--config.distributed.timeout_s=2"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert message in done.stderr and len(done.stderr.splitlines()) <= 2, done.stderr
    assert done.returncode == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "environment, found",
    [
        ({}, 1),
        ({"JAX_NUM_PROCESSES": "4"}, 4),
        ({"TPU_WORKER_HOSTNAMES": "a,b,c"}, 3),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, 1),
        ({"TPU_PROCESS_ADDRESSES": "a:1,b:1"}, 2),
        ({"TPU_WORKER_HOSTNAMES": "", "SLURM_STEP_NUM_TASKS": "4"}, 4),
        ({"SLURM_STEP_NUM_TASKS": "2"}, 2),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, 8),
    ],
)
def test_the_environment_says_how_many_hosts(monkeypatch, environment, found):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert distributed.num_hosts() == found


def test_the_metadata_of_a_tpu_vm_says_how_many_hosts(monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(distributed, "TPU_DEVICES", (tmp_path,))

    class Answer:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self):
            return b"unknown:unknown:10.0.0.1,unknown:unknown:10.0.0.2"

    monkeypatch.setattr(distributed.urllib.request, "urlopen", lambda *_, **__: Answer())
    assert distributed.num_hosts() == 2

    def refuse(*_, **__):
        raise OSError("no such server")

    monkeypatch.setattr(distributed.urllib.request, "urlopen", refuse)
    assert distributed.num_hosts() == 1
    on_devices(Config())  # which is true here
    monkeypatch.setattr(jax, "process_count", lambda: 2)  # as on a slice of two hosts
    with pytest.raises(UserError, match="belong to 2 hosts, and the environment names 1 ") as error:
        on_devices(Config())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID"])
def test_hosts_named_in_part_are_refused(monkeypatch, missing):
    names = {"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "x:1", "JAX_PROCESS_ID": "0"}
    for name in names.keys() - {missing}:
        monkeypatch.setenv(name, names[name])
    with pytest.raises(UserError, match=f"{missing} is not"):
        distributed.initialize(DistributedConfig())


@pytest.mark.parametrize("has_port", [True, False])
def test_the_first_host_may_have_an_address_of_ipv6(monkeypatch, has_port: bool):
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening:
        port = listening.getsockname()[1]
        names = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_PORT": "1"}
        names["JAX_COORDINATOR_ADDRESS"] = f"[::1]:{port}" if has_port else "[::1]"
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        met: dict[str, Any] = {}
        monkeypatch.setattr(jax.distributed, "initialize", lambda **found: met.update(found))
        distributed.initialize(DistributedConfig(port=port, timeout_s=1))
    assert met["coordinator_address"] == f"[::1]:{port}"


@pytest.mark.parametrize("process", ["0", "1"])
def test_the_port_of_the_first_host_is_a_number(monkeypatch, process: str):
    names = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": process}
    for name, value in {**names, "JAX_COORDINATOR_ADDRESS": "first-host:PORT"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="^JAX_COORDINATOR_ADDRESS = 'first-host:PORT' must end in"):
        distributed.initialize(DistributedConfig())


def test_numbers_of_hosts_are_numbers(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(UserError, match="^JAX_NUM_PROCESSES = 'two' must be a number$"):
        distributed.num_hosts()


def test_one_process_is_all_there_is():
    assert distributed.is_writer() and all(distributed.is_mine(i) for i in range(5))
    assert distributed.exchange([1, "a"]) == [[1, "a"]]
    assert distributed.shared_work({3: [1], 1: None}) == {3: [1], 1: None}
    distributed.barrier("nothing to wait for")
