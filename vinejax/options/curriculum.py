"""`rollout.curriculum`: problems are drawn by their pass rates.

A problem is hard, medium or easy by the share of right ones among its solutions when it was last
drawn, up to `rollout.levels` and above; one that was never drawn counts as medium. The next problem
of a draw is i with chance w_i / Σ w, w the weights of the levels. The levels are those of CLPO,
https://arxiv.org/abs/2509.25004, which rewrites hard and medium problems instead.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Episode, is_correct
from vinejax.model.decoder import Params
from vinejax.options.option import Option
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session

NEVER = -1.0  # pass rate of a problem that was not drawn yet
HARD, MEDIUM, EASY = range(3)


def level_of(rates: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """i64[P] the levels of pass rates f32[P]: HARD up to the first of `levels`, MEDIUM to the
    second, EASY above; MEDIUM for `NEVER`."""
    found = np.searchsorted(np.array(levels, np.float32), rates)
    return np.where(rates == NEVER, MEDIUM, found)


class Curriculum(Option):
    """Keeps the pass rates of the train problems, f32[P], in the train split's order."""

    def keeps(self, cfg: Config) -> bool:
        return bool(cfg.rollout.curriculum)

    def fresh(self, session: Session) -> np.ndarray:
        return np.full(len(session.problems["train"]), NEVER, np.float32)

    def begin(self, it: Iteration, kept: np.ndarray, params: Params) -> np.ndarray:
        rollout = it.cfg.rollout
        levels = level_of(kept, rollout.levels)
        it.weights = np.array(rollout.curriculum)[levels]
        is_known = kept != NEVER
        shares = np.bincount(levels[is_known], minlength=3) / max(len(kept), 1)
        names = ("curriculum/hard", "curriculum/medium", "curriculum/easy")
        it.metrics |= dict(zip(names, shares.tolist(), strict=True))
        return kept

    def sampled(self, it: Iteration, kept: np.ndarray, episodes: list[Episode]) -> np.ndarray:
        return counted(kept, [p.id for p, _ in it.session.problems["train"]], episodes)


def counted(rates: np.ndarray, names: list[str], episodes: list[Episode]) -> np.ndarray:
    """The pass rates of the problems `names` after these solutions; those of resets do not count.

    The leaves of a tree were all sampled from the prompt, whatever is given in their rows.
    """
    places, rates = {name: i for i, name in enumerate(names)}, rates.copy()
    right: dict[str, list[bool]] = {}
    for episode in episodes:
        if not episode.given or episode.nodes is not None:
            right.setdefault(episode.problem_id, []).append(is_correct(episode.reward))
    for name, found in right.items():
        rates[places[name]] = np.mean(found)
    return rates
