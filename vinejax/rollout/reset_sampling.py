"""Resets: groups of solutions that begin after the first tokens of a known solution.

The given tokens are the known solution's own ids. The policy goes on from there, and the loss is on
its own tokens alone (`Episode.given`). All `rollout.per_prompt` solutions of a group begin alike,
so methods that compare solutions compare equals. The whole text is graded, and a solution has
`sample.max_tokens` tokens at most with those that were given. Nothing is kept between iterations.

Sources, and how this departs:
- 'gold': DR-PO (https://arxiv.org/abs/2404.08495) draws one solution per problem, after a random
  number of tokens of the data set's solution. Here a whole group begins after that number.
- 'solved', 'failed', 'both': in Prefix Sampling (https://arxiv.org/abs/2605.05112) groups that
  mostly fail begin like an earlier right solution, groups that mostly pass like an earlier wrong
  one, so that half of them pass. Here the earlier solution is one of the same iteration, whose
  groups from the prompt stay; the reset groups are added to them.
- at 'edge': BASS and OmegaPRM, see credit/reset_edge.py.
"""

from typing import NamedTuple

from vinejax.core.seeds import host_rng, row_seed
from vinejax.core.settings import Config
from vinejax.core.text import cut_at_stop, decode
from vinejax.core.types import Episode, Problem, PromptedProblem, is_correct
from vinejax.credit.reset_edge import edge, next_probe
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Params
from vinejax.rollout.trajectories import (
    Start,
    episodes_from,
    prompt_starts,
    sample_episodes,
    sample_from,
)
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import encode_response


class Known(NamedTuple):
    """A known solution that others begin like; its response has at least two tokens."""

    problem: Problem
    prompt: list[int]
    response: list[int]
    is_right: bool


def sample_with_resets(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int,
    most: int,
) -> list[Episode]:
    """Graded episodes in groups of `rollout.per_prompt`, a group for every problem.

    With `reset.source` 'gold' some of these groups are resets. With 'solved', 'failed' and 'both'
    resets follow as further groups, as long as there are at most `most` groups in all.
    """
    source = cfg.reset.source
    if source == "gold":
        starts = _gold_starts(engine, params, graded, problems, cfg, iteration)
        return episodes_from(engine, params, graded, starts, cfg)
    episodes = sample_episodes(engine, params, graded, problems, cfg, iteration)
    if source == "none":
        return episodes
    known = known_solutions(problems, episodes, cfg, iteration)[: most - len(problems)]
    lengths = _lengths(engine, params, graded, known, cfg, iteration)
    # Solutions of a problem are numbered on, which tells their random numbers apart.
    numbers = range(cfg.rollout.per_prompt, 2 * cfg.rollout.per_prompt)
    starts = [
        Start(
            solution.problem,
            solution.prompt,
            solution.response[:length],
            [row_seed(cfg.seed, iteration, solution.problem.id, number) for number in numbers],
        )
        for solution, length in zip(known, lengths, strict=True)
    ]
    return episodes + (episodes_from(engine, params, graded, starts, cfg) if starts else [])


def known_solutions(
    problems: list[PromptedProblem], episodes: list[Episode], cfg: Config, iteration: int
) -> list[Known]:
    """A right solution of each problem with a pass rate below `reset.target`, a wrong one above it.

    'solved' wants the first, 'failed' the second, 'both' either. Problems without such a solution
    are left out. Which of several it is depends on (seed, iteration, problem) only.
    """
    groups: dict[str, list[Episode]] = {problem.id: [] for problem, _ in problems}
    for episode in episodes:
        groups[episode.problem_id].append(episode)
    source, target = cfg.reset.source, cfg.reset.target
    known = []
    for problem, prompt in problems:
        group = groups[problem.id]
        rate = sum(is_correct(episode.reward) for episode in group) / len(group)
        wants_right = rate < target
        if rate == target or source not in ("both", "solved" if wants_right else "failed"):
            continue
        fitting = [
            episode.response
            for episode in group
            if is_correct(episode.reward) == wants_right and len(episode.response) > 1
        ]
        if fitting:
            number = host_rng(cfg.seed, iteration, f"reset {problem.id}").integers(len(fitting))
            known.append(Known(problem, prompt, fitting[number], wants_right))
    return known


def _gold_starts(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int,
) -> list[Start]:
    """Where the group of each problem begins: with chance `reset.share` within a gold solution."""
    golds = {}
    for i, (problem, prompt) in enumerate(problems):
        rng = host_rng(cfg.seed, iteration, f"reset {problem.id}")
        if rng.random() < cfg.reset.share:
            response = gold_response(engine, graded, problem, prompt, cfg.sample.max_tokens)
            if len(response) > 1:
                golds[i] = Known(problem, prompt, response, True)
    lengths = _lengths(engine, params, graded, list(golds.values()), cfg, iteration)
    starts = prompt_starts(problems, cfg.rollout.per_prompt, cfg.seed, iteration)
    for (i, gold), length in zip(golds.items(), lengths, strict=True):
        starts[i] = starts[i]._replace(given=gold.response[:length])
    return starts


def gold_response(
    engine: Engine, graded: GradedTask, problem: Problem, prompt: list[int], max_tokens: int
) -> list[int]:
    """The tokens of the data set's solution, as far as the policy itself could have written it.

    Up to a stop string, to `max_tokens`, and to the end of the model's context.
    """
    tokenizer, stop = engine.tokenizer, engine.sample_config.stop
    response = encode_response(tokenizer, graded.task.solution(problem))
    if stop:
        text = decode(tokenizer, prompt)
        response = response[: cut_at_stop(tokenizer, prompt, text, response, stop).kept]
    return response[: min(max_tokens, engine.model.cfg.context - len(prompt))]


def _lengths(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    known: list[Known],
    cfg: Config,
    iteration: int,
) -> list[int]:
    """The number of tokens that each known solution gives: at random, or at the edge.

    At random they are 1 .. n - 1 of n tokens, all alike. Of a gold solution also 0, as in DR-PO:
    its group then begins at the prompt, and there is no other.
    """
    if cfg.reset.at == "edge":
        return _edges(engine, params, graded, known, cfg, iteration)
    least = 0 if cfg.reset.source == "gold" else 1
    lengths = []
    for solution in known:
        rng = host_rng(cfg.seed, iteration, f"reset length {solution.problem.id}")
        lengths.append(int(rng.integers(least, len(solution.response))))
    return lengths


def _edges(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    known: list[Known],
    cfg: Config,
    iteration: int,
) -> list[int]:
    """The edge of each known solution; a wave samples the next pass rate of all of them."""
    reset = cfg.reset
    rates: list[dict[int, float]] = [{} for _ in known]
    while True:
        probes = {}
        for i, solution in enumerate(known):
            probe = next_probe(rates[i], len(solution.response), reset.target, solution.is_right)
            if probe is not None:
                probes[i] = probe
        if not probes:
            break
        starts = [_probe_start(known[i], length, cfg, iteration) for i, length in probes.items()]
        rewards = sample_from(
            engine, params, graded, starts, cfg.sample.max_tokens, cfg.reward.truncated
        ).rewards
        for (i, length), of_probe in zip(probes.items(), rewards, strict=True):
            rates[i][length] = sum(map(is_correct, of_probe.tolist())) / reset.k
    return [
        edge(rates[i], len(solution.response), reset.target, solution.is_right)
        for i, solution in enumerate(known)
    ]


def _probe_start(solution: Known, length: int, cfg: Config, iteration: int) -> Start:
    """The start of the `reset.k` continuations that the pass rate at this length is the mean of."""
    purpose = f"reset edge {solution.problem.id}"
    seeds = [row_seed(cfg.seed, iteration, purpose, length, 0, k) for k in range(cfg.reset.k)]
    return Start(solution.problem, solution.prompt, solution.response[:length], seeds)
