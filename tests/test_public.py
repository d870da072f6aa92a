"""The package's front door: names that resolve, an import that costs nothing."""

import subprocess
import sys

import pytest

import vinejax

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
        vinejax.Engin  # noqa: B018
    assert not hasattr(vinejax, "__path_of_something__")


def test_the_version_is_a_version():
    assert [part.isdecimal() for part in vinejax.__version__.split(".")] == [True] * 3
