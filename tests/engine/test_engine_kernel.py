"""The engine with an interpreted kernel draws the same tokens as with XLA's attention."""

import copy
from typing import Any

import numpy as np
import pytest
from helpers import gpu_kernel
from helpers.model_oracles import SAMPLED_MODELS as CASES
from helpers.model_oracles import Model, random_model

from vinejax.core.settings import SampleConfig
from vinejax.engine.branches import Branch
from vinejax.engine.engine import Engine
from vinejax.engine.tpu.schedule import BLOCK

rng = np.random.default_rng(5)
LONG = 262  # the largest budget: two blocks
LONGEST = 520  # tokens of a trunk: three blocks
TRUNKS = [rng.integers(2, 20, n).tolist() for n in (9, LONGEST, 258)]
PLACES = [  # (trunk, position, budget)
    *((0, 9, LONG), (0, 1, 16), (0, 8, 5), (1, LONGEST, 16), (1, 257, LONG), (1, 256, 1)),
    *((1, 1, 3), (2, 258, 16), (2, 255, 2), (2, 8, 40)),
]
BRANCHES = [Branch(trunk, at, seed=i << 40 | 7 * i) for i, (trunk, at, _) in enumerate(PLACES)]
BUDGETS = [budget for _, _, budget in PLACES]


def check_same(model: Model, sampling: SampleConfig, **settings: Any) -> None:
    by_xla, by_kernel = (
        Engine(model.decoder, sampling, model.tokenizer, attention=name, **settings).grow(
            model.params, TRUNKS, BRANCHES, BUDGETS
        )
        for name in ("xla", "kernel")
    )
    assert max(len(grown.tokens) for grown in by_xla) > BLOCK, "no slot needs a second block"
    for one, other in zip(by_xla, by_kernel, strict=True):
        assert (one.tokens, one.finish) == (other.tokens, other.finish)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


# test_pages.py compares the kernel for TPU in an engine, test_kernels.py by itself with other
# numbers of heads; the kernel for GPU is by itself, with others, in test_gpu_kernel.py.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["window", "mqa"])
@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_tokens_are_those_of_xla(
    platform: str, name: str, tiny: Model, monkeypatch: pytest.MonkeyPatch
):
    """In float32, with slots that decode several branches, and fewer rows than trunks."""
    if platform == "gpu":
        gpu_kernel.interpret(monkeypatch)
    fields, sampling = CASES[name]
    tokenizer = copy.deepcopy(tiny.tokenizer)  # a copy would share its special tokens
    tokenizer.eos_token_id = None  # budgets end all branches, the longest in a second block
    model = random_model(tokenizer=tokenizer, context=1024, **fields)
    check_same(model, sampling, slots=4, window_rows=2, chunk=16)


def test_a_kernel_that_is_impossible_raises(tiny: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vinejax.engine.engine.platform_of", lambda mesh: "gpu")
    with pytest.raises(ValueError, match="rollout.attention = 'kernel': needs heads of one of"):
        Engine(tiny.decoder, SampleConfig(), tiny.tokenizer, attention="kernel")
