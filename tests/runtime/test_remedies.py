"""Tests the lines for errors of disks and of device memory."""

import errno

import jax
import pytest

from vinejax.runtime.remedies import remedy


def test_a_full_disk_is_named_with_its_file():
    line = remedy(OSError(errno.ENOSPC, "No space left on device", "runs/a/metrics.jsonl"))
    assert line and line.startswith("runs/a/metrics.jsonl: No space left on device; make room")


@pytest.mark.parametrize(
    ("message", "begins"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.61GiB with allocator"
            " GPU_0_bfc on device 0. [executable_name='jit_update_step']",
            "out of memory in the program update_step; lower rollout.slots",
        ),
        ("RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "out of memory; lower"),
    ],
)
def test_too_little_memory_names_the_program_and_the_settings(message: str, begins: str):
    line = remedy(jax.errors.JaxRuntimeError(message))
    assert line and line.startswith(begins)


@pytest.mark.parametrize(
    "error", [ValueError("out of memory"), OSError("odd"), jax.errors.JaxRuntimeError("INTERNAL")]
)
def test_other_errors_keep_their_traceback(error: Exception):
    assert remedy(error) is None
