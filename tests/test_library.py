"""Tests runs from Python: the arguments of `vinejax.train`, its errors, and its result."""

import inspect
import json
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest
from helpers import loop_cases as cases

import vinejax
from vinejax.config import default
from vinejax.core.errors import ConfigError, UserError
from vinejax.core.settings import Config
from vinejax.library import train
from vinejax.training import loop

CONFIG = """
from vinejax.config import default


def get_config(name="few"):
    cfg = default()
    cfg.iterations = 7
    cfg.data.task = "helpers.loop_cases"
    return cfg
"""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Path]]:
    """Calls of the loop, which trains nothing and leaves a record of the configuration."""
    calls: list[tuple[Config, Path]] = []

    def fake(cfg: Config, path: Any) -> Path:
        calls.append((cfg, Path(path)))
        Path(path).mkdir(parents=True)
        (Path(path) / "config.json").write_text("{}")
        return Path(path)

    monkeypatch.setattr(loop, "train", fake)
    return calls


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.py").write_text(CONFIG)
    return tmp_path / "few.py"


def test_a_config_file_with_overrides(file: Path, trained: list[tuple[Config, Path]]):
    found = train("few.py", {"ppo.clip": 1, "rollout.prompts": 3, "values.max_states": None})
    ((cfg, workdir),) = trained
    assert (cfg.iterations, cfg.ppo.clip, cfg.rollout.prompts) == (7, 1.0, 3)
    assert workdir == Path("runs/few") and str(found.workdir) == "runs/few"
    train(f"{file}:many", workdir="elsewhere")
    train(Path("few.py"), workdir=file.parent / "third")
    assert [path for _, path in trained[1:]] == [Path("elsewhere"), file.parent / "third"]


def test_fields_and_a_config_of_ones_own(tmp_path: Path, trained: list[tuple[Config, Path]]):
    fields = default()
    fields.iterations = 3
    train(fields, {"iterations": 4}, workdir=tmp_path / "a")
    assert fields.iterations == 3
    train(cases.config(seed=5), workdir=tmp_path / "b")
    assert [cfg.iterations for cfg, _ in trained] == [4, 3] and trained[1][0].seed == 5


@pytest.mark.parametrize(
    "config, overrides, message",
    [
        ("nothing.py", {}, r"^nothing\.py: no such file; see configs/"),
        ("few.py", {"ppo.klip": 1}, r"^ppo\.klip: no such field; the nearest one is ppo\.clip"),
        ("few.py", {"ppo": 1}, r"^ppo: is a group of fields"),
        ("few.py", {"iterations": "many"}, r"^iterations = 'many': must be of type int"),
        ("few.py", {"values.num_states": 2.0}, r"^values.num_states = 2.0: must be of type int"),
        ("few.py", {"iterations": -1}, r"^iterations = -1: must not be negative"),
        (
            "few.py",
            {"critic.lam": 1.0},
            r"^critic\.lam = 1\.0: is read by method = 'ppo'",
        ),
        (default(), {}, r"^workdir: name the folder of the run"),
        (Config(), {"iterations": 1}, r"^iterations: a Config takes no overrides"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    config: Any, overrides: dict[str, Any], message: str, file: Path, trained: list
):
    with pytest.raises(UserError, match=message) as error:
        train(config, overrides)
    assert "\n" not in str(error.value) and trained == []
    assert sorted(path.name for path in file.parent.iterdir()) == ["few.py"]
    if overrides:
        assert isinstance(error.value, ConfigError)


def test_a_folder_in_the_place_of_overrides_is_refused(file: Path, trained: list):
    untyped: Any = inspect.unwrap(train)  # tests check the types of all calls
    with pytest.raises(UserError, match=r"^overrides: give a dict such as .* not 'runs/few'$"):
        untyped("few.py", "runs/few")
    assert trained == []


def test_the_records_of_a_finished_run(finished_run: cases.Run):
    found = vinejax.run(finished_run.workdir)
    lines = (finished_run.workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for split, name in (("validation", "eval/pass_at_1"), ("test", "test/pass_at_1")):
        values = [record[name] for record in records if name in record]
        assert (found.start_accuracy[split], found.final_accuracy[split]) == (values[0], values[-1])
    assert found.iterations == 3
    iterations, rewards = found.curve("reward/mean")
    assert iterations == [0, 1, 2]
    assert rewards == [record["reward/mean"] for record in records if "reward/mean" in record]
    assert len(found.metrics) == len(records)
    assert all({"stage", "iteration"} < record.keys() for record in found.metrics)
    with pytest.raises(KeyError, match="no metric 'reward/means'; the nearest is 'reward/mean'"):
        found.curve("reward/means")
    assert f"{finished_run.workdir}, 3 iterations, validation pass@1" in repr(found)


def test_what_a_notebook_shows_is_well_formed_and_has_the_accuracies(finished_run: cases.Run):
    found = vinejax.run(finished_run.workdir)
    page = xml.fromstring(found._repr_html_())
    cells = ["".join(cell.itertext()) for cell in page.iter("td")]
    assert cells[0] == "validation" and cells[3] == "test"
    assert cells[1].startswith(f"{100 * found.start_accuracy['validation']:.1f}% (")
    assert cells[5].startswith(f"{100 * found.final_accuracy['test']:.1f}% (")
    (line,) = page.iter("polyline")
    points = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
    xs, values = found.curve("eval/pass_at_1")
    assert len(points) == len(xs) == 4 and points == sorted(points)
    for (_, y), value in zip(points, values, strict=True):
        assert y == pytest.approx(112 - 104 * value, abs=0.06)


def test_names_are_escaped_and_a_run_may_have_no_evaluation(tmp_path: Path):
    folder = tmp_path / "a<b>&c"
    folder.mkdir()
    with pytest.raises(UserError, match="holds no run"):
        vinejax.run(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')  # of an export
    with pytest.raises(UserError, match="holds no run"):
        vinejax.run(folder)
    (folder / "config.json").write_text("{}")
    found = vinejax.run(folder)
    assert (found.iterations, found.start_accuracy, found.metrics) == (0, {}, [])
    page = xml.fromstring(found._repr_html_())
    assert "a<b>&c" in "".join(page.itertext()) and "not evaluated yet" in "".join(page.itertext())
    record = {"iteration": 0, "step": 0, "stage": "eval", "eval/pass_at_1": 0.25}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    shown = xml.fromstring(vinejax.run(folder)._repr_html_())
    assert "25.0%" in [cell.text for cell in shown.iter("td")] and not list(shown.iter("svg"))


def test_a_run_without_a_file_needs_a_workdir():
    with pytest.raises(UserError, match="workdir: name the folder"):
        vinejax.train(cases.config(), workdir=None)
