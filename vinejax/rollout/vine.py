"""The values of an episode's states, from Monte Carlo continuations of each.

V(s) is the mean return of continuations sampled from the policy at s. The return is what the steps
after the state bring, discounted by `ppo.gamma` per step: their own rewards, if the task gives any,
and with the last of them the reward of the outcome. V(s_C) = 0 needs no sample. Where the states
are, how many continuations each has and which returns count are rules: see `credit/`.
An episode is one trunk, its states are positions on it, so a value costs no prefill of its own.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer, token_text
from vinejax.core.types import Continuation, Episode, Problem, PromptedProblem
from vinejax.credit.allocation import AllocationRule, Seen
from vinejax.credit.estimate import Returns, StateEstimate, estimates
from vinejax.credit.positions import positions_of, with_steps_between
from vinejax.credit.rules import find_rule
from vinejax.credit.samples import PassingSamples, Sample
from vinejax.model.decoder import Params
from vinejax.rollout.sampler import Sampler, ValuedState

MOST_WAVES = 1000


class VisitedStates(NamedTuple):
    """What is known of an episode's S states once all was sampled: see `estimates`."""

    returns: Sequence[Returns]  # [S]
    first: int
    rewards: list[float]  # [C]
    backed_up: list[float] | None  # [S]


def fill_values(
    sampler: Sampler,
    params: Params,
    problems: list[PromptedProblem],
    episodes: list[Episode],
) -> list[Episode]:
    """The episodes with values; their steps lie between states.

    Where the engine scores as the learner does, episodes are `scored` by the prefill of their
    trunks.

    Raises ConfigError, as `find_rule` says, for a user's rule, and if its waves do not end.
    """
    rule = find_rule("values.allocation", sampler.cfg)
    by_id = {problem.id: problem for problem, _ in problems}
    rows: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        rows.setdefault(episode.problem_id, []).append(i)
    vines = [
        ProblemStates(sampler, by_id[name], [episodes[i] for i in own], rule, own)
        for name, own in rows.items()
    ]
    states = [state for of_problem in vines for state in of_problem.states]
    logprobs: list[np.ndarray] = []
    for wave in itertools.count():
        found = [of_problem.wanted(wave) for of_problem in vines]
        if all(counts is None for counts in found):
            break
        counts = [x or [0] * len(v.states) for v, x in zip(vines, found, strict=True)]
        scored = wave == 0 and can_score(sampler)
        every = [count for of_problem in counts for count in of_problem]
        logprobs += sampler.continuations(params, episodes, states, every, scored)
        for of_problem, new in zip(vines, counts, strict=True):
            of_problem.count_new(new)
    return filled(vines, logprobs, sampler.cfg.ppo.gamma)


def can_score(sampler: Sampler) -> bool:
    """Whether the prefill of an episode's trunk scores it as the learner does."""
    return sampler.engine.scores_as_learner


class ProblemStates:
    """The states of a problem's episodes, and the returns that were seen at each."""

    def __init__(
        self,
        sampler: Sampler,
        problem: Problem,
        episodes: list[Episode],
        rule: AllocationRule,
        numbers: Sequence[int],
    ):
        """`rule` is the allocation; `numbers` has each episode's trunk among those of a call."""
        cfg, tokenizer = sampler.cfg, sampler.engine.tokenizer
        self._values, self._gamma = cfg.values, cfg.ppo.gamma
        self._rule, self.numbers, self._is_over = rule, numbers, False
        self.episodes, places = divide_at_states(episodes, cfg, tokenizer)
        # Number of the step that begins at the first state: 0, or 1 if step 0 begins at no state.
        self._first = [
            int(bool(positions) and positions[0] > episode.given)
            for positions, episode in zip(places, episodes, strict=True)
        ]
        if (most := cfg.values.max_states) is not None:
            # The end of what is given, if it is a state, and the first so many others.
            pairs = zip(places, episodes, strict=True)
            places = [x[: most + (x[:1] == [episode.given])] for x, episode in pairs]
        self._places = places
        self.states, self._visits = _find_states(problem, self.episodes, places, numbers, cfg)
        self._earned = [np.cumsum([0.0, *episode.rewards]).tolist() for episode in self.episodes]
        self._passing = None
        if not self._values.reuse:
            return
        ids, responses = zip(*((e.problem_id, e.response) for e in episodes), strict=True)
        self._passing = PassingSamples(ids, responses, self._places, self._gamma)
        for i, episode in enumerate(episodes):
            own = {(i, c) for c in range(len(self._places[i]))}
            sample = _whole(episode, episode.step_rewards is not None or self._gamma != 1)
            self._passing.add(episode.problem_id, sample, own, own=i)

    def wanted(self, wave: int) -> list[int] | None:
        """New continuations of each of `states`; None: there are no more waves.

        Raises ConfigError if there is no end of them.
        """
        if self._is_over:
            return None
        counts, is_over = [0] * len(self.states), True
        for i, visited in enumerate(self._visits):
            requests = self._rule(wave, self._seen(i), self._values)
            if requests is None:
                continue
            is_over = False
            for s, count in zip(visited, requests, strict=True):
                counts[s] = max(counts[s], count)
        self._is_over = is_over
        if wave == MOST_WAVES and not is_over:
            rule = f"wants more than {MOST_WAVES} waves; a rule gives None once it wants no more"
            raise ConfigError("values.allocation", rule, repr(self._values.allocation))
        return None if is_over else counts

    def count_new(self, counts: list[int]) -> None:
        """Adds the newest `counts[s]` continuations of each state to all states on their way."""
        if self._passing is None:
            return
        for state, count in zip(self.states, counts, strict=True):
            for drawn in state.continuations[len(state.continuations) - count :]:
                self._passing.add(state.problem.id, drawn.sample, counted=state.visits)

    def seen(self) -> list[VisitedStates]:
        """What `estimates` takes of each episode."""
        means: Sequence[list[float] | None] = [None] * len(self.episodes)
        if self._passing is not None and self._values.backup:
            means = self._passing.backed_up()
        return [
            VisitedStates(self._seen(i).returns, self._first[i], episode.rewards, means[i])
            for i, episode in enumerate(self.episodes)
        ]

    def filled(self, made: Sequence[StateEstimate]) -> list[Episode]:
        """The episodes with these values, and the continuations of the states that they visit."""
        groups = [
            tuple(drawn.continuation for drawn in state.continuations) for state in self.states
        ]
        filled = []
        for i, (episode, estimate) in enumerate(zip(self.episodes, made, strict=True)):
            continuations: list[tuple[Continuation, ...]] = [()] * len(episode.step_ends)
            for c, s in enumerate(self._visits[i], start=self._first[i]):
                continuations[c] = groups[s]
            drawn = np.array([len(group) for group in continuations], np.int32)
            filled.append(
                dataclasses.replace(
                    episode,
                    values=estimate.values,
                    is_state=estimate.is_state,
                    value_counts=estimate.counts,
                    value_errors=estimate.errors,
                    reused=estimate.counts - drawn,
                    continuations=tuple(continuations),
                )
            )
        return filled

    def _seen(self, i: int) -> Seen:
        """The returns at the states of episode i: of their own continuations, then of others."""
        returns = [
            [d.continuation.reward for d in self.states[s].continuations] for s in self._visits[i]
        ]
        if self._passing is not None:
            passed = self._passing.returns[i]
            returns = [own + others for own, others in zip(returns, passed, strict=True)]
        earned = self._earned[i]
        return Seen(returns, earned[self._first[i] :][: len(returns)], earned[-1])


def filled(
    vines: Sequence[ProblemStates], logprobs: Sequence[np.ndarray], gamma: float
) -> list[Episode]:
    """The episodes of all problems with their values, in the order of their numbers.

    `logprobs` are those of their trunks, by number, if they were scored. Values are estimated for
    all problems at once: errors share the variance within states.
    """
    visited = [of_one for of_problem in vines for of_one in of_problem.seen()]
    backed_up = [of_one.backed_up for of_one in visited]
    made = estimates(
        [of_one.returns for of_one in visited],
        [of_one.first for of_one in visited],
        [of_one.rewards for of_one in visited],
        gamma,
        None if None in backed_up else [x for x in backed_up if x is not None],
    )
    found: dict[int, Episode] = {}
    start = 0
    for of_problem in vines:
        end = start + len(of_problem.numbers)
        found |= zip(of_problem.numbers, of_problem.filled(made[start:end]), strict=True)
        start = end
    if len(logprobs):
        found = {
            i: dataclasses.replace(episode, scored=logprobs[i][len(episode.prompt) :].tolist())
            for i, episode in found.items()
        }
    return [found[i] for i in range(len(found))]


def divide_at_states(
    episodes: list[Episode], cfg: Config, tokenizer: Tokenizer
) -> tuple[list[Episode], list[list[int]]]:
    """(the episodes with steps between states, the positions of each one's states)."""
    rule, text_of = find_rule("values.positions", cfg), token_text(tokenizer)
    places = [positions_of(rule, episode, text_of, cfg.values) for episode in episodes]
    return list(map(with_steps_between, episodes, places)), places


def _find_states(
    problem: Problem,
    episodes: list[Episode],
    places: list[list[int]],
    numbers: Sequence[int],
    cfg: Config,
) -> tuple[list[ValuedState], list[list[int]]]:
    """(the states to sample from, for each episode the numbers of its states among them).

    Equal token prefixes are one state (`values.dedup`): its solutions share s_0.
    """
    states: list[ValuedState] = []
    known: dict[tuple[object, ...], int] = {}
    visits: list[list[int]] = []
    for i, episode in enumerate(episodes):
        visits.append([])
        for c, used in enumerate(places[i]):
            prefix = (*episode.prompt, *episode.response[:used])
            key = prefix if cfg.values.dedup else (i, c)
            if key not in known:
                known[key] = len(states)
                step = episode.step_ends.index(used) + 1 if used > episode.given else 0
                states.append(ValuedState(problem, numbers[i], episode, i, step, used, visits=[]))
            states[known[key]].visits.append((i, c))
            visits[-1].append(known[key])
    return states, visits


def _whole(episode: Episode, with_steps: bool) -> Sample:
    """A solution as a sample, with the task's own steps if returns depend on them."""
    ends = episode.step_ends if with_steps else []
    return Sample(
        tokens=np.array(episode.response, np.int32),
        start=episode.given,
        ends=ends,
        rewards=(episode.step_rewards or [0.0] * len(ends)) if with_steps else [],
        outcome=episode.outcome,
    )
