"""Solutions and the continuations of their states in one stream of the engine.

In two phases the devices drain twice: the longest solution ends alone before the first continuation
begins. Here the unit is the problem. When its solutions have ended, its continuations enter the
queue of the running phase, and when those of a wave have ended, the next wave's. A draw depends on
its seed and place alone, so tokens and values are those of `Sampler.solutions` and
`vine.fill_values`, one after the other. Where the tokens before a state tell that it is one, its
continuations do not wait for the problem (`early.py`); what a stop string then cuts off is drawn in
vain.

On several hosts each reads and splits all responses, and so all feed the same at the same chunk;
they are graded by one each. Rewards come at the end, so what depends on them needs one host.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem
from vinejax.credit.allocation import AllocationRule
from vinejax.credit.rules import BLIND, POSITIONS, find_rule
from vinejax.engine.branches import Fed, Feed, Grown, Offshoot, Stream
from vinejax.model.decoder import Params
from vinejax.rollout.early import EarlyStates, are_possible
from vinejax.rollout.overlong import penalised
from vinejax.rollout.sampler import (
    Asked,
    Sampler,
    Solution,
    State,
    Steps,
    Texts,
    after_starts,
    episode_of,
)
from vinejax.rollout.vine import Vines, can_score, filled
from vinejax.runtime.distributed import is_mine, process_place
from vinejax.tasks.graded import BackgroundGrading
from vinejax.tasks.rewards import Reward

USUAL_STATES = 16  # of a solution, where no setting bounds them: for the length of the queue


class Valued(NamedTuple):
    """The solutions of an iteration."""

    sampled: list[Episode]  # as `Sampler.solutions` gives them
    episodes: list[Episode]  # as `vine.fill_values` does
    waves: int  # of continuations: the most of any problem


def obstacle(cfg: Config) -> str | None:
    """What two phases are needed for, in a configuration that its method was applied to, in words.

    Where groups of solutions are left out before they are valued, solutions begin elsewhere than at
    the prompt, or values have weights of another precision. None: nothing in it.
    """
    needed = (
        ("rollout.flat", cfg.rollout.flat, "keep"),
        ("reset.source", cfg.reset.source, "none"),
        ("values.dtype", cfg.values.dtype, "model"),
    )
    for name, has, need in needed:
        if has != need:
            return f"needs {name} = {need!r}, and this run has {has!r}"
    return None


def wanted(cfg: Config, by_kernel: bool) -> bool:
    """Whether `rollout.one_stream` asks for one stream; `by_kernel`: a kernel reads the columns.

    By default where it pays. XLA would read the columns of the longest trunk for solutions, too;
    and solutions that fill only some of the slots decode in fewer, where a step takes less time,
    unless continuations begin beside them.
    """
    if cfg.rollout.one_stream == "auto":
        fills = cfg.rollout.prompts * cfg.rollout.per_prompt >= cfg.rollout.slots
        return by_kernel and (fills or are_possible(cfg))
    return cfg.rollout.one_stream == "on"


def obstacle_on_hosts(cfg: Config, has_steps: bool) -> str | None:
    """What needs one host, in words. None: nothing. `has_steps`: the task rewards steps."""
    if waits_for_rewards(cfg):
        return "needs one host where states depend on rewards, which come at the end"
    return "needs one host where steps have rewards of their own" if has_steps else None


def waits_for_rewards(cfg: Config) -> bool:
    """Whether states, or how many continuations they have, depend on rewards or earlier waves."""
    return not (cfg.values.allocation in BLIND and cfg.values.positions in POSITIONS)


def has_one_stream(sampler: Sampler) -> bool:
    """Whether an iteration's values are sampled beside its solutions: nothing is in the way."""
    cfg, is_plain = sampler.cfg, type(sampler) is Sampler
    if not (wanted(cfg, sampler.engine.reads_by_kernel) and is_plain and obstacle(cfg) is None):
        return False
    return process_place()[1] == 1 or obstacle_on_hosts(cfg, sampler.graded.has_steps) is None


def sample_valued(
    sampler: Sampler,
    params: Params,
    problems: list[PromptedProblem],
    allocation: Callable[[int], AllocationRule] | None = None,
) -> Valued:
    """Graded solutions with values; `allocation` is as for `fill_values`, and so are errors."""
    with sampler.graded.background() as background:
        growth = _Growth(sampler, problems, allocation, background)
        stream = growth.stream(params)
        for i, grown in stream:
            growth.take(i, grown)
        return growth.valued(background.rewards(), stream.trunk_logprobs)


class _Wave(NamedTuple):
    """Continuations of a problem's states that were asked for together."""

    numbers: list[int]  # of its branches, state by state
    counts: list[int]  # per state


class _Growth:
    """The branches of a stream, by number, and how far each problem has come."""

    def __init__(
        self,
        sampler: Sampler,
        problems: list[PromptedProblem],
        allocation: Callable[[int], AllocationRule] | None,
        background: BackgroundGrading,
    ):
        cfg = sampler.cfg
        self._sampler, self._problems, self._background = sampler, problems, background
        self._size = cfg.rollout.per_prompt
        rule = find_rule("values.allocation", cfg)
        count = len(problems) * self._size
        self._rules = [allocation(i) if allocation else rule for i in range(count)]
        self._waits = waits_for_rewards(cfg)
        self._scores = can_score(sampler)
        # Of each branch: its problem (None: that goes on without it), what it continues, what it
        # drew, its response and steps.
        self._problem_of: list[int | None] = []
        self._asked = after_starts(
            sampler.prompt_starts(problems, self._size), cfg.sample.max_tokens
        )
        self._beginnings = self._asked.beginnings
        self._grown: dict[int, Grown] = {}
        self._solutions: dict[int, Solution] = {}
        self._steps: dict[int, Steps] = {}
        self._texts: Texts = {}
        # Of each problem: branches under way, its states, and the waves of their continuations.
        self._left = [self._size] * len(problems)
        self._ended: list[int] = []  # problems that go on next
        self._vines: list[Vines | None] = [None] * len(problems)
        self._waves: list[list[_Wave]] = [[] for _ in problems]
        self._trunk_of: list[int | None] = [None] * len(problems)  # of scored episodes, by trunk
        is_early = allocation is None and are_possible(cfg)
        self._early = EarlyStates(sampler, problems) if is_early else None
        # Numbers of continuations that have begun early, by solution and tokens of it before them.
        self._begun_early: dict[tuple[int, int], list[int]] = {}
        self._early_room = 0  # continuations that may still begin early

    def stream(self, params: Params) -> Stream:
        """All branches, those of states as they are asked for."""
        cfg, asked = self._sampler.cfg, self._asked
        self._problem_of += [p for p in range(len(self._problems)) for _ in range(self._size)]
        most = bounds(cfg, len(asked.branches), self._sampler.engine.model.cfg.context)
        self._early_room = most["branches"]
        feed = Feed(
            self.more,
            **most,
            repeats=self._early is None,  # when a state is reached depends on chunks
            offshoots=self._offshoots if self._early else None,
        )
        return self._sampler.engine.stream(params, *asked[:3], feed=feed)

    def take(self, i: int, grown: Grown) -> None:
        """Takes a branch that has ended: split here, graded in the background by one host."""
        sampler, problem = self._sampler, self._problem_of[i]
        is_solution = i < len(self._rules)
        solution = sampler.whole(self._beginnings[i], grown, self._texts)
        self._grown[i], self._solutions[i] = grown, solution
        if is_solution or sampler.splits_continuations:
            self._steps[i] = sampler.split(solution)
        if grown.finish != "length" and is_mine(i):
            kind = "solutions" if is_solution else "continuations"
            given = solution.problem, solution.text, solution.response, kind
            self._background.add(i, *given)
        if problem is not None:
            self._left[problem] -= 1
            if not self._left[problem]:
                self._ended.append(problem)

    def more(self) -> Fed | None:
        """The next continuations of the problems whose branches have all ended."""
        fed, scored = Asked([], [], [], []), []
        ended, self._ended = self._ended, []
        for problem in ended:
            self._go_on(problem, fed, scored)
        is_over = not any(self._left) if self._waits else None not in self._vines
        return None if is_over and not fed.trunks else Fed(*fed[:3], scored)

    def _offshoots(self, drawn: dict[int, np.ndarray]) -> list[Offshoot]:
        """The continuations of the states that these solutions have reached."""
        assert self._early is not None
        numbers = [i for i in range(len(self._rules)) if i in self._solutions]
        ended = {i: self._solutions[i].response for i in numbers}
        drawn = {i: x for i, x in drawn.items() if self._vines[i // self._size] is None}
        most, found = self._sampler.cfg.sample.max_tokens, []
        for i, used, seeds in self._early.reached(drawn, ended):
            self._early_room -= len(seeds)
            if self._early_room < 0:  # it is fed once its problem's solutions have ended
                continue
            first = len(self._problem_of)
            self._begun_early[i, used] = [*range(first, first + len(seeds))]
            problem, prompt = self._problems[i // self._size]
            before = drawn[i][:used].tolist()
            self._problem_of += [None] * len(seeds)
            self._trunk_of += [None] * len(seeds)
            self._beginnings += [(problem, prompt, before)] * len(seeds)
            found += [Offshoot(i, used, seed, most - used) for seed in seeds]
        return found

    def _go_on(self, problem: int, fed: Asked, scored: list[bool]) -> None:
        """Adds a problem's next wave with branches to what is fed, if there is one."""
        vines, waves = self._vines[problem], self._waves[problem]
        if vines is None:
            vines = self._vines_of(problem)
            if self._waits:
                self._reward(vines, self._background.of(vines.numbers))
        elif self._waits:
            self._add(vines, waves[-1], self._background.of(waves[-1].numbers))
        scores = self._scores and not waves  # with the first wave, and where there is none
        while (counts := vines.wanted(len(waves))) is not None or scores:
            wanted = counts or [0] * len(vines.states)
            begun = [self._begun(vines, state) for state in vines.states]
            new = [n - len(numbers) for n, numbers in zip(wanted, begun, strict=True)]
            if counts is not None:
                following = itertools.count(len(self._problem_of))
                numbers = [
                    [*of_state, *itertools.islice(following, n)]
                    for of_state, n in zip(begun, new, strict=True)
                ]
                waves.append(_Wave(list(itertools.chain.from_iterable(numbers)), counts))
            asked = self._sampler.after_states(vines.episodes, vines.states, new)
            if asked.branches or scores:
                self._feed(problem, asked, fed)
                scored += [scores] * len(asked.trunks)
                self._trunk_of += vines.numbers if scores else [None] * len(asked.trunks)
            if asked.branches or counts is None:
                return
            scores = False

    def _feed(self, problem: int, asked: Asked, fed: Asked) -> None:
        """Adds branches on a problem's episodes, whose numbers are those among all, to `fed`."""
        moved = len(fed.trunks) - self._numbers(problem)[0]
        branches = [dataclasses.replace(b, trunk=b.trunk + moved) for b in asked.branches]
        for whole, part in zip(fed, asked._replace(branches=branches), strict=True):
            whole += part  # pyright: ignore
        self._problem_of += [problem] * len(branches)
        self._beginnings += asked.beginnings
        self._left[problem] += len(branches)

    def valued(self, rewards: dict[int, Reward], logprobs: list[np.ndarray]) -> Valued:
        """The episodes, given the rewards of all branches and f32[length] of each trunk."""
        every = [found for found in self._vines if found is not None]
        if not self._waits:
            for vines, waves in zip(every, self._waves, strict=True):
                self._reward(vines, rewards)
                for wave in waves:
                    self._add(vines, wave, rewards)
        sampled = [self._episode(i, rewards) for i in range(len(self._rules))]
        by_episode = {i: logprobs[n] for n, i in enumerate(self._trunk_of) if i is not None}
        is_scored = any(self._waves)  # as in two phases: not where no rule wants a wave
        of_trunks = [by_episode[i] for i in range(len(by_episode))] if is_scored else []
        gamma = self._sampler.cfg.ppo.gamma
        return Valued(sampled, filled(every, of_trunks, gamma), self._num_waves)

    @property
    def _num_waves(self) -> int:
        """The waves for which two phases would call the engine."""
        is_drawn = [
            any(sum(wave.counts) for wave in of_all)
            for of_all in itertools.zip_longest(*self._waves, fillvalue=_Wave([], []))
        ]
        return sum(is_drawn) or int(self._scores and bool(is_drawn))

    def _numbers(self, problem: int) -> range:
        """The numbers of a problem's solutions, as branches and as episodes."""
        return range(problem * self._size, (problem + 1) * self._size)

    def _begun(self, vines: Vines, state: State) -> list[int]:
        """The numbers of a state's continuations that have begun early: all, or none."""
        return self._begun_early.pop((vines.numbers[state.rollout], state.used), [])

    def _vines_of(self, problem: int) -> Vines:
        """The states of a problem whose solutions have ended."""
        numbers = self._numbers(problem)
        rules = [self._rules[i] for i in numbers]
        episodes = self._episodes(numbers, {})
        vines = Vines(self._sampler, self._problems[problem][0], episodes, rules, numbers)
        self._vines[problem] = vines
        return vines

    def _reward(self, vines: Vines, rewards: dict[int, Reward]) -> None:
        vines.take_rewards(self._episodes(vines.numbers, rewards))

    def _episodes(self, numbers: Sequence[int], rewards: dict[int, Reward]) -> list[Episode]:
        return penalised([self._episode(i, rewards) for i in numbers], self._sampler.cfg)

    def _episode(self, i: int, rewards: dict[int, Reward]) -> Episode:
        reward = rewards.get(i, Reward(self._sampler.cfg.reward.truncated))
        given = self._solutions[i], 0, self._grown[i], self._steps[i]
        return episode_of(*given, reward.total, reward.parts)

    def _add(self, vines: Vines, wave: _Wave, rewards: dict[int, Reward]) -> None:
        """Adds the continuations of a wave, which have ended and were graded."""
        grown = [self._grown[i] for i in wave.numbers]
        found = {n: rewards[i] for n, i in enumerate(wave.numbers) if i in rewards}
        steps = {n: self._steps[i] for n, i in enumerate(wave.numbers) if i in self._steps}
        self._sampler.add_drawn(vines.states, wave.counts, grown, found, steps)
        vines.count_new(wave.counts)


def bounds(cfg: Config, count: int, context: int) -> dict[str, Any]:
    """The most that is fed to a stream of `count` solutions, as fields of `Feed`."""
    branches = count * most_states(cfg) * cfg.values.k  # for 'worth' its default, the most
    longest = min(cfg.data.max_prompt_tokens + cfg.sample.max_tokens, context)
    return {"trunks": count, "branches": branches, "longest": longest}


def most_states(cfg: Config) -> int:
    """The most states of a solution, or where nothing bounds them a usual number."""
    values = cfg.values
    bounds = [n + 1 for n in (values.max_states, values.spread) if n is not None]
    if values.positions == "tokens":
        bounds.append(1 + cfg.sample.max_tokens // (values.every * values.merge))
    return min(bounds, default=USUAL_STATES)
