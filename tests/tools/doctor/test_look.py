"""The data's own solutions, as responses that are graded."""

from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers.applied import stand_in

from vinejax.core.settings import GraderConfig
from vinejax.core.types import Problem
from vinejax.session.session import Session
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.graded import GradedTask
from vinejax.tools.doctor.look import before_stop, known_solutions


class Stub(Arithmetic):
    """A task that is made for rewards alone: its solution is the row's answer."""

    def solution(self, problem: Problem) -> str:
        return problem.answer

    def reward(self, problem: Problem, response: str) -> float:
        return float(self.answer(response) == problem.answer)


class Hasty(Arithmetic):
    """A task whose demonstrations are wrong on purpose."""

    def solution(self, problem: Problem) -> str:
        return "#### 99"


class Without(Arithmetic):
    def solution(self, problem: Problem) -> str:
        raise NotImplementedError


def session(task: Any, **sections: Any) -> Any:
    graded = GradedTask(task, GraderConfig())
    cfg = cases.config(**sections)
    return stand_in(Session, task=task, graded=graded, cfg=cfg, tokenizer=cases.tokenizer())


def test_hasty_demonstrations_are_not_taken_for_the_datas_solutions():
    problems = Arithmetic().load("train")[:4]
    for problem, known in zip(problems, known_solutions(session(Hasty()), problems), strict=True):
        assert known is not None and (known.text, known.reward) == (problem.answer, 1.0)
        assert known.num_tokens == len(cases.encode(problem.answer)) + 1


def test_a_stop_string_cuts_them():
    problems = Arithmetic().load("train")[:4]
    for solution in known_solutions(session(Arithmetic(), sample={"stop": ("####",)}), problems):
        assert solution is not None and solution.is_stopped
        assert (solution.reward, solution.whole_reward, solution.answer) == (0.0, 1.0, None)
    assert before_stop("a;b,c", (",", ";")) == "a" and before_stop("a", (";",)) == "a"


@pytest.mark.parametrize("task", [Stub(), Without()])
def test_a_bare_answer_is_no_solution(task: Arithmetic):
    problems = [Problem("train/0", "1+2=", "3"), Problem("train/1", "1+3=", "4")]
    assert known_solutions(session(task), problems) == [None, None]


def test_a_solution_follows_the_thinking_that_the_prompt_opens():
    class Aloud(Stub):
        def reward(self, problem: Problem, response: str) -> float:
            return float(response == f"<think>\n</think>\n\n{problem.answer}")

    problem = Problem("train/0", "1+2=", "1+2=3\n#### 3", opening="<think>")
    (known,) = known_solutions(session(Aloud()), [problem])
    assert known is not None and known.reward == 1.0
