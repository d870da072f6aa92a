"""The value rule: which returns are averaged to the value of a state.

Every solution and every continuation of a problem is a draw of one policy. A sample that passes
through a state token by token is, from there on, a draw from the policy at that state. Its return
can therefore count towards V(s) beside the returns of the state's own continuations. With
`values.reuse` all such returns count, except that of the solution itself, because V(s) is to be
compared with it.

Whether a sample passes through a state is decided before the state, and says nothing of what
follows. The mean is therefore unbiased, provided that the existence of the state is decided before
it as well (`values.num_states` looks ahead). Two neighbouring states share samples. Their errors
are therefore correlated, and V(s_{c+1}) - V(s_c) has less variance.

In an environment, too, equal tokens are one state, because the observations of a problem's samples
are a function of their tokens. All samples that pass a state need the same horizon
(`values.budget` 'left'). No paper describes this estimator.
"""

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from vinejax.credit.backup import PassingSample, backed_up_values


@dataclasses.dataclass(frozen=True)
class Sample:
    """A solution, or a continuation together with the tokens before it."""

    tokens: np.ndarray  # i32[n] tokens of the response
    start: int  # number of leading tokens that this sample did not draw
    ends: list[int]  # [C] step ends, if the task rewards steps or γ < 1; else empty
    rewards: list[float]  # [C] the steps' own rewards
    outcome: float  # reward of the outcome
    logprobs: Sequence[float] = ()  # the sampler's, in nats, of the tokens that this sample drew

    def return_from(self, used: int, gamma: float) -> float:
        """r_0 + γ·r_1 + γ²·r_2 + ..., the return after the first `used` tokens.

        r_0, r_1, ... are the rewards of the steps that end after these tokens, and the last of them
        includes the reward of the outcome. The task splits whole responses, so where a step ends
        may depend on tokens after the first `used`.
        """
        later = [r for end, r in zip(self.ends, self.rewards, strict=True) if end > used]
        step_total = sum(gamma**i * reward for i, reward in enumerate(later))
        return step_total + gamma ** max(len(later) - 1, 0) * self.outcome


class PassingSamples:
    """For each state of a problem's solutions, the returns of the samples that pass through it."""

    def __init__(
        self, responses: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], gamma: float
    ):
        """Solution i has the tokens `responses[i]`.

        `positions[i]` has, for each state of solution i, the number of tokens before the state.
        """
        self._responses = [np.array(response, np.int32) for response in responses]
        self._positions, self._gamma = positions, gamma
        self._samples: list[PassingSample] = []
        # [solutions][S] returns that `add` counted
        self.returns: list[list[list[float]]] = [[[] for _ in x] for x in positions]

    def add(
        self, sample: Sample, counted: Container[tuple[int, int]], solution: int | None = None
    ) -> None:
        """Counts a sample of the problem at each state that it passes through.

        `counted` holds pairs (i, c), which stand for the c-th state of solution i. The sample's
        return is not added to the returns of these states, because they already include it or must
        leave it out. `solution` is the sample's number if it is a solution, and None for a
        continuation.
        """
        passing = PassingSample(solution, visits=[], returns=[])
        for i, response in enumerate(self._responses):
            shared = num_shared(sample.tokens, response)
            for c, used in enumerate(self._positions[i]):
                if sample.start <= used <= shared:
                    passing.visits.append((i, c))
                    passing.returns.append(sample.return_from(used, self._gamma))
                    if (i, c) not in counted:
                        self.returns[i][c].append(passing.returns[-1])
        self._samples.append(passing)

    def backed_up(self) -> list[list[float]]:
        """[solutions][S] the values of all states by `backup.backed_up_values`."""
        return backed_up_values(self._samples, self._positions)


def num_shared(a: np.ndarray, b: np.ndarray) -> int:
    """The number of leading tokens that two sequences share."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length
