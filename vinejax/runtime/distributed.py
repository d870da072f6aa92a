"""Several hosts, one program: how they find each other, agree, and tell each other what each did.

One process a host; all run the same Python in the same order, derive the same plan from the same
seeds, and call the functions below together. What is worth dividing (detokenising, grading) is done
by item number: see `is_mine`. Files are written by the first host alone: see `is_writer`.

A host that dies takes the others with it: jax ends them with SIGABRT when its heartbeat is missed.
That is no exception, so whoever started the processes has to say which died first (tpu/launch.sh).
"""

import hashlib
import json
import os
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

from vinejax.errors import UserError
from vinejax.settings import DistributedConfig

METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
WORKERS = "worker-network-endpoints"  # a comma-separated list, on VMs with TPUs
METADATA_TIMEOUT_S = 3
TPU_DEVICES = ("/dev/accel0", "/dev/vfio/0")


def num_hosts() -> int:
    """How many processes this program is, as the environment says. Asks no device.

    Known are JAX_NUM_PROCESSES, GKE's and the user's TPU_WORKER_HOSTNAMES, the metadata of a TPU
    VM, Slurm and Open MPI.
    """
    environ = os.environ
    if "JAX_NUM_PROCESSES" in environ:
        return _number("JAX_NUM_PROCESSES")
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        if environ.get(name):
            return len(environ[name].split(","))
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"):
        if name in environ:
            return _number(name)
    if environ.get("JAX_PLATFORMS", "tpu").startswith("tpu") and any(
        Path(device).exists() for device in TPU_DEVICES
    ):
        return _num_tpu_workers()
    return 1


def initialize(cfg: DistributedConfig) -> None:
    """Joins the other hosts, where there are any. Before any device is asked for anything.

    Raises:
      UserError: the environment names the hosts in part, or the first does not answer in time.
        (Where another one is missing, jax ends all of them, without an exception.)
    """
    hosts = num_hosts()
    if hosts == 1:
        return
    import jax

    named = _named_hosts(hosts, cfg.port)
    if named.get("process_id"):
        _wait_for(named["coordinator_address"], cfg.timeout_s)
    # Where somebody is missing jax ends the process; this line then says what it was about.
    place = named.get("coordinator_address", "the first host")
    print(f"vinejax: {hosts} hosts meet at {place}, within {cfg.timeout_s} s", file=sys.stderr)
    os.environ.setdefault("JAX_COORDINATOR_PORT", str(cfg.port))
    try:
        jax.distributed.initialize(
            **named,
            initialization_timeout=cfg.timeout_s,
            heartbeat_timeout_seconds=cfg.heartbeat_s,
            shutdown_timeout_seconds=cfg.timeout_s,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{socket.gethostname()}: cannot join the {hosts} hosts: {reason}"
        ) from error


def check_hosts() -> None:
    """Asks the devices how many hosts they belong to, once the hosts have met.

    Raises:
      UserError: others than `initialize` was told of. Each would take itself for the first one, and
        write the files.
    """
    import jax

    hosts, found = num_hosts(), jax.process_count()
    if hosts != found:
        raise UserError(
            f"{socket.gethostname()}: its devices belong to {found} hosts, and the environment "
            f"names {hosts} (on a TPU VM its metadata server does, which may not have answered); "
            "try again, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        )


def leave(status: int) -> NoReturn:
    """Ends this process. Of several, at once: the others wait for it, so it cannot wait for them
    to say goodbye, as a normal end does."""
    if num_hosts() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def is_writer() -> bool:
    """Whether this host writes the files and the screen."""
    import jax

    return jax.process_index() == 0


def is_mine(i: int) -> bool:
    """Whether item number `i` of a list that all hosts have is this one's to work on."""
    import jax

    return i % jax.process_count() == jax.process_index()


def exchange(value: Any) -> list[Any]:
    """What each host gives, in the hosts' order. `value` is made of what JSON has.

    All hosts call it, in the same order of calls.
    """
    import jax
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    if jax.process_count() == 1:
        return [value]
    own = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = process_allgather(np.int32(own.size))
    # To a power of 2, so that few programs are compiled.
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)
    padded[: own.size] = own
    everything = process_allgather(padded)
    return [json.loads(row[:n].tobytes()) for row, n in zip(everything, sizes, strict=True)]


def shared_work(found: dict[int, Any]) -> dict[int, Any]:
    """The results of all hosts by item number, from each host's own. Values as JSON has them."""
    parts = exchange(list(found.items()))
    return {i: value for part in parts for i, value in part}


def barrier(name: str, facts: Any = None) -> None:
    """Waits for all hosts. They must come for the same `name`, with the same `facts` (any repr).

    Raises:
      RuntimeError: one of them has come for something else, or with other facts.
    """
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    if jax.process_count() == 1:
        return
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    try:
        sync_global_devices(f"{name} {digest}")
    except AssertionError as error:
        raise RuntimeError(
            f"{name}: the hosts differ in what they are about to do; they need the same code, "
            f"configuration, data and libraries ({socket.gethostname()} has {digest})"
        ) from error


def _named_hosts(hosts: int, port: int) -> dict[str, Any]:
    """The arguments that name the hosts; none where jax finds them by itself."""
    if "JAX_NUM_PROCESSES" not in os.environ:
        return {}
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID"):
        if name not in os.environ:
            raise UserError(f"JAX_NUM_PROCESSES is set and {name} is not; set both, on every host")
    address = os.environ["JAX_COORDINATOR_ADDRESS"]
    if ":" not in address:
        address = f"{address}:{port}"
    process = _number("JAX_PROCESS_ID")
    return {"coordinator_address": address, "num_processes": hosts, "process_id": process}


def _wait_for(coordinator: str, timeout_s: int) -> None:
    """Until the first host listens; jax would end the process in the middle of a sentence."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"the first host does not answer at {coordinator} ({error}), after "
                    f"distributed.timeout_s = {timeout_s} s; start the same command on every host"
                ) from error
            time.sleep(0.2)


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise UserError(f"{name} = {os.environ[name]!r} must be a number") from None


def _num_tpu_workers() -> int:
    """From the metadata server of Google's VMs; 1 where there is none, or it knows nothing.

    `check_hosts` tells whether it should have known.
    """
    request = urllib.request.Request(METADATA + WORKERS, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=METADATA_TIMEOUT_S) as answer:
            return len(answer.read().decode().split(","))
    except OSError:
        return 1
