"""Describes fields in words, for `--help FIELD` and `--mode=config`."""

import ast
import inspect
import textwrap
import tokenize
import types
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vinejax.config.load import check_name, section_names, section_of
from vinejax.core.settings import Config, flatten, unset
from vinejax.methods.about import help_lines
from vinejax.methods.compose import method_of

WIDTH = 100
INDENT = "    "


def describe(name: str) -> str:
    """The type, range, default and meaning of a field, or of all fields of a section.

    The meaning is the comment at the field in the source. Raises ConfigError, with the name of the
    nearest field, if `name` is neither a field nor a section.
    """
    sections = {field: kind for field, kind in get_type_hints(Config).items() if _is_section(kind)}
    sections |= {x: kind for x in section_names() if (kind := section_of(x))}
    section, _, leaf = name.rpartition(".")
    if name in sections:
        about = sections[name].__doc__ or ""
        if about.startswith(sections[name].__name__ + "("):  # the class has no docstring
            about = ""
        lines = [*_wrapped(" ".join(about.split()), ""), ""]
        return "\n".join(lines + _fields(sections[name], f"{name}.")).strip()
    check_name(name)
    lines = _fields(sections.get(section, Config), section and f"{section}.", leaf)
    if name == "method":
        for line in help_lines():
            indent = line[: len(line) - len(line.lstrip())]
            lines += _wrapped(line.strip(), INDENT + indent)
    return "\n".join(lines)


def print_config(cfg: Config, workdir: str) -> None:
    """`--mode=config`: prints every field with the value that a run would use.

    The default of a field is printed, too, if this value differs from it.
    A field that says 'method' is printed with the method's own choice.
    """
    method = method_of(cfg)
    resolved = method.resolve(cfg)
    defaults = dict(flatten(unset(resolved))) | {"method": cfg.method}
    for name, value in flatten(resolved):
        differs = "" if value == defaults[name] else f"  # default {defaults[name]!r}"
        print(f"{name} = {value!r}{differs}")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__module__ == Config.__module__


def _fields(kind: type, prefix: str, only: str = "") -> list[str]:
    """Lines that describe the fields of a dataclass, or only the field called `only`."""
    lines = []
    hints, defaults, comments = get_type_hints(kind, include_extras=True), kind(), _comments(kind)
    for name, value in vars(defaults).items():
        if only in ("", name) and name != "sections" and not _is_section(hints[name]):
            lines.append(f"{prefix}{name} = {value!r}")
            lines += _wrapped(_kind(hints[name]), INDENT) + _wrapped(comments[name], INDENT)
    return lines


def _kind(hint: Any) -> str:
    """A type hint in words, such as 'int, must be at least 1; or none'."""
    if rules := getattr(hint, "__metadata__", ()):
        return f"{_kind(hint.__origin__)}, {'; '.join(rule.text for rule in rules)}"
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is types.UnionType or types.NoneType in parts:
        return f"{_kind(next(part for part in parts if part is not types.NoneType))}; or none"
    if origin is None:
        return hint.__name__
    return f"{origin.__name__} of {_kind(parts[-1 if origin is dict else 0])}"


def _comments(kind: type) -> dict[str, str]:
    """Maps each field to its comments in the source, from above the field and in its lines."""
    by_field: dict[str, str] = {}
    for part in reversed(kind.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(part))
        lines = iter(source.splitlines(keepends=True))
        tokens = tokenize.generate_tokens(lambda lines=lines: next(lines, ""))
        comments = {t.start[0]: t for t in tokens if t.type == tokenize.COMMENT}
        (body,) = ast.parse(source).body
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                above = []
                line = node.lineno - 1
                while (
                    line in comments and not comments[line].line[: comments[line].start[1]].strip()
                ):
                    above.insert(0, comments[line].string)
                    line -= 1
                lines_of_field = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                own = [comments[line].string for line in lines_of_field if line in comments]
                by_field[node.target.id] = " ".join(text.strip("# ") for text in above + own)
    return by_field


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
