"""Answers over HTTP: texts are those of `Engine.grow`, and step values those of `fill_values`."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.tools.serving import SLOTS, tiny_config, tiny_service

import vinejax
from vinejax.core.settings import Config, with_fields
from vinejax.core.text import decode
from vinejax.core.types import Episode, Problem
from vinejax.engine.branches import Branch, Grown
from vinejax.engine.engine import Engine
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.vine import fill_values
from vinejax.tasks.prompts import encode_prompt
from vinejax.tools.serve.step_values import PROBLEM_ID

testclient = pytest.importorskip("starlette.testclient", reason="the extra `serve` is missing")
PROMPTS = ["7+8-4=", "3*4+5=", "12-7+9-1="]
QUESTION, ANSWER = "7+8-4", "#### 11"
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if tools %}{{ tools[0].function.name }}{% endif %}{{ tail }}"
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tiny_service(tmp_path_factory.mktemp("served")) as service:
        yield service


@pytest.fixture
def client(service: Any) -> Any:
    return testclient.TestClient(service.app())


def engine_of(service: Any, **sampling: Any) -> Engine:
    answerer = service.answerer
    sample = vinejax.SampleConfig(max_tokens=48, **sampling)
    return Engine(answerer.model, sample, answerer.tokenizer, slots=SLOTS)


def grown_by(service: Any, seeds: list[int], max_tokens: int = 48, **sampling: Any) -> list[Grown]:
    """What an engine alone draws on each of `PROMPTS` with each seed."""
    answerer = service.answerer
    trunks = [encode_prompt(answerer.tokenizer, prompt, False) for prompt in PROMPTS]
    branches = [Branch(t, len(ids), seed) for t, ids in enumerate(trunks) for seed in seeds]
    params = answerer.scheduler.params
    return engine_of(service, **sampling).grow(params, trunks, branches, max_tokens)


def post(client: Any, path: str, **fields: Any) -> Any:
    response = client.post(f"/v1/{path}", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_texts_are_those_of_the_engine(service: Any, client: Any):
    expected = grown_by(service, [5, 6])
    reply = post(client, "completions", prompt=PROMPTS, n=2, seed=5, max_tokens=48)
    assert [choice["text"] for choice in reply["choices"]] == [x.text for x in expected]
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    finishes = {"eos": "stop", "length": "length"}
    found = [choice["finish_reason"] for choice in reply["choices"]]
    assert found == [finishes[x.finish] for x in expected]
    drawn = sum(len(x.tokens) for x in expected)
    assert reply["usage"]["completion_tokens"] == drawn
    assert reply["usage"]["prompt_tokens"] == sum(len(prompt) + 1 for prompt in PROMPTS)


@pytest.mark.parametrize("stop", ["=1", ["5\n", "#### "]], ids=["one", "several"])
def test_stop_strings_cut_as_in_the_engine(service: Any, client: Any, stop: Any):
    as_tuple = (stop,) if isinstance(stop, str) else tuple(stop)
    expected = grown_by(service, [1, 2, 3], stop=as_tuple)
    assert "stop" in {x.finish for x in expected}
    reply = post(client, "completions", prompt=PROMPTS, n=3, seed=1, max_tokens=48, stop=stop)
    assert [choice["text"] for choice in reply["choices"]] == [x.text for x in expected]
    drawn = sum(len(x.tokens) for x in expected)
    assert reply["usage"]["completion_tokens"] == drawn


@pytest.mark.parametrize("fields", [{}, {"stop": ["=1", "#### 1"]}], ids=["whole", "stop"])
def test_a_streamed_text_is_the_whole_text(client: Any, fields: dict[str, Any]):
    fields = {"prompt": PROMPTS[:2], "n": 2, "seed": 9, "max_tokens": 48} | fields
    whole = post(client, "completions", **fields)
    response = client.post(
        "/v1/completions", json=fields | {"stream": True, "stream_options": {"include_usage": True}}
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    texts, finishes, usage = [""] * 4, [""] * 4, {}
    for event in events:
        value = json.loads(event.removeprefix("data: "))
        usage = value.get("usage", {})
        for choice in value["choices"]:
            texts[choice["index"]] += choice["text"]
            finishes[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert finishes == [choice["finish_reason"] for choice in whole["choices"]]
    assert usage == whole["usage"] and len(events) > 5


def test_logprobs_are_those_of_the_softmax(service: Any, client: Any):
    """At temperature 1, as the engine gives them, and of the prompt by the model's logits."""
    (grown, *_) = grown_by(service, [4])
    reply = post(client, "completions", prompt=PROMPTS[0], seed=4, logprobs=3, echo=True)
    (choice,) = reply["choices"]
    found, prompt = choice["logprobs"], len(PROMPTS[0]) + 1
    assert choice["text"] == PROMPTS[0] + grown.text
    np.testing.assert_allclose(found["token_logprobs"][prompt:], grown.logprobs[:16], atol=1e-4)
    ids = encode_prompt(service.answerer.tokenizer, PROMPTS[0], False)
    params = service.answerer.scheduler.params
    logits = np.asarray(vinejax.apply(service.answerer.model, params, [ids]))[0].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    own = logprobs[np.arange(len(ids) - 1), ids[1:]]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    np.testing.assert_allclose(found["token_logprobs"][1:prompt], own, atol=1e-4)
    for t in range(1, prompt):
        alternatives = found["top_logprobs"][t]
        assert max(alternatives.values()) == pytest.approx(logprobs[t - 1].max(), abs=1e-4)
        assert len(alternatives) in (3, 4)
    assert "".join(found["tokens"]) == choice["text"]
    assert [choice["text"][i : i + 1] for i in found["text_offset"][1:3]] == ["7", "+"]


def test_scores_alone_need_no_token(client: Any):
    reply = post(client, "completions", prompt="7+8=", max_tokens=0, echo=True, logprobs=1)
    (choice,) = reply["choices"]
    assert choice["text"] == "7+8=" and len(choice["logprobs"]["tokens"]) == 5
    assert reply["usage"]["completion_tokens"] == 0


def test_a_chat_is_written_by_the_template(
    service: Any, client: Any, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = service.answerer.tokenizer
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE)
    messages = [
        {"role": "system", "content": "7+"},
        {"role": "user", "content": [{"type": "text", "text": "8-"}]},
    ]
    tool = {"type": "function", "function": {"name": "4"}}
    fields = {"messages": messages, "tools": [tool], "chat_template_kwargs": {"tail": "="}}
    ids = tokenizer.encode("7+8-4=", add_special_tokens=False)
    raw = post(client, "completions", prompt=ids, seed=3, max_tokens=20, n=2)
    chat = post(client, "chat/completions", seed=3, max_tokens=20, n=2, logprobs=True, **fields)
    texts = [choice["message"]["content"] for choice in chat["choices"]]
    assert texts == [choice["text"] for choice in raw["choices"]]
    assert chat["usage"] == raw["usage"]
    content = chat["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == texts[0]
    streamed = client.post(
        "/v1/chat/completions", json={**fields, "seed": 3, "max_tokens": 20, "stream": True}
    )
    events = [json.loads(x[6:]) for x in streamed.text.split("\n\n") if x.startswith("data: {")]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    parts = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(parts) == texts[0]
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('no such role') }}")
    response = client.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400 and "no such role" in response.json()["error"]["message"]


def test_there_is_a_bound_on_programs(service: Any, client: Any, monkeypatch: pytest.MonkeyPatch):
    scheduler = service.answerer.scheduler
    monkeypatch.setattr(scheduler, "_most_samplings", len(scheduler._samplings))
    response = client.post("/v1/completions", json={"prompt": "1+1=", "temperature": 0.123})
    assert response.status_code == 400
    assert "serve.samplings" in response.json()["error"]["message"]


# --- step values ---


def with_request(service: Any, seed: int, k: int) -> Config:
    cfg = service.answerer.valuer.cfg
    return with_fields(cfg, {"seed": seed, "values.k": k, "rollout.per_prompt": 3})


def trained_values(service: Any, cfg: Config, episodes: list[Episode] | None) -> list[Episode]:
    """The values of training's sampler on an engine of its own; it samples solutions if None."""
    answerer = service.answerer
    engine = engine_of(service)
    sampler = Sampler(engine, answerer.valuer.graded, cfg, iteration=0)
    problem = Problem(PROBLEM_ID, QUESTION, ANSWER)
    prompted = problem, encode_prompt(answerer.tokenizer, f"{QUESTION}=", False)
    params = answerer.scheduler.params
    if episodes is None:
        episodes = sampler.solutions(params, [prompted], most_groups=1)
    return fill_values(sampler, params, [prompted], episodes)


def test_step_values_equal_those_of_training(service: Any, client: Any):
    """With equal seeds, for solutions that the server samples and for the same ones as texts."""
    expected = trained_values(service, with_request(service, seed=11, k=5), None)
    fields = {"problem": QUESTION, "answer": ANSWER, "seed": 11, "k": 5, "continuations": True}
    reply = post(client, "step_values", n=3, **fields)
    assert reply["source"] == "monte_carlo"
    tokenizer = service.answerer.tokenizer
    assert any(len(episode.step_ends) > 1 for episode in expected)
    for solution, episode in zip(reply["solutions"], expected, strict=True):
        assert (solution["text"], solution["reward"]) == (episode.text, episode.reward)
        steps = solution["steps"]
        assert "".join(step["text"] for step in steps) == decode(tokenizer, episode.response)
        assert episode.values is not None and episode.value_errors is not None
        np.testing.assert_array_equal([step["value"] for step in steps], episode.values)
        np.testing.assert_allclose(
            [step["standard_error"] for step in steps], episode.value_errors, rtol=1e-6
        )
        after = [*episode.values[1:], episode.reward]
        advantages = [step["advantage"] for step in steps]
        np.testing.assert_allclose(advantages, np.subtract(after, episode.values), atol=1e-6)
        for step, drawn in zip(steps, episode.continuations, strict=True):
            assert [x["text"] for x in step["continuations"]] == [x.text for x in drawn]
            assert step["count"] == len(drawn) == 5
    given = [solution["text"] for solution in reply["solutions"]]
    again = post(client, "step_values", solutions=given, **fields)
    for solution, first in zip(again["solutions"], reply["solutions"], strict=True):
        assert solution["reward"] == first["reward"]
        values = [[step["value"] for step in x["steps"]] for x in (solution, first)]
        assert values[0] == values[1]


def test_a_request_chooses_states(client: Any):
    fields = {"problem": QUESTION, "answer": ANSWER, "solution": "\n7+8=15\n15-4=11\n#### 11"}
    reply = post(client, "step_values", positions="tokens", every=4, num_states=2, k=2, **fields)
    (solution,) = reply["solutions"]
    assert len(solution["steps"]) == 3 and solution["reward"] == 1.0
    assert {step["count"] for step in solution["steps"]} == {2}


def test_given_solutions_have_no_unlikely_tokens(client: Any):
    """Their probabilities are not known, so no state would stand before a token."""
    fields = {"problem": QUESTION, "answer": ANSWER, "positions": "low_probability"}
    solution = "\n7+8=15\n15-4=11\n#### 11"
    response = client.post("/v1/step_values", json=fields | {"solution": solution})
    message = response.json()["error"]["message"]
    assert response.status_code == 400 and message.startswith("positions: 'low_probability' reads")


def test_an_answer_may_be_written_without_its_mark(client: Any):
    fields = {"problem": QUESTION, "solution": "\n7+8=15\n15-4=11\n#### 11", "k": 1}
    assert post(client, "step_values", answer="11", **fields)["solutions"][0]["reward"] == 1.0
    response = client.post("/v1/step_values", json={**fields, "answer": "eleven"})
    assert response.status_code == 400 and "answer" in response.json()["error"]["message"]


def test_without_a_reference_there_are_no_values(client: Any):
    response = client.post("/v1/step_values", json={"problem": QUESTION, "solution": "\n7+8=15"})
    assert response.status_code == 400
    assert "no probe and no critic" in response.json()["error"]["message"]


def test_continuations_have_a_limit(service: Any, client: Any, monkeypatch: pytest.MonkeyPatch):
    valuer = service.answerer.valuer
    few = dataclasses.replace(valuer, limits=valuer.limits._replace(continuations=5))
    monkeypatch.setitem(service.answerer.__dict__, "valuer", few)
    fields = {"problem": QUESTION, "answer": ANSWER, "solution": "\n7+8=15\n15-4=11\n#### 11"}
    response = client.post("/v1/step_values", json={**fields, "k": 3})
    assert response.status_code == 400 and "6 continuations" in response.json()["error"]["message"]


def test_settings_say_how_a_config_is_served():
    cfg = tiny_config(serve__port=9000, serve__max_tokens=20)
    assert cfg.sections["serve"].changed() == {"serve.port": 9000, "serve.max_tokens": 20}
