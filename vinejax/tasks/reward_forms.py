"""How reward functions of TRL and of verl expect to be called, and the chats that they receive."""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vinejax.core.types import Problem
else:  # vinejax.core.types imports jax, which takes seconds; commands are checked without it
    Problem = Any

BATCH_PARAMETERS = {"prompts", "completions", "completion_ids"}  # parameters of TRL's functions
# Parameters that only a function of one response has; `solution_str` is verl's.
SINGLE_PARAMETERS = {"problem", "response", "solution_str"}
MOST_FUNCTIONS = 50  # functions that are searched for the names of their arguments
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Message(str):
    """What `chat[i]` returns: character i of a `Chat`, with the fields of message i.

    Indexed by a string, such as 'content', it returns that field of the message.
    """

    fields: Mapping[str, str]

    def __getitem__(self, key: Any) -> Any:
        return self.fields[key] if isinstance(key, str) else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)


class Chat(str):
    """A text that can be indexed as TRL's messages: `chat[0]["content"]`.

    Functions get it where TRL passes a text, because they are also written for messages. The text
    of the string is that of the last message.
    """

    messages: Sequence[Mapping[str, str]]

    @classmethod
    def of(cls, text: str, role: str, context: Iterable[tuple[str, str]] = ()) -> "Chat":
        """The chat of the (role, text) messages in `context`, then the message (`role`, `text`)."""
        chat = cls(text)
        chat.messages = messages_of(text, role, context)
        return chat

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, int) or not -len(self.messages) <= key < len(self.messages):
            return super().__getitem__(key)
        message = Message(super().__getitem__(slice(key, key + 1 or None)))
        message.fields = self.messages[key]
        return message


class Messages(list[dict[str, str]]):
    """TRL's messages: a list of dicts with 'role' and 'content'.

    `text in messages` tells whether the last message contains the text.
    """

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return bool(self) and item in self[-1]["content"]
        return super().__contains__(item)


def messages_of(text: str, role: str, context: Iterable[tuple[str, str]] = ()) -> Messages:
    """The (role, text) messages in `context`, then the message (`role`, `text`)."""
    messages = (*context, (role, text))
    return Messages({"role": author, "content": content} for author, content in messages)


def is_conversation(problem: Problem) -> bool:
    """Whether a column of the problem's row is a chat that ends with its question.

    For such data TRL passes prompts and completions as messages, and else as texts.
    """
    for value in problem.columns.values():
        if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
            content = value[-1].get("content")
            if value[-1].get("role") == "user" and isinstance(content, str):
                if content.strip() == problem.question:
                    return True
    return False


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function; `**kwargs` alone if Python does not know them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # it is written in C
        return [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]


def is_batched(function: Callable[..., Any]) -> bool:
    """Whether a function takes many responses at once, as TRL's reward functions do.

    Its named parameters decide. If these do not, but it has `**kwargs`, then the names decide that
    it and the functions that it wraps use: the first function that uses some, and in it those of
    TRL before the others. A function of which nothing is known is TRL's.
    """
    parameters = parameters_of(function)
    named = {x.name for x in parameters if x.kind not in VARIADIC}
    if named & BATCH_PARAMETERS:
        return True
    if named & SINGLE_PARAMETERS or all(x.kind is not x.VAR_KEYWORD for x in parameters):
        return False
    for code in codes_used(function):
        names = {*_arguments(code), *_texts_in(code)}
        if names & BATCH_PARAMETERS:
            return True  # its other names may be columns, such as TRL's column `problem`
        if names & SINGLE_PARAMETERS:
            return False
    return not named


def forwarded_names(function: Callable[..., Any]) -> set[str] | None:
    """The arguments that a function of `*args, **kwargs` can only pass on; None if there are more.

    They are the parameters of the function of one response that it wraps.
    """
    if not all(x.kind in VARIADIC for x in parameters_of(function)):
        return None
    first, *others = codes_used(function)
    if set(_texts_in(first)) & SINGLE_PARAMETERS:
        return None  # it reads arguments itself
    for code in others:
        if SINGLE_PARAMETERS & {*_arguments(code)}:
            takes_more = code.co_flags & inspect.CO_VARKEYWORDS
            return None if takes_more else {*_arguments(code)}
    return None


def codes_used(function: Callable[..., Any]) -> Iterator[types.CodeType]:
    """The code of a function, then of the functions that it uses.

    These are functions that it wraps, as a closure, a partial function or an object does, and
    functions of its module that it names.
    """
    pending: list[Any] = [function]
    seen: set[int] = set()
    while pending and len(seen) < MOST_FUNCTIONS:
        used = pending.pop(0)
        if not callable(used) or id(used) in seen:
            continue
        seen.add(id(used))
        code = getattr(used, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code
        pending += _functions_behind(used, code)


def _arguments(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _texts_in(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant)


def _functions_behind(function: Callable[..., Any], code: Any) -> Iterator[Any]:
    """What a function wraps, and the functions that its code names."""
    yield getattr(function, "__wrapped__", None)
    if isinstance(function, functools.partial):
        yield function.func
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an empty cell
            pass
    if isinstance(code, types.CodeType):
        scope = getattr(function, "__globals__", {})
        yield from (x for x in map(scope.get, code.co_names) if isinstance(x, types.FunctionType))
    elif not isinstance(function, type):
        yield type(function).__call__
        yield from getattr(function, "__dict__", {}).values()
