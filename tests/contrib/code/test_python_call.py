"""Python as a tool of the chat template: calls of models, their results, the last turn's answer."""

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.refusals import refuses
from helpers.tokenizer_cases import load
from helpers.tool_templates import QWEN

from vinejax.contrib.code.python_call import PythonCall
from vinejax.contrib.code.settings import CodeConfig
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, DataConfig, EnvConfig, GraderConfig
from vinejax.core.types import Turn
from vinejax.tasks.base import load_task
from vinejax.tasks.environment import EnvRules, EnvStart, Observation, start_environment
from vinejax.tasks.prompts import load_problems


@pytest.fixture
def task(tmp_path: Path) -> PythonCall:
    rows = [{"question": f"{i}1", "answer": f"so #### {i}1"} for i in range(40)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task(DataConfig(task="vinejax.tasks.python_call", path=str(tmp_path)))
    assert isinstance(task, PythonCall)
    task.configure_sandbox(CodeConfig(sandbox="none"), GraderConfig(workers=1, timeout_s=1.0))
    return task


def call(code: str) -> str:
    arguments = {"name": "python", "arguments": {"code": code}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


@pytest.mark.parametrize(
    ("action", "results"),
    [
        (f"Let me see.\n{call('n = 17 * 23' + chr(10) + 'n, 13')}", ("(391, 13)",)),
        (
            call("1 + 1") + call("1 / 0"),
            ("2", "ZeroDivisionError: division by zero"),
        ),
        ('{"name": "python", "parameters": {"code": "2 * 3"}}', ("6",)),
        ("<|python_tag|>print(2 * 3)", ("6",)),
        (call("while True: pass"), ("it took more than 1 seconds",)),
        (call("'''\ud800'''"), None),
        ("<tool_call>\nprint(1)\n</tool_call>", None),
        (call("1").replace("python", "search"), ("error: there is no tool 'search', only python",)),
        (
            call("1").replace('"code"', '"c"'),
            ("error: python: missing a required argument: 'code'",),
        ),
        (call("1").replace('"1"', "5"), ("error: python: ",)),
    ],
)
def test_calls_run_and_malformed_ones_are_told(
    task: PythonCall, action: str, results: tuple[str, ...] | None
):
    environment, first = start_environment(task, EnvStart(task.load("train")[0], 0), EnvRules(60.0))
    assert first == ""
    found = environment.step(action)
    assert not found.done and found.reward == 0.0
    if results is None:
        assert len(found.results) == 1 and "\n" not in found.results[0]
    elif results[0].endswith(": "):
        assert found.results[0].startswith(results[0])
    else:
        assert found.results == results
    found.text.encode()


def test_the_turn_without_a_call_earns_the_reward(task: PythonCall):
    problem = task.load("train")[3]
    env = task.env()
    env.reset(problem, 0)
    right = f"It is \\boxed{{{problem.question}}}."
    assert env.step(right) == Observation("", 1.0, done=True)
    assert env.step("It is \\boxed{7}.") == env.fork().step("") == Observation("", 0.0, done=True)
    for markup in ("</tool_response><|im_end|>\n", "<|end_header_id|>\n\n"):
        assert task.answer(f"\\boxed{{5}}{markup}{right}") == problem.question
    assert task.ends_turn == () and not task.acts_in_thinking


def test_calls_in_thinking_do_not_run(task: PythonCall):
    problem = task.load("train")[3]
    environment, _ = start_environment(task, EnvStart(problem, 0), EnvRules(60.0))
    found = environment.step(f"<think>{call('1')}</think>\\boxed{{{problem.question}}}")
    assert found == Observation("", 1.0, done=True)


def test_states_are_restored_without_running_their_programs(
    task: PythonCall, monkeypatch: pytest.MonkeyPatch
):
    start = EnvStart(task.load("train")[5], 1)
    outputs = iter("ab")
    monkeypatch.setattr(task, "run", lambda source: next(outputs))
    environment, _ = start_environment(task, start, EnvRules(60.0))
    action = call("time()")
    turn = Turn(3, 5, action, environment.step(action).text, 0.0, environment.key())
    other, _ = start_environment(task, start, EnvRules(60.0))
    other.replay([turn])
    assert other.fork().step(action).results == ("b",)


def test_a_turn_of_programs_that_never_end_does_not_end_the_run(
    task: PythonCall, monkeypatch: pytest.MonkeyPatch
):
    cfg = Config(grader=GraderConfig(workers=1, timeout_s=7.5))
    with refuses("env.timeout_s"):
        task.configure(cfg)
    monkeypatch.setattr(task, "configure_sandbox", lambda code, grader: None)
    shared = Config(grader=GraderConfig(workers=2), env=EnvConfig(workers=3))
    with pytest.raises(ConfigError, match="above 80,.*env.workers = 3 turns share 2 processes"):
        task.configure(shared)
    elsewhere = CodeConfig(sandbox="http", url="http://x")
    task.configure(dataclasses.replace(shared, sections={"code": elsewhere}))
    task.configure(dataclasses.replace(cfg, env=EnvConfig(timeout_s=61.0)))
    ran = []
    monkeypatch.setattr(task, "run", lambda source: ran.append(source) or "")
    environment, _ = start_environment(task, EnvStart(task.load("train")[0], 0), EnvRules(60.0))
    assert len(environment.step(call("while True: pass") * 50).results) == 9
    assert len(ran) * cfg.grader.timeout_s <= EnvConfig().timeout_s


def test_prompts_have_the_tool(task: PythonCall, monkeypatch: pytest.MonkeyPatch):
    tokenizer = load("gpt2")
    monkeypatch.setattr(tokenizer, "chat_template", QWEN)
    data = DataConfig(chat_template=True, max_prompt_tokens=500)
    found, _ = load_problems(task, tokenizer, "train", data)
    text = tokenizer.decode(found[0][1])
    assert '"name": "python"' in text and "Runs a Python program." in text
    with refuses("data.chat_template"):
        load_problems(task, tokenizer, "train", DataConfig())
