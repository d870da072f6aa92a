"""What the doctor sees of a run: a few problems with their prompts, samples and known solutions.

The samples are drawn by the run's own sampler, with the random numbers of the first iteration. A
number depends on its purpose alone, so the first iteration draws the same ones again.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.errors import UserError
from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer
from vinejax.core.types import CORRECT_REWARD, Episode, Problem, PromptedProblem
from vinejax.model.decoder import Params
from vinejax.rollout.draw import chunks, draw
from vinejax.rollout.sampler import solution_requests
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.session.budget import NO_BOUND
from vinejax.session.session import Session
from vinejax.tasks.base import WithGold
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.graded import GradingStats
from vinejax.tasks.prompts import encode_within, worked_response

PROBLEMS, SAMPLES = 8, 2
FURTHER = 24  # problems whose known solutions are graded if those of the first PROBLEMS all fail
BARE = 40  # most characters of an answer that is no solution
MEASURED = 256  # problems whose known solutions are measured if all samples were cut


class Sample(NamedTuple):
    """A response of the policy."""

    tokens: list[int]
    text: str  # as it is graded: before a stop string
    finish: str  # 'eos' | 'stop' | 'length'
    earned: float  # the reward in training: `reward.truncated` for a response that was cut
    reward: float  # the reward of the text, also of one that was cut
    answer: str | None  # as the task reads it
    surprise: float  # nats per token that the policy drew


class KnownSolution(NamedTuple):
    """A solution that the data has, in the form of a response."""

    text: str  # before a stop string
    num_tokens: int  # with EOS, without regard to stop strings
    reward: float
    whole_reward: float  # the reward of the text without regard to stop strings
    answer: str | None  # as the task reads it
    is_stopped: bool  # whether a stop string is in the text


class Case(NamedTuple):
    """A problem with its samples."""

    problem: Problem
    prompt: list[int]
    text: str  # the task's prompt, which a chat template puts into its markup
    gold: str | None  # the data's answer, as the task reads it
    samples: list[Sample]
    solution: KnownSolution | None  # None: the data has none


@dataclasses.dataclass(frozen=True)
class Look:
    """All that the rules of `findings.py` judge; a test can make one up."""

    cfg: Config
    cases: list[Case]
    further: list[KnownSolution]  # of further problems
    tokenizer: Tokenizer
    vocab_size: int  # of the model
    context: int  # of the model, in tokens
    model_eos_ids: tuple[int, ...]  # named by the model's own files
    end_ids: tuple[int, ...]  # all tokens that end a response in this run
    stop: tuple[str, ...]  # texts that end a response or a turn
    # (tokens with EOS, tokens that the budget and the context allow) of known solutions, if all
    # samples were cut
    known_lengths: Sequence[tuple[int, int]] = ()
    is_multi_turn: bool = False
    prompt_lengths: Sequence[int] = ()  # tokens of every train prompt
    grading: GradingStats = GradingStats()  # of the samples and solutions, on this host

    @property
    def samples(self) -> list[Sample]:
        return [sample for case in self.cases for sample in case.samples]

    @property
    def solutions(self) -> list[KnownSolution]:
        return [case.solution for case in self.cases if case.solution] + self.further


def look_at(session: Session, params: Params) -> Look:
    """Samples, grades and collects; all hosts must make the call. `params` are whole weights."""
    cfg, task, before = session.cfg, session.task, session.graded.stats
    is_multi_turn = isinstance(task, MultiTurn)
    phases = math.ceil(PROBLEMS / cfg.rollout.prompts)
    problems = draw(session.problems["train"], phases * cfg.rollout.prompts, cfg.seed, iteration=0)
    # A session of its own: the run's engine keeps its counts, and measures memory when it did.
    # Compiled programs belong to all engines.
    other = dataclasses.replace(session)
    sampled = _turns(other, params, problems) if is_multi_turn else _single(other, params, problems)
    other.engine.release()
    chosen = [problem for problem, _ in problems[: len(sampled)]]
    solutions = [None] * len(chosen) if is_multi_turn else known_solutions(session, chosen)
    further: list[KnownSolution | None] = []
    known = [solution for solution in solutions if solution]
    if known and not any(solution.reward >= CORRECT_REWARD for solution in known):
        rest = [pair[0] for pair in session.problems["train"] if pair[0] not in chosen]
        further = known_solutions(session, rest[:FURTHER])
    are_cut = all(sample.finish == "length" for _, samples in sampled for sample in samples)
    stop = cfg.sample.stop + (task.ends_turn if isinstance(task, MultiTurn) else ())
    cases = [
        Case(problem, prompt, task.prompt(problem), _gold(session, problem), samples, solution)
        for problem, (prompt, samples), solution in zip(chosen, sampled, solutions, strict=True)
    ]
    return Look(
        cfg=cfg,
        cases=cases,
        further=[solution for solution in further if solution],
        tokenizer=session.tokenizer,
        vocab_size=session.model.cfg.vocab_size,
        context=session.model.cfg.context,
        model_eos_ids=tuple(session.model.cfg.eos_ids),
        end_ids=other.engine.eos_ids,
        stop=stop,
        known_lengths=_known_lengths(session) if are_cut else (),
        is_multi_turn=is_multi_turn,
        prompt_lengths=[len(ids) for _, ids in session.problems["train"]],
        grading=session.graded.stats.minus(before),
    )


PromptAndSamples = tuple[list[int], list[Sample]]


def _single(
    session: Session, params: Params, problems: list[PromptedProblem]
) -> list[PromptAndSamples]:
    """Samples of the first `PROBLEMS` problems, for a task of one turn.

    A phase has as many branches as that of the first iteration, and so the shapes whose programs
    the run compiles anyway. All but the wanted branches end after one token.
    """
    sampled: list[PromptAndSamples] = []
    for phase in chunks(problems, session.cfg.rollout.prompts):
        sampled += _phase(session, params, phase, PROBLEMS - len(sampled))
    return sampled


def _phase(
    session: Session, params: Params, problems: list[PromptedProblem], most: int
) -> list[PromptAndSamples]:
    """Samples of the first `most` of these problems, drawn in one phase."""
    cfg, engine = session.cfg, session.engine
    starts = session.sampler(0).prompt_starts(problems, max(cfg.rollout.per_prompt, SAMPLES))
    requests = solution_requests(starts, cfg.sample.max_tokens)
    per_problem = len(starts[0].seeds)
    is_wanted = [
        branch.trunk < most and i % per_problem < SAMPLES
        for i, branch in enumerate(requests.branches)
    ]
    budgets = [cfg.sample.max_tokens if wanted else 1 for wanted in is_wanted]
    grown = engine.grow(params, requests.trunks, requests.branches, budgets)
    wanted = [i for i, is_one in enumerate(is_wanted) if is_one]
    items = [(requests.beginnings[i][0], grown[i].text) for i in wanted]
    rewards = _graded(session, items, [grown[i].tokens for i in wanted])
    samples = [
        Sample(
            tokens=grown[i].tokens,
            text=grown[i].text,
            finish=grown[i].finish,
            earned=cfg.reward.truncated if grown[i].finish == "length" else rewards[n],
            reward=rewards[n],
            answer=_answer(session, *items[n]),
            surprise=-float(np.mean(grown[i].logprobs)) if grown[i].logprobs else 0.0,
        )
        for n, i in enumerate(wanted)
    ]
    prompts = [prompt for _, prompt in problems[:most]]
    return [(prompt, samples[SAMPLES * i :][:SAMPLES]) for i, prompt in enumerate(prompts)]


def _turns(
    session: Session, params: Params, problems: list[PromptedProblem]
) -> list[PromptAndSamples]:
    """Episodes of the first `PROBLEMS` problems, for a task of several turns."""
    cfg = session.cfg
    rollout = dataclasses.replace(cfg.rollout, per_prompt=SAMPLES)
    sampler = session.sampler_of(session.engine, dataclasses.replace(cfg, rollout=rollout), 0)
    episodes = sampler.solutions(params, problems[:PROBLEMS], NO_BOUND)
    groups = [episodes[i : i + SAMPLES] for i in range(0, len(episodes), SAMPLES)]
    return [(group[0].prompt, [_of_episode(session, e) for e in group]) for group in groups]


def _of_episode(session: Session, episode: Episode) -> Sample:
    drawn = np.asarray(episode.logprobs)[episode.is_drawn]
    total = episode.reward + sum(episode.step_rewards or [])
    return Sample(
        tokens=episode.response,
        text=episode.text,
        finish="stop" if episode.finished else "length",
        earned=total,
        reward=total,
        answer=_or_none(session.task.answer, episode.text),
        surprise=-float(drawn.mean()) if drawn.size else 0.0,
    )


def known_solutions(session: Session, problems: list[Problem]) -> list[KnownSolution | None]:
    """The data's solution of each problem, or None where there is none.

    Some tasks have demonstrations that may be wrong as `solution`, and a right solution as the
    row's answer. Of these two the one that earns more is taken. A wrong `solution` that is a bare
    answer does not count, because it need not have the form of a response.
    """
    texts = [_or_none(session.task.solution, problem) for problem in problems]
    found = _as_responses(session, problems, texts)
    wrong = {i for i, solution in found.items() if solution.reward < CORRECT_REWARD}
    answers = [problem.answer if i in wrong else None for i, problem in enumerate(problems)]
    for i, solution in _as_responses(session, problems, answers).items():
        found[i] = max(found[i], solution, key=lambda x: x.reward)
    wrong = {i for i in wrong if found[i].whole_reward < CORRECT_REWARD}
    bare = {i for i in wrong if _is_bare(problems[i], texts[i] or "")}
    return [None if i in bare else found.get(i) for i in range(len(problems))]


def _is_bare(problem: Problem, text: str) -> bool:
    return text.strip() == problem.answer.strip() and len(text.strip()) <= BARE


def _as_responses(
    session: Session, problems: list[Problem], texts: Sequence[str | None]
) -> dict[int, KnownSolution]:
    """The texts that are not empty, graded as responses, by the number of the problem."""
    stop, tokenizer = session.cfg.sample.stop, session.tokenizer
    whole = {i: worked_response(problems[i], text) for i, text in enumerate(texts) if text}
    cut = {i: before_stop(text, stop) for i, text in whole.items()}
    numbers = [i for i in whole if whole[i].strip()]
    items = [(problems[i], text) for i in numbers for text in (cut[i], whole[i])]
    rewards = _graded(session, items)
    return {
        i: KnownSolution(
            text=cut[i],
            num_tokens=len(encode_within(tokenizer, whole[i])) + 1,
            reward=rewards[2 * n],
            whole_reward=rewards[2 * n + 1],
            answer=_answer(session, problems[i], cut[i]),
            is_stopped=cut[i] != whole[i],
        )
        for n, i in enumerate(numbers)
        if 2 * n in rewards and 2 * n + 1 in rewards
    }


def _known_lengths(session: Session) -> list[tuple[int, int]]:
    """`Look.known_lengths` of the first `MEASURED` train problems."""
    cfg, task = session.cfg, session.task
    if isinstance(task, MultiTurn):
        return []
    lengths = []
    for problem, prompt in session.problems["train"][:MEASURED]:
        if text := _or_none(task.solution, problem):
            tokens = len(encode_within(session.tokenizer, worked_response(problem, text))) + 1
            room = min(cfg.sample.max_tokens, session.model.cfg.context - len(prompt))
            lengths.append((tokens, room))
    return lengths


def before_stop(text: str, stop: Sequence[str]) -> str:
    """The text before its first stop string."""
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


def _graded(
    session: Session, items: list[tuple[Problem, str]], ids: list[list[int]] | None = None
) -> dict[int, float]:
    """The rewards of (problem, response) pairs by number; each host grades a part of them.

    Without `ids` the responses are not the policy's, and may be ones that the user's reward
    functions cannot judge; then the result lacks them.
    """
    mine = [i for i in range(len(items)) if is_mine(i)]
    chosen = [items[i] for i in mine]
    if ids is None:
        rewards = _or_none(session.graded.grade, chosen) or []
    else:
        rewards = session.graded.grade(chosen, [ids[i] for i in mine])
    totals = [float(reward.total) for reward in rewards]
    return shared_work(dict(zip(mine, totals, strict=bool(totals))))


def _answer(session: Session, problem: Problem, text: str) -> str | None:
    """The answer that the task reads from a response."""
    answers = _or_none(session.graded.answers, [(problem, text)])
    return answers[0] if answers else None


def _gold(session: Session, problem: Problem) -> str | None:
    task = session.task
    if isinstance(task, WithGold):
        return _or_none(task.gold, problem)
    return _or_none(task.answer, problem.answer) or problem.answer or None


def _or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or None if the data or the task has none to give."""
    try:
        return function(*arguments)
    except (UserError, NotImplementedError):
        return None
