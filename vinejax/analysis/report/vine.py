"""Sampled solutions, step by step: where each stands before and after every step, and why.

A solution's stem runs downwards and its horizontal place is V(s), the value of the state, by
continuations or by a critic; the state before a step is a node, and the continuations sampled there
are what the step unfolds into. Methods without V(s) have no stem: there it is advantages alone.
"""

import dataclasses

from vinejax.analysis.report import text
from vinejax.analysis.report.read import number
from vinejax.analysis.report.rows import (
    Row,
    StepRow,
    advantages_of,
    continuations_of,
    has_step_rewards,
    identity_of,
    read_steps,
    steps_of,
    total_reward,
    values_by,
    width_of,
)

HALF = 0.5  # from this reward on, a solution counts as correct


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much of a run is shown; the page is rendered with the first that fits its size."""

    episodes: int  # an iteration
    steps: int  # an episode
    continuations: int  # a step
    step_characters: int  # also of problems and answers
    continuation_characters: int


LIMITS = (
    Limits(24, 60, 32, 6000, 4000),
    Limits(24, 60, 16, 3000, 1000),
    Limits(24, 40, 9, 1500, 400),
    Limits(16, 30, 9, 800, 240),
    Limits(8, 16, 4, 200, 120),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`kind` is correct, wrong, cut or return: a class of the template, and the word shown."""

    kind: str
    mark: str
    reward: str


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One continuation of the state before a step."""

    verdict: Verdict
    text: text.Clipped
    finish: str


@dataclasses.dataclass(frozen=True)
class Step:
    """One reasoning step. `start` and `end` are places of the stem in percent of the axis."""

    number: int
    text: text.Clipped
    value: str
    after: str
    reward: str  # its own; empty where no step of the page has one
    is_last: bool
    is_filled: bool  # past `values.max_states`: V(s) is such that the advantage is 0
    count: int
    advantage: str
    side: str  # pos, neg or zero
    strength: float  # |advantage| on the page's scale, 0 to 1
    start: float | None
    end: float | None
    leaves: list[Leaf]
    hidden_leaves: int

    @property
    def num_correct(self) -> int:
        return sum(leaf.verdict.kind == "correct" for leaf in self.leaves)


@dataclasses.dataclass(frozen=True)
class Solution:
    """One episode; `low` and `high` are its smallest and its largest advantage."""

    problem_id: str
    question: text.Clipped
    answer: text.Clipped
    prompt: text.Clipped
    response: text.Clipped
    verdict: Verdict
    steps: list[Step]
    hidden_steps: int
    step_rewards: str  # their sum; empty where no step of the page has one
    low: str
    high: str
    end: float | None


@dataclasses.dataclass(frozen=True)
class Scale:
    """The axis of the stems, and the advantage that is drawn in full colour."""

    low: float
    high: float
    advantage: float

    @property
    def ends(self) -> tuple[str, str]:
        return text.tick(round(self.low, 2)), text.tick(round(self.high, 2))

    def place(self, value: float | None) -> float | None:
        if value is None:
            return None
        return round((value - self.low) / (self.high - self.low) * 100, 1)


@dataclasses.dataclass(frozen=True)
class Credit:
    """What the method and the task of a run say of its steps."""

    values_by: str  # 'continuations' or 'critic'; '' where states have no value
    has_advantages: bool
    is_by_step: bool  # the steps of a solution can have different advantages
    has_rewards: bool  # some step brings something by itself


@dataclasses.dataclass(frozen=True)
class Terms:
    """What every solution of a page is shown by."""

    scale: Scale
    credit: Credit
    limits: Limits


@dataclasses.dataclass(frozen=True)
class Iteration:
    """One tab: the chosen solutions of an iteration and what they were chosen from."""

    iteration: int
    solutions: list[Solution]
    num_episodes: int
    mean_reward: float | None


@dataclasses.dataclass(frozen=True)
class Vine:
    iterations: list[Iteration]
    scale: Scale
    credit: Credit


def vine(episodes: dict[int, list[Row]], limits: Limits) -> Vine | None:
    """The solutions of some iterations, or None where no episode was kept."""
    chosen = {i: choose(found, limits.episodes) for i, found in episodes.items()}
    shown = [episode for found in chosen.values() for episode in found]
    if not shown:
        return None
    terms = Terms(_scale(shown), _credit(shown), limits)
    iterations = []
    for i, found in chosen.items():
        rewards = [r for e in episodes[i] if (r := number(e.get("reward"))) is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        solutions = [_solution(episode, terms) for episode in found]
        iterations.append(Iteration(i, solutions, len(episodes[i]), mean))
    return Vine(iterations, terms.scale, terms.credit)


def choose(episodes: list[Row], count: int) -> list[Row]:
    """The `count` episodes of the widest credit, widest first.

    Half of the places go to episodes whose continuations were kept, as those can be unfolded. A
    solution is not repeated while there are others.
    """

    def unfolds(episode: Row) -> bool:
        return any(step.get("continuations") for step in steps_of(episode))

    ranked = sorted(episodes, key=lambda e: (width_of(e), unfolds(e)), reverse=True)
    first: dict[str, Row] = {}
    repeats = [e for e in ranked if first.setdefault(identity_of(e), e) is not e]
    preferred = [*first.values(), *repeats]
    unfold = [e for e in preferred if unfolds(e)]
    kept = {id(e) for e in unfold[: count // 2]}
    for episode in preferred:
        if len(kept) < count:
            kept.add(id(episode))
    return [e for e in ranked if id(e) in kept]


def least_size(episodes: list[Row], limits: Limits) -> int:
    """Characters of the steps and continuations that would be shown: no page can be smaller."""
    size = 0
    for episode in choose(episodes, limits.episodes):
        for step in steps_of(episode)[: limits.steps]:
            size += min(len(str(step.get("text"))), limits.step_characters)
            for leaf in continuations_of(step)[: limits.continuations]:
                size += min(len(str(leaf.get("text"))), limits.continuation_characters)
    return size


def verdict(reward: float | None, is_cut: bool) -> Verdict:
    shown = text.short(reward)
    if reward is not None and reward >= HALF:
        return Verdict("correct", "✓", shown)
    return Verdict("cut", "✂", shown) if is_cut else Verdict("wrong", "✗", shown)


def _scale(episodes: list[Row]) -> Scale:
    """The smallest axis that holds [0, 1] and every value and reward shown."""
    places, advantages = [0.0, 1.0], [0.0]
    for episode in episodes:
        stem = [place for step in read_steps(episode) for place in (step.start, step.end)]
        places += [v for v in [*stem, number(episode.get("reward"))] if v is not None]
        advantages += [abs(a) for a in advantages_of(episode)]
    return Scale(min(places), max(places), max(advantages) or 1.0)


def _credit(episodes: list[Row]) -> Credit:
    return Credit(
        values_by=next(filter(None, map(values_by, episodes)), ""),
        has_advantages=any(map(advantages_of, episodes)),
        is_by_step=any(width_of(episode) > 0 for episode in episodes),
        has_rewards=any(map(has_step_rewards, episodes)),
    )


def _solution(episode: Row, terms: Terms) -> Solution:
    steps, reward, limits = read_steps(episode), number(episode.get("reward")), terms.limits
    shown = [_step(c, step, len(steps), terms) for c, step in enumerate(steps[: limits.steps])]
    advantages = advantages_of(episode)
    question, prompt = episode.get("question"), episode.get("prompt")
    return Solution(
        problem_id=text.clip(episode.get("problem_id"), 80).text,
        question=text.clip(question, limits.step_characters),
        answer=text.clip(episode.get("answer"), limits.step_characters),
        prompt=text.clip(None if prompt == question else prompt, limits.step_characters),
        response=text.clip(None if steps else episode.get("response"), limits.step_characters),
        verdict=verdict(reward, episode.get("finished") is False),
        steps=shown,
        hidden_steps=len(steps) - len(shown),
        step_rewards=text.tick(total_reward(steps)) if terms.credit.has_rewards else "",
        low=text.fixed(min(advantages, default=None), signed=True),
        high=text.fixed(max(advantages, default=None), signed=True),
        end=terms.scale.place(steps[-1].end if steps else reward),
    )


def _step(index: int, step: StepRow, num_steps: int, terms: Terms) -> Step:
    scale, credit, limits = terms.scale, terms.credit, terms.limits
    is_last, advantage = index + 1 == num_steps, step.advantage or 0.0
    count = int(number(step.raw.get("count")) or 0)
    found = continuations_of(step.raw)
    return Step(
        number=index + 1,
        text=text.clip(step.raw.get("text"), limits.step_characters),
        value=text.fixed(step.value),
        after=text.short(step.after) if is_last else text.fixed(step.after),
        reward=text.tick(step.reward) if credit.has_rewards else "",
        is_last=is_last,
        is_filled=credit.values_by == "continuations" and not count,
        count=count,
        advantage=text.fixed(step.advantage, signed=True),
        side="pos" if advantage > 0 else "neg" if advantage < 0 else "zero",
        strength=round(min(1.0, abs(advantage) / scale.advantage), 3),
        start=scale.place(step.start),
        end=scale.place(step.end),
        leaves=[_leaf(c, terms) for c in found[: limits.continuations]],
        hidden_leaves=max(0, len(found) - limits.continuations),
    )


def _leaf(raw: Row, terms: Terms) -> Leaf:
    finish, reward = text.clip(raw.get("finish"), 20).text, number(raw.get("reward"))
    judged = verdict(reward, finish == "length")
    if terms.credit.has_rewards:  # a return, which does not tell what the outcome was
        judged = Verdict("return", "", text.tick(reward))
    return Leaf(judged, text.clip(raw.get("text"), terms.limits.continuation_characters), finish)
