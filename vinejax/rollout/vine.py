"""The values of an episode's states, from Monte Carlo continuations of each.

V(s) is the mean return of continuations sampled from the policy at s. The return is the sum of the
rewards of the steps after the state, discounted by `ppo.gamma` per step. A step has its own reward
if the task gives one, and the last step has the outcome's reward as well. V(s_C) = 0 needs no
sample. The rules of `credit/` decide where the states are, how many continuations each has and
which returns count.

An episode is one trunk and its states are positions on it, so a value costs no extra prefill.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer, token_text
from vinejax.core.types import Continuation, Departure, Episode, Problem, PromptedProblem
from vinejax.credit.allocation import AllocationRule, Seen
from vinejax.credit.estimate import Returns, StateEstimate, estimates
from vinejax.credit.labels import departure_of, passing_tokens
from vinejax.credit.positions import positions_of, with_steps_between
from vinejax.credit.rules import find_rule
from vinejax.credit.samples import PassingSamples, Sample
from vinejax.model.decoder import Params
from vinejax.rollout.sampler import Sampler, ValuedState

MOST_WAVES = 1000


class VisitedStates(NamedTuple):
    """What sampling has found at an episode's S states.

    The fields are the arguments of `estimates`, here for one solution.
    """

    returns: Sequence[Returns]  # [S] returns at each state
    first: int  # number of the step that begins at the first state
    rewards: list[float]  # [C] rewards of the steps
    backed_up: list[float] | None  # [S] backed-up values, with `values.backup`


def fill_values(
    sampler: Sampler,
    params: Params,
    problems: list[PromptedProblem],
    episodes: list[Episode],
) -> list[Episode]:
    """The episodes with values, divided into the steps that lie between states.

    If the engine scores as the learner does, the prefill of the trunks gives `Episode.scored`.

    Raises ConfigError if a user's allocation rule fails, as `find_rule` describes, and if the waves
    of the allocation rule do not end.
    """
    by_problem, logprobs = sampled_states(sampler, params, problems, episodes)
    return valued_episodes(by_problem, logprobs, sampler.cfg.ppo.gamma)


def sampled_states(
    sampler: Sampler,
    params: Params,
    problems: list[PromptedProblem],
    episodes: list[Episode],
) -> tuple[list["ProblemStates"], list[np.ndarray]]:
    """(the states of each problem's episodes, with all their continuations; log-probabilities).

    The log-probabilities are those of the trunks, for `valued_episodes`. Errors are those of
    `fill_values`.
    """
    rule = find_rule("values.allocation", sampler.cfg)
    by_id = {problem.id: problem for problem, _ in problems}
    rows: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        rows.setdefault(episode.problem_id, []).append(i)
    by_problem = [
        ProblemStates(sampler, by_id[name], [episodes[i] for i in numbers], rule, numbers)
        for name, numbers in rows.items()
    ]
    states = [state for problem_states in by_problem for state in problem_states.states]
    logprobs: list[np.ndarray] = []
    for wave in itertools.count():
        requests = [problem_states.requested(wave) for problem_states in by_problem]
        if all(counts is None for counts in requests):
            break
        counts = [x or [0] * len(p.states) for p, x in zip(by_problem, requests, strict=True)]
        scored = wave == 0 and sampler.engine.scores_as_learner
        all_counts = [count for problem_counts in counts for count in problem_counts]
        logprobs += sampler.continuations(params, episodes, states, all_counts, scored)
        for problem_states, new_counts in zip(by_problem, counts, strict=True):
            problem_states.count_new(new_counts)
    return by_problem, logprobs


class ProblemStates:
    """The states of a problem's episodes, and the returns sampled at each."""

    def __init__(
        self,
        sampler: Sampler,
        problem: Problem,
        episodes: list[Episode],
        rule: AllocationRule,
        numbers: Sequence[int],
    ):
        """`rule` is the allocation rule. `numbers` has the number of each episode's trunk."""
        cfg, tokenizer = sampler.cfg, sampler.engine.tokenizer
        self._values, self._gamma = cfg.values, cfg.ppo.gamma
        self._has_labels = cfg.credit.labels != "off"
        self._rule, self.numbers, self._is_over = rule, numbers, False
        self.episodes, positions = divide_at_states(episodes, cfg, tokenizer)
        # Step that begins at the first state: 0, or 1 if the prompt's end is no state.
        self._first = [
            int(bool(of_episode) and of_episode[0] > episode.given)
            for of_episode, episode in zip(positions, episodes, strict=True)
        ]
        if (limit := cfg.values.max_states) is not None:
            # The end of the given tokens, if it is a state, and the first `limit` other states.
            pairs = zip(positions, episodes, strict=True)
            positions = [x[: limit + (x[:1] == [episode.given])] for x, episode in pairs]
        self._positions = positions
        self.states, self._states_of = _find_states(problem, self.episodes, positions, numbers, cfg)
        self._earned = [np.cumsum([0.0, *episode.rewards]).tolist() for episode in self.episodes]
        self._passing = None
        self._solutions: list[Sample] = []  # the episodes as samples, with `values.reuse`
        if not self._values.reuse:
            return
        responses = [episode.response for episode in episodes]
        self._passing = PassingSamples(responses, self._positions, self._gamma)
        for i, episode in enumerate(episodes):
            own_states = {(i, c) for c in range(len(self._positions[i]))}
            with_steps = episode.step_rewards is not None or self._gamma != 1
            sample = _solution_sample(episode, with_steps)
            self._solutions.append(sample)
            self._passing.add(sample, counted=own_states, solution=i)

    def requested(self, wave: int) -> list[int] | None:
        """The number of continuations to add to each of `states`; None after the last wave.

        Raises ConfigError if the waves do not end.
        """
        if self._is_over:
            return None
        counts, is_over = [0] * len(self.states), True
        for i, numbers in enumerate(self._states_of):
            requested = self._rule(wave, self._seen(i), self._values)
            if requested is None:
                continue
            is_over = False
            for s, count in zip(numbers, requested, strict=True):
                counts[s] = max(counts[s], count)
        self._is_over = is_over
        if wave == MOST_WAVES and not is_over:
            message = f"the rule wants more than {MOST_WAVES} waves; it must return None to stop"
            raise ConfigError("values.allocation", message, repr(self._values.allocation))
        return None if is_over else counts

    def count_new(self, counts: list[int]) -> None:
        """Adds returns of new continuations at the states they pass, except where they start.

        The new continuations are the last `counts[s]` continuations of `states[s]`. Without
        `values.reuse` nothing is added.
        """
        if self._passing is None:
            return
        for state, count in zip(self.states, counts, strict=True):
            for drawn in state.continuations[len(state.continuations) - count :]:
                self._passing.add(drawn.sample, counted=state.visits)

    def visited(self) -> list[VisitedStates]:
        """The visited states of each episode."""
        means: Sequence[list[float] | None] = [None] * len(self.episodes)
        if self._passing is not None and self._values.backup:
            means = self._passing.backed_up()
        return [
            VisitedStates(self._seen(i).returns, self._first[i], episode.rewards, means[i])
            for i, episode in enumerate(self.episodes)
        ]

    def samples(self) -> list[tuple[list[Sample], list[Sample]]]:
        """For each episode, (continuations, other episodes) whose returns count at its states.

        The continuations are those of the episode's states. With `values.reuse` they are all
        continuations of the problem, and its other episodes count, too.
        """
        drawn = [[x.sample for x in state.continuations] for state in self.states]
        if self._passing is None:
            return [([x for s in numbers for x in drawn[s]], []) for numbers in self._states_of]
        continuations = [x for of_state in drawn for x in of_state]
        return [
            (continuations, [x for j, x in enumerate(self._solutions) if j != i])
            for i in range(len(self.episodes))
        ]

    def own_samples(self) -> list[tuple[list[int], list[list[Sample]]]]:
        """For each episode, (positions of its states, the continuations of each state)."""
        return [
            (positions, [[x.sample for x in self.states[s].continuations] for s in numbers])
            for positions, numbers in zip(self._positions, self._states_of, strict=True)
        ]

    def with_values(self, estimated: Sequence[StateEstimate]) -> list[Episode]:
        """The episodes with the `estimated` values and with the continuations of their states."""
        groups = [
            tuple(drawn.continuation for drawn in state.continuations) for state in self.states
        ]
        samples = self.samples() if self._has_labels else None
        valued = []
        for i, (episode, estimate) in enumerate(zip(self.episodes, estimated, strict=True)):
            continuations: list[tuple[Continuation, ...]] = [()] * len(episode.step_ends)
            for c, s in enumerate(self._states_of[i], start=self._first[i]):
                continuations[c] = groups[s]
            drawn = np.array([len(group) for group in continuations], np.int32)
            if samples is not None:
                episode = dataclasses.replace(
                    episode,
                    passing=passing_tokens(episode, *samples[i], self._gamma),
                    departures=self._departures(i),
                )
            valued.append(
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
        return valued

    def _departures(self, i: int) -> tuple[tuple[Departure | None, ...], ...]:
        """[C][M] where the continuations of each step's state leave the response of episode i."""
        episode = self.episodes[i]
        departures: list[tuple[Departure | None, ...]] = [()] * len(episode.step_ends)
        for c, s in enumerate(self._states_of[i], start=self._first[i]):
            drawn = self.states[s].continuations
            departures[c] = tuple(
                departure_of(x.sample, episode.response, self._gamma) for x in drawn
            )
        return tuple(departures)

    def _seen(self, i: int) -> Seen:
        """The returns that count at each state of episode i.

        The returns of the state's own continuations come first. With `values.reuse`, the returns of
        other samples that pass through the state follow.
        """
        states = [self.states[s] for s in self._states_of[i]]
        returns = [[x.continuation.reward for x in state.continuations] for state in states]
        if self._passing is not None:
            passed = self._passing.returns[i]
            returns = [x + y for x, y in zip(returns, passed, strict=True)]
        earned = self._earned[i]
        return Seen(returns, earned[self._first[i] :][: len(returns)], earned[-1])


def valued_episodes(
    by_problem: Sequence[ProblemStates], logprobs: Sequence[np.ndarray], gamma: float
) -> list[Episode]:
    """The episodes of all problems with their values, in the order of their trunks' numbers.

    `logprobs` has the log-probabilities of each trunk; it is empty if trunks were not scored.
    The values of all problems are estimated together, because their standard errors share the
    variance within states.
    """
    visited = [states for problem_states in by_problem for states in problem_states.visited()]
    backed_up = [states.backed_up for states in visited]
    estimated = estimates(
        returns=[states.returns for states in visited],
        first=[states.first for states in visited],
        rewards=[states.rewards for states in visited],
        gamma=gamma,
        backed_up=None if None in backed_up else [x for x in backed_up if x is not None],
    )
    valued: dict[int, Episode] = {}
    start = 0
    for problem_states in by_problem:
        end = start + len(problem_states.numbers)
        episodes = problem_states.with_values(estimated[start:end])
        valued |= zip(problem_states.numbers, episodes, strict=True)
        start = end
    if len(logprobs):
        valued = {
            i: dataclasses.replace(episode, scored=logprobs[i][len(episode.prompt) :].tolist())
            for i, episode in valued.items()
        }
    return [valued[i] for i in range(len(valued))]


def divide_at_states(
    episodes: list[Episode], cfg: Config, tokenizer: Tokenizer
) -> tuple[list[Episode], list[list[int]]]:
    """(the episodes with the steps between states, the positions of each episode's states)."""
    rule, text_of = find_rule("values.positions", cfg), token_text(tokenizer)
    positions = [positions_of(rule, episode, text_of, cfg.values) for episode in episodes]
    return list(map(with_steps_between, episodes, positions)), positions


def _find_states(
    problem: Problem,
    episodes: list[Episode],
    positions: list[list[int]],
    numbers: Sequence[int],
    cfg: Config,
) -> tuple[list[ValuedState], list[list[int]]]:
    """(the states to sample from, for each episode the indices of its states in that list).

    Episode i has its states at `positions[i]` and is the trunk with the number `numbers[i]`. With
    `values.dedup` equal token prefixes are one state, so all solutions share s_0.
    """
    states: list[ValuedState] = []
    numbers_by_prefix: dict[tuple[object, ...], int] = {}
    states_of: list[list[int]] = []
    for i, episode in enumerate(episodes):
        states_of.append([])
        for c, used in enumerate(positions[i]):
            prefix = (*episode.prompt, *episode.response[:used])
            key = prefix if cfg.values.dedup else (i, c)
            number = numbers_by_prefix.setdefault(key, len(states))
            if number == len(states):  # no earlier visit
                states.append(
                    ValuedState(
                        problem,
                        trunk=numbers[i],
                        episode=episode,
                        rollout=i,
                        step=episode.step_ends.index(used) + 1 if used > episode.given else 0,
                        used=used,
                        visits=[],
                    )
                )
            states[number].visits.append((i, c))
            states_of[i].append(number)
    return states, states_of


def _solution_sample(episode: Episode, with_steps: bool) -> Sample:
    """A solution as a sample of the return at each state that it passes.

    With `with_steps` the sample has the steps, on which its returns can depend.
    """
    ends = episode.step_ends if with_steps else []
    return Sample(
        tokens=np.array(episode.response, np.int32),
        start=episode.given,
        ends=ends,
        rewards=(episode.step_rewards or [0.0] * len(ends)) if with_steps else [],
        outcome=episode.outcome,
        logprobs=episode.logprobs[episode.given :],
    )
