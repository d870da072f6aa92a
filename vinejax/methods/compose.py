"""The method of a run: a record of stages, wrapped by the options that the configuration sets.

Options are contributed (`vinejax/contrib/`) and each wraps the stages that it changes, so that no
stage asks which options there are.
"""

from vinejax.core.accessories import contributed_module
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.methods.base import Method
from vinejax.methods.known import find_method

PRIOR = "prior_function"  # the option of a `values.prior` that is the dotted path of a function


def method_of(cfg: Config) -> Method:
    """The method that `cfg.method` names, with the stages of the options that are set.

    Raises ConfigError as `find_method` does, and where an option does not fit the method.
    """
    method = find_method(cfg.method)
    for name in options_of(cfg):
        if option := contributed_module("OPTIONS", name):
            method = option.composed(method, cfg)
    return method


def options_of(cfg: Config) -> list[str]:
    """The names of the options that a configuration sets; those that act on no stage, too."""
    names = [*cfg.sections]
    if cfg.values.prior not in ("", "probe"):
        if contributed_module("OPTIONS", PRIOR) is None:
            raise ConfigError("values.prior", "must be '' or 'probe'", repr(cfg.values.prior))
        names.append(PRIOR)
    return names
