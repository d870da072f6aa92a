"""Where compiled programs are kept, so that the next start loads them instead of compiling anew.

jax has the cache; this chooses its folder. A program is found by its text, its shapes, the devices
and the versions of jax and XLA, so that runs of other seeds, tasks and workdirs share programs. On
several hosts the first one writes and all read.
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

AUTO, OFF = "auto", ("", "none")  # of `compile_cache`; else a folder
LEAST_S = 0.1  # programs that compile faster are not kept: reading them from gs:// takes as long
MOST_BYTES = 4 << 30  # of the folder in the user's home
MIN_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # jax's own variable for `LEAST_S`


def use_compile_cache(setting: str, workdir: epath.Path) -> None:
    """Sets the folder of compiled programs for this process, before the first one is compiled.

    `setting` is `compile_cache`: a folder or gs:// path, or '' or 'none' for no cache. 'auto' is the
    folder that jax was given, by JAX_COMPILATION_CACHE_DIR or in Python, if it was; otherwise the
    user's cache folder or, on several hosts, `compiled` of the workdir, which all hosts share.

    Raises ConfigError if a folder that was named cannot be written. If that of 'auto' cannot be
    written, one line says so, and programs are compiled at every start.
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

    Programs for a CPU have the instructions of the one that compiled them, and a home can be shared
    by machines with other processors.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    processor = f"{platform.machine()}-{zlib.crc32(_instructions().encode()):08x}"
    return epath.Path(os.path.expanduser(base)) / "vinejax" / "compiled" / processor


def _instructions() -> str:
    """What tells the instruction sets of this machine's processor from those of others."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _fault_of(folder: epath.Path) -> str:
    """Why a folder cannot be written, or ''. A remote one is not asked."""
    if is_remote(folder):
        return ""
    folder = epath.Path(os.path.abspath(folder))
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"


def _forget_oldest(folder: Path) -> None:
    """Deletes the programs that were not read for the longest time, if all take too much room.

    jax's own limit is not used: a process that is killed while it writes an entry leaves one
    without a time, and from then on no entry is written. Folders, as of XLA's tuning on GPUs, stay.
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
