"""Environments in which processes of this machine are the hosts of one program."""

import os
import socket
import subprocess
import sys

from helpers.paths import TESTS


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


def last_lines(processes: int, program: str) -> list[str]:
    """What each host prints last when all run this text of Python; fails if one of them fails."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=TESTS,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for environment in environments(processes)
    ]
    printed = [process.communicate(timeout=300)[0] for process in started]
    assert not any(process.returncode for process in started)
    return [text.splitlines()[-1] for text in printed]
