"""`rollout.lag`: the next iteration's solutions are sampled beside this iteration's continuations.

Solutions of an iteration wait for nothing but weights, and continuations of nothing but solutions.
With solutions that are there when an iteration begins, one call of the engine has its continuations
and the next solutions, so that slots are busy to the end of the longer of the two. The draws of
solutions are those of `Sampler.solutions` with the weights of the iteration before.
"""

import dataclasses

from vinejax.core.types import Episode, PromptedProblem
from vinejax.engine.branches import Grown
from vinejax.model.decoder import Params
from vinejax.rollout.sampler import Asked, Sampler, Start, State, Steps, after_starts
from vinejax.tasks.rewards import Reward


@dataclasses.dataclass(eq=False)
class LaggedSampler(Sampler):
    """A sampler whose solutions were sampled before, and that samples the next ones.

    Those of the `following` problems are in `drawn` after the first continuations, with their
    rewards; without continuations there are none, and the next iteration samples its own.
    """

    waiting: list[Episode] | None  # this iteration's solutions; None: they are sampled now
    following: list[PromptedProblem]
    drawn: list[tuple[Grown, Reward]] = dataclasses.field(default_factory=list)

    def solutions(
        self, params: Params, problems: list[PromptedProblem], most_groups: int
    ) -> list[Episode]:
        """As `Sampler.solutions`, by older weights if solutions wait."""
        if self.waiting is None:
            return super().solutions(params, problems, most_groups)
        return self.waiting

    def after_states(
        self, episodes: list[Episode], states: list[State], counts: list[int]
    ) -> Asked:
        """The branches of continuations and, at the first call, those of the next solutions."""
        asked = super().after_states(episodes, states, counts)
        if self.following and not self.drawn:
            more = after_starts(self.next_starts(), self.cfg.sample.max_tokens)
            moved = [
                dataclasses.replace(branch, trunk=branch.trunk + len(asked.trunks))
                for branch in more.branches
            ]
            for whole, part in zip(asked, more._replace(branches=moved), strict=True):
                whole += part  # pyright: ignore
        return asked

    def add_drawn(
        self,
        states: list[State],
        counts: list[int],
        grown: list[Grown],
        rewards: dict[int, Reward],
        steps: dict[int, Steps],
    ) -> None:
        """As `Sampler.add_drawn`, of the branches of `after_states`."""
        count = sum(counts)
        if len(grown) > count:
            cut = Reward(self.cfg.reward.truncated)
            self.drawn = [(x, rewards.get(i, cut)) for i, x in enumerate(grown) if i >= count]
        super().add_drawn(states, counts, grown[:count], rewards, steps)

    def next_starts(self) -> list[Start]:
        """The starts of the next iteration's solutions, with its seeds."""
        after = Sampler(self.engine, self.graded, self.cfg, self.iteration + 1)
        return after.prompt_starts(self.following, self.cfg.rollout.per_prompt)
