"""Tests what one process of several does, without the others; system/test_hosts.py starts them."""

import json
import os
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from vinejax.core.settings import DistributedConfig
from vinejax.runtime import distributed


def be_host(monkeypatch: pytest.MonkeyPatch, index: int, count: int) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(jax, "process_count", lambda: count)


def test_each_item_is_of_one_host_and_the_first_one_writes(monkeypatch: pytest.MonkeyPatch):
    items = []
    for index in range(3):
        be_host(monkeypatch, index, 3)
        items += [[i for i in range(10) if distributed.is_mine(i)]]
        assert distributed.is_writer() == (index == 0)
    assert sorted(sum(items, [])) == list(range(10))
    assert {len(of_host) for of_host in items} == {3, 4}, "the hosts have equal shares"


def test_values_of_hosts_come_in_their_order_whatever_their_length(
    monkeypatch: pytest.MonkeyPatch,
):
    for values in (["a", {"b": [1, None]}, "é" * 50], [1, 2, 3], ["ab", "cdefghij", ""]):
        encoded = [np.frombuffer(json.dumps(x).encode(), np.uint8) for x in values]
        lengths: list[int] = []

        def gather(own: Any, encoded: list[Any] = encoded, lengths: list[int] = lengths) -> Any:
            """The parts of all hosts; all have the shape of this host's part."""
            if own.ndim == 0:
                assert own == len(encoded[1])
                return np.array([len(x) for x in encoded], np.int32)
            lengths.append(len(own))
            np.testing.assert_array_equal(own[: len(encoded[1])], encoded[1])
            return np.stack([np.pad(x, (0, len(own) - len(x))) for x in encoded])

        monkeypatch.setattr(multihost_utils, "process_allgather", gather)
        be_host(monkeypatch, 1, 3)
        assert distributed.exchange(values[1]) == values
        (length,) = lengths
        assert length.bit_count() == 1, "few lengths, each of which is a program"


def test_results_of_all_hosts_are_shared(monkeypatch: pytest.MonkeyPatch):
    def others(own: list[Any]) -> list[Any]:
        return json.loads(json.dumps([own, [(1, "b"), (3, None)], []]))

    monkeypatch.setattr(distributed, "exchange", others)
    found = distributed.shared_work({0: "a", 2: [0.5]})
    assert found == {0: "a", 1: "b", 2: [0.5], 3: None}


def test_a_barrier_compares_what_the_hosts_are_about_to_do(monkeypatch: pytest.MonkeyPatch):
    names: list[str] = []
    be_host(monkeypatch, 0, 2)
    monkeypatch.setattr(multihost_utils, "sync_global_devices", names.append)
    for name, facts in (("start", {"seed": 1}), ("start", {"seed": 1}), ("start", {"seed": 2})):
        distributed.barrier(name, facts)
    assert names[0] == names[1] != names[2] and names[0].startswith("start ")

    def differ(_: str) -> None:
        raise AssertionError("sync_global_devices name mismatch")

    monkeypatch.setattr(multihost_utils, "sync_global_devices", differ)
    with pytest.raises(RuntimeError, match="^resume: the hosts differ in what they are about"):
        distributed.barrier("resume", 3)


class Left(BaseException):
    """Raised in the place of the end of the process."""


def leave_at_once(status: int) -> None:
    raise Left(status)


def test_one_of_several_hosts_waits_for_no_other_when_it_leaves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "_exit", leave_at_once)
    with pytest.raises(SystemExit, match="^3$"):
        distributed.leave(3)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(Left, match="^3$"):
        distributed.leave(3)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")  # the error of one line with which it ends
    with pytest.raises(SystemExit, match="^2$"):
        distributed.leave(2)


def test_a_host_that_misses_others_leaves_whatever_its_environment_says_by_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`sys.exit` in the thread of the timer would end the thread alone."""
    monkeypatch.setattr(os, "_exit", leave_at_once)
    with pytest.raises(Left, match="^2$"):
        distributed._give_up(4, 60)
    assert "not all of 4 hosts came within 60 s (distributed.timeout_s)" in capsys.readouterr().err


def test_the_first_host_waits_for_nobody_and_the_limit_ends_with_the_connection(
    monkeypatch: pytest.MonkeyPatch,
):
    """Else the process would end `timeout_s` seconds after its start, in the middle of the run."""
    names = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "nowhere"}
    monkeypatch.setattr(os, "environ", os.environ | names)
    events: list[Any] = []

    class Timer:
        def __init__(self, seconds: float, call: Any, arguments: Any):
            events.append((seconds, call, arguments))

        def start(self) -> None:
            events.append("start")

        def cancel(self) -> None:
            events.append("cancel")

    met: dict[str, Any] = {}
    monkeypatch.setattr(distributed.threading, "Timer", Timer)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **found: met.update(found))
    cfg = DistributedConfig(port=1234, timeout_s=50, heartbeat_s=70)
    distributed.initialize(cfg)
    assert events == [(50, distributed._give_up, (2, 50)), "start", "cancel"]
    assert os.environ["JAX_COORDINATOR_PORT"] == "1234"
    assert met == {
        **{"coordinator_address": "nowhere:1234", "num_processes": 2, "process_id": 0},
        "initialization_timeout": 50 + distributed.JAX_EXTRA_S,
        **{"heartbeat_timeout_seconds": 70, "shutdown_timeout_seconds": 50},
    }
