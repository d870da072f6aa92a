"""A task of several turns with known values: one door decides, and every turn has noise.

    0042                the prompt: a serial number
    a0                  the environment: the room, and a bit
    <                   the policy: an arm
    a1                  the room that the arm `<` leads to, and another bit
    >
    b!1                 the room of `>`; it has the door
    >                   the arm that the bit names, so the episode is right
    b0
    <                   the last of `MOVES` moves: the episode ends, with reward 1

Every move leads to room `a` or `b`, so states recur. One of the moves, each with equal chance, is
made in a room with the door. There the arm decides: `>` is right for the bit 1, `<` for 0. Other
bits are noise, and other moves decide nothing. A line that is no arm changes nothing and takes a
turn.

The demonstrations move `>` with chance p = `LEAN`, whatever the bit, so half of them are right.
Averaged over the noise to come, the value of their policy is

    V(s) = 1/2       before the door
    V(s) = p         at the door, for the bit 1
    V(s) = 1 - p     at the door, for the bit 0
    V(s) = 1 or 0    after the door
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
    moves: int = 0  # number of moves so far
    room: str = "a"
    bit: int = 0
    has_door: bool = False  # whether the room has the door
    is_right: bool | None = None  # whether the arm at the door was right; None: not there yet

    def reset(self, problem: Problem, seed: int) -> str:
        self.seed = seed
        return f"\n{self._entered('a')}"

    def step(self, action: str) -> Observation:
        arm = action.removesuffix("\n")
        if arm not in tuple(ARMS):
            return Observation(self.sight)
        if self.has_door:
            self.is_right = ARMS.index(arm) == self.bit
        self.moves += 1
        if self.moves == MOVES:
            return Observation("", float(bool(self.is_right)), done=True)
        return Observation(self._entered("ab"[ARMS.index(arm)]))

    def fork(self) -> "Doors":
        """A copy, which enters the same rooms after the same actions."""
        return copy.copy(self)

    def key(self) -> str:
        return f"{self.moves}{self.sight.strip()}{self.is_right}"

    @property
    def sight(self) -> str:
        """The observation on entering the room."""
        return f"{self.room}{'!' * self.has_door}{self.bit}\n"

    def _entered(self, room: str) -> str:
        """Enters a room: draws its bit and whether it has the door, and returns the observation."""
        self.room = room
        self.bit = int(share_of(f"bit {self.seed} {self.moves}") < 0.5)
        is_there = share_of(f"door {self.seed} {self.moves}") < 1 / (MOVES - self.moves)
        passed = self.is_right is not None
        self.has_door = is_there and not passed
        return self.sight


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
        """The actions of a demonstration, each followed by the observation that answers it.

        The text follows the prompt, so that it begins with the first observation.
        """
        rng, env = rng_of(problem.question), Doors()
        text, observation = env.reset(problem, int(rng.integers(2**32))), Observation("")
        while not observation.done:
            action = ARMS[int(rng.random() < LEAN)] + "\n"
            observation = env.step(action)
            text += action + observation.text
        return text


def make(data: DataConfig) -> DoorsTask:
    return DoorsTask()
