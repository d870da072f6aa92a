"""The package's front door: names that resolve, an import that costs nothing."""

import dataclasses
import doctest
import inspect
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from helpers.paths import REPO

import vinejax
from vinejax.engine.branches import check_branches

IMPORT = """
import sys
import vinejax
assert vinejax.__version__ and "Engine" in dir(vinejax)
heavy = {"jax", "jaxlib", "numpy", "flax", "optax", "orbax", "transformers", "sympy"}
print(sorted(heavy & sys.modules.keys()))
"""
PAGE = """
Branch Engine SampleConfig apply gae group_advantages kl load_pretrained mc_values ppo_clip
save_pretrained split_steps step_advantages token_advantages value_clip whiten
""".split()  # users have written these down

FUNCTIONS = """
gae group_advantages kl mc_values ppo_clip step_advantages token_advantages value_clip whiten
""".split()


def test_import_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves():
    assert set(PAGE) <= set(vinejax.__all__)
    assert vinejax.__all__ == sorted(set(vinejax.__all__))
    for name in vinejax.__all__:
        assert getattr(vinejax, name).__module__.startswith("vinejax."), name
    assert set(vinejax.__all__) <= set(dir(vinejax))


def test_star_import():
    namespace: dict[str, object] = {}
    exec("from vinejax import *", namespace)
    assert set(vinejax.__all__) <= namespace.keys()


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="module 'vinejax' has no attribute 'Engin'"):
        vinejax.Engin  # noqa: B018  # pyright: ignore
    assert not hasattr(vinejax, "__path_of_something__")


def test_the_version_is_a_version():
    assert [part.isdecimal() for part in vinejax.__version__.split(".")] == [True] * 3


@pytest.mark.parametrize("name", vinejax.__all__)
def test_help_has_an_example_that_is_true(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Run as a user would who types it, from a checkout; what examples write goes elsewhere."""
    (tmp_path / "configs").symlink_to(REPO / "configs")
    monkeypatch.chdir(tmp_path)
    documented = inspect.getdoc(getattr(vinejax, name)) or ""
    test = doctest.DocTestParser().get_doctest(documented, {"vinejax": vinejax}, name, None, 0)
    assert test.examples, f"{name} has no example"
    said: list[str] = []
    assert doctest.DocTestRunner().run(test, out=said.append).failed == 0, "".join(said)


def test_the_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(REPO)
    text = (REPO / "README.md").read_text("utf-8")
    code = text.partition("As a library\n\n```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["loss"].shape == (1, 4) and len(names["grown"]) == 1
    assert [verdict.correct for verdict in names["verdicts"]] == [True, False]


def test_signatures_are_readable():
    signatures = {name: str(inspect.signature(getattr(vinejax, name))) for name in FUNCTIONS}
    assert signatures["mc_values"] == "(returns: [B, C, M], counts: int [B, C]) -> float32 [B, C]"
    assert signatures["ppo_clip"].endswith("dual_clip: number = None) -> float32 [...]")
    assert (
        "rewards: [B] | [B, C], num_steps: int [B], gamma: number = 1.0"
        in (signatures["step_advantages"])
    )
    assert signatures["gae"].endswith("lam: number) -> (float32 [B, T], float32 [B, T])")
    assert not any("jaxtyping" in signature for signature in signatures.values())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("mc_values(f(4, 5), i(4, 4))", "mc_values: returns is float32 [4, 5], not [B, C, M]"),
        (
            "mc_values(f(3, 4, 5), i(2, 4))",
            "mc_values: counts is int32 [2, 4], not int [B, C] with B = 3, C = 4, M = 5",
        ),
        ("mc_values(f(1, 1, 2), [[3]])", "mc_values: counts has the entry 3, outside 0 .. M = 2"),
        ("mc_values(f(1, 1, 2), [[0.5]])", "mc_values: counts is float32 [1, 1], not int [B, C]"),
        (
            "mc_values([[[1.0], [1.0, 0.0]]], [[1, 2]])",
            "mc_values: returns: expected an array, or lists of equal lengths, not list",
        ),
        (
            "step_advantages(f(1, 2), f(1), [3])",
            "step_advantages: num_steps has the entry 3, outside 0 .. C = 2",
        ),
        (
            "step_advantages(f(1, 2), f(1, 3), [2])",
            "step_advantages: rewards is float32 [1, 3], not [B] | [B, C] with B = 1, C = 2",
        ),
        (
            "token_advantages(f(1, 2), [[2]])",
            "token_advantages: step_ids has the entry 2, outside -1 .. C-1 = 1",
        ),
        (
            "ppo_clip(f(2, 3), f(2, 3), f(2), 0.2)",
            "ppo_clip: advantages is float32 [2], not real [...] with shape = (2, 3)",
        ),
        (
            "gae(f(1, 2), f(1, 2), i(1, 2), 1, 1)",
            "gae: mask is int32 [1, 2], not bool [B, T] with B = 1, T = 2",
        ),
        ("whiten('text', [True])", "whiten: x: expected an array, or lists of equal"),
        (
            "group_advantages([1, 0], np.array([1, 2**32 + 1]))",
            "group_advantages: group_ids has the entry 4294967297, out of bounds for int32",
        ),
        (
            "group_advantages([1, 0], [1, 2**40])",
            "group_advantages: group_ids: Python integer 1099",
        ),
        (
            "mc_values(np.array([[[3 * 10**9]]]), [[1]])",
            "mc_values: returns has the entry 3000000000, out of bounds for int32",
        ),
        (
            "group_advantages(np.array([1.0, None]), [0, 0])",
            "group_advantages: rewards: expected numbers, not an array of dtype object",
        ),
    ],
)
def test_misuse_is_one_line(call: str, said: str):
    names: dict[str, Any] = {"f": lambda *shape: np.ones(shape, np.float32), "np": np}
    names["i"] = lambda *shape: np.ones(shape, np.int32)
    with pytest.raises(ValueError) as error:
        eval(f"vinejax.{call}", {"vinejax": vinejax} | names)
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


def test_checks_are_no_part_of_a_compiled_function():
    """Known shapes are checked there, too; entries are not known."""
    returns, counts = np.ones((1, 1, 2), np.float32), np.ones((1, 1), np.int32)
    assert float(jax.jit(vinejax.mc_values)(returns, counts)[0, 0]) == 1
    assert float(jax.jit(vinejax.mc_values)(returns, 9 * counts)[0, 0]) == pytest.approx(1)
    with pytest.raises(ValueError, match="counts is int32"):
        jax.jit(vinejax.mc_values)(returns, counts[0])


def test_misuse_of_the_engine_is_one_line(tiny: Any):
    engine = vinejax.Engine(tiny.decoder, vinejax.SampleConfig(max_tokens=4), tiny.tokenizer)
    assert repr(engine).startswith("Engine(2 layers of width ") and "slots=64" in repr(engine)
    branch = vinejax.Branch(trunk=0, position=1, seed=1)
    for params in ({}, {"embed": 1}):
        with pytest.raises(ValueError, match="^params: expected a tree with 'embed' and 'layers'"):
            engine.grow(params, [[0]], [branch])
        with pytest.raises(ValueError, match="^params: expected"):
            vinejax.apply(tiny.decoder, params, [[0]])
    check: Any = inspect.unwrap(check_branches)  # tests check the types of all calls
    with pytest.raises(ValueError, match=r"^branch 0: expected a vinejax.Branch, not \(0, 1, 1\)"):
        check([[0]], [(0, 1, 1)], tiny.decoder.cfg)
    for field, wrong in {"trunk": None, "position": 1.0, "seed": 0.5, "response": 0.0}.items():
        other = dataclasses.replace(branch)
        object.__setattr__(other, field, wrong)
        with pytest.raises(ValueError, match=f"^branch 0: {field} = {wrong} must be an integer"):
            check([[0]], [other], tiny.decoder.cfg)
    with pytest.raises(ValueError, match="^max_tokens = 0 must be at least 1"):
        vinejax.Engine(tiny.decoder, vinejax.SampleConfig(max_tokens=0), tiny.tokenizer)


def test_every_method_of_a_public_class_is_documented():
    """`help(vinejax.NAME)` is the reference of the library; no page repeats it."""
    undocumented = [
        f"{name}.{method}"
        for name in vinejax.__all__
        if inspect.isclass(thing := getattr(vinejax, name))
        for method, function in vars(thing).items()
        if inspect.isfunction(function) and not method.startswith("_") and not function.__doc__
    ]
    assert undocumented == []
