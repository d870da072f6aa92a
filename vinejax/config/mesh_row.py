"""Adds a row to `meshes` if no row of the configuration fits the devices of this process."""

from vinejax.core.accessories import contributed_class
from vinejax.core.settings import Config


def with_row_for_devices(cfg: Config) -> Config:
    """The configuration; if no row of `meshes` fits the devices, it gets another row, which does.

    vinejax/tools chooses this row. An empty `meshes` stays empty.

    Without vinejax/tools the configuration stays unchanged; then `on_devices` raises ConfigError.
    Raises what `tools.plan.propose.with_row_for_devices` raises.
    """
    propose = contributed_class("HOOKS", "mesh_row") if cfg.meshes else None
    return propose(cfg) if propose else cfg
