"""The program accepts the commands in the docstrings of the generated tasks' configs."""

import ast
import json
import re
import subprocess
import sys

from helpers.paths import CONFIGS, REPO

# Prints the request of each command instead of running it.
PROGRAM = """
import json, os, sys, types

def record(mode):
    return lambda cfg, workdir: print(mode, cfg.data.task, cfg.data.free_steps, cfg.model.path)

for name, function, mode in (
    ("vinejax.training.loop", "train", "train"), ("vinejax.training.warmup", "warm_up", "sft")
):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], function, record(mode))
from vinejax import command, main
for arguments in json.loads(sys.argv[1]):
    if not os.fork():
        sys.argv[1:] = arguments
        main.run()
    assert os.wait()[1] == 0, arguments
"""


def commands(name: str) -> list[list[str]]:
    """The arguments of the commands in a config's docstring."""
    text = ast.get_docstring(ast.parse((CONFIGS / f"{name}.py").read_text("utf-8"))) or ""
    text = text.replace("\\\n", "").replace("[", "").replace("]", "")
    return [line.split() for line in re.findall(r"python -m vinejax.main (.*)", text)]


def test_the_docstrings_say_how_to_run_it_and_how_its_start_was_made():
    names = {"bifurcation": ("12", "None"), "free_order": ("4", "None"), "countdown": ("1", "1")}
    asked = [(name, i, x) for name in names for i, x in enumerate(commands(name))]
    given = json.dumps([arguments for _, _, arguments in asked])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given], cwd=REPO, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    for (name, i, _), line in zip(asked, done.stdout.splitlines(), strict=True):
        mode, task, number, *path = line.split()
        assert (mode, number) == ("sft" if i else "train", names[name][i > 0])
        assert task == f"vinejax.tasks.{name}"
        assert path == [[f"configs/{name}_start"], [], ["runs/first/warmup"]][i]
    assert [sum(name == x for x, *_ in asked) >= 2 for name in names] == [True] * 3
