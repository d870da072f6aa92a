"""A row of `meshes` for the devices of this process, where the configuration has none for them."""

from vinejax.core.accessories import contributed_class
from vinejax.core.settings import Config


def with_row_for_devices(cfg: Config) -> Config:
    """The configuration with a row that the tools propose, if it has rows and none that fits.

    Without the tools the configuration stays as it is, and `on_devices` refuses the devices. Raises
    as `tools.plan.propose.with_row_for_devices` does.
    """
    propose = contributed_class("HOOKS", "mesh_row") if cfg.meshes else None
    return propose(cfg) if propose else cfg
