"""The differences between methods: one record for each method, and nowhere else.

Sampling, grading, scoring, the optimizer, evaluation, checkpoints and the log are the same for
all. `docs/methods.md` has the equations, and an example of a method of a user's own.

Nothing heavy is imported here, so that the command line can check a configuration at once: a
record names functions by their dotted path, or holds the function itself.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from vinejax.core.errors import ConfigError, nearest_hint
from vinejax.core.plugins import failure, find_function, find_module, source_of
from vinejax.core.settings import Config

Function = str | Callable[..., Any]  # 'package.module.function', or the function

CREDIT = "vinejax.credit.advantages"
ON_TREES = "vinejax.credit.tree_advantages"
GROWTH = "vinejax.credit.tree_growth"
POLICY = "vinejax.learner.policy"


@dataclasses.dataclass(frozen=True)
class Method:
    """One method. The defaults are those of a clipped policy gradient on one policy."""

    # (Rollout, Config) -> Credit, see credit/advantages.py. None: the method has no advantages.
    credit: Function | None
    # (log-probabilities, Batch, Objective) -> PolicyLoss, see learner/policy.py.
    loss: Function = f"{POLICY}.clipped"
    whiten: str = "none"  # what `ppo.whiten` = 'method' means: 'iteration', 'minibatch' or 'none'
    reduction: str = "token"  # what `ppo.reduction` = 'method' means: see `token_weights`
    clip_high: float | None = None  # the upper clip where `ppo.clip_high` is None; None: `ppo.clip`
    values: str | None = None  # values of states: 'monte_carlo', 'critic', 'tracker' or None
    positions: str = "steps"  # the rules of step credit, see credit/rules.py: where states are,
    allocation: str = "uniform"  # how many continuations each has,
    mask: str = "none"  # and which tokens are trained on
    # (wave, paths, Config, rng) -> branches, see credit/tree_growth.py; solutions are leaves.
    tree: Function | None = None
    trains_nodes_once: bool = False  # tokens that leaves share are trained on in the first of them
    kl_in_reward: bool = False  # the credit has subtracted the KL: the loss does not add it again
    needs_groups: bool = False  # a solution is compared with the others of its problem
    needs_spread: bool = False  # groups of equal rewards are replaced by sampling again
    sections: tuple[str, ...] = ()  # of `Config`, read by this method beside what all methods read
    ignores: tuple[str, ...] = ()  # sections of `Config` that all methods read but this one
    iteration: str = "policy_gradient"  # the function of iterations.py that runs one


METHODS = {
    "vineppo": Method(
        f"{CREDIT}.vine",
        whiten="iteration",
        values="monte_carlo",
        sections=("values", "credit"),
    ),
    "ppo": Method(f"{CREDIT}.critic", whiten="iteration", values="critic", sections=("critic",)),
    "spo_chain": Method(
        f"{CREDIT}.vine",
        whiten="iteration",
        values="monte_carlo",
        positions="low_probability",
        mask="low_probability",
        sections=("values", "credit"),
    ),
    "spo_tree": Method(
        f"{ON_TREES}.spo_tree",
        whiten="iteration",
        mask="low_probability",
        tree=f"{GROWTH}.levels",
        trains_nodes_once=True,
        sections=("spo_tree", "credit"),
    ),
    "treepo": Method(
        f"{ON_TREES}.treepo",
        whiten="iteration",
        clip_high=0.28,
        tree=f"{GROWTH}.fixed_width",
        needs_groups=True,
        sections=("treepo",),
    ),
    "treerl": Method(
        f"{ON_TREES}.treerl", tree=f"{GROWTH}.surprising_tokens", sections=("treerl",)
    ),
    "tree_grpo": Method(
        f"{ON_TREES}.tree_grpo", tree=f"{GROWTH}.random_steps", sections=("tree_grpo",)
    ),
    "tempo": Method(f"{ON_TREES}.tempo", needs_groups=True),
    "grpo": Method(f"{CREDIT}.grpo", needs_groups=True),
    "rloo": Method(f"{CREDIT}.rloo", needs_groups=True),
    "dr_grpo": Method(f"{CREDIT}.group_mean", reduction="budget", needs_groups=True),
    "dapo": Method(
        f"{CREDIT}.dapo", clip_high=0.28, needs_groups=True, needs_spread=True, sections=("dapo",)
    ),
    "reinforce++": Method(f"{CREDIT}.return_to_go", whiten="iteration", kl_in_reward=True),
    "opmd": Method(
        f"{CREDIT}.group_mean", loss=f"{POLICY}.opmd", needs_groups=True, sections=("opmd",)
    ),
    "asymre": Method(
        f"{CREDIT}.shifted_mean",
        loss=f"{POLICY}.reinforce",
        needs_groups=True,
        sections=("asymre",),
    ),
    "single_stream": Method(
        f"{CREDIT}.against_tracker", clip_high=0.28, values="tracker", sections=("single_stream",)
    ),
    "restem": Method(None, sections=("restem",), iteration="restem"),
    "dpo_positive": Method(None, needs_groups=True, sections=("dpo",), iteration="dpo_positive"),
    "sft": Method(None, ignores=("optimizer",), iteration="supervised"),
}


def find_method(name: str) -> Method:
    """The method that the field `method` names: in METHODS, or METHOD of a user's module.

    Raises ConfigError, naming the nearest name in METHODS, for anything else, and with file and
    line if the user's module fails.
    """
    if name in METHODS:
        return METHODS[name]
    known = " or ".join(map(repr, METHODS))
    rule = f"must be {known}, or the dotted path of a module with a METHOD"
    if "." not in name:
        raise ConfigError("method", rule + nearest_hint(name, METHODS), repr(name))
    try:
        module = find_module(name)
    except Exception as error:
        raise ConfigError("method", failure(error, source_of(name)), repr(name)) from error
    if module is None:
        raise ConfigError("method", f"no such module; it {rule}", repr(name))
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise ConfigError(
            "method", "the module has no METHOD, a vinejax.methods.Method", repr(name)
        )
    return method


def policy_reduction(cfg: Config) -> str:
    """The reduction of the policy loss in this configuration: see `token_weights`."""
    chosen = cfg.ppo.reduction
    return find_method(cfg.method).reduction if chosen == "method" else chosen


def function_of(function: Function) -> Callable[..., Any]:
    """The function that a record names or holds; ConfigError if its dotted path has none."""
    found = function if callable(function) else find_function(function)
    if found is None:
        raise ConfigError("method", f"no function {function}")
    return found
