"""Where a model is: a folder, a folder in an object store, or a name on the Hugging Face hub."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator

from etils import epath

from vinejax.errors import ModelError

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # 'gpt2', 'deepseek-ai/deepseek-math-7b-base'
# Weights in safetensors alone; Mistral's consolidated* are the same weights once more.
WANTED = ["*.safetensors", "*.json", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def find_folder(path: epath.PathLike) -> epath.Path:
    """The folder of a model; a name that is no folder is looked up on the hub.

    What the hub has is downloaded once a host, into the cache of huggingface_hub, which keeps
    processes apart and respects HF_HUB_OFFLINE. Raises ModelError where there is no such model.
    """
    folder = epath.Path(path)
    try:
        if folder.is_dir():
            return folder
    except ImportError as error:  # a client library for gs://
        raise ModelError(f"{path}: {error}") from None
    name = os.fspath(path)
    if folder.exists() or not HUB_NAME.fullmatch(name) or name.startswith("."):
        raise ModelError(f"{path}: no such model folder")
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return epath.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=WANTED, ignore_patterns=UNWANTED)
        )
    except LocalEntryNotFoundError:
        offline = " (HF_HUB_OFFLINE is set)" if huggingface_hub.constants.HF_HUB_OFFLINE else ""
        raise ModelError(
            f"{name}: no such model folder, and neither in the hub's cache nor to be downloaded"
            f"{offline}; give a folder, or `hf download {name}` first"
        ) from None
    except Exception as error:  # of the HTTP client, which differs between versions
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{name}: no such model folder, nor one on the hub: {reason}") from None


@contextlib.contextmanager
def local_copy(folder: epath.Path) -> Iterator[str]:
    """A path that libraries without gs:// can open, with all files but weights.

    A local folder is its own copy.
    """
    if "://" not in os.fspath(folder):
        yield os.fspath(folder)
        return
    with tempfile.TemporaryDirectory(prefix="vinejax-model-") as copy:
        for file in folder.iterdir():
            if file.suffix not in WEIGHTS and not file.is_dir():
                (epath.Path(copy) / file.name).write_bytes(file.read_bytes())
        yield copy
