"""The scheduler without HTTP: turns of samplings, requests that are given up, newer weights."""

import asyncio
import json
import math
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import pytest
from helpers.applied import stand_in
from helpers.paths import CONFIGS
from helpers.tokenizer_cases import load
from helpers.tools.serving import tiny_config

import vinejax
from vinejax.core.errors import UserError
from vinejax.engine.branches import Branch, Grown
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Decoder
from vinejax.tasks.prompts import encode_prompt
from vinejax.tools.serve import scheduler as scheduling
from vinejax.tools.serve.answering import Answerer
from vinejax.tools.serve.fed_engine import FedEngine
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.requests import (
    Limits,
    Sampling,
    completion_request,
    step_values_request,
)
from vinejax.tools.serve.scheduler import Scheduler, Ticket, Weights
from vinejax.tools.serve.step_values import StepValues
from vinejax.tools.serve.wanted import Ended, Failed, Tokens, Wanted

LONGEST, MOST, SLOTS = 40, 48, 8
WARM, COLD = Sampling.of(1.0, 1.0), Sampling.of(0.0, 0.5)


class Served:
    """A scheduler with the model of configs/tiny_start, and what it delivers."""

    def __init__(self, samplings: int = 4):
        self.model, self.params, self.tokenizer = vinejax.load_pretrained(
            str(CONFIGS / "tiny_start")
        )
        self.engines: list[Sampling] = []
        weights = Weights(self.params, "first")
        self.scheduler = Scheduler(weights, self.tokenizer, self.engine, (LONGEST, MOST), samplings)

    def engine(self, sampling: Sampling) -> Engine:
        self.engines.append(sampling)
        sample = vinejax.SampleConfig(*sampling, max_tokens=MOST)
        return Engine(self.model, sample, self.tokenizer, slots=SLOTS, limits=(LONGEST,))

    def wanted(self, seeds: range, budget: int = MOST, **fields: Any) -> list[Wanted]:
        ids = encode_prompt(self.tokenizer, "7+8-4=", False)
        return [Wanted(ids, len(ids), seed, budget, **fields) for seed in seeds]

    def grown(self, seeds: range, sampling: Sampling = WARM) -> list[list[int]]:
        trunk = encode_prompt(self.tokenizer, "7+8-4=", False)
        branches = [Branch(0, len(trunk), seed) for seed in seeds]
        grown = self.engine(sampling).grow(self.params, [trunk], branches, MOST)
        return [x.tokens for x in grown]

    def submit(self, wanted: list[Wanted], sampling: Sampling = WARM) -> "queue.SimpleQueue[Any]":
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.scheduler.submit(Ticket(sampling, wanted, events.put))
        return events


def ended(events: "queue.SimpleQueue[Any]", count: int) -> list[Ended]:
    """The next `count` events, in the order of the branches' numbers."""
    found = [events.get(timeout=120) for _ in range(count)]
    assert all(isinstance(event, Ended) for event in found), found
    return sorted(found, key=lambda event: event.number)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served()
    served.scheduler.start()
    yield served
    served.scheduler.close()


def test_requests_join_and_have_their_own_tokens(served: Served):
    expected = served.grown(range(30))
    parts = [range(0, 11), range(11, 13), range(13, 30)]
    all_events = [served.submit(served.wanted(part)) for part in parts]
    for part, events in zip(parts, all_events, strict=True):
        found = [x.grown.tokens for x in ended(events, len(part))]
        assert found == expected[part.start : part.stop]


def test_samplings_take_turns(served: Served, monkeypatch: pytest.MonkeyPatch):
    """A request of many branches with one pair does not keep the other pair waiting."""
    monkeypatch.setattr(scheduling, "TURN_S", 0.0)
    expected = served.grown(range(1), COLD)
    long = served.submit(served.wanted(range(200)))
    short = served.submit(served.wanted(range(3)), COLD)
    assert [x.grown.tokens for x in ended(short, 3)] == expected * 3
    assert long.qsize() < 200
    assert [x.number for x in ended(long, 200)] == list(range(200))
    assert set(served.engines) >= {WARM, COLD}
    assert Sampling.of(0.0, 0.5, 7) == Sampling.of(0.0, 1.0)
    # In float32 these are 0, or divide logits into infinities.
    assert Sampling.of(1e-40, 0.5, 7) == Sampling.of(0.0, 1.0)
    assert Sampling.of(1.0, 1e-46) == Sampling.of(1.0, 1e-6) == Sampling(1.0, 1e-6)


def test_a_request_with_many_branches_does_not_delay_a_small_one(served: Served):
    long = served.submit(served.wanted(range(300)))
    ended(served.submit(served.wanted(range(2))), 2)
    assert long.qsize() < 200
    ended(long, 300)


def test_a_request_that_is_given_up_frees_its_slots(served: Served):
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ticket = Ticket(WARM, served.wanted(range(400)), events.put, is_streamed=True)
    served.scheduler.submit(ticket)
    event = events.get(timeout=120)
    assert isinstance(event, Tokens | Ended)
    served.scheduler.cancel(ticket)
    expected = served.grown(range(2))
    assert [x.grown.tokens for x in ended(served.submit(served.wanted(range(2))), 2)] == expected
    assert served.scheduler.num_running == 0 and not ticket.waiting
    number = events.qsize()
    assert number < 200, "branches went on after their request was given up"


def test_newer_weights_are_served_by_the_next_stream(served: Served):
    (first,) = ended(served.submit(served.wanted(range(1))), 1)
    assert first.source == served.scheduler.source == "first"
    others = jax.tree.map(lambda x: x * 1.5, served.params)
    served.scheduler.replace_weights(Weights(others, "second"))
    (second,) = ended(served.submit(served.wanted(range(1))), 1)
    assert (second.source, served.scheduler.source) == ("second", "second")
    assert second.grown.tokens != first.grown.tokens
    served.scheduler.replace_weights(Weights(served.params, "first"))
    (third,) = ended(served.submit(served.wanted(range(1))), 1)
    assert third.grown.tokens == first.grown.tokens


def test_calls_run_between_chunks(served: Served):
    events = served.submit(served.wanted(range(30)))
    future = served.scheduler.call(lambda params: (params is served.params, threading.get_ident()))
    is_same, thread = future.result(timeout=120)
    assert is_same and thread == served.scheduler._thread.ident
    with pytest.raises(ZeroDivisionError):
        served.scheduler.call(lambda _: 1 // 0).result(timeout=120)
    ended(events, 30)


def test_a_failing_engine_fails_its_requests_alone(served: Served, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any, **__: Any) -> Any:
        raise UserError("too little memory")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "stream", fails)
        served.scheduler.replace_weights(Weights(served.params, "first"))  # ends the idle stream
        event = served.submit(served.wanted(range(3))).get(timeout=120)
    assert isinstance(event, Failed) and "too little memory" in str(event.error)
    ended(served.submit(served.wanted(range(2))), 2)


def test_a_further_sampling_than_the_limit_is_refused():
    served = Served(samplings=1)
    served.scheduler.submit(Ticket(WARM, served.wanted(range(1)), print))
    served.scheduler.submit(Ticket(WARM, served.wanted(range(1)), print))
    expected = r"^serve.samplings = 1 allows no .* \(temperature, top_p, top_k\) of \(1, 1, 0\)$"
    for other in (COLD, WARM._replace(top_k=5)):
        with pytest.raises(RequestError, match=expected):
            served.scheduler.submit(Ticket(other, served.wanted(range(1)), print))
    served.scheduler.submit(Ticket(COLD, [], print))  # nothing to decode


def test_a_call_after_the_end_fails_at_once():
    """As that of a thread for step values that a second signal has found between two calls."""
    scheduler = Served().scheduler
    scheduler.start()
    assert scheduler.call(lambda _: 7).result(timeout=20) == 7
    scheduler.close()
    with pytest.raises(RequestError, match="the server is stopping"):
        scheduler.call(lambda _: 7).result(timeout=5)


def test_requests_may_come_while_others_fail():
    served, events = Served(), queue.SimpleQueue[Any]()
    scheduler, wanted = served.scheduler, served.wanted(range(1))
    threads: list[threading.Thread] = []

    class Compared(Sampling):
        """A sampling during whose comparison another thread submits a request."""

        def __eq__(self, other: object) -> bool:
            ticket = Ticket(WARM, wanted, print)
            threads.append(threading.Thread(target=scheduler.submit, args=(ticket,)))
            threads[-1].start()
            threads[-1].join(0.1)
            return True

        __hash__ = Sampling.__hash__

    scheduler._tickets.append(Ticket(Compared(1.0, 1.0), wanted, events.put))
    scheduler._fail(WARM, UserError("too little memory"))
    threads[0].join(20)
    assert isinstance(events.get(timeout=1), Failed)
    assert [len(ticket.waiting) for ticket in scheduler._tickets] == [0, 1]


# --- the weights that a reply names: those of its tokens, also if the next stream has newer ones


def answerer_of(**parts: Any) -> Any:
    """An answerer whose server has just begun to serve the weights 'second'."""
    scheduler = stand_in(Scheduler, source="second")
    return stand_in(Answerer, name="model", scheduler=scheduler, **parts)


def test_a_stream_names_the_weights_of_its_tokens():
    async def wanted(_: object) -> Any:
        return [[1]], []

    async def events(*_: object, **__: object) -> AsyncIterator[Any]:
        yield Tokens(0, [15], "first")
        yield Ended(0, Grown([15], [0.0], "0", "length"), "first")

    parts = dict(_wanted=wanted, _events=events, _thinks=lambda *_: [False])
    answerer = answerer_of(tokenizer=load("gpt2"), **parts)
    request = completion_request({"prompt": "1"}, Limits(9, 9, 9, 9, 9, 9))

    async def collected() -> list[bytes]:
        return [part async for part in Answerer.streamed(answerer, request)]

    replies = [line for part in asyncio.run(collected()) for line in part.split(b"\n\n")]
    found = [json.loads(line[6:]) for line in replies if line.startswith(b"data: {")]
    assert len(found) == 2
    assert {reply["system_fingerprint"] for reply in found} == {"first"}


def test_step_values_name_the_weights_of_their_continuations():
    def submit(ticket: Ticket) -> Ticket:
        for number, _ in ticket.waiting:
            ticket.deliver(Ended(number, Grown([1], [0.0], "1", "eos"), "first"))
        return ticket

    scheduler = stand_in(Scheduler, submit=submit, cancel=lambda _: None)
    tokenizer: Any = None  # not read
    parts = (scheduler, stand_in(Decoder), vinejax.SampleConfig(), tokenizer)
    engine = FedEngine(*parts, deadline=math.inf, is_given_up=lambda: False)
    assert len(list(engine._pairs([Wanted([1], 1, 0, 9)], [0], []))) == 1
    values = StepValues(tiny_config(), [], "monte_carlo", 1, 1, list(engine.weights))
    with ThreadPoolExecutor(1) as threads:
        answerer = answerer_of(
            threads=threads, timeout_s=9.0, tokenizer=None, valuer=lambda *_: values
        )
        request = step_values_request({"problem": "1"}, Limits(9, 9, 9, 9, 9, 9))
        reply = asyncio.run(Answerer.step_values(answerer, request))
    assert reply["system_fingerprint"] == "first"
