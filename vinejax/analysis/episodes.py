"""Episodes as the rows of episodes/<iteration>.jsonl: text, steps, values, advantages, reward."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from vinejax.rollout.trajectories import PromptedProblem
from vinejax.tasks.text import continuation_text, decode
from vinejax.types import Episode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def episode_rows(
    tokenizer: "PreTrainedTokenizerBase",
    problems: list[PromptedProblem],
    episodes: list[Episode],
    step_advantages: np.ndarray | None,
    iteration: int,
    vines: int,
) -> Iterator[dict[str, Any]]:
    """One row an episode; the first `vines` of them with the texts of their continuations.

    `step_advantages` is f32[B, C], row by row those of the episodes; None: the method has none.
    """
    by_id = {problem.id: problem for problem, _ in problems}
    for i, episode in enumerate(episodes):
        problem = by_id[episode.problem_id]
        yield {
            "iteration": iteration,
            "problem_id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
            "prompt": decode(tokenizer, episode.prompt),
            "response": episode.text,
            "finished": episode.finished,
            "reward": episode.reward,
            "steps": _steps(
                tokenizer,
                episode,
                None if step_advantages is None else step_advantages[i],
                with_texts=i < vines,
            ),
        }


def _steps(
    tokenizer: "PreTrainedTokenizerBase",
    episode: Episode,
    advantages: np.ndarray | None,
    with_texts: bool,
) -> list[dict[str, Any]]:
    """A step with V before and after it (0 after the last: that state is terminal).

    What the method does not give is None.
    """
    values, counts = [None] * len(episode.step_ends), np.zeros(len(episode.step_ends))
    if episode.values is not None and episode.value_counts is not None:
        values, counts = episode.values.tolist(), episode.value_counts
    values = [*values, 0.0]
    prompt_text = decode(tokenizer, episode.prompt)
    so_far, steps = "", []
    for c, end in enumerate(episode.step_ends):
        text = continuation_text(tokenizer, episode.prompt, prompt_text, episode.response[:end])
        continuations = episode.continuations[c] if with_texts and counts[c] else ()
        steps.append(
            {
                "text": text[len(so_far) :],
                "value": values[c],
                "value_after": values[c + 1],
                "advantage": None if advantages is None else float(advantages[c]),
                "count": int(counts[c]),
                "continuations": [
                    {"text": x.text, "reward": x.reward, "finish": x.finish} for x in continuations
                ],
            }
        )
        so_far = text
    return steps
