"""VinePPO in JAX, from the command line.

    vinejax --config=configs/tiny.py [--workdir=DIR]
            [--mode=train|eval|sft|export|doctor|credit|plan|serve|config]
            [--config.ppo.clip=0.1 ...]
    vinejax --config=configs/tiny.py --mode=eval --sets=gsm8k,aime24=FILE [--workdir=DIR]
    vinejax --mode=compare RUN RUN ... [--workdir=DIR]
    vinejax --mode=report RUN
    vinejax --mode=vine RUN NAME
    vinejax --help [FIELD]

`python -m vinejax.main` and `python -m vinejax` are the same.

--config    a Python file with get_config(); see configs/. FILE:ARGUMENT hands it an argument
--config.X  overrides field X, one of the fields below; 'none' unsets a number
--workdir   folder of everything that the run writes, local or gs://; by default
            runs/<name of the config file>. The same command again resumes the run.
--mode      train    the default
            eval     evaluate the best checkpoint by validation; the start if no checkpoint was
                     better, or the newest checkpoint if none was validated yet
            sft      the supervised warm-up alone
            export   write a Hugging Face folder, <workdir>/export
            doctor   sample a few solutions of the newest checkpoint or, if there is none, of the
                     start, show one, and name what is wrong; status 2 if training cannot work
            credit   measure what the credit of each estimator is worth for the newest checkpoint,
                     or, if there is no checkpoint, for the policy at the run's start
            plan     what would fit on --config.topology=v5e:16x16, and how fast it could be,
                     without devices; status 1 if it does not fit
            serve    answer requests over HTTP, as OpenAI's servers do, with the newest checkpoint
                     or, if there is no checkpoint, with the model of model.path: docs/serve.md
            config   print every field as the run would use it
            compare  write compare.html, a page about the runs of two workdirs or more, into
                     --workdir, by default the current folder; if --workdir holds a run, add a
                     section to that run's report; needs no --config
            report   write RUN/report.html anew, of a run that goes on or has ended, and say how
                     the run stands
            vine     write RUN/vines/NAME.svg, a figure of a solution for a paper; its NAME, such
                     as s24-17, is in the report
--policy    which checkpoint is exported: best (by validation; the default) or last
--sets      with --mode=eval: compares start and result on these sets of problems: docs/metrics.md
--push      ORG/NAME: what --mode=export has written also becomes a model of the Hugging Face Hub,
            with a model card made from the run: docs/models.md
--help      this text, or the description of a FIELD or a group, such as ppo.clip or ppo
--version   the version
"""

import contextlib
import importlib
import itertools
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from absl import app, flags, logging
from etils import epath
from ml_collections import config_flags

import vinejax
from vinejax.config.checks import check_config
from vinejax.config.describe import describe
from vinejax.config.load import (
    Fields,
    check_name,
    default_workdir,
    field_names,
    fields_set,
    from_dict,
    load,
)
from vinejax.config.mesh_row import with_row_for_devices
from vinejax.core.errors import UserError
from vinejax.methods.known import method_names
from vinejax.runtime import distributed, stopping
from vinejax.runtime.remedies import remedy
from vinejax.runtime.workdir import path_of

# Imported by name when a mode runs, so that it loads only what it needs. 'eval --sets' is the mode
# 'eval' with the flag `--sets`.
MODES = {
    "train": ("vinejax.training.loop", "train"),
    "eval": ("vinejax.training.evaluate", "evaluate_run"),
    "eval --sets": ("vinejax.tools.sets.sets_mode", "evaluate_sets"),
    "sft": ("vinejax.training.warmup", "warm_up"),
    "export": ("vinejax.training.export", "export_run"),
    "export --push": ("vinejax.tools.hub.push_mode", "export_and_push"),
    "doctor": ("vinejax.tools.doctor.doctor_mode", "examine"),
    "credit": ("vinejax.tools.bench.bench_mode", "credit_bench"),
    "plan": ("vinejax.tools.plan.aot.plan_mode", "plan_run"),
    "serve": ("vinejax.tools.serve.serve_mode", "serve"),
    "config": ("vinejax.config.describe", "print_config"),
    "compare": ("vinejax.tools.report.compare.page", "compare_runs"),
    "report": ("vinejax.tools.report.build", "build_report"),
    "vine": ("vinejax.tools.report.figure", "export_vine"),
}
OF_WORKDIRS = ("compare", "report", "vine")  # modes whose arguments are workdirs
OF_ONE_MODE = {"sets": "eval", "policy": "export", "push": "export"}  # option -> its mode
FLAGS = flags.FLAGS


class ConfigFile(flags.ArgumentParser):
    """Runs the config file, and shows its errors, which the parser of `ml_collections` hides."""

    # Name of a field -> its value on the command line, after '=' or in the next argument.
    overrides: dict[str, str] = {}

    def parse(self, path: str) -> Fields:
        """The result of `get_config()`; the text after a colon in `path` is its argument.

        If the command line sets `method`, the result has this method and the fields of its
        settings, so that other overrides may name these fields. Raises UserError if the file is
        missing, if its code fails (the error names the line), or if an override names no field.
        """
        fields = load(path, f"--config={path}")
        if method := self.overrides.get("method"):
            fields.method = method
        for name in self.overrides:
            check_name(name, fields)
        return fields


class InWords:
    """A mixin for parsers of flags, whose error for a wrong value describes the allowed values."""

    words: str

    def parse(self, argument: Any) -> Any:
        try:
            return super().parse(argument)  # pyright: ignore[reportAttributeAccessIssue]
        except ValueError:
            raise ValueError(f"must be {self.words}") from None


class OrNone(InWords):
    """A mixin for parsers of flags that also read `none`, as None.

    If a field must not be None, `from_dict` raises an error later.
    """

    def parse(self, argument: Any) -> Any:
        return None if argument in (None, "none", "None") else super().parse(argument)


class IntParser(OrNone, flags.IntegerParser):
    words = "a whole number"


class NumberParser(OrNone, flags.FloatParser):
    words = "a number"


class FlagParser(InWords, flags.BooleanParser):
    words = "true or false"


def define_flags() -> None:
    config_flags.DEFINE_config_file("config", help_string="Python file with get_config().")
    FLAGS["config"].parser = ConfigFile()
    config_flags.register_flag_parser_for_type(int, IntParser())
    config_flags.register_flag_parser_for_type(float, NumberParser())
    config_flags.register_flag_parser_for_type(bool, FlagParser())
    flags.DEFINE_string("workdir", None, "Folder of the run; runs/<config file> by default.")
    flags.DEFINE_enum("mode", "train", [mode for mode in MODES if " " not in mode], "What to do.")
    flags.DEFINE_string("sets", None, "Sets of problems for --mode=eval: gsm8k,aime24=FILE,...")
    flags.DEFINE_enum("policy", None, ["best", "last"], "Which checkpoint to export.")
    flags.DEFINE_string("push", None, "ORG/NAME of a model on the hub; for --mode=export.")


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line and runs the config file; returns the arguments that are no flags.

    Raises UserError if the config file fails, or if an override (`--config.FIELD`) names no field
    or has no config file beside it.
    Raises flags.Error if any other flag is unknown, or if a flag has a value of the wrong type.
    """
    for i, argument in enumerate(argv):
        option, _, field = argument.partition("=")
        if option in ("-h", "--help"):
            field = field or next((x for x in argv[i + 1 :] if not x.startswith("-")), "")
            print(describe(field) if field else help_text())
            sys.exit(0)
    if "--version" in argv:
        print(f"vinejax {vinejax.__version__}")
        sys.exit(0)
    arguments = FLAGS.read_flags_from_files(argv, force_gnu=False)
    ConfigFile.overrides = {}
    for argument, following in itertools.pairwise([*arguments, ""]):
        if found := re.match(r"--?(?:no)?config\.([^=]+)(?:=(.*))?", argument):
            ConfigFile.overrides[found[1]] = following if found[2] is None else found[2]
    has_config = any(re.match(r"--?config\b(?!\.)", argument) for argument in arguments)
    if ConfigFile.overrides and not has_config:
        name = next(iter(ConfigFile.overrides))
        check_name(name)
        message = "needs the configuration that it changes; try --config=configs/tiny.py"
        raise UserError(f"--config.{name} {message}")
    rest = FLAGS(argv)
    if FLAGS["verbosity"].using_default_value:
        FLAGS.verbosity = logging.WARNING  # at INFO, Orbax writes dozens of lines per checkpoint
    return rest


def help_text() -> str:
    """The usage, then all methods, then all fields by section."""
    sections: dict[str, list[str]] = {}
    for name in field_names():
        section, _, field = name.rpartition(".")
        sections.setdefault(section, []).append(field)
    lines = [(__doc__ or "").strip(), "", *_wrapped("methods", method_names()), "", "fields"]
    for section, fields in sections.items():
        lines += _wrapped(f"  {section}." if section else "  ", fields)
    return "\n".join([*lines, "", "vinejax --help FIELD says what each is."])


def _wrapped(title: str, names: Iterable[str]) -> list[str]:
    indent = " " * 15
    text = f"{title:<14} " + ", ".join(names)
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_on_hyphens=False)


def main(argv: list[str]) -> int:
    """Checks the configuration, then calls the function of the mode. Returns the exit status."""
    for option, mode in OF_ONE_MODE.items():
        if getattr(FLAGS, option) is not None and FLAGS.mode != mode:
            message = f"is for --mode={mode}, not --mode={FLAGS.mode}; leave it out"
            raise UserError(f"--{option} {message}")
    if FLAGS.mode in OF_WORKDIRS:
        return read_runs(FLAGS.mode, argv[1:])
    if len(argv) > 1:
        raise UserError(f"unexpected argument {argv[1]!r}: options start with --, see --help")
    if FLAGS.config is None:
        raise UserError("--config is missing; try --config=configs/tiny.py")
    cfg = from_dict(FLAGS.config)
    check_config(cfg, fields_set(FLAGS.config))
    workdir = FLAGS.workdir or default_workdir(config_flags.get_config_filename(FLAGS["config"]))
    if FLAGS.mode not in ("plan", "config"):  # they need neither devices nor other hosts
        distributed.initialize(cfg.distributed)
        cfg = with_row_for_devices(cfg)
    stopping.listen()  # after jax, whose own handler of SIGTERM would replace ours
    mode, options = FLAGS.mode, {}
    if FLAGS.mode == "export":
        options["policy"] = FLAGS.policy or "best"
    if FLAGS.sets is not None:
        mode, options = "eval --sets", {"sets": FLAGS.sets}
    if FLAGS.push is not None:
        mode, options["repository"] = "export --push", FLAGS.push
    result = function_of(mode)(cfg, workdir, **options)
    return int(result is False)  # a plan that does not fit


def function_of(mode: str) -> Callable[..., Any]:
    """The function of a mode. Raises UserError for a mode of vinejax/tools if this is missing."""
    module, name = MODES[mode]
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vinejax.tools"):
            raise
        raise UserError(f"--mode={mode} needs vinejax/tools, which is not there") from error


def read_runs(mode: str, runs: list[str]) -> int:
    """Runs a mode whose arguments are workdirs, and returns the exit status."""
    if FLAGS.config is not None:
        raise UserError(f"--mode={mode} reads the settings from the runs; leave out --config")
    function = function_of(mode)
    # Only the first argument of the mode 'vine' is a workdir.
    workdirs = [os.fspath(path_of(run)) for run in (runs[:1] if mode == "vine" else runs)]
    if mode == "compare":
        function(workdirs, os.fspath(path_of(FLAGS.workdir or ".")))
        return 0
    if mode == "vine":
        if len(runs) != 2:
            raise UserError("--mode=vine needs a workdir and the name of a solution: RUN s24-17")
        print(f"figure: {function(workdirs[0], runs[1])}")
        return 0
    from vinejax.records.read import holds_run

    if len(runs) != 1 or not holds_run(epath.Path(workdirs[0])):
        given = " ".join(runs) or "none"
        raise UserError(f"--mode=report RUN needs the workdir of one run, not {given}")
    print(f"report: {function(workdirs[0])}")
    standing = importlib.import_module("vinejax.tools.report.summary_line")
    if line := standing.standing_line(epath.Path(workdirs[0])):
        print(line)
    return 0


def run() -> None:
    """Runs `main`. A UserError is printed as one line, and the exit status is 2.

    After a signal the exit status is 128 plus its number, as a shell reports it.
    """
    try:
        define_flags()
        try:
            app.run(main, flags_parser=parse_flags)
        finally:
            sys.stdout.flush()  # here, where a reader that has ended is no error
    except (UserError, flags.Error) as error:
        _say("error: " + " ".join(str(error).split()))
        distributed.leave(2)
    except stopping.Stopped as stop:
        _say(f"{stop}; {stop.next_start}")
        distributed.leave(stop.exit_code, at_once=True)  # a normal exit can crash XLA's threads
    except KeyboardInterrupt:  # of another handler than those of main.py and stopping.py
        _say("interrupted; the same command does it again")
        distributed.leave(130)
    except BrokenPipeError:  # the reader of the output has ended, as in `vinejax --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        distributed.leave(128 + signal.SIGPIPE)
    except Exception as error:
        if line := remedy(error):
            _say(f"error: {line}")
            distributed.leave(2)
        with contextlib.suppress(OSError):
            traceback.print_exc()
        distributed.leave(1)


def _say(line: str) -> None:
    """Prints a line on standard error, which may have ended, as with a closed terminal."""
    with contextlib.suppress(OSError):
        print(f"vinejax: {line}", file=sys.stderr)
