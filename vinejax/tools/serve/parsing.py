"""Checks the JSON of a request, field by field; each error is one line for the client."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from vinejax.core.errors import nearest_hint

T = TypeVar("T")
MAX_DEPTH = 64  # nested lists and objects in a body
MAX_DIGITS = 400  # digits of a number in a body


class RequestError(Exception):
    """A request that cannot be answered: an HTTP status from 400 to 599, and a line that says why.

    `field` is the field of the request that is at fault, if it is one.
    """

    def __init__(self, status: int, message: str, field: str | None = None):
        super().__init__(" ".join(message.split()))
        self.status, self.field = status, field


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a request.

    Raises RequestError for any other body, and for a body with duplicate names, with numbers that
    are not finite or have more than MAX_DIGITS digits, or with more than MAX_DEPTH nested values.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError(400, "the body is not UTF-8 text") from None
    try:
        found = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_not_finite,
            parse_int=_integer,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(400, "the body must be a JSON object")
    _check_depth(found)
    return found


def _check_depth(value: Any) -> None:
    """Raises RequestError if lists and objects are nested more than MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = [x.values() if isinstance(x, dict) else x for x in level]
        level = [x for part in parts for x in part if isinstance(x, dict | list)]
    if level:
        raise RequestError(400, f"the body has more than {MAX_DEPTH} nested values")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)  # a body may have 100,000 names
        twice = next(name for name in found if counts[name] > 1)
        raise RequestError(400, f"the body has {twice[:40]!r} twice")
    return found


def _not_finite(name: str) -> float:
    raise RequestError(400, f"the body has the number {name}, which is not finite")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise RequestError(400, f"the body has a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    if len(digits) > MAX_DIGITS or not math.isfinite(number := float(digits)):
        raise RequestError(400, f"the body has the number {digits[:20]}, which is too large")
    return number


class Fields:
    """The fields of a request, each read once; `check_all_read` refuses those that nobody read."""

    def __init__(self, values: Mapping[str, Any], where: str = ""):
        """`where` is a prefix of the names in errors, such as 'messages[0].'."""
        self._values, self._where, self._read = values, where, set[str]()

    def has(self, name: str) -> bool:
        """Whether the request sets the field to something other than null."""
        return self._values.get(name) is not None

    def read(self, name: str, default: Any = None) -> Any:
        """The value of a field, or `default` if it is absent or null."""
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def error(self, name: str, message: str) -> RequestError:
        """An error whose line begins with the field's name."""
        return RequestError(400, f"{self._where}{name}: {message}", self._where + name)

    def required(self, name: str) -> Any:
        """The value of a field. Raises RequestError if it is absent or null."""
        value = self.read(name)
        if value is None:
            raise self.error(name, "is missing")
        return value

    def text(self, name: str, default: T = None, one_of: Collection[str] = ()) -> str | T:
        """A text; with `one_of`, one of these. Raises RequestError for another value."""
        value = self.read(name, default)
        if value is default:
            return default
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, not {_shown(value)}")
        if one_of and value not in one_of:
            raise self.error(name, f"must be one of {', '.join(map(repr, one_of))}")
        self._check_encodable(name, value)
        return value

    def integer(self, name: str, default: T, low: int, high: int) -> int | T:
        """A whole number from `low` to `high`. Raises RequestError for another value."""
        value = self.read(name, default)
        if value is default:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            message = f"must be a whole number from {low} to {high}, not {_shown(value)}"
            raise self.error(name, message)
        return value

    def number(
        self, name: str, default: float, low: float, high: float, is_open: bool = False
    ) -> float:
        """A number from `low` to `high`; with `is_open`, above `low`. Raises RequestError."""
        value = self.read(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (is_open and value == low):
            words = f"above {low:g} and at most" if is_open else f"from {low:g} to"
            raise self.error(name, f"must be a number {words} {high:g}, not {_shown(value)}")
        return float(value)

    def boolean(self, name: str) -> bool:
        """True or false; an absent field is false. Raises RequestError for another value."""
        value = self.read(name, False)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {_shown(value)}")
        return value

    def texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """A text or a list of up to `most` texts, none of which is empty or too long."""
        value = self.read(name, [])
        value = [value] if isinstance(value, str) else value
        is_right = isinstance(value, list) and all(isinstance(text, str) for text in value)
        if not is_right or len(value) > most:
            raise self.error(name, f"must be a text, or a list of at most {most} texts")
        if not all(0 < len(text) <= longest for text in value):
            raise self.error(name, f"a text in it is empty or has more than {longest} characters")
        for text in value:
            self._check_encodable(name, text)
        return tuple(value)

    def neutral(self, values: Mapping[str, Callable[[Any], bool] | None]) -> None:
        """Reads fields that this server does not support.

        `values` has, by the name of a field, whether a value changes nothing, so that it may be
        set; None: every value is ignored. Raises RequestError for any other value.
        """
        for name, changes_nothing in values.items():
            value = self.read(name)
            if value is not None and changes_nothing is not None and not changes_nothing(value):
                raise self.error(name, f"{_shown(value)} is not supported; leave it out")

    def check_all_read(self) -> None:
        """Raises RequestError for a field that no other method has read."""
        for name in self._values:
            if name not in self._read:
                message = f"unknown field {name[:40]!r}{nearest_hint(name[:40], self._read)}"
                raise RequestError(400, message, name[:40])

    def _check_encodable(self, name: str, text: str) -> None:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:  # JSON can escape half of a surrogate pair
            raise self.error(name, "has a character that is no valid Unicode") from None


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]}..."
