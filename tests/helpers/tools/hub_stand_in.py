"""A small HTTP server that stands in for the Hugging Face Hub, with faults on request.

It has the requests that huggingface_hub makes for a push with LFS: who am I, create a repository,
its newest commit, validation of a card, upload modes, LFS batches and uploads, and a commit. What a
reader of a repository would see is `Hub.files`.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import huggingface_hub
import pytest
from huggingface_hub import constants

TOKEN = "hf_" + "standin" * 5
USER = "somebody"
BINARY = (".safetensors", ".png")  # suffixes of files that go through LFS


class Fault(NamedTuple):
    """What happens to the next requests whose 'METHOD /path' contains `where`."""

    where: str
    status: int = 0  # the answer; 0: the connection is closed without an answer
    is_done: bool = False  # whether the request takes effect before the fault
    headers: dict[str, str] = {}
    page: str = '{"error": "made to fail"}'


class Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str, code: str = ""):
        super().__init__(message)
        self.status, self.code = status, code


class Hub:
    """The state of the stand-in: repositories, large files, faults to come, requests so far."""

    def __init__(self) -> None:
        self.commits: dict[
            str, list[dict[str, bytes]]
        ] = {}  # repository -> its states, oldest first
        self.messages: list[str] = []  # of commits that were pushed
        self.created: list[dict[str, Any]] = []  # bodies of requests for new repositories
        self.objects: dict[str, bytes] = {}  # LFS: digest -> content
        self.data_sets: set[str] = set()
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # 'METHOD /path'
        self.before_commit: Callable[[], None] = lambda: None
        self.url = ""

    def files(self, repository: str) -> dict[str, bytes]:
        """The files that a reader of the repository sees, without .gitattributes."""
        files = self.commits[repository][-1]
        return {name: content for name, content in files.items() if name != ".gitattributes"}

    def head(self, repository: str) -> str:
        return hashlib.sha1(f"{repository} {len(self.commits[repository])}".encode()).hexdigest()

    def add(self, repository: str, files: dict[str, bytes]) -> None:
        """Adds a commit with these files, as another program would."""
        states = self.commits.setdefault(repository, [{".gitattributes": b""}])
        states.append({**states[-1], **files})

    def count(self, where: str) -> int:
        """The number of requests so far whose 'METHOD /path' contains `where`."""
        return sum(where in request for request in self.requests)

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        """The JSON of an answer. Raises Refused for an error status."""
        for pattern, call in self._routes().items():
            if match := re.fullmatch(pattern, f"{method} {path}"):
                return call(body, *match.groups())
        raise Refused(404, f"no such request: {method} {path}")

    def _routes(self) -> dict[str, Callable[..., dict[str, Any]]]:
        name = r"([\w.-]+/[\w.-]+)"
        return {
            "GET /api/whoami-v2": lambda body: {"name": USER, "type": "user"},
            "POST /api/repos/create": self._create,
            "POST /api/validate-yaml": lambda body: {"errors": [], "warnings": []},
            f"GET /api/datasets/{name}": self._data_set,
            f"GET /api/models/{name}": self._info,
            f"GET /api/models/{name}/revision/main": self._info,
            f"POST /api/models/{name}/preupload/main": self._modes,
            f"POST /{name}.git/info/lfs/objects/batch": self._batch,
            r"PUT /large/(\w+)": self._store,
            f"POST /api/models/{name}/commit/main": self._commit,
        }

    def _create(self, body: bytes) -> dict[str, Any]:
        wanted = json.loads(body)
        self.created.append(wanted)
        name = f"{wanted['organization'] or USER}/{wanted['name']}"
        if wanted["organization"] == "closed":
            raise Refused(403, "You don't have the rights to create a model under this namespace")
        if name not in self.commits:
            self.commits[name] = [{".gitattributes": b""}]
        return {"url": f"{self.url}/{name}"}

    def _data_set(self, body: bytes, name: str) -> dict[str, Any]:
        if name not in self.data_sets:
            raise Refused(404, "no such repository", "RepoNotFound")
        return {"id": name, "private": False, "disabled": False, "downloads": 0, "likes": 0}

    def _info(self, body: bytes, name: str) -> dict[str, Any]:
        if name not in self.commits:
            raise Refused(404, "no such repository", "RepoNotFound")
        siblings = [{"rfilename": file} for file in self.commits[name][-1]]
        return {"id": name, "sha": self.head(name), "siblings": siblings, "tags": []}

    def _modes(self, body: bytes, name: str) -> dict[str, Any]:
        there, modes = self.commits[name][-1], []
        for file in json.loads(body)["files"]:
            is_large, content = file["path"].endswith(BINARY), there.get(file["path"])
            oid = None
            if content is not None:
                git = hashlib.sha1(b"blob %d\0" % len(content) + content)
                oid = (hashlib.sha256(content) if is_large else git).hexdigest()
            mode = "lfs" if is_large else "regular"
            modes.append(
                {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}
            )
        return {"files": modes}

    def _batch(self, body: bytes, name: str) -> dict[str, Any]:
        objects = []
        for wanted in json.loads(body)["objects"]:
            oid = wanted["oid"]
            new = {"actions": {"upload": {"href": f"{self.url}/large/{oid}"}}}
            objects.append(
                {"oid": oid, "size": wanted["size"]} | ({} if oid in self.objects else new)
            )
        return {"transfer": "basic", "objects": objects}

    def _store(self, body: bytes, oid: str) -> dict[str, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "the content is not that of the digest")
        self.objects[oid] = body
        return {}

    def _commit(self, body: bytes, name: str) -> dict[str, Any]:
        self.before_commit()
        header, *changes = [json.loads(line) for line in body.splitlines()]
        if header["value"].get("parentCommit", self.head(name)) != self.head(name):
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(self.commits[name][-1])
        for change in changes:
            value = change["value"]
            if change["key"] == "deletedFile":
                del files[value["path"]]
            elif change["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        self.commits[name].append(files)
        self.messages.append(header["value"]["summary"])
        return {
            "commitUrl": f"{self.url}/{name}/commit/{self.head(name)}",
            "commitOid": self.head(name),
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        request = f"{self.command} {path}"
        self.hub.requests.append(request)
        fault = next((fault for fault in self.hub.faults if fault.where in request), None)
        if fault is not None:
            self.hub.faults.remove(fault)
            if fault.is_done:
                self.hub.answer(self.command, path, body)
            if fault.status:
                self._send(fault.status, fault.page, fault.headers)
            else:
                self.close_connection = True
            return
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        try:
            if not is_known and not request.startswith("PUT"):  # S3 gets no token of the hub
                raise Refused(401, "Invalid credentials in Authorization header")
            self._send(200, json.dumps(self.hub.answer(self.command, path, body)), {})
        except Refused as error:
            headers = {"X-Error-Message": str(error)} | (
                {"X-Error-Code": error.code} if error.code else {}
            )
            self._send(error.status, json.dumps({"error": str(error)}), headers)

    def _send(self, status: int, text: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(text.encode()))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A stand-in that answers at `Hub.url` within the context."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def connected_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in that huggingface_hub takes for the hub, with a token that it accepts."""
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
        huggingface_hub.close_session()
