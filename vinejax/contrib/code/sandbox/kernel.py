"""Confinement of the calling process by the kernel: no capabilities, Landlock, then seccomp.

After `confine` a process can open only files below paths of its `ruleset`, and only for reading.
It can start threads but no process, and cannot make a socket or signal another process. Confinement
does not need root. `child.py` runs this file without the package, so it imports nothing from there.

Sources: man 7 landlock, man 2 seccomp, linux/landlock.h, asm/unistd_64.h, asm-generic/unistd.h.
"""

import ctypes
import functools
import os
import platform
import signal
import struct
from collections.abc import Iterable

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of CALLS, audit arch

# Allowed calls: name, number on x86_64, number on aarch64. Every other call gives ENOSYS, so that
# libc falls back to an older call.
CALLS = """
read 0 63, write 1 64, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62,
mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -,
pipe 22 -, select 23 -, sched_yield 24 124, mremap 25 216, madvise 28 233, dup 32 23, dup2 33 -,
nanosleep 35 101, getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, exit 60 93,
uname 63 160, ftruncate 77 46, getdents 78 -, getcwd 79 17, readlink 89 -, gettimeofday 96 169,
getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176,
geteuid 107 175, getegid 108 177, getppid 110 173, sigaltstack 131 132, arch_prctl 158 -,
gettid 186 178, time 201 -, futex 202 98, sched_getaffinity 204 123, getdents64 217 61,
set_tid_address 218 96, restart_syscall 219 128, clock_gettime 228 113, clock_getres 229 114,
clock_nanosleep 230 115, exit_group 231 94, newfstatat 262 79, readlinkat 267 78, faccessat 269 48,
pselect6 270 72, ppoll 271 73, set_robust_list 273 99, dup3 292 24, pipe2 293 59,
getrandom 318 278, membarrier 324 283, statx 332 291, rseq 334 293, faccessat2 439 439
"""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
WRITES |= 0o20000000  # the bit of O_TMPFILE that is not in O_DIRECTORY
THREADS = (0x3D0F00, 0x7D0F00)  # flags of clone for a thread, in glibc and in musl
# Calls allowed by an argument: numbers, the argument's index, and its allowed values.
EQUAL = {
    "clone": ((56, 220), 0, THREADS),
    "prlimit64": ((302, 261), 0, (0,)),  # for the process itself
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 1030)),  # duplicates and flags, but no F_SETOWN (signals)
    "ioctl": ((16, 29), 1, (0x5401, 0x5450, 0x5451)),  # the test for a terminal, close-on-exec
}
# Calls allowed without certain bits of an argument: numbers, the argument's index, the bits.
CLEAR = {"open": ((2, None), 1, WRITES), "openat": ((257, 56), 2, WRITES)}

LOAD, IF_EQUAL, IF_SET, RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of the filter
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
SET_DEATH_SIGNAL, KEEP_CAPS, SET_SECCOMP, NO_NEW_PRIVS = 1, 8, 22, 38  # of prctl
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # calls of Landlock on every machine
READ_FILE, READ_DIR = 1 << 2, 1 << 3  # rights of Landlock
DAC_OVERRIDE = 1 << 1  # the capability to read files of other users
FIRST_UID, NUM_UIDS = 61184, 4000  # user ids of systemd's dynamic services, which own no file

LIBC = ctypes.CDLL(None, use_errno=True)


def ruleset(files: Iterable[str], folders: Iterable[str], listed: Iterable[str]) -> int:
    """The descriptor of a Landlock ruleset, the argument of `confine`.

    It lets a process read `files`, read and list `folders`, and list `listed`. Raises OSError if
    the kernel has no Landlock (before 5.13, or off at boot) or the machine is not in MACHINES.
    """
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        raise OSError(f"no rules for {platform.system()} on {platform.machine()}")
    version = _checked_result(LIBC.syscall(CREATE_RULESET, None, 0, 1))
    handled = (1 << 13) - 1  # rights of version 1; REFER, TRUNCATE and IOCTL_DEV came later
    handled |= (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    # TCP is handled from version 4 on, signals and abstract sockets from version 6 on.
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("QQQ", handled, 3, 3)[:size]
    rules = _checked_result(LIBC.syscall(CREATE_RULESET, attributes, size, 0))
    rights = [(READ_FILE, files), (READ_FILE | READ_DIR, folders), (READ_DIR, listed)]
    for right, paths in rights:
        for path in paths:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            _checked_result(LIBC.syscall(ADD_RULE, rules, 1, struct.pack("=Qi", right, place), 0))
            os.close(place)
    return rules


def confine(rules: int, needed: str) -> None:
    """Confines this process permanently. The process must have a single thread.

    `rules` is a descriptor from `ruleset`, and `needed` is a folder that must stay readable.
    Root becomes a user who owns no file. The process is killed when the thread that forked it ends.
    Raises OSError if a call of the kernel fails.
    """
    if os.geteuid() == 0:
        _drop_root(needed)
    _checked_result(LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
    _checked_result(LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked_result(LIBC.syscall(RESTRICT_SELF, rules, 0))
    code = seccomp_filter(platform.machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    _checked_result(LIBC.prctl(SET_SECCOMP, 2, program, 0, 0))


def _drop_root(needed: str) -> None:
    LIBC.prctl(KEEP_CAPS, 1, 0, 0, 0)
    uid = FIRST_UID + os.getpid() % NUM_UIDS
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError:
        pass  # a container may lack these users; the process then stays root without capabilities
    # An interpreter in root's home is readable only with this capability. Landlock still applies.
    kept = 0 if os.access(needed, os.R_OK | os.X_OK) else DAC_OVERRIDE
    header, sets = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0)
    _checked_result(LIBC.capset(header, sets))


@functools.cache
def seccomp_filter(machine: str) -> bytes:
    """The seccomp filter for a machine in MACHINES, as instructions of 8 bytes each."""
    column, arch = MACHINES[machine]
    code = [(LOAD, 0, 0, 4), (IF_EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]

    def rule(number: int | None, checks: list[tuple[int, int, int, int]]) -> None:
        if number is not None:
            code.extend([(IF_EQUAL, 0, len(checks), number), *checks])

    for call in CALLS.split(","):
        number = call.split()[1:][column]
        rule(None if number == "-" else int(number), [(RETURN, 0, 0, ALLOW)])
    for numbers, index, values in EQUAL.values():
        tests = [x for v in values for x in ((IF_EQUAL, 0, 1, v), (RETURN, 0, 0, ALLOW))]
        rule(numbers[column], [(LOAD, 0, 0, 16 + 8 * index), *tests, (RETURN, 0, 0, EPERM)])
    for numbers, index, bits in CLEAR.values():
        tests = [(IF_SET, 0, 1, bits), (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
        rule(numbers[column], [(LOAD, 0, 0, 16 + 8 * index), *tests])
    code.append((RETURN, 0, 0, ENOSYS))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _checked_result(result: int) -> int:
    """The `result` of a call of libc. Raises OSError if the call failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
