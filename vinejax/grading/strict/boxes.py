"""Finds boxes in LaTeX: the last answer in `\\boxed{..}`, which may have several parts.

Every function takes roughly linear time and never raises.
"""

import re

from vinejax.grading.strict.english import denials, parts

_BOX = re.compile(r"(?<!\\)\\+(?:boxed|fbox|framebox)(?![A-Za-z])")
# The text between boxes of one answer: joiners and markers of a list. No sentence ends there.
_JOINT = re.compile(
    r"(?:\\(?:text|mbox|mathrm)\s*\{|\\q?quad|and\b|or\b|[\s,;&*${}]|\\[()\[\],;!: ])*+"
)
_MARKER = re.compile(r"\.?[ \t]*\n[ \t]*(?:[-•]|\(?[a-z\d]{1,3}[.)])(?=\s)")
# The name of a box, `x =`, which is kept, or a label such as 'the larger is' or 'Case 1:'.
_LABEL = re.compile(
    r"(?:(?<![A-Za-z\\])(?P<name>(?:\\[a-z]+|[A-Za-z]|[A-Z]{2,3})(?:_\{?\w+\}?)?'*(?:\(\w\))?\s*=\s*)"
    r"|(?:\A|[.,;:\n]|\band\b|\bor\b)[\s*-]*(?:(?:and|or)\s+)?"
    r"(?P<words>(?:[\w()-]+ ){1,5}?(?:is|equals)|[A-Za-z]+ [\w()]+:))\s*(?:\\[(\[]|\$)*\s*\Z"
)
MAX_JOINT = 200  # characters between two boxes of one answer
# The contents of placeholders such as `\boxed{}`, `\boxed{your answer}`, <answer>...</answer>.
PLACEHOLDER = re.compile(
    r"(?i)(?:\\(?:text|mbox|mathrm)\s*\{|\\[lc]?dots|\\q?quad|\b(?:your|the|final|answer|here|and)\b"
    r"|[\s{}.…?_]|\\[,;:! ])*+"
)
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SPACES = re.compile(r"\s*")
MAX_BOXES = 4  # boxes nested in each other


def group_end(text: str, start: int) -> int:
    """The index of the brace that closes the brace at `start`; -1 if none does."""
    depth = 0
    for match in BRACE.finditer(text, start):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return -1


def last_boxes(text: str) -> str | None:
    """The contents of the last box and of the boxes joined to it, separated by commas.

    Boxes are joined if only `and`, `or`, punctuation within a sentence, a list's marker or a name
    (`y =`, which is kept) stand between them, if both have labels such as 'the larger is', or if
    they are consecutive parts such as (a) and (b), whose labels are kept. Equal contents appear
    once, unless they are such parts. Placeholders such as `\\boxed{}`, boxes around others, and
    boxes that the text denies never appear. None if no box is left or the last box is unclosed.
    """
    found = last_boxes_to(text)
    return found and found[0]


def last_boxes_to(text: str) -> tuple[str, int] | None:
    """What `last_boxes` returns, and the index at which the last of its boxes ends."""
    boxes = list(_BOX.finditer(text))
    while boxes and (last := _box(text, boxes[-1].end())) is not None:
        end = _end(text, boxes[-1].end(), last)
        is_denied = denials.denies_box(text, boxes[-1].start(), end)
        if not PLACEHOLDER.fullmatch(last) and not is_denied:
            break
        boxes.pop()
    else:
        return None
    contents, names, start = [last], [], boxes[-1].start()
    part_labels: list[parts.Label] = []
    for match in reversed(boxes[:-1]):
        box = _box(text, match.end()) if text.startswith("{", match.end()) else None
        between = text[match.end() + len(box or "") + 2 : start]
        is_around = box is not None and match.end() + len(box) >= start  # \boxed{\boxed{5}}
        if box is None or is_around or len(between) > MAX_JOINT:
            break
        before = text[max(0, match.start() - MAX_JOINT) : match.start()]
        first, second = _LABEL.search(before), _LABEL.search(between)
        part = parts.joined_parts(before, between)
        if not part and not _are_joined(between, first, second):
            break
        part_labels += [part] if part else []
        names[-1:] = [label["name"] if label else None for label in (second, first)]
        contents.append(box)
        start = match.start()
    named = zip(contents, names or [None], strict=True)
    answers = [f"{name or ''}{content.strip()}".strip() for content, name in named][::-1]
    if part_labels:
        return parts.labelled(answers, part_labels[::-1]), end
    return ", ".join(dict.fromkeys(answers)), end


def _end(text: str, at: int, contents: str) -> int:
    """The index after a box whose command ends at `at`."""
    start = text.find(contents, at) if contents else at
    end = start + len(contents)
    return end + text.startswith("}", end)


def _are_joined(between: str, first: re.Match[str] | None, second: re.Match[str] | None) -> bool:
    """Whether two boxes form one answer, judged by the text between them and by their labels.

    `first` and `second` match the labels before the boxes, such as `y =` or 'the larger is'.
    """
    joint = between[: second.start(second.lastgroup or 0)] if second else between
    if not _JOINT.fullmatch(_MARKER.sub(",", joint)):
        return False
    if not second or second["name"]:
        return True
    labels = [label["words"].lower() for label in (first, second) if label and label["words"]]
    return len(set(labels)) == 2 and len({label.split()[0] for label in labels}) == 1


def _box(text: str, end: int) -> str | None:
    start = _SPACES.match(text, end).end()  # pyright: ignore[reportOptionalMemberAccess]
    if start < len(text) and text[start] == "{":
        close = group_end(text, start)
        return None if close < 0 else text[start + 1 : close]
    # Without braces TeX takes one token; people mean all of the text before the dollar sign.
    line = text[start:].split("\n")[0]
    bare = line.split("$")[0] if "$" in line else (line.split() or [""])[0]
    return bare.strip().rstrip(".,;") or None


def inside_boxes(text: str) -> str:
    """The contents of the last boxes, or `text` if it has no box.

    An unclosed box reaches to the end of `text`.
    """
    for _ in range(MAX_BOXES):
        boxes = list(_BOX.finditer(text))
        if not boxes:
            break
        contents = last_boxes(text)
        if contents is None:
            start, end = boxes[-1].span()
            closed = _box(text, end)
            if closed is not None and denials.denies_box(text, start, _end(text, end, closed)):
                break
            contents = text[end:].lstrip().removeprefix("{")
        text = contents
    return text
