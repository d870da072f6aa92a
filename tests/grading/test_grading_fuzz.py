"""Grading and splitting of texts that no one thought of: nothing raises, nothing takes a second.

The short profile of every run; VINEJAX_FUZZ_S=600 searches for that many seconds instead.
"""

import os
import time
from collections.abc import Callable

import pytest
from helpers.grading_grammar import FORMS, PIECES, check_reference, check_strict, check_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("VINEJAX_FUZZ_S", "0"))  # of search, in each of the tests
EXAMPLES = 2000 if SECONDS else 80  # before the clock is looked at


def _filled(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A form with a part in place of each "@"."""

    def fill(form: str) -> st.SearchStrategy[str]:
        holes = form.split("@")
        return st.tuples(*[parts] * (len(holes) - 1)).map(
            lambda made: "".join(a + b for a, b in zip(holes, [*made, ""], strict=True))
        )

    return st.sampled_from(FORMS).flatmap(fill)


PARTS = st.sampled_from(PIECES) | st.text(max_size=6)
LATEX = st.recursive(PARTS, _filled, max_leaves=12)
SOUP = st.lists(PARTS, max_size=30).map("".join)
TEXTS = LATEX | SOUP | st.lists(LATEX, max_size=5).map(" ".join)

CHECKS: dict[str, tuple[Callable[..., None], int]] = {
    "text": (check_text, 1),
    "strict": (check_strict, 2),
    "reference": (check_reference, 2),
}


@pytest.mark.parametrize("name", CHECKS)
def test_any_text(name: str) -> None:
    check, count = CHECKS[name]
    start, tried = time.monotonic(), 0

    @settings(
        max_examples=EXAMPLES,
        derandomize=not SECONDS,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.tuples(*[TEXTS] * count))
    def search(texts: tuple[str, ...]) -> None:
        nonlocal tried
        tried += 1
        check(*texts)

    search()
    while time.monotonic() < start + SECONDS:
        search()
    assert tried >= EXAMPLES
    print(f"{name}: {tried} in {time.monotonic() - start:.0f} s")
