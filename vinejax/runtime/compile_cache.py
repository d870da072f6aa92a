"""Chooses the folder of jax's persistent cache of compiled programs.

jax finds a program by its text, its shapes, the devices and the versions of jax and XLA, so runs
with different seeds, tasks and workdirs share programs. If there are several hosts, the first host
writes programs to the cache, and all hosts read them.
"""

import os
import platform
import zlib
from pathlib import Path

import jax
from etils import epath

from vinejax.core.errors import ConfigError, UserError
from vinejax.runtime.distributed import is_writer
from vinejax.runtime.workdir import path_of, users_cache, why_unwritable

AUTO, OFF = "auto", ("", "none")  # values of `compile_cache` that name no folder
LEAST_S = 0.1  # minimum compile time in seconds of a cached program; reading gs:// takes as long
MOST_BYTES = 4 << 30  # maximum size of all programs in the user's cache folder
MIN_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # jax's own variable for `LEAST_S`


def use_compile_cache(setting: str, workdir: epath.Path) -> None:
    """Sets the folder of compiled programs, before this process compiles its first program.

    `setting` is the field `compile_cache`: a folder, a gs:// path, 'auto', or '' or 'none' for no
    cache. 'auto' means the folder that is already set in jax.config, for example by the variable
    JAX_COMPILATION_CACHE_DIR. If no folder is set, 'auto' means the user's cache folder or, on
    several hosts, `compiled` in the workdir.

    Raises ConfigError if a named folder cannot be written. If the folder of 'auto' cannot be
    written, a printed line says so, and programs are compiled at every start.
    """
    if setting in OFF:
        jax.config.update("jax_compilation_cache_dir", None)
        return
    if setting == AUTO and jax.config.values["jax_compilation_cache_dir"]:
        return
    try:
        folder = path_of(setting)
    except UserError as error:
        raise ConfigError("compile_cache", str(error)) from None
    if setting == AUTO:
        folder = workdir / "compiled" if jax.process_count() > 1 else _users_folder()
    if fault := why_unwritable(folder):
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
    """The folder compiled/<kind of processor> in the user's cache folder for this package.

    A program for a CPU uses the instructions of the CPU that compiled it, and machines with
    different processors can share a home folder.
    """
    processor = f"{platform.machine()}-{zlib.crc32(_instructions().encode()):08x}"
    return users_cache() / "compiled" / processor


def _instructions() -> str:
    """A text that names the instruction sets of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _forget_oldest(folder: Path) -> None:
    """Deletes the least recently used programs until the rest have at most MOST_BYTES.

    We do not use jax's own size limit. If a process is killed while it writes an entry, the entry
    has no access time, and with the limit jax then never writes an entry again. Subfolders are not
    deleted; XLA's results of tuning on GPUs are in one.
    """
    programs = []
    for file in folder.glob("*"):
        if file.is_dir():
            continue
        try:
            stat = file.stat()
        except OSError:  # another process may have deleted the file
            continue
        programs.append((max(stat.st_atime, stat.st_mtime), stat.st_size, file))
    excess = sum(size for _, size, _ in programs) - MOST_BYTES
    for _, size, file in sorted(programs):
        if excess <= 0:
            return
        file.unlink(missing_ok=True)
        excess -= size
