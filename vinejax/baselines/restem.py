"""RestEM: fine-tuning, each time from the supervised start, on the policy's own correct solutions.

Source: https://arxiv.org/abs/2312.06585, and the reference's `trainers/restem_trainer.py` and
`episode_generators/math_restem_episode_generator.py`. The loop around it is in `offline.py`.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import optax

from vinejax.baselines.sft import Likelihood, sft_step
from vinejax.learner.batch import collate, shuffled
from vinejax.model.decoder import Decoder, Params
from vinejax.settings import Config
from vinejax.types import Batch, Episode, TrainState

CORRECT = 1.0  # the least reward that is learnt from


def keep_correct(episodes: list[Episode], per_problem: int) -> list[Episode]:
    """The first `per_problem` episodes of each problem whose reward is `CORRECT`."""
    counts: dict[str, int] = {}
    kept = []
    for episode in episodes:
        seen = counts.get(episode.problem_id, 0)
        if episode.reward >= CORRECT and episode.response and seen < per_problem:
            counts[episode.problem_id] = seen + 1
            kept.append(episode)
    return kept


def epochs_of(
    examples: list[Episode], epochs: int, size: int, seed: int, iteration: int
) -> Iterator[Batch]:
    """The batches of all epochs, of one compiled shape; the last of each may hold empty rows."""
    longest = max(len(example.tokens) for example in examples)
    for epoch in range(epochs):
        for part in shuffled(examples, size, seed, iteration, epoch):
            yield collate(part, size, longest)


def climb(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batches: Iterator[Batch],
    cfg: Config,
    accuracy: Callable[[Params], float],
) -> tuple[TrainState, list[float], list[float]]:
    """(the state before the first look that was no better, losses, the accuracies that were seen).

    Validation is looked at before the first update, after every `restem.eval_every` and after the
    last. The state returned is the one with the best accuracy seen, as accuracies rise until the
    look that ends the climb. Source: `restem_paper_original`, restem_trainer.py:353-433, which
    trains to the end first and walks over the checkpoints afterwards.
    """
    how = Likelihood("sequence", cfg.sample.temperature, cfg.ppo.microbatch)
    best, seen, losses = jax.tree.map(jnp.copy, state), [accuracy(state.params)], []
    last = False
    following = next(batches, None)
    while following is not None and not last:
        state, loss = sft_step(model, optimizer, state, following, how)
        losses.append(float(loss))
        following = next(batches, None)
        if following is None or len(losses) % cfg.restem.eval_every == 0:
            seen.append(accuracy(state.params))
            last = seen[-1] <= seen[-2]
            best = best if last else jax.tree.map(jnp.copy, state)  # donated below
    return best, losses, seen
