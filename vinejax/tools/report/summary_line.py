"""Describes the state of a run, such as 'Running', in a line of text."""

import time
from typing import NamedTuple

from etils import epath

from vinejax.records import formats
from vinejax.runtime.status import Status, read_status

MIN_RELOAD_S, MAX_RELOAD_S = 5.0, 60.0  # time between two reloads
MAX_TEXT = 600  # maximum characters of the reason why a run ended
TITLES = {
    "running": "Running",
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Ended by an error",
    "lost": "No sign of life",
}


class Standing(NamedTuple):
    """The state of a run as the page's top line; `reload_s` is None if the page does not reload."""

    state: str
    title: str
    words: str
    written: float  # when the status was written, in seconds since 1970
    patience_s: float
    reload_s: float | None


def standing_line(workdir: epath.Path) -> str:
    """The state of the run in a workdir as a line for the terminal; '' without a status file."""
    standing = standing_of(read_status(workdir))
    return f"{standing.title}: {standing.words}" if standing else ""


def standing_of(status: Status | None) -> Standing | None:
    """The standing of a run from its status; None without a status, or for an unknown state."""
    if status is None or status.state not in TITLES:
        return None
    state = status.state
    reload_s = None
    if state == "running":
        reload_s = min(MAX_RELOAD_S, max(MIN_RELOAD_S, status.patience_s / 20))
    words, title = _words(status), TITLES[state]
    return Standing(state, title, words, status.at, status.patience_s, reload_s)


def _words(status: Status) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(status.at))
    after = f"after iteration {status.done}"
    if status.done <= status.total:  # else `iterations` was lowered after more had been done
        after += f" of {status.total}"
    if status.state == "running":
        return f"{after}; written {at}, and again as iterations end"
    if status.state == "finished":
        return f"{at}, {after}" + (", its budget used up" if status.done < status.total else "")
    if status.state == "lost":
        process = f"process {status.pid} on host {formats.clip(status.host, 80).text}"
        return (
            f"{process} ended without a word {after}, last heard of {at}: it was killed, ran out "
            "of memory, or its machine stopped; the same command resumes"
        )
    return f"{at}, {after}: {formats.clip(status.why, MAX_TEXT).text}"
