"""An option that keeps something between iterations."""

from typing import Any

from vinejax.core.settings import Config
from vinejax.core.types import Episode, Rollout
from vinejax.model.decoder import Params
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session


class Option:
    """What an option keeps, in `RunState.options`, and what it does in an iteration.

    Checkpoints hold it: a pytree of arrays, of one structure and shape throughout the run, replaced
    and never changed in place, nor donated.
    """

    def keeps(self, cfg: Config) -> bool:
        """Whether the run has the option."""
        raise NotImplementedError

    def fresh(self, session: Session) -> Any:
        """What is kept before the first iteration."""
        raise NotImplementedError

    def begin(self, it: Iteration, kept: Any, params: Params) -> Any:
        """What is kept, before anything is sampled; `params` are the policy's trained weights."""
        return kept

    def sampled(self, it: Iteration, kept: Any, episodes: list[Episode]) -> Any:
        """What is kept after all solutions of the iteration, those left out too, were sampled."""
        return kept

    def scored(self, it: Iteration, kept: Any, rollout: Rollout) -> tuple[Any, Rollout]:
        """What is kept after the rollout has its log-probabilities, and the rollout for credit."""
        return kept, rollout
