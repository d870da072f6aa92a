"""The example of docs/methods.md is a method, lives outside the package, and trains."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.paths import REPO

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.core.errors import ConfigError
from vinejax.methods import METHODS, Method, find_method, function_of
from vinejax.training.loop import train

NAME = "mymethods.fading"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    page = (REPO / "docs" / "methods.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "Save as mymethods/fading.py" in source and f"method={NAME}" in source
    folder = tmp_path / "mymethods"
    folder.mkdir()
    (folder / "fading.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (NAME, "mymethods"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return source


def test_the_example_is_short(source: str):
    assert source.count("\n") <= 40


def test_its_advantages_fade(source: str):
    cfg = cases.config(method=NAME, values={"k": 9, "max_states": None})
    check_config(cfg)
    fading = np.asarray(methods.credit(cfg).advantages)
    plain = np.asarray(methods.credit(methods.config("rloo")).advantages)
    for row, (prompt, length) in enumerate(methods.LENGTHS):
        expected = plain[row, prompt : prompt + length] * (1 - np.arange(length) / length)
        np.testing.assert_allclose(fading[row, prompt : prompt + length], expected, rtol=1e-6)
    assert np.abs(fading).max() > 0.1


@pytest.mark.slow
def test_it_trains(source: str, finished_run: cases.Run, tmp_path: Path):
    start = {"path": str(finished_run.workdir / "warmup")}
    cfg = cases.config(method=NAME, model=start, iterations=2, values={"k": 9, "max_states": None})
    workdir = train(cfg, tmp_path / "run")
    lines = [x for x in cases.read_lines(Path(workdir) / "metrics.jsonl") if x["stage"] == "train"]
    assert len(lines) == 2 and all(x["actor/grad_norm"] > 0 for x in lines)
    assert (workdir / "report.html").exists()


def test_its_groups_need_two_solutions(source: str):
    with pytest.raises(ConfigError, match="rollout.per_prompt = 1: must be at least 2"):
        check_config(from_dict({"method": NAME, "rollout": {"per_prompt": 1}}))


def test_a_section_of_another_method_is_refused(source: str):
    with pytest.raises(ConfigError, match="values.k = 3: is read by method = 'vineppo' or"):
        check_config(from_dict({"method": NAME, "values": {"k": 3}}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dappo", "the nearest is 'dapo'"),
        ("mymethods.none", "no such module"),
        ("no_such.module", "no such module"),
        ("vinejax.core.seeds", "the module has no METHOD"),
        ("mymethods.fad ing", "must be 'vineppo' or"),
    ],
)
def test_what_names_no_method_is_one_line(source: str, name: str, message: str):
    with pytest.raises(ConfigError) as error:
        find_method(name)
    assert error.value.field == "method"
    assert message in str(error.value) and "\n" not in str(error.value)


def test_every_function_that_a_record_names_is_there():
    functions = [f for x in METHODS.values() for f in (x.credit, x.loss) if f is not None]
    assert all(callable(function_of(function)) for function in functions) and len(functions) > 12
    with pytest.raises(ConfigError, match="no function vinejax.credit.advantages.nothing"):
        function_of("vinejax.credit.advantages.nothing")
    assert Method(None).iteration == "policy_gradient"
