"""Solutions and continuations: branches of the engine, graded while others are decoded.

A solution starts at the end of its prompt, or after the first tokens of a known response
(`contrib/resets/`). A continuation starts at a state of a solution. The task grades both as whole
responses, each on the host that detokenises it.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.seeds import row_seed
from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer, response_text
from vinejax.core.types import Continuation, Episode, Problem, PromptedProblem
from vinejax.credit.samples import Sample
from vinejax.engine.branches import Branch, Grown, Stream
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Params
from vinejax.rollout.overlong import penalties
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.rewards import Reward
from vinejax.tasks.steps import step_ends

Steps = tuple[list[int], list[float] | None]  # step ends; the steps' own rewards, if any
Texts = dict[int, str]  # texts of the beginnings of responses, by the id of the shared list


class Solution(NamedTuple):
    """A whole response to a problem."""

    problem: Problem
    prompt: list[int]
    response: list[int]
    text: str  # as graded: it may end before what `response` decodes to


class Start(NamedTuple):
    """Where solutions of a problem begin: after the prompt and the given tokens."""

    problem: Problem
    prompt: list[int]
    given_tokens: list[int]  # first tokens of a known response; []: the prompt's end
    seeds: list[int]  # one per solution


Beginning = tuple[Problem, list[int], list[int]]  # problem, prompt, response before a branch


class BranchRequests(NamedTuple):
    """The branches that the engine is to draw, and the beginning that each branch continues."""

    trunks: list[list[int]]
    branches: list[Branch]
    budgets: list[int] | None  # None: the engine's own
    beginnings: list[Beginning]


class Responses(NamedTuple):
    """Graded responses of several starts, n responses per start."""

    groups: list[list[Grown]]  # [starts][n]
    rewards: np.ndarray  # f32[starts, n]
    # [starts][n] rewards by reward function; None: not graded, or only the task's own reward
    parts: list[list[dict[str, float] | None]]


@dataclasses.dataclass
class ValuedState:
    """A state whose value is sampled, with its place in the first episode that visits it."""

    problem: Problem
    trunk: int  # number of the episode
    episode: Episode
    rollout: int  # number of the episode among the problem's episodes
    step: int  # c of s_c
    used: int  # response tokens before the state
    visits: list[tuple[int, int]]  # (i, c): this is the c-th state of episode i
    continuations: list["DrawnContinuation"] = dataclasses.field(default_factory=list)

    @property
    def position(self) -> int:
        """The index, in the episode's tokens, at which continuations begin."""
        return len(self.episode.prompt) + self.used


class DrawnContinuation(NamedTuple):
    """A continuation, as a record for the report and as a sample of the policy."""

    continuation: Continuation
    sample: Sample


@dataclasses.dataclass(eq=False)
class Sampler:
    """Samples solutions, and continuations of their states, in one iteration of a run.

    Random numbers depend on the run's seed, the iteration, the problem, the number of the solution
    and, for continuations, the state. A run therefore repeats itself on any number of devices.
    """

    engine: Engine
    graded: GradedTask
    cfg: Config
    iteration: int

    def solutions(
        self, params: Params, problems: list[PromptedProblem], most_groups: int
    ) -> list[Episode]:
        """Graded episodes with their steps, `rollout.per_prompt` per problem, without values.

        A subclass may sample several groups per problem, up to `most_groups` groups in all.
        """
        return self.episodes(params, self.prompt_starts(problems, self.cfg.rollout.per_prompt))

    def responses(
        self, params: Params, problems: list[PromptedProblem], per_problem: int
    ) -> Responses:
        """`per_problem` responses to each problem, with the engine's own maximum of tokens.

        A response that the budget cut is graded, too.
        """
        starts = self.prompt_starts(problems, per_problem)
        return self.graded_responses(params, starts, max_tokens=None, truncated=None)

    def prompt_starts(self, problems: list[PromptedProblem], per_problem: int) -> list[Start]:
        """A start at the end of each problem's prompt, with the seeds of its solutions."""
        numbers = range(per_problem)
        return [
            Start(problem, prompt, given_tokens=[], seeds=self.seeds(problem, numbers))
            for problem, prompt in problems
        ]

    def seeds(self, problem: Problem, numbers: Iterable[int]) -> list[int]:
        """The seeds of a problem's solutions with these numbers."""
        return [row_seed(self.cfg.seed, self.iteration, problem.id, i) for i in numbers]

    def episodes(self, params: Params, starts: list[Start]) -> list[Episode]:
        """Graded episodes with their steps, one for each seed of each start.

        The task grades and splits whole responses. Steps that end within the given tokens are
        dropped together with their rewards.
        """
        cfg = self.cfg
        responses = self.graded_responses(
            params, starts, cfg.sample.max_tokens, cfg.reward.truncated
        )
        grown = list(itertools.chain.from_iterable(responses.groups))
        parts = itertools.chain.from_iterable(responses.parts)
        totals = responses.rewards.ravel().tolist()
        return self.episodes_of(starts, grown, list(map(Reward, totals, parts)))

    def graded_responses(
        self,
        params: Params,
        starts: list[Start],
        max_tokens: int | None,
        truncated: float | None,
    ) -> Responses:
        """The responses of each start, with the rewards of the whole responses.

        All starts must have equally many seeds. A response has at most `max_tokens` tokens, which
        include the given ones. With None the engine's own maximum limits the drawn tokens alone.
        """
        requests = solution_requests(starts, max_tokens)
        stream = self.engine.stream(params, requests.trunks, requests.branches, requests.budgets)
        grown, by_branch, _ = self._graded(stream, requests.beginnings, truncated)
        size = len(starts[0].seeds) if starts else 0
        rows = [slice(i * size, (i + 1) * size) for i in range(len(starts))]
        ungraded = Reward(truncated or 0.0)
        rewards = [by_branch.get(i, ungraded) for i in range(len(grown))]
        totals = np.array([reward.total for reward in rewards], np.float32)
        return Responses(
            groups=[grown[row] for row in rows],
            rewards=totals.reshape(len(starts), size),
            parts=[[reward.parts for reward in rewards[row]] for row in rows],
        )

    def episodes_of(
        self, starts: list[Start], grown: Sequence[Grown], rewards: Sequence[Reward]
    ) -> list[Episode]:
        """The episodes of sampled and graded responses, in the order of the starts' seeds."""
        tokenizer, remaining = self.engine.tokenizer, iter(grown)
        solutions: list[Solution] = []
        num_given: list[int] = []
        for problem, prompt, given_tokens, seeds in starts:
            before = response_text(tokenizer, prompt, given_tokens)
            for response in itertools.islice(remaining, len(seeds)):
                text = whole_text(before, response)
                tokens = given_tokens + response.tokens
                solutions.append(Solution(problem, prompt, tokens, text))
                num_given.append(len(given_tokens))
        steps = shared_work(
            {
                i: _steps_after(num_given[i], self.split(solution))
                for i, solution in enumerate(solutions)
                if is_mine(i)
            }
        )
        return [
            episode_of(solution, num_given[i], grown[i], steps[i], rewards[i])
            for i, solution in enumerate(solutions)
        ]

    def split(self, solution: Solution) -> Steps:
        """The steps of a solution, found by `split_solution` with the run's task and tokenizer."""
        return split_solution(self.graded, self.engine.tokenizer, solution)

    def continuations(
        self,
        params: Params,
        episodes: list[Episode],
        states: list[ValuedState],
        counts: list[int],
        scored: bool = False,
        with_steps: bool = False,
    ) -> list[np.ndarray]:
        """Adds `counts[s]` continuations to `states[s].continuations`.

        Continuations are split into steps if `with_steps`, or if their returns depend on steps.

        With `values.budget` 'left' a continuation may have as many tokens as the trajectory had
        left at the state, so that value and policy share a horizon. With 'fresh' it may have the
        whole budget, as in VinePPO's code. If the episode has a length penalty, a continuation has
        one for its whole response (`overlong.penalised_episodes`).

        If `scored`, returns for each episode the log-probabilities of its tokens, f32[tokens], from
        the prefill of its trunk. Otherwise returns an empty list.
        """
        cfg = self.cfg
        requests = self.continuation_requests(episodes, states, counts)
        stream = self.engine.stream(
            params, requests.trunks, requests.branches, requests.budgets, scored=scored
        )
        grown, rewards, solutions = self._graded(stream, requests.beginnings, cfg.reward.truncated)
        steps: dict[int, Steps] = {}
        if with_steps or self.splits_continuations:
            steps = shared_work({i: self.split(solution) for i, solution in solutions.items()})
        self.add_continuations(states, counts, grown, rewards, steps)
        return stream.trunk_logprobs

    def continuation_requests(
        self, episodes: list[Episode], states: list[ValuedState], counts: list[int]
    ) -> BranchRequests:
        """The requests for `counts[s]` further continuations of each state `states[s]`."""
        trunks = [episode.tokens for episode in episodes]
        requests = BranchRequests(trunks, branches=[], budgets=[], beginnings=[])
        assert requests.budgets is not None
        for state, count in zip(states, counts, strict=True):
            before = state.episode.response[: state.used]
            used = state.used if self.cfg.values.budget == "left" else 0
            for k in range(len(state.continuations), len(state.continuations) + count):
                requests.branches.append(
                    Branch(
                        trunk=state.trunk,
                        position=state.position,
                        seed=self.continuation_seed(state, k),
                        response=len(state.episode.prompt),
                    )
                )
                requests.budgets.append(self.cfg.sample.max_tokens - used)
                requests.beginnings.append((state.problem, state.episode.prompt, before))
        return requests

    def continuation_seed(self, state: ValuedState, k: int) -> int:
        """The seed of a state's continuation number k."""
        # State 0 of `row_seed` is the solution itself, which continuations of s_0 must not repeat.
        return row_seed(
            self.cfg.seed, self.iteration, state.problem.id, state.rollout, state.step + 1, k
        )

    @property
    def splits_continuations(self) -> bool:
        """Whether the returns of continuations depend on their steps."""
        return self.graded.has_steps or self.cfg.ppo.gamma != 1

    def add_continuations(
        self,
        states: list[ValuedState],
        counts: list[int],
        grown: list[Grown],
        rewards: dict[int, Reward],
        steps: dict[int, Steps],
    ) -> None:
        """Adds to `states[s].continuations` what the branches of `continuation_requests` drew.

        `grown` is in the order of the branches. The keys of `rewards` and `steps` are the numbers
        of branches.
        """
        cfg = self.cfg
        branch_states = [s for s, count in zip(states, counts, strict=True) for _ in range(count)]
        lengths = [s.used + len(g.tokens) for s, g in zip(branch_states, grown, strict=True)]
        length_penalties = penalties(lengths, cfg)
        for i, state in enumerate(branch_states):
            ends, step_rewards = steps.get(i, ([], None))
            outcome = rewards[i].total if i in rewards else cfg.reward.truncated
            sample = Sample(
                tokens=np.array(state.episode.response[: state.used] + grown[i].tokens, np.int32),
                start=state.used,
                ends=ends,
                rewards=step_rewards or [0.0] * len(ends),
                outcome=outcome
                - (length_penalties[i] if state.episode.penalty is not None else 0.0),
                logprobs=grown[i].logprobs,
            )
            total = sample.return_from(state.used, cfg.ppo.gamma)
            continuation = Continuation(grown[i].text, total, grown[i].finish, outcome)
            state.continuations.append(DrawnContinuation(continuation, sample))

    def _graded(
        self,
        stream: Stream,
        beginnings: Sequence[Beginning],
        truncated: float | None,
    ) -> tuple[list[Grown], dict[int, Reward], dict[int, Solution]]:
        """Runs a stream to its end, and grades responses while the devices decode others.

        Branch i continues `beginnings[i]`. `truncated` is the reward of responses that the budget
        cut; such responses are graded only if it is None.

        Returns the continuations in the branches' order and, by branch number, the rewards of the
        graded responses of all hosts and the solutions that this host detokenised.
        """
        texts: Texts = {}
        grown: dict[int, Grown] = {}
        solutions: dict[int, Solution] = {}
        with self.graded.background() as background:
            for i, response in stream:
                grown[i] = response
                if is_mine(i):
                    solution = solutions[i] = self.whole_solution(beginnings[i], response, texts)
                    if truncated is None or response.finish != "length":
                        background.add(i, solution.problem, solution.text, solution.response)
            rewards = background.rewards()
        return [grown[i] for i in range(len(beginnings))], rewards, solutions

    def whole_solution(self, beginning: Beginning, grown: Grown, texts: Texts) -> Solution:
        """The response that begins with `beginning` and ends with the tokens of a branch.

        `texts` caches the texts of beginnings.
        """
        problem, prompt, before = beginning
        if id(before) not in texts:
            texts[id(before)] = response_text(self.engine.tokenizer, prompt, before)
        text = whole_text(texts[id(before)], grown)
        return Solution(problem, prompt, before + grown.tokens, text)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Metrics of how these episodes were sampled; here none."""
        return {}


def solution_requests(starts: list[Start], max_tokens: int | None) -> BranchRequests:
    """A branch for each seed of each start.

    `max_tokens` limits a response as in `Sampler.graded_responses`. `Branch.response` is None for a
    branch at the end of a prompt, because the engine can then use shorter rows for the branch.
    """
    trunks = [start.prompt + start.given_tokens for start in starts]
    responses = [len(start.prompt) if start.given_tokens else None for start in starts]
    start_seeds = [(i, seed) for i, start in enumerate(starts) for seed in start.seeds]
    budgets = None
    if max_tokens is not None:
        budgets = [max_tokens - len(starts[i].given_tokens) for i, _ in start_seeds]
    return BranchRequests(
        trunks,
        branches=[Branch(i, len(trunks[i]), seed, responses[i]) for i, seed in start_seeds],
        budgets=budgets,
        beginnings=[
            (starts[i].problem, starts[i].prompt, starts[i].given_tokens) for i, _ in start_seeds
        ],
    )


def episode_of(
    solution: Solution, num_given: int, grown: Grown, steps: Steps, reward: Reward
) -> Episode:
    """The episode of a solution whose first `num_given` tokens were given."""
    return Episode(
        problem_id=solution.problem.id,
        prompt=solution.prompt,
        response=solution.response,
        logprobs=[0.0] * num_given + grown.logprobs,
        text=solution.text,
        finished=grown.finish != "length",
        reward=float(np.float32(reward.total)),
        step_ends=steps[0],
        step_rewards=steps[1],
        reward_parts=reward.parts,
        given=num_given,
    )


def whole_text(before: str, grown: Grown) -> str:
    """The text of a response: `before`, then the text of the drawn tokens."""
    return before[: len(before) - grown.overlap] + grown.text


def split_solution(graded: GradedTask, tokenizer: Tokenizer, solution: Solution) -> Steps:
    """(the ends of the C steps, the steps' own rewards or None if the task rewards no steps).

    A step's end is the index of the response token after it. Steps that end inside the same token
    become one step, with the sum of their rewards.
    """
    problem, prompt, response, text = solution
    ends = graded.step_ends(tokenizer, prompt, response, text)
    if not graded.has_steps:
        return ends, None
    if not ends:
        return ends, []
    boundaries = graded.task.split(text)
    steps = [text[start:end] for start, end in itertools.pairwise(boundaries)]
    rewards = graded.step_rewards(problem, steps)
    if len(rewards) == len(ends):
        return ends, rewards
    inner = [
        step_ends(tokenizer, prompt, response, [0, boundary, len(text)], text)[0]
        if boundary
        else ends[0]  # a step without text at the start is part of the next one
        for boundary in boundaries[1:-1]
    ]
    totals = dict.fromkeys(ends, 0.0)
    for end, reward in zip([*inner, ends[-1]], rewards, strict=True):
        totals[end] += reward
    return ends, list(totals.values())


def _steps_after(num_given: int, steps: Steps) -> Steps:
    """The steps that end after the first `num_given` response tokens."""
    ends, rewards = steps
    first = bisect.bisect_right(ends, num_given)
    return ends[first:], None if rewards is None else rewards[first:]
