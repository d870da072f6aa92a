"""Counts the programs that this process has compiled or loaded, by listening to jax's events."""

from typing import NamedTuple

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"  # also sent for a program that is loaded
_LOADED = "/jax/compilation_cache/cache_hits"


class Compiles(NamedTuple):
    """Counts of the programs that were made ready to run."""

    programs: int  # compiled, or loaded from the compile cache
    loaded: int  # programs that were loaded from the compile cache
    seconds: float  # time of compiling and loading, without tracing

    def since(self, earlier: "Compiles") -> "Compiles":
        """These counts minus the counts `earlier`."""
        return Compiles(
            self.programs - earlier.programs,
            self.loaded - earlier.loaded,
            self.seconds - earlier.seconds,
        )


_total = Compiles(0, 0, 0.0)


def _on_duration(event: str, duration_secs: float, **unused: str | int) -> None:
    global _total
    if event == _COMPILED:
        programs, loaded, seconds = _total
        _total = Compiles(programs + 1, loaded, seconds + duration_secs)


def _on_event(event: str, **unused: str | int) -> None:
    global _total
    if event == _LOADED:
        _total = _total._replace(loaded=_total.loaded + 1)


jax.monitoring.register_event_duration_secs_listener(_on_duration)
jax.monitoring.register_event_listener(_on_event)


def compiles() -> Compiles:
    """The counts of programs made ready since this module was imported."""
    return _total


def num_compiles() -> int:
    """The number of programs compiled or loaded since this module was imported."""
    return _total.programs
