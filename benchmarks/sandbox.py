"""What the sandbox costs per program.

    python benchmarks/sandbox.py

Prints the milliseconds of a core and of the clock per program, for one that reads its input and for
one whose function is called.
"""

import argparse
import resource
import time
from collections.abc import Callable

from vinejax.contrib.code.sandbox.runner import encode
from vinejax.contrib.code.sandbox.sandbox import Sandbox
from vinejax.contrib.code.settings import CodeConfig


def core_seconds() -> float:
    """Seconds of a core that ended child processes took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(name: str, count: int, run: Callable[[Sandbox], object]) -> None:
    """Prints the costs of a program, less those of a sandbox that runs one."""
    costs = []
    for number in (1, 1 + count):
        core, clock = core_seconds(), time.monotonic()
        with Sandbox(CodeConfig(), workers=1) as sandbox:
            for _ in range(number):
                run(sandbox)
        costs.append((core_seconds() - core, time.monotonic() - clock))
    core, clock = (1000 * (b - a) / count for a, b in zip(*costs, strict=True))
    print(
        f"{name}: {core:.1f} ms of a core, {clock:.1f} ms; {1000 / core:.0f} per second of a core"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args().count
    measure("reads its input", count, lambda box: box.run("print(int(input()) + 1)", "41"))
    calls = [("f", encode(([41], {})))]
    measure("is called", count, lambda box: box.run("def f(x): return x + 1", calls=calls))


if __name__ == "__main__":
    main()
