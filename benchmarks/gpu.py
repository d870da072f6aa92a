"""What VineJAX does on a GPU, in one command of at most six minutes.

    python benchmarks/gpu.py [--output=FILE]  # decode steps of four shapes, and their limits
    python benchmarks/gpu.py --part=update    # scoring and updating: how busy they keep the card
    python benchmarks/gpu.py --part=train     # ten iterations of configs/alice.py, whose inputs
                                              # are downloaded where they are not there
    python benchmarks/gpu.py --part=correctness  # logits, tokens and gradients beside a CPU's
    python benchmarks/gpu.py --small          # the same code in small, on a CPU too

Each part of `gpu_parts.py` is a process of its own with a limit of time, after which it is stopped;
what it had measured by then is kept. A part that fails or is stopped says so in the result and ends
no other. The result is one JSON file, written anew after every part; a table is printed. On a GPU
a second file has the tiles that XLA chose by trying them on the card, `FILE.autotune.txt`:

    XLA_FLAGS=--xla_gpu_load_autotune_results_from=FILE.autotune.txt \
        python -m vinejax.main --mode=plan ...

compiles on any machine what the card ran. The exit status is 1 if a part failed or a check did not
hold, 2 if there is no device.
"""

import argparse
import datetime
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from vinejax.runtime.workdir import git_revision, write_atomic

MOST = 355.0  # seconds of all parts together
# Call -> its parts, with the most seconds of each, its start and its compilations included.
CALLS = {
    "decode": {
        "paths": 50.0,
        "decode:135m": 75.0,
        "decode:0.5b": 75.0,
        "decode:1.1b": 70.0,
        "decode:7b": 80.0,
    },
    "update": {"update": 300.0},
    "train": {"train": 350.0},
    "correctness": {"correctness": 140.0},
}
SMALL_CALLS = CALLS | {"decode": {"paths": 100.0, "decode:tiny": 200.0}}
PARTS_FILE = Path(__file__).parent / "gpu_parts.py"
COLUMNS = ("part", "figure", "value", "unit", "")
# Fields of a figure that are not what tells it from another of its name.
PLAIN = ("name", "value", "unit", "low", "high", "at_most", "at_least")

Record = dict[str, Any]


def run_part(name: str, folder: Path, seconds: float, options: argparse.Namespace) -> Record:
    """Runs a part, and stops it after `seconds`; its figures, and why it failed if it did."""
    command = [sys.executable, str(PARTS_FILE), name]
    command += [f"--folder={folder}", *(["--small"] if options.small else [])]
    stem = name.replace(":", "_")
    log, begun, failure = folder / f"{stem}.log", time.monotonic(), None
    with log.open("wb") as stream:
        # A session of its own, so that what the part has started is stopped with it.
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment(folder, folder / f"{stem}.autotune"),
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=seconds)
            if status:
                failure = f"exit status {status}: {last_line(log)}"
        except subprocess.TimeoutExpired:
            failure = f"stopped after {seconds:.0f} seconds, its limit"
        finally:
            stop(process)
    return {
        "limit_s": seconds,
        "took_s": round(time.monotonic() - begun, 1),
        "failure": failure,
        **figures_in(folder / f"{stem}.jsonl"),
    }


def environment(folder: Path, tiles: Path) -> dict[str, str]:
    """The variables of a part's process: one GPU, and programs kept between parts.

    XLA writes the tiles that it chose on the card to the file `tiles`.
    """
    own = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "HF_HUB_OFFLINE": "1",
    }
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return os.environ | own | {"JAX_NUM_CPU_DEVICES": "2"}  # the second stands for the CPU
    flags = os.environ.get("XLA_FLAGS", "")
    own["XLA_FLAGS"] = f"{flags} --xla_gpu_dump_autotune_results_to={tiles}".strip()
    own["JAX_PLATFORMS"] = "cuda,cpu"  # the second for the comparison with the CPU
    share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    own["XLA_PYTHON_CLIENT_MEM_FRACTION"] = share
    own["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return os.environ | own


def write_tiles(folder: Path, output: Path) -> Path | None:
    """Joins the files of tiles that the parts left; None if there are none."""
    lines: list[str] = []
    for file in sorted(folder.glob("*.autotune")):
        own = file.read_text(encoding="utf-8").splitlines()
        lines += own if not lines else [line for line in own if not line.startswith("version:")]
    if not lines:
        return None
    joined = output.with_suffix(".autotune.txt")
    write_atomic(epath.Path(joined), "\n".join(lines) + "\n")
    return joined


def stop(process: subprocess.Popen) -> None:
    """Ends the process and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_line(log: Path) -> str:
    """The last line of a process's output that is not empty, where Python says what failed."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no output"


def figures_in(file: Path) -> Record:
    """{'figures': [...]}, with 'record' if the part has one; a cut last line is left out."""
    if not file.exists():
        return {"figures": []}
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    records = [figure["record"] for figure in found if "record" in figure]
    figures = [checked(figure) for figure in found if "record" not in figure]
    return {"figures": figures} | ({"record": records[-1]} if records else {})


def checked(figure: Record) -> Record:
    """The figure, with whether it `holds` if it has a limit.

    What is not finite, as differences after an overflow are, becomes null, and does not hold.
    """
    figure = {
        key: None if isinstance(x, float) and not math.isfinite(x) else x
        for key, x in figure.items()
    }
    value, holds = figure["value"], None
    if "at_most" in figure:
        holds = value is not None and value <= figure["at_most"]
    elif "at_least" in figure:
        holds = value is not None and value >= figure["at_least"]
    return figure if holds is None else figure | {"holds": holds}


def measure(options: argparse.Namespace, folder: Path) -> Record:
    """Runs the parts, and writes the result after each. Raises RuntimeError without a device."""
    end = time.monotonic() + MOST
    result: Record = {
        "commit": git_revision(),
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "parts": {},
    }
    limits = (SMALL_CALLS if options.small else CALLS)[options.part]
    for name, limit in {"machine": 60.0, **limits}.items():
        left = min(limit, end - time.monotonic())
        if left < 1:
            part: Record = {"failure": "not begun: the time of all parts was over", "figures": []}
        else:
            print(f"{name}: at most {left:.0f} s", file=sys.stderr, flush=True)
            part = run_part(name, folder, left, options)
        if name == "machine":
            if "record" not in part:
                raise RuntimeError(f"no device that JAX can use ({part['failure']})")
            result["device"] = part["record"]
            if part["record"]["platform"] == "cpu" and not options.small:
                raise RuntimeError("no GPU: JAX found CPUs alone")
        else:
            result["parts"][name] = part
        write_atomic(
            epath.Path(options.output), json.dumps(result, indent=1, allow_nan=False) + "\n"
        )
    return result


def table(result: Record) -> list[str]:
    """The figures as a Markdown table, and a line on each part that failed."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---|---|"]
    for name, part in result["parts"].items():
        for figure in part["figures"]:
            lines.append(f"| {' | '.join([name, *cells(figure)])} |")
    for name, part in result["parts"].items():
        if part["failure"]:
            lines.append(f"{name} FAILED: {part['failure']}")
    return lines


def cells(figure: Record) -> list[str]:
    """Name with what tells the figure from others, value, unit, and its limit or interval."""
    more = [f"{key} {value}" for key, value in figure.items() if key not in (*PLAIN, "holds")]
    note = ""
    if figure.get("low") is not None and figure.get("high") is not None:
        note = f"{number(figure['low'])} to {number(figure['high'])}"
    for key in ("at_most", "at_least"):
        if key in figure:
            verdict = "holds" if figure["holds"] else "DOES NOT HOLD"
            note = f"{key.replace('_', ' ')} {number(figure[key])}: {verdict}"
    name = ", ".join([figure["name"], *more])
    return [name, number(figure["value"]), figure["unit"], note]


def number(value: float | None) -> str:
    """Three significant digits, or all of a larger number; '-' for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def has_failed(result: Record) -> bool:
    """Whether a part failed, or a check did not hold."""
    parts = result["parts"].values()
    is_off = [not figure.get("holds", True) for part in parts for figure in part["figures"]]
    return any(is_off) or any(part["failure"] for part in parts)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="What VineJAX does on a GPU, in six minutes.")
    parser.add_argument("--part", choices=CALLS, default="decode")
    parser.add_argument("--small", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--output", type=Path, default=Path("gpu.json"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="vinejax_gpu_") as folder:
        try:
            result = measure(options, Path(folder))
        except RuntimeError as error:
            advice = "JAX_PLATFORMS=cpu and --small run the same code on a CPU"
            print(f"gpu.py: error: {error}; {advice}", file=sys.stderr)
            return 2
        tiles = write_tiles(Path(folder), options.output)
    device = result["device"]
    print(f"{device['device']}, driver {device['driver']}, jax {device['jax']}, {result['date']}")
    print("\n".join(table(result)))
    print(f"in full: {options.output}" + (f", tiles: {tiles}" if tiles else ""))
    return int(has_failed(result))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
