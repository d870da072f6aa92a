"""The process that forks a confined process per solution, run as `python -s -S -B child.py`.

It imports no package beyond the standard library, because a solution inherits its memory. A
request on standard input is ten digits of a time limit in milliseconds, ten digits of a length, and
a message for `runner.py`. The reply is ten digits of a length and a JSON object. The first reply
says that the process is ready, or why it cannot confine solutions.
"""

import importlib
import json
import os
import platform
import random
import select
import signal
import sys
import sysconfig
import time
import traceback

import kernel  # pyright: ignore[reportMissingImports]
import runner  # pyright: ignore[reportMissingImports]

OUTPUT = 4 * 2**20  # largest number of bytes of standard output, and of standard error
MOST_THREADS = 64  # largest number of threads of a solution
POLL_S = 0.02  # time between two checks of a solution
# Modules that are imported before the fork, because solutions often use them, or because they need
# libraries from outside the folder of the standard library.
WARM = """array ast bisect collections copy ctypes dataclasses datetime decimal enum fractions
functools hashlib heapq itertools math numbers operator queue random re statistics string
threading time typing bz2 lzma zlib sqlite3 unicodedata uuid"""


def main():
    """Answers requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process of the pool handles Ctrl-C
    requests, replies = os.dup(0), os.dup(1)
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    os.closerange(replies + 1, replies + 16)
    try:
        for name in WARM.split():
            try:
                importlib.import_module(name)
            except ImportError:
                pass  # an interpreter may be built without it
        library = sysconfig.get_path("stdlib")
        sys.path[:] = [path for path in sys.path if path.startswith(library)]
        files, folders, listed = readable_paths(library)
        rules = kernel.ruleset(files, folders, listed)
        kernel.seccomp_filter(platform.machine())  # once, before every fork
    except OSError as error:
        send(replies, {"fatal": f"{error.strerror or error}"})
        return
    send(replies, {"ready": True})
    while True:
        try:
            limit_s = int(runner.read(requests, runner.HEADER)) / 1000
            message = runner.read(requests, int(runner.read(requests, runner.HEADER)))
        except EOFError:
            return
        send(replies, run(message, limit_s, requests, rules, library))


def readable_paths(library):
    """The paths that a solution may use: (files to read, folders to read, folders only to list).

    All belong to the standard library, whose folder is `library`. The third entry has this folder
    alone. Installed packages are left out.
    """
    inside = [
        entry.path
        for entry in os.scandir(library)
        if entry.name not in ("site-packages", "dist-packages")
    ]
    folders = [path for path in inside if os.path.isdir(path)]
    return [path for path in inside if os.path.isfile(path)], folders, [library]


def send(replies, reply):
    """Writes the length of a reply, and then the reply, to the descriptor `replies`."""
    data = json.dumps(reply).encode()
    runner.write(replies, b"%010d" % len(data) + data)


def run(message, limit_s, requests, rules, library):
    """Runs the job in a message, in a process of its own.

    Returns {'status', 'out', 'err', 'seconds'}; the last one is the CPU time of the process.

    `status` is 'ok', 'timeout', 'threads' (there were more than MOST_THREADS) or 'exit N', where N
    is negative for a signal. The process of the job has ended when this function returns.
    """
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    with open(files[0], "wb", closefd=False) as stdin:
        stdin.write(message)
    os.lseek(files[0], 0, os.SEEK_SET)
    parent = os.getpid()
    process = os.fork()
    if not process:
        be_solution(files, parent, rules, library)
    watched = os.pidfd_open(process)
    status = watch(process, watched, requests, time.monotonic() + limit_s)
    _, code, used = os.wait4(process, 0)
    exit_code = os.waitstatus_to_exitcode(code)
    if status == "ok" and exit_code:
        status = f"exit {exit_code}"
    out, err = [os.pread(file, OUTPUT, 0).decode("utf-8", "replace") for file in files[1:]]
    for descriptor in (watched, *files):
        os.close(descriptor)
    seconds = used.ru_utime + used.ru_stime
    return {"status": status, "out": out, "err": err[-2000:], "seconds": seconds}


def watch(process, watched, requests, deadline):
    """Waits until `process` ends, and returns 'ok', 'timeout' or 'threads'.

    Kills `process` if it runs beyond `deadline` or has too many threads. `watched` is its pidfd.
    If the sender of `requests` has died, the calling process exits, and `process` dies with it.
    """
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(requests, 0)  # for POLLHUP, which needs no flag
    status = "ok"
    while not (ready := dict(poll.poll(1000 * POLL_S))).get(watched):
        if ready:
            os._exit(1)
        try:
            threads = os.stat(f"/proc/{process}/task").st_nlink - 2
        except OSError:
            threads = 0
        if time.monotonic() > deadline or threads > MOST_THREADS:
            status = "threads" if threads > MOST_THREADS else "timeout"
            os.kill(process, signal.SIGKILL)
    return status


def be_solution(files, parent, rules, library):
    """Confines this process, which was forked for a solution, and runs the solution. Never returns.

    `files` become the descriptors 0 to 2; the first has the message for `runner.py`. `parent` is
    the id of the process that forked this one. `rules` and `library` go to `kernel.confine`.
    """
    status = 1
    try:
        os.setsid()
        for descriptor, file in enumerate(files):
            os.dup2(file, descriptor)
        kernel.confine(rules, library)
        if os.getppid() != parent:  # the parent died before this process was tied to it
            os._exit(1)
        os.closerange(3, 64)
        os.environ.clear()
        random.seed(0)  # so that a repeated run has the same verdict
        runner.main()
        status = 0
    except SystemExit as ended:
        code = ended.code
        status = code if isinstance(code, int) else 0 if code is None else 1
    except RecursionError as error:  # to walk its calls would take a second
        print(*traceback.format_exception_only(error), file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    runner.finish(status)


if __name__ == "__main__":
    main()
