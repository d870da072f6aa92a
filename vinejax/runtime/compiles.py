"""Counts the programs that this process has compiled, by jax's own events."""

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_count = 0


def _on_event(event: str, duration_secs: float, **unused: str | int) -> None:
    global _count
    _count += event == _EVENT


jax.monitoring.register_event_duration_secs_listener(_on_event)


def num_compiles() -> int:
    """Programs compiled, or loaded from the compile cache, since this module was imported."""
    return _count
