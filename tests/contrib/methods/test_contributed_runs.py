"""Contributed methods through the loop, and trees on a mesh."""

from pathlib import Path
from typing import Any

import pytest
from helpers import eight_devices, method_runs
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.contrib.trees import TREES
from helpers.dying_runs import check_run_that_dies_after_every_stage
from helpers.paths import CONFIGS

from vinejax.contrib.names import METHODS
from vinejax.training.loop import train

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "spo_tree": {"spo_tree": {"branching": (3, 2), "segment": 4}},
    "treepo": {"treepo": {"segment": 8}},
    "popri": {"popri": {"problems": 4, "rank": 3}},
    "single_stream": {"rollout": {"prompts": 12, "per_prompt": 1}},
    "opd": {"opd": {"teacher": str(CONFIGS / "tiny_start")}},
    "sdpo": {"sdpo": {"text": "{solution}\n{question}"}},
}


@pytest.mark.parametrize("method", METHODS)
def test_one_iteration(method: str, start: str, tmp_path: Path):
    sampled, per_prompt = (12, 1) if method == "single_stream" else (4, 3)
    given = method, start, tmp_path, sampled, SMALL.get(method, {})
    method_runs.check_one_iteration(*given, per_prompt, is_tree=method in TREES)


def test_the_config_of_scaf_grpo_trains_for_three_iterations(tmp_path: Path):
    method_runs.check_config_file("contrib/tiny_scaf_grpo.py", tmp_path)


@pytest.mark.parametrize("method", ["single_stream", "spo_tree"])
def test_a_run_that_dies_after_every_stage(method: str, start: str, tmp_path: Path):
    """One that keeps values of problems, and one whose solutions are leaves."""
    fields = {"iterations": 2, "checkpoint": {"every": 1}, "model": {"path": start}}
    fields |= {"eval": {"every": 2, "samples": 2}} | SMALL[method]
    check_run_that_dies_after_every_stage(methods.config(method, **fields), tmp_path, start)


def test_a_prior_by_a_function_is_restored_with_the_policy(start: str, tmp_path: Path):
    values = method_runs.PROBED | {"k": 1, "prior": "helpers.contrib.priors.by_length"}
    sections = {"values": values, "credit": {"lambda_": 0.7, "baseline_lambda": 0.5}}
    method_runs.check_learned_value(start, tmp_path, sections)


def test_a_tree_with_options_of_the_core_trains(start: str, tmp_path: Path):
    sections = {
        "rollout": {"zero_variance": "resample"},
        "reward": {"overlong": 0.5},
        "kl": {"coef": 0.1},
    }
    lines = method_runs.run("treepo", start, tmp_path, iterations=2, **SMALL["treepo"], **sections)
    trained = [line for line in lines if line["stage"] == "train"]
    assert len(trained) == 2 and trained[-1]["total/updates"] > 0


# --- turns


DOORS = {"k": 9, "max_states": None}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a model that has learned to say arms."""
    workdir = tmp_path_factory.mktemp("doors")
    train(
        cases.in_doors(sft={"steps": 150, "batch": 12, "learning_rate": 1e-2}, values=DOORS),
        workdir,
    )
    return workdir / "warmup"


@pytest.mark.parametrize("method", ["arpo", "aepo"])
def test_methods_for_turns(method: str, doors: Path, tmp_path: Path):
    """All solutions are sampled, and those that branch off others save tokens."""
    cfg = cases.in_doors(method=method, model={"path": str(doors)}, values=DOORS)
    train(cfg, tmp_path)
    (line,) = [x for x in cases.read_lines(tmp_path / "metrics.jsonl") if x["stage"] == "train"]
    rows = cases.read_lines(tmp_path / "episodes" / "0.jsonl")
    assert line["total/episodes"] == len(rows) == cfg.rollout.prompts * cfg.rollout.per_prompt
    assert line["actor/grad_norm"] > 0 and line["rollout/logprob_diff/max"] < 1e-3
    drawn = line["response_length/mean"] * len(rows)
    assert line["total/tokens"] < drawn - 3


# --- a mesh


MESH = """
import jax
from helpers.contrib.trees import sample_trees
from helpers.paths import REPO
from vinejax.config.load import from_dict, from_file
from vinejax.core.settings import MeshConfig
from vinejax.engine.engine import Engine
from vinejax.model.hf.weights import load_pretrained
from vinejax.model.sharding import make_mesh, param_shardings
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.graded import GradedTask

TREES = {
    "spo_tree": {"branching": (2, 2), "segment": 6},
    "treepo": {"segment": 8},
    "treerl": {},
}
ROWS = ("response", "given", "nodes", "step_ends", "reward")
model, params, tokenizer = load_pretrained(str(REPO / "configs" / "tiny_start"))
mesh = make_mesh(MeshConfig(1, 2, 2))
placed = jax.device_put(params, param_shardings(mesh, params))
task = Arithmetic()
problems = [
    (p, tokenizer.encode(task.prompt(p), add_special_tokens=False)) for p in task.load("train")[:3]
]
for method, section in TREES.items():
    fields = from_file(str(REPO / "configs" / "tiny.py"), f"contrib/tiny_{method}.py")
    fields.rollout.per_prompt = 3
    for name, value in section.items():
        fields[method][name] = value
    cfg = from_dict(fields)
    graded = GradedTask(task, cfg.grader)
    engines = [
        (Engine(model, cfg.sample, tokenizer, slots=32), params),
        (Engine(model, cfg.sample, tokenizer, mesh=mesh, slots=16, chunk=5), placed),
    ]
    alone, split = (sample_trees(x, w, graded, problems, cfg, 4) for x, w in engines)
    assert len(alone) > 3 and any(len(leaf.nodes) > 1 for leaf in alone)
    for one, other in zip(alone, split, strict=True):
        assert [getattr(one, name) for name in ROWS] == [getattr(other, name) for name in ROWS]
print("done")
"""


def test_trees_do_not_depend_on_the_mesh():
    assert eight_devices.printed("-c", MESH)[-1] == "done"
