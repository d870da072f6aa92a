"""`kl.renew` and `kl.soup`: a reference model other than the start.

    π_ref ← π           before iterations n, 2n, ..., n = `kl.renew`
    π_ref = ½·start + ½·soup    by their weights, until it is renewed

Sources: TR-DPO, https://arxiv.org/abs/2404.09656 (its hard update; TRL's `sync_ref_model`, whose
default mixes 0.6 of the policy in); SALSA, https://arxiv.org/abs/2411.01798.
"""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import RunState
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.architecture import PLANNED, read_architecture
from vinejax.model.hf.hub import find_folder
from vinejax.model.hf.weights import load_pretrained
from vinejax.options.option import Option
from vinejax.runtime.offload import to_device, to_host
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session


class Reference(Option):
    """Keeps what is trained of the reference model: all weights, or adapters.

    Before the first update these are the arrays of the start; every renewal copies the policy's.
    With `offload.reference` they are in the host's memory.
    """

    def keeps(self, cfg: Config) -> bool:
        return bool(cfg.kl.renew or cfg.kl.soup)

    def check_start(self, cfg: Config, model: Decoder) -> None:
        """Refuses a soup of models of two architectures."""
        if not cfg.kl.soup:
            return
        other = read_architecture(os.fspath(find_folder(cfg.kl.soup) / "config.json"))
        for name in PLANNED:
            theirs, ours = getattr(other, name), getattr(model.cfg, name)
            if theirs != ours and name != "context":
                rule = f"has {name} = {theirs}, and the model of the run {ours}"
                raise ConfigError("kl.soup", rule, repr(cfg.kl.soup))

    def fresh(self, session: Session) -> Params:
        kl, params = session.cfg.kl, session.fresh_params()
        if kl.soup:
            params = mean(params, load_pretrained(find_folder(kl.soup), "float32", session.mesh)[1])
        return parked(session.cfg, params)

    def begin(self, it: Iteration, kept: Params, params: Params) -> Params:
        every = it.cfg.kl.renew
        if every and it.number and it.number % every == 0:
            kept = copied(params)
        return parked(it.cfg, kept)


def parked(cfg: Config, params: Params) -> Params:
    """The weights where they wait for their next use."""
    return to_host(params) if cfg.offload.reference else params


def copied(params: Params) -> Params:
    """A copy, laid out alike: updates donate the policy's weights."""
    return _placed(lambda x: jax.tree.map(jnp.copy, x), params)


def mean(one: Params, other: Params) -> Params:
    """½·one + ½·other, laid out like `one`."""
    return _placed(functools.partial(jax.tree.map, lambda x, y: 0.5 * x + 0.5 * y), one, other)


def _placed(function: Any, params: Params, *more: Params) -> Params:
    shardings = jax.tree.map(lambda x: x.sharding, params)
    return jax.jit(function, out_shardings=shardings)(params, *more)


def reference_of(session: Session, state: RunState) -> Params | None:
    """The reference model's weights, on the devices while the caller holds them.

    None if they are the policy's own, as before the first update of a run without the option.
    """
    if state.options and "reference" in state.options:
        return session.weights(to_device(state.options["reference"]))
    return None if int(state.policy.step) == 0 else session.load_reference()
