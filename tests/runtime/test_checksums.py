"""Tests that checksums of checkpoints find every change, and report no other."""

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from etils import epath

from vinejax.runtime import checksums
from vinejax.runtime.checksums import (
    CHUNK,
    ChecksumRecord,
    find_damage,
    read_checksums,
    replace_file,
    write_checksums,
)

ITEMS = ("params", "optimizer", "meta")


def make_step(folder: pathlib.Path, parts: int = 1) -> epath.Path:
    """A folder `7` with files like a checkpoint's, and the checksum files of `parts` processes."""
    step = folder / "7"
    for name, size in {"params/d/a": CHUNK + 5, "params/_METADATA": 40, "optimizer/b": 9}.items():
        (step / name).parent.mkdir(parents=True, exist_ok=True)
        (step / name).write_bytes(np.random.default_rng(size).bytes(size))
    (step / "meta").mkdir()
    (step / "meta" / "metadata").write_text('{"done": 7}')
    (step / "commit_success.txt").write_text("")
    for part in range(parts):
        write_checksums(epath.Path(step), 7, part, parts)
    return epath.Path(step)


def recorded(step: epath.Path) -> ChecksumRecord:
    found = read_checksums(step)
    assert found is not None
    return found


def damage_of(step: epath.Path, items: tuple[str, ...] = ITEMS) -> str | None:
    """The damage that a start finds, as a line, whichever function raises it."""
    try:
        found = read_checksums(step)
    except ValueError as error:
        return str(error)
    return "no checksums" if found is None else find_damage(step, found, items)


@pytest.mark.parametrize("parts", [1, 3])
def test_every_file_is_in_the_record_and_unchanged(tmp_path: pathlib.Path, parts: int):
    step = make_step(tmp_path, parts)
    files = {p.relative_to(step).as_posix() for p in pathlib.Path(step).rglob("*") if p.is_file()}
    own = {f"checksums.{part}-of-{parts}.json" for part in range(parts)}
    found = recorded(step)
    assert found.iteration == 7 and found.files.keys() == files - own and own <= files
    assert find_damage(step, found, ITEMS) is None
    (step / "params/_METADATA").write_text("x")  # each of several processes reads a part
    damage = [find_damage(step, found, ITEMS, part, 3) for part in range(3)]
    assert [x for x in damage if x] == ["params/_METADATA is not as it was saved"]


@pytest.mark.parametrize("parts", [1, 3])
def test_a_file_is_replaced_and_a_kill_meanwhile_is_no_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, parts: int
):
    step, name = make_step(tmp_path, parts), "meta/metadata"
    replace_file(step, name, '{"done": 7, "evaluated": 7}')
    assert damage_of(step) is None and name in recorded(step).files
    assert json.loads((step / name).read_text()) == {"done": 7, "evaluated": 7}
    for num_written in (0, 1):
        killed = epath.Path(shutil.copytree(step, tmp_path / str(num_written) / "7"))
        written: list[epath.Path] = []

        def write(path: epath.Path, content: str, n: int = num_written, to: Any = written) -> None:
            if len(to) == n:
                raise KeyboardInterrupt
            to.append(path)
            path.write_text(content)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(checksums, "write_atomic", write)
            replace_file(killed, name, '{"done": 7}')
        assert damage_of(killed) == "no checksums" and written == [killed / name][:num_written]


def test_every_flipped_bit_and_truncated_file_is_found(tmp_path: pathlib.Path):
    """Flips every bit of a small file and of the checksum file, and some bits of a large one."""
    step = make_step(tmp_path)
    for path in [path for path in pathlib.Path(step).rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        rng = np.random.default_rng(len(whole))
        bits = range(8 * len(whole)) if len(whole) < 20 else rng.integers(8 * len(whole), size=40)
        for bit in bits:
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert damage_of(step), (path, bit)
        for size in {0, len(whole) // 2, len(whole) - 1} - {len(whole)}:
            path.write_bytes(whole[: max(size, 0)])
            assert damage_of(step) or not whole, (path, size)
        path.unlink()
        assert damage_of(step), path
        path.write_bytes(whole)
    assert damage_of(step) is None


def test_a_copy_under_another_number_is_found(tmp_path: pathlib.Path):
    step = make_step(tmp_path)
    other = epath.Path(shutil.copytree(step, tmp_path / "9"))
    assert damage_of(other) == "it was saved as 7"


def test_other_items_are_not_read(tmp_path: pathlib.Path):
    step = make_step(tmp_path)
    shutil.rmtree(step / "optimizer")
    assert damage_of(step, ("params", "meta")) is None
    damage = damage_of(step)
    assert damage is not None and damage.startswith("optimizer/b: No such file")


def test_a_record_that_is_not_whole_is_none(tmp_path: pathlib.Path):
    """A process died before it wrote its part, or the parts are of two saves."""
    step = make_step(tmp_path, parts=2)
    one = step / "checksums.1-of-2.json"
    text = one.read_text()
    one.unlink()
    assert read_checksums(step) is None
    one.write_text(text.replace('"iteration": 7', '"iteration": 8'))
    assert damage_of(step) == "checksums.1-of-2.json is not as it was written"
    write_checksums(step, 8, 1, 2)
    assert "several iterations" in str(damage_of(step))
    one.write_text(json.dumps([1]))
    assert damage_of(step) == "checksums.1-of-2.json is not as it was written"
