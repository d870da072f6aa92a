"""The seccomp filter against a slow oracle, an interpreter of its code, and in the kernel."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from contrib.code.test_sandbox import KERNEL, kernel_only

from vinejax.contrib.code.sandbox import kernel
from vinejax.contrib.code.sandbox.sandbox import Sandbox

HEADERS = {  # where Linux's headers have the numbers of the calls
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
# Calls that can harm what is outside the sandbox, by machine; none may be allowed.
HARMFUL = {
    "x86_64": {
        **{"socket": 41, "connect": 42, "sendto": 44, "bind": 49, "fork": 57, "vfork": 58},
        **{"execve": 59, "kill": 62, "shmget": 29, "msgget": 68, "truncate": 76, "rename": 82},
        **{"mkdir": 83, "unlink": 87, "symlink": 88, "chmod": 90, "chown": 92, "ptrace": 101},
        **{"setuid": 105, "setpriority": 141, "prctl": 157, "mount": 165, "tkill": 200},
        **{"add_key": 248, "unshare": 272, "splice": 275, "setns": 308, "memfd_create": 319},
        **{"bpf": 321, "execveat": 322, "userfaultfd": 323, "process_vm_writev": 311},
        **{"tgkill": 234, "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428},
        **{"pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438},
        "landlock_restrict_self": 446,
    },
    "aarch64": {
        **{"socket": 198, "connect": 203, "sendto": 206, "bind": 200, "execve": 221, "kill": 129},
        **{"tkill": 130, "tgkill": 131, "ptrace": 117, "prctl": 167, "mount": 40, "unshare": 97},
        **{"setns": 268, "memfd_create": 279, "bpf": 280, "execveat": 281, "userfaultfd": 282},
        **{"process_vm_writev": 271, "unlinkat": 35, "renameat": 38, "fchmodat": 53},
        **{"truncate": 45, "shmget": 194, "add_key": 217, "setuid": 146, "splice": 76},
        **{"pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "clone3": 435},
        **{"openat2": 437, "pidfd_getfd": 438},
    },
}
X32 = 0x40000000  # bit of a call by the x32 interface, which has the same `arch`
ANY = 2**64 - 1


def verdict(machine: str, number: int, args: tuple[int, ...] = (), arch: int | None = None) -> int:
    """What the filter returns for a call, found by running its instructions one by one."""
    code = kernel.seccomp_filter(machine)
    arch = kernel.MACHINES[machine][1] if arch is None else arch
    padded = (*args, *(0,) * 6)[:6]
    data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
    steps = list(struct.iter_unpack("HBBI", code))
    place, loaded = 0, 0
    while True:
        operation, if_true, if_false, value = steps[place]
        place += 1
        if operation == kernel.RETURN:
            return value
        if operation == kernel.LOAD:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == kernel.IF_EQUAL:
            place += if_true if loaded == value else if_false
        else:
            assert operation == kernel.IF_SET
            place += if_true if loaded & value else if_false


def free_calls(machine: str) -> dict[str, int]:
    """The calls that are allowed with any arguments, with their numbers."""
    column = kernel.MACHINES[machine][0]
    fields = (call.split() for call in kernel.CALLS.split(","))
    return {name: int(numbers[column]) for name, *numbers in fields if numbers[column] != "-"}


def checked_calls(machine: str) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """(number, index of the argument, values that are allowed, values that are not)."""
    column = kernel.MACHINES[machine][0]
    for numbers, index, values in kernel.EQUAL.values():
        near = {x ^ bit for x in values for bit in (1, 2, 1 << 8, 1 << 28)} - set(values)
        yield numbers[column], index, [*values], [*near, ANY]
    for numbers, index, bits in kernel.CLEAR.values():
        if numbers[column] is not None:
            each = [1 << i for i in range(32) if bits >> i & 1]
            yield numbers[column], index, [0, 0xFFFFFFFF & ~bits], [*each, bits, ANY]


@pytest.mark.parametrize("machine", kernel.MACHINES)
def test_the_filter_returns_what_the_tables_say(machine: str):
    free = set(free_calls(machine).values())
    checked = {number for number, *_ in checked_calls(machine)}
    for number in (*range(600), *(X32 | x for x in range(600)), 2**32 - 1):
        if number in checked:
            continue
        expected = kernel.ALLOW if number in free else kernel.ENOSYS
        for args in ((), (ANY,) * 6):
            assert verdict(machine, number, args) == expected, number
        for arch in (0x40000003, 0, *(a for _, a in kernel.MACHINES.values())):
            if arch != kernel.MACHINES[machine][1]:
                assert verdict(machine, number, (), arch) == kernel.KILL
    for number, index, allowed, denied in checked_calls(machine):
        for values, expected in ((allowed, kernel.ALLOW), (denied, kernel.EPERM)):
            for value in values:
                args = (*(ANY,) * index, value, ANY)
                assert verdict(machine, number, args) == expected, (number, hex(value))
        assert verdict(machine, X32 | number, (ANY,) * 6) == kernel.ENOSYS


@pytest.mark.parametrize("machine", kernel.MACHINES)
def test_no_harmful_call_is_in_the_tables(machine: str):
    for name, number in HARMFUL[machine].items():
        assert verdict(machine, number) == kernel.ENOSYS, name


@pytest.mark.parametrize("machine", kernel.MACHINES)
def test_the_numbers_are_those_of_linuxs_headers(machine: str):
    files = [Path(name) for name in HEADERS[machine] if Path(name).exists()]
    if not files:
        pytest.skip("needs the headers of Linux")
    text = files[0].read_text(encoding="utf-8")
    known = {name: int(x) for name, x in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    known["newfstatat"] = known.get("newfstatat", known.get("fstatat", 0))
    column = kernel.MACHINES[machine][0]
    tables = (kernel.EQUAL, kernel.CLEAR)
    checked = {name: row[0][column] for table in tables for name, row in table.items()}
    for name, number in (free_calls(machine) | checked | HARMFUL[machine]).items():
        assert known.get(name) == number, name


@kernel_only
def test_the_kernel_refuses_every_call_outside_of_the_tables():
    """Calls with bad arguments, so that one which the filter lets through does nothing.

    The kernel itself passes calls 335 and 336, of its probes, by all filters since Linux 6.13. They
    kill a process that calls them.
    """
    checked = [number for number, *_ in checked_calls("x86_64")]
    allowed = [335, 336, *checked, *free_calls("x86_64").values()]
    program = f"""
import ctypes, json, platform
allowed, wrong = set({allowed}), []
call = ctypes.CDLL(None, use_errno=True).syscall
for number in range(470) if platform.machine() == "x86_64" else ():
    if number not in allowed:
        result = call(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
        if (result, ctypes.get_errno()) != (-1, 38):
            wrong.append(number)
flags = dict(write=(2, 0, 1), create=(2, 0, 64), process=(56, 17, 0), owner=(72, 1, 8))
for name, (number, first, second) in flags.items() if platform.machine() == "x86_64" else ():
    call(ctypes.c_long(number), ctypes.c_long(first), ctypes.c_long(second), ctypes.c_long(0))
    if ctypes.get_errno() != 1:
        wrong.append(name)
print(json.dumps(wrong))
"""
    with Sandbox(KERNEL, 1) as sandbox:
        outcome = sandbox.run(program)
    assert (outcome.status, outcome.out, outcome.err) == ("ok", "[]\n", "")
