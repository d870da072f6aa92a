r"""Problems of any table, with Python as a tool: turns that end with </tool> run a program.

    What is 17·23, and its digit sum?        the prompt: `data.template` with the question
    Let me see. <tool>n = 17 * 23            the policy
    n, sum(map(int, str(n)))</tool>
    <output>                                 the environment
    (391, 13)
    </output>
    It is \boxed{13}.                        a turn without </tool> ends the episode

`data.path`, `data.question` and `data.answer` are the same as for the task `table`, and so is the
reward of the last turn's answer: the turn's thinking has none, even where the prompt opens it.
`data.template` or `data.system` must say that there is a tool.

The observation is what a program prints, then the value of an expression at its end, cut after
`MOST` characters. If the program fails, the last line of its error follows. Every program starts
anew in the sandbox of `code.sandbox`, within `grader.timeout_s` and `grader.memory_mb`.

The state of an episode is only its text. Restoring an episode does not run its programs again,
because their outputs could differ.
"""

import copy
import math
import queue
import re

from vinejax.contrib.code.chosen_sandbox import CodeSandbox
from vinejax.contrib.code.settings import CodeConfig
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, DataConfig, GraderConfig
from vinejax.core.types import Problem, Turn
from vinejax.grading import Grader
from vinejax.tasks.environment import Observation
from vinejax.tasks.graded import default_workers
from vinejax.tasks.table import Table
from vinejax.tasks.table import make as make_table

OPEN, CLOSE, OUTPUT = "<tool>", "</tool>", "</output>"
MOST = 2000  # largest number of characters of an output
FENCED = re.compile(r"\s*```[^\n]*\n(.*?)(```\s*)?\Z", re.DOTALL)
# A program that prints the value of an expression at its end, as a notebook does.
PROGRAM = """
import ast
source = {source!r}
tree = ast.parse(source)
last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
scope = {{"__name__": "__main__"}}
exec(compile(tree, "tool.py", "exec"), scope)
if last is not None:
    value = eval(compile(ast.Expression(last.value), "tool.py", "eval"), scope)
    if value is not None:
        print(value)
"""


class Tool:
    """An episode of the task `python_tool`. A turn changes nothing but the episode's text."""

    problem: Problem
    opening = ""  # tag at the end of the text before the turn that opens a thinking block

    def __init__(self, task: "PythonTool"):
        self._task = task

    def reset(self, problem: Problem, seed: int) -> str:
        self.problem, self.opening = problem, problem.opening
        return ""

    def step(self, action: str) -> Observation:
        opening = self.opening
        self._end_turn()
        if not action.endswith(CLOSE):
            reward = self._task.turn_reward(self.problem, opening + action)
            return Observation("", reward, done=True)
        _, found, source = action.removesuffix(CLOSE).rpartition(OPEN)
        output = self._task.run(source) if found else f"there is no {OPEN} before {CLOSE}"
        return Observation(f"\n<output>\n{output}\n{OUTPUT}\n")

    def recall(self, turn: Turn) -> None:
        """Takes a recorded turn, without running its program."""
        self._end_turn()

    def _end_turn(self) -> None:
        """Only a chat template begins later turns like the first one."""
        self.opening = self.problem.opening if self._task.is_chat else ""

    def fork(self) -> "Tool":
        return copy.copy(self)


class PythonTool(Table):
    """The task `table` with a tool; `tasks/base.py` documents the methods."""

    name = "python_tool"
    sections = ("code",)
    max_turns = 16
    acts_in_thinking = True  # a program may be part of the policy's thinking
    ends_turn = (CLOSE,)
    most_programs = 1  # programs that a turn runs, at most

    def __init__(self, data: DataConfig):
        super().__init__(data)
        self._sandbox = CodeSandbox()
        self._graders = idle_graders(1)

    def configure(self, cfg: Config) -> None:
        """Takes the settings of a run. Raises ConfigError if a turn may take too long.

        Turns that run at the same time wait for one another's answers to be graded, and in the
        sandbox 'kernel' for one another's programs.
        """
        code, seconds, count = CodeConfig.of(cfg), cfg.grader.timeout_s, self.most_programs
        workers = cfg.grader.workers or default_workers()
        rounds = math.ceil(cfg.env.workers / workers)
        longest = max(rounds, count * (rounds if code.sandbox == "kernel" else 1)) * seconds
        if cfg.env.timeout_s <= longest:
            programs = "one program" if count == 1 else f"up to {count} programs"
            message = f"must be above {longest:g}, as a turn runs {programs}, or has one answer"
            message += f" graded, of grader.timeout_s = {seconds:g}"
            if rounds > 1:
                message += f", and env.workers = {cfg.env.workers} turns share {workers} processes"
                message += " (grader.workers)"
            raise ConfigError("env.timeout_s", message, f"{cfg.env.timeout_s:g}")
        self.configure_sandbox(code, cfg.grader)

    def configure_sandbox(self, code: CodeConfig, grader: GraderConfig) -> None:
        """Takes the settings of a run.

        Raises ConfigError if the sandbox fails a probe, or if `code.partial` or `code.steps` is
        set, because this task does not use these settings.
        """
        for field in ("partial", "steps"):
            value = getattr(code, field)
            if value != getattr(CodeConfig(), field):
                message = f"task {self.name} has no tests and no steps of code; leave it out"
                raise ConfigError(f"code.{field}", message, repr(value))
        self._graders = idle_graders(grader.workers or default_workers())
        self._sandbox.configure(code, grader)

    def env(self) -> Tool:
        return Tool(self)

    @property
    def is_chat(self) -> bool:
        """Whether a chat template writes the markup of turns."""
        return self._data.chat_template

    def answer(self, text: str) -> str | None:
        """The answer in the last turn of an episode's text."""
        return super().answer(text.rpartition(OUTPUT)[2])

    def failure(self, problem: Problem, response: str) -> dict[str, str] | None:
        """Returns None, because this task has no tests."""
        return None

    def run(self, source: str) -> str:
        """The output of a program; if the program failed, the reason follows."""
        fenced = FENCED.match(source)
        program = PROGRAM.format(source=fenced[1] if fenced else source.strip())
        found = self._sandbox.get().run(program)
        output = found.out.rstrip("\n")
        if len(output) > MOST:
            output = f"{output[:MOST]} ..."
        if found.status == "ok":
            return output
        reason = (found.err.strip().splitlines() or [found.status])[-1]
        if found.status == "timeout":
            reason = f"it took more than {self._sandbox.limits.timeout_s:g} seconds"
        return f"{output}\n{reason:.{MOST}}".lstrip("\n")

    def turn_reward(self, problem: Problem, text: str) -> float:
        """The reward for the episode's last turn, `text`, in the grading mode of the run."""
        graders = self._graders
        grader = graders.get()
        try:
            if grader is None:
                cfg = self._sandbox.limits
                grader = Grader(
                    workers=1, mode=cfg.mode, timeout_s=cfg.timeout_s, memory_mb=cfg.memory_mb
                )
            return self.rewards([(problem, text)], grader)[0]
        finally:
            graders.put(grader)


def idle_graders(count: int) -> "queue.LifoQueue[Grader | None]":
    """The places of `count` graders, of which each takes one call at a time; None: not made."""
    graders: queue.LifoQueue[Grader | None] = queue.LifoQueue()
    for _ in range(count):
        graders.put(None)
    return graders


def make(data: DataConfig) -> PythonTool:
    make_table(data)  # raises the errors of a table
    return PythonTool(data)
