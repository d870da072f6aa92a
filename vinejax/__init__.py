"""VineJAX: VinePPO in JAX. Public names load on first use, so that `import vinejax` is instant."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vinejax.grading import Grader, Verdict, extract_answer, grade, grade_response
    from vinejax.model.decoder import apply
    from vinejax.model.hf.weights import load_pretrained, save_pretrained
    from vinejax.rl.advantages import gae, group_advantages, step_advantages, token_advantages
    from vinejax.rl.losses import kl, ppo_clip, value_clip
    from vinejax.rl.masked import whiten
    from vinejax.rl.values import mc_values
    from vinejax.rollout.branches import Branch
    from vinejax.rollout.engine import Engine
    from vinejax.settings import SampleConfig
    from vinejax.tasks.steps import split_steps

_HOMES = {
    "SampleConfig": "vinejax.settings",
    "apply": "vinejax.model.decoder",
    "load_pretrained": "vinejax.model.hf.weights",
    "save_pretrained": "vinejax.model.hf.weights",
    "gae": "vinejax.rl.advantages",
    "group_advantages": "vinejax.rl.advantages",
    "step_advantages": "vinejax.rl.advantages",
    "token_advantages": "vinejax.rl.advantages",
    "kl": "vinejax.rl.losses",
    "ppo_clip": "vinejax.rl.losses",
    "value_clip": "vinejax.rl.losses",
    "whiten": "vinejax.rl.masked",
    "mc_values": "vinejax.rl.values",
    "Branch": "vinejax.rollout.branches",
    "Engine": "vinejax.rollout.engine",
    "Grader": "vinejax.grading",
    "Verdict": "vinejax.grading",
    "extract_answer": "vinejax.grading",
    "grade": "vinejax.grading",
    "grade_response": "vinejax.grading",
    "split_steps": "vinejax.tasks.steps",
}

__all__ = [
    "Branch",
    "Engine",
    "Grader",
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
    "save_pretrained",
    "split_steps",
    "step_advantages",
    "token_advantages",
    "value_clip",
    "whiten",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vinejax' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
