"""Learned values from a user's function, whose dotted path is `values.prior`.

The function is called like a reward function (`tasks/rewards.py`), with arguments by name, for
solutions that are cut at a state. It gets `prompts`, and the responses up to the state as
`completions`, or `response` if it takes one solution. It returns the probability, from 0 to 1, that
a solution which continues from the state succeeds.

The function must judge each text by itself, because a call can have several states of the same
solution. The first host calls it for all hosts, once per different text.
"""

import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vinejax.contrib.priors.settings import PriorFunctionConfig
from vinejax.core.errors import UserError
from vinejax.core.plugins import called_within, place_of, source_of
from vinejax.core.settings import Config, ValuesConfig
from vinejax.core.text import response_text
from vinejax.core.types import Problem, Rollout
from vinejax.credit.assign import state_places
from vinejax.runtime.distributed import is_writer, shared_work
from vinejax.runtime.stopping import Watch
from vinejax.session.session import Session
from vinejax.tasks.graded import BackgroundGrading
from vinejax.tasks.rewards import RewardCall, RewardFunction, function_at, module_name

FIELD, PROBE = "values.prior", "probe"


class CutSolution(NamedTuple):
    """A solution, of which only the tokens up to a state are left."""

    problem: Problem
    ids: list[int]  # token ids of the response up to the state
    text: str  # text of these tokens
    name: str  # name of the state in messages


def find_prior(values: ValuesConfig) -> RewardFunction | None:
    """The function that `values.prior` names; None if the setting names no function.

    Raises ConfigError if the path leads to no function. If the module fails, the error has the file
    and the line.
    """
    path = values.prior
    if path in ("", PROBE):
        return None
    return RewardFunction(FIELD, path, 1.0, function_at(FIELD, path, PROBE), FIELD)


def function_values(session: Session, rollout: Rollout, cfg: Config) -> np.ndarray:
    """The function's number for each state, f64[S], in the order of `credit.assign.state_places`.

    Raises UserError, with a line that names function and states, if the function fails, takes more
    than `prior_function.timeout_s` for a batch, or returns anything but numbers from 0 to 1.
    """
    states = list(_cut_solutions(session, rollout))
    firsts: dict[tuple[str, str], int] = {}  # index of the first of equal texts
    place = [firsts.setdefault((x.problem.id, x.text), i) for i, x in enumerate(states)]
    different, watch = sorted(firsts.values()), Watch()
    numbers: dict[int, float] = {}
    for start in range(0, len(different), BackgroundGrading.BATCH):
        batch = different[start : start + BackgroundGrading.BATCH]
        found = batch_values(cfg, session, [states[i] for i in batch]) if is_writer() else []
        numbers |= shared_work(dict(zip(batch, found, strict=False)))
        watch.look()
    return np.array([numbers[i] for i in place])


def batch_values(cfg: Config, session: Session, batch: Sequence[CutSolution]) -> list[float]:
    """The function's numbers for a batch. Raises the same errors as `function_values`."""
    prior, task = find_prior(cfg.values), session.task
    assert prior is not None
    call, names = (
        RewardCall([cut.ids for cut in batch], session.graded.state),
        [x.name for x in batch],
    )
    items = [(cut.problem, cut.text) for cut in batch]
    seconds = PriorFunctionConfig.of(cfg).timeout_s
    found, thread = called_within(
        seconds, "prior", prior.rewards, items, task.name, task.prompt, call, names
    )
    if not found:
        raise _too_slow(prior, seconds, names, thread)
    (found,) = found
    for number, name in zip(found, names, strict=True):
        if number is None or not 0 <= number <= 1:
            raise prior.misfit(f"gave {number!r} for {name}; needed is a number from 0 to 1")
    return found


def _too_slow(
    prior: RewardFunction, seconds: float, names: Sequence[str], thread: threading.Thread
) -> UserError:
    """The error for a call that takes more than `seconds`; it names the line that runs now."""
    file = source_of(module_name(prior.path))
    lines = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))
    line = next((f"{file}:{x.lineno}" for x in reversed(lines) if x.filename == file), "")
    message = f"took more than prior_function.timeout_s = {seconds:g} on {names[0]} to {names[-1]}"
    return prior.error(f"{message}: it is at {line or place_of(prior.function or prior.rewards)}")


def _cut_solutions(session: Session, rollout: Rollout) -> Iterator[CutSolution]:
    """Yields a solution cut at each state of a rollout, ordered as by `assign.state_places`."""
    problems = {problem.id: problem for problem, _ in session.problems["train"]}
    for row, step, used in state_places(rollout).tolist():
        episode = rollout.episodes[row]
        ids = episode.response[:used]
        text = response_text(session.tokenizer, episode.prompt, ids)
        name = f"problem {episode.problem_id}, step {step}"
        yield CutSolution(problems[episode.problem_id], ids, text, name)
