"""A task of several turns whose values are known: one door decides, and noise at every turn.

    0042                the prompt: a serial number
    a0                  the environment: the room, and a bit
    <                   the policy: an arm
    a1                  the room that the arm `<` leads to, and another bit
    >
    b!1                 the room of `>`; it has the door
    >                   the arm that the bit names, so the episode is right
    b0
    <                   the last of `MOVES` moves: the episode ends, with reward 1

Every move leads to room `a` or `b`, so states recur. The door is in the room of one of the moves,
each as likely as the others. There the arm decides: `>` is right for the bit 1, `<` for 0. Other
bits are noise, and other moves decide nothing. A line that is no arm leaves everything as it is
and takes a turn.

The demonstrations move `>` with chance p = `LEAN`, whatever the bit, so half of them are right. The
value of each state of their policy is known, both over all noise (`value`) and given the noise that
is to come, which follows from the seed.
"""

import copy
import dataclasses

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import Split
from vinejax.tasks.environment import Observation, TurnTask
from vinejax.tasks.generated import CharacterTask, rng_of, share_of, split_of

MOVES = 4
LEAN = 0.7  # chance that a demonstration moves '>'
ARMS = "<>"
SERIALS = 2000


@dataclasses.dataclass
class Doors:
    """An episode; see the module's docstring."""

    seed: int = 0
    moves: int = 0  # made
    room: str = "a"
    bit: int = 0
    has_door: bool = False  # the room
    is_right: bool | None = None  # None: the door has not been passed

    def reset(self, problem: Problem, seed: int) -> str:
        self.seed = seed
        return f"\n{self._entered('a')}"

    def step(self, action: str) -> Observation:
        arm = action.removesuffix("\n")
        if arm not in tuple(ARMS):
            return Observation(self.seen)
        if self.has_door:
            self.is_right = ARMS.index(arm) == self.bit
        self.moves += 1
        if self.moves == MOVES:
            return Observation("", float(bool(self.is_right)), done=True)
        return Observation(self._entered("ab"[ARMS.index(arm)]))

    def fork(self) -> "Doors":
        """A copy, which meets the same rooms."""
        return copy.copy(self)

    def key(self) -> str:
        return f"{self.moves}{self.seen.strip()}{self.is_right}"

    def value(self) -> float:
        """V(s) of the demonstrations' policy, a mean over the noise to come.

        V(s) = p or 1 - p at the door, for its bit    1 or 0 after it, and 1/2 before it
        """
        if self.is_right is not None:
            return float(self.is_right)
        if self.has_door:
            return LEAN if self.bit else 1 - LEAN
        return 0.5

    @property
    def seen(self) -> str:
        """What the environment says on entering the room."""
        return f"{self.room}{'!' * self.has_door}{self.bit}\n"

    def _entered(self, room: str) -> str:
        """Draws the next room's bit and whether it has the door; what is seen there."""
        self.room = room
        self.bit = int(share_of(f"bit {self.seed} {self.moves}") < 0.5)
        is_there = share_of(f"door {self.seed} {self.moves}") < 1 / (MOVES - self.moves)
        passed = self.is_right is not None
        self.has_door = is_there and not passed
        return self.seen


class DoorsTask(TurnTask, CharacterTask):
    """The task that the module's docstring describes; `tasks/base.py` documents the methods."""

    name = "doors"
    max_turns = MOVES + 2
    ends_turn = ("\n",)

    def env(self) -> Doors:
        return Doors()

    def load(self, split: Split) -> list[Problem]:
        serials = (f"{i:04}" for i in range(SERIALS))
        return [Problem(f"{split}/{x}", x, "") for x in serials if split_of(x) == split]

    def prompt(self, problem: Problem) -> str:
        return problem.question

    def solution(self, problem: Problem) -> str:
        """A demonstration after the prompt, with what the environment says in it."""
        rng, env = rng_of(problem.question), Doors()
        text, found = env.reset(problem, int(rng.integers(2**32))), Observation("")
        while not found.done:
            action = ARMS[int(rng.random() < LEAN)] + "\n"
            found = env.step(action)
            text += action + found.text
        return text


def make(data: DataConfig) -> DoorsTask:
    return DoorsTask()
