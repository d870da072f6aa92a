"""VineJAX: VinePPO in JAX. Public names load on first use, so that `import vinejax` is instant."""

from etils import epy

from vinejax.version import __version__ as __version__

with epy.lazy_api_imports(globals()):
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
