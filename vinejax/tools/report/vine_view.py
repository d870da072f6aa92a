"""The report's section of sampled solutions: their steps, advantages and values V(s) of states.

A solution is drawn as a stem, a line from top to bottom. Each state is a node of the stem, whose
horizontal position is V(s), estimated by continuations or a critic. A state has a row with its V(s)
and its continuations, which the reader can expand. The step with its advantage stands between two
states. For methods without V(s), the page shows steps and advantages without a stem.
"""

import dataclasses
import math
from typing import NamedTuple

from vinejax.core.types import CORRECT_REWARD
from vinejax.records import formats
from vinejax.records.read import JsonObject, finite_number
from vinejax.tools.report import rows
from vinejax.tools.report.episode_choice import choose_episodes, count_open


class Limits(NamedTuple):
    """Maximum amounts that a page shows.

    Of the entries of LIMITS, a page uses the first with which it is not too large, or else the
    last.
    """

    episodes: int  # per iteration
    steps: int  # per episode
    continuations: int  # per step
    step_characters: int  # characters of a step, of a problem or of an answer
    continuation_characters: int


LIMITS = (
    Limits(24, 60, 32, 6000, 4000),
    Limits(24, 60, 16, 3000, 1000),
    Limits(24, 40, 9, 1500, 400),
    Limits(16, 30, 9, 800, 240),
    Limits(8, 16, 4, 200, 120),
)


MAX_TOKEN = 40  # characters shown of a token's text

# The |A| that is shown in full colour. A step that turns a sure success into a sure failure has it.
# It is the same in every page and figure, so that the colours of two figures can be compared.
FULL_CREDIT = 1.0
SIZES = {"half": 0.5, "quarter": 0.25}  # filter -> minimum of a solution's largest |A|


class VerdictView(NamedTuple):
    """How the page shows the grade of a solution or continuation.

    `kind` is shown as text and is a CSS class in report.html.j2: 'correct', 'wrong', 'cut' (the
    token budget ended the text), or 'return' (the task also rewards steps, so a return does not
    tell whether the answer is right).
    """

    kind: str
    mark: str
    reward: str


class DepartureView(NamedTuple):
    """Where a continuation leaves its solution, and the label that its token is there."""

    repeated: formats.Clipped  # text of the continuation before `token`
    token: formats.Clipped
    position: str  # number of response tokens before `token`
    returns: str
    coefficient: str


class LeafView(NamedTuple):
    """One continuation of the state before a step; `text` begins after its departure, if any."""

    verdict: VerdictView
    departure: DepartureView | None
    repeats: bool  # whether the run has labels and the continuation never leaves its solution
    text: formats.Clipped
    finish: str


class PartView(NamedTuple):
    """A piece of a step's text, and whether the policy or the environment wrote it."""

    by: str  # 'policy', 'environment' or, if the policy did not read the text, 'environment unread'
    text: formats.Clipped


@dataclasses.dataclass(frozen=True)
class StepView:
    """One reasoning step, and the state before the step with V(s) and continuations.

    `start` and `end` place the states before and after the step on the axis of V(s), in percent.
    """

    number: int
    text: formats.Clipped
    parts: list[PartView]  # pieces of the text by their authors, where the task has turns
    value: str
    reward: str  # the step's own reward; '' if no step on the page has one
    is_filled: bool  # whether V(s) was derived from other states, without samples at this one
    count: int  # number of returns whose mean is V(s)
    reused: int  # number of these returns from samples that only passed through the state
    error: str  # standard error of V(s)
    advantage: str
    advantage_error: str  # standard error of the advantage
    side: str  # pos, neg or zero
    strength: float  # |advantage| as a share of FULL_CREDIT, at most 1
    start: float | None
    end: float | None
    leaves: list[LeafView]
    hidden_leaves: int

    @property
    def num_correct(self) -> int:
        return sum(leaf.verdict.kind == "correct" for leaf in self.leaves)


class SolutionView(NamedTuple):
    """One solution; `low` and `high` are its smallest and largest advantage.

    `name` is the HTML anchor of the solution. `kinds` are CSS classes by which the page filters:
    the problem's class, 'right' or 'wrong', the names of the `SIZES` that the largest |advantage|
    reaches, and 'certain' if some |advantage| is larger than two of its standard errors.
    """

    name: str
    kinds: str
    problem_id: str
    question: formats.Clipped
    answer: formats.Clipped
    prompt: formats.Clipped
    given: formats.Clipped  # the given start of the response, which is not trained on
    response: formats.Clipped
    verdict: VerdictView
    failed_test: list[tuple[str, formats.Clipped]]  # names and values of the test's parts
    steps: list[StepView]
    hidden_steps: int
    step_rewards: str  # the sum of the steps' own rewards; '' if no step on the page has one
    penalty: str  # what the solution loses for its length; '' if nothing
    low: str
    high: str
    end: float | None
    unfolds: bool


class StemScale(NamedTuple):
    """The axis of V(s), by which the stems are drawn, from `low` to `high`."""

    low: float
    high: float

    @property
    def ends(self) -> tuple[str, str]:
        return formats.tick_label(round(self.low, 2)), formats.tick_label(round(self.high, 2))

    def place(self, value: float | None) -> float | None:
        """The position of a value on the axis, in percent; None if the value is None."""
        if value is None:
            return None
        return round((value - self.low) / (self.high - self.low) * 100, 1)


class CreditView(NamedTuple):
    """The kinds of values, advantages and rewards that the steps of a run have."""

    values_by: str  # 'continuations' or 'critic'; '' if states have no value
    has_advantages: bool
    is_by_step: bool  # whether steps of one solution have different advantages
    has_rewards: bool  # whether some step has a reward of its own that is not 0
    has_errors: bool  # whether some advantage has a standard error
    unfolds: bool  # whether some continuations were kept
    has_labels: bool  # whether some continuation was kept with the place where it departs


class PageTerms(NamedTuple):
    """The axis, the kinds of credit, the limits and the discount that a page's solutions share."""

    scale: StemScale
    credit: CreditView
    limits: Limits
    gamma: float


class IterationView(NamedTuple):
    """A tab of the section: the chosen solutions of an iteration, and numbers on all episodes."""

    iteration: int
    solutions: list[SolutionView]
    num_open: int  # number of solutions, from the first on, that are shown expanded
    num_episodes: int
    mean_reward: float | None


class FilterOption(NamedTuple):
    """An option of a filter: the CSS class of the solutions that it shows, and its label."""

    kind: str
    label: str


class VineView(NamedTuple):
    """All tabs of the section, and what their solutions share: axis, kinds of credit, filters."""

    iterations: list[IterationView]
    scale: StemScale
    credit: CreditView
    sizes: list[FilterOption]
    problems: list[FilterOption]


def vine_view(
    episodes: dict[int, list[JsonObject]], limits: Limits, gamma: float = 1.0
) -> VineView | None:
    """The view of `episodes`, which maps iterations to episodes; None without episodes.

    `gamma` is the discount per step of the run.
    """
    shown_of = {i: choose_episodes(listed, limits.episodes) for i, listed in episodes.items()}
    all_shown = [episode for shown in shown_of.values() for episode in shown]
    if not all_shown:
        return None
    terms = PageTerms(_scale(all_shown), _credit(all_shown), limits, gamma)
    problems = {name: f"p{i}" for i, name in enumerate(dict.fromkeys(map(_problem, all_shown)))}
    iterations = []
    for i, shown in shown_of.items():
        rewards = [r for e in episodes[i] if (r := finite_number(e.get("reward"))) is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        places = {id(episode): place for place, episode in enumerate(episodes[i])}
        solutions = [
            _solution(e, terms, f"s{i}-{places[id(e)]}", problems[_problem(e)]) for e in shown
        ]
        iterations.append(IterationView(i, solutions, count_open(shown), len(episodes[i]), mean))
    labels = {_problem(e): formats.clip(e.get("question"), 60).text for e in all_shown}
    choices = [
        FilterOption(kind, labels[name].replace("\n", " ").strip() or formats.clip(name, 60).text)
        for name, kind in problems.items()
    ]
    return VineView(iterations, terms.scale, terms.credit, _sizes(terms.credit), choices)


def least_size(episodes: list[JsonObject], limits: Limits) -> int:
    """A lower bound of the bytes that an iteration takes in the page.

    The bound is the number of shown characters in the texts of steps and continuations.
    """
    size = 0
    for episode in choose_episodes(episodes, limits.episodes):
        for step in rows.steps_of(episode)[: limits.steps]:
            size += min(len(str(step.get("text"))), limits.step_characters)
            for leaf in rows.continuations_of(step)[: limits.continuations]:
                size += min(len(str(leaf.get("text"))), limits.continuation_characters)
    return size


def verdict_of(reward: float | None, is_cut: bool) -> VerdictView:
    """The grade for a reward. `is_cut` tells whether the token budget ended the text."""
    number = formats.three_digits(reward)
    if reward is not None and reward >= CORRECT_REWARD:
        return VerdictView("correct", "✓", number)
    return VerdictView("cut", "✂", number) if is_cut else VerdictView("wrong", "✗", number)


def _scale(episodes: list[JsonObject]) -> StemScale:
    """The shortest axis that contains [0, 1] and all values and rewards of the episodes."""
    places = [0.0, 1.0]
    for episode in episodes:
        stem = [place for step in rows.read_steps(episode) for place in (step.start, step.end)]
        places += [v for v in [*stem, finite_number(episode.get("reward"))] if v is not None]
    return StemScale(min(places), max(places))


def _credit(episodes: list[JsonObject]) -> CreditView:
    return CreditView(
        values_by=next(filter(None, map(rows.values_by, episodes)), ""),
        has_advantages=any(map(rows.advantages_of, episodes)),
        is_by_step=any(rows.width_of(episode) > 0 for episode in episodes),
        has_rewards=any(finite_number(s.get("reward")) for e in episodes for s in rows.steps_of(e)),
        has_errors=any(map(rows.certainty_of, episodes)),
        unfolds=any(map(rows.unfolds, episodes)),
        has_labels=any(map(rows.has_departures, episodes)),
    )


def _problem(episode: JsonObject) -> str:
    return str(episode.get("problem_id"))


def _sizes(credit: CreditView) -> list[FilterOption]:
    """The options of the filter of solutions by their advantages; [] if there are no advantages.

    The options are the names in SIZES and, if advantages have standard errors, 'certain'.
    """
    if not credit.has_advantages:
        return []
    certain = (
        [FilterOption("certain", "some |A| beyond 2 of its errors")] if credit.has_errors else []
    )
    return certain + [FilterOption(kind, f"some |A| from {a} on") for kind, a in SIZES.items()]


def _kinds(episode: JsonObject, steps: list[rows.StepRow], problem: str) -> str:
    reward = finite_number(episode.get("reward"))
    kinds = [problem, "right" if reward is not None and reward >= CORRECT_REWARD else "wrong"]
    largest = max(map(abs, rows.advantages_of(episode)), default=-1.0)
    kinds += [kind for kind, size in SIZES.items() if largest >= size]
    with_errors = (s for s in steps if s.advantage and s.advantage_error is not None)
    if any(abs(s.advantage or 0.0) > 2 * (s.advantage_error or 0.0) for s in with_errors):
        kinds.append("certain")
    return " ".join(kinds)


def _solution(episode: JsonObject, terms: PageTerms, name: str, problem: str) -> SolutionView:
    steps = rows.read_steps(episode, terms.gamma)
    reward = finite_number(episode.get("reward"))
    limits = terms.limits
    step_views = [_step(c, step, terms) for c, step in enumerate(steps[: limits.steps])]
    advantages = rows.advantages_of(episode)
    step_reward_sum = round(math.fsum(step.reward for step in steps), 9)
    penalty = finite_number(episode.get("penalty"))
    question, prompt = episode.get("question"), episode.get("prompt")
    return SolutionView(
        name=name,
        kinds=_kinds(episode, steps, problem),
        problem_id=formats.clip(episode.get("problem_id"), 80).text,
        question=formats.clip(question, limits.step_characters),
        answer=formats.clip(episode.get("answer"), limits.step_characters),
        prompt=formats.clip(None if prompt == question else prompt, limits.step_characters),
        given=formats.clip(episode.get("given"), limits.step_characters),
        response=formats.clip(None if steps else episode.get("response"), limits.step_characters),
        verdict=verdict_of(reward, episode.get("finished") is False),
        failed_test=[
            (name, formats.clip(part, limits.step_characters))
            for name, part in rows.failed_test_of(episode)
        ],
        steps=step_views,
        hidden_steps=len(steps) - len(step_views),
        step_rewards=formats.tick_label(step_reward_sum) if terms.credit.has_rewards else "",
        penalty=formats.three_digits(penalty) if penalty else "",
        low=formats.two_decimals(min(advantages, default=None), signed=True),
        high=formats.two_decimals(max(advantages, default=None), signed=True),
        end=terms.scale.place(steps[-1].end if steps else reward),
        unfolds=any(step.leaves for step in step_views),
    )


def _step(index: int, step: rows.StepRow, terms: PageTerms) -> StepView:
    scale, credit, limits = terms.scale, terms.credit, terms.limits
    advantage = step.advantage or 0.0
    side = "zero"
    if advantage:
        side = "pos" if advantage > 0 else "neg"
    count = int(finite_number(step.raw.get("count")) or 0)
    continuations = rows.continuations_of(step.raw)
    return StepView(
        number=index + 1,
        text=formats.trimmed(formats.clip(step.raw.get("text"), limits.step_characters)),
        parts=_parts(step.raw, limits.step_characters),
        value=formats.two_decimals(step.value),
        reward=formats.tick_label(step.reward) if credit.has_rewards else "",
        is_filled=credit.values_by == "continuations" and not count,
        count=count,
        reused=int(finite_number(step.raw.get("reused")) or 0),
        error=_error(step.error),
        advantage=formats.two_decimals(step.advantage, signed=True),
        advantage_error="" if step.advantage is None else _error(step.advantage_error),
        side=side,
        strength=round(min(1.0, abs(advantage) / FULL_CREDIT), 3),
        start=scale.place(step.start),
        end=scale.place(step.end),
        leaves=[_leaf(c, terms) for c in continuations[: limits.continuations]],
        hidden_leaves=max(0, len(continuations) - limits.continuations),
    )


def _parts(raw: JsonObject, limit: int) -> list[PartView]:
    """The pieces of a step's text by policy and environment; [] if the task has no turns."""
    whole, observed = str(raw.get("text")), raw.get("observed")
    if not isinstance(observed, list):
        return []
    parts, start = [], 0
    for place in [*observed, [len(whole), len(whole)]]:
        first, end = rows.range_of(place) or (start, start)
        for by, piece in (("policy", whole[start:first]), ("environment", whole[first:end])):
            if piece:
                parts.append(PartView(by, formats.trimmed(formats.clip(piece, limit))))
        start = end
    if unread := raw.get("unread"):
        parts.append(PartView("environment unread", formats.trimmed(formats.clip(unread, limit))))
    return parts


def _leaf(raw: JsonObject, terms: PageTerms) -> LeafView:
    finish = formats.clip(raw.get("finish"), 20).text
    reward = finite_number(raw.get("reward"))
    outcome = finite_number(raw.get("outcome", reward))
    verdict = verdict_of(outcome, finish == "length")
    verdict = verdict._replace(reward=formats.three_digits(reward))
    if terms.credit.has_rewards:  # a return, which does not tell whether the answer is right
        verdict = VerdictView("return", "", formats.tick_label(reward))
    limit, found = terms.limits.continuation_characters, rows.departure_of(raw)
    if found is None:
        words = formats.trimmed(formats.clip(raw.get("text"), limit))
        return LeafView(verdict, None, raw.get("departure", 0) is None, words, finish)
    text = str(raw.get("text"))
    repeated, rest = text[: found.character], text[found.character :].removeprefix(found.token)
    departure = DepartureView(
        repeated=formats.clip(repeated.lstrip("\n"), limit),
        token=formats.clip(found.token, MAX_TOKEN),
        position=formats.three_digits(found.position),
        returns=formats.tick_label(found.returns),
        coefficient=formats.decimals(found.coefficient, 3, signed=True),
    )
    words = formats.clip(rest.rstrip("\n"), max(0, limit - len(repeated)))
    return LeafView(verdict, departure, False, words, finish)


def _error(value: float | None) -> str:
    return "" if value is None else formats.two_decimals(value)
