"""The shape of the package: imports point down, Flax stays in one file, files and functions small.

A table, and a walk of the syntax trees; nothing is imported.
"""

import ast
import functools
import re
from collections.abc import Iterator

from helpers.paths import REPO, TESTS

ROOT = REPO / "vinejax"
# From the roof to the ground: a file imports from its own room and from those below it.
ROOMS = [
    "contrib",  # contributed methods, tasks, environments, options: nothing imports them
    "tools",  # what is made of runs: pages, the bench, plans; nothing imports them either
    "__main__",  # `python -m vinejax`
    "main",  # the command `vinejax`
    "command",  # the command line: flags, modes, errors
    "library",  # a run from Python
    "training",  # the loop, and what a run needs before and after it
    "config",  # configuration files to settings, and what is refused
    "methods",  # one module per method, and the four stages that they share
    "session",  # a run's fixed parts, and the context of one iteration
    "records",  # what a run writes: its episodes, its metrics
    "statistics",  # accuracies and their intervals
    "rollout",  # from problems to episodes with values
    "learner",  # from episodes to updates
    "engine",  # from branches to text
    "tasks",  # problems, prompts, rewards, steps
    "grading",  # is this answer correct?
    "model",  # weights and forward pass; hf/ reads and writes Hugging Face folders
    "credit",  # step credit: where states are, how often they are sampled, what is trained on
    "rl",  # equations on arrays
    "runtime",  # files, hosts, logs, checkpoints
    "core",  # settings, types, text, seeds, shapes, errors, plugins
    "version",
]
ACCESSORIES = ("contrib", "tools")
ACCESSORY_MODULE = r"\b(?:vinejax|helpers)\.(?:contrib|tools)\b|\bconfigs/contrib\b"
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


def room_of(name: str) -> str:
    """'rl/losses.py' or 'vinejax.rl.losses' -> 'rl'."""
    return name.removeprefix("vinejax.").replace("/", ".").removesuffix(".py").split(".")[0]


def imports_of(name: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also inside functions and for type checkers."""
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import"
            module = node.module or ""
            for alias in node.names:  # `from vinejax.rl import losses` means a module
                is_package = (ROOT.parent / module.replace(".", "/")).is_dir()
                yield node.lineno, f"{module}.{alias.name}" if is_package else module


def own_imports() -> Iterator[tuple[str, int, str]]:
    """(file, line, module) of every import of this package, but for the lazy names of its root."""
    for name in NAMES:
        if name != "__init__.py":
            for line, module in imports_of(name):
                if module.startswith("vinejax.") and room_of(module) != "__version__":
                    yield name, line, module


def test_every_file_has_a_room():
    """Those of the accessories may be gone."""
    rooms = {room_of(name) for name in NAMES} - {"__init__"}
    assert rooms | set(ACCESSORIES) == set(ROOMS)


def test_imports_point_down():
    upward = [
        f"{name}:{line}: {room_of(name)} imports {module}, which is above it"
        for name, line, module in own_imports()
        if ROOMS.index(room_of(module)) < ROOMS.index(room_of(name))
    ]
    assert not upward, "\n".join(upward)


def test_accessories_depend_on_the_core_one_way():
    """Nothing outside contrib/ and tools/ imports them, and neither imports the other."""
    wrong = [
        f"{name}:{line} imports {module}"
        for name, line, module in own_imports()
        if room_of(module) in ACCESSORIES and room_of(module) != room_of(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_tests_of_the_core_need_no_accessories():
    """No test or helper outside the accessories' own folders imports or names their modules."""
    used = []
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        folder = name.removeprefix("helpers/").partition("/")[0]
        text = path.read_text(encoding="utf-8")
        if folder not in ACCESSORIES and name != "test_architecture.py":
            used += [f"{name}: {found}" for found in re.findall(ACCESSORY_MODULE, text)]
    assert not used, "\n".join(used)


def test_modules_have_no_circles():
    """Within a room too: no module is imported, however indirectly, by one that it imports."""
    modules = {f"vinejax.{name.removesuffix('.py').replace('/', '.')}": name for name in NAMES}
    edges: dict[str, set[str]] = {module: set() for module in modules}
    for name, _, module in own_imports():
        importer = f"vinejax.{name.removesuffix('.py').replace('/', '.')}"
        found = module if module in modules else f"{module}.__init__"
        if found in modules and found != importer:
            edges[importer].add(found)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in edges[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in modules:
        visit(module, ())
    assert sum(map(len, edges.values())) > 500


def test_own_modules_are_not_imported_by_name():
    """A name in a string would hide an arrow, from this test and from a reader's editor."""
    by_name = [
        f"{name}:{node.lineno}"
        for name in NAMES
        if name not in ("command.py", "contrib/names.py", "tools/names.py")
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("vinejax.")
        and node.value.count(" ") == 0
        and (ROOT.parent / node.value.replace(".", "/")).with_suffix(".py").exists()
        and room_of(node.value) not in ("tasks", "grading")  # settings, and child processes
        and not name.endswith("aot/compiler.py")  # its child process
    ]
    assert not by_name, "\n".join(by_name)


def test_packages_are_imported_where_they_belong():
    """Flax in the decoder alone, no other framework, and equations on arrays alone in rl/."""
    for name in NAMES:
        packages = {module.split(".")[0] for _, module in imports_of(name)}
        assert ("flax" in packages) == (name == "model/decoder.py"), name
        assert not packages & {"torch", "tensorflow"}, name
        if name.startswith("rl/"):
            assert packages <= {"jax", "jaxtyping", "numpy", "math", "collections", "vinejax"}, name


def test_files_and_functions_are_small():
    for name in NAMES:
        tree = tree_of(name)
        lines = (ROOT / name).read_text(encoding="utf-8").count("\n")
        assert lines <= 600, f"{name} has {lines} lines: is it one concept?"
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= 60, f"{name}:{node.lineno}: {node.name} has {length} lines"
