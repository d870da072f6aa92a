"""Adapters: their effect on a model, merging, and folders for PEFT."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.model_oracles import Model, random_model
from safetensors.numpy import load_file, save_file

from vinejax.core.errors import ModelError
from vinejax.core.settings import PROJECTIONS, ModelConfig
from vinejax.model.decoder import Decoder, Params, apply
from vinejax.model.hf.peft import base_of, read_adapters, save_adapters
from vinejax.model.hf.weights import save_pretrained
from vinejax.model.lora import (
    abstract_adapters,
    fresh_adapters,
    kernel_shapes,
    merge_adapters,
    with_adapters,
)
from vinejax.model.sharding import mesh_over, spec_for

SCALE, RANK = 2.0, 3
merging = jax.jit(merge_adapters, static_argnames="scale")
TOKENS = np.arange(2, 14).reshape(2, 6)


def adapting(model: Decoder) -> Decoder:
    compute = dataclasses.replace(model.compute, lora_scale=SCALE)
    return dataclasses.replace(model, compute=compute)


def adapters_of(
    model: Decoder, targets: tuple[str, ...] = PROJECTIONS, drawn: bool = True
) -> Params:
    """Adapters as after some training, whose two factors are both different from 0."""
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    adapters = jax.device_get(fresh_adapters(model, mesh, RANK, targets, 1))
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
    found = merge_adapters(tiny.params, SCALE)
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
    """The inputs of A and the outputs of B have the layout that the kernel's have."""
    mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    adapters = abstract_adapters(tiny.decoder, ModelConfig(lora_rank=4))

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
    """PEFT's equation for each weight [outputs, inputs] of a torch model: W + alpha / r B A."""
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
    again = read_adapters(epath.Path(tmp_path / "adapters"), model)
    for one, other in zip(
        jax.tree.leaves(merging(with_adapters(params, again), 1.0)),
        jax.tree.leaves(combined),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def adapter_folder(folder: Path, weights: dict[str, np.ndarray], **fields: Any) -> epath.Path:
    """A folder as PEFT writes one."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 6.0, "base_model_name_or_path": "base"}
    # What PEFT 0.18 writes besides.
    config |= {"bias": "none", "fan_in_fan_out": False, "init_lora_weights": True}
    config |= {"lora_bias": False, "lora_dropout": 0.05, "megatron_core": "megatron.core"}
    config |= {"qalora_group_size": 16, "use_qalora": False, "use_dora": False, "loftq_config": {}}
    config |= {"target_modules": ["up_proj"], "task_type": "CAUSAL_LM", "peft_version": "0.18.1"}
    (folder / "adapter_config.json").write_text(json.dumps(config | fields))
    names = {f"base_model.model.model.layers.{name}.weight": x for name, x in weights.items()}
    save_file(names, folder / "adapter_model.safetensors")
    return epath.Path(folder)


def test_layers_may_have_ranks_and_scales_of_their_own_or_no_adapter(tiny: Model, tmp_path: Path):
    rng, width = np.random.default_rng(0), tiny.decoder.cfg.width
    ffn = tiny.decoder.cfg.ffn

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    weights = {
        "0.mlp.up_proj.lora_A": drawn(2, width),
        "0.mlp.up_proj.lora_B": drawn(ffn, 2),
        "1.mlp.up_proj.lora_A": drawn(4, width),
        "1.mlp.up_proj.lora_B": drawn(ffn, 4),
    }
    fields = {"use_rslora": True, "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 10.0}}
    folder = adapter_folder(tmp_path / "adapters", weights, **fields)
    adapters = read_adapters(folder, tiny.decoder)
    found = merging(with_adapters(tiny.params, adapters), 1.0)["layers"]["up"]["kernel"]
    change = np.asarray(found) - np.asarray(tiny.params["layers"]["up"]["kernel"])
    for layer, scale in enumerate([6 / 2**0.5, 10 / 4**0.5]):
        a, b = (weights[f"{layer}.mlp.up_proj.lora_{factor}"] for factor in "AB")
        np.testing.assert_allclose(change[layer], scale * (b @ a).T, rtol=1e-4, atol=1e-5)
    assert not change[2:].any()
    assert set(adapters["layers"]) == {"up"}


def test_a_folder_with_weights_of_a_model_is_a_model_and_not_adapters(tmp_path: Path):
    folder = adapter_folder(tmp_path / "adapters", {})
    assert base_of(folder) == "base"
    (folder / "config.json").write_text("{}")  # as axolotl writes it beside adapters
    assert base_of(folder) == "base"
    save_file({}, folder / "model.safetensors")
    assert base_of(folder) is None


def test_a_base_on_the_hub_has_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The newest revision would be loaded in its place."""
    monkeypatch.chdir(tmp_path)
    folder = adapter_folder(tmp_path / "adapters", {}, revision="step-100")
    with pytest.raises(ModelError, match=r"revision = 'step-100' of base is not supported"):
        base_of(folder)
    assert base_of(adapter_folder(tmp_path / "newest", {}, revision="main")) == "base"
    (tmp_path / "base").mkdir()  # a folder of this name has one revision
    assert base_of(folder) == "base"


A, B = "0.mlp.up_proj.lora_A", "0.mlp.up_proj.lora_B"
REFUSED = [
    ({}, {"use_dora": True}, "adapter_config.json: use_dora = True is not supported"),
    ({}, {"peft_type": "IA3"}, "adapter_config.json: peft_type = 'IA3' is not supported"),
    ({}, {"modules_to_save": ["lm_head"]}, "modules_to_save .* is not supported"),
    ({}, {"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' changes the base"),
    ({}, {"lora_alpha": 0}, "lora_alpha = 0 must be a positive number"),
    ({B: None}, {}, "mlp.up_proj.lora_B.weight is missing"),
    ({B: (5, 2)}, {}, r"mlp.up_proj has factors \(2, .*\) and \(5, 2\), the projection is"),
    ({"9.mlp.up_proj.lora_A": (2, 2)}, {}, "layers.9.mlp.up_proj.lora_A.weight is no adapter"),
    ({"0.mlp.norm.lora_A": (2, 2)}, {}, "mlp.norm.lora_A.weight is no adapter of a projection"),
]


@pytest.mark.parametrize(("changed", "fields", "words"), REFUSED)
def test_adapters_that_cannot_be_added_are_refused_in_one_line(
    changed: dict[str, Any], fields: dict[str, Any], words: str, tiny: Model, tmp_path: Path
):
    cfg = tiny.decoder.cfg
    shapes = {A: (2, cfg.width), B: (cfg.ffn, 2)} | changed
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items() if shape}
    with pytest.raises(ModelError, match=words):
        read_adapters(adapter_folder(tmp_path / "adapters", weights, **fields), tiny.decoder)


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
