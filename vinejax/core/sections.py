"""Groups of settings outside the core's configuration, which methods and accessories define.

A class `CriticConfig(MethodSettings, section="critic")` with fields is such a group. Users name its
fields `critic.lam` in configuration files and on the command line. `core/accessories.py` finds the
class of a contributed group.
"""

import dataclasses
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, runtime_checkable

S = TypeVar("S", bound="Section")


@runtime_checkable
class Sections(Protocol):
    """The part of a configuration that a `Section` reads."""

    @property
    def sections(self) -> dict[str, Any]: ...


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Section:
    """A group of settings. A subclass with `section=` in its header becomes a frozen dataclass."""

    section: ClassVar[str] = ""
    of_task: ClassVar[bool] = False  # whether only tasks whose `sections` name the group read it
    may_change: ClassVar[bool] = False  # whether a resumed run may have other values

    def __init_subclass__(cls, section: str = "") -> None:
        if section:
            cls.section = section
            dataclasses.dataclass(frozen=True)(cls)

    @classmethod
    def of(cls: type[S], cfg: Sections) -> S:
        """The settings of this class in `cfg`, or the defaults if `cfg` has none."""
        found = cfg.sections.get(cls.section)
        return found if type(found) is cls else cls()

    def changed(self) -> dict[str, Any]:
        """The values of the fields that differ from their defaults, by dotted names."""
        unset = vars(type(self)())
        found = {name: value for name, value in vars(self).items() if value != unset[name]}
        return {f"{self.section}.{name}": value for name, value in found.items()}

    def check(self, cfg: Any) -> None:
        """Raises ConfigError if these settings do not fit the configuration."""

    def check_task(self, task: Any, problems: list[Any]) -> None:
        """Raises ConfigError if these settings do not fit the task or its train problems."""


class MethodSettings(Section):
    """The base class of the settings of a method."""

    def solutions_per_problem(self, cfg: Any) -> int:
        """The largest number of solutions per problem in an iteration."""
        return cfg.rollout.per_prompt
