"""Generated programs: the problems, the demonstrations, and their rewards."""

import json

import pytest

from vinejax.contrib.code import programs
from vinejax.contrib.code.programs import INPUTS, WRONG, ProgramsTask
from vinejax.core.settings import DataConfig
from vinejax.grading import Grader
from vinejax.tasks.base import load_task


@pytest.fixture(scope="module")
def task() -> ProgramsTask:
    found = load_task(DataConfig(task=programs.__name__))
    assert isinstance(found, ProgramsTask)
    return found


def test_splits_share_no_question(task: ProgramsTask):
    splits = [{p.question for p in task.load(s)} for s in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [588, 67, 74]
    assert len(set().union(*splits)) == 27**2


def test_tests_are_what_the_words_ask_for(task: ProgramsTask):
    for problem in task.load("test"):
        asked = problem.question
        for word, symbol in (("plus", "+"), ("minus", "-"), ("times", "*")):
            asked = asked.replace(word, symbol)
        first, second = asked.split(", ")
        values = [eval(f"(x {first}) {second}", {"x": x}) for x in INPUTS]
        tests = json.loads(problem.answer)["stdin"]
        assert tests == [[str(x), str(v)] for x, v in zip(INPUTS, values, strict=True)]


def test_half_of_the_demonstrations_are_right(task: ProgramsTask):
    """All are programs that run, with a step per line, and the tokenizer spells them."""
    problems = task.load("train")
    written = [task.solution(problem) for problem in problems]
    words = {symbol: word for word, symbol in programs.WORDS.items()}

    def said(code: str) -> str:
        _, *lines, _ = code.split("\n")
        return ", ".join(f"{words[line[1]]} {line[3:]}" for line in lines)

    right = [said(code) == p.question for p, code in zip(problems, written, strict=True)]
    assert sum(right) / len(right) == pytest.approx((1 - WRONG) ** 2, abs=0.05)
    with Grader(workers=1) as grader:
        rewards = task.rewards([*zip(problems[:8], written[:8], strict=True)], grader)
    assert rewards == [float(x) for x in right[:8]] and 0 < sum(rewards) < 8
    assert task.split(written[0]) == [0, 14, 19, 24, 33]
    ids = task.tokenizer().encode(written[0] + problems[0].question)
    assert task.tokenizer().unk_token_id not in ids
