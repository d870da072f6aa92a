"""Tests the folder of a run: its record, and which configuration may continue it."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from etils import epath
from helpers.bucket import empty_bucket
from helpers.paths import REPO

import vinejax
from vinejax.config.load import field_names, from_dict, section_names
from vinejax.core.errors import UserError, WorkdirError
from vinejax.core.sections import Section
from vinejax.core.settings import (
    RENAMED,
    Config,
    DataConfig,
    TopologyConfig,
    as_tree,
    flatten,
    with_fields,
)
from vinejax.model.hf.hub import find_folder
from vinejax.runtime import devices, workdir
from vinejax.runtime.devices import with_row
from vinejax.runtime.workdir import REMOVED, check_workdir, record_run, write_atomic

ROOT = REPO


def record(folder: pathlib.Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def open_workdir(cfg: Config, path: str | os.PathLike) -> epath.Path:
    folder = check_workdir(cfg, path)
    record_run(cfg, folder)
    return folder


def test_records_configuration_and_versions(tmp_path: pathlib.Path):
    cfg = from_dict({"ppo": {"clip": 0.3}, "sample": {"stop": ("a", "b")}})
    folder = open_workdir(cfg, tmp_path / "runs" / "mine")
    assert folder == tmp_path / "runs" / "mine"
    found = record(tmp_path / "runs" / "mine")
    assert set(found) == {"config", "versions", "git_revision"}
    assert from_dict(found["config"]) == cfg
    names = {"vinejax", "python", "jax", "jaxlib", "flax", "optax"}
    names |= {"orbax-checkpoint", "transformers", "numpy"}
    assert set(found["versions"]) == names and all(found["versions"].values())
    assert found["versions"]["vinejax"] == vinejax.__version__
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_relative_paths_become_absolute(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert open_workdir(Config(), "runs/mine") == tmp_path / "runs" / "mine"


def test_a_tilde_is_the_home_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert open_workdir(Config(), "~/runs/mine") == tmp_path / "runs" / "mine"
    assert not (tmp_path / "~").exists()
    assert find_folder("~/runs") == epath.Path(tmp_path / "runs")


def test_the_same_run_is_reopened_and_some_fields_may_change(tmp_path: pathlib.Path):
    open_workdir(Config(), tmp_path)
    open_workdir(Config(), tmp_path)
    changes = {"iterations": 3, "resume": True, "profile": "1:2", "log": {"vines": 0}}
    changes |= {"eval": {"every": 2, "problems": 5}, "checkpoint": {"keep": 1}}
    changes |= {"ppo": {"microbatch": 4}, "rollout": {"slots": 8, "memory_gib": 1.0}}
    changes |= {"env": {"timeout_s": 9.0, "workers": 2}}
    cfg = from_dict(changes)
    open_workdir(cfg, tmp_path)
    assert from_dict(record(tmp_path)["config"]) == cfg


@pytest.mark.parametrize("name", REMOVED)
def test_a_run_with_a_field_that_is_gone_goes_on_if_it_had_the_default(
    name: str, tmp_path: pathlib.Path
):
    section, _, leaf = name.partition(".")
    open_workdir(Config(), tmp_path)
    for value in (REMOVED[name], "another"):
        recorded = record(tmp_path)
        recorded["config"].setdefault(section, {})[leaf] = value
        (tmp_path / "config.json").write_text(json.dumps(recorded))
        if value != "another":
            open_workdir(Config(), tmp_path)
    with pytest.raises(WorkdirError, match=f'{name} was "another", and there is no such'):
        open_workdir(Config(), tmp_path)


@pytest.mark.parametrize("old, new", RENAMED.items())
def test_a_run_with_an_old_name_of_a_field_goes_on(old: str, new: str, tmp_path: pathlib.Path):
    """The old name counts as the new one, so a start with another value is an error."""
    value = {"rollout.flat": "drop", "values.spread": 4}.get(old, 0.5)
    cfg = with_fields(Config(), {new: value})
    open_workdir(cfg, tmp_path)
    renamed = record(tmp_path)
    (section, leaf), new_leaf = old.split("."), new.split(".")[1]
    renamed["config"][section][leaf] = renamed["config"][section].pop(new_leaf)
    (tmp_path / "config.json").write_text(json.dumps(renamed))
    with pytest.raises(WorkdirError, match=f"{new} was "):
        open_workdir(Config(), tmp_path)
    open_workdir(cfg, tmp_path)
    assert record(tmp_path)["config"][section] == json.loads(json.dumps(as_tree(cfg)))[section]


def test_a_run_that_kept_a_journal_goes_on(tmp_path: pathlib.Path):
    """Earlier versions had the folder and the field, which changed no result."""
    open_workdir(Config(), tmp_path)
    recorded = record(tmp_path)
    recorded["config"]["checkpoint"]["journal"] = False
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    entry = tmp_path / "journal" / "3" / "wave.0.npz"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b"kept")
    open_workdir(Config(), tmp_path)
    assert entry.exists() and "journal" not in record(tmp_path)["config"]["checkpoint"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": 1}, "seed was 42 and is now 1"),
        ({"values": {"k": 3}, "seed": 42}, "values.k was 9 and is now 3"),
        ({"values": {"max_states": 3}}, "values.max_states was null and is now 3"),
        ({"sample": {"stop": ("a",)}}, 'sample.stop was [] and is now ["a"]'),
        (
            {"seed": 1, "values": {"k": 3}},
            "seed was 42 and is now 1, values.k was 9 and is now 3; set them back to resume",
        ),
        (
            {
                "values": {"k": 3, "every": 9},
                "ppo": {"clip": 0.3, "epochs": 9, "gamma": 0.5, "minibatch": 9},
                "seed": 1,
                "kl": {"coef": 1.0},
                "sample": {"top_k": 9},
            },
            "ppo.gamma was 1.0 and is now 0.5, and 1 more fields; set them back",
        ),
        ({"mesh": {"data": 2}, "kl": {"coef": 1.0}}, "kl.coef was 0.0001 and is now 1.0"),
    ],
)
def test_another_run_is_refused(tmp_path: pathlib.Path, fields: dict, message: str):
    open_workdir(Config(), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(WorkdirError) as error:
        open_workdir(from_dict(fields), tmp_path)
    text = str(error.value)
    assert message in text and str(tmp_path) in text and "\n" not in text
    assert (tmp_path / "config.json").read_bytes() == before


def test_settings_of_an_accessory_are_compared(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    class Extra(Section, section="extra"):
        weight: float = 1.0

    def find(_: str, name: str) -> type[Section] | None:
        return Extra if name == "extra" else None

    monkeypatch.setattr(workdir, "contributed_class", find)
    cfg = Config(sections={"extra": Extra(weight=2.0)})
    open_workdir(cfg, tmp_path)
    check_workdir(cfg, tmp_path)
    for other, now in ((Config(), 1.0), (Config(sections={"extra": Extra(weight=3.0)}), 3.0)):
        with pytest.raises(WorkdirError, match=f"extra.weight was 2.0 and is now {now}; set"):
            check_workdir(other, tmp_path)


def test_all_that_a_row_of_meshes_sets_may_change():
    """A start is compared with the values for the last start's devices, before it knows its own."""
    row = TopologyConfig(data=2, fsdp=2, tensor=2, slots=7, memory_gib=1.0, microbatch=2)
    row = dataclasses.replace(row, remat="dots")
    cfg = Config()
    placed = with_row(dataclasses.replace(cfg, meshes={"cpu:8": row}), "cpu:8")
    before, after = dict(flatten(cfg)), dict(flatten(placed))
    changed = {name for name, value in before.items() if after[name] != value}
    assert len(changed) == 1 + len(dataclasses.fields(TopologyConfig))  # and `meshes` itself
    groups = workdir.FREE_GROUPS
    assert all(name in workdir.FREE_FIELDS or f"{name}.".startswith(groups) for name in changed)


def test_a_file_or_folder_may_be_named_in_another_way(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """configs/tiny.py names its model by a path from its own folder."""
    for name in ("start", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)

    def cfg(folder: str) -> Config:
        return from_dict({"model": {"path": folder}, "data": {"path": folder}})

    open_workdir(cfg("start"), tmp_path / "run")
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("./start", str(tmp_path / "start"), "other/../start", "~/start"):
        open_workdir(cfg(folder), tmp_path / "run")
    for folder in ("other", "nowhere", ""):
        with pytest.raises(WorkdirError, match="path was "):
            open_workdir(cfg(folder), tmp_path / "run")
    for name in ("rows.csv", "more.csv"):
        (tmp_path / name).touch()
    open_workdir(Config(data=DataConfig(path="rows.csv")), tmp_path / "of_a_file")
    open_workdir(Config(data=DataConfig(path="~/rows.csv")), tmp_path / "of_a_file")
    with pytest.raises(WorkdirError, match="path was "):
        open_workdir(Config(data=DataConfig(path="more.csv")), tmp_path / "of_a_file")


def test_a_run_goes_on_in_the_dtype_that_it_began_with(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The dtype of 'auto' differs on accelerators; a former default can be set by its name."""
    default, named = Config(), from_dict({"model": {"compute_dtype": "bfloat16"}})
    open_workdir(devices.with_dtype(default), tmp_path / "new")
    check_workdir(from_dict({"model": {"compute_dtype": "float32"}}), tmp_path / "new")
    open_workdir(devices.with_dtype(named), tmp_path / "old")
    with pytest.raises(WorkdirError, match='dtype was "bfloat16" and is now "float32"; set'):
        check_workdir(devices.with_dtype(default), tmp_path / "old")
    check_workdir(devices.with_dtype(named), tmp_path / "old")
    monkeypatch.setattr(devices, "found_devices", lambda: [mock.Mock(platform="tpu")])
    check_workdir(devices.with_dtype(default), tmp_path / "old")
    with pytest.raises(WorkdirError, match='dtype was "float32" and is now "bfloat16"; set'):
        check_workdir(devices.with_dtype(default), tmp_path / "new")
    check_workdir(default, tmp_path / "new")  # to read it


def test_without_resume_a_run_is_refused(tmp_path: pathlib.Path):
    cfg = from_dict({"resume": False})
    open_workdir(cfg, tmp_path)
    with pytest.raises(WorkdirError, match="holds a run; set resume=True"):
        open_workdir(cfg, tmp_path)


def test_a_younger_field_had_its_default(tmp_path: pathlib.Path):
    open_workdir(Config(), tmp_path)
    found = record(tmp_path)
    del found["config"]["values"]["dedup"]
    (tmp_path / "config.json").write_text(json.dumps(found))
    with pytest.raises(WorkdirError, match="values.dedup was true and is now false"):
        open_workdir(from_dict({"values": {"dedup": False}}), tmp_path)
    open_workdir(Config(), tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": 3}', "{}"])
def test_damaged_record(tmp_path: pathlib.Path, text: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WorkdirError, match="is damaged"):
        open_workdir(Config(), tmp_path)
    assert (tmp_path / "config.json").read_text() == text


def test_the_folder_of_a_model_is_not_called_damaged(tmp_path: pathlib.Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(WorkdirError, match="is the folder of a model, and not of a run; choose"):
        open_workdir(Config(), tmp_path)


def files_of(folder: pathlib.Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refusal(folder: pathlib.Path) -> str:
    """The line of the error with which a start ends; the folder is unchanged."""
    before = files_of(folder)
    with pytest.raises(WorkdirError) as error:
        check_workdir(Config(), folder)
    assert "\n" not in str(error.value) and files_of(folder) == before
    return str(error.value)


@pytest.mark.parametrize("name", [*workdir.FOLDERS, *workdir.FILES])
def test_files_in_the_place_of_folders_and_the_reverse(tmp_path: pathlib.Path, name: str):
    open_workdir(Config(), tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if name in workdir.FOLDERS:
        (tmp_path / name).write_text("")
    else:
        (tmp_path / name).mkdir()
    kind = "file" if name in workdir.FOLDERS else "folder"
    assert refusal(tmp_path).startswith(f"{tmp_path}/{name}: is a {kind}, and a run needs")


@pytest.mark.parametrize("name", ["checkpoints", "best", "episodes", "metrics.jsonl"])
def test_a_run_without_its_record_is_refused(tmp_path: pathlib.Path, name: str):
    """Otherwise the run would go on with another configuration, and record that one."""
    if name.endswith("jsonl"):
        (tmp_path / name).write_text("")
    else:
        (tmp_path / name).mkdir()
    assert f"config.json: is missing, so nothing tells which run {name} is of" in refusal(tmp_path)


def test_iterations_without_checkpoints_are_refused(tmp_path: pathlib.Path):
    """An empty folder is no error: the run was stopped before its first checkpoint."""
    open_workdir(Config(), tmp_path)
    line = {"iteration": 0, "step": 20, "stage": "sft"}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    check_workdir(Config(), tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line | {"stage": "train"}) + "\n")
    assert "checkpoints: is missing, and metrics.jsonl has iterations; " in refusal(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    check_workdir(Config(), tmp_path)


def test_an_object_store_has_no_folder_of_checkpoints(monkeypatch: pytest.MonkeyPatch):
    """So what a start finds there does not tell whether it is missing."""
    empty_bucket(monkeypatch)
    folder = epath.Path("gs://bucket/run")
    record_run(Config(), folder)
    write_atomic(folder / "metrics.jsonl", '{"iteration": 0, "stage": "train"}\n')
    assert check_workdir(Config(), folder) == folder


def test_a_start_that_is_killed_keeps_the_record_of_the_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Without it no later start could continue the run."""
    open_workdir(Config(), tmp_path)
    before = record(tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workdir, "write_atomic", die)
    with pytest.raises(KeyboardInterrupt):
        open_workdir(from_dict({"iterations": 3}), tmp_path)
    assert record(tmp_path) == before


def test_a_client_of_an_object_store_may_be_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(_: object) -> None:
        raise ImportError("No module named 'gcsfs'")

    monkeypatch.setattr(workdir, "check_contents", fail)
    with pytest.raises(WorkdirError, match=r"cannot be used \(No module named 'gcsfs'\); choose"):
        check_workdir(Config(), "gs://bucket/run")


def test_folders_that_cannot_be_used(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "/proc/vinejax"):
        with pytest.raises(WorkdirError, match="cannot be used|is not a folder") as error:
            open_workdir(Config(), path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["https://host/run", "hdfs://host/run"])
def test_addresses_are_no_folders(name: str):
    with pytest.raises(UserError, match=f"^{name}: no folder is at {name[:4]}s?://; give a path"):
        check_workdir(Config(), name)


@pytest.mark.parametrize("name", ["seeds=[1,2]", "a\\b", "a*", "a?/run", "gs://bucket/[a]"])
def test_names_with_characters_of_patterns_are_refused(tmp_path: pathlib.Path, name: str):
    """Orbax saves a checkpoint there without its arrays, and raises no error."""
    path = name if "://" in name else tmp_path / name
    with pytest.raises(WorkdirError, match="cannot be restored; choose another --workdir"):
        check_workdir(Config(), path)


def test_checking_writes_nothing(tmp_path: pathlib.Path):
    folder = check_workdir(Config(), tmp_path / "mine")
    assert folder == tmp_path / "mine" and not (tmp_path / "mine").exists()


def test_remote_paths_stay_as_they_are():
    folder = epath.Path("gs://bucket/mine")
    assert str(folder) == "gs://bucket/mine" and workdir.is_remote(folder)
    assert not workdir.is_remote(epath.Path("/tmp/mine"))


def test_atomic_write_keeps_the_old_file_when_it_fails(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    path = epath.Path(tmp_path / "file")
    write_atomic(path, "old")
    monkeypatch.setattr(type(path), "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomic(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_two_writers_of_a_file_do_not_disturb_each_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """As the page of a run that goes on and `--mode=report`."""
    path = epath.Path(tmp_path / "file")
    replace = type(path).replace

    def after_another(unfinished: epath.Path, target: epath.Path) -> None:
        monkeypatch.undo()
        write_atomic(path, "second")
        assert path.read_text() == "second"
        replace(unfinished, target)

    monkeypatch.setattr(type(path), "replace", after_another)
    write_atomic(path, "first")
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["file"]


def test_unfinished_files_of_killed_processes_are_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    names = ["status.json", "episodes/3.jsonl", "episodes/4.jsonl", "alive/1.json"]
    names.append("eval/sets/gsm8k.jsonl")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(type(epath.Path(tmp_path)), "replace", lambda *_: 1 / 0)
            patch.setattr(type(epath.Path(tmp_path)), "unlink", lambda *_, **__: None)
            with pytest.raises(ZeroDivisionError):
                write_atomic(epath.Path(tmp_path / name), "{")
    (tmp_path / "mine.tmp").write_text("of the user")
    left = sorted(path for path in tmp_path.rglob("*.tmp") if path.name != "mine.tmp")
    workdir.remove_unfinished(epath.Path(tmp_path))
    assert len(left) == len(names) and all(path.exists() for path in left)
    for path in (*left, tmp_path / "mine.tmp"):
        os.utime(path, (0, 0))
    with monkeypatch.context() as patch:
        refused: list[epath.Path] = []

        def unlink(path: epath.Path) -> None:
            if path.parent.name == "episodes" and not refused:
                refused.append(path)
                raise PermissionError("Operation not permitted")
            os.unlink(path)

        patch.setattr(type(epath.Path(tmp_path)), "unlink", unlink)
        workdir.remove_unfinished(epath.Path(tmp_path))
    assert {*refused} == {*tmp_path.rglob("*.jsonl.*.tmp")}, "that of another user"
    workdir.remove_unfinished(epath.Path(tmp_path))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.tmp"]


def test_git_revision_is_of_this_checkout_or_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    module = tmp_path / "vinejax" / "__init__.py"
    module.parent.mkdir()
    module.write_text("")
    monkeypatch.setattr(workdir, "__file__", str(module.with_name("runtime") / "workdir.py"))
    assert workdir.git_revision() is None  # no checkout
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert workdir.git_revision() is None  # no commit
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert workdir.git_revision() == head.stdout.strip()
    module.write_text("edited")
    assert workdir.git_revision() == head.stdout.strip() + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert workdir.git_revision() is None  # no git


def test_an_archive_has_the_revision_that_git_wrote_into_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """tpu/setup.sh and the image of tpu/Dockerfile run from one."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "vinejax").mkdir(parents=True)
    (source / "vinejax" / "__init__.py").write_text("")
    for name in (".gitattributes", workdir.REVISION):
        shutil.copy(ROOT / name, source)
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    archive = subprocess.check_output([*git, "archive", "HEAD"])
    copy.mkdir()
    subprocess.run(["tar", "-x", "-C", str(copy)], input=archive, check=True)
    monkeypatch.setattr(workdir, "__file__", str(copy / "vinejax" / "runtime" / "workdir.py"))
    assert workdir.git_revision() == head
    shutil.rmtree(source / ".git")  # a copy of the checkout, where nothing was filled in
    monkeypatch.setattr(workdir, "__file__", str(source / "vinejax" / "runtime" / "workdir.py"))
    assert workdir.git_revision() is None


def test_does_not_import_jax():
    code = "import sys, vinejax.runtime.workdir; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_allowed_changes_name_real_fields():
    groups = {field.name for field in dataclasses.fields(Config)} | {*section_names()}
    assert groups >= {group[:-1] for group in workdir.free_groups()}
    assert {*workdir.free_groups()} >= {*workdir.FREE_GROUPS}
    assert {*field_names()} >= workdir.FREE_FIELDS


def test_the_page_on_interruptions_lists_all_that_may_change():
    page = (REPO / "docs/faults.md").read_text(encoding="utf-8")
    section = page.partition("may change on resume\n")[2].partition("\nWith any other")[0]
    listed = re.findall(r"`([\w.]+)`", section)
    names = {name.rpartition(".")[2] for name in workdir.FREE_FIELDS}
    names |= {group[:-1] for group in workdir.free_groups()}
    assert {name.rpartition(".")[2] for name in listed} >= names


def test_an_object_is_written_at_once(monkeypatch: pytest.MonkeyPatch):
    """A store would copy a file to rename it, and shows a file only when it is complete."""
    store = empty_bucket(monkeypatch)
    monkeypatch.setattr(store, "mv", lambda *_, **__: pytest.fail("renamed"))
    write_atomic(epath.Path("gs://bucket/a.json"), "text")
    write_atomic(epath.Path("gs://bucket/b.npz"), b"\0\1")
    found = {path: store.cat(path) for path in store.find("bucket")}
    assert list(found.values()) == [b"text", b"\0\1"], found
