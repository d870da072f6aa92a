"""The folder of a run: what it was started with, and whether this command may continue it."""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

import vinejax
from vinejax.errors import WorkdirError
from vinejax.settings import Config

REVISION = ".revision"  # of an archive, beside the package
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
# What may change from one start to the next without making it another run. All that a row of
# `meshes` sets is among it, since what is recorded is what the devices had, and the next start is
# compared before it knows its own.
FREE_FIELDS = {
    *("iterations", "resume", "profile", "topology", "compile_cache"),
    *("model.attention", "model.remat", "model.architecture"),
    *("rollout.slots", "rollout.memory_gib", "ppo.microbatch"),
    *("grader.workers", "grader.timeout_s", "grader.memory_mb"),
}
FREE_GROUPS = ("log.", "eval.", "checkpoint.", "budget.")
FREE_GROUPS += ("mesh.", "meshes.", "distributed.", "offload.", "plan.")
PATHS = ("model.path", "data.path")  # a folder may be named in another way


def check_workdir(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """The absolute `path`, if this configuration may run there. Writes nothing.

    Raises:
      WorkdirError: the folder holds a run with another configuration, or any run when `cfg.resume`
        is False; or something on the way to it is not a folder, or not writable.
    """
    folder = epath.Path(path)
    if not is_remote(folder):
        folder = epath.Path(os.path.abspath(folder))
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            rule = "is not a folder" if not there.is_dir() else "is not writable"
            raise WorkdirError(f"{folder}: {there} {rule}; choose another --workdir")
    with _usable(folder):
        _check_same_run(cfg, folder / "config.json")
    return folder


def record_run(cfg: Config, folder: epath.Path) -> None:
    """Writes `config.json` into a folder that `check_workdir` gave, making it if need be.

    It holds the configuration, the versions and the git revision of the latest start.
    """
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "config.json", json.dumps(_record(cfg), indent=2) + "\n")


def check_shared(folder: epath.Path) -> None:
    """WorkdirError unless what the first host has recorded is there for this one too."""
    if not (folder / "config.json").exists():
        rule = "is not what the first host writes to; use gs:// or a folder that all hosts share"
        raise WorkdirError(f"{folder}: {rule}, as --workdir")


@contextlib.contextmanager
def _usable(folder: epath.Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ImportError) as error:  # a client library may be missing for gs://
        raise WorkdirError(
            f"{folder}: cannot be used ({error}); choose another --workdir"
        ) from error


def is_remote(path: epath.Path) -> bool:
    """Whether the path is in an object store, where files cannot be appended to."""
    return "://" in os.fspath(path)


def write_atomic(path: epath.Path, text: str) -> None:
    """Writes a whole file or, if the process dies on the way, leaves the old one as it was."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def git_revision() -> str | None:
    """Revision of the checkout that this package runs from, `-dirty` if edited; None elsewhere.

    That of a `git archive` is the commit which git wrote into it, edited or not.
    """
    root = Path(vinejax.__file__).parents[1]
    if not (root / ".git").exists():  # a git command would answer for whatever is around the folder
        return _archived_revision(root / REVISION)
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    command += ["--exclude=*"]  # no tag names
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, env=environment, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _archived_revision(file: Path) -> str | None:
    """See .gitattributes; None where the package is installed, or copied from a checkout."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = file.read_text(encoding="utf-8").strip()
        return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
    return None


def _record(cfg: Config) -> dict[str, Any]:
    versions: dict[str, str | None] = {"vinejax": vinejax.__version__}
    versions["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "config": dataclasses.asdict(cfg),
        "versions": versions,
        "git_revision": git_revision(),
    }


def _check_same_run(cfg: Config, file: epath.Path) -> None:
    """Raises WorkdirError if `file` records a run that `cfg` does not continue."""
    if not file.exists():
        return
    if not cfg.resume:
        raise WorkdirError(f"{file.parent}: holds a run; set resume=True, or choose --workdir")
    try:
        recorded = _flatten(json.loads(file.read_text(encoding="utf-8"))["config"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorkdirError(f"{file}: is damaged; choose another --workdir") from error
    # A field that is younger than the run had its default.
    recorded = _flatten(dataclasses.asdict(Config())) | recorded
    for name, value in _flatten(dataclasses.asdict(cfg)).items():
        if name in FREE_FIELDS or name.startswith(FREE_GROUPS) or recorded[name] == value:
            continue
        if name in PATHS and _is_same_folder(recorded[name], value):
            continue
        change = f"{name} was {json.dumps(recorded[name])} and is now {json.dumps(value)}"
        raise WorkdirError(f"{file}: {change}; set it back to resume, or choose another --workdir")


def _is_same_folder(one: str, other: str) -> bool:
    """Of two names; hub names and remote paths are no folders here."""
    return all(map(os.path.isdir, (one, other))) and os.path.samefile(one, other)


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names, in order; tuples as the lists that JSON makes of them."""
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat
