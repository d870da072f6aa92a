"""Tests the command line: its errors, and the configuration that it passes on."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from helpers.command_line import CONFIG, FAKES, Command
from helpers.paths import CONFIGS

from vinejax import __version__
from vinejax.config.describe import describe, print_config
from vinejax.config.load import field_names
from vinejax.core.sections import Section
from vinejax.core.settings import Config
from vinejax.methods.known import METHODS

GRPO = CONFIGS / "tiny_grpo.py"
OWN_METHOD = """
from vinejax.core.sections import MethodSettings
from vinejax.methods.base import Method

class OwnConfig(MethodSettings, section="own"):
    share: float = 1.0

METHOD = Method(None, settings=OwnConfig, reads=("values",))
"""


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ([], "train runs/mine 5 2 0.2 100 True ()"),
        (["--mode=eval", "--workdir=there"], "eval there 5 2 0.2 100 True ()"),
        (["--mode=sft", "--config.values.k=4"], "sft runs/mine 5 4 0.2 100 True ()"),
        (["--mode=export"], "export runs/mine 5 2 0.2 100 True () best"),
        (["--mode=export", "--policy=last"], "export runs/mine 5 2 0.2 100 True () last"),
        (["--config.ppo.clip", "0.1", "--noconfig.resume"], "train runs/mine 5 2 0.1 100 False ()"),
        (["--config.eval.problems=none"], "train runs/mine 5 2 0.2 None True ()"),
        (["--config.eval.problems=7", "--config.ppo.clip=1"], "train runs/mine 5 2 1.0 7 True ()"),
        (["--config.sample.stop=('a','b')"], "train runs/mine 5 2 0.2 100 True ('a', 'b')"),
    ],
)
def test_dispatch(command: Command, arguments: list[str], output: str):
    status, out, err = command("--config=mine.py", *arguments)
    assert (status, out.strip(), err) == (0, output, "")


def test_argument_of_the_config_file(command: Command):
    status, out, _ = command("--config=mine.py:large")
    assert (status, out.split()[1], out.split()[3]) == (0, "runs/mine_large", "9")


@pytest.mark.parametrize("between", ["=", " "])
def test_settings_of_an_own_method(folder: pathlib.Path, command: Command, between: str):
    (folder / "own.py").write_text(OWN_METHOD)
    text = f"--config.method{between}own --config.own.share{between}0.5"
    status, out, err = command("--config=mine.py", "--mode=config", *text.split())
    assert (status, err, out.splitlines()[-1]) == (0, "", "own.share = 0.5  # default 1.0")


def test_each_run_of_the_paper_has_a_workdir(command: Command):
    for name, workdir in (
        ("paper.py:rho,gsm8k,dpo_positive", "runs/paper_rho_gsm8k_dpo_positive"),
        ("paper.py:rho,math,ppo", "runs/paper_rho_math_ppo"),
    ):
        status, out, err = command(f"--config={CONFIGS / name}", "--config.iterations=7")
        assert (status, out.split()[:3], err) == (0, ["train", workdir, "7"], "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config is missing"),
        (["--config=nope.py"], "--config=nope.py: no such file"),
        (["--config=nope.py", "--config.ppo.clip=0.1"], "--config=nope.py: no such file"),
        (["--config=."], "--config=.: is a folder, not a file; see configs/"),
        (["--config=mine.py:tiny"], "mine.py:9: KeyError: 'tiny'"),
        (["--config=mine.py", "--config.ppo.clpi=0.1"], "ppo.clpi: no such field; .* ppo.clip$"),
        (["--config=mine.py", "--config.clip=0.1"], "clip: no such .* ppo.clip, critic.clip$"),
        (["--config=mine.py", "--config.learning_rate=1"], "are optimizer.learning_rate, sft.lear"),
        (["--config.ppo.clip=0.1"], "--config.ppo.clip needs the configuration .* --config=conf"),
        (["--config=mine.py", "--mode=eval", "--policy=last"], "--policy is for --mode=export"),
        (["--config=mine.py", "--config.ppo.clip=abc"], "--config.ppo.clip=abc: must be a number$"),
        (["--config=mine.py", "--config.values.k=1.5"], "values.k=1.5: must be a whole number$"),
        (["--config=mine.py", "--config.values.k=none"], "values.k = None: must be of type int"),
        (["--config=mine.py", "--config.ppo.clip=none"], "ppo.clip = None: must be of type float"),
        (["--config=mine.py", "--config.sample.stop=(1,)"], "sample.stop = 1: must be of type str"),
        (["--config=mine.py", "--config.values.k=0"], "values.k = 0: must be at least 1"),
        (["--config=mine.py:large", "--config.method=grpo"], "values.k = 9: is read by method ="),
        ([f"--config={GRPO}", "--config.values.k=9"], "values.k = 9: .* 'grpo'; leave it out"),
        ([f"--config={CONFIGS / 'paper.py'}"], "'' is none of rho, deepseek; name model, task"),
        ([f"--config={CONFIGS / 'paper.py'}:rho,maths,ppo"], "'maths' is none of math, gsm8k; "),
        ([f"--config={CONFIGS / 'paper.py'}:rho,math,pppo"], "'pppo' is none of vineppo, ppo, gr"),
        ([f"--config={CONFIGS / 'paper.py'}:rho,math"], "'' is none of vineppo, ppo"),
        ([f"--config={CONFIGS / 'tiny.py'}:ppo"], "tiny.py: .* takes no argument; leave out :ppo"),
        (["--config=mine.py", "--config.ppo.packing=2"], "packing=2: must be true or false$"),
        (["--help=ppo.clpi"], "ppo.clpi: no such field; the nearest one is ppo.clip$"),
        (["--config=mine.py", "--config.lr=1"], "lr: no such field; vinejax --help lists all$"),
        (["--help=values.K"], "values.K: no such field; the nearest one is values.k$"),
        (["--help=ppo.lambda_"], "ppo.lambda_: no such field; there is credit.lambda_$"),
        (["--help=eval.max_tokens"], "eval.max_tokens: no such field; there is sample.max_tokens$"),
        (["--help=kl.beta"], "kl.beta: no such field; kl has coef, place, reduction, target, hor"),
        (["--config=mine.py", "--config.data=x"], "data: is a group .*such as data.task; .*--help"),
        (["--help=ppo.clip.low"], "ppo.clip.low: no such field; the nearest one is ppo.clip$"),
        (["--config=mine.py", "--workdri=x"], "flag 'workdri'. Did you mean: workdir"),
        (["--config=mine.py", "--mode=trian"], "--mode=trian: .*train"),
        (["--config=mine.py", "configs/other.py"], "unexpected argument 'configs/other.py'"),
        (["--config=mine.py", "--flagfile=nope"], "flagfile"),
    ],
)
def test_mistakes_are_one_line(
    folder: pathlib.Path, command: Command, arguments: list[str], message: str
):
    status, out, err = command(*arguments, setup="")  # the modules are the real ones
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("vinejax: error: ")
    assert re.search(message, err)
    assert [path.name for path in folder.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "bad.py: defines no get_config()"),
        ("def get_config(:\n", "bad.py: SyntaxError"),
        ("import does_not_exist\n", "bad.py:1: ModuleNotFoundError"),
        ("def get_config():\n    exit()\n", "bad.py:2: SystemExit"),
        ("def get_config():\n    return 3\n", "bad.py: get_config() must return"),
        (
            "def get_config():\n    x = 1\n    raise OSError('two\\nlines')\n",
            "bad.py:3: OSError: two l",
        ),
        (
            CONFIG.replace("= STEPS", "= 'five'"),
            "bad.py:8: TypeError: iterations = 'five': must be of type int",
        ),
        (
            CONFIG.replace("config.iterations = STEPS", "config.values = 3"),
            "bad.py:8: TypeError: values = 3: must be a group of fields",
        ),
        (CONFIG.replace("config.iterations", "config.iteration"), "nearest one is iterations"),
    ],
)
def test_broken_config_files_are_one_line(
    folder: pathlib.Path, command: Command, text: str, message: str
):
    (folder / "bad.py").write_text(text)
    status, out, err = command("--config=bad.py")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and message in err


def test_errors_for_people_and_bugs_differ(command: Command):
    def outcome(statement: str) -> tuple[int, str, str]:
        fail = f"def fail(cfg, workdir):\n    {statement}\n"
        fail += "sys.modules['vinejax.training.loop'].train = fail\n"
        return command("--config=mine.py", setup=FAKES + fail)

    mistake = outcome(
        "from vinejax.core import errors; raise errors.DataError('a.jsonl', 3, 'bad')"
    )
    assert mistake == (2, "", "vinejax: error: a.jsonl:3: bad\n")
    for name in ("RoomError", "DivergedError"):  # a ValueError and a FloatingPointError in Python
        status, _, err = outcome(
            f"from vinejax.core import errors; raise errors.{name}('one line')"
        )
        assert (status, err) == (2, "vinejax: error: one line\n")
    assert outcome("raise KeyboardInterrupt")[0] == 130
    status, _, err = outcome("1 / 0")
    assert status == 1 and err.startswith("Traceback") and "ZeroDivisionError" in err


def test_an_interrupt_is_not_lost_where_exceptions_are(folder: pathlib.Path):
    """Python ignores exceptions in a callback of the garbage collector; jax has one."""
    code = """
import gc, signal, sys, types
from vinejax import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background ignores it

def run():
    gc.callbacks.append(lambda *_: signal.raise_signal(signal.SIGINT))
    gc.collect()
    print("went on")

sys.modules["vinejax.command"] = types.SimpleNamespace(run=run)
main.run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    line = "vinejax: interrupted; the same command does it again\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", line)


def test_help_names_the_options_and_ends_well(folder: pathlib.Path):
    done = subprocess.run(
        [sys.executable, "-m", "vinejax.main", "--help"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
    assert all(option in done.stdout for option in ("--config", "--workdir", "--mode"))
    named = set(re.findall(r"[a-z0-9_+]+", done.stdout.partition("methods ")[2]))
    assert set(METHODS) <= named
    assert {name.rpartition(".")[2] for name in field_names()} <= named
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_reader_that_has_gone_is_no_error(folder: pathlib.Path):
    """`vinejax --help | head -1` closes the output early."""
    read, write = os.pipe()
    os.close(read)
    asked = [sys.executable, "-m", "vinejax.main", "--help"]
    done = subprocess.run(asked, cwd=folder, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_on_a_field_has_its_type_default_and_meaning(command: Command):
    status, out, _ = command("--help", "values.k")
    assert (status, out) == (
        0,
        "values.k = 9\n    int, must be at least 1\n    continuations per state\n",
    )
    assert command("--config=mine.py", "--help=values.k")[1] == out
    section = command("--help", "dpo")[1]
    assert {f"dpo.{name} = " for name in ("pairs", "beta")} <= set(
        re.findall(r"dpo.\w+ = ", section)
    )


def test_every_field_can_be_described():
    for name in field_names():
        first, kind, *_ = describe(name).split("\n")
        assert first.startswith(f"{name} = ") and kind.startswith("    ") and "<" not in kind, name
        assert all(part.startswith("must ") for part in kind.split(", ")[1:2]), "a range, no error"


def test_a_comment_within_the_lines_of_a_field_is_its_meaning():
    assert " ".join(describe("probe.lam").split()).endswith("of a step; 1: the return")


def test_both_ends_of_a_range_are_described():
    _, kind, *_ = describe("distributed.port").split("\n")
    assert kind.strip() == "int, must be at least 1; must be at most 65535"


def test_mode_config_prints_what_the_run_would_use(folder: pathlib.Path, command: Command):
    changes = ("--config.ppo.clip=0.1", "--config.ppo.correction_max=none")
    status, out, err = command("--config=mine.py", "--mode=config", *changes)
    lines = out.splitlines()
    assert (status, err) == (0, "") and len(lines) > 100
    assert "ppo.clip = 0.1  # default 0.2" in lines and "ppo.gamma = 1.0" in lines
    assert "ppo.whiten = 'iteration'  # default 'method'" in lines
    assert "ppo.correction_max = None  # default 3.0" in lines
    assert [path.name for path in folder.iterdir()] == ["mine.py"]


def test_mode_config_prints_settings_of_accessories(capsys: pytest.CaptureFixture[str]):
    class Settings(Section, section="accessory"):
        share: float = 1.0
        every: int = 5

    print_config(Config(sections={"accessory": Settings(share=0.5)}), workdir="")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["accessory.share = 0.5  # default 1.0", "accessory.every = 5"]


def test_version(folder: pathlib.Path, command: Command):
    """The command `vinejax`, which calls `run`, prints the version, too."""
    program = [sys.executable, "-m", "vinejax", "--version"]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vinejax {__version__}\n", "")
    assert command("--version", setup="") == (0, done.stdout, "")
