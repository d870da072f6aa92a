"""Runs the tests of programs in a sandbox, and compares the outputs in this process."""

import ast
import decimal
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vinejax.contrib.code.asserts import FUNCTIONS, Call, read_asserts
from vinejax.contrib.code.blocks import parsed
from vinejax.contrib.code.cases import call_text, tests_in
from vinejax.contrib.code.choice import defined_names
from vinejax.contrib.code.integers import long_integers, shown
from vinejax.contrib.code.sandbox.pool import Outcome
from vinejax.contrib.code.sandbox.runner import decode, encode
from vinejax.contrib.code.sandbox.sandbox import Sandbox

TOLERANCE = 1e-6  # for printed decimal numbers, and for floats that a call returns
NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
INTEGER = re.compile(r"[-+]?\d+")
EXACT = 2**53  # largest number up to which every integer is a float
SHOWN = 2000  # largest number of characters of each part of a `Failure`

Failure = dict[str, str]  # texts about a failed test: 'input', 'expected' and 'got'


class TestOutcome(NamedTuple):
    """The number of tests that passed, the number of all tests, and a failed test.

    `failure` describes the first test that failed, and `status` is the status of its program.
    """

    passed: int
    total: int
    failure: Failure | None = None
    status: str = "ok"  # status of the program that failed, see `Outcome`


class Check(NamedTuple):
    """A test that makes calls, and passes if `holds` returns True for their results."""

    calls: Sequence[Call]
    input: str
    expected: str
    holds: Callable[[Sequence[Any]], bool]


def run_tests(answer: str, code: str, sandbox: Sandbox, all_of_them: bool) -> TestOutcome:
    """The outcome of a program on the tests in a problem's answer.

    A program that reads standard input runs once per test, and without `all_of_them` only until a
    test fails. Tests that make calls need only one run. Raises ValueError for tests that are not
    readable (`has_readable_tests`).
    """
    tests = tests_in(answer)
    if "stdin" in tests:
        return _outcome_of_prints(tests["stdin"], code, sandbox, all_of_them)
    code = _joined(tests.get("before", ""), code)
    if "calls" in tests:
        equal = _is_wrapped_result if tests.get("wrapped") else _same_json
        checks = [
            Check(
                [(name, encode((arguments, {})))],
                call_text(name, arguments),
                shown(expected),
                lambda results, expected=expected: equal(results[0], expected),
            )
            for name, arguments, expected in tests["calls"]
        ]
    else:
        tree = parsed(code)
        redefined = frozenset(FUNCTIONS.keys() & set(defined_names(tree)) if tree else ())
        checks = [
            Check(x.calls, ", ".join(x.shown), x.source, x.holds)
            for x in read_asserts(tests["asserts"], tests["entry"], redefined)
        ]
    return _outcome_of_calls(checks, code, sandbox)


def _joined(before: str, code: str) -> str:
    """`before` and then `code`, whose imports from `__future__` stay first, as they must."""
    tree = parsed(code) if before and "__future__" in code else None
    nodes = [x for x in tree.body if isinstance(x, ast.ImportFrom)] if tree else []
    ends = [x.end_lineno or 0 for x in nodes if x.module == "__future__"]
    lines = code.split("\n")
    first = max(ends, default=0)
    return "\n".join([*lines[:first], before + "\n".join(lines[first:])])


def _outcome_of_prints(
    tests: Sequence[Sequence[str]], code: str, sandbox: Sandbox, all_of_them: bool
) -> TestOutcome:
    result = TestOutcome(0, len(tests))
    for program_input, expected in tests:
        outcome = sandbox.run(code, program_input)
        if outcome.status == "ok" and same_output(outcome.out, expected):
            result = result._replace(passed=result.passed + 1)
        else:
            got = outcome.out if outcome.status == "ok" else f"{outcome.out}\n{_reason(outcome)}"
            if not result.failure:
                result = result._replace(failure=_failure(program_input, expected, got))
            if outcome.status != "ok":
                result = result._replace(status=outcome.status)
            if not all_of_them:
                break
    return result


def _outcome_of_calls(checks: Sequence[Check], code: str, sandbox: Sandbox) -> TestOutcome:
    outcome = sandbox.run(code, calls=[call for check in checks for call in check.calls])
    lines = outcome.out.splitlines()
    status = outcome.status if outcome.status in ("timeout", "threads", "lost") else "ok"
    result = TestOutcome(0, len(checks), None, status)
    for check in checks:
        mine, lines = lines[: len(check.calls)], lines[len(check.calls) :]
        results, error = _values_in(mine)
        if len(mine) < len(check.calls):
            error = error or _reason(outcome)
        if not error and _passes(check, results):
            result = result._replace(passed=result.passed + 1)
        elif not result.failure:
            got = error or ", ".join(map(shown, _values_in(mine)[0]))
            result = result._replace(failure=_failure(check.input, check.expected, got))
    return result


def _passes(check: Check, results: Sequence[Any]) -> bool:
    """Whether a check holds; False if results, which a program chose, cannot be compared."""
    try:
        with long_integers():
            return check.holds(results)
    except (ArithmeticError, RecursionError, ValueError):
        return False


def _values_in(lines: Sequence[str]) -> tuple[list[Any], str]:
    """The values that calls returned before the first error, and the text of this error or ''.

    Each of `lines` is the JSON reply of one call.
    """
    values = []
    for line in lines:
        try:
            reply = json.loads(line)
            if "error" in reply:
                return values, str(reply["error"])
            values.append(decode(reply["value"]))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return values, f"no result but {line!r:.200}"
    return values, ""


def _reason(outcome: Outcome) -> str:
    """Why a program ended, as the last line of its error output or as its status."""
    last = (outcome.err.strip().splitlines() or [""])[-1]
    return last if last and outcome.status.startswith("exit") else outcome.status


def _failure(program_input: str, expected: str, got: str) -> Failure:
    parts = {"input": program_input, "expected": expected, "got": got}
    return {name: text[:SHOWN] for name, text in parts.items()}


def same_output(out: str, expected: str) -> bool:
    """Whether the lines of two outputs are equal, or at least the words in each line.

    Blanks at the ends of the lines do not count, and neither do blanks and blank lines at the
    beginning and the end of an output: the expected outputs of Codeforces often begin with a blank
    line. Two words are also equal if both are numbers with the same value. If the expected number
    has a point or an exponent, the other may differ from it by TOLERANCE, unless both are whole and
    one of them is printed as an integer, or both are less than EXACT.
    """
    lines, wanted = ([x.rstrip() for x in text.strip().splitlines()] for text in (out, expected))
    if lines == wanted:
        return True
    if len(lines) != len(wanted):
        return False
    pairs = zip((x.split() for x in lines), (x.split() for x in wanted), strict=True)
    return all(len(a) == len(b) and all(map(_same_word, a, b)) for a, b in pairs)


def _same_word(word: str, wanted: str) -> bool:
    if word == wanted:
        return True
    if not any(sign in word + wanted for sign in ".eE"):
        return False
    if not NUMBER.fullmatch(word) or not NUMBER.fullmatch(wanted):
        return False
    if INTEGER.fullmatch(wanted):
        try:
            return decimal.Decimal(word) == decimal.Decimal(wanted)
        except ArithmeticError:  # an exponent of very many digits
            return False
    number, value = float(word), float(wanted)
    if INTEGER.fullmatch(word) and value.is_integer():
        return number == value
    return _near(number, value)


def _near(number: float, wanted: float) -> bool:
    """Whether two numbers differ by TOLERANCE at most. Whole numbers up to EXACT must be equal."""
    if max(abs(number), abs(wanted)) < EXACT and number.is_integer() and wanted.is_integer():
        return number == wanted
    return math.isclose(number, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _is_wrapped_result(value: Any, expected: Any) -> bool:
    """Whether `value` equals `expected` or, as in APPS, the only item of the list `expected`."""
    return _same_json(value, expected) or _same_json(value, expected[0])


def _same_json(value: Any, expected: Any) -> bool:
    """Whether `value` equals `expected`, which was read from JSON.

    As in JSON, a tuple counts as a list, and a key of a dict as a text. Floats may differ by
    TOLERANCE (`_near`). An integer must be equal to a whole float, as far as floats tell.
    """
    if isinstance(value, list | tuple) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same_json, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        texts = {x if isinstance(x, str) else shown(x): entry for x, entry in value.items()}
        # Two keys, such as 1 and '1', may have the same text.
        return (
            len(value) == len(expected)
            and texts.keys() == expected.keys()
            and all(_same_json(texts[key], entry) for key, entry in expected.items())
        )
    if isinstance(value, bool) != isinstance(expected, bool):
        return False
    if isinstance(expected, float) and isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:  # an integer that is larger than any float
            return False
        if isinstance(value, int) and expected.is_integer():
            return number == expected
        return _near(number, expected)
    return bool(value == expected)
