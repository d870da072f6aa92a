"""`rollout.zero_variance`: the treatment of groups of solutions whose rewards are all equal.

Rewards here are those of solutions and their steps, without penalties. 'drop' removes such groups.
'resample' replaces them by groups of further problems, in a bounded number of rounds. This is the
dynamic sampling of DAPO (https://arxiv.org/abs/2503.14476, section 3.2).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem, RunState
from vinejax.credit.assign import group_numbers, has_spread
from vinejax.methods.base import Method
from vinejax.session.iteration import Iteration, Solutions


class NoGroupLeft(Exception):
    """All groups of an iteration were removed, so there is nothing to learn from."""


def composed(method: Method, cfg: Config) -> Method:
    """The method with a `sample` that follows `rollout.zero_variance`.

    `cfg` must come from `Method.resolve`.
    """
    if cfg.rollout.zero_variance == "keep":
        return method
    resamples = cfg.rollout.zero_variance == "resample"
    return dataclasses.replace(
        method,
        sample=functools.partial(_resampled if resamples else _dropped, method),
        iteration=functools.partial(_unless_all_left_out, method.iteration),
    )


def _unless_all_left_out(
    iterate: Callable[..., RunState], method: Method, iteration: Iteration, state: RunState
) -> RunState:
    """The state that `iterate` returns for an iteration, or `state` if no group is left."""
    try:
        return iterate(method, iteration, state)
    except NoGroupLeft:
        iteration.session.engine.release()
        iteration.record_episodes([])
        return state


def _dropped(
    method: Method, iteration: Iteration, state: RunState, problems: list[PromptedProblem]
) -> Solutions:
    """The method's solutions, without groups whose rewards are all equal."""
    solutions = method.sample(iteration, state, problems)
    spread, _ = divided(solutions.episodes)
    return _kept(iteration, solutions._replace(episodes=list(itertools.chain(*spread))))


def _resampled(
    method: Method, iteration: Iteration, state: RunState, problems: list[PromptedProblem]
) -> Solutions:
    """The method's solutions. Groups of further problems replace groups of equal rewards."""

    def further() -> Solutions:
        return method.sample(iteration, state, method.draw(iteration, state))

    first = method.sample(iteration, state, problems)
    rounds = iteration.cfg.rollout.rounds
    return _kept(iteration, resampled(first, further, rounds, lambda: iteration.can_draw))


def _kept(iteration: Iteration, solutions: Solutions) -> Solutions:
    """The solutions, after their discarded ones are counted; raises NoGroupLeft if none is left."""
    iteration.metrics["rollout/discarded"] = len(solutions.sampled) - len(solutions.episodes)
    if not solutions.episodes:
        iteration.record_sampling(solutions.sampled)
        raise NoGroupLeft
    return solutions


def resampled(
    first: Solutions,
    further: Callable[[], Solutions],
    rounds: int,
    can_draw: Callable[[], bool],
) -> Solutions:
    """Solutions in as many groups as `first` has problems; groups with spread come first.

    Spread means that rewards are not all equal. While too few groups have spread, `further` samples
    another round, up to `rounds` rounds including `first`, and only if `can_draw()` is true.
    """
    all_rounds = [first]
    wanted, spread, flat = len(first.problems), *divided(first.episodes)
    while len(spread) < wanted and len(all_rounds) < rounds and can_draw():
        all_rounds.append(further())
        more = divided(all_rounds[-1].episodes)
        spread, flat = spread + more[0], flat + more[1]
    kept = (spread + flat)[:wanted]
    return Solutions(
        problems=[problem for part in all_rounds for problem in part.problems],
        episodes=[episode for group in kept for episode in group],
        sampled=[episode for part in all_rounds for episode in part.sampled],
    )


def divided(episodes: list[Episode]) -> tuple[list[list[Episode]], list[list[Episode]]]:
    """(groups of unequal rewards, groups of equal rewards).

    Each list is in the order in which the groups' first episodes stand in `episodes`.
    """
    groups, spread = group_numbers(episodes), has_spread(episodes)
    both: tuple[list[list[Episode]], list[list[Episode]]] = ([], [])
    for number in dict.fromkeys(groups.tolist()):
        rows = np.flatnonzero(groups == number)
        both[0 if spread[rows[0]] else 1].append([episodes[row] for row in rows])
    return both
