"""Episodes as the rows of episodes/<iteration>.jsonl: text, steps, values, advantages, reward."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from vinejax.core.text import (
    UNFINISHED,
    Tokenizer,
    added,
    continuation_text,
    decode,
    prefix_end,
    response_text,
    special_tokens,
)
from vinejax.core.types import Continuation, Departure, Episode, Labels, Problem, PromptedProblem

# Coefficients of an episode's labels, by the number of response tokens before the label, and token.
LabelCoefficients = dict[tuple[int, int], float]

MOST_UNREAD = 4000  # characters kept of an environment's answer that the policy did not read


def episode_rows(
    tokenizer: Tokenizer,
    problems: list[PromptedProblem],
    episodes: list[Episode],
    step_advantages: np.ndarray | None,
    iteration: int,
    vines: int,
    critic_values: np.ndarray | None = None,
    failure: Callable[[Problem, str], dict[str, str] | None] = lambda problem, response: None,
    labels: Labels | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields one row per episode; docs/metrics.md lists the fields.

    The first `vines` rows also hold the texts of their continuations. Of these rows, those
    whose response is a program that failed a test also hold the test, which `failure` finds.

    `step_advantages` and `critic_values` (V of the state before each step) are f32[B, C], one row
    per episode. They are None for a method that does not compute them. `labels` are those that the
    policy was trained on. With them, each continuation has the place at which it left the solution.
    """
    by_id = {problem.id: problem for problem, _ in problems}
    for i, episode in enumerate(episodes):
        problem = by_id[episode.problem_id]
        values = episode.values
        values_by = None if values is None else "continuations"
        if values is None and critic_values is not None:
            values = critic_values[i]
            values_by = "critic"
        advantages = None if step_advantages is None else step_advantages[i]
        coefficients = None if labels is None else _label_coefficients(labels, i, episode)
        failed = failure(problem, episode.text) if i < vines else None
        yield {
            "iteration": iteration,
            "problem_id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
            "prompt": decode(tokenizer, episode.prompt),
            "given": _given_text(tokenizer, episode),
            "response": episode.text,
            "finished": episode.finished,
            "reward": episode.reward,
            **({"rewards": episode.reward_parts} if episode.reward_parts else {}),
            **({"penalty": episode.penalty} if episode.penalty else {}),
            **({"failed_test": failed} if failed else {}),
            "values_by": values_by,
            "steps": _steps(
                tokenizer, episode, values, advantages, coefficients, with_texts=i < vines
            ),
        }


def _label_coefficients(labels: Labels, row: int, episode: Episode) -> LabelCoefficients:
    """The coefficients of the labels in a row, which is that of `episode`."""
    places = (np.asarray(labels.position)[row] - len(episode.prompt)).tolist()
    tokens, coefficients = (np.asarray(x)[row].tolist() for x in labels[1:3])
    return dict(zip(zip(places, tokens, strict=True), coefficients, strict=True))


def _with_departures(episode: Episode, c: int) -> Iterable[tuple[Continuation, Departure | None]]:
    """The continuations of step c, each with the place at which it leaves its solution, or None."""
    continuations = episode.continuations[c]
    departures = episode.departures[c] if episode.departures else [None] * len(continuations)
    return zip(continuations, departures, strict=True)


def _continuation(
    continuation: Continuation,
    departure: Departure | None,
    coefficients: LabelCoefficients | None,
    text_until: Callable[..., str],
    so_far: str,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """The fields of a continuation; with labels also where it leaves its solution, or None.

    `text_until(n, ...)` is the text of the first n response tokens and of further tokens, and
    `so_far` is the text before the continuation. A special token without a text has its name.
    """
    fields: dict[str, Any] = {
        "text": continuation.text,
        "reward": continuation.reward,
        "finish": continuation.finish,
    }
    if continuation.outcome != continuation.reward:
        fields["outcome"] = continuation.outcome
    if coefficients is None:
        return fields
    if departure is None:
        return fields | {"departure": None}
    position, token, return_from = departure
    before = text_until(position)
    text = added(before, text_until(position, token))
    if not text:
        text = next((name for name, i in special_tokens(tokenizer).items() if i == token), "")
    of_token = {
        "position": position,
        "character": len(added(so_far, before).rstrip(UNFINISHED)),
        "token": text,
        "return": return_from,
        "coefficient": coefficients.get((position, token), 0.0),
    }
    return fields | {"departure": of_token}


def _given_text(tokenizer: Tokenizer, episode: Episode) -> str:
    """The text of the response tokens that the policy did not sample; "" without such tokens."""
    return response_text(tokenizer, episode.prompt, episode.response[: episode.given])


def _errors(episode: Episode) -> list[float | None]:
    """[C] the standard error of the value before each step; None for an error that is not known."""
    if episode.value_errors is None:
        return [None] * len(episode.step_ends)
    return [x if math.isfinite(x) else None for x in episode.value_errors.tolist()]


def _steps(
    tokenizer: Tokenizer,
    episode: Episode,
    values: np.ndarray | None,
    advantages: np.ndarray | None,
    coefficients: LabelCoefficients | None,
    with_texts: bool,
) -> list[dict[str, Any]]:
    """The steps of an episode with V before and after each step; V after the last step is 0.

    Fields that the method or the task does not fill are None, as `coefficients` without labels.
    """
    num_steps = len(episode.step_ends)
    before = [None] * num_steps if values is None else values[:num_steps].tolist()
    values_around = [*before, 0.0]
    no_counts = np.zeros(num_steps)
    counts = no_counts if episode.value_counts is None else episode.value_counts
    reused = no_counts if episode.reused is None else episode.reused
    errors = _errors(episode)
    rewards = episode.step_rewards or [None] * num_steps
    prompt_end = prefix_end(tokenizer, episode.prompt)
    so_far = _given_text(tokenizer, episode)

    def text_until(end: int, *more: int) -> str:
        tokens = [*episode.response[:end], *more]
        return continuation_text(tokenizer, prompt_end, tokens)

    steps, start = [], 0
    for c, end in enumerate(episode.step_ends):
        text = text_until(end)
        observed = [
            [len(text_until(place)) - len(so_far) for place in (turn.drawn, turn.end)]
            for turn in episode.turns
            if start < turn.end <= end and turn.drawn < turn.end
        ]
        unread = [
            turn.observation[:MOST_UNREAD]
            for turn in episode.turns
            if start < turn.drawn == turn.end == end and turn.observation
        ]
        shown = _with_departures(episode, c) if with_texts and counts[c] else ()
        step = {
            "text": text[len(so_far) :],
            "value": values_around[c],
            "value_after": values_around[c + 1],
            "advantage": None if advantages is None else float(advantages[c]),
            "reward": rewards[c],
            "count": int(counts[c]),
            "reused": int(reused[c]),
            "error": errors[c],
            "continuations": [
                _continuation(x, departure, coefficients, text_until, so_far, tokenizer)
                for x, departure in shown
            ],
            **({"observed": observed} if episode.turns else {}),
            **({"unread": unread[0]} if unread else {}),
        }
        steps.append(step)
        so_far, start = text, end
    return steps
