"""Chooses the folder of jax's cache of compiled programs, which the next start loads.

jax finds a program by its text, its shapes, the devices and the versions of jax and XLA, so that
runs with other seeds, tasks and workdirs share programs. On several hosts the first one writes and
all read.
"""

import os
import platform
import zlib
from pathlib import Path

import jax
from etils import epath

from vinejax.core.errors import ConfigError
from vinejax.runtime.distributed import is_writer
from vinejax.runtime.workdir import is_remote

AUTO, OFF = "auto", ("", "none")  # values of `compile_cache` that name no folder
LEAST_S = 0.1  # least seconds of compiling to be worth a file: reading from gs:// takes as long
MOST_BYTES = 4 << 30  # limit of the folder in the user's home
MIN_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # jax's own variable for `LEAST_S`


def use_compile_cache(setting: str, workdir: epath.Path) -> None:
    """Sets the folder of compiled programs for this process, before the first one is compiled.

    `setting` is `compile_cache`: a folder or gs:// path, or '' or 'none' for no cache. 'auto' is
    jax's own setting (JAX_COMPILATION_CACHE_DIR, or set in Python) if there is one; otherwise it is
    the user's cache folder or, on several hosts, `compiled` in the workdir, which all hosts share.

    Raises ConfigError if a named folder cannot be written. If the folder of 'auto' cannot be
    written, a printed line says so, and programs are compiled at every start.
    """
    if setting in OFF:
        jax.config.update("jax_compilation_cache_dir", None)
        return
    if setting == AUTO and jax.config.values["jax_compilation_cache_dir"]:
        return
    folder = epath.Path(os.path.expanduser(setting))
    if setting == AUTO:
        folder = workdir / "compiled" if jax.process_count() > 1 else _users_folder()
    if fault := _fault_of(folder):
        message = f"{fault}; name a folder, or '' for none"
        if setting != AUTO:
            raise ConfigError("compile_cache", message, repr(setting))
        if is_writer():
            print(f"compile_cache: {folder}: {message}; programs are compiled anew at every start")
        return
    if setting == AUTO and jax.process_count() == 1:
        _forget_oldest(Path(folder))
    jax.config.update("jax_compilation_cache_dir", os.fspath(folder))
    if MIN_SECONDS not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_S)


def _users_folder() -> epath.Path:
    """<the user's cache folder>/vinejax/compiled/<kind of processor>.

    A program for a CPU uses the instructions of the CPU that compiled it, and machines with
    different processors can share a home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    processor = f"{platform.machine()}-{zlib.crc32(_instructions().encode()):08x}"
    return epath.Path(os.path.expanduser(base)) / "vinejax" / "compiled" / processor


def _instructions() -> str:
    """A text that names the instruction sets of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _fault_of(folder: epath.Path) -> str:
    """The reason why a folder cannot be written, or ''. A remote folder is not checked."""
    if is_remote(folder):
        return ""
    folder = epath.Path(os.path.abspath(folder))
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def _forget_oldest(folder: Path) -> None:
    """Deletes the least recently read programs while all together exceed MOST_BYTES.

    jax's own limit is not used: a process that is killed while it writes an entry leaves one
    without a time, after which jax writes no entry any more. Folders stay, such as that of XLA's
    tuning on GPUs.
    """
    programs = []
    for file in folder.glob("*"):
        if file.is_dir():
            continue
        try:
            stat = file.stat()
        except OSError:  # another process deletes them, too
            continue
        programs.append((max(stat.st_atime, stat.st_mtime), stat.st_size, file))
    excess = sum(size for _, size, _ in programs) - MOST_BYTES
    for _, size, file in sorted(programs):
        if excess <= 0:
            return
        file.unlink(missing_ok=True)
        excess -= size
