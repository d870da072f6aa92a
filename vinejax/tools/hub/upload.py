"""Pushes files to a model repository of the Hugging Face Hub in one commit.

`HfApi.upload_folder` is not used: with hf_xet it may divide an upload into several commits, and
between two of them a reader would see a part of a model. `create_commit` first uploads the large
files, which no reader sees, and then makes one commit.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vinejax.core.errors import UserError
from vinejax.version import __version__

Result = TypeVar("Result")
# Seconds before the further attempts of a request. huggingface_hub itself repeats the upload of a
# file, but neither the commit nor the creation of a repository.
WAITS_S = (1, 2, 4, 8, 16, 32)
MOST_WAIT_S = 600  # longest wait that the hub may ask for
# 412: the repository got another commit after we had read it.
TRANSIENT = (408, 412, 429)
# Files of a model in the root of a repository. A transformers that finds model.safetensors beside
# the parts of a newer model would load the older one; one that finds the configuration of adapters
# would load these, and their base model.
OF_A_MODEL = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json"
    r"|adapter_(config\.json|model\.(safetensors|bin))"
    r"|pytorch_model[^/]*\.bin(\.index\.json)?|(generation_config|vinejax)\.json"
    r"|(added_tokens|special_tokens_map)\.json|chat_template\.jinja|tokenizer\.model"
    r"|training_curves\.png"
)


class HubError(UserError):
    """The hub refuses a push, or cannot be reached."""


class Pushed(NamedTuple):
    """The state of a repository after a push."""

    url: str  # of the repository
    commit: str  # its newest commit
    is_new: bool  # False if the repository had all of these files before


def checked_name(repository: str) -> str:
    """ORG/NAME for `repository`, which may be NAME, in the namespace of the token's user.

    Raises HubError if the name is not valid, if HF_HUB_OFFLINE is set, and without a token that the
    hub accepts.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise HubError(f"--push={repository}: {_reason(error)}; give ORG/NAME") from None
    if constants.HF_HUB_OFFLINE:
        message = "HF_HUB_OFFLINE is set, so nothing can be pushed; unset it, or leave out --push"
        raise HubError(f"--push={repository}: {message}")
    if get_token() is None:
        message = "no token of the Hugging Face Hub; set HF_TOKEN, or run `hf auth login`"
        raise HubError(f"--push={repository}: {message}")
    user = retried(lambda: HfApi().whoami(), f"--push={repository}")["name"]
    return repository if "/" in repository else f"{user}/{repository}"


def is_data_set(name: str) -> bool:
    """Whether the hub has a data set of this name that the token may read."""
    return _exists(name, "dataset", f"the data set {name}")


def is_model(name: str) -> bool:
    """Whether the hub has a model of this name that the token may read."""
    return _exists(name, "model", f"the model {name}")


def _exists(name: str, kind: str, what: str) -> bool:
    """Whether the hub has a repository; False for what is no name, as './rows.jsonl'."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return retried(lambda: HfApi().repo_exists(name, repo_type=kind), what)


def push_files(files: Mapping[str, Path], repository: str, message: str) -> Pushed:
    """Makes `files` (name in the repository -> local file) the model of a repository.

    A repository that does not exist is created: public, unless the organization makes new ones
    private. One commit adds the files and removes those of an earlier model that have no successor;
    all other files stay. What the hub has already is not uploaded again, so a push that is repeated
    after an error goes on. Raises HubError if the hub refuses the push, or does not recover within
    about a minute. The repository then has the files of before, or all new ones if only the answer
    to the commit was lost.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(library_name="vinejax", library_version=__version__)
    heads: list[str | None] = []  # the newest commit before each attempt

    def push() -> Pushed:
        # Operations remember what they did, so each attempt needs new ones.
        before = api.model_info(repository, revision="main")
        heads.append(before.sha)
        there = {file.rfilename for file in before.siblings or ()}
        old = [name for name in sorted(there - files.keys()) if OF_A_MODEL.fullmatch(name)]
        operations: list[Any] = [CommitOperationDelete(name) for name in old]
        operations += [CommitOperationAdd(name, files[name]) for name in sorted(files)]
        commit = api.create_commit(
            repository, operations, commit_message=message, parent_commit=before.sha
        )
        return Pushed(f"{api.endpoint}/{repository}", commit.oid, commit.oid != heads[0])

    what = f"the push to {repository} failed"
    retried(lambda: api.create_repo(repository, exist_ok=True), what)
    return retried(push, what)


def retried(call: Callable[[], Result], what: str) -> Result:
    """The result of `call`, which is repeated after errors that may pass.

    Other errors, and the last attempt's, become a HubError whose line begins with `what`.
    """
    for wait in (*WAITS_S, None):
        try:
            return call()
        except (OSError, RuntimeError, ValueError, _transport_error()) as error:
            if wait is None or not is_transient(error):
                again = "; the same command goes on" if wait is None else ""
                raise HubError(f"{what}: {_reason(error)}{again}") from error
            pause = min(max(wait, _asked_wait(error)), MOST_WAIT_S)
            line = f"vinejax: the hub: {_reason(error)}; tries again in {pause} s"
            print(line, file=sys.stderr, flush=True)
            time.sleep(pause)
    raise AssertionError


def is_transient(error: BaseException) -> bool:
    """Whether an error may pass: of the connection, of the server, or of too many requests."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT or error.response.status_code >= 500
    if isinstance(error, OfflineModeIsEnabled | LocalTokenNotFoundError):
        return False
    # A gateway's page of an error is no JSON.
    passing = (_transport_error(), ConnectionError, TimeoutError, json.JSONDecodeError)
    if isinstance(error, passing):
        return True
    # The error of an upload has the error of its request as its cause, those of hf_xet have none.
    is_upload = type(error) is RuntimeError
    return is_upload and (error.__cause__ is None or is_transient(error.__cause__))


def _transport_error() -> type[Exception]:
    """The base class of the errors of huggingface_hub's HTTP client.

    The client is httpx up to version 1 of huggingface_hub, and httpx2 from version 2 on.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _asked_wait(error: BaseException) -> int:
    """The seconds to wait that the hub's answer names in Retry-After or RateLimit; 0 if none."""
    from huggingface_hub.errors import HfHubHTTPError

    if not isinstance(error, HfHubHTTPError):
        return 0 if error.__cause__ is None else _asked_wait(error.__cause__)
    headers = error.response.headers
    asked = re.search(
        r"^(\d+)$|\bt=(\d+)", headers.get("retry-after", headers.get("ratelimit", ""))
    )
    return int(asked[1] or asked[2]) if asked else 0


def _reason(error: BaseException) -> str:
    """The error, with its cause, as a line of at most 300 characters."""
    text = str(error) or type(error).__name__
    if error.__cause__ is not None and type(error) is RuntimeError:
        text += f" {error.__cause__}"
    text = re.sub(r"For more information check: \S+", "", text)
    text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", text)  # a query may be a signature
    return " ".join(text.split())[:300].rstrip(".")
