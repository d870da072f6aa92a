"""Step values of a Markov chain of letters, whose true values are known, by the rules of a run.

For the tests on step credit in tests/credit: `fill_drawn` runs the real rules on drawn samples
instead of an engine's, `Chain` is a policy that takes one token per step.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from helpers import loop_cases as cases
from helpers.applied import fill_values
from helpers.vine_cases import FakeEngine, Task, credit_by_step, rewards_of
from vinejax.core.settings import Config, ValuesConfig
from vinejax.core.types import Continuation, Episode, Problem
from vinejax.credit.allocation import Seen
from vinejax.credit.samples import Sample
from vinejax.rollout.sampler import DrawnContinuation, Sampler, ValuedState

Draw = Callable[[list[ValuedState]], list[Sample]]  # a continuation of each state
NUM_LETTERS = 4
START = 4  # what stands before the first letter


def every_second(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """An allocation rule: two continuations at every second state."""
    return None if wave else [0 if c % 2 else 2 for c in range(len(seen.returns))]


def simulation(draw: Draw, drawn_in: list[int]) -> Callable[..., list[np.ndarray]]:
    """What stands for `Sampler.continuations`; it notes in `drawn_in` how many each call draws."""

    def simulate(sampler, params, episodes, states, counts, *_: Any, **__: Any) -> list[np.ndarray]:
        wanted = [state for state, n in zip(states, counts, strict=True) for _ in range(n)]
        for state, sample in zip(wanted, draw(wanted), strict=True):
            result = sample.return_from(state.used, sampler.cfg.ppo.gamma)
            continuation = Continuation("", result, "eos", result)
            state.continuations.append(DrawnContinuation(continuation, sample))
        drawn_in.append(len(wanted))
        return []

    return simulate


def fill_drawn(episodes: list[Episode], cfg: Config, draw: Draw) -> tuple[list[Episode], list[int]]:
    """(`fill_values` with continuations of `draw`, how many were drawn in each wave)."""
    drawn_in: list[int] = []
    prompts = {episode.problem_id: episode.prompt for episode in episodes}
    problems = [(Problem(name, "", ""), prompt) for name, prompt in prompts.items()]
    engine = FakeEngine(lambda branch, k: ("", "eos"))
    with mock.patch.object(Sampler, "continuations", simulation(draw, drawn_in)):
        filled = fill_values(engine, {}, rewards_of(Task()), problems, episodes, cfg, 0)
    return filled, drawn_in


class Term(NamedTuple):
    """Coefficients of log-probabilities of letters, as flat arrays."""

    solution: np.ndarray
    time: np.ndarray  # number of letters before
    before: np.ndarray  # the letter before
    letter: np.ndarray
    coefficient: np.ndarray


def term(solution: int, letters: list[int], coefficients: np.ndarray) -> Term:
    """The coefficients of the letters of a whole response."""
    count = len(letters)
    before = np.array([START, *letters[:-1]])
    return Term(np.full(count, solution), np.arange(count), before, np.array(letters), coefficients)


@dataclasses.dataclass(frozen=True)
class Chain:
    """A token model: the next letter depends on the last one, the reward on the one at the end."""

    moves: np.ndarray  # [5, 4] probabilities of the next letter, after each letter and at the start
    rewards: np.ndarray  # [4] of each letter at the end
    length: int  # tokens of a response, unless a letter ends it
    ending: int | None = None  # the letter that ends a response
    step_rewards: np.ndarray | None = None  # [4] of the step of each letter, a part of `rewards`

    def values(self) -> np.ndarray:
        """[length + 1, 5] V of t letters, the last of them y, in closed form."""
        values = np.zeros((self.length + 1, NUM_LETTERS + 1))
        values[-1, :NUM_LETTERS] = self.rewards
        for t in reversed(range(self.length)):
            values[t] = self.moves @ values[t + 1, :NUM_LETTERS]
            if self.ending is not None:
                values[t, self.ending] = self.rewards[self.ending]
        return values

    def gradient(self) -> np.ndarray:
        """[length, 4] E[A_t·d log p/d logit of x], the policy gradient of the t-th letter."""
        values, found = self.values(), np.zeros((self.length, NUM_LETTERS))
        chance = np.eye(NUM_LETTERS + 1)[START]
        for t in range(self.length):
            joint = chance[:, None] * self.moves  # of the letter before, and this one
            if self.ending is not None:
                joint[self.ending] = 0
            found[t] = (joint * (values[t + 1, :NUM_LETTERS] - values[t][:, None])).sum(axis=0)
            chance = np.append(joint.sum(axis=0), 0)
        return found

    def finish(self, rng: np.random.Generator, prefixes: list[list[int]]) -> list[list[int]]:
        """The prefixes, each completed to a whole response."""
        lengths = np.array([len(prefix) for prefix in prefixes], int)
        letters = np.full((len(prefixes), self.length + 1), START)
        for row, prefix in enumerate(prefixes):
            letters[row, 1 : len(prefix) + 1] = prefix
        for t in range(self.length):
            cumulative = self.moves.cumsum(axis=1)[letters[:, t]]
            draws = (rng.random(len(letters))[:, None] > cumulative).sum(axis=1)
            letters[:, t + 1] = np.where(t < lengths, letters[:, t + 1], draws)
        responses = letters[:, 1:].tolist()
        if self.ending is None:
            return responses
        return [self._until_the_end(response) for response in responses]

    def _until_the_end(self, response: list[int]) -> list[int]:
        if self.ending not in response:
            return response
        return response[: response.index(self.ending) + 1]

    def _earned(self, response: list[int]) -> list[float]:
        """The rewards of the steps of a whole response, one letter each."""
        if self.step_rewards is None:
            return [0.0] * len(response)
        return self.step_rewards[response].tolist()

    def episodes(self, rng: np.random.Generator, problems: int, group: int) -> list[Episode]:
        responses = self.finish(rng, [[]] * (problems * group))
        return [
            cases.episode(
                [cases.BOS],
                response,
                problem_id=str(i // group),
                reward=float(self.rewards[response[-1]]) - sum(self._earned(response)),
                step_ends=list(range(1, len(response) + 1)),
                step_rewards=None if self.step_rewards is None else self._earned(response),
            )
            for i, response in enumerate(responses)
        ]

    def draw(self, rng: np.random.Generator) -> Draw:
        def draw(wanted: list[ValuedState]) -> list[Sample]:
            given = [state.episode.response[: state.used] for state in wanted]
            return [
                Sample(
                    np.array(response, np.int32),
                    start=len(before),
                    ends=list(range(1, len(response) + 1)),
                    rewards=self._earned(response),
                    outcome=float(self.rewards[response[-1]]) - sum(self._earned(response)),
                    logprobs=[0.0] * (len(response) - len(before)),
                )
                for response, before in zip(self.finish(rng, given), given, strict=True)
            ]

        return draw

    def logit_gradients(self, terms: list[Term], solutions: int) -> np.ndarray:
        """[solutions, length, 4] each solution's gradient by the logits of the letters."""
        solution, time, before, letter, coefficient = map(np.concatenate, zip(*terms, strict=True))
        scores = np.eye(NUM_LETTERS)[letter] - self.moves[before]
        gradients = np.zeros((solutions, self.length, NUM_LETTERS))
        np.add.at(gradients, (solution, time), coefficient[:, None] * scores)
        return gradients

    def standard_errors_off(self, gradients: Iterable[np.ndarray], group: int) -> float:
        """The greatest distance of an entry of the mean gradient from its closed form.

        Each of `gradients` is [solutions, length, 4], and `group` solutions are one problem.
        """
        found = np.concatenate([x.reshape(-1, group, x[0].size).mean(axis=1) for x in gradients])
        errors = found.std(axis=0) / np.sqrt(len(found))
        off = (found.mean(axis=0) - self.gradient().reshape(-1)) / (errors + 1e-9)
        return float(np.abs(off).max())


# Letter 3 ends a response, and mostly with another reward than its end would have: so the number
# of states says something of what a solution earned. The first letter is known.
CHAIN = Chain(
    moves=np.array(
        [
            [0.0, 0.5, 0.0, 0.5],
            [0.0, 0.5, 0.4, 0.1],
            [0.0, 0.4, 0.5, 0.1],
            [0.0, 0.0, 0.0, 1.0],
            [1.0, 0.0, 0.0, 0.0],
        ]
    ),
    rewards=np.array([1.0, 1.0, 0.5, 0.0]),
    length=5,
    ending=3,
)


class Bias(NamedTuple):
    """Means over episodes with their standard errors, taken over problems."""

    values: np.ndarray  # [length, 5] of 1(state (t, y) was visited)·(estimate - V)
    value_errors: np.ndarray
    gradient: np.ndarray  # [length, 4] of the policy gradient - its closed form
    gradient_errors: np.ndarray
    drawn: float  # continuations per episode

    @property
    def in_errors(self) -> tuple[float, float]:
        """The greatest distances from 0, of values and of gradient, in standard errors."""
        pairs = [(self.values, self.value_errors), (self.gradient, self.gradient_errors)]
        of_values, of_gradient = (float(np.max(np.abs(x) / (e + 1e-9))) for x, e in pairs)
        return of_values, of_gradient

    @property
    def worst(self) -> float:
        return max(self.in_errors)


def measure(
    chain: Chain,
    cfg: Config,
    problems: int,
    group: int,
    seed: int,
    part: int = 1250,
    prior: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Bias:
    """The bias of the configured rules over many draws of solutions and continuations.

    `prior` gives learned values from true ones; they are mixed into baselines with weight 0.6.
    """
    rng = np.random.default_rng(seed)
    results, drawn = [], 0
    part = min(part, problems)
    for _ in range(0, problems, part):
        filled, counts = fill_drawn(chain.episodes(rng, part, group), cfg, chain.draw(rng))
        of_rows = _errors(chain, filled, cfg, prior)
        of_problems = np.zeros((part, of_rows.shape[1]))
        np.add.at(of_problems, [int(row.problem_id) for row in filled], of_rows / group)
        results.append(of_problems)
        drawn += sum(counts)
    by_problem = np.concatenate(results)
    mean, error = by_problem.mean(axis=0), by_problem.std(axis=0) / np.sqrt(len(by_problem))
    split, shapes = chain.length * (NUM_LETTERS + 1), ((chain.length, -1),) * 2
    values, gradient = (x.reshape(s) for x, s in zip(np.split(mean, [split]), shapes, strict=True))
    errors = [x.reshape(s) for x, s in zip(np.split(error, [split]), shapes, strict=True)]
    return Bias(values, errors[0], gradient, errors[1], drawn / (len(by_problem) * group))


def _errors(
    chain: Chain,
    episodes: list[Episode],
    cfg: Config,
    prior: Callable[[np.ndarray], np.ndarray] | None,
) -> np.ndarray:
    """[episodes, length·(5 + 4)] the terms whose means `Bias` has."""
    num, length, truth = len(episodes), chain.length, chain.values()
    values = np.zeros((num, length), np.float32)
    letters, step_of = np.full((num, length + 1), START), np.full((num, length), -1)
    for i, episode in enumerate(episodes):
        steps = len(episode.step_ends)
        values[i, :steps] = episode.values
        letters[i, 1 : len(episode.response) + 1] = episode.response
        lengths = np.diff([episode.given, *episode.step_ends])
        drawn = slice(episode.given, len(episode.response))
        step_of[i, drawn] = np.repeat(np.arange(steps), lengths)
    learned = None
    if prior is not None:
        learned = prior(truth[np.arange(length), letters[:, :-1]]).astype(np.float32)
    by_step = credit_by_step(episodes, cfg, learned).astype(float)
    advantages = np.where(step_of >= 0, np.take_along_axis(by_step, step_of, axis=1), 0)
    estimates = np.take_along_axis(values, step_of, axis=1)
    is_state = (step_of >= 0) & (np.diff(step_of, prepend=-1, axis=1) > 0)
    before, after = letters[:, :-1], letters[:, 1:]
    of_values = (estimates - truth[np.arange(length), before]) * is_state
    of_values = of_values[..., None] * (before[..., None] == np.arange(NUM_LETTERS + 1))
    score = (after[..., None] == np.arange(NUM_LETTERS)) - chain.moves[before]
    gradient = advantages[..., None] * score - chain.gradient()
    return np.concatenate([of_values.reshape(num, -1), gradient.reshape(num, -1)], axis=1)
