"""`kl.renew`: a reference model other than the start.

    π_ref ← π           before iterations n, 2n, ..., n = `kl.renew`

Source: TR-DPO, https://arxiv.org/abs/2404.09656 (its hard update; TRL's `sync_ref_model`, whose
default mixes 0.6 of the policy in).
"""

import jax
import jax.numpy as jnp

from vinejax.core.settings import Config
from vinejax.core.types import RunState
from vinejax.model.decoder import Params
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
        return bool(cfg.kl.renew)

    def fresh(self, session: Session) -> Params:
        return parked(session.cfg, session.fresh_params())

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
    shardings = jax.tree.map(lambda x: x.sharding, params)
    return jax.jit(lambda x: jax.tree.map(jnp.copy, x), out_shardings=shardings)(params)


def reference_of(session: Session, state: RunState) -> Params | None:
    """The reference model's weights, on the devices while the caller holds them.

    None if they are the policy's own, as before the first update of a run without the option.
    """
    if state.options and "reference" in state.options:
        return session.weights(to_device(state.options["reference"]))
    return None if int(state.policy.step) == 0 else session.load_reference()
