"""Games of TextArena, and the behaviour of every environment of another library.

A stand-in with TextArena's interface runs without the extra; with it, every game for one player
that runs offline is played.
"""

import functools
import importlib.util
import random
from typing import Any

import numpy as np
import pytest
from helpers import turn_cases as cases
from helpers.contrib.packages import stand_in
from helpers.refusals import refuses

from vinejax.contrib.environments import games
from vinejax.contrib.environments.games import MOST_PRINTED, GameTask, _printed_errors
from vinejax.core.errors import ConfigError
from vinejax.core.settings import DataConfig
from vinejax.tasks.base import load_task
from vinejax.tasks.environment import Observation

IS_INSTALLED = importlib.util.find_spec("textarena") is not None


class SinglePlayerState:
    role_mapping = {0: "Player"}


class Coins:
    """Shows a bit of each global generator in three turns; `<` earns a reward at the end."""

    last = ""

    def __init__(self, kind: str):
        self.kind = kind
        self.state: Any = None if kind == "two" else SinglePlayerState()

    def reset(self, num_players: int, seed: int) -> None:
        random.seed(seed)
        if self.kind == "broken":
            raise AssertionError("no such board")
        self.text, self.turns, self.said = f"\n[GAME] {random.getrandbits(8)}", 0, []

    def __deepcopy__(self, memo: Any) -> "Coins":
        if self.kind == "uncopied":
            raise TypeError("it has a socket")
        twin = Coins(self.kind)
        twin.__dict__ |= self.__dict__ | {
            "said": self.said if self.kind == "shared" else [*self.said]
        }
        return twin

    def get_observation(self) -> tuple[int, str]:
        return 0, self.text

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.turns += 1
        self.said.append(1)
        if action == "!\n":
            raise KeyError("a bug of the game")
        bits = random.getrandbits(1), np.random.randint(2), len(self.said) % 2
        self.text += f"\n[Player] {action}\n" + "".join(map(str, bits))
        self.last = action
        return self.turns == 3, {}

    def close(self) -> tuple[dict[int, float], dict[int, Any]]:
        return {0: 0.5 if self.last == "<\n" else -1}, {}


def task_of(name: str, **fields: Any) -> GameTask:
    task = load_task(DataConfig(task="vinejax.contrib.environments.textarena", path=name, **fields))
    assert isinstance(task, GameTask)
    return task


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "textarena", make=Coins, SinglePlayerState=SinglePlayerState)


def test_problems_are_seeds_and_no_two_splits_share_one(package: None):
    task = task_of("coins", size=30, template="Play {question}:\n")
    splits = {split: task.load(split) for split in ("train", "validation", "test")}
    assert [len(splits[split]) for split in splits] == [30, 3, 3]
    seeds = {problem.columns["seed"] for problems in splits.values() for problem in problems}
    assert len(seeds) == 36 and splits["test"][0].columns["seed"] == 0
    assert len(task_of("coins").load("train")) == 5000
    assert task.prompt(splits["train"][0]) == "Play coins:\n"


def played(game: Any, actions: list[str], disturb: int) -> list[Observation]:
    """The observations of an episode, while others draw from the global generators."""
    answers = []
    for action in actions:
        random.seed(disturb)
        np.random.seed(disturb)
        before = random.getstate()
        answers.append(game.step(action))
        assert random.getstate() == before and np.random.get_state()[1][0] == disturb  # pyright: ignore
    return answers


def test_an_episode_has_the_global_generators_to_itself(package: None):
    task = task_of("coins")
    problem, actions = task.load("train")[5], ["<\n", "a", "<\n"]
    seen = set()
    for seed in range(20):
        game, again = task.env(), task.env()
        first = game.reset(problem, seed)
        assert again.reset(problem, seed) == first  # whatever the noise
        assert first == task.env().reset(problem, seed + 1) != ""
        head = played(game, actions[:1], 1)
        twin: Any = game.fork and game.fork()
        rest = played(game, actions[1:], 2)
        assert played(twin, actions[1:], 3) == rest
        assert played(again, actions, 4) == head + rest
        assert rest[-1] == Observation("", 0.5, done=True)
        seen.add(head[0].text + rest[0].text)
    assert len(seen) > 8 and all("Player" not in text for text in seen)


def test_a_game_does_not_hear_what_the_policy_thinks(package: None):
    """Unless the run keeps it; and the policy sees no escape codes."""
    task = task_of("coins")
    for keeps in (False, True, False):
        task.configure(cases.config(env={"thinking": "kept" if keeps else "removed"}))
        game: Any = task.env()
        game.reset(task.load("train")[0], 0)
        for twin in (game, game.fork()):
            twin._game.text += "\x1b[31m!\x1b[0m"
            said = twin.step("<think>a</think> <\n").text
            heard = twin._game.last
            assert heard == ("<think>a</think> <\n" if keeps else "<\n")
            assert "\x1b" not in said and "!" in said and ("think" in said) == keeps


@pytest.mark.parametrize("name", ["coins", "uncopied"])
def test_values_of_states_are_sampled_in_copies_or_in_repetitions(package: None, name: str):
    task = task_of(name, template="0\n")
    assert bool(task.env().fork) == (name == "coins")
    for episode in cases.valued(cases.config(env={"check_every": 1}), task=task):
        assert len(episode.turns) == 3 and episode.finished
        assert episode.reward == (0.5 if episode.turns[-1].action == "<\n" else -1)
        assert episode.value_counts is not None and episode.value_counts.sum() == 12


def test_a_copy_that_shares_its_state_is_not_used(package: None):
    assert not task_of("shared").env().fork


def test_a_game_that_raises_ends_its_episode(package: None, capsys: pytest.CaptureFixture[str]):
    _printed_errors.clear()
    task = task_of("coins", template="0\n")
    engine = cases.PolicyEngine(lambda text, rng: "!\n" if "><" in text else "><\n")
    for episode in cases.sampled(cases.config(reward={"truncated": -0.5}), engine, task):
        assert [turn.action for turn in episode.turns] == ["><\n", "!\n"]
        assert not episode.finished and episode.reward == -0.5
    said = capsys.readouterr().out
    assert said.startswith("coins: ") and said.count("\n") == 1
    assert said.endswith("KeyError: 'a bug of the game'; the episode ends with reward.truncated\n")
    game = task.env()
    game.reset(task.load("train")[0], 0)
    assert game.step("!\n") == game.step("<\n") == Observation("", truncated=True)


def test_errors_that_quote_the_action_do_not_flood_the_output(
    package: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(games, "_printed_errors", set())
    game = task_of("coins").env()
    for action in range(100):
        assert game._guarded(functools.partial(int, f"[{action}]")) is None
    assert capsys.readouterr().out.count("ValueError: invalid literal for int()") == MOST_PRINTED


def test_what_cannot_be_played_is_one_line(package: None, monkeypatch: pytest.MonkeyPatch):
    for name in ("two", "broken"):
        with refuses("data.path"):
            task_of(name)
    with pytest.raises(ConfigError, match="^data.path = '': .*, such as 'FrozenLake-v0'"):
        task_of("")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda x: None if x == "textarena" else found(x)
    )
    with refuses("data.task"):
        task_of("coins")


UP = "[up] [down] [left] [right]"
# The games for one player that need no network, with forms of their moves: # is a number, and
# @ is a letter.
GAMES = {
    "2048": UP, "Bandit": "[red] [blue] [green]", "Blackjack": "[hit] [stand]",
    "Countdown": "[#_#_+] [#_#_*]", "Crosswords": "[#_#_@]", "Cryptarithm": "[@_#]",
    "FifteenPuzzle": UP, "FrozenLake": UP, "GuessTheNumber": "[#]", "LightsOut": "[#_#]",
    "LogicPuzzle": "[@_#_X]", "Mastermind": "[#_#_#_#]", "Minesweeper": "[#_#]",
    "PegJump": "[#->#]", "RushHour": "[@+] [@-]", "Secretary": "[continue] [continue] [accept]",
    "Set": "[#_#_#]", "Slitherlink": "[h_#_#] [v_#_#]", "Sokoban": UP, "Sudoku": "[#_#_#]",
    "ThreeCardMonte": "[#]", "TowerOfHanoi": "[A_B] [A_C] [B_C]",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not IS_INSTALLED, reason="needs the extra textarena")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GAMES)
def test_every_game_goes_on_alike_in_copies_and_repetitions(name: str):
    task, rng = task_of(f"{name}-v0", size=2), np.random.default_rng(7)
    assert task.env().fork
    lengths = []
    for seed in range(6):
        actions = []
        for _ in range(10):
            move = rng.choice(GAMES[name].split()).replace("_", " ")
            while "#" in move or "@" in move:
                move = move.replace("#", str(rng.integers(7)), 1)
                move = move.replace("@", "ABCD"[rng.integers(4)], 1)
            actions.append(move if seed < 3 or rng.random() < 0.5 else "\x00ill[egal")
        cut, problem = int(rng.integers(1, 4)), task.load("train")[seed % 2]
        game, again = task.env(), task.env()
        assert game.reset(problem, seed) == again.reset(problem, seed) != ""
        head = played(game, actions[:cut], 1)
        twin: Any = game.fork and game.fork()
        rest = played(game, actions[cut:], 2)
        assert played(twin, actions[cut:], 3) == rest
        assert played(again, actions, 4) == head + rest
        ends = [i for i, answer in enumerate(head + rest) if answer.done or answer.truncated]
        lengths.append(ends[0] if ends else 10)
    assert max(lengths) >= 1
