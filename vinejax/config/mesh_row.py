"""Chooses a row of `meshes` for the devices of this process if none of the configuration's fits."""

from vinejax.core.accessories import contributed_class
from vinejax.core.settings import Config


def with_row_for_devices(cfg: Config) -> Config:
    """The configuration with a row that the tools propose, if it has rows but none that fits.

    Without the tools the configuration stays as it is, and `on_devices` raises ConfigError. Raises
    what `tools.plan.propose.with_row_for_devices` raises.
    """
    propose = contributed_class("HOOKS", "mesh_row") if cfg.meshes else None
    return propose(cfg) if propose else cfg
