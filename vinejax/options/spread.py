"""`rollout.flat`: what becomes of groups of solutions whose rewards are all equal.

Rewards are those of solutions and their steps, without penalties. 'drop' leaves the groups out;
'resample', DAPO's dynamic sampling (https://arxiv.org/abs/2503.14476, section 3.2), samples further
problems in their place, in a bounded number of rounds.
"""

from collections.abc import Callable

import numpy as np

from vinejax.core.types import Episode
from vinejax.credit.assign import group_numbers, has_spread
from vinejax.session.iteration import Iteration, Solutions


def with_spread(it: Iteration, sample: Callable[[], Solutions]) -> Solutions:
    """The solutions of an iteration, without groups that `rollout.flat` leaves out.

    `sample` draws problems and samples their solutions; another call draws further problems.
    """
    rollout = it.cfg.rollout
    if rollout.flat == "keep":
        return sample()
    if rollout.flat == "drop":
        found = sample()
        spread, _ = divided(found.episodes)
        found = found._replace(episodes=[episode for group in spread for episode in group])
    else:
        found = resampled(sample, rollout.rounds, lambda: it.can_draw)
    it.metrics["rollout/discarded"] = len(found.sampled) - len(found.episodes)
    return found


def resampled(
    sample: Callable[[], Solutions], rounds: int, can_draw: Callable[[], bool]
) -> Solutions:
    """The first groups with spread, as many as a round has problems.

    Rounds are sampled until there are enough, at most `rounds`, and while `can_draw`. Then groups
    without spread are added, up to that number.
    """
    all_rounds = [sample()]
    wanted, spread, flat = len(all_rounds[0].problems), *divided(all_rounds[0].episodes)
    while len(spread) < wanted and len(all_rounds) < rounds and can_draw():
        all_rounds.append(sample())
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
