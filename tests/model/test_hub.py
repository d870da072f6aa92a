"""Models by hub name and in object stores, without a network: a real cache, a store in memory."""

import dataclasses
import json
import socket
import types
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import numpy as np
import pytest
from etils import epath
from helpers.bucket import Bucket, empty_bucket
from helpers.model_oracles import Model
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from vinejax.core.errors import ModelError
from vinejax.model.hf import hub
from vinejax.model.hf.weights import load_pretrained, load_tokenizer, save_pretrained
from vinejax.training.start_weights import load_unweighted


def assert_same(found: tuple, model: Model) -> None:
    cfg = dataclasses.replace(model.decoder.cfg, eos_ids=(model.tokenizer.eos_token_id,))
    assert found[0] == dataclasses.replace(model.decoder, cfg=cfg)
    jax.tree.map(np.testing.assert_array_equal, found[1], model.params)
    assert found[2].get_vocab() == model.tokenizer.get_vocab()


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was touched"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))


def test_a_folder_needs_no_network(tiny, tmp_path, monkeypatch, no_network):
    """A local folder counts even if its path looks like a hub name and the hub is online."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    save_pretrained("owner/model", *tiny)
    assert_same(load_pretrained("owner/model"), tiny)


def test_a_name_is_found_in_the_cache_of_the_host(tiny, tmp_path, monkeypatch, no_network):
    """huggingface_hub reads its own layout, with HF_HUB_OFFLINE set."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--tiny-1.0"
    save_pretrained(repository / "snapshots" / "0123abc", *tiny)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    assert_same(load_pretrained("owner/tiny-1.0"), tiny)
    with pytest.raises(ModelError, match="^owner/other: no such model folder, and neither in the"):
        load_pretrained("owner/other")


def test_what_is_downloaded_is_small_files_and_safetensors(monkeypatch, tmp_path):
    asked = []

    def download(name: str, **patterns: list[str]) -> str:
        asked.append((name, patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.find_folder("owner/model") == epath.Path(tmp_path)
    [(name, patterns)] = asked
    files = [
        *("config.json", "tokenizer.json", "chat_template.jinja", "model-00001-of-2.safetensors"),
        "additional_chat_templates/tool_use.jinja",
        *("pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors"),
        "original/params.json",
    ]
    kept = huggingface_hub.utils.filter_repo_objects(files, **patterns)
    assert name == "owner/model" and list(kept) == files[:5]


@pytest.mark.parametrize(
    "error", [LocalEntryNotFoundError, RepositoryNotFoundError, ConnectionError]
)
def test_a_name_that_is_nowhere_is_one_line(error, monkeypatch):
    def fail(*_, **__):
        if error is LocalEntryNotFoundError:
            raise error("Cannot find\nthe file")
        if error is ConnectionError:
            raise error("no\nproxy")
        response: Any = types.SimpleNamespace(headers={}, request=None)
        raise error("401\nRepository Not Found", response=response)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match="^nobody/nothing: no such model folder") as raised:
        load_pretrained("nobody/nothing")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["runs/a/b", "./tiny", "../x", "/nowhere", "a b/c", "gs://x/y"])
def test_paths_are_not_looked_up_on_the_hub(path, monkeypatch, bucket, tmp_path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # where no folder has one of these names
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail(path))
    with pytest.raises(ModelError, match=": no such model folder$"):
        load_pretrained(path)


def test_the_address_of_a_model_on_the_hub_is_one_line():
    path = "https://huggingface.co/owner/name"
    for load in (load_pretrained, load_unweighted):
        with pytest.raises(
            ModelError, match=f"^{path}: no folder is at https://; .* ORG/NAME alone$"
        ):
            load(path)


# --- object stores ---


@pytest.fixture
def bucket(monkeypatch) -> Bucket:
    return empty_bucket(monkeypatch)


def test_a_gguf_file_in_an_object_store_is_to_be_copied(bucket):
    bucket.pipe("models/tiny.gguf", b"GGUF")
    with pytest.raises(ModelError, match="^gs://models/tiny.gguf: a GGUF file must be local; copy"):
        load_pretrained("gs://models/tiny.gguf")


def test_a_folder_in_an_object_store(tiny, bucket):
    save_pretrained("gs://models/tiny", *tiny, max_shard_bytes=20_000)
    names = {Path(name).name for name in bucket.find("models/tiny")}
    assert "model.safetensors.index.json" in names and "tokenizer.json" in names
    assert not [name for name in names if name.endswith(".tmp")]
    assert_same(load_pretrained("gs://models/tiny"), tiny)
    for name in ("chat_template", "additional_chat_templates/tool_use"):
        bucket.pipe(f"models/tiny/{name}.jinja", name.encode())
    templates = {"default": "chat_template", "tool_use": "additional_chat_templates/tool_use"}
    assert load_tokenizer("gs://models/tiny").chat_template == templates
    config = json.loads(bucket.cat("models/tiny/config.json"))
    bucket.pipe("models/tiny/config.json", json.dumps(config | {"vocab_size": 21}).encode())
    with pytest.raises(ModelError, match="^gs://models/tiny/model-00001-of-.*: tensor model.embed"):
        load_pretrained("gs://models/tiny")
