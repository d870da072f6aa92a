"""Makes docs/api.md from the docstrings of the public names.

    python docs/make_api.py

A test compares the page with what this makes.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vinejax
import vinejax.library

PAGE = Path(__file__).with_name("api.md")
WIDTH = 88  # columns of a signature
HEAD = """# The library

All public names of `vinejax`, from their docstrings, which `help(vinejax.NAME)` prints as well.
Made by `python docs/make_api.py`.

Arrays may be NumPy's, JAX's, or lists, and functions of arrays can be compiled and differentiated;
B counts sequences, T tokens, C steps, M rollouts. Errors that a user can mend are of
`vinejax.core.errors.UserError`.
"""
GROUPS = {
    "Runs": ("train", "run", "RunSummary"),
    "Values and advantages": (
        "mc_values",
        "step_advantages",
        "token_advantages",
        "gae",
        "group_advantages",
        "whiten",
    ),
    "Losses": ("ppo_clip", "value_clip", "kl"),
    "Models": ("load_pretrained", "save_pretrained", "apply"),
    "The engine": ("Engine", "Branch", "SampleConfig"),
    "Steps and answers": (
        "split_steps",
        "grade",
        "grade_response",
        "extract_answer",
        "Grader",
        "Verdict",
    ),
}


def page() -> str:
    """The text of docs/api.md."""
    parts = [HEAD]
    for title, names in GROUPS.items():
        parts += [f"## {title}\n", *(section(name) for name in names)]
    return "\n".join(parts)


def section(name: str) -> str:
    """Heading, signature and docstring of a public name; of a class also its public methods."""
    thing = vinejax.library.train if name == "train" else getattr(vinejax, name)
    parts = [f"### {name}\n", described(name, thing)]
    if inspect.isclass(thing):
        methods = {key: x for key, x in vars(thing).items() if not key.startswith("_")}
        for key, method in methods.items():
            if inspect.isfunction(method):
                parts += [f"#### {name}.{key}\n", described(f"{name}.{key}", method)]
    return "\n".join(parts)


def described(name: str, thing: Any) -> str:
    """The signature as Python, and the docstring as it stands."""
    text = inspect.cleandoc(thing.__doc__ or "").replace("  # doctest: +SKIP", "")
    return f"```python\n{signature(name, thing)}\n```\n\n```text\n{text}\n```\n"


def signature(name: str, thing: Any) -> str:
    """The call as the source has it, without `self`."""
    node = definition(thing)
    if isinstance(node, ast.ClassDef):
        fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
        own = [x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"]
        if not own:  # a record
            return wrapped(f"{name}(", [ast.unparse(x) for x in fields], ")")
        node = own[0]
    assert isinstance(node, ast.FunctionDef)
    is_class = node.name == "__init__"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and not is_class else ""
    return wrapped(f"{name}(", parameters(node.args), f"){returns}")


def definition(thing: Callable[..., Any] | type) -> ast.stmt:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))
    return ast.parse(source).body[0]


def parameters(arguments: ast.arguments) -> list[str]:
    """Each parameter with its annotation and default, in order."""
    both = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(both) - len(arguments.defaults)) + arguments.defaults
    found = [parameter(*pair) for pair in zip(both, defaults, strict=True) if pair[0].arg != "self"]
    if arguments.kwonlyargs:
        found.append("*")
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        found += [parameter(*pair) for pair in pairs]
    return found


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}"


def wrapped(start: str, parts: list[str], end: str) -> str:
    """One line, or a line per part where that is too long."""
    line = f"{start}{', '.join(parts)}{end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([start, *(f"    {part}," for part in parts), end])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
