"""The shape of the package: imports point down, Flax stays in one file, files and functions small.

A table, and a walk of the syntax trees; nothing is imported.
"""

import ast
from collections.abc import Iterator

import pytest
from helpers.paths import REPO

ROOT = REPO / "vinejax"
# From the top to the bottom: a module imports from layers further down, and from its own layer
# where that is a package.
LAYERS = [
    "__main__",  # `python -m vinejax`
    "main",  # the command line
    "library",  # a run from Python
    "bench",  # what each estimator's credit is worth, at a fixed policy
    "checks",  # of the configuration
    "train",  # the loop
    "announce",  # what a run says when it begins and ends
    "health",  # what several iterations in a row say
    "iterations",  # one iteration of each kind of method
    "context",  # what all kinds of iterations share
    "evaluate",  # a policy's accuracy, for the loop and by itself
    "export",  # a run's policy for other programs
    "plan",  # what a run would take of chips that nobody has yet
    "session",  # task, weights and mesh of a run
    "sizes",  # whether the sizes of a run can be meant
    "warmup",  # the supervised start of a run
    "start",  # whose weights a policy starts from
    "baselines",  # what PPO, single-stream, RestEM and DPO-Positive need beyond the loop
    "problems",  # which problems an iteration samples
    "metrics",  # names and numbers of an iteration
    "analysis",  # what a run wrote, for people
    "learner",  # batches of episodes to updates
    "rollout",  # problems to episodes with values
    "tasks",  # problems, rewards, steps; a tokenizer of its own is loaded as a model's
    "grading",  # is this answer correct?
    "model",  # weights and forward pass; hf/ reads and writes Hugging Face folders
    "runtime",  # files, logs, checkpoints
    "credit",  # the rules of step credit
    "rl",  # the mathematics, of arrays alone
    "budget",  # what a run has used, and may still use
    "types",  # what crosses files
    "text",  # token ids to text
    "seeds",  # random numbers by what they are for
    "shapes",  # lengths that arrays are padded to
    "arguments",  # of the library's functions of arrays
    "methods",  # what tells one method from another
    "config",  # of files and the command line
    "plugins",  # modules of users, by dotted path
    "settings",  # every setting
    "data_settings",  # those about problems and rewards
    "machine_settings",  # those about machines, files and logs
    "ranges",  # of the values of settings
    "errors",  # for people
]
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


def tree_of(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


def layer_of(module: str) -> str:
    """'vinejax.rl.losses' -> 'rl'; the package itself, with its version and lazy names: ''."""
    return (module.split(".") + [""])[1]


def imports_of(name: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also inside functions and for type checkers."""
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import"
            module = node.module or ""
            for alias in node.names:  # `from vinejax import x` may mean a module
                is_package = (
                    module == "vinejax" or (ROOT.parent / module.replace(".", "/")).is_dir()
                )
                yield node.lineno, f"{module}.{alias.name}" if is_package else module


def test_every_file_has_a_layer():
    found = {name.split("/")[0].removesuffix(".py") for name in NAMES} - {"__init__"}
    assert found == set(LAYERS)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__init__.py"])
def test_imports_point_down(name: str):
    own = name.split("/")[0].removesuffix(".py")
    below = LAYERS[LAYERS.index(own) :] if "/" in name else LAYERS[LAYERS.index(own) + 1 :]
    for line, module in imports_of(name):
        if module.split(".")[0] == "vinejax" and layer_of(module) in LAYERS:
            assert layer_of(module) in below, f"{name}:{line}: imports {module}, which is above it"


def test_packages_have_no_cycles():
    """Within a layer too: no module is imported, however indirectly, by one that it imports."""
    modules = {f"vinejax.{name.removesuffix('.py').replace('/', '.')}": name for name in NAMES}
    edges = {
        module: {other for _, other in imports_of(name) if other in modules and other != module}
        for module, name in modules.items()
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in edges[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in modules:
        visit(module, ())
    assert sum(map(len, edges.values())) > 50


@pytest.mark.parametrize("name", NAMES)
def test_only_the_decoder_imports_flax(name: str):
    packages = {module.split(".")[0] for _, module in imports_of(name)}
    assert ("flax" in packages) == (name == "model/decoder.py")
    assert "torch" not in packages and "tensorflow" not in packages
    if name.startswith("rl/"):
        assert packages <= {"jax", "jaxtyping", "numpy", "math", "collections", "vinejax"}


@pytest.mark.parametrize("name", NAMES)
def test_files_and_functions_are_small(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{name}:{node.lineno}: {node.name} has {length} lines"
