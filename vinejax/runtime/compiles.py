"""Counts the programs that this process has compiled, by jax's own events."""

import jax

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # a program is about to be compiled
_COMPILED = "/jax/core/compile/backend_compile_duration"
_count = 0
_is_compiling = False


def _on_event(event: str, duration_secs: float, **unused: str | int) -> None:
    global _count, _is_compiling
    if event in (_LOWERED, _COMPILED):
        _count += event == _COMPILED
        _is_compiling = event == _LOWERED


jax.monitoring.register_event_duration_secs_listener(_on_event)


def num_compiles() -> int:
    """Programs compiled, or loaded from the compile cache, since this module was imported."""
    return _count


def is_compiling() -> bool:
    """Whether a program is being compiled right now, by whichever thread."""
    return _is_compiling
