"""Compiles each program in a separate process (`compile_child.py`) with a time limit."""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vinejax.core.errors import ConfigError
from vinejax.tools.plan.case import Case

# Environment variables for libtpu on a machine without a TPU: several processes may load libtpu, it
# asks no metadata server, and it writes no logs. A process must have them when it loads libtpu.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
GATHERED = "Involuntary full rematerialization"  # the partitioner's warning: it replicates an array
LINES = 3  # if a process failed, so many last lines of its output are shown
# What compiles for GPUs: XLA's compiler, and the tools of CUDA that it calls.
GPU_WHEELS = (
    "jax-cuda13-plugin",
    "jax-cuda13-pjrt",
    "nvidia-cuda-nvcc",
    "nvidia-nvvm",
    "nvidia-cuda-crt",
)


def missing_gpu_compiler() -> str:
    """The reason why this machine cannot compile for GPUs, with what to install; '' if it can."""
    jaxlib = importlib.metadata.version("jaxlib")
    remedy = "pip install -e '.[gpu-plan]'"
    for name in GPU_WHEELS:
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed: {remedy}"
        if name.startswith("jax") and installed != jaxlib:
            return f"{name} is {installed}, and jaxlib {jaxlib}: {remedy}"
    return ""


def check_compiler(case: Case) -> str:
    """A warning if the installed jax requires another release of libtpu, else ''.

    Raises ConfigError if libtpu is needed and not installed.
    """
    if not case.topology.is_tpu:
        return ""
    if importlib.util.find_spec("libtpu") is None:
        message = "the TPU compiler is not installed: pip install -e '.[tpu]'"
        raise ConfigError("topology", message, repr(case.topology.name))
    installed = importlib.metadata.version("libtpu")
    for line in importlib.metadata.requires("jax") or []:
        if pin := re.match(r"libtpu==([\d.]+)\.\*", line):
            if not f"{installed}.".startswith(f"{pin[1]}."):
                jax = importlib.metadata.version("jax")
                return f"libtpu {installed} is not what jax {jax} is made for, {pin[1]}.*"
    return ""


def compile_program(case: Case, config: dict[str, Any], name: str, timeout_s: float) -> dict:
    """Compiles a program in a new process; returns the answer of `compile_child.compile_request`.

    The answer also has 'gathered', the number of the compiler's warnings that it must replicate an
    array. If the program did not compile, 'error' is 'time', 'memory' (with 'needs' and 'limit' in
    bytes) or a message.
    """
    with tempfile.TemporaryDirectory(prefix="vinejax-plan-") as folder:
        request = Path(folder) / "request.json"
        answer = Path(folder) / "answer.json"
        dump = Path(folder) / "dump" if case.platform == "gpu" else None
        asked = {"config": config, "program": name, "dump": dump and str(dump)}
        request.write_text(json.dumps(asked))
        command = [
            sys.executable,
            "-m",
            "vinejax.tools.plan.aot.compile_child",
            str(request),
            str(answer),
        ]
        environment = os.environ | ENVIRONMENT
        if case.topology.is_tpu:
            environment["TPU_ACCELERATOR_TYPE"] = case.topology.accelerator_type
        if dump:
            environment |= gpu_environment(dump)
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return {"error": "time"}
        if done.returncode != 0 or not answer.exists():
            words = " | ".join(done.stdout.strip().splitlines()[-LINES:])
            return {"error": f"the compiling process ended with status {done.returncode}: {words}"}
        return json.loads(answer.read_text()) | {"gathered": done.stdout.count(GATHERED)}


def gpu_environment(dump: Path) -> dict[str, str]:
    """Environment variables with which XLA writes what it made of a program for GPUs to `dump`.

    A program from jax's cache would not be compiled, and nothing would be written.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={dump} --xla_dump_hlo_as_text"
    return {"XLA_FLAGS": flags.strip(), "JAX_ENABLE_COMPILATION_CACHE": "false"}
