"""What the tests share: a tiny random model, a tiny trained one, and one compilation cache."""

import os
import tempfile

# Before jax is imported. Tests that start processes compile the same programs; the cache is the
# run's own, so that no run depends on an earlier one.
_cache = tempfile.TemporaryDirectory(prefix="vinejax-compiled-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _cache.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may need the network

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from helpers import data, model_oracles  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Gives up a module's programs: each takes a dozen of the 65,530 memory maps that Linux allows
    a process, and XLA dies of a segmentation fault where there are no more."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def tiny() -> model_oracles.Model:
    """Two layers with grouped-query attention, over the shipped arithmetic tokenizer."""
    from vinejax.tasks.arithmetic import Arithmetic

    tokenizer = Arithmetic().tokenizer()
    return model_oracles.random_model(tokenizer=tokenizer, vocab_size=len(tokenizer))


@pytest.fixture(scope="session")
def stories() -> model_oracles.Model:
    """stories260K: a Llama of 260 thousand parameters that really writes English."""
    from vinejax.model.hf.weights import load_pretrained

    return model_oracles.Model(*load_pretrained(str(data.path("stories260K/hf"))))
