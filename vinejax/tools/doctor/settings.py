"""The settings of the doctor."""

from typing import ClassVar

from vinejax.core.sections import Section


class DoctorConfig(Section, section="doctor"):
    """`--mode=doctor`, and the same look before the first iteration: see docs/doctor.md."""

    may_change: ClassVar[bool] = True
    before_training: bool = True  # whether a new run is looked at before its first iteration
