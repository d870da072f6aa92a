"""`--mode=serve`: loads the model, listens, and stops when its requests have been answered."""

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vinejax.core.errors import UserError
from vinejax.core.settings import Config, SampleConfig
from vinejax.core.text import special_tokens, token_text
from vinejax.engine.engine import Engine
from vinejax.engine.memory import memory_to_use, slots_for
from vinejax.methods.compose import method_of
from vinejax.model.sharding import make_mesh, platform_of
from vinejax.runtime.compile_cache import use_compile_cache
from vinejax.runtime.devices import on_devices
from vinejax.runtime.workdir import check_workdir
from vinejax.tasks.base import load_task
from vinejax.tasks.graded import GradedTask, configure
from vinejax.tasks.rewards import TrainerState
from vinejax.tools.serve.answering import VALUE_THREADS, Answerer
from vinejax.tools.serve.fed_engine import FedEngine
from vinejax.tools.serve.prompts import PromptEncoder
from vinejax.tools.serve.replies import TokenForms
from vinejax.tools.serve.requests import Limits, Sampling
from vinejax.tools.serve.scheduler import Scheduler
from vinejax.tools.serve.served_model import (
    LearnedValues,
    NewerWeights,
    ServedModel,
    load_served,
)
from vinejax.tools.serve.settings import ServeConfig
from vinejax.tools.serve.step_values import StepValuer

KEY = "VINEJAX_API_KEY"  # environment variable
PACKAGES = ("starlette", "uvicorn")
KEEP_ALIVE_S = 60  # seconds for which a connection stays open between two requests
LAST_REPLIES_S = 30  # seconds within which clients must have read their replies when it stops
POLL_S = 0.05  # seconds between two looks at whether the last request has been answered
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(cfg: Config, path: str | os.PathLike) -> None:
    """`--mode=serve`: answers requests until SIGTERM or SIGINT.

    After the signal new requests get 503, and the function returns once the others are answered. A
    second signal drops them. Raises UserError if the packages of the extra `serve` are missing, if
    the address cannot be used, and for runs on several hosts.
    """
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        message = f"--mode=serve needs {' and '.join(missing)}: pip install 'vinejax[serve]'"
        raise UserError(message)
    if jax.process_count() > 1:
        raise UserError("--mode=serve runs on one host; start it on one alone")
    settings = ServeConfig.of(cfg)
    with listening(settings) as listener, service_of(cfg, path) as service:
        answerer = service.answerer
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{settings.port}/v1"
        print(f"serves {answerer.name} ({answerer.scheduler.source}) at {address}", flush=True)
        if settings.host not in LOOPBACK and not os.environ.get(KEY):
            print(f"warning: anybody who reaches {settings.host} may use it; set {KEY}", flush=True)
        asyncio.run(answer_requests(service, listener))


@contextlib.contextmanager
def listening(settings: ServeConfig) -> Iterator[socket.socket]:
    """A socket at the address of the settings. Raises UserError if it cannot be used."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        where = f"serve.host = {settings.host}, serve.port = {settings.port}"
        raise UserError(f"{where}: {error.strerror or error}; choose another") from error
    with listener:
        yield listener


@contextlib.contextmanager
def service_of(cfg: Config, path: str | os.PathLike) -> Iterator[Any]:
    """The `app.Service` of a configuration and a workdir, whose engine runs within the context."""
    from vinejax.tools.serve.app import Service  # it imports the packages of the extra

    workdir, task = check_workdir(cfg, path), load_task(cfg.data)
    configure(task, cfg)
    cfg = method_of(cfg).resolve(on_devices(cfg))
    use_compile_cache(cfg.compile_cache, workdir)
    mesh, settings = make_mesh(cfg.mesh), ServeConfig.of(cfg)
    served = load_served(cfg, workdir, mesh)
    limits = limits_of(cfg, settings, served)
    make_engine = engine_maker(cfg, limits, served, mesh)
    # An engine decides which special tokens the tokenizer shows, which all texts depend on.
    make_engine(Sampling.of(cfg.sample.temperature, cfg.sample.top_p))
    most = limits.prompt_tokens, limits.max_tokens
    scheduler = Scheduler(served.weights, served.tokenizer, make_engine, most, settings.samplings)
    newer = NewerWeights(workdir, mesh, served.step, scheduler.replace_weights)
    with (
        GradedTask(task, cfg.grader, cfg.reward) as graded,
        ThreadPoolExecutor(VALUE_THREADS, thread_name_prefix="step values") as threads,
    ):
        graded.state = TrainerState(served.step or 0, cfg.iterations)
        encoder = PromptEncoder(served.tokenizer, limits)
        valuer = StepValuer(
            cfg=cfg,
            graded=graded,
            tokenizer=served.tokenizer,
            encoder=encoder,
            limits=limits,
            load_learned=LearnedValues(cfg, workdir),
            make_engine=fed_engine_maker(scheduler, served),
        )
        answerer = Answerer(
            name=served.name,
            model=served.model,
            tokenizer=served.tokenizer,
            scheduler=scheduler,
            encoder=encoder,
            valuer=valuer,
            timeout_s=settings.timeout_s,
            threads=threads,
            forms=TokenForms(served.tokenizer, token_text(served.tokenizer)),
        )
        scheduler.start()
        newer.start()
        try:
            body_bytes, most_requests = settings.body_kib * 1024, settings.requests
            yield Service(answerer, limits, os.environ.get(KEY, ""), body_bytes, most_requests)
        finally:
            newer.close()
            scheduler.close()


def limits_of(cfg: Config, settings: ServeConfig, served: ServedModel) -> Limits:
    """What a request may ask for."""
    model = served.model.cfg
    max_tokens = min(settings.max_tokens or cfg.sample.max_tokens, model.context - 1)
    prompt_tokens = settings.prompt_tokens or cfg.data.max_prompt_tokens + max_tokens
    return Limits(
        max_tokens=max_tokens,
        prompt_tokens=min(prompt_tokens, model.context - 1),
        context=model.context,
        vocab_size=model.vocab_size,
        choices=settings.choices,
        continuations=settings.continuations,
    )


def engine_maker(
    cfg: Config, limits: Limits, served: ServedModel, mesh: Mesh
) -> Callable[[Sampling], Engine]:
    """A function that makes the engine of a sampling; all have the same shapes.

    Their branches end at EOS and at the special tokens at which the run's responses end. The host
    finds other stop strings (`stopping.py`).
    """
    special = special_tokens(served.tokenizer)
    ends = [special[text] for text in cfg.sample.stop if text in special]
    slots = cfg.rollout.slots or slots_of(cfg, limits, served, mesh)

    def make(sampling: Sampling) -> Engine:
        sample = SampleConfig(
            *sampling,
            max_tokens=limits.max_tokens,
            stop_ids=(*cfg.sample.stop_ids, *ends),
            skip_special_tokens=cfg.sample.skip_special_tokens,
        )
        return Engine(
            served.model,
            sample,
            served.tokenizer,
            mesh,
            slots=slots,
            memory_gib=cfg.rollout.memory_gib,
            attention=cfg.rollout.attention,
            skip_repeats=cfg.rollout.skip_repeats,
            limits=(limits.prompt_tokens,),
        )

    return make


def slots_of(cfg: Config, limits: Limits, served: ServedModel, mesh: Mesh) -> int:
    """The number of slots that suits the devices and their free memory, as in training."""
    model, memory = served.model, int((cfg.rollout.memory_gib or 0) * 2**30)
    if not memory:
        size = sum(leaf.size for leaf in jax.tree.leaves(served.weights.params))
        copy = size * jnp.dtype(model.compute.dtype).itemsize // mesh.shape["tensor"]
        memory = memory_to_use(mesh, reserved=copy)
    return slots_for(model, mesh, platform_of(mesh), memory, limits.max_tokens)


def fed_engine_maker(
    scheduler: Scheduler, served: ServedModel
) -> Callable[[Config, float, Callable[[], bool]], FedEngine]:
    """A function that makes the engine of a request for step values."""
    special = special_tokens(served.tokenizer)

    def make(cfg: Config, deadline: float, is_given_up: Callable[[], bool]) -> FedEngine:
        stop = tuple(text for text in cfg.sample.stop if text not in special)
        sample = dataclasses.replace(cfg.sample, stop=stop)
        return FedEngine(scheduler, served.model, sample, served.tokenizer, deadline, is_given_up)

    return make


def server_config(service: Any) -> Any:
    """The `uvicorn.Config` with which an `app.Service` is served."""
    import uvicorn  # pyright: ignore[reportMissingImports]

    return uvicorn.Config(
        service.app(),
        log_level="warning",
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_REPLIES_S,
    )


async def answer_requests(service: Any, listener: socket.socket) -> None:
    """Answers the requests to an `app.Service` until a signal, and those that run then."""
    import uvicorn  # pyright: ignore[reportMissingImports]

    class Server(uvicorn.Server):
        """A server that leaves signals to the function around it."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server, signalled = Server(server_config(service)), asyncio.Event()

    def on_signal() -> None:
        if signalled.is_set():
            server.force_exit = server.should_exit = True
        service.is_draining = True
        signalled.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(signalled.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.is_set():
        print(f"stops: {service.num_requests} requests are being answered", flush=True)
    while service.num_requests and not server.should_exit:
        await asyncio.sleep(POLL_S)
    server.should_exit = True
    stopping.cancel()
    await serving
