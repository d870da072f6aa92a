"""What a configuration must refuse: the class and the field of the error, in one line."""

import contextlib
from collections.abc import Iterator

import pytest

from vinejax.core.errors import ConfigError


@contextlib.contextmanager
def refuses(field: str) -> Iterator[pytest.ExceptionInfo[ConfigError]]:
    """Fails unless the block raises a ConfigError for this field, whose text is one line."""
    with pytest.raises(ConfigError) as error:
        yield error
    assert error.value.field == field
    assert str(error.value).startswith(field) and "\n" not in str(error.value)
