"""The journal: an entry comes back to the call that it is of, whole, or not at all."""

from pathlib import Path

import numpy as np
import pytest
from etils import epath

from vinejax.core.errors import WorkdirError
from vinejax.runtime import journal as journal_module
from vinejax.runtime.journal import Journal

ARRAYS = {"a": np.arange(5, dtype=np.float32), "b": np.array([[1, 2]], np.int64)}


def written(folder: Path) -> Journal:
    """A journal with two waves and the scores of iteration 3, and an evaluation before it."""
    journal = Journal(epath.Path(folder))
    journal.open("3.validation", "w")
    journal.entry("wave", "v").keep("validation")
    journal.open("3", "w")
    journal.entry("wave", "k0").keep({"n": 0}, **ARRAYS)
    journal.entry("wave", "k1").keep({"n": 1})
    journal.once("scores", "s", lambda: ARRAYS)
    return journal


def at_place(folder: Path, place: str = "3", weights: str = "w") -> Journal:
    journal = Journal(epath.Path(folder))
    journal.open(place, weights)
    return journal


def test_entries_come_back_in_order(tmp_path: Path):
    written(tmp_path)
    journal = at_place(tmp_path)
    first, second = journal.entry("wave", "k0").kept, journal.entry("wave", "k1").kept
    assert first is not None and second is not None
    assert (first.facts, second.facts) == ({"n": 0}, {"n": 1})
    assert first.arrays.keys() == ARRAYS.keys()
    for name, x in ARRAYS.items():
        assert first.arrays[name].dtype == x.dtype
        np.testing.assert_array_equal(first.arrays[name], x)
    scores = journal.once("scores", "s", lambda: pytest.fail("computed again"))
    np.testing.assert_array_equal(scores["a"], ARRAYS["a"])
    assert journal.given == 3
    assert journal.entry("wave", "k2").kept is None and journal.given == 3


def test_the_clock_goes_on_from_where_an_entry_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Kept after 40 s, and on other hosts' or a later process's clock as well; 2 s pass again."""
    now = [100.0]
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: now[0])
    journal = at_place(tmp_path)
    entry = journal.entry("wave", "k")
    now[0] += 40
    entry.keep(None)
    now[0] = 7.0
    again = at_place(tmp_path)
    now[0] += 2
    assert again.entry("wave", "k").kept is not None and again.clock() == 7 + 40
    assert again.entry("wave", "other").kept is None and again.clock() == 7 + 40


@pytest.mark.parametrize(
    ("place", "weights", "kind", "key"),
    [
        ("4", "w", "wave", "k0"),
        ("3.test", "w", "wave", "k0"),
        ("3", "other", "wave", "k0"),
        ("3", "w", "rewards", "k0"),
        ("3", "w", "wave", "k1"),
    ],
)
def test_an_entry_is_not_given_to_another_call(
    tmp_path: Path, place: str, weights: str, kind: str, key: str
):
    written(tmp_path)
    journal = at_place(tmp_path, place, weights)
    assert journal.entry(kind, key).kept is None and journal.given == 0


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "digest", "gone"])
def test_a_damaged_entry_is_computed_again(tmp_path: Path, damage: str):
    written(tmp_path)
    file = tmp_path / "3" / "wave.0.npz"
    content = bytearray(file.read_bytes())
    journal = at_place(tmp_path)
    if damage in ("flipped", "digest"):
        content[0 if damage == "digest" else len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "gone":  # after the journal has looked which entries there are
        file.unlink()
    else:
        file.write_bytes(content[: 0 if damage == "empty" else -1])
    entry = journal.entry("wave", "k0")
    assert entry.kept is None
    entry.keep("anew")
    again = at_place(tmp_path)
    kept = again.entry("wave", "k0").kept
    assert kept is not None and kept[:2] == ("anew", {})
    assert again.entry("wave", "k1").kept is not None


def test_an_unfinished_entry_does_not_count(tmp_path: Path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "wave.0.npz.tmp").write_bytes(b"half")
    assert at_place(tmp_path).entry("wave", "k0").kept is None


def test_finished_iterations_are_forgotten(tmp_path: Path):
    journal = written(tmp_path)
    journal.open("10", "w")
    journal.entry("wave", "k").keep(None)
    journal.forget(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "3", "3.validation"]
    journal.forget(4)
    assert [path.name for path in tmp_path.iterdir()] == ["10"]
    journal.clear()
    assert not tmp_path.exists()
    journal.clear()
    journal.forget(11)


def test_without_a_folder_nothing_is_kept():
    journal = Journal()
    assert not journal
    journal.open("0", "w")
    journal.entry("wave", "k").keep("x")
    assert journal.entry("wave", "k").kept is None
    assert journal.once("scores", "s", lambda: ARRAYS) is ARRAYS
    journal.forget(1)
    journal.clear()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vinejax.runtime.journal.write_atomic", full)
    with pytest.raises(
        WorkdirError, match=r"3.validation/wave\.0\.npz: cannot be written .*No space left"
    ):
        written(tmp_path)
