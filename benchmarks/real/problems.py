"""Writes word problems, with worked solutions, on which a small model learns on a laptop.

    pip install -e '.[real]'
    python benchmarks/real/problems.py data/alice
    python benchmarks/real/problems.py data/legs --set=legs

`alice` has two kinds of the data set `aiw` of reasoning-gym, after "Alice in Wonderland"
(https://arxiv.org/abs/2406.02061): how many sisters a girl's brother has, or female friends a
woman's male friend, which is one more than she has herself. Questions differ in names, numbers and
form. `legs` is `leg_counting` of reasoning-gym: how many legs one to nine animals of each of three
kinds have together.

No question is in two files: train (1,200), validation (128), test (400), and 32 or, of legs, 96 for
the supervised start, in a folder of their own (`data.subset='start'`).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import reasoning_gym  # pyright: ignore[reportMissingImports]
from reasoning_gym.arithmetic.leg_counting import ANIMALS  # pyright: ignore[reportMissingImports]
from reasoning_gym.logic.aiw import TaskType  # pyright: ignore[reportMissingImports]

# File -> (problems, the seed that they are drawn with).
FILES = {
    "test": (400, 0),
    "validation": (128, 1_000_000),
    "start/train": (32, 3_000_000),
    "train": (1200, 2_000_000),
}
STARTS = {"legs": 96}  # problems of start/train, of sets that need more
DRAWN = 6  # times as many as are kept: questions repeat

Row = dict[str, Any]  # with `question` and `answer`, which is worked


def alice(size: int, seed: int) -> Iterator[Row]:
    """Problems of `aiw`, with at most eight sisters, brothers and friends."""
    kinds = [TaskType.SIBLINGS, TaskType.FRIENDS]
    for drawn in reasoning_gym.create_dataset(
        "aiw", size=size, seed=seed, max_entities=8, task_types=kinds, task_type_weights=[0.5, 0.5]
    ):
        question, kind = drawn["question"], drawn["metadata"]["task_type"]
        yield {
            "question": question,
            "answer": worked_alice(question, int(drawn["answer"]), kind),
        }


def worked_alice(question: str, answer: int, kind: str) -> str:
    """A solution in two steps that ends in '#### answer'."""
    name, own = question.split()[0], answer - 1
    what, others = "sisters", "brothers"
    if kind == TaskType.FRIENDS.value:
        what, others = "female friends", "male friends"
    steps = f"{name} has {own} {what}."
    return f"{steps}\nHer {others} have {own} + 1 = {answer} {what}, with {name}.\n#### {answer}"


def legs(size: int, seed: int) -> Iterator[Row]:
    """Problems of `leg_counting`, in one line."""
    for drawn in reasoning_gym.create_dataset(
        "leg_counting", size=size, seed=seed, min_animals=3, max_animals=3, max_instances=9
    ):
        question = " ".join(drawn["question"].split())
        yield {"question": question, "answer": worked_legs(drawn["metadata"]["animals"])}


def worked_legs(animals: dict[str, int]) -> str:
    """A step for each kind of animal, then one for each addition, and '#### answer'."""
    steps = []
    for animal, count in animals.items():
        name = animal if count == 1 else f"{animal}s"
        steps.append(f"{count} {name}: {count} * {ANIMALS[animal]} = {count * ANIMALS[animal]}")
    first, *others = (count * ANIMALS[animal] for animal, count in animals.items())
    total = first
    for number in others:
        steps.append(f"{total} + {number} = {total + number}")
        total += number
    return "\n".join([*steps, f"#### {total}"])


SETS: dict[str, Callable[[int, int], Iterator[Row]]] = {"alice": alice, "legs": legs}


def generate(name: str) -> dict[str, list[Row]]:
    """File -> its rows, of a set."""
    seen: set[str] = set()
    files: dict[str, list[Row]] = {}
    for file, (usual, seed) in FILES.items():
        count = STARTS.get(name, usual) if file == "start/train" else usual
        rows = files[file] = []
        for row in SETS[name](DRAWN * count, seed):
            if len(rows) < count and row["question"] not in seen:
                seen.add(row["question"])
                rows.append(row)
    return files | {f"start/{split}": files[split] for split in ("validation", "test")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="made here; it must not exist yet")
    parser.add_argument("--set", choices=SETS, default="alice", help="which problems")
    options = parser.parse_args()
    folder = options.folder
    if folder.exists():
        sys.exit(f"{folder} is there already: use it, or name another folder")
    for name, rows in generate(options.set).items():
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{folder}: word problems, for --config.data.path")


if __name__ == "__main__":
    main()
