"""Tests names of accelerators: their meaning, what to rent, and shapes that nobody offers."""

import os
import subprocess
import sys

import pytest
from helpers.paths import REPO
from helpers.refusals import refuses

from vinejax.core.errors import ConfigError, UserError
from vinejax.runtime import topology
from vinejax.runtime.topology import KINDS, find_topology, match_topology, parse_topology

# The right-hand sides are copied from Google's tables of v5e, v6e, v5p and v4.
RENTED = [
    # name, accelerator type, chips, hosts, chips per host
    ("v5e:1x1", "v5litepod-1", 1, 1, 1),
    ("v5e:2x2", "v5litepod-4", 4, 1, 4),
    ("v5e:2x4", "v5litepod-8", 8, 1, 8),
    ("v5e:4x4", "v5litepod-16", 16, 4, 4),
    ("v5e:8x16", "v5litepod-128", 128, 32, 4),
    ("v5e:16x16", "v5litepod-256", 256, 64, 4),
    ("v6e:2x4", "v6e-8", 8, 1, 8),
    ("v6e:4x8", "v6e-32", 32, 8, 4),
    ("v6e:8x8", "v6e-64", 64, 16, 4),
    ("v5p:2x2x1", "v5p-8", 4, 1, 4),
    ("v5p:2x2x2", "v5p-16", 8, 2, 4),
    ("v5p:2x4x4", "v5p-64", 32, 8, 4),
    ("v5p:4x4x4", "v5p-128", 64, 16, 4),
    ("v5p:4x4x8", "v5p-256", 128, 32, 4),
    ("v5p:4x8x8", "v5p-512", 256, 64, 4),
    ("v5p:8x16x16", "v5p-4096", 2048, 512, 4),
    ("v5p:16x16x24", "v5p-12288", 6144, 1536, 4),
    ("v4:2x2x4", "v4-32", 16, 4, 4),
    ("v4:4x4x4", "v4-128", 64, 16, 4),
    ("v4:8x8x12", "v4-1536", 768, 192, 4),
    ("v4:16x16x16", "v4-8192", 4096, 1024, 4),
]


@pytest.mark.parametrize(("name", "rented_as", "chips", "hosts", "per_host"), RENTED)
def test_what_to_rent(name: str, rented_as: str, chips: int, hosts: int, per_host: int):
    slice_ = parse_topology(name)
    assert slice_.accelerator_type == rented_as
    assert (slice_.chips, slice_.hosts, slice_.chips_per_host) == (chips, hosts, per_host)


@pytest.mark.parametrize(
    ("name", "chips", "hosts"),
    [("cpu:1", 1, 1), ("cpu:12", 12, 1), ("h100:8", 8, 1), ("h200:1", 1, 1), ("a100:16", 16, 2)],
)
def test_what_is_not_a_tpu(name: str, chips: int, hosts: int):
    assert (parse_topology(name).chips, parse_topology(name).hosts) == (chips, hosts)
    assert not parse_topology(name).is_tpu
    with refuses("topology"):
        _ = parse_topology(name).accelerator_type


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "write a kind and its chips"),
        ("v5e", "write a kind and its chips"),
        ("v5litepod-256", "write a kind and its chips"),
        ("v5e:04x4", "write a kind and its chips"),
        ("v5e:4x", "write a kind and its chips"),
        ("v5:4x4", "unknown kind 'v5'; did you mean 'v5"),
        ("v6:8x8", "unknown kind 'v6'; did you mean 'v6e'? Known: v5e, v6e, v5p, v4, h100"),
        ("zz:8", "unknown kind 'zz'; Known: v5e"),
        ("v5e:4x4x4", "v5e takes two numbers, like 4x4; this has 3"),
        ("v5p:8x8", "v5p takes three numbers, like 4x4x4; this has 2"),
        ("h100:2x4", "h100 takes one number, like 4; this has 2"),
        ("v5e:3x3", "v5e is offered as 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("v6e:4x2", "v6e is offered as 1x1, 2x2, 2x4"),
        ("v6e:16x32", "v6e is offered as"),
        ("v5p:1x1x1", "v5p is offered as 2x2x1, 2x2x2, 2x2x4, 2x4x4 and multiples of 4"),
        ("v5p:4x4x2", "v5p is offered as"),
        ("v5p:2x4x8", "v5p is offered as"),
        ("v5p:8x4x4", "v5p with 128 chips is rented as 4x4x8"),
        ("v5p:4x4x16", "v5p with 256 chips is rented as 4x8x8"),
        ("v5p:16x16x28", "in rising order, to 6144 chips"),
        ("v4:16x16x20", "in rising order, to 4096 chips"),
        ("h100:3", "h100 comes as 1, 2, 4, 8 or more whole hosts of 8"),
        ("a100:12", "a100 comes as"),
    ],
)
def test_names_that_are_refused_in_one_line(name: str, rule: str):
    with pytest.raises(ConfigError) as caught:
        parse_topology(name)
    assert rule in str(caught.value)
    assert str(caught.value).startswith(f"topology = {name!r}: ")
    assert "\n" not in str(caught.value) and caught.value.field == "topology"


TABLE = ["v5e:16x16", "v5e:4x4", "v6e:8x8", "v5p:4x4x4", "v4:4x4x4", "h100:8", "h200:1", "cpu:8"]


@pytest.mark.parametrize(
    ("device_kind", "count", "name"),
    [
        ("TPU v5 lite", 256, "v5e:16x16"),
        ("TPU v5 lite", 16, "v5e:4x4"),
        ("TPU v6 lite", 64, "v6e:8x8"),
        ("TPU v5", 64, "v5p:4x4x4"),
        ("TPU v5p", 64, "v5p:4x4x4"),
        ("TPU v4", 64, "v4:4x4x4"),
        ("NVIDIA H100 80GB HBM3", 8, "h100:8"),
        ("NVIDIA H200", 1, "h200:1"),
        ("cpu", 8, "cpu:8"),
        ("TPU v5 lite", 64, None),  # not in the table, though a v5p and a v6e of 64 are
        ("TPU v4", 128, None),
        ("NVIDIA A100-SXM4-80GB", 8, None),
        ("NVIDIA GH200 480GB", 1, None),
        ("cpu", 4, None),
    ],
)
def test_devices_find_their_row(device_kind: str, count: int, name: str | None):
    assert match_topology(device_kind, count, TABLE) == name


def test_cards_of_another_memory_are_not_the_same():
    assert match_topology("NVIDIA A100-SXM4-80GB", 4, ["a100:4"]) == "a100:4"
    assert match_topology("NVIDIA A100-SXM4-40GB", 4, ["a100:4"]) is None


def test_a_row_that_is_no_topology_is_an_error():
    with refuses("topology"):
        match_topology("cpu", 1, ["v5e:3x3", "cpu:1"])


def test_memory_is_what_the_compiler_allows():
    assert {name: KINDS[name].chip.hbm_gib for name in ("v5e", "v6e", "v5p", "v4")} == {
        "v5e": 15.75,
        "v6e": 31.25,
        "v5p": 95.74,
        "v4": 30.5,
    }


@pytest.fixture(autouse=True)
def _no_share_is_set(monkeypatch: pytest.MonkeyPatch):
    for name in topology.GPU_SHARE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", topology.GPU_SHARE_VARIABLES)
def test_a_gpu_gives_the_share_that_jax_takes(name: str, monkeypatch: pytest.MonkeyPatch):
    whole = KINDS["h100"].chip.hbm_gib
    assert 79 < whole < 80
    assert (
        parse_topology("h100:8").chip.hbm_gib == 0.75 * whole
    )  # docs.jax.dev: GPU memory allocation
    monkeypatch.setenv(name, ".9")
    assert parse_topology("h100:8").chip.hbm_gib == 0.9 * whole
    assert parse_topology("v5e:2x2").chip == KINDS["v5e"].chip
    for share in ("nine tenths", "0", ".0", "1.5", "-1", "nan"):
        monkeypatch.setenv(name, share)
        with pytest.raises(UserError, match=f"^{name} = '{share}' must be a share, such as .9$"):
            _ = parse_topology("h100:8").chip


def test_options_of_the_compiler():
    assert parse_topology("v4:2x2x1").compiler_options == {"chip_config_name": "megacore"}
    assert parse_topology("v5e:1x1").compiler_options == {"chips_per_host_bounds": [1, 1, 1]}
    assert parse_topology("v6e:2x4").compiler_options == {"chips_per_host_bounds": [2, 4, 1]}
    assert (
        parse_topology("v5e:16x16").compiler_options
        == parse_topology("v5p:4x4x4").compiler_options
        == {}
    )


@pytest.mark.slow
def test_the_compiler_lists_as_many_devices_and_hosts():
    """The compiler itself lists the devices and hosts that `compiler_options` is meant to give."""
    pytest.importorskip("libtpu", reason="needs pip install -e '.[tpu]'")
    names = [name for name, _, chips, *_ in RENTED if chips <= 256]
    script = f"""
from jax.experimental.topologies import get_topology_desc
from vinejax.runtime.topology import parse_topology
for topology in map(parse_topology, {names}):
    devices = get_topology_desc(topology.name, "tpu", **topology.compiler_options).devices
    hosts = len({{device.process_index for device in devices}})
    print(topology.name, len(devices), hosts, devices[0].device_kind, sep=",")
"""
    quiet = {"TPU_LOG_DIR": "disabled", "TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3"}
    offline = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    offline |= {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-256"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **quiet, **offline},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(names)
    for line in done.stdout.splitlines():
        name, devices, hosts, device_kind = line.split(",")
        assert (int(devices), int(hosts)) == (
            parse_topology(name).chips,
            parse_topology(name).hosts,
        ), name
        assert match_topology(device_kind, int(devices), [name]) == name


def rent(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(REPO / "tpu" / "renting.py"), *words], capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def test_command():
    status, out, _ = rent("v5p:4x4x4")
    assert status == 0 and out.splitlines() == [
        "accelerator_type v5p-128",
        "runtime_version v2-alpha-tpuv5",
        "chips 64",
        "hosts 16",
        "chips_per_host 4",
    ]
    assert rent("v5p:4x4x4", "hosts")[:2] == (0, "16\n")
    status, out, err = rent("v5e:3x3")
    assert status == 2
    assert out == "" and err.startswith("error: topology = 'v5e:3x3': v5e is offered as")
    assert rent("cpu:8", "accelerator_type")[0] == 2


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("v5e:1x1", "v2-alpha-tpuv5-lite"),
        ("v6e:2x4", "v2-alpha-tpuv6e"),
        ("v5p:2x2x1", "v2-alpha-tpuv5"),
        ("v4:2x2x4", "tpu-ubuntu2204-base"),
    ],
)
def test_every_kind_of_tpu_has_an_image(name: str, image: str):
    assert rent(name, "runtime_version")[:2] == (0, f"{image}\n")


def test_the_command_needs_no_jax():
    """The script answers in a fraction of a second on a machine without an accelerator."""
    script = "import runpy, sys; sys.argv = ['renting.py', 'v6e:8x8', 'accelerator_type']\n"
    script += f"try: runpy.run_path({str(REPO / 'tpu' / 'renting.py')!r}, run_name='__main__')\n"
    script += "except SystemExit: assert not {'jax', 'numpy', 'flax'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "v6e-64\n"), done.stderr


@pytest.mark.parametrize("name", [row[0] for row in RENTED])
def test_devices_have_the_name_of_what_was_rented(name: str):
    slice_ = parse_topology(name)
    for device_kind in KINDS[slice_.kind].device_kinds:
        found = find_topology(device_kind, slice_.chips)
        assert found is not None and found.name == name


@pytest.mark.parametrize(
    ("device_kind", "count", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 4, "h100:4"),
        ("NVIDIA H100 80GB HBM3", 3, None),
        ("NVIDIA A100-SXM4-80GB", 16, "a100:16"),
        ("NVIDIA A100-SXM4-40GB", 8, None),
        ("cpu", 3, "cpu:3"),
        ("TPU v5 lite", 12, None),
        ("TPU v5 lite", 512, None),
        ("TPU v5", 6208, None),  # more than the largest
        ("TPU v9", 4, None),
    ],
)
def test_devices_that_are_known_by_name(device_kind: str, count: int, name: str | None):
    found = find_topology(device_kind, count)
    assert (found and found.name) == name
