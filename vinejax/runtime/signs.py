"""Signs of life of this process: how far it is, for the watchdog."""

import dataclasses
import time


@dataclasses.dataclass
class Signs:
    """The last sign. Processes of one run give the same signs in the same order."""

    stage: str = ""  # that began last
    count: int = 0
    at: float = dataclasses.field(default_factory=time.monotonic)


LAST = Signs()


def sign(stage: str | None = None) -> None:
    """A chunk of decoding or a minibatch begins, or a stage of this name."""
    LAST.count += 1
    LAST.at = time.monotonic()
    if stage is not None:
        LAST.stage = stage
