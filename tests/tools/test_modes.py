"""The command line's modes that are tools: what they get, and what the trainer asks tools for."""

import pathlib

import pytest
from helpers.command_line import CONFIG, FAKES, Command

PROPOSED = """
def with_row_for_devices(cfg):
    return dataclasses.replace(cfg, iterations=100 + len(cfg.meshes))

import dataclasses
sys.modules["vinejax.tools.plan.propose"] = types.ModuleType("vinejax.tools.plan.propose")
sys.modules["vinejax.tools.plan.propose"].with_row_for_devices = with_row_for_devices
"""


@pytest.mark.parametrize(("mode", "iterations"), [("train", "101"), ("eval", "101")])
def test_a_table_of_meshes_may_get_a_row_for_the_devices(
    folder: pathlib.Path, command: Command, mode: str, iterations: str
):
    text = CONFIG.replace(
        "return config", "config.meshes['v5e:2x4'] = dict(fsdp=8)\n    return config"
    )
    (folder / "table.py").write_text(text)
    status, out, err = command("--config=table.py", f"--mode={mode}", setup=FAKES + PROPOSED)
    assert (status, out.split()[:3], err) == (0, [mode, "runs/table", iterations], "")


def test_a_report_is_made_anew_for_one_run(folder: pathlib.Path, command: Command):
    (folder / "run").mkdir()
    fake = """
import sys, types
sys.modules["vinejax.tools.report.build"] = module = types.ModuleType("build")
module.build_report = lambda run: run + "/report.html"
sys.modules["vinejax.tools.report.summary_line"] = standing = types.ModuleType("standing")
standing.standing_line = lambda run: f"Finished: {run.name}"
"""
    status, _, err = command("--mode=report", "run", setup=fake)
    assert status == 2 and "--mode=report RUN needs the workdir of one run, not run" in err
    (folder / "run" / "config.json").write_text('{"model_type": "llama"}')  # of an export
    assert command("--mode=report", "run", setup=fake)[0] == 2
    (folder / "run" / "config.json").write_text("{}")
    assert command("--mode=report", "run", setup=fake) == (
        0,
        "report: run/report.html\nFinished: run\n",
        "",
    )
    assert command("--mode=report", setup=fake)[0] == 2
    assert command("--mode=report", "run", "--config=mine.py", setup=fake)[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "https://host/run"],
        ["vine", "https://host/run", "s0-3"],
        ["compare", "run", "https://host/run"],
        ["compare", "run", "other", "--workdir=https://host/run"],
    ],
)
def test_addresses_are_no_workdirs(command: Command, arguments: list[str]):
    status, _, err = command(f"--mode={arguments[0]}", *arguments[1:])
    line = "vinejax: error: https://host/run: no folder is at https://; give a path on this machine"
    assert status == 2 and err.startswith(line) and err.count("\n") == 1


def test_a_figure_needs_a_run_and_a_name(folder: pathlib.Path, command: Command):
    (folder / "run/episodes").mkdir(parents=True)
    status, _, err = command("--mode=vine", "run")
    assert status == 2 and "--mode=vine needs a workdir and the name of a solution" in err
    status, _, err = command("--mode=vine", "run", "s0-3")
    assert status == 2 and err.startswith("vinejax: error: s0-3: no line 3 (from 0) in ")


SETS = """
sys.modules["vinejax.tools.sets.sets_mode"] = module = types.ModuleType("sets_mode")
module.evaluate_sets = lambda cfg, workdir, sets: print("sets", workdir, sets)
"""


def test_an_evaluation_of_sets(command: Command):
    given = ("--config=mine.py", "--sets=gsm8k,svamp=x.jsonl")
    run = command(*given, "--mode=eval", setup=FAKES + SETS)
    assert run == (0, "sets runs/mine gsm8k,svamp=x.jsonl\n", "")
    status, _, err = command(*given, setup=FAKES + SETS)
    assert status == 2 and "--sets is for --mode=eval, not --mode=train; leave it out" in err
    gone = FAKES + "sys.modules['vinejax.tools.sets.sets_mode'] = None\n"
    status, _, err = command(*given, "--mode=eval", setup=gone)
    assert status == 2 and "--mode=eval --sets needs vinejax/tools, which is not there" in err
    status, _, err = command("--config=mine.py", "--mode=eval --sets")
    assert status == 2 and "train|eval|sft" in err


def test_a_push_takes_the_export_with_it(folder: pathlib.Path, command: Command):
    fake = (
        FAKES
        + """
sys.modules["vinejax.tools.hub.push_mode"] = types.ModuleType("push_mode")
sys.modules["vinejax.tools.hub.push_mode"].export_and_push = record("push")
"""
    )
    status, out, err = command("--config=mine.py", "--mode=export", "--push=org/name", setup=fake)
    assert (status, out.split()[-2:], err) == (0, ["best", "org/name"], "")
    assert out.startswith("push runs/mine")
    status, _, err = command("--config=mine.py", "--push=org/name", setup=fake)
    assert status == 2 and "--push is for --mode=export, not --mode=train; leave it out" in err
