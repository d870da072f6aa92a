"""Pairs of answers that strict grading must call the same, or different, in both orders."""

from vinejax.grading.strict.compare import equal_strict

Pairs = list[tuple[str, str]]


def both_ways(pairs: Pairs, are_same: bool) -> Pairs:
    """The pairs, and those turned round, on which strict grading says otherwise."""
    turned = [(b, a) for a, b in pairs]
    return [pair for pair in pairs + turned if equal_strict(*pair) != are_same]
