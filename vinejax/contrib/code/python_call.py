r"""Problems of any table, with Python as a tool of the chat template.

    <|im_start|>user
    What is 17·23, and its digit sum?<|im_end|>                      the prompt, with the tool
    <|im_start|>assistant
    <tool_call>                                                      the policy
    {"name": "python", "arguments": {"code": "n = 17 * 23\nn, sum(map(int, str(n)))"}}
    </tool_call><|im_end|>
    <|im_start|>user
    <tool_response>                                                  the environment
    (391, 13)
    </tool_response><|im_end|>
    <|im_start|>assistant
    It is \boxed{13}.<|im_end|>                                      a turn without a call ends it

Like `python_tool`, but the chat template describes the tool and writes the results, and calls have
the format of the model (`tasks/tools.py`). A turn may have several calls, of which at most eight
run. `data.chat_template` must be True, and neither `data.system` nor `data.template` has to say
that there is a tool.

Calls count after the policy's thinking, and not in it.
"""

import copy
from typing import Any

from vinejax.contrib.code.python_tool import PythonTool
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem, Turn
from vinejax.tasks.environment import Observation
from vinejax.tasks.table import make as make_table
from vinejax.tasks.tools import MAX_CALLS, Tools

# What chat templates write between the results of tools and the policy's next text.
BEFORE_TURNS = ("</tool_response>", "<|end_header_id|>")


class Calls:
    """An episode of the task `python_call`. A turn changes nothing but the episode's text."""

    problem: Problem

    def __init__(self, task: "PythonCall"):
        self._task = task

    def reset(self, problem: Problem, seed: int) -> str:
        self.problem = problem
        return ""

    def step(self, action: str) -> Observation:
        answered = self._task.functions.answered(action)
        if answered is not None:
            return answered
        return Observation("", self._task.turn_reward(self.problem, action), done=True)

    def recall(self, turn: Turn) -> None:
        """Does nothing, because turns do not change the state of `Calls`."""

    def fork(self) -> "Calls":
        return copy.copy(self)


class PythonCall(PythonTool):
    """The task `python_tool` with calls in the format of the chat template."""

    name = "python_call"
    acts_in_thinking = False
    ends_turn = ()
    most_programs = MAX_CALLS

    def __init__(self, data: DataConfig):
        super().__init__(data)

        def python(code: str) -> str:
            """Runs a Python program. Returns what it prints, then the value of its last expression.

            Args:
                code: The program. It begins without the variables of earlier programs.
            """
            return self.run(code)

        self.functions = Tools(python)

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self.functions.schemas

    def env(self) -> Calls:
        return Calls(self)

    def answer(self, text: str) -> str | None:
        """The answer in the last turn of an episode's text."""
        for markup in BEFORE_TURNS:
            text = text.rpartition(markup)[2]
        return super().answer(text)


def make(data: DataConfig) -> PythonCall:
    make_table(data)  # raises the errors of a table
    return PythonCall(data)
