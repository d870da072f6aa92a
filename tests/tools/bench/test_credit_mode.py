"""--mode=credit on a run's workdir, with its critic."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from helpers import loop_cases as cases
from helpers.applied import applied
from helpers.paths import CONFIGS, REPO
from helpers.refusals import refuses

from vinejax.config.load import from_dict, from_file
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.methods.known import METHODS, all_methods
from vinejax.tools.bench.bench_mode import chosen_estimators, credit_bench, with_open_choices
from vinejax.tools.bench.estimators import ESTIMATORS, RUN, estimator_config, reads_logprobs
from vinejax.tools.bench.settings import BenchConfig
from vinejax.training.loop import train

SIZES = {"problems": 3, "repeats": 3, "exact": 2, "reference": 240, "truth": 5, "states": 6}
SIZES |= {"ranked": 6}


def config(**bench):
    bench = SIZES | bench
    return cases.config(
        method="ppo", iterations=1, values={"k": 9, "max_states": None}, bench=bench
    )


@pytest.mark.slow
def test_a_run_with_a_critic(tmp_path, capsys):
    train(config(), tmp_path)
    names = ("rloo", "ppo", "vineppo_k3", "blend_k1", "exact")
    result = credit_bench(config(estimators=names), tmp_path)
    record = json.loads((tmp_path / "credit" / "bench.json").read_text())
    assert result.policy == record["policy"] == "checkpoints/1"
    assert list(record["rows"]) == list(names)
    assert record["reference_solutions"] == 240 and record["price"]["w"] > 0
    for name, row in record["rows"].items():
        assert row["gradient"]["repeats"] == (2 if name == "exact" else 3)
        assert row["tokens"] > 0 and row["seconds"] > 0
        assert row["values"]["states"] > 0
    # The costs are those of the baseline, and of more tokens for an estimator that samples.
    assert record["rows"]["rloo"]["token_cost"]["value"] == 1
    assert record["rows"]["ppo"]["tokens"] == record["rows"]["rloo"]["tokens"]
    assert record["rows"]["exact"]["tokens"] > record["rows"]["vineppo_k3"]["tokens"]
    assert record["rows"]["rloo"]["price_costs"]["0.14"]["value"] == 1
    assert result.rows["blend_k1"].worth is None and result.rows["vineppo_k3"].worth is not None
    shown = capsys.readouterr().out
    assert all(name in shown for name in names) and "per trained token" in shown


@pytest.mark.slow
def test_a_run_that_trains_adapters(start: str, tmp_path):
    """Gradients are those of the adapters, of whose two factors one is 0 at the start."""
    model = {"path": start, "lora_rank": 2}
    bench = SIZES | {"estimators": ("rloo", "vineppo_k1"), "repeats": 2, "exact": 1}
    cfg = cases.config(iterations=1, model=model, bench=bench, values={"k": 9, "max_states": None})
    result = credit_bench(cfg, tmp_path / "new")
    assert result.policy == "the start" and result.price.w > 0
    train(cfg, tmp_path / "run")
    result = credit_bench(cfg, tmp_path / "run")
    assert result.policy == "checkpoints/1" and set(result.rows) == {"rloo", "vineppo_k1"}
    assert all(row.gradient.repeats == 2 for row in result.rows.values())


def test_estimators_have_nothing_of_the_runs_own_method():
    cfg = cases.config(method="spo_chain", values={"k": 2, "max_states": 4})
    assert estimator_config(cfg, RUN) == applied(cfg)
    made = estimator_config(cfg, "vineppo_k3")
    assert made.method == "vineppo" and made.values.k == 3 and made.values.max_states is None
    assert estimator_config(cfg, "exact").values.k == BenchConfig.of(cfg).truth
    plain = applied(Config(method="rloo"))
    assert estimator_config(cfg, "rloo").values == plain.values


@pytest.mark.parametrize("method", ["vineppo", "ppo", "grpo", "dapo", "tempo", "dr_grpo"])
def test_the_run_of_a_session_can_be_measured(method: str):
    """A session's configuration has the method's choices in the place of 'method'."""
    others = {"num_states": 2} if method == "vineppo" else {}
    as_set = cases.config(method=method, values={"k": 9, "max_states": None} | others)
    found = chosen_estimators(with_open_choices(applied(as_set), as_set), True)
    assert set(found) == set(chosen_estimators(as_set, True))
    assert estimator_config(as_set, RUN) == applied(as_set)
    assert found["vineppo_k1"].ppo.whiten == "iteration"


def test_the_page_names_the_methods_that_cannot_be_measured():
    text = (REPO / "docs/credit_bench.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w+]+)`", text.partition("**Not measured**")[2].partition("resets;")[0])
    refused, methods = set(), all_methods()
    for name, method in methods.items():
        folder = "" if name in METHODS else "contrib/"
        file = "tiny" if name == "vineppo" else f"tiny_{name.replace('++', '_pp')}"
        try:
            estimator_config(from_dict(from_file(str(CONFIGS), f"configs/{folder}{file}.py")), RUN)
        except ConfigError as error:
            assert "cannot be measured" in str(error)
            if "trees" not in method.flags:
                refused.add(name)
    assert {name for name in named if name in methods} == refused


def test_all_that_a_run_can_have():
    assert list(chosen_estimators(cases.config(), True)) == list(ESTIMATORS)  # K = 3, one state
    plain = cases.config(values={"k": 9, "max_states": None})
    # The run is `vineppo_k9`, and without a critic there is nothing to measure of PPO's.
    assert list(chosen_estimators(plain, False)) == [
        name for name in ESTIMATORS if name not in (RUN, "ppo")
    ]
    of_ppo = cases.config(method="ppo", critic={"lam": 0.9}, values={"k": 9, "max_states": None})
    assert RUN not in chosen_estimators(of_ppo, False)
    assert RUN in chosen_estimators(of_ppo, True)
    on_trees = cases.config(method="treerl", values={"k": 9, "max_states": None})
    assert RUN not in chosen_estimators(on_trees, False)
    masked = cases.config(credit={"mask": "top_entropy"})
    assert list(chosen_estimators(masked, True)) == [name for name in ESTIMATORS if name != RUN]


def test_what_may_read_log_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cfg = cases.config()
    assert not any(map(reads_logprobs, chosen_estimators(cfg, True).values()))
    code = "from vinejax.methods.baselines import RLOO as METHOD"
    (tmp_path / "bench_method.py").write_text(code, encoding="utf-8")
    (tmp_path / "bench_methods").mkdir()
    (tmp_path / "bench_methods" / "fading.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for method in ("bench_method", "bench_method.py", "bench_methods.fading", "unlikely", "drpo"):
        assert reads_logprobs(dataclasses.replace(cfg, method=method))


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("vineppo_k", {}),
        (RUN, {"method": "treerl", "values": {"k": 9, "max_states": None}}),
        (RUN, {"method": "hapo", "values": {"k": 9, "max_states": None}}),
        (RUN, {"method": "sft", "values": {"k": 9, "max_states": None}}),
        (RUN, {"reset": {"source": "gold"}}),
        (RUN, {"credit": {"mask": "top_entropy"}}),
    ],
)
def test_what_cannot_be_measured_is_refused(name: str, sections: dict):
    cfg = cases.config(bench={"estimators": (name,)}, **sections)
    with refuses("bench.estimators"):
        chosen_estimators(cfg, True)


def test_a_critic_that_is_not_there_is_refused(tmp_path):
    with refuses("bench.estimators"):
        credit_bench(config(estimators=("ppo",)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_workdir_may_be_in_the_home_folder(tmp_path, monkeypatch):
    """A critic that is there is found; a reference that is too small comes after that check."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    with refuses("bench.reference"):
        credit_bench(config(reference=11, estimators=("ppo",)), "~/run")


def test_a_reference_of_too_few_solutions_is_refused(tmp_path):
    with refuses("bench.reference"):
        credit_bench(config(reference=11, estimators=("rloo",)), tmp_path / "new")
