"""Adapters: what they add to a model, merging, and their folder for PEFT."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.model_oracles import Model, random_model
from safetensors.numpy import load_file

from vinejax.core.settings import PROJECTIONS, ModelConfig
from vinejax.model.decoder import Decoder, Params, apply
from vinejax.model.hf.peft import save_adapters
from vinejax.model.hf.weights import save_pretrained
from vinejax.model.lora import (
    Shape,
    abstract_adapters,
    fresh_adapters,
    kernel_shapes,
    merged,
    with_adapters,
)
from vinejax.model.sharding import mesh_over, spec_for

SCALE, RANK = 2.0, 3
merging = jax.jit(merged, static_argnames="scale")
TOKENS = np.arange(2, 14).reshape(2, 6)


def adapting(model: Decoder) -> Decoder:
    compute = dataclasses.replace(model.compute, lora_scale=SCALE)
    return dataclasses.replace(model, compute=compute)


def adapters_of(
    model: Decoder, targets: tuple[str, ...] = PROJECTIONS, drawn: bool = True
) -> Params:
    """Adapters after some training: neither factor is 0."""
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    adapters = jax.device_get(fresh_adapters(model, mesh, Shape(RANK, targets), 1))
    if not drawn:
        return adapters
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), adapters)


def plainly_merged(model: Decoder, params: Params, adapters: Params) -> Params:
    """W + scale A B, layer by layer in float64."""
    layers = dict(params["layers"])
    for name, (inputs, outputs) in kernel_shapes(model).items():
        if name not in adapters["layers"]:
            continue
        a, b = (np.asarray(adapters["layers"][name][x], np.float64) for x in ("lora_a", "lora_b"))
        kernels = []
        for layer, kernel in enumerate(np.asarray(layers[name]["kernel"], np.float64)):
            change = a[layer].reshape(-1, RANK) @ b[layer].reshape(RANK, -1)
            kernels.append(kernel + SCALE * change.reshape(*inputs, *outputs))
        layers[name] = {**layers[name], "kernel": np.stack(kernels).astype(np.float32)}
    return {**params, "layers": layers}


@pytest.mark.parametrize("targets", [PROJECTIONS, ("q", "v"), ("down",)])
def test_a_model_with_adapters_is_the_merged_model(tiny: Model, targets: tuple[str, ...]):
    model, adapters = adapting(tiny.decoder), adapters_of(tiny.decoder, targets)
    own = apply(model, with_adapters(tiny.params, adapters), TOKENS)
    plain = plainly_merged(model, tiny.params, adapters)
    np.testing.assert_allclose(own, apply(tiny.decoder, plain, TOKENS), rtol=1e-5, atol=1e-5)
    assert np.abs(np.subtract(own, apply(tiny.decoder, tiny.params, TOKENS))).max() > 0.1
    found = merging(with_adapters(tiny.params, adapters), SCALE)
    assert jax.tree.structure(found) == jax.tree.structure(tiny.params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), found, plain)


def test_fresh_adapters_change_nothing(tiny: Model):
    adapters = adapters_of(tiny.decoder, drawn=False)
    own = apply(adapting(tiny.decoder), with_adapters(tiny.params, adapters), TOKENS)
    np.testing.assert_array_equal(own, apply(tiny.decoder, tiny.params, TOKENS))
    merged_back = merging(with_adapters(tiny.params, adapters), SCALE)
    jax.tree.map(np.testing.assert_array_equal, merged_back, tiny.params)
    largest = np.abs(adapters["layers"]["q"]["lora_a"]).max() * tiny.decoder.cfg.width**0.5
    assert 0.8 < largest <= 1


def test_without_adapters_nothing_is_done(tiny: Model):
    assert with_adapters(tiny.params, None) is tiny.params
    found = merged(tiny.params, SCALE)
    assert jax.tree.leaves(found)[3] is jax.tree.leaves(tiny.params)[3]


def test_merging_rounds_once(tiny: Model):
    adapters = adapters_of(tiny.decoder)
    base = jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), tiny.params)
    found = merging(with_adapters(base, adapters), SCALE)["layers"]["up"]["kernel"]
    whole = jax.tree.map(lambda x: x.astype(np.float32), base)
    exact = plainly_merged(tiny.decoder, whole, adapters)["layers"]["up"]["kernel"]
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


def test_the_table_splits_adapters_as_their_kernels(tiny: Model):
    """The inputs of A, and the outputs of B, lie where those of the kernel lie."""
    mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    adapters = abstract_adapters(tiny.decoder, Shape(4, PROJECTIONS))

    def specs(tree: Params) -> Params:
        def axes(path: Any, x: Any) -> tuple[Any, ...]:
            return tuple(entry or () for entry in spec_for(path, x.shape, mesh))

        return jax.tree_util.tree_map_with_path(axes, tree)

    kernels = specs(tiny.params)["layers"]
    for name, factors in specs(adapters)["layers"].items():
        inputs, outputs = kernel_shapes(tiny.decoder)[name]
        kernel = kernels[name]["kernel"]
        assert factors["lora_a"] == (*kernel[: 1 + len(inputs)], ())
        assert factors["lora_b"] == ((), (), *kernel[-len(outputs) :])


# --- PEFT's folder


def with_peft(base: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """PEFT's rule for each weight [outputs, inputs] of a torch model: W + alpha / r B A."""
    config = json.loads((folder / "adapter_config.json").read_text())
    weights, found = load_file(folder / "adapter_model.safetensors"), dict(base)
    for name, a in weights.items():
        if not name.endswith("lora_A.weight"):
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        last = module.rsplit(".", 1)[-1]
        assert last in config["target_modules"]
        rank = config["rank_pattern"].get(last, config["r"])
        alpha = config["alpha_pattern"].get(last, config["lora_alpha"])
        b = weights[name.replace("lora_A", "lora_B")]
        assert a.shape[0] == b.shape[1] == rank
        found[f"{module}.weight"] = base[f"{module}.weight"] + alpha / rank * b @ a
    assert len(weights) == 2 * sum(not np.array_equal(found[x], base[x]) for x in base)
    return found


FAMILIES = [
    ("llama", PROJECTIONS),
    ("llama", ("q", "down")),
    ("phi3", PROJECTIONS),
    ("phi3", ("v", "up")),
]


@pytest.mark.parametrize(("family", "targets"), FAMILIES)
def test_peft_makes_of_the_folder_what_merging_makes(family: str, targets: Any, tmp_path: Path):
    model, params, tokenizer = random_model(cases.tokenizer(), family=family)
    adapters = adapters_of(model, targets)
    save_pretrained(tmp_path / "base", model, params, tokenizer)
    combined = merging(with_adapters(params, adapters), SCALE)
    save_pretrained(tmp_path / "merged", model, combined, tokenizer)
    settings = ModelConfig(lora_rank=RANK, lora_alpha=SCALE * RANK, lora_targets=targets)
    save_adapters(tmp_path / "adapters", model, adapters, settings, str(tmp_path / "base"))
    found = with_peft(load_file(tmp_path / "base/model.safetensors"), tmp_path / "adapters")
    expected = load_file(tmp_path / "merged/model.safetensors")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT's own
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_peft_itself_computes_what_our_model_computes(family: str, tmp_path: Path):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model, params, tokenizer = random_model(cases.tokenizer(), family=family)
    adapters = adapters_of(model)
    save_pretrained(tmp_path / "base", model, params, tokenizer)
    combined = merging(with_adapters(params, adapters), SCALE)
    save_pretrained(tmp_path / "merged", model, combined, tokenizer)
    settings = ModelConfig(lora_rank=RANK, lora_alpha=SCALE * RANK)
    save_adapters(tmp_path / "adapters", model, adapters, settings, str(tmp_path / "base"))

    def load(name: str) -> Any:
        folder = str(tmp_path / name)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def logits(module: Any) -> np.ndarray:
        with torch.no_grad():
            return module(torch.tensor(TOKENS)).logits.numpy()

    adapted = logits(peft.PeftModel.from_pretrained(load("base"), str(tmp_path / "adapters")))
    ours = apply(adapting(model), with_adapters(params, adapters), TOKENS)
    np.testing.assert_allclose(adapted, ours, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(adapted, logits(load("merged")), rtol=1e-5, atol=1e-5)
