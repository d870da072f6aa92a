"""The settings of a run as others may read them: no secrets, no paths or addresses of machines."""

import os
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

# Settings that say where a run was computed, not what it computes.
OF_MACHINES = ("compile_cache", "topology", "profile", "resume", "code.url", "code.command")
GROUPS_OF_MACHINES = ("distributed.", "log.", "serve.", "plan.")
# Texts that the model reads. A slash at their beginning is no path.
TEXTS = ("data.system", "data.template", "data.template_vars", "sample.stop")
TEXTS += ("scaf.text", "sdpo.text")
SECRET_NAME = re.compile(r"(^|[._])(key|token|secret|password|credentials?)$")
SECRET_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
SECRET = re.compile(r"\b(hf_|sk-|ghp_|AKIA)[\w-]{16,}")
SHORTEST_SECRET = 8  # characters; a shorter value of a variable may be a word of a text
HIDDEN = "***"
FOLDERS = re.compile(r"^(~[^/\\]*|[A-Za-z]:)?[/\\](.*[/\\])?")  # an absolute path without its name
# The same, or an address, behind a blank, '=' or ',', as in 'taskset file=/home/me/rows.jsonl'.
INNER_FOLDERS = re.compile(
    r"(?<=[\s=,])(\w+://[^/\s,]*|(~[^/\\\s,]*|[A-Za-z]:)?(?=[/\\]))([/\\]([^\s,]*[/\\])?)?"
)
SECRET_ARGUMENT = re.compile(r"(?i)([\w-]*(?:key|token|secret|password|credentials?))=[^\s,&]+")


def public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted names, as they may be published.

    Settings about machines and settings whose names mean secrets are left out. Of absolute paths
    and of addresses only the last part stays. Keys that are recognised by their form, and values of
    environment variables such as HF_TOKEN, are replaced by '***'.
    """
    secrets = secrets_of_environment()
    return {
        name: _public(value, secrets, name in TEXTS)
        for name, value in settings.items()
        if not (name in OF_MACHINES or name.startswith(GROUPS_OF_MACHINES))
        and not SECRET_NAME.search(name)
    }


def secrets_of_environment() -> set[str]:
    """The values of environment variables whose names mean secrets, and the hub's token."""
    from huggingface_hub import get_token

    values = {value for name, value in os.environ.items() if SECRET_VARIABLE.search(name)}
    return {value for value in (*values, get_token() or "") if len(value) >= SHORTEST_SECRET}


def last_part(path: str) -> str:
    """The last part of an absolute path or of an address; other texts stay as they are.

    In a text with arguments, such as 'taskset file=/home/me/rows.jsonl', this is done with each,
    and values of arguments whose names mean secrets are replaced by '***'.
    """
    if re.match(r"\w+://", path):
        path = urlsplit(path).path
    path = FOLDERS.sub("", path.rstrip("/\\"))
    return INNER_FOLDERS.sub("", SECRET_ARGUMENT.sub(rf"\1={HIDDEN}", path))


def _public(value: Any, secrets: Collection[str], is_text: bool) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        value = SECRET.sub(HIDDEN, value)
        return value if is_text else last_part(value)
    if isinstance(value, list | tuple):
        return [_public(item, secrets, is_text) for item in value]
    if isinstance(value, dict):
        return {name: _public(item, secrets, is_text) for name, item in value.items()}
    return value
