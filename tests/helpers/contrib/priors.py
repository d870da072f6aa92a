"""Functions that `values.prior` names in tests."""

import time

SEEN: list[tuple[str, str]] = []  # (prompt, completion) of every text that was asked for
HANG_S = 60.0


def by_length(prompts, completions, completion_ids, answer):
    """A number for each text; remembers what it was given."""
    SEEN.extend(zip(map(str, prompts), map(str, completions), strict=True))
    assert [len(ids) for ids in completion_ids] == [len(text) for text in completions]
    assert len(answer) == len(prompts)
    return [1 / (1 + len(text)) for text in completions]


def one_by_one(response, problem):
    return {"score": 0.25 if response else 0.75}


def raises(completions):
    return [{}["key"] for _ in completions]


def hangs(completions):
    time.sleep(HANG_S)


def gives_nan(completions):
    return [0.5] * (len(completions) - 1) + [float("nan")]


def too_large(completions):
    return [0.5] * (len(completions) - 1) + [1.3]


def too_few(completions):
    return [0.5] * (len(completions) - 1)


def judges_none(response):
    return None


def unknown_argument(completions, colour):
    return [0.5] * len(completions)
