"""Chooses a row of `meshes` for the devices of this process if none of the configuration's fits."""

from vinejax.core.accessories import contributed_class
from vinejax.core.settings import Config


def with_row_for_devices(cfg: Config) -> Config:
    """The configuration. If `meshes` has rows but none that fits, vinejax/tools adds one.

    Without vinejax/tools the configuration stays unchanged; then `on_devices` raises ConfigError.
    Raises what `tools.plan.propose.with_row_for_devices` raises.
    """
    propose = contributed_class("HOOKS", "mesh_row") if cfg.meshes else None
    return propose(cfg) if propose else cfg
