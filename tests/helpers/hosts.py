"""Environments in which processes of this machine are the hosts of one program."""

import os
import socket


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def environments(processes: int, devices: int = 1) -> list[dict[str, str]]:
    """One for each of `processes` with `devices` CPU devices."""
    common = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
    if processes == 1:
        return [common]
    port = free_port()
    common |= {"JAX_NUM_PROCESSES": str(processes), "JAX_COORDINATOR_ADDRESS": f"localhost:{port}"}
    return [common | {"JAX_PROCESS_ID": str(process)} for process in range(processes)]
