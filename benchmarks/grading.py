"""How many pairs a second the grader takes: cheap exits alone, and a realistic mix.

    python benchmarks/grading.py [--workers=2]

Cheap: plain numbers and equal strings, which no worker sees. Mix: answers of models to GSM8K (nine
pairs in ten are numbers) and answers to competition problems in two spellings, right and wrong.
No pair comes twice, so that the cache has no part in it; starting the workers is not counted.
"""

import argparse
import gzip
import json
import random
import time
from pathlib import Path
from typing import Any

from vinejax.grading import Grader, extract_answer

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "grading"
PAIRS = 40_000


def rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def cheap_pairs() -> list[tuple[str | None, str]]:
    """Numbers in several spellings and expressions that are the same string."""
    pairs: list[tuple[str | None, str]] = []
    for i in range(PAIRS // 4):
        pairs += [(f"{i:,}", str(i)), (f"{i}.0", str(i)), (f"{i}", f"{i + 1}")]
        pairs.append((f"x^{{{i}}}", f"x^{{{i}}}"))
    return pairs


def mixed_pairs() -> list[tuple[str | None, str]]:
    """Every pair of answers in the GSM8K oracle, the answer forms and the near misses, once."""
    pairs: list[tuple[str | None, str]] = [
        (extract_answer(row["solution"], "gsm8k"), row["gold"])
        for row in rows("vineppo_oracle_gsm8k")
    ]
    for name in ("answer_forms", "near_miss_negatives"):
        pairs += [(r["prediction"], r["gold"]) for r in rows(name)]
    pairs = list(dict.fromkeys(pairs))
    random.Random(0).shuffle(pairs)
    return pairs


def measure(name: str, mode: Any, pairs: list[tuple[str | None, str]], workers: int) -> None:
    with Grader(workers=workers, mode=mode) as grader:
        # Two pairs that no cheap rule decides start the workers.
        grader.grade_many([("x^2-1", "(x-1)(x+1)"), ("y^2-1", "(y-1)(y+1)")])
        compared = grader.stats.compared
        start = time.perf_counter()
        grader.grade_many(pairs)
        seconds = time.perf_counter() - start
        share = (grader.stats.compared - compared) / len(pairs)
    print(
        f"{name:6} {mode:10} {len(pairs) / seconds:10,.0f} pairs/s   {len(pairs):6,} pairs, "
        f"{share:.0%} to workers, {grader.stats.timeouts} timeouts, {grader.stats.errors} errors"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Pairs a second of the grader.")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    for mode in ("strict", "reference"):
        measure("cheap", mode, cheap_pairs(), arguments.workers)
        measure("mix", mode, mixed_pairs(), arguments.workers)


if __name__ == "__main__":
    main()
