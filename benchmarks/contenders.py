"""The contenders of `rollout.py`: each takes a workload and returns the function that is timed.

Ours, two that share nothing (`reprefill.py`), and two of other projects: transformers' `generate`
and google-tunix's sampler, both in static batches of like prefix length, with the same weights
through a Hugging Face folder. Ours also decodes its tokens to text, which the others are spared.
"""

import dataclasses
import functools
import importlib.util
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from reprefill import batches, by_prefix, host, static
from workload import NotInstalled, Run, Workload

import vinejax
from vinejax.core.settings import MeshConfig
from vinejax.model.sharding import make_mesh

Contender = Callable[[Workload], Callable[[], Run]]


def ours(work: Workload, devices: int | None = None) -> Callable[[], Run]:
    """`Engine.grow`: a trunk's KV is computed once, slots are refilled on the device.

    Slots are divided over `devices` (None: all): on a CPU each is a core with a loop of its own.
    """
    return on_mesh(work, make_mesh(MeshConfig(data=devices or jax.device_count())))


def on_mesh(work: Workload, mesh: Mesh, attention: str = "auto") -> Callable[[], Run]:
    """`Engine.grow` with the slots divided over the devices of a mesh."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    params = jax.device_put(work.params, everywhere)
    # All contenders decode as many tokens; benchmarks/repeats.py measures what skipping some saves.
    engine = vinejax.Engine(
        work.model,
        work.sampling,
        work.tokenizer,
        mesh,
        slots=work.slots,
        attention=attention,
        skip_repeats=False,
    )

    def run() -> Run:
        before = dataclasses.replace(engine.stats)
        grown = engine.grow(params, work.trunks, work.branches, work.budgets)
        stats = engine.stats.minus(before)
        return Run(
            tokens=[branch.tokens for branch in grown],
            logprobs=[branch.logprobs for branch in grown],
            prefill_tokens=stats.prefill_tokens,
            decode_steps=stats.decode_steps,
            slot_steps=stats.slot_steps,
        )

    return run


def _run_batches(work: Workload, generate: Callable[[list[list[int]], int], np.ndarray]) -> Run:
    """`generate` gives each prefix of a batch the same number of tokens, that of its longest."""
    tokens: list[list[int]] = [[] for _ in work.budgets]
    steps = slot_steps = 0
    for batch in batches(by_prefix(work), work.slots):
        longest = max(work.budgets[i] for i in batch)
        made = generate([work.prefix(i) for i in batch], longest)
        for i, row in zip(batch, made, strict=True):
            tokens[i] = row[: work.budgets[i]].tolist()
        steps += longest - 1  # the first token is the prefill's
        slot_steps += longest * len(batch)
    prefilled = sum(branch.position for branch in work.branches)
    return Run(tokens, None, prefilled, steps, slot_steps)


def transformers_generate(work: Workload) -> Callable[[], Run]:
    """`generate` with its defaults (growing cache, sdpa attention), padding on the left.

    On a GPU where JAX has one, in the dtype of the work.
    """
    if importlib.util.find_spec("torch") is None:
        raise NotInstalled("torch")
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"

    with tempfile.TemporaryDirectory() as folder:
        vinejax.save_pretrained(folder, work.model, work.params, work.tokenizer)
        dtype = getattr(torch, work.model.compute.dtype)
        llama: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        llama = llama.to(device)
    sampling = work.sampling
    # top_k=0: its default of 50 would cut the nucleus.
    draw = dict(do_sample=True, temperature=sampling.temperature, top_p=sampling.top_p, top_k=0)
    how: dict[str, Any] = draw if sampling.temperature else dict(do_sample=False)

    def generate(prefixes: list[list[int]], longest: int) -> np.ndarray:
        columns = max(map(len, prefixes))
        ids = torch.zeros((len(prefixes), columns), dtype=torch.long)  # made on the host
        mask = torch.zeros_like(ids)
        for row, prefix in enumerate(prefixes):
            ids[row, columns - len(prefix) :] = torch.tensor(prefix)
            mask[row, columns - len(prefix) :] = 1
        settings = GenerationConfig(max_new_tokens=longest, pad_token_id=0, **how)
        with torch.inference_mode():
            out = llama.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=settings
            )
        return out[:, columns:].cpu().numpy()

    return functools.partial(_run_batches, work, generate)


class _Ids:
    """A tokenizer for tunix to which texts are lists of ids."""

    def encode(self, text: list[int], **unused: Any) -> list[int]:
        return text

    def decode(self, ids: list[int], **unused: Any) -> str:
        return ""

    def bos_id(self) -> None:
        return None

    def eos_id(self) -> int:
        return -2  # never sampled

    def pad_id(self) -> int:
        return -1  # no token of a prefix


def tunix(work: Workload) -> Callable[[], Run]:
    """google-tunix's own JAX sampler, with its Llama."""
    if importlib.util.find_spec("tunix") is None:
        raise NotInstalled("google-tunix")
    from tunix.generate.sampler import (  # pyright: ignore[reportMissingImports]
        CacheConfig,
        Sampler,
    )
    from tunix.models.llama3 import model, params  # pyright: ignore[reportMissingImports]

    cfg = work.model.cfg
    config = model.ModelConfig(
        num_layers=cfg.num_layers, vocab_size=cfg.vocab_size, embed_dim=cfg.width,
        hidden_dim=cfg.ffn, num_heads=cfg.num_heads, head_dim=cfg.head_dim,
        num_kv_heads=cfg.num_kv_heads, rope_theta=int(cfg.rope.rope_theta), norm_eps=cfg.norm_eps,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        vinejax.save_pretrained(folder, work.model, work.params, work.tokenizer)
        llama = params.create_model_from_safe_tensors(folder, config, dtype=np.float32)
    columns = max(branch.position for branch in work.branches) + max(work.budgets)
    cache = CacheConfig(columns, cfg.num_layers, cfg.num_kv_heads, cfg.head_dim)
    sampler = Sampler(llama, _Ids(), cache)
    draw = dict(temperature=work.sampling.temperature, top_p=work.sampling.top_p)
    how: dict[str, Any] = draw if work.sampling.temperature else {}

    def generate(prefixes: list[list[int]], longest: int) -> np.ndarray:
        out = sampler(prefixes, longest, max_prompt_length=max(map(len, prefixes)), seed=0, **how)
        return np.stack(out.tokens)

    return functools.partial(_run_batches, work, generate)


CONTENDERS: dict[str, Contender] = {
    "ours": ours,
    "ours-1": functools.partial(ours, devices=1),  # on one device
    "host": host,
    "static": static,
    "static-known": functools.partial(static, lengths_known=True),
    "transformers": transformers_generate,
    "tunix": tunix,
}
