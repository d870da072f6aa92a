"""Malformed and hostile requests get a 4xx with one line, and never reach the engine."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.tools.hostile_requests import COMPLETIONS, hostile_requests
from helpers.tools.serving import tiny_service

from vinejax.tools.serve.parsing import RequestError, parse_object

testclient = pytest.importorskip("starlette.testclient", reason="the extra `serve` is missing")
pytest.importorskip("uvicorn", reason="the extra `serve` is missing")
CASES = hostile_requests()
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tiny_service(tmp_path_factory.mktemp("hostile")) as service:
        yield service


def assert_refused(response: Any, status: int | None = None) -> None:
    """An error in OpenAI's form, whose message is one short line without a traceback."""
    assert 400 <= response.status_code < 500, response.text
    assert status is None or response.status_code == status, response.text
    message = response.json()["error"]["message"]
    assert message and "\n" not in message and len(message) < 400
    assert "Traceback" not in message and "object at 0x" not in message


def test_there_are_two_hundred_cases():
    assert len(CASES) >= 200
    assert len({repr(case) for case in CASES}) == len(CASES)


def test_every_case_is_refused_in_one_line(service: Any):
    client = testclient.TestClient(service.app())
    for path, body in CASES:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        assert_refused(client.post(path, content=data, headers=JSON))
    assert service.num_requests == 0 and service.answerer.scheduler.num_running == 0


def test_a_name_that_is_twice_among_many_is_found_at_once():
    """All other requests wait while a body is read."""
    names = [f'"k{i}": 0' for i in range(40_000)]
    start = time.process_time()
    with pytest.raises(RequestError, match="'k39999' twice"):
        parse_object(f"{{{', '.join([*names, names[-1]])}}}".encode())
    assert time.process_time() - start < 2


def test_paths_methods_and_content_types(service: Any):
    client = testclient.TestClient(service.app())
    body = b'{"prompt": "1+1="}'
    assert_refused(client.get("/"), 404)
    assert_refused(client.get("/v1/../../etc/passwd"), 404)
    assert_refused(client.get("/v1/models/other"), 404)
    assert_refused(client.get(COMPLETIONS), 405)
    assert_refused(client.delete("/v1/models"), 405)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert_refused(client.post(COMPLETIONS, content=body, headers={"content-type": kind}), 415)
    named = {"prompt": "1+1=", "model": "gpt-4"}
    assert_refused(client.post(COMPLETIONS, json=named), 404)


def test_a_body_may_not_be_longer_than_the_limit(service: Any):
    client = testclient.TestClient(service.app())
    long = b'{"prompt": "' + b"1" * 1024 * 1024 + b'"}'
    assert_refused(client.post(COMPLETIONS, content=long, headers=JSON), 413)
    in_parts = client.post(COMPLETIONS, content=iter([long[:1000], long[1000:]]), headers=JSON)
    assert_refused(in_parts, 413)


def test_a_key_is_needed_if_one_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VINEJAX_API_KEY", "secret")
    with tiny_service(tmp_path) as service:
        client = testclient.TestClient(service.app())
        for key in (
            "",
            "Bearer",
            "Bearer wrong",
            "Basic secret",
            "secret",
            "Bearer secret2",
            "Bearer é",
        ):
            headers = {"authorization": key.encode("utf-8")}
            assert_refused(client.get("/v1/models", headers=headers), 401)
            assert_refused(client.post(COMPLETIONS, json={}, headers=headers), 401)
        right = {"authorization": "Bearer secret"}
        assert client.get("/v1/models", headers=right).status_code == 200
        assert client.get("/health").status_code == 200


def test_requests_beyond_the_limit_and_while_draining_may_come_again(service: Any):
    client = testclient.TestClient(service.app())
    service.num_requests = 256
    response = client.post(COMPLETIONS, json={"prompt": "1+1="})
    service.num_requests = 0
    assert_refused(response, 429)
    assert response.headers["retry-after"] == "1"
    service.is_draining = True
    try:
        response = client.post(COMPLETIONS, json={"prompt": "1+1="})
        assert response.status_code == 503 and "stopping" in response.json()["error"]["message"]
        assert client.get("/health").status_code == 503
    finally:
        service.is_draining = False
