"""Writes word problems, with worked solutions, on which a small model learns on a laptop.

    pip install -e '.[real]'
    python benchmarks/real/problems.py data/alice

They are two kinds of the data set `aiw` of reasoning-gym, after "Alice in Wonderland"
(https://arxiv.org/abs/2406.02061): how many sisters a girl's brother has, or female friends a
woman's male friend, which is one more than she has herself. Questions differ in names, numbers and
form. No question is in two files: train (1,200), validation (128), test (400), and 32 for the
supervised start, in a folder of their own (`data.subset='start'`).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import reasoning_gym  # pyright: ignore[reportMissingImports]
from reasoning_gym.logic.aiw import TaskType  # pyright: ignore[reportMissingImports]

KINDS = [TaskType.SIBLINGS, TaskType.FRIENDS]
MOST = 8  # sisters, brothers, friends
# File -> (problems, the seed that they are drawn with).
FILES = {
    "test": (400, 0),
    "validation": (128, 1_000_000),
    "start/train": (32, 3_000_000),
    "train": (1200, 2_000_000),
}
DRAWN = 6  # times as many as are kept: questions repeat


def worked(question: str, answer: int, kind: str) -> str:
    """A solution in two steps that ends in '#### answer'."""
    name, own = question.split()[0], answer - 1
    what, others = "sisters", "brothers"
    if kind == TaskType.FRIENDS.value:
        what, others = "female friends", "male friends"
    steps = f"{name} has {own} {what}."
    return f"{steps}\nHer {others} have {own} + 1 = {answer} {what}, with {name}.\n#### {answer}"


def generate() -> dict[str, list[dict[str, Any]]]:
    """File -> rows with `question` and `answer`, which is worked."""
    seen: set[str] = set()
    files: dict[str, list[dict[str, Any]]] = {}
    for name, (count, seed) in FILES.items():
        rows: list[dict[str, Any]] = []
        for drawn in reasoning_gym.create_dataset(
            "aiw",
            size=DRAWN * count,
            seed=seed,
            max_entities=MOST,
            task_types=KINDS,
            task_type_weights=[0.5, 0.5],
        ):
            if len(rows) == count:
                break
            question, kind = drawn["question"], drawn["metadata"]["task_type"]
            if question in seen:
                continue
            seen.add(question)
            rows.append(
                {"question": question, "answer": worked(question, int(drawn["answer"]), kind)}
            )
        files[name] = rows
    return files | {f"start/{split}": files[split] for split in ("validation", "test")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="made here; it must not exist yet")
    folder = parser.parse_args().folder
    if folder.exists():
        sys.exit(f"{folder} is there already: use it, or name another folder")
    for name, rows in generate().items():
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{folder}: word problems, for --config.data.path")


if __name__ == "__main__":
    main()
