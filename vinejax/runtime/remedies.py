"""Explains errors of the machine, such as full disks, permissions and memory, in one line."""

import errno
import re

import jax

MAKE_ROOM, PERMIT = "make room, and the same command goes on", "let this user read and write it"
OF_FILES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), MAKE_ROOM)
OF_FILES |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), PERMIT)
LESS_MEMORY = (
    "out of memory{where}; lower rollout.slots or ppo.microbatch, and see that no other program"
    " uses the device"
)
PROGRAM = re.compile(r"executable_name='(?:jit_)?([\w.]+)'")


def remedy(error: Exception) -> str | None:
    """The cause and remedy of a file system or device memory error; None for other errors."""
    if isinstance(error, OSError) and error.errno in OF_FILES:
        where = error.filename or "a file of the workdir"
        return f"{where}: {error.strerror}; {OF_FILES[error.errno]}"
    if isinstance(error, jax.errors.JaxRuntimeError) and "out of memory" in str(error).lower():
        program = PROGRAM.search(str(error))
        return LESS_MEMORY.format(where=f" in the program {program[1]}" if program else "")
    return None
