"""The command line in a process that has imported it once, and stand-ins for what it calls."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Protocol

import pytest

CONFIG = """
from vinejax.config import default

STEPS = 5

def get_config(variant="small"):
    config = default()
    config.iterations = STEPS
    config.values.k = {"small": 2, "large": 9}[variant]
    config.eval.problems = 100
    return config
"""

# Stands in for the modules that do the work, which need not exist for these tests.
FAKES = """
import sys, types

def record(mode):
    def call(cfg, workdir, **options):
        print(mode, workdir, cfg.iterations, cfg.values.k, cfg.ppo.clip, cfg.eval.problems,
              cfg.resume, cfg.sample.stop, *options.values())
    return call

for name, function, mode in [
    ("vinejax.training.loop", "train", "train"),
    ("vinejax.training.evaluate", "evaluate_run", "eval"),
    ("vinejax.training.warmup", "warm_up", "sft"),
    ("vinejax.training.export", "export_run", "export"),
]:
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], function, record(mode))
"""
RUN = "\nfrom vinejax import main\nmain.run()\n"
# Imports what the command does at its start, once, and forks for each line of its standard input.
# A mode's own modules are not among them: the child imports those, or fakes.
FORKS = """
import gc, json, os, sys
from vinejax import command
assert not {module for module, _ in command.MODES.values()} - {"vinejax.config.describe"} & set(
    sys.modules
)
gc.freeze()  # else a child ends by looking through all objects
for line in sys.stdin:
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
folder, files, program, arguments = json.loads(line)
os.chdir(folder)
for number, file in enumerate(files):
    os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
sys.argv[1:] = arguments
exec(program, {"__name__": "__main__"})
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "mine.py").write_text(CONFIG)
    return tmp_path


@pytest.fixture(scope="module")
def _forks() -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:
        yield process


class Command(Protocol):
    def __call__(self, *arguments: str, setup: str = FAKES) -> tuple[int, str, str]: ...


@pytest.fixture
def command(_forks: subprocess.Popen, folder: pathlib.Path) -> Command:
    """Runs the program in `folder`, with `setup` before it: status, standard output and error."""

    def run(*arguments: str, setup: str = FAKES) -> tuple[int, str, str]:
        out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
        request = str(folder), [os.devnull, str(out), str(err)], setup + RUN, arguments
        assert _forks.stdin and _forks.stdout
        print(json.dumps(request), file=_forks.stdin, flush=True)
        return int(_forks.stdout.readline()), out.read_text(), err.read_text()

    return run
