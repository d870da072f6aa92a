"""Chooses, among the fenced blocks of a response, the one that is the program.

It is the last block that is a program. Models also write blocks of output, of shell commands and of
other languages, explain a step by a line of code, and show how the program is called or tested.
These are left out: a block that does nothing, that has another label than Python's, that uses names
of the program without defining them, that defines none of the functions that the tests call, or, if
the tests read what the program prints, that neither reads nor prints.

A block that defines a function of the chosen program anew takes its place, even if it is worse,
unless it uses other names of the program and defines no function that the tests call. So does a
block of Python with an error, and a last block without an end that defines functions and uses no
name of the program. A draft that the response then corrects is thus not credited.
"""

import ast
import builtins
import re
import sys
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from vinejax.contrib.code.blocks import parsed

BUILTINS = frozenset(dir(builtins))
SESSION = re.compile(r"\s*(?:>>>|In \[\d*\]:|\$ )")  # of an interpreter or a shell
LONGEST_LINE = 500  # characters of a line that are read
DEFINITION = re.compile(r"(?:async )?def \w|class \w")
# A line of Python, without its blanks, that prose and pseudo-code do not have, nor a line of code
# that a response explains.
STATEMENT = re.compile(r"import \w[\w., ]*$|from [\w.]+ import |@\w|.*\b(?:print|input)\(")
TRACEBACK = re.compile(r"\s*(?:Traceback|File \")")
TOOLS = frozenset(
    ("random", "subprocess", "timeit")
)  # of programs that make inputs or measure time
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Block(NamedTuple):
    """The contents of a fenced block."""

    text: str
    is_python: bool  # whether the block's label is Python's, or missing
    is_closed: bool = True  # False if the response ends within the block
    has_label: bool = True


def program_of(
    codes: Sequence[Block], wanted: Set[str] | None = None, continues: bool = False
) -> str | None:
    """The text of the program among the blocks of a response; None without a block of code.

    `wanted` are the names of the functions that the tests call: none if the tests read what the
    program prints, and None if the tests are unknown. If `continues`, a program may be the body of
    a function that the prompt begins.

    Blocks with the label of another language count only if no other block is a program. If no block
    defines one of `wanted`, the choice is made as if the tests were unknown. If then none is a
    program, the last block that may be Python stands for it, so that a report shows how it fails.
    """
    for is_python in (True, False):
        chosen = None
        for code in codes:
            if code.is_python == is_python and code.text.strip():
                source = Source(code)
                if source.replaces(chosen, wanted, continues):
                    chosen = source
        if chosen:
            return chosen.code.text
    if wanted:
        return program_of(codes)
    rest = [code.text for code in codes if code.is_python and code.text.strip()]
    return rest[-1] if rest else None


class Source:
    """What a block of code defines, uses and does when it runs."""

    def __init__(self, code: Block):
        self.code = code
        self.tree = parsed(code.text)
        # The body of a function, which the prompt begins, cannot stand alone.
        self.is_body = self.tree is None and code.text.lstrip("\n")[:1] in (" ", "\t")
        if self.is_body:
            self.tree = parsed(f"if True:\n{code.text}")
            self.is_body = self.tree is not None
        nodes = list(ast.walk(self.tree)) if self.tree else []
        self.defined = frozenset(defined_names(self.tree)) if self.tree else frozenset()
        self.functions = frozenset(defined_functions(self.tree)) if self.tree else frozenset()
        self.used = frozenset(_loaded(nodes)) - frozenset(_bound(nodes)) - BUILTINS
        self.imported = frozenset(_foreign(nodes))
        self.is_stub = bool(self.functions) and all(
            all(map(_is_idle, node.body)) for node in nodes if isinstance(node, FUNCTIONS)
        )
        self.has_tools = any(map(_imports_tools, nodes))
        self.calls = self.tree is not None and any(
            isinstance(node, ast.Call) for node in run_at_once(self.tree)
        )
        self.reads = any(map(_reads_input, nodes))
        self.prints = any(map(_prints, nodes))

    def replaces(self, chosen: "Source | None", wanted: Set[str] | None, continues: bool) -> bool:
        """Whether this block is the program, if `chosen` is it without this block."""
        if self.tree is None:
            return self._is_broken_program(wanted)
        uses = (self.used | self.imported) & (chosen.defined | {"*"}) if chosen else frozenset()
        if chosen and not self.code.is_closed and self.functions and not uses:
            return True
        if chosen and self.is_stub and not self.calls:
            return False
        if chosen and chosen.functions & self.functions:
            if not uses or self.defined & (wanted or frozenset()):
                return True
        if wanted:
            return continues and self.is_body or bool(wanted & self.defined)
        if all(map(_is_idle, self.tree.body)):
            return False
        if chosen and not self.reads and (uses or chosen.reads and self.has_tools):
            return False
        return not chosen or wanted is None or self.calls and (self.reads or self.prints)

    def _is_broken_program(self, wanted: Set[str] | None) -> bool:
        """Whether a text that Python cannot parse is meant as a program."""
        text = self.code.text
        if SESSION.match(text) or TRACEBACK.match(text):
            return False
        lines = [line.strip()[:LONGEST_LINE] for line in text.split("\n")]
        if not self.code.is_closed or any(map(DEFINITION.match, lines)):
            return True
        least = 1 if self.code.has_label else 2
        return not wanted and sum(bool(STATEMENT.match(line)) for line in lines) >= least


def defined_functions(tree: ast.Module) -> Iterator[str]:
    """The names of functions and classes outside of functions, and of methods of `Solution`.

    Methods such as `__init__`, which every class may have, are left out.
    """
    for node in run_at_once(tree, with_classes=False):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        if isinstance(node, ast.ClassDef) and node.name == "Solution":
            names = (inner.name for inner in node.body if isinstance(inner, FUNCTIONS))
            yield from (name for name in names if not name.startswith("__"))


def defined_names(tree: ast.Module) -> Iterator[str]:
    """The names that a program gives to values, functions and classes outside of functions.

    The methods of its class `Solution` are among them. A name that it imports counts only if its
    module is of the standard library.
    """
    for node in run_at_once(tree, with_classes=False):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name, body=body):
                yield name
                if name == "Solution":
                    yield from (inner.name for inner in body if isinstance(inner, FUNCTIONS))
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Import(names=names):
                own = (x for x in names if _is_standard(x.name))
                yield from ((x.asname or x.name).partition(".")[0] for x in own)
            case ast.ImportFrom(names=names) if not _is_foreign(node):
                yield from (x.asname or x.name for x in names)


def run_at_once(tree: ast.AST, with_classes: bool = True) -> Iterator[ast.AST]:
    """The nodes of a program that run when it starts: all except the bodies of functions.

    Without `with_classes` the bodies of classes are left out, too.
    """
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        is_class = isinstance(node, ast.ClassDef) and not with_classes
        if not is_class and not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement has no effect, such as `pass`, `x: int`, a docstring or `3 + 4`."""
    if isinstance(statement, ast.Expr):
        acts = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
        return not any(isinstance(node, acts) for node in ast.walk(statement))
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    return isinstance(statement, ast.Pass)


def _loaded(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


def _bound(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The names that are bound anywhere in a program, in functions and by imports, too."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((x.asname or x.name).partition(".")[0] for x in names)


def _is_foreign(node: ast.ImportFrom) -> bool:
    """Whether an import is from no module of the standard library, as `from solution import f`."""
    return not _is_standard(node.module or "")


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _imports_tools(node: ast.AST) -> bool:
    """Whether a node imports one of TOOLS."""
    match node:
        case ast.Import(names=names):
            return any(x.name.partition(".")[0] in TOOLS for x in names)
        case ast.ImportFrom(module=str(module)):
            return module.partition(".")[0] in TOOLS
    return False


def _foreign(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The imported modules outside of the standard library, and the names from such modules."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and _is_foreign(node):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (x.name for x in node.names if not _is_standard(x.name))


def _reads_input(node: ast.AST) -> bool:
    """Whether a node reads standard input: `input`, `sys.stdin`, `open(0)` or `fileinput`."""
    match node:
        case ast.Name(id="input" | "stdin" | "fileinput", ctx=ast.Load()):
            return True
        case ast.Attribute(attr="stdin", ctx=ast.Load()):
            return True
        case ast.Call(func=ast.Name(id="open"), args=[ast.Constant(value=0), *_]):
            return True
    return False


def _prints(node: ast.AST) -> bool:
    """Whether a node writes to standard output, or runs a text that may write to it."""
    match node:
        case ast.Name(id="print" | "pprint" | "stdout" | "exec" | "eval", ctx=ast.Load()):
            return True
        case ast.Attribute(attr="print" | "pprint" | "stdout" | "write" | "writelines"):
            return True
    return False
