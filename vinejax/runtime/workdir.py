"""Records the configuration of a run in its folder, and checks who may continue the run."""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from etils import epath

from vinejax.core.accessories import contributed, contributed_class
from vinejax.core.errors import UserError, WorkdirError
from vinejax.core.sections import MethodSettings, Section
from vinejax.core.settings import RENAMED, Config, as_tree, unset
from vinejax.version import __version__

REVISION = ".revision"  # file beside the package, in a `git archive`
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
# Fields that may change between two starts of one run. They include all fields that a row of
# `meshes` sets: the record has the values for the devices of the last start, and the next start is
# compared before its own devices are known.
FREE_FIELDS = {
    *("iterations", "resume", "profile", "topology", "compile_cache"),
    *("model.attention", "model.remat", "model.architecture"),
    *("rollout.slots", "rollout.memory_gib", "rollout.attention", "rollout.skip_repeats"),
    *("ppo.microbatch", "ppo.packing", "ppo.share_prefixes", "ppo.row_tokens"),
    *("grader.workers", "grader.timeout_s", "grader.memory_mb"),
    *("env.timeout_s", "env.workers", "env.check_every", "prior_function.timeout_s", "code.url"),
}
FREE_GROUPS = ("log.", "eval.", "checkpoint.", "budget.")
FREE_GROUPS += ("mesh.", "meshes.", "distributed.", "offload.")
# Removed field -> the only recorded value with which an old run can be resumed.
REMOVED = {
    "train.on": "solutions",
    "values.shrink": 0.0,
    "kl.soup": "",
    "kl.renew": 0,
    "rollout.curriculum": [],
    "entropy.covariance": "none",
    "ppo.off_policy_mask": None,
    "values.waves": 1,
    "values.dtype": "model",
    "rollout.lag": 0,
    "credit.progress": 0.0,
    "values.env_noise": "kept",
    "critic.warmup_iterations": 0,
}
LISTED = 8  # maximum number of changed fields in a message
PATTERN = re.compile(r"[*?\[\\]")  # Orbax finds the arrays that it has written by a pattern
FOLDERS = (
    *("checkpoints", "best", "episodes", "tensorboard", "warmup", "eval", "credit", "export"),
    *("alive", "adapters", "vines"),
)
FILES = (
    *("config.json", "metrics.jsonl", "report.html", "status.json", "wandb_id", "prompt_time"),
    *("dropped_problems.json", "dropped_examples.json"),
)
OF_A_RUN = ("checkpoints", "best", "metrics.jsonl", "episodes")  # a run with these has config.json
UNFINISHED = re.compile(r"\.[0-9a-f]{8}\.tmp$")  # end of the names that `write_atomic` renames
UNFINISHED_S = 3600.0  # age from which such a file counts as left by a killed process
TRAINED = b'"stage": "train"'  # part of the record of an iteration in metrics.jsonl
PATHS = ("model.path", "data.path")  # compared as files, because a file or folder has many names


def check_workdir(cfg: Config, path: str | os.PathLike) -> epath.Path:
    """The absolute form of `path`, after checks that this configuration may run there.

    `~` at the start is the home folder. Nothing is written. Raises WorkdirError if the folder
    cannot be made or written, if a checkpoint in it could not be restored (`PATTERN`), if it has a
    run of another configuration or an incomplete run (`check_contents`), or if it has any run and
    `cfg.resume` is False.
    """
    folder = resolved_folder(path)
    if found := PATTERN.search(os.fspath(folder)):
        message = f"a checkpoint below a path with {found[0]!r} cannot be restored"
        raise WorkdirError(f"{folder}: {message}; choose another --workdir")
    if fault := why_unwritable(folder):
        raise WorkdirError(f"{folder}: {fault}; choose another --workdir")
    with _usable(folder):
        check_contents(folder)
        _check_same_run(cfg, folder / "config.json")
    return folder


def check_contents(folder: epath.Path) -> None:
    """Raises WorkdirError for a workdir that was changed so that no run can continue there.

    Such a workdir has a file in the place of a folder or the reverse, has files of a run but no
    `config.json`, or has metrics of iterations but no `checkpoints/`. In an object store, which has
    no folders, only `config.json` is checked.
    """
    if not is_remote(folder):
        for name in (*FOLDERS, *FILES):
            path = folder / name
            if path.exists() and path.is_dir() != (name in FOLDERS):
                kind = "a file" if name in FOLDERS else "a folder"
                message = f"is {kind}, and a run needs the name; move it away"
                raise WorkdirError(f"{path}: {message}, or choose another --workdir")
    if not (folder / "config.json").exists():
        found = [name for name in OF_A_RUN if (folder / name).exists()]
        if found:
            message = f"is missing, so nothing tells which run {found[0]} is of; put it back"
            raise WorkdirError(f"{folder / 'config.json'}: {message}, or choose another --workdir")
    metrics = folder / "metrics.jsonl"
    if is_remote(folder) or (folder / "checkpoints").exists() or not metrics.exists():
        return
    if TRAINED in metrics.read_bytes():
        message = "is missing, and metrics.jsonl has iterations; put it back, or move metrics.jsonl"
        raise WorkdirError(f"{folder / 'checkpoints'}: {message} away to begin anew")


def record_run(
    cfg: Config, folder: epath.Path, start: str = "", problems: dict[str, str] | None = None
) -> None:
    """Writes `config.json` into `folder`, and creates the folder if it does not exist.

    The file holds the configuration, the versions and the git revision of the latest start. `start`
    is the checkpoint from which the run first started if `model.path` is a run, and `problems` has
    the fingerprint of the problems of each split with which it first started.
    """
    ours = {"vinejax": __version__, "python": platform.python_version()}
    record = {
        "config": as_tree(cfg),
        "versions": ours | package_versions(PACKAGES),
        "git_revision": git_revision(),
        **({"start": start} if start else {}),
        **({"problems": problems} if problems else {}),
    }
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "config.json", json.dumps(record, indent=2) + "\n")


def recorded_start(folder: epath.Path) -> tuple[str, dict[str, str]]:
    """The arguments `start` and `problems` of `record_run`; '' and {} if they are not recorded."""
    file = folder / "config.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return str(record.get("start", "")), record.get("problems", {})


def check_shared(folder: epath.Path) -> None:
    """Raises WorkdirError if this host does not see the first host's `config.json`."""
    if not (folder / "config.json").exists():
        message = "is not what the first host writes to; use gs:// or a folder that all hosts share"
        raise WorkdirError(f"{folder}: {message}, as --workdir")


@contextlib.contextmanager
def _usable(folder: epath.Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ImportError) as error:  # a client library may be missing for gs://
        message = f"cannot be used ({error}); choose another --workdir"
        raise WorkdirError(f"{folder}: {message}") from error


def path_of(path: str | os.PathLike) -> epath.Path:
    """A path, in which `~` is the home folder. Raises UserError for an address such as https://."""
    try:
        return epath.Path(os.path.expanduser(path))
    except KeyError:  # the scheme, which `etils` does not know
        scheme = os.fspath(path).partition("://")[0]
        message = f"no folder is at {scheme}://; give a path on this machine, or one at gs://"
        raise UserError(f"{path}: {message}") from None


def resolved_folder(path: str | os.PathLike) -> epath.Path:
    """The absolute form of a local path, or a remote path. Raises UserError as `path_of` does."""
    folder = path_of(path)
    return folder if is_remote(folder) else epath.Path(os.path.abspath(folder))


def why_unwritable(folder: epath.Path) -> str:
    """The reason why a folder cannot be written; '' if it can be, or if the folder is remote."""
    if is_remote(folder):
        return ""
    folder = epath.Path(os.path.abspath(folder))
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def users_cache() -> epath.Path:
    """The folder of this package in the user's cache folder."""
    return path_of(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vinejax"


def is_remote(path: epath.Path) -> bool:
    """Whether the path is in an object store, where files cannot be appended to."""
    return "://" in os.fspath(path)


def write_atomic(path: epath.Path, content: str | bytes) -> None:
    """Writes a whole file. If the process dies during the call, the old file is unchanged.

    Of several processes that write the file at once, the last to finish determines its content. In
    an object store, where an object appears only when it is complete, the file is written directly.
    A rename would copy it.
    """
    content = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        path.write_bytes(content)
        return
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def remove_unfinished(folder: epath.Path) -> None:
    """Removes the unfinished files that killed processes have left in a local workdir.

    Those of the last hour stay, because a process that runs beside training may be writing them.
    """
    if is_remote(folder):
        return
    latest = time.time() - UNFINISHED_S
    for place in (folder, folder / "eval" / "sets", *(folder / name for name in FOLDERS)):
        with contextlib.suppress(OSError):  # a folder may be missing, or of another user
            for path in filter(lambda path: UNFINISHED.search(path.name), place.iterdir()):
                with contextlib.suppress(OSError):
                    if os.path.getmtime(path) < latest:
                        path.unlink()


def git_revision() -> str | None:
    """The git commit of this package, with `-dirty` if files were edited; None if unknown.

    In an unpacked `git archive`, it is the recorded commit, and edits are not detected.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # git would answer for a checkout around this folder
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
    """The commit that `git archive` has written to `file`; None if there is no such commit."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = file.read_text(encoding="utf-8").strip()
        return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
    return None


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Package -> installed version; None for a package that is not installed."""
    versions: dict[str, str | None] = dict.fromkeys(packages)
    for name in versions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _check_same_run(cfg: Config, file: epath.Path) -> None:
    """Raises WorkdirError if `file` records a run that cannot continue with `cfg`."""
    if not file.exists():
        return
    if not cfg.resume:
        raise WorkdirError(f"{file.parent}: holds a run; set resume=True, or choose --workdir")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if "model_type" in record:
            message = "is the folder of a model, and not of a run; choose another --workdir"
            raise WorkdirError(f"{file.parent}: {message}")
        old_settings = recorded_settings(record["config"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = "is damaged; put a copy of it back, or choose another --workdir"
        raise WorkdirError(f"{file}: {message}") from error
    cfg = _with_recorded_sections(cfg, old_settings)
    # A field that was added after the run had its default.
    old_settings = flatten_names(as_tree(unset(cfg))) | old_settings
    changes, free = [], free_groups()
    for name, value in flatten_names(as_tree(cfg)).items():
        if name in FREE_FIELDS or name.startswith(free) or old_settings[name] == value:
            continue
        if name == "model.compute_dtype" and "auto" in (old_settings[name], value):
            continue  # not for training (`with_dtype`): the run may have trained on other devices
        if name in PATHS and _is_same_file(old_settings[name], value):
            continue
        changes.append(
            f"{name} was {json.dumps(old_settings[name])} and is now {json.dumps(value)}"
        )
    for name, value in REMOVED.items():
        if old_settings.get(name, value) != value:
            message = (
                f"{name} was {json.dumps(old_settings[name])}, and there is no such field any more"
            )
            raise WorkdirError(f"{file}: {message}; choose another --workdir")
    if changes:
        more = f", and {len(changes) - LISTED} more fields" if len(changes) > LISTED else ""
        message = "set it back" if len(changes) == 1 else "set them back"
        listed = ", ".join(changes[:LISTED]) + more
        anew = f"where --config.model.path={file.parent} starts from the weights of this run"
        raise WorkdirError(
            f"{file}: {listed}; {message} to resume, or choose another --workdir, {anew}"
        )


def free_groups() -> tuple[str, ...]:
    """The groups of settings that may change between two starts of one run, such as 'eval.'.

    They are `FREE_GROUPS` and the groups of accessories whose class has `may_change`.
    """
    kinds = {name: contributed_class("SECTIONS", name) for name in contributed("SECTIONS")}
    free = (name for name, kind in kinds.items() if kind is not None and kind.may_change)
    return FREE_GROUPS + tuple(f"{name}." for name in free)


def _with_recorded_sections(cfg: Config, old_settings: Iterable[str]) -> Config:
    """`cfg`, with the defaults of all sections that were recorded for the run but are not in `cfg`.

    Sections of methods are not added.
    """
    sections: dict[str, Section] = {}
    for name in dict.fromkeys(field.partition(".")[0] for field in old_settings):
        kind = contributed_class("SECTIONS", name)
        if kind is not None and not issubclass(kind, MethodSettings):
            sections[name] = kind()
    return dataclasses.replace(cfg, sections=sections | cfg.sections)


def _is_same_file(path: str, other: str) -> bool:
    """Whether both are one local file or folder; False for hub names and remote paths."""
    path, other = map(os.path.expanduser, (path, other))
    return all(map(os.path.exists, (path, other))) and os.path.samefile(path, other)


def recorded_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Maps the dotted name of each setting of a run to the recorded value.

    A field that was renamed since has its new name.
    """
    return {RENAMED.get(name, name): value for name, value in flatten_names(config).items()}


def flatten_names(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one dict with dotted names, in order.

    Tuples become lists, as in JSON. An empty dict is kept as a value.
    """
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flatten_names(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat
