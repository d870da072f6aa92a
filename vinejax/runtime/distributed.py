"""Connects the hosts of a run, and exchanges results and decisions between them.

Each host has one process. All processes run the same Python code with the same seeds, so they make
the same decisions and call the functions below in the same order. Slow work of the host, such as
detokenising and grading, is divided by item number (`is_mine`). Only the first host writes files
(`is_writer`).

When a host dies, jax ends the others with SIGABRT as soon as they miss its heartbeat. They get no
exception, so the launcher has to find out which host died first (tpu/launch.sh).
"""

import contextlib
import functools
import hashlib
import json
import os
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

from vinejax.core.errors import UserError
from vinejax.core.settings import DistributedConfig

METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
WORKERS = "worker-network-endpoints"  # a comma-separated list, on VMs with TPUs
METADATA_TIMEOUT_S = 3
JAX_EXTRA_S = 60  # jax waits this much longer for missing hosts, so that our message comes first
TPU_DEVICES = ("/dev/accel0", "/dev/vfio/0")


def num_hosts() -> int:
    """The number of processes of this program, found without initialising devices.

    The sources are JAX_NUM_PROCESSES, TPU_WORKER_HOSTNAMES (set by GKE or the user), the metadata
    of a TPU VM, and the variables of Slurm and Open MPI. jax can detect such clusters only inside
    `jax.distributed.initialize`, which fails for a single process. So the number has to be known
    before that call. `check_hosts` detects a wrong number.
    """
    environ = os.environ
    if "JAX_NUM_PROCESSES" in environ:
        return _env_number("JAX_NUM_PROCESSES")
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        if environ.get(name):
            return len(environ[name].split(","))
    for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"):
        if name in environ:
            return _env_number(name)
    if environ.get("JAX_PLATFORMS", "tpu").startswith("tpu") and has_tpu():
        return _num_tpu_workers()
    return 1


def has_tpu() -> bool:
    """Whether this machine has the device files of a TPU."""
    return any(Path(device).exists() for device in TPU_DEVICES)


def initialize(cfg: DistributedConfig) -> None:
    """Connects to the other hosts, if there are any. Must be called before jax uses a device.

    Raises UserError if the environment names only some of the hosts, or if the first host does not
    answer in time. If another host is missing, all processes print a line and exit with code 2. jax
    itself would wait in a call that no exception can leave, and end with a C++ stack trace.
    """
    hosts = num_hosts()
    if hosts == 1:
        return
    import jax

    arguments = _named_hosts(hosts, cfg.port)
    if arguments.get("process_id"):
        _wait_for(arguments["coordinator_address"], cfg.timeout_s)
    place = arguments.get("coordinator_address", "the first host")
    print(f"vinejax: {hosts} hosts meet at {place}, within {cfg.timeout_s} s", file=sys.stderr)
    os.environ.setdefault("JAX_COORDINATOR_PORT", str(cfg.port))
    absent = threading.Timer(cfg.timeout_s, _give_up, (hosts, cfg.timeout_s))
    absent.daemon = True
    absent.start()
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=cfg.timeout_s + JAX_EXTRA_S,
            heartbeat_timeout_seconds=cfg.heartbeat_s,
            shutdown_timeout_seconds=cfg.timeout_s,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        message = f"cannot join the {hosts} hosts: {reason}"
        raise UserError(f"{socket.gethostname()}: {message}") from error
    finally:
        absent.cancel()


def _give_up(hosts: int, timeout_s: int) -> None:
    """Prints an error and ends this process, because some hosts have not connected in time."""
    message = f"not all of {hosts} hosts came within {timeout_s} s (distributed.timeout_s)"
    remedy = "start the same command on each, at most that long after one another"
    print(
        f"vinejax: error: {socket.gethostname()}: {message}; {remedy}", file=sys.stderr, flush=True
    )
    leave(2, at_once=True)


def check_hosts() -> None:
    """Raises UserError unless jax has connected as many processes as the environment names.

    Without this check, each unconnected process would act as the first host and write the files.
    """
    import jax

    hosts, connected = num_hosts(), jax.process_count()
    if hosts != connected:
        raise UserError(
            f"{socket.gethostname()}: its devices belong to {connected} hosts, and the environment "
            f"names {hosts} (on a TPU VM its metadata server does, which may not have answered); "
            "try again, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        )


def leave(status: int, at_once: bool = False) -> NoReturn:
    """Ends this process with the exit code `status`.

    With several hosts, or with `at_once`, the function skips Python's normal exit. The normal exit
    would wait for the other hosts, while they wait for this host.
    """
    with contextlib.suppress(UserError):  # it is the error that ends this process
        at_once = at_once or num_hosts() > 1
    if at_once:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # the terminal may be closed
                stream.flush()
        os._exit(status)
    sys.exit(status)


def is_writer() -> bool:
    """Whether this host is the first one, which writes the files and prints."""
    import jax

    return jax.process_index() == 0


def process_place() -> tuple[int, int]:
    """(index of this process, number of all processes)."""
    import jax

    return jax.process_index(), jax.process_count()


def is_mine(i: int) -> bool:
    """Whether this host is to process item `i` of a list that all hosts have."""
    import jax

    return i % jax.process_count() == jax.process_index()


def exchange(value: object) -> list[Any]:
    """A list of the values of all hosts, in the order of the hosts.

    A value must be valid in JSON. All hosts must make the same calls in the same order.
    """
    import jax
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    if jax.process_count() == 1:
        return [value]
    encoded = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = process_allgather(np.int32(encoded.size))
    # Padded to a power of 2, so that few programs are compiled.
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)
    padded[: encoded.size] = encoded
    rows = process_allgather(padded)
    return [json.loads(row[:n].tobytes()) for row, n in zip(rows, sizes, strict=True)]


def start_maximum(number: int) -> Any:
    """Starts to compute the maximum of a number over all hosts; returns it as an array, i32[].

    Reading the result waits for all programs started so far. All hosts must make the same calls.
    """
    import jax
    import numpy as np

    mine, of_hosts, maximum = _maximum_program()
    part = jax.device_put(np.array([number], np.int32), mine)
    shape = (jax.process_count(),)
    return maximum(jax.make_array_from_single_device_arrays(shape, of_hosts, [part]))


@functools.cache
def _maximum_program() -> tuple[Any, Any, Any]:
    """What `start_maximum` needs: (device, sharding, program).

    The device is the first one of this host. The sharding is that of an array with one number on
    each host. The program computes the maximum of such an array.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[i] for i in range(jax.process_count())]), ("hosts",))
    maximum = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, P()))
    return first[jax.process_index()], NamedSharding(mesh, P("hosts")), maximum


def shared_work(results: dict[int, Any]) -> dict[int, Any]:
    """Item number -> result, from all hosts. `results` are this host's results, valid in JSON."""
    parts = exchange(list(results.items()))
    return {i: value for part in parts for i, value in part}


def barrier(name: str, facts: object = None) -> None:
    """Waits until all hosts have called this function.

    Raises RuntimeError if the hosts differ in `name` or in the repr of `facts`.
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
    """The arguments of `jax.distributed.initialize` that environment variables give.

    The result is {} if JAX_NUM_PROCESSES is not set. Raises UserError if it is set, but
    JAX_COORDINATOR_ADDRESS or JAX_PROCESS_ID is not, or if the address has no number as its port.
    """
    if "JAX_NUM_PROCESSES" not in os.environ:
        return {}
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID"):
        if name not in os.environ:
            raise UserError(f"JAX_NUM_PROCESSES is set and {name} is not; set both, on every host")
    address = os.environ["JAX_COORDINATOR_ADDRESS"]
    if ":" not in address or address.endswith("]"):  # '[fd00::1]', an address of IPv6
        address = f"{address}:{port}"
    if not address.rpartition(":")[2].isdecimal():
        message = f"must end in a port, as in host:{port}"
        raise UserError(f"JAX_COORDINATOR_ADDRESS = {address!r} {message}")
    process = _env_number("JAX_PROCESS_ID")
    return {"coordinator_address": address, "num_processes": hosts, "process_id": process}


def _wait_for(coordinator: str, timeout_s: int) -> None:
    """Waits until the first host listens. Raises UserError after `timeout_s` seconds."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"the first host does not answer at {coordinator} ({error}), after "
                    f"distributed.timeout_s = {timeout_s} s; start the same command on every host"
                ) from error
            time.sleep(0.2)


def _env_number(name: str) -> int:
    """The value of an environment variable. Raises UserError if it is not a whole number."""
    try:
        return int(os.environ[name])
    except ValueError:
        raise UserError(f"{name} = {os.environ[name]!r} must be a number") from None


def _num_tpu_workers() -> int:
    """The number of hosts of a TPU slice, which Google's metadata server states.

    The result is 1 if the server does not answer.
    """
    request = urllib.request.Request(METADATA + WORKERS, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=METADATA_TIMEOUT_S) as answer:
            return len(answer.read().decode().split(","))
    except OSError:
        return 1
