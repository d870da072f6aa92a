"""Tests the folder of compiled programs, and that the next process finds them there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from etils import epath
from helpers.refusals import refuses

from vinejax.runtime import compile_cache
from vinejax.runtime.compile_cache import MIN_SECONDS, use_compile_cache

FOLDER, LEAST = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
# A program; then the folder and what was counted.
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from etils import epath
from vinejax.training.announce import programs_line
from vinejax.runtime.compile_cache import use_compile_cache
from vinejax.runtime.compiles import compiles
use_compile_cache(sys.argv[1], epath.Path(sys.argv[2]))
@jax.jit
def program(x):
    for axis in (0, 1) * 12:
        x = jnp.sort(jnp.sin(x @ x), axis=axis)
    return x
program(jnp.ones((64, 64))).block_until_ready()
print(json.dumps([jax.config.values["jax_compilation_cache_dir"], *compiles()]))
print(programs_line(compiles()))
"""


@pytest.fixture(autouse=True)
def _as_before():
    before = {name: jax.config.values[name] for name in (FOLDER, LEAST)}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def folder_for(chosen: str, workdir: Path) -> str | None:
    use_compile_cache(chosen, epath.Path(workdir))
    return jax.config.values[FOLDER]


def in_a_process(chosen: str, home: Path) -> tuple[list, str]:
    """(folder, programs, loaded, seconds) and the line, of a process whose user has this home.

    Programs are kept however fast they were compiled.
    """
    others = ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME")
    env = {k: v for k, v in os.environ.items() if k not in others} | {MIN_SECONDS: "0"}
    command = [sys.executable, "-c", PROGRAM, chosen, str(home / "work")]
    done = subprocess.run(
        command, env=env | {"HOME": str(home)}, capture_output=True, text=True, check=True
    )
    *_, counted, line = done.stdout.splitlines()
    return json.loads(counted), line


def test_the_next_process_finds_the_programs_in_the_users_cache(tmp_path: Path):
    (folder, programs, loaded, seconds), line = in_a_process("auto", tmp_path)
    assert Path(folder).parent == tmp_path / ".cache" / "vinejax" / "compiled"
    assert loaded == 0 < programs and seconds > 0 and not (tmp_path / "work").exists()
    assert line.endswith(f"kept for the next start in {folder}")
    kept = len(list(Path(folder).glob("*-cache")))
    assert 0 < kept <= programs
    (_, again, loaded, _), line = in_a_process("auto", tmp_path)
    assert (again, loaded) == (programs, kept)
    assert line.startswith(f"programs: {kept} of {programs} found in {folder}, ")


@pytest.mark.slow
def test_without_a_cache_nothing_is_written(tmp_path: Path):
    for chosen in ("", "none"):
        (folder, programs, loaded, _), line = in_a_process(chosen, tmp_path)
        assert folder is None and loaded == 0 < programs
        assert line.endswith("not kept for the next start (compile_cache)")
    assert not list(tmp_path.iterdir())


def test_auto_keeps_what_jax_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jax.config.update(FOLDER, str(tmp_path / "given"))
    assert folder_for("auto", tmp_path) == str(tmp_path / "given")
    assert folder_for(str(tmp_path / "named"), tmp_path) == str(tmp_path / "named")
    assert folder_for("gs://bucket/compiled", tmp_path) == "gs://bucket/compiled"
    assert folder_for("none", tmp_path) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert str(folder_for("auto", tmp_path)).startswith(str(tmp_path / "xdg/vinejax/compiled/"))
    jax.config.update(FOLDER, None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)  # a home is each host's own
    assert folder_for("auto", tmp_path / "run") == str(tmp_path / "run" / "compiled")


def test_the_time_of_jaxs_own_variable_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jax.config.update(LEAST, 7.0)
    monkeypatch.setenv(compile_cache.MIN_SECONDS, "7")
    folder_for(str(tmp_path), tmp_path)
    assert jax.config.values[LEAST] == 7.0
    monkeypatch.delenv(compile_cache.MIN_SECONDS)
    folder_for(str(tmp_path), tmp_path)
    assert jax.config.values[LEAST] == compile_cache.LEAST_S


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    (tmp_path / "file").write_text("")
    with refuses("compile_cache"):
        folder_for(str(tmp_path / "file" / "compiled"), tmp_path)
    with refuses("compile_cache") as refused:
        folder_for("https://example.org/a", tmp_path)
    assert "https://example.org/a: no folder is at https://; give" in str(refused.value)
    jax.config.update(FOLDER, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert folder_for("auto", tmp_path) is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("compile_cache: ") and line.endswith("compiled anew at every start")


def test_programs_that_were_not_used_for_long_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A file system may keep no time of the last read. The folder is shared by processes."""
    folder = tmp_path / "compiled"
    folder.mkdir()
    times = {f"{age}-cache": (1e9 - age, 1e9 - age) for age in range(5)}
    times |= {"read-cache": (2e9, 1), "written-cache": (1, 2e9)}
    for name, at in times.items():
        (folder / name).write_bytes(bytes(10))
        os.utime(folder / name, at)
    (folder / "tuning").mkdir()
    os.utime(folder / "tuning", (1, 1))
    (folder / "deleted-cache").symlink_to("nothing")  # has no size or time, as a deleted file
    unlink = Path.unlink

    def after_another(file: Path, **options: bool) -> None:
        unlink(file)
        unlink(file, **options)

    monkeypatch.setattr(Path, "unlink", after_another)
    monkeypatch.setattr(compile_cache, "MOST_BYTES", 45)
    monkeypatch.setattr(compile_cache, "_users_folder", lambda: epath.Path(folder))
    jax.config.update(FOLDER, None)
    folder_for("auto", tmp_path)
    kept = ["0-cache", "1-cache", "deleted-cache", "read-cache", "tuning", "written-cache"]
    assert sorted(file.name for file in folder.iterdir()) == kept
    # Only the user's cache folder is kept small: others may have other users or a purpose.
    monkeypatch.setattr(compile_cache, "MOST_BYTES", 0)
    folder_for(str(folder), tmp_path)
    jax.config.update(FOLDER, None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    folder_for("auto", tmp_path)
    assert sorted(file.name for file in folder.iterdir()) == kept
