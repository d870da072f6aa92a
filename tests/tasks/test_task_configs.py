"""The commands in the docstrings of the generated tasks' configs: that the program takes them."""

import ast
import re
import subprocess
import sys

import pytest
from helpers.paths import CONFIGS, REPO

# Prints what the command asks for, instead of doing it.
PROGRAM = """
import sys, types

def record(mode):
    return lambda cfg, workdir: print(mode, cfg.data.task, cfg.data.free_steps, cfg.model.path)

for name, function, mode in (
    ("vinejax.training.loop", "train", "train"), ("vinejax.training.warmup", "warm_up", "sft")
):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], function, record(mode))
from vinejax import main
main.run()
"""


@pytest.mark.parametrize(
    "name, free_steps, of_the_start",
    [("bifurcation", "12", "None"), ("free_order", "4", "None"), ("countdown", "1", "1")],
)
def test_the_docstring_says_how_to_run_it_and_how_its_start_was_made(
    name: str, free_steps: str, of_the_start: str
):
    text = ast.get_docstring(ast.parse((CONFIGS / f"{name}.py").read_text("utf-8"))) or ""
    text = text.replace("\\\n", "").replace("[", "").replace("]", "")
    commands = [line.split() for line in re.findall(r"python -m vinejax.main (.*)", text)]
    assert len(commands) >= 2
    for i, arguments in enumerate(commands):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=REPO, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        mode, task, number, *path = done.stdout.split()
        expected = ("sft", of_the_start) if i else ("train", free_steps)
        assert (mode, task, number) == (expected[0], f"vinejax.tasks.{name}", expected[1])
        starts = [[f"configs/{name}_start"], [], ["runs/first/warmup"]]
        assert path == starts[i]
