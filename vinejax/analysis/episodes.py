"""Episodes as the rows of episodes/<iteration>.jsonl: text, steps, values, advantages, reward."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from vinejax.text import Tokenizer, continuation_text, decode
from vinejax.types import Episode, PromptedProblem


def episode_rows(
    tokenizer: Tokenizer,
    problems: list[PromptedProblem],
    episodes: list[Episode],
    step_advantages: np.ndarray | None,
    iteration: int,
    vines: int,
    critic_values: np.ndarray | None = None,
) -> Iterator[dict[str, Any]]:
    """One row an episode; the first `vines` of them with the texts of their continuations.

    `step_advantages` is f32[B, C], row by row those of the episodes, and so is `critic_values`, of
    the states before the steps; None: the method has none. docs/metrics.md has the fields.
    """
    by_id = {problem.id: problem for problem, _ in problems}
    for i, episode in enumerate(episodes):
        problem, values, values_by = by_id[episode.problem_id], None, None
        if episode.values is not None:
            values, values_by = episode.values, "continuations"
        elif critic_values is not None:
            values, values_by = critic_values[i], "critic"
        yield {
            "iteration": iteration,
            "problem_id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
            "prompt": decode(tokenizer, episode.prompt),
            "response": episode.text,
            "finished": episode.finished,
            "reward": episode.reward,
            "values_by": values_by,
            "steps": _steps(
                tokenizer,
                episode,
                values,
                None if step_advantages is None else step_advantages[i],
                with_texts=i < vines,
            ),
        }


def _steps(
    tokenizer: Tokenizer,
    episode: Episode,
    values: np.ndarray | None,
    advantages: np.ndarray | None,
    with_texts: bool,
) -> list[dict[str, Any]]:
    """A step with V before and after it (0 after the last: that state is terminal).

    What the method or the task does not give is None.
    """
    num_steps, counts = len(episode.step_ends), episode.value_counts
    before = [None] * num_steps if values is None else values[:num_steps].tolist()
    around = [*before, 0.0]
    counts = np.zeros(num_steps) if counts is None else counts
    rewards = episode.step_rewards or [None] * num_steps
    prompt_text = decode(tokenizer, episode.prompt)
    so_far, steps = "", []
    for c, end in enumerate(episode.step_ends):
        text = continuation_text(tokenizer, episode.prompt, prompt_text, episode.response[:end])
        continuations = episode.continuations[c] if with_texts and counts[c] else ()
        steps.append(
            {
                "text": text[len(so_far) :],
                "value": around[c],
                "value_after": around[c + 1],
                "advantage": None if advantages is None else float(advantages[c]),
                "reward": rewards[c],
                "count": int(counts[c]),
                "continuations": [
                    {"text": x.text, "reward": x.reward, "finish": x.finish} for x in continuations
                ],
            }
        )
        so_far = text
    return steps
