"""Environments: errors in one line with problem, turn and fault; and the rules of doors."""

import sys
import threading
from typing import Any

import numpy as np
import pytest
from helpers import turn_cases as cases
from helpers.refusals import refuses
from helpers.tokenizer_cases import load

from vinejax.config.environments import check_environment
from vinejax.core.errors import UserError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Turn
from vinejax.engine.branches import Branch, Grown
from vinejax.methods.known import find_method
from vinejax.rollout import turns as turn_sampler
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.base import load_task
from vinejax.tasks.doors import MOVES, Doors, DoorsTask
from vinejax.tasks.environment import (
    Environment,
    EnvRules,
    EnvStart,
    Observation,
    TurnTask,
    start_environment,
)
from vinejax.tasks.prompts import ChatTurns, encode_prompt, encode_within

RELEASED = threading.Event()


class Faulty:
    """An environment that answers twice, and then does what `fault` says."""

    def __init__(self, fault: Any):
        self.fault, self.turn = fault, 0

    def reset(self, problem: Any, seed: int) -> str:
        return "\n"

    def step(self, action: str) -> Any:
        self.turn += 1
        return Observation(f"{self.turn}\n") if self.turn < 3 else self.fault(self)


class FaultyTask(TurnTask):
    name, ends_turn, max_turns = "faulty", ("\n",), 5

    def __init__(self, fault: Any):
        self.fault = fault

    def env(self) -> Any:
        return Faulty(self.fault)

    def load(self, split: str) -> Any:
        return [problem for problem, _ in cases.problems()]

    def prompt(self, problem: Any) -> str:
        return problem.question


@pytest.mark.parametrize(
    "fault, words",
    [
        (lambda env: 1 // 0, "`step` failed: .*{file}:[0-9]+: ZeroDivisionError"),
        (lambda env: sys.exit(), "`step` failed: .*{file}:[0-9]+: SystemExit"),
        (lambda env: RELEASED.wait(60), "`step` has not returned within env.timeout_s = 0.2 s"),
        (lambda env: "text", "{file}:[0-9]+: `step` gave 'text'; needed is an Observation"),
        (lambda env: Observation(b"x"), "needed is an Observation: a text"),  # pyright: ignore
        (lambda env: Observation("x", float("nan")), "a finite number and bools"),
        (lambda env: Observation("x", 0.0, "no"), "needed is an Observation"),  # pyright: ignore
        (lambda env: Observation("x", 0.0, False, 2), "needed is an Obs"),  # pyright: ignore
        (lambda env: Observation("x", done=np.zeros(2)), "needed is an Obs"),  # pyright: ignore
        (lambda env: Observation("so \ud83d"), "the text of `step` holds '.ud83d', half a char"),
        (lambda env: None, "`step` gave None; needed is an Observation"),
    ],
)
def test_a_fault_is_one_line_with_problem_and_turn(fault: Any, words: str):
    cfg = cases.config(env={"timeout_s": 0.2})
    expected = r"^task faulty, problem train/\w+, turn 3: .*" + words.format(
        file="test_environment.py"
    )
    with pytest.raises(UserError, match=expected) as raised:
        cases.sampled(cfg, task=FaultyTask(fault))
    assert "\n" not in str(raised.value).strip()


@pytest.mark.parametrize("observed, turns", [(4, 3), (3, 2)])
def test_observations_may_have_all_tokens_that_they_are_given(observed: int, turns: int):
    task = FaultyTask(lambda env: Observation("", 1.0, done=True))
    for episode in cases.sampled(cases.config(env={"observed": observed}), task=task):
        assert (len(episode.turns), episode.finished) == (turns, turns == 3)


@pytest.mark.parametrize(
    "text", ["1" * 60, "1" * 2**21], ids=["more than env.observed", "a huge one"]
)
def test_an_answer_that_does_not_fit_ends_the_episode(text: str):
    for episode in cases.sampled(cases.config(), task=FaultyTask(lambda env: Observation(text))):
        assert len(episode.turns) == 3 and not episode.finished and episode.reward == 0.0
        assert episode.turns[-1].drawn == episode.turns[-1].end == len(episode.response)


def test_an_environment_may_cut_its_episode():
    """The outcome is as without turns left; the action's reward belongs to its step."""
    task = FaultyTask(lambda env: Observation("more\n", 0.2, truncated=True))
    for episode in cases.valued(cases.config(reward={"truncated": -0.5}), task=task):
        assert not episode.finished and episode.reward == -0.5
        assert episode.step_rewards == [0, 0, 0.2]
        assert episode.turns[-1].end == len(episode.response)


def test_an_environment_that_answers_otherwise_when_repeated_ends_the_run():
    counter = iter(range(1000))
    task = FaultyTask(lambda env: Observation(f"{next(counter)}\n"))
    with pytest.raises(UserError, match=r"turn 3: the environment answered .* and now"):
        cases.valued(cases.config(), task=task)


def test_a_fork_that_shares_its_state_is_found():
    class Shared(Doors):
        def fork(self) -> Any:
            fork = Doors.fork(self)
            fork.log = self.log  # pyright: ignore
            return fork

        def reset(self, problem: Any, seed: int) -> str:
            self.log: list[str] = []
            return super().reset(problem, seed)

        def step(self, action: str) -> Observation:
            self.log.append(action)
            found = super().step(action)
            return found if found.done else found._replace(text=f"{len(self.log)}\n")

        def key(self) -> Any:
            return None

    class Task(DoorsTask):
        def env(self) -> Doors:
            return Shared()

    with pytest.raises(UserError, match=r"the environment answered .* and now"):
        cases.valued(cases.config(env={"check_every": 1}), task=Task())


@pytest.mark.parametrize(
    "limits, turns, drawn",
    [
        ({"env": {"max_turns": 2}}, 2, 4),
        ({"sample": {"max_tokens": 5}}, 2, 5),
        ({"sample": {"max_tokens": 6}}, 3, 6),
    ],
)
def test_an_episode_out_of_turns_or_tokens_is_cut(limits: Any, turns: int, drawn: int):
    cfg = cases.config(**limits, reward={"truncated": -0.5})
    for episode in cases.sampled(cfg):
        assert (len(episode.turns), episode.length) == (turns, drawn)
        assert not episode.finished and episode.reward == -0.5
        assert sum(episode.rewards) == -0.5


def test_the_context_bounds_an_episode():
    engine = cases.PolicyEngine(context=18)
    for episode in cases.sampled(cases.config(), engine):
        assert not episode.finished and len(episode.tokens) <= 18


def test_a_turn_that_its_own_budget_cuts_is_an_action():
    cfg = cases.config(env={"turn_tokens": 3})
    engine = cases.PolicyEngine(lambda text, rng: "xyzzy\n")
    for episode in cases.sampled(cfg, engine):
        assert [turn.action for turn in episode.turns] == ["xyz"] * (MOVES + 2)
        assert len({turn.observation for turn in episode.turns}) == 1  # the door's rule
        assert not episode.finished


def test_settings_and_tasks_that_do_not_fit_are_refused():
    cfg = cases.config()
    vineppo = find_method("vineppo")
    check_environment(cfg, vineppo, DoorsTask())
    for section, name, value in [("env", "observed", 0), ("reward", "functions", ("task",))]:
        with refuses(f"{section}.{name}"):
            check_environment(cases.config(**{section: {name: value}}), vineppo, DoorsTask())
    plain: Any = {"env": {"observed": 0}, "values": {"positions": "turns"}}
    with refuses("values.positions"):
        check_environment(cases.config(**plain), vineppo, Arithmetic())


def test_the_doors_task_has_three_splits_and_half_of_its_demonstrations_are_right():
    task = load_task(DataConfig(task="vinejax.tasks.doors"))
    problems = {split: task.load(split) for split in ("train", "validation", "test")}
    assert all(len(found) > 150 for found in problems.values())
    right = []
    for problem in problems["train"][:600]:
        text = task.solution(problem)
        lines = text.strip("\n").split("\n")
        assert len(lines) == 2 * MOVES
        (door,) = [line for line in lines[::2] if "!" in line]
        arm = lines[lines.index(door) + 1]
        right.append(arm == "<>"[int(door[-1])])
    assert 0.4 < sum(right) / len(right) < 0.6


def test_an_episode_of_the_doors_is_what_the_docstring_says():
    env = Doors(seed=3)
    problem = cases.problems(1)[0][0]
    text, seen = env.reset(problem, 3), []
    for _ in range(MOVES):
        seen.append(text.strip())
        key, copy = env.key(), env.fork()
        assert env.step("no arm\n") == Observation(f"{seen[-1]}\n") and env.key() == key
        found = env.step(">\n")
        assert copy.step(">\n") == found and copy.key() == env.key()
        text = found.text
    assert found.done and sum("!" in x for x in seen) == 1
    (door,) = [x for x in seen if "!" in x]
    assert found.reward == float(door[-1] == "1")


PLAIN = (
    "{% for m in messages %}{% if m.role == 'user' %}\n[Q]{{ m.content | trim }}\n[A]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


TOKENIZERS = ("byte_level", "gpt2", "gpt_neox_20b", "minimind_6400", "mistral_7b_v1")


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("ended", [True, False], ids=["by EOS", "by a stop string"])
def test_turns_have_the_markup_of_the_chat_template(
    name: str, ended: bool, monkeypatch: pytest.MonkeyPatch
):
    """The ids of both sides, encoded separately, decode to the template's text."""
    tokenizer = load(name)
    if tokenizer.chat_template is None:
        monkeypatch.setattr(tokenizer, "chat_template", PLAIN)
    chat = ChatTurns.of(tokenizer, DataConfig(chat_template=True))
    ids = encode_prompt(tokenizer, "How many?", True)
    said = [*encode_within(tokenizer, "Ask (it): 2"), *[tokenizer.eos_token_id] * ended]
    observed = encode_within(tokenizer, chat.around("It is 2.", said[-1]))
    messages = [("user", "How many?"), ("assistant", "Ask (it): 2"), ("user", "It is 2.")]
    expected = tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in messages],
        tokenize=False,
        add_generation_prompt=True,
    )

    def spelled(ids: list[int]) -> str:
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text.replace(" ", "")  # SentencePiece decodes a space after a special token

    assert spelled(ids + said + observed) == str(expected).replace(" ", "")


class AnyIds(cases.PolicyEngine):
    """An engine that draws turns of three low ids, whose text a longer token could spell."""

    def __init__(self, tokenizer: Any):
        super().__init__(context=500)
        self.tokenizer = tokenizer
        self.turns: dict[int, list[list[int]]] = {}  # by seed

    def _drawn(self, trunk: list[int], branch: Branch, budget: int) -> Grown:
        rng = np.random.default_rng([branch.seed, branch.position])
        special = self.tokenizer.all_special_ids
        usual = [i for i in range(300) if i not in special]
        ids = rng.choice(usual, size=min(budget, 3)).tolist()
        self.turns.setdefault(branch.seed, []).append(ids)
        return Grown(ids, [-1.0] * len(ids), self.tokenizer.decode(ids), "length")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_that_were_drawn_and_answered(name: str, monkeypatch: pytest.MonkeyPatch):
    """No text is encoded again, although other ids spell the same text."""
    tokenizer = load(name)
    if tokenizer.chat_template is None:
        monkeypatch.setattr(tokenizer, "chat_template", PLAIN)
    data = {"chat_template": True, "max_prompt_tokens": 100}
    cfg = cases.config(data=data, env={"turn_tokens": 3, "observed": 200})
    engine, again = AnyIds(tokenizer), 0
    chat = ChatTurns.of(tokenizer, cfg.data)
    episodes = cases.sampled(cfg, engine)
    for episode, turns in zip(episodes, engine.turns.values(), strict=True):
        expected: list[int] = []
        for ids, turn in zip(turns, episode.turns, strict=True):
            expected += ids
            if turn is not episode.turns[-1]:
                around = chat.around(turn.observation, ids[-1])
                expected += encode_within(tokenizer, around)
            again += tokenizer.encode(turn.action, add_special_tokens=False) != ids
        assert episode.response == expected and len(turns) == MOVES + 2
    assert again > len(episodes)


def test_a_template_without_a_place_for_turns_is_refused(monkeypatch: pytest.MonkeyPatch):
    tokenizer = load("gpt2")
    last = "{{ messages[0].content }}{{ messages[-1].content }}"
    monkeypatch.setattr(tokenizer, "chat_template", last)
    with refuses("data.chat_template"):
        ChatTurns.of(tokenizer, DataConfig(chat_template=True))


def test_a_chat_with_an_environment(monkeypatch: pytest.MonkeyPatch):
    tokenizer = cases.tokenizer()
    template = PLAIN.replace("[Q]", "q:").replace("[A]", "a:")
    monkeypatch.setattr(tokenizer, "chat_template", template)
    cfg = cases.config(data={"chat_template": True}, env={"observed": 60})
    for episode in cases.sampled(cfg):
        text = tokenizer.decode(episode.tokens, skip_special_tokens=False)
        _, *rest = text.split("q:")
        assert len(rest) == len(episode.turns) == MOVES
        for said, turn in zip(rest, episode.turns, strict=True):
            answer = said.partition("\na:")[2]
            assert answer.removesuffix("<eos>") == turn.action
            assert answer.endswith("<eos>") == (turn is not episode.turns[-1])


class Listener:
    """Records what it hears; its texts are coloured, and it asks for a thought on request."""

    def __init__(self, heard: list[str]):
        self.heard = heard

    def reset(self, problem: Any, seed: int) -> str:
        return "\x1b[31mq\x1b[0m\n"

    def step(self, action: str) -> Observation:
        self.heard.append(action)
        return Observation("<think>" if "more" in action else "\x1b[1mok\n", done="e" == action)


class Listening(DoorsTask):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def env(self) -> Any:
        return Listener(self.heard)


@pytest.mark.parametrize(
    "after, turns, expected",
    [
        ("", ["<think>no</think>a", "b", "<think>c"], ["a", "b", ""]),
        ("a:<think>\n", ["no</think>a", "b", "<think>c</think> d"], ["a", "", "d"]),
        ("a:<think>\n</think>", ["a", "<think>", "b"], ["a", "", "b"]),
        ("", ["more", "no</think>b", "c"], ["more", "b", "c"]),
        ("", ["more", "no", "more", "no"], ["more", "", "more", ""]),
    ],
)
def test_an_environment_gets_what_was_said_and_not_what_was_thought(
    after: str, turns: list[str], expected: list[str]
):
    """The template's `<think>` and the environment's begin the thinking of the next turn."""
    problem = cases.problems(1)[0][0]
    for keeps in (False, True):
        task = Listening()
        rules = EnvRules(60.0, keeps_thinking=keeps, after=after)
        environment, first = start_environment(task, EnvStart(problem, 0), rules)
        seen = [environment.step(turn).text for turn in turns]
        assert task.heard == (turns if keeps else expected)
        assert first == "q\n" and set(seen) <= {"ok\n", "<think>"}
    if "<think>" in after:  # a turn does not show where its thinking ends
        rules = EnvRules(60.0, after=after, hidden={"<think>", "</think>"})
        environment, _ = start_environment(task, EnvStart(problem, 0), rules)
        environment.step("so a")
        assert task.heard[-1] == "so a"
    task.acts_in_thinking = True  # pyright: ignore
    environment, _ = start_environment(task, EnvStart(problem, 0), EnvRules(60.0, after=after))
    environment.step("<think>no</think>a")
    assert task.heard[-1] == "<think>no</think>a"


def test_a_copy_and_a_recalled_environment_are_in_the_same_thinking():
    class Recalling(Listener):
        def fork(self) -> Any:
            return Recalling(self.heard)

        def recall(self, turn: Turn) -> None:
            self.heard.append(f"recalled {turn.action}")

    task = Listening()
    task.env = lambda: Recalling(task.heard)
    start = EnvStart(cases.problems(1)[0][0], 0)

    def begun(prompt: str = "", after: str = "") -> Environment:
        task.prompt = lambda problem: prompt
        Recalling.reset = lambda self, problem, seed: ""  # pyright: ignore
        return start_environment(task, start, EnvRules(60.0, after=after))[0]

    begun("Think: <think>").step("a</think>b")  # the task's prompt begins the thinking
    begun("Think: <think>").fork().step("c")
    assert task.heard == ["b", ""]
    task.heard.clear()
    recalled = begun("<think>")
    first = Turn(1, 2, "d</think>more", "ok\n", 0.0, None)
    recalled.replay([first, Turn(3, 4, "e", "<think>", 0.0, None)])
    recalled.step("f")
    assert task.heard == ["recalled more", "recalled e", ""]


@pytest.mark.parametrize("reward, key", [(0.5, "k"), (0.0, "other")])
def test_a_repeated_turn_must_have_its_reward_and_key(reward: float, key: str):
    class Keyed(Listener):
        def key(self) -> str:
            return "k"

    task = Listening()
    task.env = lambda: Keyed([])
    start = EnvStart(cases.problems(1)[0][0], 0)

    def replay(*turn: Any) -> None:
        environment, _ = start_environment(task, start, EnvRules(60.0))
        environment.replay([Turn(1, 2, "a", "ok\n", *turn)])

    replay(0.0, "k")
    with pytest.raises(UserError, match="the environment answered .* and now"):
        replay(reward, key)


class Thinker(cases.PolicyEngine):
    """Thinks of the wrong arm before each move."""

    def __init__(self, opening: str = "<think>"):
        def say(text: str, rng: np.random.Generator) -> str:
            arm = int(rng.random() < 0.5)
            return f"{opening}{'><'[arm]}</think>{'<>'[arm]}\n"

        super().__init__(say, context=400)


@pytest.mark.parametrize("task", [DoorsTask(), cases.WithoutFork()], ids=["fork", "replay"])
def test_values_of_turns_in_which_the_policy_thinks(task: Any):
    """Solutions, copies and repetitions take the same moves, and the tokens stay as drawn."""
    sizes = {"sample": {"max_tokens": 120}, "env": {"check_every": 1, "observed": 60}}
    for episode in cases.valued(cases.config(**sizes), Thinker(), task):
        problem = next(p for p, _ in cases.problems() if p.id == episode.problem_id)
        env = cases.environment(cases.config(**sizes), problem)
        for turn in episode.turns:
            assert turn.action.startswith("<think>") and turn.action in episode.text
            found = env.step(turn.action.rpartition("</think>")[2])
            assert (turn.observation, turn.reward) == found[:2]
        assert found.done and len(episode.turns) == MOVES
    kept = cases.config(**sizes | {"env": {"observed": 60, "thinking": "kept"}})
    assert all(len(episode.turns) > MOVES for episode in cases.sampled(kept, Thinker(), task))


def test_a_chat_template_may_begin_the_thinking(monkeypatch: pytest.MonkeyPatch):
    template = PLAIN.replace("[Q]", "q:").replace("[A]", "a:<think>")
    monkeypatch.setattr(cases.tokenizer(), "chat_template", template)
    data = {"chat_template": True, "max_prompt_tokens": 60}
    cfg = cases.config(data=data, sample={"max_tokens": 120}, env={"observed": 200})
    for episode in cases.sampled(cfg, Thinker(opening="")):
        assert [turn.action[1:9] for turn in episode.turns] == ["</think>"] * MOVES
    silent = cases.PolicyEngine(context=400)  # moves where it should think
    assert all(len(episode.turns) == MOVES + 2 for episode in cases.sampled(cfg, silent))
    # Texts that do not show the tags do not show what is thought, so all of a turn counts.
    monkeypatch.setattr(turn_sampler, "special_tokens", lambda tokenizer: {"<think>": 0})
    sample = {"max_tokens": 120, "skip_special_tokens": True}
    cfg = cases.config(data=data, sample=sample, env={"observed": 200})
    assert all(len(episode.turns) == MOVES for episode in cases.sampled(cfg, silent))
