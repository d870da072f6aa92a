"""The work that every contender of `rollout.py` does: the same weights, states and lengths.

N trajectories with 8 states each and K continuations a state, as for Monte Carlo values. Lengths
are forced as budgets: nothing else can end a text, since neither the model nor its tokenizer has an
EOS. They are geometric with a mean of a quarter of the cap, drawn once from a seed.
"""

import dataclasses
import functools
import itertools
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tokenizers import Tokenizer, decoders, models

from vinejax import Branch, SampleConfig
from vinejax.model.config import Compute
from vinejax.model.decoder import Decoder, DecoderConfig, Params
from vinejax.model.rope import Rope

STATES = 8
# Parameters are counted without embedding and output matrix, which --vocab decides.
SHAPES: dict[str, dict[str, int]] = {
    "tiny": dict(num_layers=2, width=32, num_heads=4, num_kv_heads=2, head_dim=8, ffn=48),
    "1m": dict(num_layers=4, width=128, num_heads=4, num_kv_heads=2, head_dim=32, ffn=384),
    "10m": dict(num_layers=6, width=384, num_heads=6, num_kv_heads=2, head_dim=64, ffn=1024),
    "25m": dict(num_layers=8, width=512, num_heads=8, num_kv_heads=4, head_dim=64, ffn=1536),
    "100m": dict(num_layers=12, width=768, num_heads=12, num_kv_heads=4, head_dim=64, ffn=2816),
    "135m": dict(num_layers=30, width=576, num_heads=9, num_kv_heads=3, head_dim=64, ffn=1536),
    # Rho-1B, which the paper trains, is TinyLlama's shape.
    "rho1b": dict(num_layers=22, width=2048, num_heads=32, num_kv_heads=4, head_dim=64, ffn=5632),
}
ROPE_THETA = 1e6  # tunix 0.1.7 computes its Llama with this one, whatever the config says
VOCABULARIES = {"512": 512, "32k": 32000, "49k": 49152}
GSM8K_LENGTHS = Path(__file__).parent / "gsm8k_lengths.json"  # (prompt, solution), by prompt


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Token counts of the work; `trajectory` includes its prompt."""

    trajectories: int = 8
    k: int = 9
    prompt: int = 64
    trajectory: int = 192
    cap: int = 192


@dataclasses.dataclass(frozen=True)
class Workload:
    """Item i continues trunks[branches[i].trunk][: position] by exactly budgets[i] tokens."""

    model: Decoder
    params: Params
    tokenizer: Any
    sampling: SampleConfig
    slots: int
    trunks: list[list[int]]
    branches: list[Branch]
    budgets: list[int]

    @property
    def useful_tokens(self) -> int:
        return sum(self.budgets)

    def prefix(self, item: int) -> list[int]:
        branch = self.branches[item]
        return self.trunks[branch.trunk][: branch.position]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a contender made of a workload, by item, and what it counted on the way."""

    tokens: list[list[int]]
    logprobs: list[list[float]] | None  # None: the contender gives none
    prefill_tokens: int  # padding left out
    decode_steps: int  # forward passes of one token a slot
    slot_steps: int  # tokens computed, a prefill's first among them, useful or not

    @property
    def slot_utilisation(self) -> float:
        return sum(map(len, self.tokens)) / max(self.slot_steps, 1)


class NotInstalled(Exception):
    """A contender's package is absent; `str()` says which."""


def make_tokenizer(vocab_size: int) -> Any:
    """One word a token, no special tokens."""
    # Otherwise its import says on every run that torch is missing, which only one contender needs.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    vocab = {f"w{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def make_model(shape: str, vocab_size: int, lengths: Lengths, dtype: str) -> tuple[Decoder, Params]:
    """A model without EOS and its random weights, stored and computed in `dtype`."""
    return _make_model(shape, vocab_size, lengths.trajectory + lengths.cap, dtype)


@functools.lru_cache(maxsize=1)  # for works that differ in slots or in the number of branches
def _make_model(shape: str, vocab_size: int, context: int, dtype: str) -> tuple[Decoder, Params]:
    sizes: dict[str, Any] = SHAPES[shape] | {"vocab_size": vocab_size, "context": context}
    rope = Rope(rope_theta=ROPE_THETA)
    model = Decoder(DecoderConfig(**sizes, rope=rope), compute=Compute(dtype))

    def init(key: jax.Array) -> Params:
        return jax.tree.map(lambda x: x.astype(dtype), model.init(key))

    return model, jax.jit(init)(jax.random.key(0))


def make_workload(
    shape: str, vocab_size: int, lengths: Lengths, slots: int, dtype: str = "float32", seed: int = 0
) -> Workload:
    """The workload of the command line, sampled at temperature 0.6 and top-p 0.9."""
    model, params = make_model(shape, vocab_size, lengths, dtype)
    rng = np.random.default_rng(seed)
    trunks = rng.integers(0, vocab_size, (lengths.trajectories, lengths.trajectory)).tolist()
    spread = lengths.trajectory - lengths.prompt
    positions = [lengths.prompt + state * spread // STATES for state in range(STATES)]
    places = [(n, t) for n in range(len(trunks)) for t in positions for _ in range(lengths.k)]
    branches = [Branch(trunk, at, seed=i) for i, (trunk, at) in enumerate(places)]
    drawn = rng.geometric(4 / lengths.cap, len(branches))
    budgets = np.minimum(drawn, lengths.cap).tolist()
    sampling = SampleConfig(temperature=0.6, top_p=0.9, max_tokens=lengths.cap)
    tokenizer = make_tokenizer(vocab_size)
    return Workload(model, params, tokenizer, sampling, slots, trunks, branches, budgets)


def solutions(work: Workload, prompts: int, tokens: int) -> Workload:
    """The work of writing one text of `tokens` on each prompt; lengths are GSM8K's first ones."""
    pairs = json.loads(GSM8K_LENGTHS.read_text())
    lengths = [length for length, _ in itertools.groupby(length for length, _ in pairs)][:prompts]
    rng = np.random.default_rng(0)
    trunks = [rng.integers(0, work.model.cfg.vocab_size, length).tolist() for length in lengths]
    branches = [Branch(n, length, seed=n) for n, length in enumerate(lengths)]
    budgets = [tokens] * len(lengths)
    return dataclasses.replace(work, trunks=trunks, branches=branches, budgets=budgets)
