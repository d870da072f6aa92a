"""Counts of an engine's work, and the times that its host takes."""

import dataclasses


@dataclasses.dataclass
class EngineStats:
    """Counts since the engine was made. A slot-step is one slot in one decode step."""

    calls: int = 0  # calls of `stream` and `grow` that had something to compute
    prefill_tokens: int = 0
    decoded_tokens: int = 0
    restarted_tokens: int = 0  # decoded tokens of branches that restarted for lack of a page
    repeated_tokens: int = 0  # tokens that branches accepted from the prefill of their trunks
    useful_tokens: int = 0  # tokens of the returned continuations; none after a stop string
    decode_steps: int = 0  # sum over chunks of the most steps that a shard took
    slot_steps: int = 0
    queued_tokens: int = 0  # decoded while some branch waited for a slot or a page
    queued_slot_steps: int = 0  # slot-steps while some branch waited
    compiles: int = 0
    prefill_s: float = 0.0  # prefill of the first trunks; later ones overlap with decoding
    wait_s: float = 0.0  # the host's waits for the devices
    host_s: float = 0.0  # the host's work on traces and texts, and the caller's on branches
    cache_bytes: int = 0  # most bytes of keys and values on one device since the last `mark`

    @property
    def slot_utilisation(self) -> float:
        """The fraction of slot-steps that produced a token."""
        return self.decoded_tokens / max(self.slot_steps, 1)

    @property
    def queued_utilisation(self) -> float:
        """The fraction of queued slot-steps that produced a token.

        A slot-step is queued if some branch waits for a slot or for a page during the step.
        """
        return self.queued_tokens / max(self.queued_slot_steps, 1)

    def mark(self) -> "EngineStats":
        """A copy of the counts, to be passed to `minus` later.

        Also sets `self.cache_bytes` to 0, so that it covers only the phases after this call.
        """
        earlier = dataclasses.replace(self)
        self.cache_bytes = 0
        return earlier

    def minus(self, earlier: "EngineStats") -> "EngineStats":
        """The counts since `earlier`, a copy from `mark` or dataclasses.replace."""
        now, then = dataclasses.asdict(self), dataclasses.asdict(earlier)
        since = {name: count - then[name] for name, count in now.items()}
        return EngineStats(**since | {"cache_bytes": self.cache_bytes})
