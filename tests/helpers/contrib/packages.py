"""Stand-ins for packages of extras, for tests that run without them."""

import importlib.machinery
import sys
import types
from typing import Any

import pytest


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> types.ModuleType:
    """Makes `import name` give a module with these members."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for member, value in members.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module
