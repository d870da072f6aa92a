"""Problems that several runs sampled: which the page shows, in which order, whose solutions."""

import json
from pathlib import Path
from typing import Any

from etils import epath
from helpers.tools.fake_run import sample_episode

from vinejax.tools.report.compare.shared_problems import MAX_PROBLEMS, same_problems


def write(folder: Path, iteration: int, rewards: dict[str, list[Any]]) -> None:
    """Solutions of each problem with these rewards."""
    (folder / "episodes").mkdir(parents=True, exist_ok=True)
    lines = []
    for problem, own in rewards.items():
        for reward in own:
            episode = sample_episode(iteration, len(lines), 0.1, 3)
            lines.append(episode | {"problem_id": problem, "reward": reward})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "episodes" / f"{iteration}.jsonl").write_text(text)


def test_the_problems_whose_rewards_differ_most_come_first(tmp_path: Path):
    write(tmp_path / "a", 3, {"p": [1.0, 0.0], "q": [1.0, 1.0], "own": [0.0]})
    write(tmp_path / "b", 3, {"q": [0.0, 0.0], "p": [1.0, 1.0], "other": [1.0, None]})
    write(tmp_path / "a", 4, {"later": [1.0]})  # which no other run has
    write(tmp_path / "b", 5, {"later": [1.0]})
    found = same_problems([epath.Path(tmp_path / x) for x in "ab"], ["a", "<b>"])
    assert found is not None and found.iteration == 3
    assert [shared.problem for shared in found.problems] == ["q", "p"]
    q = found.problems[0]
    rights = [(side.run, side.right) for side in q.sides]
    assert rights == [("a", "2 of 2 right"), ("<b>", "0 of 2 right")]
    assert "s3-2</title>" in q.sides[0].figure, "line 2 is the first of q in a"
    assert "s3-0</title>" in q.sides[1].figure


def test_what_has_nothing_in_common(tmp_path: Path):
    write(tmp_path / "a", 3, {"p": [1.0]})
    write(tmp_path / "b", 3, {"q": [1.0]})
    (tmp_path / "c").mkdir()
    assert same_problems([epath.Path(tmp_path / x) for x in "abc"], [*"abc"]) is None


def test_only_some_problems_are_shown(tmp_path: Path):
    for name in "ab":
        write(tmp_path / name, 0, {f"p{i}": [1.0] for i in range(9)})
    found = same_problems([epath.Path(tmp_path / x) for x in "ab"], [*"ab"])
    assert found is not None and len(found.problems) == MAX_PROBLEMS
