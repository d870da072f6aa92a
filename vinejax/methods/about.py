"""The texts about methods, for `--help method` and for the tables of two pages.

docs/methods.md has the core's methods, and vinejax/contrib/methods/README.md the contributed ones.

A text is the docstring of a method's module, or `about` in its record. It has a title, an indented
equation, prose, and paragraphs that begin with 'Source:' and 'Departs:'. The needs of a method and
its own defaults are read from the record.
"""

import inspect
import re
import sys
from typing import NamedTuple

from vinejax.core.accessories import contributed_module
from vinejax.core.settings import Config
from vinejax.methods.base import Method
from vinejax.methods.known import known_method, method_names
from vinejax.methods.stages import ENTROPY


class About(NamedTuple):
    """The parts of the text about a method, each on one line. A missing part is ''."""

    title: str
    needs: str
    equation: str
    source: str
    departs: str


def about(name: str) -> About:
    """The parts of the text about the method of the package with this name."""
    method = known_method(name)
    assert method is not None, name
    paragraphs = inspect.cleandoc(text_of(name, method)).split("\n\n")

    def labelled(label: str) -> str:
        found = [x for x in paragraphs if x.startswith(label)]
        return " ".join(found[0].removeprefix(label).split()) if found else ""

    lines = [x for text in paragraphs if text.startswith("    ") for x in text.splitlines()]
    equation = "; ".join(re.sub(" {3,}", "; ", line.strip()) for line in lines)
    return About(
        title=" ".join(paragraphs[0].split()),
        needs=", ".join(needs_of(method)),
        equation=equation,
        source=labelled("Source:"),
        departs=labelled("Departs:"),
    )


def text_of(name: str, method: Method) -> str:
    """The text about a method.

    For a contributed method this is the docstring of its module. For a method of the core it is
    `about` in the record, or else the docstring of the module of `credit` or `iteration`.
    """
    if module := contributed_module("METHODS", name):
        return module.__doc__ or ""
    function = method.credit or method.iteration
    return method.about or sys.modules[function.__module__].__doc__ or ""


def needs_of(method: Method) -> list[str]:
    """What a method needs besides solutions and rewards, such as 'groups' or 'critic'.

    The list also shows the method's own defaults for `ppo.whiten` and `ppo.clip_high`.
    """
    needs = {
        "groups": "groups" in method.flags,
        "trees": "trees" in method.flags,
        "continuations": method.has_continuations,
        "critic": method.state.has_critic,
        "entropies": ENTROPY in method.state.reads(Config()),
        "whitened": method.defaults.get("ppo.whiten") == "iteration",
        f"ε_high {method.defaults.get('ppo.clip_high')}": "ppo.clip_high" in method.defaults,
    }
    return [need for need, holds in needs.items() if holds]


def help_lines() -> list[str]:
    """The lines of the help: for each method its name and title, its equation and its needs."""
    lines = []
    for name in method_names():
        title, needs, equation, _, _ = about(name)
        lines += [f"{name}: {title}", f"    {equation}"]
        lines += [f"    needs {needs}"] if needs else []
    return lines
