"""What keeps `--mode=serve` from starting, in one line, and its limits."""

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.applied import stand_in
from helpers.tokenizer_cases import load
from helpers.tools.serving import tiny_config

from vinejax.core.errors import ModelError, UserError
from vinejax.core.settings import Config
from vinejax.model.sharding import make_mesh
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.graded import GradedTask
from vinejax.tools.serve import served_model, step_values
from vinejax.tools.serve.fed_engine import FedEngine
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.prompts import PromptEncoder
from vinejax.tools.serve.requests import Limits, completion_request, step_values_request
from vinejax.tools.serve.scheduler import Weights
from vinejax.tools.serve.serve_mode import limits_of, listening, serve, slots_of
from vinejax.tools.serve.served_model import NewerWeights, load_served
from vinejax.tools.serve.settings import ServeConfig
from vinejax.tools.serve.step_values import StepValuer
from vinejax.training.start_weights import Trained


def test_without_the_extra_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = r"needs starlette and uvicorn: pip install 'vinejax\[serve\]'"
    with pytest.raises(UserError, match=line):
        serve(tiny_config(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_address_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"serve.port = {port}: .*; choose another"):
            with listening(ServeConfig(port=port)):
                pass


def test_an_address_of_ipv6_is_listened_at():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
            port = other.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening(ServeConfig(host="::1", port=port)) as listener:
        assert listener.getsockname()[:2] == ("::1", port)


def test_there_must_be_a_model(tmp_path: Path):
    cfg = tiny_config(model__path="")
    with pytest.raises(ModelError, match="model.path is empty"):
        load_served(cfg, epath.Path(tmp_path), make_mesh(cfg.mesh))


def test_newer_weights_are_looked_for_again_after_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The thread goes on after errors of the devices, which are no UserErrors."""
    mesh, replaced = make_mesh(tiny_config().mesh), list[Weights]()
    newer = NewerWeights(epath.Path(tmp_path), mesh, None, replaced.append)
    monkeypatch.setattr(served_model, "newest_checkpoint", lambda folder: 7)
    errors = [RuntimeError("RESOURCE_EXHAUSTED:\nOut of memory"), OSError(), ValueError("no step")]

    def load_trained(*_: object) -> Weights:
        if errors:
            raise errors.pop(0)
        return Weights({}, "checkpoints/7")

    monkeypatch.setattr(served_model, "load_trained", load_trained)
    for words in ("RESOURCE_EXHAUSTED: Out of memory", "OSError", "no step"):
        newer.look()
        assert capsys.readouterr().out.endswith(f"no newer weights are served ({words})\n")
    newer.look()
    assert [x.source for x in replaced] == ["checkpoints/7"]


def test_an_error_that_lasts_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps = iter([7, 7, 7, None, 7])
    newer = NewerWeights(epath.Path(tmp_path), make_mesh(tiny_config().mesh), None, print)
    monkeypatch.setattr(served_model, "newest_checkpoint", lambda folder: next(steps))
    errors = iter(["no memory", "no memory", "damaged", "damaged"])

    def load_trained(*_: object) -> Trained:
        raise RuntimeError(next(errors))

    monkeypatch.setattr(served_model, "load_trained", load_trained)
    printed = []
    for _ in range(5):
        newer.look()
        printed.append(capsys.readouterr().out.partition("served ")[2].strip())
    assert printed == ["(no memory)", "", "(damaged)", "", "(damaged)"]


def test_a_checkpoint_that_comes_while_the_first_is_loaded_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cfg = tiny_config()
    mesh, replaced, steps = make_mesh(cfg.mesh), list[Weights](), [1]
    start = load_served(cfg, epath.Path(tmp_path), mesh)
    monkeypatch.setattr(served_model, "newest_checkpoint", lambda folder: steps[-1])

    def load_trained(*_: object) -> Trained:
        source = f"checkpoints/{steps[-1]}"
        steps.append(2)  # the run's last one
        return Trained(start.model, {}, start.tokenizer, source, cfg.model, None)

    monkeypatch.setattr(served_model, "load_trained", load_trained)
    served = load_served(cfg, epath.Path(tmp_path), mesh)
    newer = NewerWeights(epath.Path(tmp_path), mesh, served.step, replaced.append)
    newer.look()
    newer.look()
    assert served.weights.source == "checkpoints/1"
    assert [x.source for x in replaced] == ["checkpoints/2"]


def test_limits_follow_the_configuration(tmp_path: Path):
    cfg = tiny_config(serve__max_tokens=20)
    served = load_served(cfg, epath.Path(tmp_path), make_mesh(cfg.mesh))
    limits = limits_of(cfg, ServeConfig.of(cfg), served)
    assert (limits.max_tokens, limits.prompt_tokens, limits.context) == (20, 32 + 20, 96)
    cfg = tiny_config(serve__max_tokens=1000, serve__prompt_tokens=1000)
    limits = limits_of(cfg, ServeConfig.of(cfg), served)
    assert (limits.max_tokens, limits.prompt_tokens) == (95, 95)


def test_the_default_of_max_tokens_is_within_the_limit():
    for limit, default in ((8, 8), (48, 16)):
        limits = Limits(limit, 96, 96, 99, 9, 9)
        assert completion_request({"prompt": "1"}, limits).max_tokens == default


def valuer_of(cfg: Config, tokenizer: Any, limits: Limits) -> StepValuer:
    graded, engine = stand_in(GradedTask, task=Arithmetic()), stand_in(FedEngine)
    encoder = PromptEncoder(tokenizer, limits)
    return StepValuer(cfg, graded, tokenizer, encoder, limits, lambda: None, lambda *_: engine)


def test_step_values_encode_while_no_prompt_is_encoded(monkeypatch: pytest.MonkeyPatch):
    tokenizer, limits, is_held = cases.tokenizer(), Limits(48, 96, 96, 20, 9, 9), []
    valuer, encode = valuer_of(tiny_config(), tokenizer, limits), tokenizer.encode

    def encoded(*args: Any, **kwargs: Any) -> Any:
        is_held.append(valuer.encoder.lock.locked())
        return encode(*args, **kwargs)

    monkeypatch.setattr(tokenizer, "encode", encoded, raising=False)
    request = step_values_request({"problem": "7+8-4", "solution": "7+8=15"}, limits)
    problem = valuer._prompted(request, 0)
    assert is_held and valuer._solution(problem, "7+8=15").response
    assert len(is_held) > 2 and all(is_held)


def test_step_values_say_what_leaves_no_room_for_a_prompt():
    """With a trunk no longer than a solution, no prompt is short enough."""
    cfg, limits = tiny_config(), Limits(48, 40, 96, 20, 9, 9)
    valuer = valuer_of(cfg, cases.tokenizer(), limits)
    request = step_values_request({"problem": "7+8-4"}, limits)
    with pytest.raises(RequestError, match="0 are allowed beside max_tokens = 48 .* set it lower"):
        valuer._prompted(request, cfg.sample.max_tokens)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_step_values_know_the_thinking_that_a_prompt_opens(
    is_hidden: bool, monkeypatch: pytest.MonkeyPatch
):
    """As training does: also in the markup of a chat template, unless texts hide the tag."""
    tokenizer = load("byte_level")
    template = "{{ messages[0].content }}<think>"
    monkeypatch.setattr(tokenizer, "chat_template", template, raising=False)
    cfg = tiny_config(data__chat_template=True, sample__skip_special_tokens=is_hidden)
    limits = Limits(48, 96, 96, 20, 9, 9)
    valuer = valuer_of(cfg, tokenizer, limits)
    request = step_values_request({"problem": "7+8-4"}, limits)
    problem, ids = valuer._prompted(request, 0)
    assert problem.opening == "<think>" and tokenizer.decode(ids).endswith("<think>")
    monkeypatch.setattr(step_values, "special_tokens", lambda _: {"<think>": 7})
    problem, _ = valuer._prompted(request, 0)
    assert problem.opening == ("" if is_hidden else "<think>")


def test_slots_follow_the_devices_unless_they_are_set(tmp_path: Path):
    cfg = tiny_config(rollout__slots=None)
    mesh = make_mesh(cfg.mesh)
    served = load_served(cfg, epath.Path(tmp_path), mesh)
    limits = limits_of(cfg, ServeConfig.of(cfg), served)
    assert slots_of(cfg, limits, served, mesh) == 256  # of CPUs
