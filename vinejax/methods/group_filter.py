"""`rollout.zero_variance`: what becomes of groups of solutions whose rewards are all equal.

Rewards are those of solutions and their steps, without penalties. 'drop' leaves the groups out;
'resample', DAPO's dynamic sampling (https://arxiv.org/abs/2503.14476, section 3.2), samples further
problems in their place, in a bounded number of rounds.
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
    """All groups of an iteration were left out: there is nothing to value or to learn from."""


def composed(method: Method, cfg: Config) -> Method:
    """The method, without the groups that `rollout.zero_variance` leaves out; `cfg` is resolved."""
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
    """An iteration of the method; the state as it was if no group was left."""
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
    found = method.sample(iteration, state, problems)
    spread, _ = divided(found.episodes)
    return _kept(iteration, found._replace(episodes=list(itertools.chain(*spread))))


def _resampled(
    method: Method, iteration: Iteration, state: RunState, problems: list[PromptedProblem]
) -> Solutions:
    """The method's solutions, with further problems in the place of groups without spread."""

    def further() -> Solutions:
        return method.sample(iteration, state, method.draw(iteration, state))

    first = method.sample(iteration, state, problems)
    rounds = iteration.cfg.rollout.rounds
    return _kept(iteration, resampled(first, further, rounds, lambda: iteration.can_draw))


def _kept(iteration: Iteration, found: Solutions) -> Solutions:
    iteration.metrics["rollout/discarded"] = len(found.sampled) - len(found.episodes)
    if not found.episodes:
        iteration.record_sampling(found.sampled)
        raise NoGroupLeft
    return found


def resampled(
    first: Solutions,
    further: Callable[[], Solutions],
    rounds: int,
    can_draw: Callable[[], bool],
) -> Solutions:
    """The first groups with spread, as many as the first round has problems.

    Rounds are sampled by `further` until there are enough, at most `rounds` with the first, and
    while `can_draw`. Then groups without spread are added, up to that number.
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
    """(the groups with spread, the others), each in the order in which they first come."""
    groups, spread = group_numbers(episodes), has_spread(episodes)
    both: tuple[list[list[Episode]], list[list[Episode]]] = ([], [])
    for number in dict.fromkeys(groups.tolist()):
        rows = np.flatnonzero(groups == number)
        both[0 if spread[rows[0]] else 1].append([episodes[row] for row in rows])
    return both
