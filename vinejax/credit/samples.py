"""The value rule: which returns the value of a state is the mean of.

Every solution and continuation of a problem is a draw of one policy. Whichever passes through a
state token by token is from there on a draw from the policy at that state, so its return counts
towards V(s) beside those of the state's own continuations: with `values.reuse` all of them count,
except the solution's own rest, whose return is what V(s) is to be compared with. Which samples pass
is decided before the state, and says nothing of what follows: the mean is unbiased, provided that
whether a state exists is decided before it, too (`values.num_states` looks ahead). Two neighbours
share samples, so their errors are correlated, and V(s_{c+1}) - V(s_c) has less variance.

In an environment equal tokens are one state, too: what a problem's samples meet is a function of
their tokens. All that pass need one horizon (`values.budget` 'left'). No paper describes it.
"""

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from vinejax.credit.backup import Passed, backed_up


@dataclasses.dataclass(frozen=True)
class Sample:
    """A solution, or a continuation together with the tokens before it."""

    tokens: np.ndarray  # i32[n] of the response
    start: int  # how many of them were given; the others were drawn
    ends: list[int]  # [C] step ends, of tasks that reward steps or with γ < 1; else empty
    rewards: list[float]  # [C] the steps' own
    outcome: float

    def return_from(self, used: int, gamma: float) -> float:
        """r_0 + γ·r_1 + γ²·r_2 + ... of the steps that end after the first `used` tokens.

        The outcome's reward comes with the last. How a solution divides into steps may depend on
        tokens after the first `used`.
        """
        later = [r for end, r in zip(self.ends, self.rewards, strict=True) if end > used]
        of_steps = sum(gamma**i * reward for i, reward in enumerate(later))
        return of_steps + gamma ** max(len(later) - 1, 0) * self.outcome


class Passing:
    """The returns at the states of solutions of all samples that pass through them."""

    def __init__(
        self,
        problems: Sequence[str],
        responses: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
        gamma: float,
    ):
        """Solution i solves `problems[i]`; its states are after `positions[i]` of its tokens."""
        self._solutions: dict[str, list[int]] = {}
        for i, problem in enumerate(problems):
            self._solutions.setdefault(problem, []).append(i)
        self._responses = [np.array(response, np.int32) for response in responses]
        self._positions, self._gamma = positions, gamma
        self._passed: list[Passed] = []
        self.returns: list[list[list[float]]] = [[[] for _ in of_one] for of_one in positions]

    def add(
        self,
        problem: str,
        sample: Sample,
        counted: Container[tuple[int, int]],
        own: int | None = None,
    ) -> None:
        """Counts a sample of `problem` at each state that it passes through.

        `counted` holds states (i, c), the c-th of solution i, at which the sample is not added to
        the returns. `own` is the number of the solution if the sample is one, not a continuation.
        """
        passed = Passed(own, [], [])
        for i in self._solutions[problem]:
            shared = _num_shared(sample.tokens, self._responses[i])
            for c, used in enumerate(self._positions[i]):
                if sample.start <= used <= shared:
                    passed.visits.append((i, c))
                    passed.returns.append(sample.return_from(used, self._gamma))
                    if (i, c) not in counted:
                        self.returns[i][c].append(passed.returns[-1])
        self._passed.append(passed)

    def backed_up(self) -> list[list[float]]:
        """[solutions][S] the values of all states by `backup.backed_up`."""
        return backed_up(self._passed, self._positions)


def _num_shared(a: np.ndarray, b: np.ndarray) -> int:
    """The number of leading tokens that two sequences share."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length
