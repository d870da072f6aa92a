"""Extract-function refactoring: rewards of Python that moves statements into a new function.

    --config.data.task=vinejax.tasks.code --config.data.question=original
    --config.reward.functions="('task', 'vinejax.contrib.examples.refactoring.extracted',
        'vinejax.contrib.examples.refactoring.shorter')" --config.reward.weights="(1.0, 0.25, 0.25)"

on two lines without the breaks. The question, `data.question`, is the original program, and the
tests say whether the new one still does the same: 'task' is 1 if they pass in the sandbox, which
needs a program that parses. The other two rewards read syntax trees and run nothing. Their weights
keep a program that fails tests below 1.

Source: https://arxiv.org/abs/2412.18035, whose reward adds up syntax, compilation and the presence
of an extracted method.

Departs: Python in place of Java, tests in place of compilation, syntax trees in place of
RefactoringMiner; `shorter` is ours.
"""

import ast

from vinejax.contrib.code.blocks import fenced_blocks, parsed

Function = ast.FunctionDef | ast.AsyncFunctionDef


def extracted(response: str, question: str) -> float:
    """1 if a function that remains from the original calls a function that is new, else 0."""
    before, after = functions_of(question), functions_of(response)
    new = after.keys() - before.keys()
    return float(any(new & _called(after[name]) for name in before.keys() & after.keys()))


def shorter(response: str, question: str) -> float:
    """The largest share of statements by which a function that calls a new one became shorter.

    0 if there is none. A function that is deleted or renamed does not count.
    """
    before, after = functions_of(question), functions_of(response)
    new, shares = after.keys() - before.keys(), [0.0]
    for name in before.keys() & after.keys():
        if new & _called(after[name]):
            shares.append(1 - _num_statements(after[name]) / _num_statements(before[name]))
    return max(shares)


def functions_of(text: str) -> dict[str, Function]:
    """The functions and methods, by name, of the last block of Python in a text.

    A text without fenced blocks is a program itself. There are none in a text that does not parse.
    """
    blocks = [block.code(text) for block in fenced_blocks(text) if block.is_python]
    tree = parsed(blocks[-1] if blocks else text)
    nodes = ast.walk(tree) if tree else ()
    return {node.name: node for node in nodes if isinstance(node, Function)}


def _called(function: Function) -> set[str]:
    """The names that a function calls, of functions and of methods, except its own."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = {x.id if isinstance(x, ast.Name) else getattr(x, "attr", "") for x in calls}
    return names - {function.name}


def _num_statements(function: Function) -> int:
    """The number of statements in a function, at any depth, without its docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return sum(isinstance(x, ast.stmt) for x in ast.walk(function)) - 1 - has_docstring or 1
