"""What any policy gradient may be given besides: each option in a module of its own.

Those that keep something between iterations are in `OPTIONS`; what they keep is in
`RunState.options`, by name, and in every checkpoint.
"""

from collections.abc import Mapping
from typing import Any

from vinejax.core.types import Episode, Rollout, RunState
from vinejax.options.adaptive_kl import AdaptiveKL
from vinejax.options.curriculum import Curriculum
from vinejax.options.option import Option
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session

OPTIONS: Mapping[str, Option] = {
    "curriculum": Curriculum(),
    "adaptive_kl": AdaptiveKL(),
}


def fresh(session: Session) -> dict[str, Any] | None:
    """What the options of a run keep before the first iteration; None if they keep nothing."""
    kept = {x: option.fresh(session) for x, option in OPTIONS.items() if option.keeps(session.cfg)}
    return kept or None


def begin(it: Iteration, state: RunState) -> RunState:
    """The state at the start of an iteration, before anything is sampled."""
    for name, kept in _kept(state):
        state = _with(state, name, OPTIONS[name].begin(it, kept, state.policy.params))
    return state


def sampled(it: Iteration, state: RunState, episodes: list[Episode]) -> RunState:
    """The state after all solutions of an iteration were sampled."""
    for name, kept in _kept(state):
        state = _with(state, name, OPTIONS[name].sampled(it, kept, episodes))
    return state


def scored(it: Iteration, state: RunState, rollout: Rollout) -> tuple[RunState, Rollout]:
    """The state after the solutions were scored, and the rollout for the credit."""
    for name, kept in _kept(state):
        after, rollout = OPTIONS[name].scored(it, kept, rollout)
        state = _with(state, name, after)
    return state, rollout


def _kept(state: RunState) -> list[tuple[str, Any]]:
    return list((state.options or {}).items())


def _with(state: RunState, name: str, kept: Any) -> RunState:
    return state._replace(options=state.options | {name: kept})
