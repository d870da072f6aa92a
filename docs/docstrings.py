"""A griffe extension for the reference pages: docstrings as this project writes them.

- An example in a docstring has the title `Example:`, or none. Griffe reads `Examples:` only, and
  Markdown would show `>>>` as three nested quotations.
- The fields of a dataclass have comments. They become the section `Attributes:` of the class.
"""

import re
from typing import Any

import griffe

EXAMPLES = "Examples:"
TITLE = re.compile(r"^Example:$", re.MULTILINE)
UNTITLED = re.compile(r"(?<=\n\n)(?=>>> )")
COMMENT = re.compile(r"(?:^|  )# (.*)$")


class OurDocstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_titles(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if "dataclass" not in cls.labels:
            return
        usage = _on_the_command_line(cls)
        fields = [x for x in cls.attributes.values() if "property" not in x.labels]
        described = [(x, comment_of(x)) for x in fields]
        rows = [_row(x, comment) for x, comment in described if comment or usage]
        if not rows:
            return
        before, title, example = (cls.docstring.value if cls.docstring else "").partition(EXAMPLES)
        parts = [before.rstrip(), usage, "\n".join(["Attributes:", *rows]), title + example]
        text = "\n\n".join(filter(None, parts))
        cls.docstring = griffe.Docstring(text, parent=cls, parser="google")


def _on_the_command_line(cls: griffe.Class) -> str:
    """How to set the fields of a section of `Config`; "" for other classes."""
    config = cls.module.members.get("Config")
    sections = config.attributes.values() if isinstance(config, griffe.Class) else ()
    names = [x.name for x in sections if str(x.annotation) == cls.name]
    return f"On the command line: `--config.{names[0]}.FIELD=VALUE`." if names else ""


def with_titles(docstring: str) -> str:
    """The docstring with its example under `Examples:`."""
    if found := UNTITLED.search(docstring):
        before, example = docstring[: found.start()], docstring[found.start() :]
        indented = example.replace("\n", "\n  ")
        return f"{before}{EXAMPLES}\n  {indented}"
    return TITLE.sub(EXAMPLES, docstring)


def comment_of(field: griffe.Attribute) -> str:
    """The comments above a field and behind it."""
    lines = field.lines_collection[field.filepath]
    first, last = field.lineno or 1, field.endlineno or 1
    above: list[str] = []
    while COMMENT.match(lines[first - len(above) - 2].strip()):
        above.insert(0, lines[first - len(above) - 2].strip()[2:])
    return " ".join([*above, *COMMENT.findall(lines[last - 1])])


def _row(field: griffe.Attribute, comment: str) -> str:
    """A line of `Attributes:`, with the field's default."""
    default = "" if field.value is None else f"Default: `{field.value}`."
    return f"  {field.name}: {_sentence(comment)} {default}".rstrip()


def _sentence(comment: str) -> str:
    """The comment with a full stop; its angle brackets and stars are no markup."""
    escaped = comment.replace("<", "&lt;").replace("*", r"\*")
    return escaped + "." if escaped and escaped[-1] not in ".:?!" else escaped
