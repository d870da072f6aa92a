"""The program that runs a solution in any sandbox, and the encoding of values on its pipes.

The program starts from this text by `python -c`, or in a process that `child.py` forked, so it
imports nothing of the package. Descriptor 0 has the length of the job in ten digits, then the job
as a JSON object, then the solution's own standard input. A job has `source`, `limits`, `calls` and
`alarm_s`, the seconds after which the program ends itself. The last two may be null.

With calls, descriptor 1 gets a line of JSON per call and nothing that the solution prints. Without
calls it gets what the solution prints. The process outside the sandbox does not trust this output,
but compares it with the expected values.
"""

import atexit
import builtins
import itertools
import json
import math
import os
import resource
import signal
import sys
import threading
import types

HEADER = 10  # number of digits of a length
MOST_ITEMS = 10**6  # largest number of items taken from an iterator
DEPTH = 6 * 10**5  # limit of recursion, the largest of the public harnesses
SHORT = 10_000  # number of bits of an integer that every Python reads as decimal digits
# Names that solutions of problems like LeetCode's, in which functions are called, do not import.
PRELUDE = """
from typing import *
from collections import *
from functools import *
from itertools import *
from heapq import *
from bisect import *
from math import *
from builtins import pow
import bisect, collections, functools, heapq, itertools, math, random, re, string, sys
"""


def main():
    """Reads the job from descriptor 0 and runs it as the module `__main__`."""
    job = json.loads(read(0, int(read(0, HEADER))))
    for name, value in job["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # A program may raise its stack, as many do; the memory stays limited.
        resource.setrlimit(kind, (value, hard if name == "RLIMIT_STACK" else value))
    if job["alarm_s"]:
        # The first process of a container ignores a signal without a handler.
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        signal.setitimer(signal.ITIMER_REAL, job["alarm_s"])
    calls, answers = job["calls"], os.dup(1)
    if calls is not None:
        os.dup2(2, 1)
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv[:] = ["solution.py"]
    sys.setrecursionlimit(DEPTH)
    if hasattr(sys, "set_int_max_str_digits"):  # integers of any length can be printed and read
        sys.set_int_max_str_digits(0)
    builtins.exit = builtins.quit = sys.exit  # -S leaves them out
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    scope = module.__dict__
    if calls is None:
        os.close(answers)
        exec(compile(job["source"], "solution.py", "exec"), scope)
        return
    scope["__name__"] = "solution"
    sys.modules["solution"] = module  # where dataclasses look up annotations that are texts
    given = {}
    exec(PRELUDE, given)
    # What the program itself has not defined is not among its functions.
    scope["__builtins__"] = {**vars(builtins), **given}
    exec(compile(job["source"], "solution.py", "exec"), scope)
    for name, arguments in calls:
        write(answers, f"{reply_of(scope, name, decode(arguments))}\n".encode())


def read(descriptor, size):
    """Exactly `size` bytes from a descriptor. Raises EOFError if there are fewer."""
    parts = []
    while size:
        part = os.read(descriptor, size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write(descriptor, data):
    """Writes all bytes of `data`."""
    while data:
        data = data[os.write(descriptor, data) :]


def reply_of(scope, name, arguments):
    """The JSON of an object with the 'value' or the 'error' of a call of the function `name`."""
    try:
        positional, named = arguments
        return json.dumps({"value": encode(called(scope, name)(*positional, **named))})
    except BaseException as error:  # also SystemExit
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:300]})


def called(scope, name):
    """The function `name` in `scope`, or else the method `name` of the class `Solution` there."""
    if name in scope:
        return scope[name]
    solution = scope.get("Solution")
    if not hasattr(solution, name):
        raise NameError(f"the program has no function {name!r}")
    return getattr(solution(), name)


def encode(value):
    """A value as JSON data. A dict with one key stands for a value of a type that JSON lacks."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        value = int(value)
        return value if value.bit_length() <= SHORT else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(entry)] for key, entry in value.items()]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            items = [encode(item) for item in value]
            return items if kind is list else {kind.__name__: items}
    if hasattr(value, "__iter__"):
        return {"iter": [encode(item) for item in itertools.islice(value, MOST_ITEMS)]}
    return {"other": repr(value)[:300]}


def decode(data):
    """The value that `encode` turned into `data`, made of built-in types only.

    An iterable becomes an iterator. An object of an unknown type becomes an object that equals no
    other object. Raises ValueError or TypeError for data that `encode` does not make.
    """
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, items),) = data.items()
    if kind == "dict":
        return {decode(key): decode(entry) for key, entry in items}
    if kind == "complex":
        return complex(*(decode(part) for part in items))
    if kind in ("tuple", "set", "frozenset", "iter"):
        make = {"tuple": tuple, "set": set, "frozenset": frozenset, "iter": iter}[kind]
        return make(decode(items))
    if kind == "int":
        return int(items, 16)
    return {"float": float, "bytes": bytes.fromhex, "other": lambda _: object()}[kind](items)


def finish(status):
    """Ends a forked process as an interpreter would: joins threads, calls exit functions, flushes.

    Without this, `os._exit` would lose output that is not flushed. A normal exit would be slow,
    because it finalizes the interpreter.
    """
    try:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.__stdout__, sys.__stderr__):
            if stream and not stream.closed:
                stream.flush()
    except BaseException:
        status = 1
    os._exit(status)


if __name__ == "__main__":
    main()
