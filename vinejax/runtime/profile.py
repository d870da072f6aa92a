"""Writes a jax trace of some iterations, for TensorBoard or Perfetto."""

import contextlib
from collections.abc import Callable, Iterator

import jax
from etils import epath


@contextlib.contextmanager
def profiler(span: str, folder: epath.Path) -> Iterator[Callable[[int], None]]:
    """Traces iterations start, ..., stop - 1 into `folder`, where `span` is 'start:stop'.

    If `span` is '', nothing is traced. The context yields a function, which the caller must call
    before each iteration with the iteration's number. If the context exits during a trace, the
    trace ends.
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
