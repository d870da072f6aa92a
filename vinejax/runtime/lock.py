"""The lock of a workdir, which lets only one process at a time train there."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import time

from etils import epath

from vinejax.core.errors import WorkdirError
from vinejax.runtime.workdir import is_remote

FILE = ".lock"  # file in the workdir, which is not deleted when the lock is released
TAKEN = (errno.EWOULDBLOCK, errno.EACCES)  # errors of flock if another process has the lock
MOMENT_S = 0.05  # seconds before the second try; `is_locked` holds the lock for less time


class WorkdirLock(contextlib.AbstractContextManager["WorkdirLock"]):
    """The right to train in a workdir, held until the context manager exits or the process ends.

    The operating system manages the lock of a file in the workdir (flock), and releases it whenever
    the process ends. The file names the process with the lock, for the error messages of other
    processes. Remote workdirs, such as gs:// paths, and file systems without flock have no lock.
    """

    def __init__(self, workdir: epath.Path, is_wanted: bool = True):
        """Prepares the lock without taking it.

        Args:
          workdir: an absolute path; the folder need not exist.
          is_wanted: whether `take` is to take the lock; False on hosts that do not write.
        """
        self._workdir = workdir
        self._is_wanted = is_wanted and not is_remote(workdir)
        self._file: int | None = None

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, make: bool = True) -> None:
        """Takes the lock unless this object holds it already.

        If `make` is False and the workdir has no lock file, nothing happens, so that a run that
        fails later leaves no file. Raises WorkdirError if another process has the lock. Prints a
        line if the file system has no locks.
        """
        path = self._workdir / FILE
        if not self._is_wanted or self._file is not None or not (make or path.exists()):
            return
        try:
            if make:
                self._workdir.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            message = f"cannot be used as a file ({error.strerror}); choose another --workdir"
            raise WorkdirError(f"{path}: {message}") from error
        try:
            _lock(file)
        except OSError as error:
            holder = _read_holder(file)
            os.close(file)
            if error.errno in TAKEN:
                message = f"{holder} is training there; wait for it, end it, or choose another"
                raise WorkdirError(f"{self._workdir}: {message} --workdir") from error
            print(
                f"{path}: this file system has no locks ({error}): start one run", file=sys.stderr
            )
            return
        self._file = file
        # Else a process that a library has forked, and that outlives this one, would hold the lock.
        os.register_at_fork(after_in_child=self.release)
        _write_holder(file)

    def release(self) -> None:
        """Releases the lock by closing its file.

        The file is not deleted. Otherwise two processes could lock two files of the same name.
        """
        if self._file is not None:
            os.close(self._file)
            self._file = None


def is_locked(workdir: epath.Path) -> bool | None:
    """Whether a process has the lock of a workdir; None if the workdir cannot have a lock.

    The function takes the lock for a moment, in a mode that several callers can hold together.
    """
    if is_remote(workdir):
        return None
    try:
        file = os.open(workdir / FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in TAKEN else None
    finally:
        os.close(file)
    return False


def _lock(file: int) -> None:
    """Takes the lock, with a second try in case a call of `is_locked` holds the lock briefly."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        time.sleep(MOMENT_S)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_holder(file: int) -> None:
    text = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}) + "\n"
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)


def _read_holder(file: int) -> str:
    """The process and host that hold the lock, or 'another process' if the file is unreadable."""
    try:
        found = json.loads(os.pread(file, 4096, 0))
        return f"process {int(found['pid'])} on host {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
