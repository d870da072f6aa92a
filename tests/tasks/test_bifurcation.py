"""The task with two forks: problems, rewards, exact values, and the start that ships."""

import dataclasses
import itertools
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from helpers import generated_tasks
from helpers.refusals import refuses

from vinejax.core.settings import Config, DataConfig
from vinejax.core.text import decode
from vinejax.core.types import Problem
from vinejax.tasks.base import Split, load_task
from vinejax.tasks.bifurcation import DEAD_END, RIGHT, form_of, value
from vinejax.tasks.generated import TOKENIZER
from vinejax.tasks.prompts import encode_prompt, encode_response

NAME = "vinejax.tasks.bifurcation"
TASK: Any = load_task(DataConfig(task=NAME))
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
PROBLEMS: generated_tasks.Problems = {split: TASK.load(split) for split in SPLITS}
PROBLEM = Problem("x", "7318bba", "")
RIGHT_RESPONSE = "\nb<\na<\n.>\nb>\na<\n.<\na>\n#### ><"


def config(free_lines: str) -> Config:
    return generated_tasks.config("bifurcation", free_lines)


def test_splits_are_disjoint_and_always_the_same():
    generated_tasks.check_splits("bifurcation", PROBLEMS)


@pytest.mark.parametrize("free_lines, letters", [(0, "..."), (4, "aab"), (24, "hhh"), (78, "zzz")])
def test_the_number_of_free_lines_is_a_setting(free_lines: int, letters: str):
    task = load_task(DataConfig(task=NAME, free_steps=free_lines))
    for problem in task.load("validation"):
        assert problem.question[4:] == letters
        assert len(re.findall("\n[a-z]<", problem.answer)) == free_lines
        assert task.reward(problem, problem.answer) == 1.0
    with refuses("data.free_steps"):
        load_task(DataConfig(task=NAME, free_steps=79))


def test_its_own_problems_have_all_numbers_of_free_lines():
    counts = [len(re.findall("\n[a-z]<", problem.answer)) for problem in PROBLEMS["train"]]
    assert {counts.count(n) for n in range(25)} == {6000 // 25}


def test_the_sides_of_free_lines_are_free():
    for b1, a1, b2, a2, a3 in itertools.product("<>", repeat=5):
        response = f"\nb{b1}\na{a1}\n.>\nb{b2}\na{a2}\n.<\na{a3}\n#### ><"
        assert TASK.reward(PROBLEM, response) == 1.0 and TASK.answer(response) == "><"


@pytest.mark.parametrize(
    "response",
    [
        "",
        "\n#### ><",  # the answer alone
        "\n.>\n.<\n#### ><",  # without the free lines
        RIGHT_RESPONSE.replace("\nb>", ""),
        RIGHT_RESPONSE.replace("\nb>", "\nb>\nb>"),
        RIGHT_RESPONSE.replace("b>", "c>"),
        RIGHT_RESPONSE.replace("b>", "b="),
        RIGHT_RESPONSE.replace("b>", "b"),
        RIGHT_RESPONSE.replace("b>", "b><"),
        RIGHT_RESPONSE.replace("\n.>", "\n.<"),  # the wrong side
        RIGHT_RESPONSE.replace("\n.<", "\n.>"),
        RIGHT_RESPONSE.replace("\n.>", "\n.<\n.>"),  # the wrong side, then the right one
        RIGHT_RESPONSE.replace("><", "<>"),
        RIGHT_RESPONSE[:-1],
        RIGHT_RESPONSE[1:],
        RIGHT_RESPONSE + "\n",
        RIGHT_RESPONSE + "\n#### ><",
    ],
)
def test_every_other_response_is_wrong(response: str):
    assert TASK.reward(PROBLEM, response) == 0.0


def test_the_form_has_all_lines_and_the_right_sides():
    assert form_of("0000...") == "\n.>\n.<\n#### ><"
    assert form_of("0000.ab") == "\n.>\na?\n.<\nb?\na?\n#### ><"


def test_exact_values():
    states = [RIGHT_RESPONSE[:n] for n in range(len(RIGHT_RESPONSE) + 1)]
    first, second = (RIGHT_RESPONSE.index(fork) + 1 for fork in (".>", ".<"))
    for n, state in enumerate(states):
        expected = RIGHT**2 if n <= first else RIGHT if n <= second else 1.0
        assert value(PROBLEM.question, state) == expected, state
    for state in ("\nb<\na<\n.<", "\nb<\na<\n.<\n!>", "\nx", RIGHT_RESPONSE + "\n"):
        assert value(PROBLEM.question, state) == 0.0


def test_values_are_the_success_rates_of_demonstrations():
    """The mean reward of all demonstrations that pass states of one value, by position."""
    rewards: dict[float, list[float]] = {}
    for problem in PROBLEMS["train"][:400]:
        response = TASK.solution(problem)
        ends = [0, *TASK.split(response)[1:-1]]
        for state in {value(problem.question, response[:end]): None for end in ends}:
            rewards.setdefault(state, []).append(TASK.reward(problem, response))
    assert set(rewards) == {0.0, RIGHT**2, RIGHT, 1.0}
    for state, sample in rewards.items():
        error = (state * (1 - state) / len(sample)) ** 0.5
        assert abs(statistics.mean(sample) - state) <= 3 * error


def test_dead_ends_run_on_and_give_no_answer():
    for problem in PROBLEMS["train"][:300]:
        response = TASK.solution(problem)
        assert TASK.solution(problem) == response
        if TASK.reward(problem, response):
            assert response.endswith(problem.answer[-8:])
            continue
        assert len(response) >= DEAD_END and TASK.answer(response) is None
        ends = [*TASK.split(response)]
        values = [value(problem.question, response[:end]) for end in ends]
        turn = values.index(0.0)
        assert not any(values[turn:]) and "!" not in response[: ends[turn]]
        steps = [response[a:b] for a, b in itertools.pairwise(ends[turn:])]
        assert all(re.fullmatch(r"\n![<>]", step) for step in steps)


def test_a_step_is_a_line():
    ends = TASK.split(RIGHT_RESPONSE)
    steps = [RIGHT_RESPONSE[a:b] for a, b in itertools.pairwise(ends)]
    assert steps == ["\nb<", "\na<", "\n.>", "\nb>", "\na<", "\n.<", "\na>\n#### ><"]


def test_every_text_survives_the_tokenizer():
    tokenizer = TASK.tokenizer()
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (0, 1, 55)
    for problem in PROBLEMS["validation"]:
        prompt, response = TASK.prompt(problem), TASK.solution(problem)
        prompt_ids = encode_prompt(tokenizer, prompt, chat_template=False)
        ids = encode_response(tokenizer, response)
        assert tokenizer.unk_token_id not in prompt_ids + ids and prompt_ids[0] == 0
        assert len(ids) == len(response) + 1
        assert decode(tokenizer, prompt_ids + ids) == prompt + response


def test_the_tokenizer_differs_from_the_arithmetic_one_in_its_characters_alone():
    files = [TOKENIZER, TOKENIZER.parent / "arithmetic_tokenizer"]
    ours, theirs = (json.loads((file / "tokenizer.json").read_text("utf-8")) for file in files)
    special = ["<bos>", "<eos>", "<unk>"]
    characters = "\n !#()*+,-./:<=>0123456789abcdefghijklmnopqrstuvwxyz"
    assert list(ours["model"].pop("vocab")) == [*special, *characters]
    assert set(theirs["model"].pop("vocab")) <= {*special, *characters}
    assert ours == theirs


@pytest.mark.parametrize("free_lines", ["0", "4", "12", "24"])
def test_right_responses_fit_the_config_and_dead_ends_do_not(free_lines: str):
    cfg = config(free_lines)
    task, tokenizer = load_task(cfg.data), TASK.tokenizer()
    context = json.loads((Path(cfg.model.path) / "config.json").read_text())
    for problem in task.load("validation")[:50]:
        prompt = encode_prompt(tokenizer, task.prompt(problem), False)
        assert len(prompt) <= cfg.data.max_prompt_tokens
        assert len(encode_response(tokenizer, problem.answer)) <= cfg.sample.max_tokens < DEAD_END
        longest = len(prompt) + DEAD_END + 3
        assert longest <= cfg.model.context == context["max_position_embeddings"]


@pytest.mark.slow
def test_the_start_takes_the_forks_as_designed_and_trains(tmp_path: Path):
    """512 samples succeed at the rates of the demonstrations, and one iteration trains."""
    from vinejax.training.evaluate import solve
    from vinejax.training.loop import train
    from vinejax.training.startup import open_session

    cfg = config("4")
    small = dataclasses.replace(cfg.eval, problems=256, samples=2, temperature=1.0, top_p=1.0)
    cfg = dataclasses.replace(cfg, iterations=1, eval=small)
    with open_session(cfg, tmp_path / "start", splits=("test",)) as session:
        problems, groups, rewards, _ = solve(session, session.load_reference(), "test")
    reached: dict[float, list[float]] = {}
    for (problem, _), group, row in zip(problems, groups, rewards, strict=True):
        for grown, reward in zip(group, row, strict=True):
            for state in {value(problem.question, grown.text[:n]) for n in range(len(grown.text))}:
                reached.setdefault(state, []).append(reward)
    means = {state: statistics.mean(sample) for state, sample in reached.items()}
    assert 0.2 <= means[RIGHT**2] <= 0.35
    assert abs(means[RIGHT] - RIGHT) < 0.1 and means[1.0] > 0.95
    train(dataclasses.replace(cfg, eval=dataclasses.replace(small, problems=8)), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (trained,) = [line for line in map(json.loads, lines) if line["stage"] == "train"]
    assert trained["actor/grad_norm"] > 0 and trained["response_length/clip_ratio"] > 0.5
