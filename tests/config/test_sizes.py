"""Tests that sizes that no run can mean raise an error, and that sizes of real runs do not."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers.paths import REPO
from helpers.refusals import refuses

from vinejax.config import sizes
from vinejax.config.load import default, from_dict
from vinejax.core.settings import Config
from vinejax.methods.known import find_method
from vinejax.training.startup import open_session


@pytest.fixture(autouse=True)
def _host_of_16_gib(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sizes, "host_memory", lambda: 16 * 2**30)


def config(**fields: Any) -> Config:
    """configs/tiny.py with other values, by dotted names with two underscores for a dot."""
    cfg: Any = runpy.run_path(str(REPO / "configs/tiny.py"))["get_config"]()
    for name, value in fields.items():
        section, _, field = name.partition("__")
        cfg[section][field] = value
    return from_dict(cfg)


def check_sizes(cfg: Config) -> None:
    sizes.check_sizes(cfg, find_method(cfg.method))


@pytest.mark.parametrize(
    ("field", "value", "other", "amount"),
    [
        ("rollout__per_prompt", 10**7, {}, "408 GiB"),
        ("values__k", 10**6, {}, "3,914 GiB"),
        ("eval__samples", 10**7, {}, "13 GiB"),
        ("model__width", 10**6, {"model__path": ""}, "9,001,728,000,000 weights"),
        ("model__num_layers", 10**7, {"model__path": ""}, "491,520,000,000 weights"),
        ("sft__batch", 10**9, {"model__path": ""}, "1,000,000,000 rows of 80 tokens"),
    ],
)
def test_what_no_host_holds_is_refused(field: str, value: int, other: dict[str, Any], amount: str):
    with refuses(field.replace("__", ".")) as error:
        check_sizes(config(**{field: value}, **other))
    assert amount in str(error.value)


def test_too_many_continuations_are_of_k():
    cfg: Any = default()
    cfg.values.max_states, cfg.values.prior, cfg.values.k = None, "probe", 10**6
    with refuses("values.k"):
        check_sizes(from_dict(cfg))


def test_rows_of_methods_with_a_fixed_set_of_solutions_are_refused():
    cfg: Any = default()
    cfg.method, cfg.ppo.minibatch = "restem", 10**9
    with refuses("ppo.minibatch"):
        check_sizes(from_dict(cfg))


@pytest.mark.parametrize("file", sorted(REPO.glob("configs/*.py")), ids=lambda file: file.stem)
def test_configurations_that_ship_fit(file: Path):
    module = runpy.run_path(str(file))
    if "get_config" in module and module["get_config"].__code__.co_argcount == 0:
        check_sizes(from_dict(module["get_config"]()))


def test_an_upper_bound_on_the_branches_of_a_phase():
    problems = {"test": [None] * 512}
    cfg = config()
    assert sizes.most_branches(cfg, find_method(cfg.method), problems) == 110_592
    cfg = config(eval__samples=300)
    assert sizes.most_branches(cfg, find_method(cfg.method), problems) == 153_600


def test_answers_that_no_host_holds():
    problems = {"test": [None] * 512}
    with refuses("eval.samples"):
        sizes.check_answers(config(eval__samples=40_000), problems)
    few = {"train": [None] * 512, "test": [None]}
    sizes.check_answers(config(eval__samples=40_000), few)


@pytest.mark.parametrize(
    ("minibatch", "microbatch", "shards", "taken"),
    [(4096, None, 1, 256), (64, None, 1, 64), (4096, 64, 1, 256), (300, 100, 1, 300)]
    + [(4098, 6, 4, 264), (256, None, 1, 256)],
)
def test_a_minibatch_has_no_rows_without_a_solution(minibatch, microbatch, shards, taken):
    cfg = config(ppo__minibatch=minibatch, ppo__microbatch=microbatch)
    found = sizes.with_fitting_minibatch(cfg, find_method(cfg.method), shards).ppo
    assert (found.minibatch, found.microbatch) == (taken, microbatch)


def test_the_record_keeps_the_minibatch_as_it_was_set(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    """The same command can resume, because the record has the minibatch as it was set."""
    path = {"path": str(REPO / "configs/tiny_start")}
    cfg = cases.config(ppo={"minibatch": 400, "microbatch": 4}, model=path)
    for _ in range(2):
        with open_session(cfg, tmp_path, trains=True) as session:
            assert session.cfg.ppo.minibatch == 12
        said = "ppo.minibatch = 400: an iteration has 12 solutions; it is taken as 12\n"
        assert said in capsys.readouterr().out
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["config"]["ppo"]["minibatch"] == 400
    refused = cases.config(ppo={"minibatch": 400, "microbatch": 4}, eval={"samples": 10**8})
    with refuses("eval.samples"):
        open_session(refused, tmp_path / "other")
    assert not (tmp_path / "other").exists()
