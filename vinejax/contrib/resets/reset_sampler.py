"""Resets: groups of solutions that begin after the first tokens of a known solution.

The given tokens are the known solution's ids. The policy continues after them, and only the tokens
of the policy enter the loss (`Episode.given`). All `rollout.per_prompt` solutions of a group begin
with the same tokens, so that methods can compare them. The whole text is graded, and has at most
`sample.max_tokens` tokens including the given tokens. Nothing is kept between iterations.

Sources and departures:
- 'gold': DR-PO (https://arxiv.org/abs/2404.08495) draws one solution per problem, after a random
  number of tokens of the data set's solution. Here a whole group begins after these tokens. DR-PO's
  code (Cornell-RL/drpo) is PPO with a critic and a KL in the reward, and it whitens advantages over
  given tokens as well. Here the run's method keeps its own KL, and whitens advantages over the
  policy's tokens.
- 'solved', 'failed', 'both': in Prefix Sampling (https://arxiv.org/abs/2605.05112) the group of a
  problem that mostly fails begins like an earlier right solution, and that of a problem that mostly
  passes like an earlier wrong one, so that half of the solutions pass. Here the earlier solution
  comes from the same iteration, and the reset groups are added to the groups from the prompt.
- `reset.at` 'edge': BASS and OmegaPRM; see edge.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vinejax.contrib.resets.edge import edge, next_probe
from vinejax.contrib.resets.settings import ResetConfig
from vinejax.core.seeds import host_rng, row_seed
from vinejax.core.settings import Config
from vinejax.core.text import cut_at_stop, prefix_end
from vinejax.core.types import Episode, Problem, PromptedProblem, is_correct
from vinejax.model.decoder import Params
from vinejax.rollout.sampler import Sampler, Start
from vinejax.tasks.prompts import encode_response, worked_response


class KnownSolution(NamedTuple):
    """A known solution, whose first tokens begin other solutions; it has at least two tokens."""

    problem: Problem
    prompt: list[int]
    response: list[int]
    is_right: bool


class ResetSampler(Sampler):
    """A sampler that makes some groups of solutions begin within a known solution."""

    def solutions(
        self, params: Params, problems: list[PromptedProblem], most_groups: int
    ) -> list[Episode]:
        """Graded episodes in groups of `rollout.per_prompt`; every problem has at least one group.

        With `reset.source` 'gold' some of these groups are resets. With 'solved', 'failed' and
        'both' resets follow as further groups, up to `most_groups` groups in all.
        """
        if ResetConfig.of(self.cfg).source == "gold":
            return self.episodes(params, self._gold_starts(params, problems))
        episodes = super().solutions(params, problems, most_groups)
        known = known_solutions(problems, episodes, self.cfg, self.iteration)
        known = known[: most_groups - len(problems)]
        lengths = self._lengths(params, known)
        # The numbers continue those of the solutions from the prompt, so that all seeds differ.
        numbers = range(self.cfg.rollout.per_prompt, 2 * self.cfg.rollout.per_prompt)
        starts = [
            Start(problem, prompt, response[:length], self.seeds(problem, numbers))
            for (problem, prompt, response, _), length in zip(known, lengths, strict=True)
        ]
        return episodes + (self.episodes(params, starts) if starts else [])

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """The metrics of resets: number of groups, mean share of given tokens, and pass rate."""
        resets = [episode for episode in episodes if episode.given]
        groups = {(e.problem_id, *e.response[: e.given]) for e in resets}
        if not resets:
            return {"reset/groups": 0}
        return {
            "reset/groups": len(groups),
            "reset/given": np.mean([e.given / len(e.response) for e in resets]),
            "reset/pass_rate": np.mean([is_correct(e.reward) for e in resets]),
        }

    def gold_response(self, problem: Problem, prompt: list[int]) -> list[int]:
        """The tokens of the data set's solution, up to where a response of the policy would end.

        They end at the first token that ends a response, at a stop string, at `sample.max_tokens`
        or at the end of the model's context.
        """
        tokenizer, stop = self.engine.tokenizer, self.engine.sample_config.stop
        solution = worked_response(problem, self.graded.task.solution(problem))
        response = encode_response(tokenizer, solution)  # with EOS as its last token
        ends = (i for i, token in enumerate(response, 1) if token in self.engine.eos_ids)
        response = response[: next(ends)]
        if stop:
            end = prefix_end(tokenizer, prompt)
            response = response[: cut_at_stop(tokenizer, end, response, stop).num_tokens]
        room = self.engine.model.cfg.context - len(prompt)
        return response[: min(self.cfg.sample.max_tokens, room)]

    def _gold_starts(self, params: Params, problems: list[PromptedProblem]) -> list[Start]:
        """The start of each problem's group of solutions.

        With probability `reset.share` it is in the data set's solution, otherwise at the prompt.
        """
        golds = {}
        for i, (problem, prompt) in enumerate(problems):
            rng = host_rng(self.cfg.seed, self.iteration, f"reset {problem.id}")
            if rng.random() < ResetConfig.of(self.cfg).share:
                response = self.gold_response(problem, prompt)
                if len(response) > 1:
                    golds[i] = KnownSolution(problem, prompt, response, True)
        lengths = self._lengths(params, list(golds.values()))
        starts = self.prompt_starts(problems, self.cfg.rollout.per_prompt)
        for (i, gold), length in zip(golds.items(), lengths, strict=True):
            starts[i] = starts[i]._replace(given_tokens=gold.response[:length])
        return starts

    def _lengths(self, params: Params, known: list[KnownSolution]) -> list[int]:
        """The number of tokens given from each known solution, random or at the edge (`reset.at`).

        For a solution of n tokens a random number is uniform over 1 .. n - 1, or over 0 .. n - 1
        for a gold solution, as in DR-PO. With 0 the problem's group begins at the prompt.
        """
        if ResetConfig.of(self.cfg).at == "edge":
            return self._edges(params, known)
        fewest = 0 if ResetConfig.of(self.cfg).source == "gold" else 1
        lengths = []
        for solution in known:
            purpose = f"reset length {solution.problem.id}"
            rng = host_rng(self.cfg.seed, self.iteration, purpose)
            lengths.append(int(rng.integers(fewest, len(solution.response))))
        return lengths

    def _edges(self, params: Params, known: list[KnownSolution]) -> list[int]:
        """The edge of failure (`edge.py`) of each known solution.

        Each wave of sampling measures one pass rate of every solution whose search goes on.
        """
        reset = ResetConfig.of(self.cfg)
        rates: list[dict[int, float]] = [{} for _ in known]
        while True:
            probes = {}
            for i, solution in enumerate(known):
                length = len(solution.response)
                probe = next_probe(rates[i], length, reset.target, solution.is_right)
                if probe is not None:
                    probes[i] = probe
            if not probes:
                break
            starts = []
            for i, length in probes.items():
                problem, prompt, response, _ = known[i]
                # The mean of `reset.k` continuations is the pass rate at this length.
                purpose = f"reset edge {problem.id}"
                seeds = [
                    row_seed(self.cfg.seed, self.iteration, purpose, rollout=length, k=k)
                    for k in range(reset.k)
                ]
                starts.append(Start(problem, prompt, response[:length], seeds))
            rewards = self.graded_responses(
                params, starts, self.cfg.sample.max_tokens, self.cfg.reward.truncated
            ).rewards
            for (i, length), by_probe in zip(probes.items(), rewards, strict=True):
                rates[i][length] = sum(map(is_correct, by_probe.tolist())) / reset.k
        return [
            edge(rates[i], len(solution.response), reset.target, solution.is_right)
            for i, solution in enumerate(known)
        ]


def known_solutions(
    problems: list[PromptedProblem], episodes: list[Episode], cfg: Config, iteration: int
) -> list[KnownSolution]:
    """The known solutions of the problems that get a reset.

    A problem with a pass rate below `reset.target` gets a right solution (sources 'solved' and
    'both'). A problem above the target gets a wrong solution ('failed', 'both'). Problems without
    such a solution are left out. The choice depends only on (seed, iteration, problem).
    """
    groups: dict[str, list[Episode]] = {problem.id: [] for problem, _ in problems}
    for episode in episodes:
        groups[episode.problem_id].append(episode)
    source, target = ResetConfig.of(cfg).source, ResetConfig.of(cfg).target
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
            known.append(KnownSolution(problem, prompt, fitting[number], wants_right))
    return known
