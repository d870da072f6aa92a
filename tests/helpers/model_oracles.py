"""The decoder in NumPy loops, and generation by one full forward pass per token.

For the tests on the model and on the engine.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.core.settings import SampleConfig
from vinejax.model.config import Compute
from vinejax.model.decoder import Decoder, DecoderConfig, Params, apply

TINY = DecoderConfig(
    vocab_size=20,
    num_layers=2,
    width=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn=48,
    context=96,
)
COMPUTE = {"dtype", "attention", "remat", "vocab_chunk"}
ALL_BIASES: dict[str, Any] = dict(qkv_bias=True, out_bias=True, mlp_bias=True)
# Fields of `random_model`, and how to sample from it: each kind of attention.
SAMPLED_MODELS: dict[str, tuple[dict[str, Any], SampleConfig]] = {
    "gqa": (dict(), SampleConfig()),
    # A query sees 6 positions in the first layer: less than trunk, suffix, or both together.
    "window": (
        dict(windows=(6, None), attention_softcap=3.0, logit_softcap=8.0, qk_norm=True, seed=4),
        SampleConfig(temperature=0.8),
    ),
    "mha": (dict(num_kv_heads=4, **ALL_BIASES), SampleConfig(temperature=0.6, top_p=0.9)),
    "mqa": (dict(num_kv_heads=1, tied_head=True, seed=3), SampleConfig(temperature=0.6, top_k=5)),
}


class Model(NamedTuple):
    decoder: Decoder
    params: Params
    tokenizer: Any


def random_model(tokenizer: Any = None, seed: int = 0, **fields: Any) -> Model:
    """A tiny model whose norms and biases are random too: zeros and ones would hide mistakes.

    `fields` are those of `DecoderConfig`, and COMPUTE of `Compute`.
    """
    names = COMPUTE & fields.keys()
    compute = Compute(**{name: fields.pop(name) for name in names})
    model = Decoder(DecoderConfig(**{**vars(TINY), **fields}), compute=compute)
    rng = np.random.default_rng(seed)

    def draw(path: tuple[Any, ...], x: jax.ShapeDtypeStruct) -> jax.Array:
        noise = rng.normal(size=x.shape)
        by_name = {"scale": 1 + 0.3 * noise, "bias": 0.3 * noise}
        return jnp.asarray(by_name.get(path[-1].key, noise * model.cfg.width**-0.5), jnp.float32)

    abstract = jax.eval_shape(model.init, jax.random.key(0))
    return Model(model, jax.tree_util.tree_map_with_path(draw, abstract), tokenizer)


# --- the decoder ---


def rms_norm(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return np.stack([row / np.sqrt(np.mean(row**2) + eps) * scale for row in x])


def rope(x: np.ndarray, positions: Sequence[int], theta: float) -> np.ndarray:
    """Rotates x [T, heads, H]: pair j of a head is a complex number, turned by
    position * theta^(-2j/H)."""
    out = np.empty(x.shape)
    half = x.shape[-1] // 2
    for t, position in enumerate(positions):
        for head in range(x.shape[1]):
            for j in range(half):
                turn = np.exp(1j * position * theta ** (-2 * j / x.shape[-1]))
                turned = complex(x[t, head, j], x[t, head, half + j]) * turn
                out[t, head, j], out[t, head, half + j] = turned.real, turned.imag
    return out


def project(x: np.ndarray, weights: dict[str, np.ndarray], num_in: int = 1) -> np.ndarray:
    return np.tensordot(x, weights["kernel"], axes=num_in) + weights.get("bias", 0.0)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention [T, N, H]: a query head attends with the KV head of its group."""
    out = np.empty(q.shape)
    for t in range(len(q)):
        for head in range(q.shape[1]):
            kv = head * k.shape[1] // q.shape[1]
            scores = k[: t + 1, kv] @ q[t, head] / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            out[t, head] = weights / weights.sum() @ v[: t + 1, kv]
    return out


def forward(cfg: DecoderConfig, params: Params, tokens: Sequence[int]) -> np.ndarray:
    """Logits [T, V] of one sequence, in float64."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    positions = range(len(tokens))
    x = params["embed"][list(tokens)]
    for i in range(cfg.num_layers):
        layer = jax.tree.map(lambda x, i=i: x[i], params["layers"])
        h = rms_norm(x, layer["attention_norm"]["scale"], cfg.norm_eps)
        q = rope(project(h, layer["q"]), positions, cfg.rope.rope_theta)
        k = rope(project(h, layer["k"]), positions, cfg.rope.rope_theta)
        x = x + project(attention(q, k, project(h, layer["v"])), layer["out"], num_in=2)
        h = rms_norm(x, layer["mlp_norm"]["scale"], cfg.norm_eps)
        gate = project(h, layer["gate"])
        x = x + project(gate / (1 + np.exp(-gate)) * project(h, layer["up"]), layer["down"])
    head = params["embed"].T if cfg.tied_head else params["head"]
    return rms_norm(x, params["norm"]["scale"], cfg.norm_eps) @ head


# --- generation ---


def kept_tokens(probs: np.ndarray, top_p: float, top_k: int) -> np.ndarray:
    """Probabilities with those outside top-k, then top-p, set to 0; all ties are kept."""
    kept = probs
    if top_k:
        kept = np.where(probs >= np.sort(probs)[::-1][:top_k][-1], probs, 0.0)
    if top_p < 1:
        order = np.sort(kept)[::-1]
        needed = np.argmax(np.cumsum(order) >= top_p * kept.sum())
        kept = np.where(kept >= order[needed], kept, 0.0)
    return kept


def draw(logits: np.ndarray, u: float, cfg: SampleConfig) -> tuple[int, float]:
    """A token by inverse CDF in vocabulary order, and its log-probability in the full softmax."""
    scaled = np.asarray(logits, np.float64) / (cfg.temperature or 1.0)
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    if cfg.temperature == 0:
        token = int(np.argmax(logits))
    else:
        cumulative = np.cumsum(kept_tokens(probs, cfg.top_p, cfg.top_k))
        token = int(np.argmax(cumulative > u * cumulative[-1]))
    return token, float(np.log(probs[token]))


@functools.cache
def _jitted(model: Decoder) -> Any:
    return jax.jit(lambda params, tokens: apply(model, params, tokens)[0])


def continue_slowly(
    model: Model,
    cfg: SampleConfig,
    prefix: list[int],
    seed: int,
    eos_ids: Sequence[int],
    max_tokens: int,
) -> tuple[list[int], list[float], str]:
    """Tokens, log-probabilities and finish of one branch.

    Draw n, the index of the new token in the sequence, uses fold_in(row key, n); the row key is
    made of the high and the low half of the seed.
    """
    row_key = jax.random.fold_in(jax.random.key(0), seed >> 32)
    row_key = jax.random.fold_in(row_key, seed % 2**32)
    tokens, logprobs = list(prefix), []
    while len(tokens) < min(len(prefix) + max_tokens, model.decoder.cfg.context):
        # Padded to the context, so that one program serves all lengths.
        padded = np.zeros((1, model.decoder.cfg.context), np.int32)
        padded[0, : len(tokens)] = tokens
        logits = np.asarray(_jitted(model.decoder)(model.params, padded))[len(tokens) - 1]
        u = float(jax.random.uniform(jax.random.fold_in(row_key, len(tokens))))
        token, logprob = draw(logits, u, cfg)
        tokens.append(token)
        logprobs.append(logprob)
        if token in eos_ids:
            return tokens[len(prefix) :], logprobs, "eos"
    return tokens[len(prefix) :], logprobs, "length"


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compares branches: tokens, text and finish exactly, log-probabilities within 1e-4."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.tokens, one.text, one.finish) == (other.tokens, other.text, other.finish)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
