"""Reading the tests of programs from the formats of data sets.

The answer of a problem is the JSON of its tests, in one of three forms:

    {'stdin': [[input, output], ...]}
    {'calls': [[function, arguments, result], ...]}, perhaps with 'wrapped': true, if each result
        may be the only item of a list
    {'asserts': text, 'entry': function, 'before': code that stands before the answer}
"""

import ast
import base64
import functools
import json
import pickletools
import re
import zlib
from typing import Any

from vinejax.contrib.code.asserts import read_asserts
from vinejax.contrib.code.blocks import parsed
from vinejax.contrib.code.integers import readable_tests, shown
from vinejax.tasks.files import LongInteger

NAMES = ("fn_name", "func_name", "function_name", "entry_point")  # fields that name a function
SOLUTION = re.compile(r"\ASolution(?:\(\))?\.")  # before the name of a method
CALLED = ("functional", "function_call")  # kinds of tests that call a function
MOST_NESTED = 200  # levels of lists in tests, so that they can be encoded on any Python
PRINTED = ("stdin", "stdin_stdout")  # kinds of tests that read what a program prints


def tests_of(value: Any, row: dict[str, Any], question: str) -> dict[str, Any]:
    """The tests in a column's `value`, in one of the forms in the module's docstring.

    Raises ValueError unless `value` is as in APPS, TACO, LiveCodeBench, SYNTHETIC-1, MBPP or
    HumanEval. The function to call is named by a test, by `value` or by `row`, or by the `metadata`
    of one of these, in a field of NAMES.
    """
    with readable_tests():
        value = with_integers(_unpacked_value(value))
    entry = _entry(value) or _entry(row)
    if isinstance(value, dict):
        if "assert_case" in value:
            value = value["assert_case"]
        elif "test_cases" in value:
            value = value["test_cases"]
        else:
            value = _pairs(value)
    if isinstance(value, str):
        is_check = "def check(" in value
        if is_check and not entry:
            raise ValueError("a test with check(candidate) needs a column 'entry_point'")
        entry = _checked_name(entry) if is_check else entry
        before = f"{question}\n" if is_check and _begins_program(question) else ""
        return {"asserts": value, "entry": entry, "before": before}
    if not isinstance(value, list) or not value:
        raise ValueError(f"tests of a form that is not known: {value!r:.80}")
    if all(isinstance(case, str) for case in value):
        return {"asserts": "\n".join(value), "entry": entry, "before": ""}
    if not all(map(_is_case, value)):
        raise ValueError(f"a test is neither input with output nor an assertion: {value[0]!r:.80}")
    functions = [_function_called(case, entry) for case in value]
    if not any(functions):
        return {"stdin": [[_text(case["input"]), _text(case["output"])] for case in value]}
    if not all(functions):
        raise ValueError("some tests call a function, and others read what the program prints")
    calls = []
    for name, case in zip(functions, value, strict=True):
        arguments, result = _arguments_and_result(case["input"], case["output"])
        calls.append([name, arguments, result])
    wrapped = {"wrapped": True} if all(map(_is_wrapped, value)) else {}
    return {"calls": calls, **wrapped}


def _unpacked_value(value: Any) -> Any:
    """The value of a column, parsed if it is JSON, or JSON compressed as in LiveCodeBench."""
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] in ("{", "["):
        try:
            return _parsed_json(value)
        except json.JSONDecodeError:
            return value
    try:
        packed = zlib.decompress(base64.b64decode(value, validate=True))
    except (ValueError, zlib.error):
        return value
    # `packed` is a pickle of one text. Its opcodes are read and never executed.
    texts = [x for _, x, _ in pickletools.genops(packed) if isinstance(x, str)]
    if not texts:
        raise ValueError("compressed tests without a text")
    return _parsed_json(texts[0])


def _entry(fields: Any) -> str:
    """The name of the function to call in `fields` or their `metadata`; '' if there is none.

    'Solution().add' and 'Solution.add' name the method 'add'.
    """
    if not isinstance(fields, dict):
        return ""
    metadata = _unpacked_value(fields.get("metadata") or {})
    found = [fields.get(field) for field in NAMES]
    found += [metadata.get(field) for field in NAMES] if isinstance(metadata, dict) else []
    name = next((name.strip() for name in found if isinstance(name, str) and name.strip()), "")
    return SOLUTION.sub("", name)


def _checked_name(name: str) -> str:
    """The name. Raises ValueError unless it can be a function's."""
    if not name.isidentifier():
        raise ValueError(f"{name!r} is neither a function nor a method of Solution")
    return name


def _function_called(case: dict[str, Any], entry: str) -> str:
    """The function that a test calls; '' if the test reads what the program prints.

    `entry` is the function of tests that name none. Raises ValueError if a function is missing.
    """
    kind = case.get("testtype", case.get("type"))
    if kind in PRINTED:
        return ""
    name = _entry(case) or entry
    if not name and (kind in CALLED or not _is_printed(case["input"])):
        fields = ", ".join(NAMES)
        raise ValueError(f"a test calls a function, but none of {fields} names it: {case!r:.80}")
    return name and _checked_name(name)


def _is_printed(given_input: Any) -> bool:
    """Whether an input is a text or a number, or a list of texts, which are its lines."""
    if isinstance(given_input, list):
        return all(isinstance(line, str) for line in given_input)
    return isinstance(given_input, str | int | float)


def _begins_program(question: str) -> bool:
    """Whether a question is Python, which a response may continue, as in HumanEval."""
    tree = parsed(question)
    return tree is not None and any(isinstance(x, ast.FunctionDef) for x in tree.body)


def _pairs(value: dict[str, Any]) -> list[dict[str, Any]]:
    for input_key, output_key in (("inputs", "outputs"), ("input", "output")):
        inputs, outputs = value.get(input_key), value.get(output_key)
        if isinstance(inputs, list) and isinstance(outputs, list):
            if len(inputs) != len(outputs):
                raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs")
            return [{"input": x, "output": y} for x, y in zip(inputs, outputs, strict=True)]
    raise ValueError(f"tests without inputs and outputs; there are {', '.join(map(repr, value))}")


def _is_case(case: Any) -> bool:
    return isinstance(case, dict) and "input" in case and "output" in case


def _is_wrapped(case: dict[str, Any]) -> bool:
    """Whether the result of a test may be the only item of a list, as APPS stores results."""
    output = case["output"]
    return not isinstance(case["input"], str) and isinstance(output, list) and len(output) == 1


def _text(value: Any) -> str:
    """An input or output as a text. A list contains the lines of the text.

    Raises ValueError for a value that is no text, number or list.
    """
    if not isinstance(value, str | int | float | list):
        raise ValueError(f"an input or output must be a text, found {value!r:.60}")
    with readable_tests():
        return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments_and_result(given_input: Any, output: Any) -> tuple[list[Any], Any]:
    """The list of arguments of a call, and the result that is expected from the call.

    If `given_input` is a text, each of its lines is the JSON of one argument, and a text in
    `output` is also read as JSON. Otherwise `given_input` is the list of arguments or the only
    argument, and nothing is parsed.
    """
    if isinstance(given_input, str):
        arguments = [_parsed_json(line) for line in given_input.splitlines() if line.strip()]
        return arguments, _json(output)
    return (list(given_input) if isinstance(given_input, list) else [given_input]), output


def _json(output: Any) -> Any:
    try:
        return _parsed_json(output) if isinstance(output, str) else output
    except json.JSONDecodeError:
        return output


def _parsed_json(text: str) -> Any:
    with readable_tests():
        return json.loads(text)


def with_integers(value: Any) -> Any:
    """The value, in which every `LongInteger` of a JSON file is replaced by its integer."""
    if isinstance(value, dict):
        return {name: with_integers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [with_integers(part) for part in value]
    if not isinstance(value, LongInteger):
        return value
    with readable_tests():
        return int(value)


def written_tests(tests: dict[str, Any]) -> str:
    """Tests as JSON, the answer of a problem. Raises ValueError for lists of MOST_NESTED levels."""
    parts: list[Any] = [tests]
    for _ in range(MOST_NESTED):
        inner = [x.values() if isinstance(x, dict) else x for x in parts]
        parts = [x for part in inner for x in part if isinstance(x, dict | list)]
    if parts:
        raise ValueError("the tests are nested too deeply")
    with readable_tests():
        return json.dumps(tests)


@functools.lru_cache(maxsize=1024)
def tests_in(answer: str) -> dict[str, Any]:
    """The tests in a problem's answer, parsed from JSON."""
    return _parsed_json(answer)


def has_readable_tests(answer: str) -> bool:
    """Whether the expected values of all tests can be compared outside the sandbox."""
    try:
        return called_names(answer) is not None
    except ValueError:
        return False


@functools.lru_cache(maxsize=1024)
def called_names(answer: str) -> frozenset[str]:
    """The functions that the tests in a problem's answer call; none if a program prints its result.

    Raises ValueError if the tests are not readable (`has_readable_tests`).
    """
    tests = tests_in(answer)
    if "stdin" in tests:
        return frozenset()
    if "calls" in tests:
        return frozenset(name for name, _, _ in tests["calls"])
    return frozenset(
        name for x in read_asserts(tests["asserts"], tests["entry"]) for name, _ in x.calls
    )


def first_calls(answer: str) -> dict[str, str]:
    """The first call of each function that the tests in a problem's answer call, as texts.

    Raises ValueError if the tests are not readable.
    """
    tests = tests_in(answer)
    calls: dict[str, str] = {}
    for name, arguments, _ in tests.get("calls", ()):
        calls.setdefault(name, call_text(name, arguments))
    if "asserts" in tests:
        for assertion in read_asserts(tests["asserts"], tests["entry"]):
            for (name, _), text in zip(assertion.calls, assertion.shown, strict=True):
                calls.setdefault(name, text)
    return calls


def call_text(name: str, arguments: list[Any]) -> str:
    """A call with these positional arguments as Python code."""
    return f"{name}({', '.join(map(shown, arguments))})"


def code_before(answer: str) -> str:
    """The code that stands before a response, in the tests of a problem's answer."""
    return tests_in(answer).get("before", "")
