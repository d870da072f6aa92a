"""The example of docs/methods.md is a method, lives outside the package, and trains."""

import importlib
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.paths import REPO
from helpers.refusals import refuses

from vinejax.config import default
from vinejax.config.checks import check_config
from vinejax.config.load import fields_set, from_dict, override
from vinejax.core.errors import ConfigError
from vinejax.core.settings import as_tree
from vinejax.credit.assign import Credit
from vinejax.learner.batch import collate
from vinejax.methods.known import find_method, known_method
from vinejax.training.loop import train

NAME = "mymethods.degrpo"
K = {"k": 9, "max_states": None}  # as the default configuration has them


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    page = (REPO / "docs" / "methods.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "Save as mymethods/degrpo.py" in source and f"method={NAME}" in source
    folder = tmp_path / "mymethods"
    folder.mkdir()
    (folder / "degrpo.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (NAME, "mymethods"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return source


def test_the_example_is_short(source: str):
    assert source.count("\n") <= 55


def loss_of(credit: Credit, tokens: np.ndarray) -> float:
    """The token mean of advantages times these numbers, one per response token in order."""
    mask = np.asarray(methods.batch().mask)
    return float(np.sum(np.asarray(credit.advantages)[mask] * tokens) / mask.sum())


def test_first_tokens_count_apart(source: str):
    """α·(mean over first tokens of A·x) + mean over the others, for any x."""
    first_ids = [episode.response[0] for episode in methods.episodes()]
    cfg = cases.config(method=NAME, values=K, degrpo={"alpha": 0.001, "short": first_ids[0]})
    check_config(cfg)
    right = np.array(methods.REWARDS) >= 1
    is_short = np.array(first_ids) == first_ids[0]
    rewards = np.where(right, np.where(is_short, 1.0, 0.5), -1.0)
    assert sorted(set(rewards)) == [-1.0, 0.5, 1.0]
    advantages = rewards - np.repeat([rewards[:4].mean(), rewards[4:].mean()], 4)
    x = np.random.default_rng(0).normal(size=sum(n for _, n in methods.LENGTHS))
    parts = np.split(x, np.cumsum([n for _, n in methods.LENGTHS])[:-1])
    first = [a * part[0] for a, part in zip(advantages, parts, strict=True)]
    others = [a * y for a, part in zip(advantages, parts, strict=True) for y in part[1:]]
    expected = 0.001 * np.mean(first) + np.mean(others)
    np.testing.assert_allclose(loss_of(methods.credit(cfg), x), expected, rtol=1e-5)


def test_the_mean_of_first_and_the_mean_of_other_tokens_by_hand(source: str):
    """Two solutions of 3 and 4 tokens whose advantages are 1 and -1."""
    solutions = [
        cases.episode([1, 3], [5, 6, 7], reward=1.0, problem_id="p"),
        cases.episode([1, 3], [9, 6, 7, 8], reward=0.0, problem_id="p"),
    ]
    rows = collate(solutions, 2)
    cfg = cases.config(method=NAME, values=K, degrpo={"short": 5})
    found = np.asarray(methods.credit(cfg, rows=rows, solutions=solutions).advantages)
    x = np.zeros(rows.mask.shape)
    x[rows.mask] = [-0.7, 0.2, 0.4, -0.3, 0.1, 0.3, -0.5]  # the second's with the sign turned
    np.testing.assert_allclose((found * x).sum() / 7, 0.1398, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("None", r"wrong.py:3: gave NoneType; needed is a Credit with advantages \[B, T\] = "),
        ("(1.0, 2.0)", "wrong.py:3: gave tuple; needed is a Credit"),
        ("Credit([0.0, 1.0])", r"wrong.py:3: gave Credit with advantages \[2\]; needed"),
        ("Credit(None)", r"wrong.py:3: gave Credit with advantages \[\]; needed"),
        *(
            (
                f"Credit(1.0 * rollout.batch.mask, {name}=rollout.batch.mask[1])",
                rf"wrong.py:3: gave Credit with {name} \[\d+\]; needed is \[B, {letter}\] = ",
            )
            for name, letter in {
                **dict.fromkeys(("mask", "loss_extra", "returns"), "T"),
                **dict.fromkeys(("by_step", "values"), "C"),
            }.items()
        ),
        ("rollout.nothing", "wrong.py:4: AttributeError: .*nothing"),
    ],
)
def test_a_credit_of_a_wrong_kind_is_one_line(source: str, tmp_path: Path, body: str, rule: str):
    text = f"""from vinejax.credit.assign import Credit
from vinejax.methods.base import Method
def credit(rollout, cfg):
    return {body}
METHOD = Method(credit)
"""
    (tmp_path / "mymethods/wrong.py").write_text(text, encoding="utf-8")
    sys.modules.pop("mymethods.wrong", None)
    importlib.invalidate_caches()
    cfg = cases.config(method="mymethods.wrong", values=K)
    with pytest.raises(ConfigError, match=f"^method = 'mymethods.wrong': .*{rule}") as error:
        methods.credit(cfg)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (
            "-logprobs",
            r"wrong.py:4: gave \w+; needed is a PolicyLoss of arrays \[B, T\] = \[2",
        ),
        ("PolicyLoss(-logprobs[0])", r"wrong.py:4: gave PolicyLoss \[3\]; needed"),
        ("PolicyLoss(None)", "wrong.py:4: gave PolicyLoss; needed"),
        ("batch.nothing", "wrong.py:5: AttributeError: .*nothing"),
    ],
)
def test_a_loss_of_a_wrong_kind_is_one_line(source: str, tmp_path: Path, body: str, rule: str):
    text = f"""from vinejax.learner.policy import PolicyLoss
from vinejax.methods.base import Method
from vinejax.methods.baselines import RLOO
def loss(logprobs, batch, objective):
    return {body}
METHOD = Method(RLOO.credit, loss=loss)
"""
    (tmp_path / "mymethods/wrong.py").write_text(text, encoding="utf-8")
    sys.modules.pop("mymethods.wrong", None)
    importlib.invalidate_caches()
    cfg = cases.config(method="mymethods.wrong", values=K)
    method = find_method(cfg.method)
    objective = method.objective(cases.model(), method.resolve(cfg))
    assert method.objective(cases.model(), method.resolve(cfg)) == objective  # one program
    with pytest.raises(ConfigError, match=f"^method = 'mymethods.wrong': .*{rule}") as error:
        objective.loss(jnp.zeros((2, 3)), methods.batch(), objective)
    assert "\n" not in str(error.value)


def test_its_settings_are_fields_of_the_configuration(source: str):
    fields = default()
    fields.method = NAME
    fields.degrpo.alpha = 0.25
    override(fields, {"degrpo.long": 0.75})
    cfg = from_dict(fields)
    check_config(cfg, fields_set(fields))
    assert {"degrpo.alpha", "degrpo.long"} <= fields_set(fields)
    assert as_tree(cfg)["degrpo"] == {"alpha": 0.25, "short": 0, "long": 0.75}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("degrpo.alfa", "degrpo.alfa: no such field; the nearest one is degrpo.alpha"),
        ("degrpo", "degrpo: is a group of fields; set one of them, such as degrpo.alpha$"),
    ],
)
def test_a_name_that_is_none_of_its_settings_finds_them(source: str, name: str, message: str):
    fields = default()
    fields.method = NAME
    with pytest.raises(ConfigError, match=f"^{message}"):
        override(fields, {name: 0.5})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"degrpo": {"long": 2.0}}, "degrpo.long = 2.0: must be from 0 to 1"),
        ({"degrpo": {"longer": 2.0}}, "degrpo.longer: no such field"),
        ({"degrpo": {"long": "much"}}, "degrpo.long = 'much': must be of type float"),
        ({"degrpo": {"long": 0.5}, "method": "rloo"}, "degrpo: no such field"),
    ],
)
def test_what_is_wrong_with_its_settings_is_one_line(source: str, fields: dict, message: str):
    with pytest.raises(ConfigError) as error:
        check_config(from_dict({"method": NAME, "values": K} | fields))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.slow
def test_it_trains(source: str, finished_run: cases.Run, tmp_path: Path):
    start = {"path": str(finished_run.workdir / "warmup")}
    cfg = cases.config(method=NAME, model=start, iterations=2, values=K)
    workdir = train(cfg, tmp_path / "run")
    lines = [x for x in cases.read_lines(Path(workdir) / "metrics.jsonl") if x["stage"] == "train"]
    assert len(lines) == 2 and all(x["actor/grad_norm"] > 0 for x in lines)


def test_its_groups_need_two_solutions(source: str):
    with refuses("rollout.per_prompt"):
        check_config(from_dict({"method": NAME, "rollout": {"per_prompt": 1}}))


def test_a_section_of_another_method_is_refused(source: str):
    with refuses("values.k"):
        check_config(from_dict({"method": NAME, "values": {"k": 3}}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dappo", "the nearest is 'dapo'"),
        ("mymethods.none", "no such module in the current folder or on PYTHONPATH"),
        ("no_such.module", "no such module in the current folder or on PYTHONPATH"),
        ("json", "must be 'vineppo' or"),  # Python's own, which is not imported
        ("vinejax.core.seeds", "the module has no METHOD"),
        ("mymethods.de grpo", "must be 'vineppo' or"),
    ],
)
def test_what_names_no_method_is_one_line(source: str, name: str, message: str):
    with refuses("method") as error:
        find_method(name)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["own_file_method", "own_file_method.py"])
def test_a_method_in_one_file_is_named_by_the_file(name: str, source: str, tmp_path: Path):
    (tmp_path / "own_file_method.py").write_text(source, encoding="utf-8")
    sys.modules.pop("own_file_method", None)
    importlib.invalidate_caches()
    fields = default()
    fields.method = name
    fields.degrpo.alpha = 0.25
    cfg = from_dict(fields)
    check_config(cfg, fields_set(fields))
    method = find_method(name)
    assert method.is_users and method.reads_reference(cfg) and as_tree(cfg)["degrpo"]["alpha"]
    fields.method = "rloo"
    assert from_dict(fields).method == "rloo" and not find_method("rloo").is_users


def test_a_file_with_the_name_of_a_method_is_not_that_method(source: str, tmp_path: Path):
    for name in ("grpo", "grpoo"):
        (tmp_path / f"{name}.py").write_text("x = 1", encoding="utf-8")
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    assert find_method("grpo") is known_method("grpo")
    with pytest.raises(ConfigError, match="grpoo.py: the module has no METHOD.*nearest is 'grpo'"):
        find_method("grpoo")


def test_its_settings_may_stand_before_it(source: str):
    fields = default()
    override(fields, {"degrpo.alpha": 0.25, "method": NAME})
    assert as_tree(from_dict(fields))["degrpo"]["alpha"] == 0.25
    with pytest.raises(ConfigError, match="^degrpo.alpha: no such field"):
        override(default(), {"degrpo.alpha": 0.25})


def test_its_section_goes_with_it(source: str):
    fields = default()
    fields.method = NAME
    fields.method = "rloo"
    fields.rollout.per_prompt = 4
    assert from_dict(fields).method == "rloo"


@pytest.mark.parametrize(
    "lines",
    [
        'section: ClassVar[str] = "values"',
        'section: ClassVar[str] = "critic"',
        "strong: float = 1.0",
        'section: ClassVar[str] = "odd"\n    strong: float',
    ],
)
def test_settings_that_no_configuration_could_have_are_refused(
    lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    head = (
        "import dataclasses\nfrom typing import ClassVar\n"
        "from vinejax.core.settings import MethodSettings\n"
        "from vinejax.methods.base import Method\n"
        "@dataclasses.dataclass(frozen=True)\nclass Own(MethodSettings):\n    "
    )
    (tmp_path / "odd_method.py").write_text(f"{head}{lines}\nMETHOD = Method(None, settings=Own)\n")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "method.py").write_text((tmp_path / "odd_method.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("odd", "odd.method"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with refuses("method"):
        find_method("odd.method")
