"""Counts of an engine's work, and the times that its host takes."""

import dataclasses


@dataclasses.dataclass
class EngineStats:
    """Counts since the engine was made. A slot-step is one slot in one decode step."""

    calls: int = 0  # of `stream` and `grow` that had something to compute
    prefill_tokens: int = 0
    decoded_tokens: int = 0
    restarted_tokens: int = 0  # decoded, then given up: a branch began anew for want of a page
    repeated_tokens: int = 0  # of continuations, drawn by their trunk's prefill, not decoded
    useful_tokens: int = 0  # in the continuations handed out: none after a stop string
    decode_steps: int = 0  # the sum over chunks of the most steps that a shard took
    slot_steps: int = 0
    queued_tokens: int = 0  # decoded while some branch waited for a slot or a page
    queued_slot_steps: int = 0  # slot-steps while some branch waited
    compiles: int = 0
    prefill_s: float = 0.0  # of the first trunks; later ones are loaded while others decode
    wait_s: float = 0.0  # the host waits for the devices
    host_s: float = 0.0  # reading traces and texts, and what the caller does with branches
    cache_bytes: int = 0  # the most that keys and values took on one device since the last `mark`

    @property
    def slot_utilisation(self) -> float:
        """The fraction of slot-steps that gave a token."""
        return self.decoded_tokens / max(self.slot_steps, 1)

    @property
    def queued_utilisation(self) -> float:
        """The fraction of slot-steps that gave a token, counting only steps at which some branch
        waited for a slot or a page."""
        return self.queued_tokens / max(self.queued_slot_steps, 1)

    def mark(self) -> "EngineStats":
        """A copy for `minus`; `cache_bytes` begins anew, so earlier work does not count."""
        earlier = dataclasses.replace(self)
        self.cache_bytes = 0
        return earlier

    def minus(self, earlier: "EngineStats") -> "EngineStats":
        """Counts since `earlier`, a copy made with `mark` or dataclasses.replace."""
        now, then = dataclasses.asdict(self), dataclasses.asdict(earlier)
        since = {name: count - then[name] for name, count in now.items()}
        return EngineStats(**since | {"cache_bytes": self.cache_bytes})
