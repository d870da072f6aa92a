"""Probes of a sandbox: a program in the sandbox tries to do harm, and we check whether it can."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from vinejax.contrib.code.sandbox.pool import Outcome

# A program that tries every kind of harm, and prints those results that only it can see.
PROGRAM = """
import json, os, signal, socket
aim, seen = json.loads(input()), {}

def attempt(name, act):
    try:
        seen[name] = act()
    except BaseException:
        pass

def fork():
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
    return True

def datagram():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", aim["udp"]))

attempt("read", lambda: open(aim["secret"]).read())
attempt("write", lambda: open(aim["target"], "w").write("x"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", aim["tcp"]), 1) and None)
attempt("datagram", datagram)
attempt("fork", fork)
attempt("kill", lambda: os.kill(aim["victim"], signal.SIGKILL))
attempt("memory", lambda: len(bytearray(aim["bytes"])))
print(json.dumps(seen))
"""


def first_success(run: Callable[..., Outcome], memory_mb: int, is_kernel: bool) -> str:
    """A description of the first harm that a program in the sandbox could do; '' if none.

    The failure of a harmless program is described, too. `is_kernel` says whether the sandbox is
    'kernel', the only one in which a fork counts as harm.
    """
    plain = run("print(6 * 7)")
    if plain.out.split() != ["42"] or plain.status != "ok":
        said = (plain.err.strip().splitlines() or [plain.status])[-1]
        return f"a program that prints 42 does not run in it ({said:.200})"
    secret = secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        subprocess.Popen(
            [sys.executable, "-S", "-c", "input()"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as victim,
    ):
        receiver.bind(("127.0.0.1", 0))
        server.setblocking(False)
        receiver.setblocking(False)
        paths = [Path(folder, name) for name in ("secret", "target")]
        os.chmod(folder, 0o755)  # so that only the sandbox forbids access
        for path in paths:
            path.write_text(secret, encoding="ascii")
            path.chmod(0o666)
        aim = {
            "secret": str(paths[0]),
            "target": str(paths[1]),
            "tcp": server.getsockname()[1],
            "udp": receiver.getsockname()[1],
            "victim": victim.pid,
            "bytes": memory_mb * 2**20,
        }
        outcome = run(PROGRAM, json.dumps(aim))
        try:
            seen = json.loads(outcome.out)
        except ValueError:
            return f"its probes did not end ({outcome.status})"
        done = {
            "read a file outside it": seen.get("read") == secret,
            "write a file outside it": paths[1].read_text(encoding="utf-8") != secret,
            "open a connection": _has(lambda: server.accept()[0].close()),
            "send a datagram": _has(lambda: receiver.recv(1)),
            "start a process": is_kernel and "fork" in seen,
            "kill a process outside it": "kill" in seen and _ends(victim),
            "take more memory than grader.memory_mb": "memory" in seen,
        }
        victim.kill()
    could = [what for what, is_done in done.items() if is_done]
    return f"a probe could {could[0]}" if could else ""


def _ends(victim: subprocess.Popen) -> bool:
    """Whether `victim`, a process that may have got a signal, ends within 5 seconds."""
    try:
        victim.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return False
    return True


def _has(take: Callable[[], object]) -> bool:
    try:
        take()
    except BlockingIOError:
        return False
    return True
