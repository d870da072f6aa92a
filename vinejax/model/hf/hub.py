"""Finds the folder of a model by a path, local or remote, or by a name on the Hugging Face hub."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator

from etils import epath

from vinejax.core.errors import ModelError, UserError
from vinejax.model.hf.gguf import SUFFIX, converted_folder
from vinejax.runtime.workdir import path_of

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")  # 'gpt2', 'deepseek-ai/deepseek-math-7b-base'
# Weights are downloaded as safetensors only. Mistral's consolidated* repeat the same weights.
DOWNLOADED_FILES = ["*.safetensors", "*.json", "*.jinja"]
IGNORED_FILES = ["*/*.safetensors", "*/*.json", "consolidated*"]
TEMPLATES = "additional_chat_templates/*.jinja"  # chat templates beside the default
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def find_folder(path: epath.PathLike) -> epath.Path:
    """The folder of a model. `path` is a path, which may begin with `~`, or a name on the hub.

    For the path of a GGUF file, the result is `converted_folder(path)`. A model on the hub is
    downloaded once per host into huggingface_hub's cache, which several processes can use safely.
    HF_HUB_OFFLINE forbids downloads. Raises ModelError if there is no such model.
    """
    try:
        folder = path_of(path)
    except UserError as error:
        raise ModelError(f"{error}; a model on the hub is named by ORG/NAME alone") from None
    try:
        if folder.is_dir():
            if "://" not in os.fspath(folder) and not os.access(folder, os.R_OK | os.X_OK):
                raise ModelError(f"{path}: this user may not read the folder")
            return folder
    except ImportError as error:  # the client library for gs:// is missing
        raise ModelError(f"{path}: {error}") from None
    name = os.fspath(path)
    if folder.suffix == SUFFIX and folder.is_file():
        if "://" in name:
            raise ModelError(f"{path}: a GGUF file must be local; copy it to this machine")
        return converted_folder(folder)
    if folder.exists() or not HUB_NAME.fullmatch(name) or name.startswith("."):
        raise ModelError(f"{path}: no such model folder")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return epath.Path(
            snapshot_download(name, allow_patterns=DOWNLOADED_FILES, ignore_patterns=IGNORED_FILES)
        )
    except LocalEntryNotFoundError:
        offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        raise ModelError(
            f"{name}: no such model folder, and neither in the hub's cache nor to be downloaded"
            f"{offline}; give a folder, or `hf download {name}` first"
        ) from None
    except Exception as error:  # from the HTTP client, whose types differ between versions
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{name}: no such model folder, nor one on the hub: {reason}") from None


def cached_config(name: str) -> epath.Path | None:
    """The config.json of the hub's model `name` in huggingface_hub's cache; None without one."""
    if not HUB_NAME.fullmatch(name) or name.startswith("."):
        return None
    from huggingface_hub import try_to_load_from_cache

    with contextlib.suppress(ValueError):  # a name that the hub does not allow, such as 'a..b'
        file = try_to_load_from_cache(name, "config.json")
        return epath.Path(file) if isinstance(file, str) else None
    return None


@contextlib.contextmanager
def local_copy(folder: epath.Path) -> Iterator[str]:
    """Yields a local path of a model's folder, for libraries that cannot open gs:// paths.

    The path is `folder` itself if `folder` is local. Otherwise it is a temporary copy without the
    weights, which exists as long as the context.
    """
    if "://" not in os.fspath(folder):
        yield os.fspath(folder)
        return
    with tempfile.TemporaryDirectory(prefix="vinejax-model-") as copy:
        for file in (*folder.iterdir(), *folder.glob(TEMPLATES)):
            if file.suffix not in WEIGHTS and not file.is_dir():
                target = epath.Path(copy) / file.relative_to(folder)
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(file.read_bytes())
        yield copy
