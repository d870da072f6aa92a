"""Writes a jax trace of some iterations, for TensorBoard or Perfetto."""

import contextlib
from collections.abc import Callable, Iterator

import jax
from etils import epath


@contextlib.contextmanager
def profiler(span: str, folder: epath.Path) -> Iterator[Callable[[int], None]]:
    """Traces the iterations start <= i < stop of `span` = 'start:stop' ('': none) into `folder`.

    Yields a function to call with the number of each iteration before it starts. Leaving the
    context closes a trace that is still open.
    """
    start, stop = map(int, span.split(":")) if span else (-1, -1)
    is_open = False

    def before(iteration: int) -> None:
        nonlocal is_open
        wanted = start <= iteration < stop
        if wanted and not is_open:
            jax.profiler.start_trace(folder)
        elif is_open and not wanted:
            jax.profiler.stop_trace()
        is_open = wanted

    try:
        yield before
    finally:
        if is_open:
            jax.profiler.stop_trace()
