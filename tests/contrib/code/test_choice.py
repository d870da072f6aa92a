"""Which fenced block of a response is its program, by the tests' functions or without them."""

import re
import time

import pytest

from vinejax.contrib.code.blocks import fenced_blocks
from vinejax.contrib.code.choice import Block, program_of

AREA = "def area(w, h):\n    return w * h"
OTHER = "def area(w, h):\n    return w + h"
METHOD = "class Solution:\n    def area(self, w, h):\n        return w * h"
CUBE = "n = int(input())\nprint(n ** 3)"
PLUS = "print(int(input()) + 3)"


def fenced(code: str, label: str = "python") -> str:
    return f"So:\n\n```{label}\n{code}\n```\n\n"


def chosen(response: str, *wanted: str, continues: bool = False) -> str | None:
    """The program for tests that call `wanted`; without names, for tests of what it prints."""
    blocks = fenced_blocks(response)
    codes = [
        Block(block.code(response), block.is_python, block.is_closed, bool(block.label))
        for block in blocks
    ]
    program = program_of(codes, frozenset(wanted), continues)
    return program and program.strip("\n")


NO_PROGRAMS = {
    "output": ("12", ""),
    "labelled output": ("w = 3, h = 4", "text"),
    "output with a colon": ("Area: f(3)\nTime: O(1)", ""),
    "prose": ("for example, 3 with 4 gives 12", ""),
    "JSON": ('{"w": 3}', "json"),
    "a shell's command": ("python3 area.py < in.txt", "bash"),
    "a shell's command as Python": ("pip install numpy", "python"),
    "a shell's session": ("$ python area.py\n12", "console"),
    "a session": (">>> area(3, 4)\n12", "python"),
    "a session of IPython": ("In [1]: area(3, 4)\nOut[1]: 12", ""),
    "another language": ("int area(int w, int h) { return w * h; }", "cpp"),
    "another language that Python reads": ("console.log(area(3, 4))", "javascript"),
    "a formula": ("w * h", "math"),
    "a comment": ("# O(1)", "python"),
    "nothing": ("\n", "python"),
}
USES = {
    "a call": "print(area(3, 4))",
    "an assertion": "assert area(3, 4) == 12",
    "a variable": "found = area(3, 4)\nprint(found)",
    "an import of it": "from solution import area\n\nprint(area(3, 4))",
    "an import of all": "from area import *\nprint(area(3, 4))",
    "a main block": "if __name__ == '__main__':\n    print(area(3, 4))",
    "a test": "def test_area():\n    assert area(3, 4) == 12",
    "a unit test": "import unittest\nclass T(unittest.TestCase):\n"
    "    def test(self):\n        self.assertEqual(area(3, 4), 12)",
    "a loop": "for w in range(3):\n    print(w, area(w, 2))",
    "the key line": "return w * h",
    "a signature": "def area(w: int, h: int) -> int: ...",
    "a documented signature": 'def area(w, h):\n    """The area."""',
}


@pytest.mark.parametrize("name", NO_PROGRAMS)
def test_what_is_no_program_does_not_replace_one(name: str):
    code, label = NO_PROGRAMS[name]
    for program, wanted in ((AREA, ("area",)), (CUBE, ())):
        assert chosen(fenced(program) + fenced(code, label), *wanted) == program
        assert chosen(fenced(code, label) + fenced(program), *wanted) == program


@pytest.mark.parametrize("name", USES)
def test_what_uses_a_program_does_not_replace_it(name: str):
    assert chosen(fenced(AREA) + fenced(USES[name]), "area") == AREA
    if name not in ("a signature", "a documented signature"):
        method = re.sub(r"(?<![_ef] )(?<!_)\barea\(", "Solution().area(", USES[name])
        assert chosen(fenced(METHOD) + fenced(method), "area") == METHOD


@pytest.mark.parametrize(
    "last",
    [
        OTHER,
        "area = lambda w, h: w + h",
        "class Solution:\n    def area(self, w, h):\n        return 0",
        "from operator import add as area",
        "def area(w, h) return w + h",  # with an error, it is still the program
        "def area(w, h):\n    return (w + h",
        "if True:\n    def area(w, h):\n        return 0",
    ],
)
def test_a_later_program_replaces_an_earlier_one(last: str):
    assert chosen(fenced(AREA) + fenced(last), "area") == last
    assert chosen(fenced(last) + fenced(AREA), "area") == AREA
    assert chosen(fenced(AREA) + fenced(last) + fenced("area(1, 2)"), "area") == last


def test_a_changed_part_of_a_program_replaces_it():
    """The earlier program is not credited, because the response has changed it."""
    program = f"def times(a, b):\n    return a * b\n\n{AREA.replace('w * h', 'times(w, h)')}"
    change = "def times(a, b):\n    return a + b"
    assert chosen(fenced(program) + fenced(change), "area") == change


@pytest.mark.parametrize(
    ("last", "is_program"),
    [
        (PLUS, True),
        ("print(27)", True),
        ("def cube(n):\n    return n ** 3", False),  # prints nothing
        ("assert n ** 3 == 27", False),
        ("best[i] = max(best[i - 1], best[i - 2] + w[i])", False),
        ("seen = set()\nfor u in near[v]:\n    seen.add(u)", False),
        ("for i in range(n):", False),
        ("from sys import stdout\nstdout.write(str(27))", True),
        ("def main():\n    print(27)\n\nmain()", True),
        ("n = int(input())\nprint(n +", True),
        ("import sys\nsys.stdout.write(sys.stdin.read())", True),
        ("print(n, 'cubed is', n ** 3)", False),
        ("print(n + int(input()))", True),  # it reads the input, and so is a program that fails
    ],
)
def test_programs_that_print(last: str, is_program: bool):
    assert chosen(fenced(CUBE) + fenced(last)) == (last if is_program else CUBE)


def test_a_block_that_is_cut_off_is_the_program():
    assert chosen(f"{fenced(CUBE)}No:\n```python\nn = int(inp") == "n = int(inp"
    assert chosen(f"{fenced(CUBE)}Its output:\n```text\n27") == CUBE


def test_other_labels_count_if_nothing_else_is_a_program():
    assert chosen(fenced(CUBE, "text")) == CUBE
    assert chosen(fenced(PLUS, "text") + fenced(CUBE)) == CUBE
    assert chosen(fenced(CUBE) + fenced(PLUS, "text")) == CUBE
    assert chosen(fenced("12", "text")) is None and chosen("12") is None
    assert chosen(fenced("1 / 0")) == "1 / 0"  # a report shows how it fails


def test_a_body_continues_the_prompts_function():
    body = "    return w * h"
    assert chosen(fenced(body), "area", continues=True) == body
    assert chosen(fenced(AREA) + fenced(body), "area") == AREA


@pytest.mark.parametrize(
    "response",
    [
        "```python\nX\n```",
        "````python\nX\n````",
        "~~~python\nX\n~~~",
        "```Python3\nX\n```",
        "```py\nX\n```",
        "```{.python .numberLines}\nX\n```",
        "```main.py\nX\n```",
        "```python title=main.py\nX\n```",
        "Here: ```python\nX\n```",
        "<answer>```python\nX\n```</answer>",
        "```python\nX\n``` Done.",
        "```python\nX```",
        "```python\nX",
        "```python\r\nX\r\n```\r\n",
        "```python\nX\n```text\n27\n```",
        "```python\nprint(0)\n\nBetter:\n```python\nX\n```",
        "Use ```print``` here.\n```python\nX\n```",
        "1. So:\n\n   ```python\n   X\n   ```\n2. Then:\n\n   ```\n   27\n   ```",
    ],
)
def test_the_ways_to_write_a_block(response: str):
    lines = CUBE.split("\n")
    code = "\n   ".join(lines) if "1. So" in response else CUBE
    found = chosen(response.replace("X", code))
    assert found and found.replace("\r", "") == CUBE


def test_a_fence_within_a_docstring_ends_nothing():
    program = (
        'def area(w, h):\n    """\n    ```\n    area(1, 2)\n    ```\n    """\n    return w * h'
    )
    assert chosen(fenced(program), "area") == program
    assert chosen(fenced('x = """```"""\nprint(x)')) == 'x = """```"""\nprint(x)'


def test_code_that_no_parser_can_take_is_not_chosen_over_a_program():
    for text in ("(" * 10**5, "-" * 10**5 + "1", "a" + ".a" * 10**5, "\0", "not " * 10**5):
        assert chosen(fenced(AREA) + fenced(text), "area") == AREA


def test_names_within_functions_and_classes_change_no_program():
    program = "class Box:\n    def __init__(self): self.x = 1\n\ndef area(w, h):\n    return w * h"
    program += "\n\ndef main():\n    print(area(1, 2))"
    for use in (
        "class Demo:\n    def __init__(self): self.y = 2\n\nprint(Demo())",
        "def main():\n    print(area(3, 4))\n\nmain()",
        "def outer():\n    def area(): return 3\n    return area()\n\nprint(outer())",
    ):
        assert chosen(fenced(program) + fenced(use), "area") == program
    changed = "def main():\n    print(3)"
    assert chosen(fenced(program) + fenced(changed), "area") == changed


@pytest.mark.parametrize(
    "last",
    [
        ('Traceback (most recent call last):\n  File "a.py", line 1\n    print(x\nE: x', ""),
        ('File "a.py", line 1\n    print(x', ""),
        ("read n\nfor each i from 1 to n:\n    if i divides n:\n        add i", ""),
        ("import random\nprint(random.randint(1, 9))", "python"),
        ("import subprocess\nsubprocess.run(['python', 'a.py'])", "python"),
        ("from timeit import timeit\nprint(timeit('3 ** 3'))", "python"),
    ],
)
def test_tracebacks_pseudo_code_and_tools_replace_no_program_that_reads(last: tuple[str, str]):
    assert chosen(fenced(CUBE) + fenced(*last)) == CUBE


def test_an_unlabelled_program_with_an_error_replaces_one():
    broken = "n = int(input()\nprint(n)"
    assert chosen(fenced(CUBE) + fenced(broken, "")) == broken


def test_an_import_of_the_solution_defines_nothing():
    use = "import area\nprint(area.area(3, 4))"
    assert chosen(fenced(AREA) + fenced(use), "area") == AREA


def test_a_correction_that_is_cut_off_replaces_the_draft():
    begun = "def helper(x):\n    return x + 1"
    assert chosen(fenced(AREA) + f"No:\n```python\n{begun}", "area") == begun
    use = "def check():\n    assert area(3, 4) == 12"
    assert chosen(fenced(AREA) + f"Test:\n```python\n{use}", "area") == AREA


def test_long_literals_are_python():
    program = f"def area(w, h):\n    return {'7' * 5000}"
    assert chosen(fenced(program) + fenced("print(area(1, 2))"), "area") == program


def test_long_lines_and_many_fences_take_linear_time():
    began = time.perf_counter()
    chosen(fenced(CUBE) + fenced(" " * 20_000 + "!", "") + fenced(f"import {'a' * 20_000}!", ""))
    chosen(fenced(CUBE, "." * 100_000))
    chosen("```python\n" + "x = '```\n" * 3000)
    assert time.perf_counter() - began < 2
