"""Pushes to a stand-in of the hub: one commit or none, whatever fails on the way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.tools.hub_stand_in import TOKEN, USER, Fault, Hub, connected_hub
from huggingface_hub import constants

from vinejax.tools.hub.upload import (
    WAITS_S,
    HubError,
    checked_name,
    is_data_set,
    is_model,
    push_files,
    retried,
)

# huggingface_hub hands its HTTP client a file in a way that the client calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NAME = "org/model"
OLD = {"model.safetensors": b"old weights", "README.md": b"old card", "notes.txt": b"a user's"}
OLD |= {"adapter_config.json": b"{}", "adapter_model.safetensors": b"old adapters"}
NEW = {
    "model-00001-of-00002.safetensors": b"first part",
    "model-00002-of-00002.safetensors": b"second part",
    "model.safetensors.index.json": b"{}",
    "README.md": b"---\ntags: [vinejax]\n---\nnew card\n",
}
AFTER = {"notes.txt": OLD["notes.txt"]} | NEW


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with connected_hub(monkeypatch) as hub:
        yield hub


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were slept, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    for name, content in NEW.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in NEW}


def test_a_new_repository_gets_all_files_in_one_commit(hub: Hub, files: dict[str, Path]):
    pushed = push_files(files, NAME, "VinePPO")
    assert hub.files(NAME) == NEW and len(hub.commits[NAME]) == 2
    assert pushed == (f"{hub.url}/{NAME}", hub.head(NAME), True)
    assert hub.messages == ["VinePPO"]
    # As in TRL, the hub decides about the visibility: public, or what the organization has set.
    assert [x for x in hub.created[0] if x in ("private", "visibility")] == []


def test_an_older_model_leaves_with_the_same_commit(hub: Hub, files: dict[str, Path]):
    """Beside model.safetensors, transformers would ignore the parts of the new model."""
    hub.add(NAME, OLD)
    push_files(files, NAME, "VinePPO")
    assert hub.files(NAME) == AFTER and len(hub.commits[NAME]) == 3


def test_a_second_push_of_the_same_files_is_no_commit(hub: Hub, files: dict[str, Path]):
    push_files(files, NAME, "VinePPO")
    again = push_files(files, NAME, "VinePPO")
    assert again.commit == hub.head(NAME) and not again.is_new
    assert len(hub.commits[NAME]) == 2 and hub.count("PUT") == 2


FAULTS = {
    "create": Fault("POST /api/repos/create", 500),
    "info": Fault("/revision/main", 429, headers={"Retry-After": "7"}),
    "validation": Fault("/validate-yaml", 502, page="<html>Bad Gateway</html>"),
    "modes": Fault("/preupload/", 503),
    "batch": Fault("/lfs/objects/batch", 500),
    "upload": Fault("PUT /large/", 500),
    "upload dropped": Fault("PUT /large/"),
    "commit": Fault("/commit/main", 503),
    "too many": Fault("/commit/main", 429, headers={"RateLimit": '"api";r=0;t=55'}),
    "dropped": Fault("/commit/main"),
    "answer lost": Fault("/commit/main", is_done=True),
    "gateway": Fault("/commit/main", 504, is_done=True, page="<html>Gateway Time-out</html>"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_pass_are_retried(
    name: str, hub: Hub, files: dict[str, Path], waits: list[float], capsys: Any
):
    """A commit that took effect before its answer was lost is not repeated."""
    hub.add(NAME, OLD)
    hub.faults = [FAULTS[name]]
    pushed = push_files(files, NAME, "VinePPO")
    assert not hub.faults and waits and pushed.is_new and pushed.commit == hub.head(NAME)
    assert hub.files(NAME) == AFTER and len(hub.commits[NAME]) == 3
    output = "".join(capsys.readouterr())
    assert TOKEN not in output and "For more information" not in output
    asked = {"info": 7, "too many": 55}.get(name)
    assert asked is None or waits == [asked]


@pytest.mark.parametrize("where", ["/preupload/", "PUT /large/", "/commit/main"])
def test_a_push_that_fails_for_good_leaves_the_old_state(
    where: str, hub: Hub, files: dict[str, Path], waits: list[float], capsys: Any
):
    hub.add(NAME, OLD)
    hub.faults = [Fault(where, 500)] * 100
    with pytest.raises(HubError, match=f"the push to {NAME} failed: .*500") as caught:
        push_files(files, NAME, "VinePPO")
    assert hub.files(NAME) == OLD and "\n" not in str(caught.value)
    assert "the same command goes on" in str(caught.value)
    assert set(WAITS_S) <= set(waits)
    assert capsys.readouterr().err.count("tries again in") == len(WAITS_S)
    uploads = hub.count("PUT")
    hub.faults = []
    push_files(files, NAME, "VinePPO")
    assert hub.files(NAME) == AFTER
    if where == "/commit/main":  # the large files were there
        assert hub.count("PUT") == uploads


def test_a_commit_of_somebody_else_meanwhile_is_read_again(
    hub: Hub, files: dict[str, Path], waits: list[float]
):
    hub.add(NAME, {})

    def others_commit() -> None:
        hub.before_commit = lambda: None
        hub.add(NAME, {"model.safetensors": b"another model"})

    hub.before_commit = others_commit
    push_files(files, NAME, "VinePPO")
    assert hub.files(NAME) == NEW and waits == [1]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not_repeated(
    status: int, hub: Hub, files: dict[str, Path], waits: list[float]
):
    hub.add(NAME, OLD)
    hub.faults = [Fault("/commit/main", status)]
    with pytest.raises(HubError, match=f"the push to {NAME} failed: "):
        push_files(files, NAME, "VinePPO")
    assert not waits and hub.files(NAME) == OLD


def test_a_closed_organization_is_one_line(hub: Hub, files: dict[str, Path]):
    with pytest.raises(HubError, match="the push to closed/model failed: 403.*rights to create"):
        push_files(files, "closed/model", "VinePPO")


KILLED = """
import pathlib, sys
from vinejax.tools.hub.upload import push_files

folder = pathlib.Path(sys.argv[1])
push_files({file.name: file for file in folder.iterdir()}, sys.argv[2], "killed")
"""


def test_a_push_that_is_killed_before_its_commit_goes_on(hub: Hub, files: dict[str, Path]):
    """The large files are uploaded, the process dies, and a reader sees the old model."""
    hub.add(NAME, OLD)
    folder = os.fspath(next(iter(files.values())).parent)
    environ = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    process = subprocess.Popen([sys.executable, "-c", KILLED, folder, NAME], env=environ)

    def kill() -> None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        raise ConnectionError

    hub.before_commit = kill
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert hub.files(NAME) == OLD and hub.count("PUT") == 2
    hub.before_commit = lambda: None
    push_files(files, NAME, "VinePPO")
    assert hub.files(NAME) == AFTER and hub.count("PUT") == 2


def test_signatures_of_addresses_are_not_shown(capsys: Any, waits: list[float]):
    calls = iter([ConnectionError("for url 'https://s3.host/x?X-Amz-Signature=abc'"), None])

    def call() -> None:
        if (error := next(calls)) is not None:
            raise error

    retried(call, "a push")
    assert "for url 'https://s3.host/x'; tries again in 1 s" in capsys.readouterr().err


# --- before anything is written


def test_a_name_may_lack_the_namespace(hub: Hub):
    assert checked_name("model") == f"{USER}/model"
    assert checked_name("org/model") == "org/model"
    with pytest.raises(HubError, match=r"--push=a/b/c: .*; give ORG/NAME"):
        checked_name("a/b/c")


def test_offline_or_without_a_token_is_one_line(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="--push=org/model: .*[Ii]nvalid"):
        checked_name("org/model")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.fspath(tmp_path / "none"))
    with pytest.raises(HubError, match="no token .* set HF_TOKEN, or run `hf auth login`"):
        checked_name("org/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        checked_name("org/model")


def test_data_sets_and_models_are_looked_up(hub: Hub):
    hub.data_sets = {"openai/gsm8k"}
    assert is_data_set("openai/gsm8k") and not is_data_set("data/alice")
    assert not any(map(is_data_set, ("./rows.jsonl", "../rows.jsonl", "data/a--b.jsonl")))
    assert not is_model("./start")
    hub.add("org/base", OLD)
    assert is_model("org/base") and not is_model("runs/start")
