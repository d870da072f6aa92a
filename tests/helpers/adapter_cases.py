"""Adapters of the small model, and rows to train them on."""

import dataclasses

import jax
import numpy as np

from helpers import loop_cases as cases
from helpers import method_cases as methods
from vinejax.core.settings import PROJECTIONS, MeshConfig
from vinejax.core.types import Batch
from vinejax.model.config import Compute
from vinejax.model.decoder import Params
from vinejax.model.lora import fresh_adapters
from vinejax.model.sharding import make_mesh

SCALE = 0.5
MODEL = dataclasses.replace(cases.model(), compute=Compute(lora_scale=SCALE))


def adapters() -> Params:
    """Adapters of which neither factor is 0."""
    mesh = make_mesh(MeshConfig(1, 1, 1))
    fresh = fresh_adapters(MODEL, mesh, 2, PROJECTIONS)

    def moved(x: np.ndarray) -> np.ndarray:
        return x + 0.1 * np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape)

    return jax.tree.map(moved, jax.device_get(fresh))


def rows() -> Batch:
    cfg = methods.config("vineppo")
    of_method = methods.credit(cfg)
    return methods.batch()._replace(advantages=of_method.advantages, mask=of_method.mask)
