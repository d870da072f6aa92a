"""Python as a tool: programs in turns, the last turn's answer, states restored without programs."""

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from contrib.code.test_sandbox import kernel_only
from helpers.refusals import refuses

from vinejax.contrib.code.python_tool import PythonTool
from vinejax.contrib.code.settings import CodeConfig
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, DataConfig, EnvConfig, GraderConfig
from vinejax.core.types import Turn
from vinejax.tasks.base import load_task
from vinejax.tasks.environment import EnvRules, EnvStart, Observation, start_environment


@pytest.fixture
def task(tmp_path: Path) -> PythonTool:
    return task_of(tmp_path)


def task_of(folder: Path, sandbox: Any = "none") -> PythonTool:
    rows = [{"question": f"{i}1", "answer": f"so #### {i}1"} for i in range(40)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task(DataConfig(task="vinejax.contrib.code.python_tool", path=str(folder)))
    assert isinstance(task, PythonTool)
    task.configure_sandbox(CodeConfig(sandbox=sandbox), GraderConfig(workers=1, timeout_s=1.0))
    return task


@pytest.mark.parametrize(
    "program, output",
    [
        ("n = 17 * 23\nn, sum(map(int, str(n)))", "(391, 13)"),
        ("```python\nprint('a')\nNone\n```", "a"),
        ("for i in range(3): print(i)", "0\n1\n2"),
        ("", ""),
        ("x = 1", ""),
        ("print('a')\n1 / 0", "a\nZeroDivisionError: division by zero"),
        ("1 +", "SyntaxError: invalid syntax"),
        ("'x' * 5000", "x" * 2000 + " ..."),
        ("print(__name__, type(scope))", "NameError: name 'scope' is not defined"),
        ("'''\n{}\\'\"\"\"'''", '\n{}\'"""'),
        ("raise SystemExit(3)", "exit 3"),
        ("print(1)\nquit()", "1"),
        ("'\\ud800'", "'utf-8' codec can't encode character '\\ud800' in position 0"),
        ("while True: pass", "it took more than 1 seconds"),
    ],
)
def test_what_a_program_prints_is_the_observation(task: PythonTool, program: str, output: str):
    env = task.env()
    assert env.reset(task.load("train")[0], 0) == ""
    text, *rest = env.step(f"Let me see. <tool>wrong</tool> <tool>{program}</tool>")
    assert text.startswith("\n<output>\n") and text.endswith("\n</output>\n")
    assert rest == [0.0, False, False, ()]
    assert output in text if "codec" in output else text == f"\n<output>\n{output}\n</output>\n"


def test_a_program_that_never_ends_does_not_end_the_run(
    task: PythonTool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task, "configure_sandbox", lambda code, grader: None)
    cfg = Config(grader=GraderConfig(timeout_s=60.0))
    with pytest.raises(ConfigError, match="must be above 60, as a turn runs one program"):
        task.configure(cfg)
    task.configure(dataclasses.replace(cfg, env=EnvConfig(timeout_s=61.0)))


def test_answers_of_turns_are_graded_side_by_side(
    task: PythonTool, monkeypatch: pytest.MonkeyPatch
):
    """Answers that time out one after another would take longer than `env.timeout_s`."""
    limits = GraderConfig(workers=2)
    task.configure_sandbox(CodeConfig(sandbox="none"), limits)
    both = threading.Barrier(2)
    monkeypatch.setattr(task, "rewards", lambda items, grader: [float(both.wait(10) < 2)])
    problem = task.load("train")[0]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(task.turn_reward, [problem] * 2, ["1", "2"])) == [1.0, 1.0]
    cfg = Config(sections={"code": CodeConfig(sandbox="none")})
    cfg = dataclasses.replace(cfg, grader=limits, env=EnvConfig(workers=24))
    with pytest.raises(ConfigError, match="must be above 60, .* one answer graded, .* = 24 turns"):
        task.configure(cfg)


def test_the_answer_of_the_last_turn_earns_the_reward(task: PythonTool):
    problem = task.load("train")[3]
    env = task.env()
    env.reset(problem, 0)
    right = f"It is \\boxed{{{problem.question}}}."
    assert env.step(right) == Observation("", 1.0, done=True)
    assert env.step("It is \\boxed{7}.") == env.step("<tool>1") == Observation("", 0.0, done=True)
    assert (
        env.step("no</tool>").text == "\n<output>\nthere is no <tool> before </tool>\n</output>\n"
    )
    assert task.answer(f"\\boxed{{5}}</tool>\n<output>\n3\n</output>\n{right}") == problem.question
    assert task.ends_turn == ("</tool>",) and task.failure(problem, right) is None


@pytest.mark.parametrize("is_chat", [False, True])
def test_thinking_that_the_prompt_opens_has_no_answer(task: PythonTool, is_chat: bool):
    """As for the task `table`. Later turns begin like the first one if a chat template does so."""
    task._data = dataclasses.replace(task._data, chat_template=is_chat)
    problem = dataclasses.replace(task.load("train")[3], opening="<think>")
    thought = f"maybe \\boxed{{{problem.question}}}"

    def reward(env: Any, action: str) -> float:
        return env.fork().step(action).reward

    env = task.env()
    env.reset(problem, 0)
    assert reward(env, thought) == 0.0
    assert reward(env, f"{thought}</think> \\boxed{{7}}") == 0.0
    assert reward(env, f"hmm</think> so {thought}") == 1.0
    env.recall(Turn(0, 0, "<tool>1</tool>", "\n<output>\n1\n</output>\n", 0.0, None))
    assert reward(env, thought) == (0.0 if is_chat else 1.0)
    assert reward(env, f"hmm</think> so {thought}") == 1.0


def test_states_are_restored_without_running_their_programs(
    task: PythonTool, monkeypatch: pytest.MonkeyPatch
):
    """A program that prints the time would have another output when it runs again."""
    start = EnvStart(task.load("train")[5], 1)
    runs = iter("ab")
    monkeypatch.setattr(task, "run", lambda source: next(runs))
    environment, _ = start_environment(task, start, EnvRules(60.0))
    action = "<tool>time()</tool>"
    turn = Turn(3, 5, action, environment.step(action).text, 0.0, environment.key())
    other, _ = start_environment(task, start, EnvRules(60.0))
    other.replay([turn])
    fork = other.fork()
    assert fork.step(action).text == "\n<output>\nb\n</output>\n"
    assert fork.step(f"\\boxed{{{start.problem.question}}}") == Observation("", 1.0, done=True)


def test_what_is_refused(task: PythonTool):
    given: list[Any] = [{"partial": True}, {"steps": "blocks"}]
    for fields in given:
        with refuses(f"code.{next(iter(fields))}"):
            task.configure_sandbox(CodeConfig(sandbox="none", **fields), GraderConfig())
    with refuses("data.path"):
        load_task(DataConfig(task="vinejax.contrib.code.python_tool"))


@kernel_only
def test_programs_run_in_the_kernels_sandbox(tmp_path: Path):
    task = task_of(tmp_path, "kernel")
    assert task.run("open('/etc/passwd').read()").startswith("PermissionError")
    assert task.run("import socket; socket.socket()").startswith("OSError")
    assert task.run("sum(range(10))") == "45"
