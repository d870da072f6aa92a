"""Reading the tests of programs from the formats of data sets.

The answer of a problem is the JSON of its tests, in one of three forms:

    {'stdin': [[input, output], ...]}
    {'calls': [[function, arguments, result], ...]}
    {'asserts': text, 'entry': function, 'before': code that stands before the answer}
"""

import base64
import functools
import json
import pickletools
import zlib
from typing import Any

from vinejax.contrib.code.asserts import read_asserts


def tests_of(value: Any, row: dict[str, Any], question: str) -> dict[str, Any]:
    """The tests in a column's `value`, in one of the forms in the module's docstring.

    Raises ValueError unless `value` is as in APPS, TACO, LiveCodeBench, MBPP or HumanEval. The
    function to call is named by `fn_name` in `value` or in `row`, or by `entry_point` or
    `metadata.func_name` in `row`.
    """
    value = _unpacked_value(value)
    entry = _entry(value, row)
    if isinstance(value, dict):
        if "assert_case" in value:
            value = value["assert_case"]
        elif "test_cases" in value:
            value = value["test_cases"]
        else:
            value = _pairs(value)
    if isinstance(value, str):
        before = f"{question}\n" if "def check(" in value else ""
        if before and not entry:
            raise ValueError("a test with check(candidate) needs a column 'entry_point'")
        return {"asserts": value, "entry": entry, "before": before}
    if not isinstance(value, list) or not value:
        raise ValueError(f"tests of a form that is not known: {value!r:.80}")
    if all(isinstance(case, str) for case in value):
        return {"asserts": "\n".join(value), "entry": entry, "before": ""}
    cases = [(case["input"], case["output"]) for case in value if _is_case(case)]
    if len(cases) < len(value):
        raise ValueError(f"a test is neither input with output nor an assertion: {value[0]!r:.80}")
    if not entry:
        return {"stdin": [[_text(given_input), _text(output)] for given_input, output in cases]}
    calls = []
    for given_input, output in cases:
        arguments, result = _arguments_and_result(given_input, output)
        calls.append([entry, arguments, result])
    return {"calls": calls}


def _unpacked_value(value: Any) -> Any:
    """The value of a column, parsed if it is JSON, or JSON compressed as in LiveCodeBench."""
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    try:
        packed = zlib.decompress(base64.b64decode(value, validate=True))
    except (ValueError, zlib.error):
        return value
    # `packed` is a pickle of one text. Its opcodes are read and never executed.
    texts = [x for _, x, _ in pickletools.genops(packed) if isinstance(x, str)]
    return json.loads(texts[0])


def _entry(value: Any, row: dict[str, Any]) -> str:
    metadata = _unpacked_value(row.get("metadata") or {})
    named = (
        value.get("fn_name") if isinstance(value, dict) else None,
        row.get("fn_name"),
        row.get("entry_point"),
        metadata.get("func_name") if isinstance(metadata, dict) else None,
    )
    return next((name for name in named if isinstance(name, str) and name), "")


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


def _text(value: Any) -> str:
    """An input or output as a text. A list contains the lines of the text."""
    return value if isinstance(value, str) else "\n".join(map(str, value))


def _arguments_and_result(given_input: Any, output: Any) -> tuple[list[Any], Any]:
    """The list of arguments of a call, and the result that is expected from the call.

    If `given_input` is a text, each of its lines is the JSON of one argument, and a text in
    `output` is also read as JSON. Otherwise `given_input` is the list of arguments or the only
    argument, and nothing is parsed.
    """
    if isinstance(given_input, str):
        arguments = [json.loads(line) for line in given_input.splitlines() if line.strip()]
        return arguments, _json(output)
    return (list(given_input) if isinstance(given_input, list) else [given_input]), output


def _json(output: Any) -> Any:
    try:
        return json.loads(output) if isinstance(output, str) else output
    except ValueError:
        return output


@functools.lru_cache(maxsize=1024)
def tests_in(answer: str) -> dict[str, Any]:
    """The tests in a problem's answer, parsed from JSON."""
    return json.loads(answer)


def has_readable_tests(answer: str) -> bool:
    """Whether the expected values of all tests can be compared outside the sandbox."""
    tests = tests_in(answer)
    try:
        return "asserts" not in tests or bool(read_asserts(tests["asserts"], tests["entry"]))
    except ValueError:
        return False
