"""VineJAX: VinePPO in JAX. Public names load on first use, so that `import vinejax` is instant."""

import importlib
from typing import TYPE_CHECKING, Any

from vinejax.version import __version__ as __version__

if TYPE_CHECKING:
    from vinejax.core.settings import SampleConfig
    from vinejax.engine.branches import Branch
    from vinejax.engine.engine import Engine
    from vinejax.grading import Grader, Verdict, extract_answer, grade, grade_response
    from vinejax.library import RunSummary, run, train
    from vinejax.model.decoder import apply
    from vinejax.model.hf.weights import load_pretrained, save_pretrained
    from vinejax.rl.advantages import gae, group_advantages, step_advantages, token_advantages
    from vinejax.rl.by_role import role_advantages
    from vinejax.rl.losses import kl, ppo_clip, value_clip
    from vinejax.rl.masked import whiten
    from vinejax.rl.values import mc_values
    from vinejax.tasks.steps import split_steps

_MODULES = {
    "vinejax.library": ("RunSummary", "run", "train"),
    "vinejax.core.settings": ("SampleConfig",),
    "vinejax.model.decoder": ("apply",),
    "vinejax.model.hf.weights": ("load_pretrained", "save_pretrained"),
    "vinejax.rl.advantages": ("gae", "group_advantages", "step_advantages", "token_advantages"),
    "vinejax.rl.by_role": ("role_advantages",),
    "vinejax.rl.losses": ("kl", "ppo_clip", "value_clip"),
    "vinejax.rl.masked": ("whiten",),
    "vinejax.rl.values": ("mc_values",),
    "vinejax.engine.branches": ("Branch",),
    "vinejax.engine.engine": ("Engine",),
    "vinejax.grading": ("Grader", "Verdict", "extract_answer", "grade", "grade_response"),
    "vinejax.tasks.steps": ("split_steps",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Branch",
    "Engine",
    "Grader",
    "RunSummary",
    "SampleConfig",
    "Verdict",
    "apply",
    "extract_answer",
    "gae",
    "grade",
    "grade_response",
    "group_advantages",
    "kl",
    "load_pretrained",
    "mc_values",
    "ppo_clip",
    "role_advantages",
    "run",
    "save_pretrained",
    "split_steps",
    "step_advantages",
    "token_advantages",
    "train",
    "value_clip",
    "whiten",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'vinejax' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
