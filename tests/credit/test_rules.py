"""Rules by name: the chosen ones, and the errors for names, fields and combinations."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import applied
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.core.errors import ConfigError
from vinejax.core.plugins import find_function
from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.credit import allocation, bisection, mask, positions
from vinejax.credit.rules import TABLES, chosen_rules, find_rule
from vinejax.methods.base import DEFAULTS
from vinejax.methods.known import METHODS

SPO = {"method": "spo_chain"}


def check(fields: dict[str, Any]) -> Config:
    cfg = from_dict(fields)
    sections = [(name, x) for name, x in fields.items() if isinstance(x, dict)]
    check_config(cfg, [f"{name}.{leaf}" for name, section in sections for leaf in section])
    return cfg


def refused(fields: dict[str, Any], field: str) -> str:
    with refuses(field) as error:
        check(fields)
    return str(error.value)


def test_every_name_has_a_function():
    for field, table in TABLES.items():
        section, _, leaf = field.partition(".")
        for name, function in table.items():
            assert find_rule(field, cases.config(**{section: {leaf: name}})) is function


def test_method_means_the_methods_own():
    assert chosen_rules(applied(cases.config())) == {
        "values.positions": "steps",
        "values.allocation": "uniform",
        "credit.mask": "none",
    }
    spo = cases.config(method="spo_chain", values={"positions": "tokens"})
    assert chosen_rules(applied(spo)) == {
        "values.positions": "tokens",
        "values.allocation": "uniform",
        "credit.mask": "low_probability",
    }
    spo = cases.config(method="spo_chain")
    assert find_rule("values.positions", applied(spo)) is positions.low_probability
    assert find_rule("credit.mask", applied(spo)) is mask.low_probability
    assert find_rule("values.allocation", applied(cases.config())) is allocation.uniform
    assert find_rule("values.positions", applied(cases.config())) is positions.step_starts
    assert find_rule("credit.mask", applied(from_dict({"method": "grpo"}))) is mask.all_tokens
    bisected = cases.config(values={"allocation": "bisection"})
    assert find_rule("values.allocation", applied(bisected)) is bisection.bisection
    for method in METHODS.values():
        chosen = {**DEFAULTS, **method.defaults}
        assert all(chosen[field] in table for field, table in TABLES.items())


@pytest.mark.parametrize(
    "field, name, nearest",
    [
        ("values.positions", "blank_line", "'blank_lines'"),
        ("values.positions", "Steps", "'steps'"),
        ("values.allocation", "uniforn", "'uniform'"),
        ("values.allocation", "bisect", "'bisection'"),
        ("credit.mask", "low_probabilty", "'low_probability'"),
    ],
)
def test_unknown_names_are_told_the_nearest(field: str, name: str, nearest: str):
    section, _, leaf = field.partition(".")
    message = refused({section: {leaf: name}}, field)
    assert message.startswith(f"{field} = {name!r}: must be ")
    assert message.endswith(f"; the nearest is {nearest}")
    assert all(repr(known) in message for known in TABLES[field])


@pytest.mark.parametrize(
    "name",
    ["nothing_of_the_kind", "vinejax.nothing.rule", "vinejax.core.seeds.nothing", "a b.c", ""],
)
def test_other_unknown_names(name: str):
    message = refused({"values": {"allocation": name}}, "values.allocation")
    assert "or a function's dotted path" in message and "nearest" not in message


def test_a_dotted_path_is_a_name():
    path = "vinejax.credit.positions.every_n_tokens"
    found: Any = find_rule("values.positions", check({"values": {"positions": path}}))
    assert found.__wrapped__ is positions.every_n_tokens


OWN = """
import numpy as np
number = 3
def to(x): return lambda *_: x
def fails(a, b, *_): return a.nothing
def alone(a): return []
"""


@pytest.fixture
def own_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's module `own_rules`."""
    (tmp_path / "own_rules.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)
    find_function.cache_clear()
    yield importlib.import_module("own_rules")
    find_function.cache_clear()


EPISODE = Episode("p", [1], [1, 2, 3, 4, 5, 6], [0.0] * 6, "", True, 1.0, [6])
SEEN = allocation.Seen([[], []], [0.0, 0.0], 1.0)
ARGUMENTS = {
    "values.positions": (EPISODE, str, None),
    "values.allocation": (0, SEEN, None),
    "credit.mask": (EPISODE, None),
}
WRONG: dict[str, list[Any]] = {
    "values.positions": [
        *(None, 3, "012", [0.0, 2.0], [[0], [1]], [False, True], {0, 1}, [[0], [1, 2]]),
        *([0, 5, 4], [0, 3, 3], [-1, 2], [0, 6], [0, 0], iter([0])),
    ],
    "values.allocation": [2, "12", [1.0, 2.0], [1], [1, 2, 3], [-1, 2], [True, False], {1: 2}],
    "credit.mask": [None, "aaaaaa", [1.0] * 6, [1] * 6, [True], [[True] * 6], True],
}


@pytest.mark.parametrize("field", WRONG)
def test_what_a_users_rule_gives_is_checked_in_one_line(field: str, own_rules: Any):
    section, _, leaf = field.partition(".")
    cfg = cases.config(**{section: {leaf: "own_rules.rule"}})
    for wrong in WRONG[field]:
        own_rules.rule = own_rules.to(wrong)
        find_function.cache_clear()
        with pytest.raises(ConfigError) as error:
            find_rule(field, cfg)(*ARGUMENTS[field])
        message = str(error.value)
        assert message.startswith(f"{field} = 'own_rules.rule': {own_rules.__file__}:4: gave ")
        assert "; needed are " in message and "\n" not in message


@pytest.mark.parametrize(
    "field, given, taken",
    [
        ("values.positions", (0, 2), [0, 2]),
        ("values.positions", np.array([0, 2]), [0, 2]),
        ("values.positions", [], []),
        ("values.allocation", None, None),
        ("values.allocation", np.array([1, 0]), [1, 0]),
        ("credit.mask", np.array([True] * 6), [True] * 6),
    ],
)
def test_arrays_and_tuples_are_taken(field: str, given: Any, taken: Any, own_rules: Any):
    section, _, leaf = field.partition(".")
    own_rules.rule = own_rules.to(given)
    found = find_rule(field, cases.config(**{section: {leaf: "own_rules.rule"}}))
    result = found(*ARGUMENTS[field])
    assert result is taken if taken is None else list(result) == taken


@pytest.mark.parametrize(
    "name, rule",
    [
        ("own_rules.fails", r"own_rules.py:5: AttributeError: .*nothing"),
        ("own_rules.alone", r"own_rules.py:6: must take \(episode, text_of, values\): too many"),
        ("own_rules.number", r"own_rules.py has no function 'number'; it must be 'steps'"),
        ("own_rules.nope", r"own_rules.py has nothing called 'nope'; it must be"),
        ("no_rules.nope", "no module 'no_rules' in the current folder or on PYTHONPATH"),
    ],
)
def test_a_users_rule_that_fails_is_one_line(name: str, rule: str, own_rules: Any):
    cfg = cases.config(values={"positions": name})
    with pytest.raises(ConfigError, match=rule) as error:
        find_rule("values.positions", cfg)(*ARGUMENTS["values.positions"])
    assert error.value.field == "values.positions" and "\n" not in str(error.value)


def test_a_users_module_that_fails_is_one_line(own_rules: Any, monkeypatch: pytest.MonkeyPatch):
    file = Path(own_rules.__file__)
    file.write_text("\n\n1 / 0")
    monkeypatch.delitem(sys.modules, "own_rules")
    with pytest.raises(ConfigError, match=r"own_rules.py:3: ZeroDivisionError"):
        find_rule("credit.mask", cases.config(credit={"mask": "own_rules.rule"}))


def test_reuse_needs_one_horizon():
    message = refused({"values": {"reuse": True, "budget": "fresh"}}, "values.reuse")
    assert "needs values.budget = 'left'" in message and "one horizon" in message
    check({"values": {"reuse": True, "budget": "left"}})
    check({"values": {"budget": "fresh"}})


@pytest.mark.parametrize(
    "fields",
    [
        {"values": {"merge": 2}},
        {"values": {"num_states": 4}},
        {"values": {"positions": "tokens"}},
        {"values": {"positions": "blank_lines"}},
        {"values": {"allocation": "bisection"}},
        {"values": {"allocation": "helpers.chain_cases.every_second"}},
        {"values": {"backup": True, "reuse": True}},
        SPO,
    ],
    ids=str,
)
def test_a_discount_needs_a_value_of_each_step(fields: dict[str, Any]):
    message = refused(fields | {"ppo": {"gamma": 0.9}}, "ppo.gamma")
    assert message.startswith("ppo.gamma = 0.9: must be 1 unless every step of the task")
    check(fields)
    check({"ppo": {"gamma": 0.9}, "values": {"max_states": 3, "reuse": True}})


def test_a_discount_goes_with_states_without_continuations():
    """ppo_probe has its states at 'after', and every step has a learned value of its own."""
    check({"method": "ppo_probe", "ppo": {"gamma": 0.9}})


def test_a_method_without_states_refuses_their_rules():
    """The mask, unlike the rules of states, is a choice of every policy gradient."""
    check({"method": "grpo", "credit": {"mask": "low_probability"}})
    refused({"method": "sft", "credit": {"mask": "low_probability"}}, "credit.mask")
    for fields in ({"values": {"positions": "tokens"}}, {"credit": {"lambda_": 0.5}}):
        ((section, values),) = fields.items()
        message = refused({"method": "grpo"} | fields, f"{section}.{next(iter(values))}")
        assert "'vineppo' or 'spo_chain' " in message and "this run has 'grpo'" in message
