"""Every family against transformers: logits, cached decoding, saving, unsupported configs."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import FIXTURES
from safetensors.numpy import load_file

from vinejax.core.errors import ModelError
from vinejax.core.settings import SampleConfig
from vinejax.engine.engine import Branch, Engine
from vinejax.model.decoder import apply
from vinejax.model.experts import Experts
from vinejax.model.hf.families import config_json, parse_config
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.model.rope import Rope

MODELS = FIXTURES / "models"  # from make_models.py beside it
NAMES = sorted(path.name for path in MODELS.iterdir() if path.is_dir())


def golden(name: str) -> Any:
    return np.load(MODELS / name / "golden.npz")


def stored_tensors(folder: Path) -> dict[str, np.ndarray]:
    files = [load_file(file) for file in folder.glob("*.safetensors")]
    return {name: x for tensors in files for name, x in tensors.items()}


# --- against transformers ---


@pytest.mark.first(6)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name):
    model, params, _ = load_pretrained(MODELS / name)
    found = golden(name)
    out = apply(model, params, found["ids"][None])[0]
    np.testing.assert_allclose(out, found["logits"], atol=2e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_continues_as_transformers(name):
    """Prompts of 20 and 5 tokens lie on both sides of the windows of 6 to 9.

    Decoding also starts in the middle of a trunk, where a window reaches from the suffix into it.
    """
    model, params, tokenizer = load_pretrained(MODELS / name)
    model = dataclasses.replace(model, cfg=dataclasses.replace(model.cfg, eos_ids=()))
    tokenizer.eos_token = None  # the golden texts continue after it
    engine = Engine(model, SampleConfig(temperature=0.0, max_tokens=64), tokenizer, slots=8)
    ids, short = (golden(name)[field].tolist() for field in ("ids", "short_ids"))
    starts = [(0, 20), (0, 81), (0, 50), (1, 5)]
    branches = [Branch(trunk, position, seed=1) for trunk, position in starts]
    budgets = [len((ids, short)[trunk]) - position for trunk, position in starts]
    grown = engine.grow(params, [ids, short], branches, budgets)
    for found, (trunk, position) in zip(grown, starts, strict=True):
        assert found.tokens == (ids, short)[trunk][position:]
    assert [len(found.tokens) for found in grown[:1] + grown[3:]] == [64, 64]


# The feature that each fixture shows: without it, logits differ and the tests above fail.
FEATURES = [
    ("llama_llama3", dict(rope=Rope(rope_theta=100.0))),
    ("llama_linear", dict(rope=Rope(rope_theta=50.0))),
    ("llama_yarn", dict(rope=Rope(rope_theta=200.0))),
    ("llama_dynamic", dict(rope=Rope())),
    ("mistral", dict(windows=())),
    ("mistral", dict(windows=(6,) * 3)),
    ("mistral", dict(windows=(8,) * 3)),
    ("qwen2", dict(windows=())),
    ("qwen2", dict(windows=(6,) * 3)),
    ("gemma2", dict(windows=(None, 6, None))),
    ("gemma2", dict(attention_softcap=None)),
    ("gemma2", dict(logit_softcap=None)),
    ("gemma2", dict(attention_scale=None)),
    ("gemma2", dict(embed_scale=1.0)),
    ("gemma2", dict(norm_offset=0.0)),
    ("gemma2", dict(activation="silu")),
    ("gemma3_text", dict(local_rope=None)),
    ("gemma3_text", dict(windows=(6, 6, 6, None))),
    ("olmo2", dict(qk_norm=False, joint_qk_norm=False)),
    ("olmo2", dict(norm_eps=0.5)),
    ("olmo3", dict(local_rope=None)),
    ("olmo3", dict(windows=(None, 6, None))),
    ("smollm3", dict(unturned=())),
    ("smollm3", dict(unturned=(0,))),
    ("exaone4", dict(unturned=())),
    ("exaone4", dict(windows=())),
    ("granite", dict(embed_scale=1.0)),
    ("granite", dict(attention_scale=None)),
    ("granite", dict(residual_scale=1.0)),
    ("granite", dict(logit_divisor=1.0)),
    ("qwen3_moe", dict(windows=())),
    ("qwen3_moe", dict(experts=Experts(6, 2, 14, renormalised=False))),
    ("qwen3_moe", dict(experts=Experts(6, 3, 14, renormalised=True))),
    ("olmoe", dict(experts=Experts(5, 3, 10, renormalised=True))),
    ("phi3", dict(windows=())),
    ("phi3_longrope", dict(rope=Rope(rope_theta=100.0, partial_rotary_factor=0.75))),
    ("phi3_longrope", dict(rope=Rope(rope_theta=100.0))),
]


@pytest.mark.slow  # it tests the fixtures
@pytest.mark.parametrize("name, changed", FEATURES, ids=lambda x: str(x)[:40])
def test_the_fixtures_show_each_feature(name, changed):
    model, params, _ = load_pretrained(MODELS / name)
    other = type(model)(dataclasses.replace(model.cfg, **changed))
    found = golden(name)
    out = apply(other, params, found["ids"][None])[0]
    assert np.abs(np.subtract(out, found["logits"])).max() > 0.05


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_what_was_loaded(name, tmp_path):
    """Names, shapes, dtypes and bits are equal, and transformers reads the same config."""
    from transformers import AutoConfig

    source = stored_tensors(MODELS / name)
    dtype = next(iter(source.values())).dtype.name
    model, params, tokenizer = load_pretrained(MODELS / name, dtype=dtype)
    save_pretrained(tmp_path, model, params, tokenizer)
    saved = stored_tensors(tmp_path)
    assert saved.keys() == source.keys()
    for tensor, x in source.items():
        assert saved[tensor].dtype == x.dtype
        np.testing.assert_array_equal(saved[tensor], x, err_msg=tensor)
    theirs, ours = (
        AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
        for folder in (MODELS / name, tmp_path)
    )
    for raw in (theirs, ours):  # RoPE's fields with default values may be absent
        raw |= raw.pop("rope_parameters")
        for kind in ("full_attention", "sliding_attention"):
            raw.get(kind, {}).pop("beta_slow", None)
    same = ours.keys() & theirs.keys() - {"_name_or_path", "eos_token_id", "max_window_layers"}
    assert {k: ours[k] for k in same} == {k: theirs[k] for k in same}
    assert ours["eos_token_id"] == [theirs["eos_token_id"]]
    assert theirs.keys() - ours.keys() <= {"beta_slow"}
    assert load_pretrained(tmp_path)[0] == model


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_what_is_saved(name, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, params, tokenizer = load_pretrained(MODELS / name)
    save_pretrained(tmp_path, model, params, tokenizer)
    eager = dict(attn_implementation="eager", experts_implementation="eager")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, local_files_only=True, **eager
    )
    found = golden(name)
    with torch.no_grad():
        logits = theirs(torch.tensor(found["ids"][None].astype(np.int64))).logits[0]
    np.testing.assert_allclose(logits.numpy(), found["logits"], atol=2e-5, rtol=2e-6)
    again = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert again.get_vocab() == tokenizer.get_vocab()


# --- config.json ---

LLAMA: dict[str, Any] = dict(
    model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=32000, hidden_size=2048,
    intermediate_size=5632, num_hidden_layers=3, num_attention_heads=32, num_key_value_heads=4,
    max_position_embeddings=2048, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False,
    attention_bias=False, attention_dropout=0.0, initializer_range=0.02, pretraining_tp=1,
    use_cache=True, torch_dtype="float32", transformers_version="4.38.2", bos_token_id=1,
    eos_token_id=2, rope_scaling=None, rope_theta=10000.0,
)  # fmt: skip
MISTRAL = LLAMA | dict(
    model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=4096
)
QWEN2 = LLAMA | dict(
    model_type="qwen2", architectures=["Qwen2ForCausalLM"], sliding_window=131072,
    use_sliding_window=False, max_window_layers=2, use_mrope=False,
)  # fmt: skip
QWEN3 = QWEN2 | dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=64)
GEMMA2 = LLAMA | dict(
    model_type="gemma2", architectures=["Gemma2ForCausalLM"], head_dim=64, sliding_window=4096,
    hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
    query_pre_attn_scalar=256, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
    cache_implementation="hybrid", sliding_window_size=4096, tie_word_embeddings=None,
)  # fmt: skip
GEMMA3 = GEMMA2 | dict(
    model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], num_hidden_layers=7,
    sliding_window=512, sliding_window_pattern=6, rope_theta=1e6, rope_local_base_freq=10000,
    attn_logit_softcapping=None, final_logit_softcapping=None,
)  # fmt: skip
QWEN3_MOE = QWEN3 | dict(
    model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], moe_intermediate_size=768,
    num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1,
    mlp_only_layers=[], output_router_logits=True, router_aux_loss_coef=0.001,
)  # fmt: skip
OLMOE = LLAMA | dict(
    model_type="olmoe", architectures=["OlmoeForCausalLM"], num_experts=64, num_experts_per_tok=8,
    norm_topk_prob=False, clip_qkv=None,
)  # fmt: skip
OLMO2 = LLAMA | dict(model_type="olmo2", architectures=["Olmo2ForCausalLM"])
OLMO3 = LLAMA | dict(  # with the fields of transformers 4
    model_type="olmo3", architectures=["Olmo3ForCausalLM"], num_hidden_layers=5, rope_theta=5e5,
    sliding_window=4096, rope_scaling=dict(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=8192, beta_fast=32,
        beta_slow=1, attention_factor=1.2,
    ),
)  # fmt: skip
SMOLLM3 = LLAMA | dict(
    model_type="smollm3", architectures=["SmolLM3ForCausalLM"], num_hidden_layers=5, rope_theta=5e6,
    no_rope_layers=[1, 1, 1, 0, 1], no_rope_layer_interval=4, layer_types=["full_attention"] * 5,
    use_sliding_window=False, sliding_window=None, max_window_layers=28, mlp_bias=False,
)  # fmt: skip
GRANITE = LLAMA | dict(
    model_type="granite", architectures=["GraniteForCausalLM"], attention_multiplier=0.0078125,
    embedding_multiplier=12.0, logits_scaling=49.0, residual_multiplier=0.22,
)  # fmt: skip
EXAONE4 = LLAMA | dict(
    model_type="exaone4", architectures=["Exaone4ForCausalLM"], sliding_window=4096,
    sliding_window_pattern="LLLG", num_hidden_layers=4, attention_bias=None, layer_types=[
        "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
    ],
)  # fmt: skip
EXAONE4_SMALL = EXAONE4 | dict(  # the model of 1.2B has no window
    sliding_window=None, sliding_window_pattern=None, layer_types=["full_attention"] * 4
)
SEED_OSS = LLAMA | dict(
    model_type="seed_oss", architectures=["SeedOssForCausalLM"], head_dim=128, attention_bias=True,
    attention_out_bias=False, mlp_bias=False, residual_dropout=0.1,
)  # fmt: skip
NEW = [QWEN3_MOE, OLMOE, OLMO2, OLMO3, SMOLLM3, GRANITE, EXAONE4, SEED_OSS]
PHI3 = LLAMA | dict(
    model_type="phi3", architectures=["Phi3ForCausalLM"], auto_map={"AutoConfig": "x.Phi3Config"},
    embd_pdrop=0.0, resid_pdrop=0.0, original_max_position_embeddings=2048, sliding_window=2047,
)  # fmt: skip
LONGROPE = dict(type="longrope", short_factor=[1.0] * 32, long_factor=[2.0] * 32)
PHI4_MINI = PHI3 | dict(  # further fields of its config.json
    full_attn_mod=1, interpolate_factor=1, lm_head_bias=False, mlp_bias=False,
    partial_rotary_factor=0.75, sliding_window=262144, tie_word_embeddings=True,
    rope_scaling=LONGROPE | dict(short_factor=[1.0] * 24, long_factor=[2.0] * 24),
)  # fmt: skip


def family_of(raw: dict[str, Any]) -> str:
    return raw["model_type"]


def windows_of(**fields: Any) -> tuple[int | None, ...]:
    return parse_config(fields).windows


def test_configs_as_transformers_4_wrote_them():
    """The older names of fields. The fixtures have the names of transformers 5."""
    llama = parse_config(LLAMA | dict(rope_scaling=dict(type="linear", factor=4)))
    assert (llama.rope.rope_type, llama.rope.factor) == ("linear", 4.0)
    assert windows_of(**MISTRAL) == (4096,) * 3
    assert windows_of(**MISTRAL | dict(sliding_window=None)) == ()
    assert windows_of(**QWEN2) == (), "the window is there, and off"
    assert windows_of(**QWEN2 | dict(use_sliding_window=True)) == (None, None, 131072)
    assert windows_of(**GEMMA2) == (4096, None, 4096)
    assert windows_of(**GEMMA3) == (512,) * 5 + (None, 512)
    gemma3 = parse_config(GEMMA3 | dict(rope_scaling=dict(rope_type="linear", factor=8.0)))
    assert gemma3.rope == Rope("linear", 1e6, factor=8.0) and gemma3.local_rope == Rope()
    assert gemma3.tied_head, "the class's default, where the file says nothing"
    assert parse_config(PHI3).windows == (2047,) * 3
    phi4 = parse_config(PHI4_MINI)
    assert phi4.tied_head and phi4.rope.partial_rotary_factor == 0.75


def test_configs_of_further_families_as_released():
    moe = parse_config(QWEN3_MOE)
    assert moe.experts == Experts(128, 8, 768, renormalised=True) and moe.windows == ()
    assert windows_of(**QWEN3_MOE | dict(use_sliding_window=True)) == (131072,) * 3
    coder = dict(use_qk_norm=True, qkv_bias=False, shared_expert_intermediate_size=0)
    assert parse_config(QWEN3_MOE | coder) == moe  # as Qwen3-Coder-30B-A3B has them
    assert parse_config(OLMOE).experts == Experts(64, 8, 5632, renormalised=False)
    olmo3 = parse_config(OLMO3)
    assert olmo3.windows == (4096, 4096, 4096, None, 4096) and olmo3.context == 65536
    assert olmo3.rope.rope_type == "yarn" and olmo3.local_rope == Rope(rope_theta=5e5)
    assert parse_config(SMOLLM3).unturned == (3,) and parse_config(SMOLLM3).windows == ()
    bare = {k: v for k, v in SMOLLM3.items() if k not in ("no_rope_layers", "layer_types")}
    assert parse_config(bare).unturned == (3,)
    slid = parse_config(bare | dict(use_sliding_window=True, sliding_window=9))
    assert slid.windows == (None, None, None, 9, None), "the layers without RoPE"
    assert parse_config(EXAONE4).unturned == (3,)
    for pattern in (None, 0):  # transformers 5 writes 0
        small = parse_config(EXAONE4_SMALL | dict(sliding_window_pattern=pattern))
        assert small.unturned == () and small.windows == ()
    granite = parse_config(GRANITE)
    assert (granite.logit_divisor, granite.score_scale) == (49.0, 0.0078125)
    seed = parse_config(SEED_OSS)
    assert seed.qkv_bias and not seed.out_bias
    assert parse_config({k: v for k, v in SEED_OSS.items() if k != "attention_bias"}).qkv_bias


@pytest.mark.parametrize("raw", [*NEW, EXAONE4_SMALL], ids=family_of)
def test_further_families_are_written_as_they_were_read(raw):
    from transformers import AutoConfig

    cfg = parse_config(raw)
    written = config_json(cfg, "bfloat16")
    assert parse_config(written) == cfg
    again = AutoConfig.for_model(**written).to_dict()
    assert parse_config(again) == cfg, "as transformers writes it"


def test_olmo3_is_written_with_fields_of_transformers_4():
    """That version does not read `rope_parameters`, and would take the class's rope_theta."""
    written = config_json(parse_config(OLMO3), "bfloat16")
    assert written["rope_theta"] == 5e5 and "rope_parameters" not in written
    assert written["rope_scaling"]["rope_type"] == "yarn"
    assert "rope_local_base_freq" not in written


def test_defaults_are_those_of_the_family():
    plain = {k: v for k, v in LLAMA.items() if k not in ("rms_norm_eps", "rope_theta")}
    assert parse_config(plain).norm_eps == 1e-6
    phi3 = {k: v for k, v in PHI3.items() if k != "rms_norm_eps"}
    assert parse_config(phi3).norm_eps == 1e-5
    gemma = {k: v for k, v in GEMMA2.items() if "softcapping" not in k}
    assert parse_config(gemma).attention_softcap == 50.0
    assert parse_config(gemma).logit_softcap == 30.0
    assert parse_config(GEMMA2 | dict(attn_logit_softcapping=None)).attention_softcap is None


SWITCHED = [one | dict(use_sliding_window=True) for one in (QWEN2, QWEN3)]


@pytest.mark.parametrize(
    "base",
    [MISTRAL, QWEN2, QWEN3, *SWITCHED, GEMMA2, GEMMA3, PHI3, OLMO3, SMOLLM3, EXAONE4],
    ids=family_of,
)
def test_a_window_that_is_left_out_is_the_class_s(base):
    from transformers import AutoConfig

    left_out = "sliding_window", "tie_word_embeddings"  # transformers takes no null for the second
    raw = {k: v for k, v in base.items() if k not in left_out}
    theirs = AutoConfig.for_model(**raw)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 3
    expected = [theirs.sliding_window if "sliding" in kind else None for kind in kinds]
    cfg = parse_config(raw)
    assert [cfg.window(i) for i in range(cfg.num_layers)] == expected


def test_without_an_eos_none_is_written():
    """transformers cannot generate with an empty list."""
    raw = config_json(parse_config(LLAMA | dict(eos_token_id=None)), "float32")
    assert raw["eos_token_id"] is None


ROPES: list[dict[str, Any]] = [
    dict(rope_type="linear", factor=2.5),
    dict(rope_type="dynamic", factor=2.0),
    dict(rope_type="dynamic", factor=2.0, original_max_position_embeddings=512),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=2.0, high_freq_factor=3.0),
    dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512),
    dict(rope_type="yarn", factor=4.0, truncate=False, attention_factor=1.3, beta_fast=16),
    dict(rope_type="yarn", factor=4.0, mscale=0.7, mscale_all_dim=0.5, beta_slow=2),
    LONGROPE | dict(original_max_position_embeddings=512),
    LONGROPE | dict(original_max_position_embeddings=512, factor=3.0, attention_factor=1.1),
]


@pytest.mark.parametrize("scaling", ROPES, ids=str)
def test_every_rope_is_written_as_it_was_read(scaling):
    cfg = parse_config(LLAMA | dict(rope_scaling=scaling))
    assert parse_config(config_json(cfg, "float32")) == cfg
    assert cfg.rope != Rope()
    new = parse_config(LLAMA | dict(rope_parameters=scaling | dict(rope_theta=77.0)))
    assert new.rope == dataclasses.replace(cfg.rope, rope_theta=77.0)


@pytest.mark.parametrize(
    "scaling",
    [
        dict(rope_type="dynamic", factor=2.0, original_max_position_embeddings=512),
        LONGROPE | dict(original_max_position_embeddings=512),
        LONGROPE | dict(type="su", original_max_position_embeddings=512),
    ],
)
def test_rope_by_length_ends_the_context_where_it_would_change(scaling):
    cfg = parse_config(LLAMA | dict(rope_scaling=scaling))
    assert cfg.context == 512
    model, params, _ = load_pretrained(MODELS / "llama")
    rope = dataclasses.replace(cfg.rope, short_factor=(1.0,) * 3, long_factor=(1.0,) * 3)
    short = type(model)(dataclasses.replace(model.cfg, context=512, rope=rope))
    apply(short, params, np.zeros((1, 4), np.int32))
    with pytest.raises(ModelError, match=f"513 tokens are .* rope_type = '{rope.rope_type}'"):
        apply(short, params, np.zeros((1, 513), np.int32))


@pytest.mark.parametrize(
    "fields, scaling, context",
    [
        ({}, dict(factor=4.0, original_max_position_embeddings=2048), 8192),
        ({}, dict(factor=4.0), 8192),
        ({}, dict(factor=4.0, original_max_position_embeddings=1024), 4096),
        ({}, dict(factor=1.5, original_max_position_embeddings=2047), 3070),
        ({}, dict(factor=4.0, original_max_position_embeddings=512), 2048),
        ({}, dict(factor=2.0, original_max_position_embeddings=512), 2048),
        (dict(original_max_position_embeddings=1024), dict(factor=4.0), 4096),
    ],
)
def test_yarn_extends_the_original_context(fields, scaling, context):
    """Where max_position_embeddings, here 2048, is the original context or not much above it."""
    for kind in ("type", "rope_type"):
        cfg = parse_config(LLAMA | fields | dict(rope_scaling={kind: "yarn"} | scaling))
        assert cfg.context == context
        written = config_json(cfg, "float32")
        assert parse_config(written) == cfg and written["max_position_embeddings"] == context


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_other_ropes_leave_the_context_as_it_is_written(kind):
    more = dict(low_freq_factor=1.0, high_freq_factor=4.0) if kind == "llama3" else {}
    rope = dict(rope_type=kind, factor=4.0) | more
    assert parse_config(LLAMA | dict(rope_scaling=rope)).context == 2048


REFUSED: list[tuple[dict[str, Any], str]] = [
    (LLAMA | dict(model_type="mixtral"), "model_type = 'mixtral' is not supported"),
    (LLAMA | dict(model_type="gemma3"), "model_type = 'gemma3' is not supported"),
    (LLAMA | dict(architectures=["LlamaForSequenceClassification"]), "architectures = ["),
    (LLAMA | dict(num_local_experts=8), "num_local_experts = 8 is not supported"),
    (LLAMA | dict(quantization_config=dict(bits=4)), "quantization_config = {'bits': 4} is not"),
    (LLAMA | dict(per_layer_config={"0": dict(head_dim=4)}), "per_layer_config = "),
    (LLAMA | dict(sliding_window=128), "sliding_window = 128 is not supported"),
    (LLAMA | dict(logits_scaling=8.0), "logits_scaling = 8.0 is not supported"),
    (LLAMA | dict(rope_interleaved=True), "rope_interleaved = True is not supported"),
    (LLAMA | dict(is_causal_lm="x"), "is_causal_lm = 'x' is not supported"),
    (GEMMA3 | dict(sliding_window_pattern=None, _sliding_window_pattern=0), "_sliding_window_pat"),
    (LLAMA | dict(hidden_act="gelu"), "hidden_act = 'gelu' is not supported"),
    (LLAMA | dict(num_key_value_heads=5), "num_key_value_heads = 5 must divide"),
    (LLAMA | dict(head_dim=7), "7 of head_dim = 7 channels turn"),
    (LLAMA | dict(vocab_size=True), "vocab_size = True must be a positive integer"),
    (LLAMA | dict(attention_bias=1), "attention_bias = 1 must be true or false"),
    (LLAMA | dict(rms_norm_eps=-1), "rms_norm_eps = -1 must be a positive number"),
    (LLAMA | dict(eos_token_id="</s>"), "eos_token_id = '</s>' must be a token id"),
    (MISTRAL | dict(attention_bias=True), "attention_bias = True is not supported"),
    (MISTRAL | dict(num_key_value_heads=None), "num_key_value_heads = None"),
    (MISTRAL | dict(layer_types=["full_attention"] * 3), "layer_types = "),
    (QWEN2 | dict(use_mrope=True), "use_mrope = True is not supported"),
    (QWEN2 | dict(layer_types=["full_attention", "chunked_attention", "full_attention"]),
     "layer_types = "),
    (QWEN2 | dict(layer_types=["full_attention"]), "layer_types = "),
    (QWEN2 | dict(layer_types=["sliding_attention"] * 3), "sliding_window = 131072 is off"),
    (GEMMA2 | dict(use_bidirectional_attention=True), "use_bidirectional_attention = True"),
    (GEMMA2 | dict(hidden_act="gelu"), "hidden_act = 'gelu'"),
    (GEMMA2 | dict(sliding_window=None), "sliding_window = None is off"),
    (GEMMA3 | dict(attn_logit_softcapping=50.0), "attn_logit_softcapping = 50.0 is not supported"),
    (LLAMA | dict(rope_scaling=dict(rope_type="axial")), "rope_type = 'axial' is not"),
    (LLAMA | dict(rope_scaling=dict(rope_type="linear")), "factor = None"),
    (LLAMA | dict(partial_rotary_factor=0.5), "partial_rotary_factor = 0.5 is not supported"),
    (LLAMA | dict(rope_scaling=dict(rope_type="llama3", factor=8.0)), "low_freq_factor = None"),
    (LLAMA | dict(rope_scaling=dict(type="default", mrope_section=[1])), "mrope_section = [1]"),
    (LLAMA | dict(rope_scaling=dict(rope_type="linear", factor=2, beta_fast=3)), "beta_fast = 3"),
    (LLAMA | dict(rope_scaling=LONGROPE | dict(short_factor=[1.0])), "short_factor = [1.0] must"),
    (LLAMA | dict(rope_scaling="yarn"), "RoPE = 'yarn' must be an object"),
    (LLAMA | dict(rope_scaling=dict(type="yarn", factor=4), rope_parameters=dict(rope_theta=3)),
     "rope_parameters = {'rope_theta': 3} has a rope_theta that rope_scaling replaces"),
    (GEMMA3 | dict(rope_scaling=dict(type="linear", factor=8),
                   rope_parameters=dict(sliding_attention=dict(rope_theta=5e4))),
     "rope_parameters = {'sliding_attention': {'rope_theta': 50000.0}} has a rope_theta that"),
    (PHI3 | dict(rope_scaling=dict(rope_type="yarn", factor=2)), "rope_type = 'yarn' is not"),
    (QWEN3_MOE | dict(decoder_sparse_step=2), "decoder_sparse_step = 2 is not supported, only 1"),
    (QWEN3_MOE | dict(use_qk_norm=False), "use_qk_norm = False is not supported, only 1"),
    (QWEN3_MOE | dict(mlp_only_layers=[0]), "mlp_only_layers = [0] is not supported, only []"),
    (QWEN3_MOE | dict(num_experts_per_tok=129), "num_experts_per_tok = 129 must be at most"),
    (QWEN3_MOE | dict(num_experts=None), "num_experts = None must be a positive integer"),
    (QWEN3_MOE | dict(norm_topk_prob=1), "norm_topk_prob = 1 must be true or false"),
    (QWEN3_MOE | dict(shared_expert_intermediate_size=64), "shared_expert_intermediate_size = 64"),
    (OLMOE | dict(clip_qkv=8.0), "clip_qkv = 8.0 is not supported"),
    (SMOLLM3 | dict(no_rope_layers=[1, 0]), "no_rope_layers = [1, 0] must have a 0 or 1 for each"),
    (SMOLLM3 | dict(no_rope_layers=[2] * 5), "no_rope_layers = [2, 2, 2, 2, 2] must have a 0 or 1"),
    (SMOLLM3 | dict(use_sliding_window=True, layer_types=["sliding_attention"] * 5),
     "sliding_window = None is off"),
    (GRANITE | dict(logits_scaling=0), "logits_scaling = 0 must be a positive number"),
    (OLMO2 | dict(sliding_window=64), "sliding_window = 64 is not supported"),
    (EXAONE4 | dict(layer_types=None), "sliding_window_pattern = 'LLLG' must be a positive"),
    (LLAMA | dict(model_type="qwen3_next"), "model_type = 'qwen3_next' is not supported"),
    (LLAMA | dict(model_type="glm4"), "model_type = 'glm4' is not supported"),
    (PHI4_MINI | dict(full_attn_mod=2), "full_attn_mod = 2 is not supported, only 1"),
    (PHI4_MINI | dict(interpolate_factor=4), "interpolate_factor = 4 is not supported, only 1"),
    (LLAMA | dict(full_attn_mod=1), "full_attn_mod = 1 is not supported"),
]  # fmt: skip


@pytest.mark.parametrize("raw, message", REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_not_computed_is_refused_by_name(raw, message):
    with pytest.raises(ModelError) as error:
        parse_config(raw, "folder/config.json")
    said = str(error.value)
    assert said.startswith("folder/config.json: ") and message in said and "\n" not in said


ODD_VALUES = [None, True, False, -1, 0, 1, 2.5, float("nan"), "x", "", [], [1], ["x"], {}, {"a": 1}]


@pytest.mark.parametrize("base", [LLAMA, QWEN2, GEMMA2, GEMMA3, PHI3, *NEW], ids=family_of)
def test_odd_values_of_any_field_are_a_model_error_or_harmless(base):
    known = base.keys() | {"rope_parameters", "layer_types", "partial_rotary_factor", "head_dim"}
    ropes = [{"rope_type": kind} for kind in ("default", "linear", "dynamic", "llama3", "yarn", [])]
    inner = [LONGROPE | {field: value} for field in LONGROPE for value in ODD_VALUES]
    changes = [{field: value} for field in known for value in ODD_VALUES]
    changes += [{"rope_scaling": rope} for rope in ropes + inner]
    for change in changes:
        try:
            parse_config(base | change)
        except ModelError as error:
            assert str(error).startswith("config.json: "), change


SMOLLM2: dict[str, Any] = dict(  # all sizes; theirs are in `test_smollm2_loads`
    model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=49152, attention_bias=False,
    attention_dropout=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=2, hidden_act="silu",
    initializer_range=0.041666666666666664, max_position_embeddings=8192, pretraining_tp=1,
    rms_norm_eps=1e-05, rope_interleaved=False, rope_scaling=None, tie_word_embeddings=True,
    torch_dtype="bfloat16", transformers_version="4.42.3", use_cache=True, is_llama_config=True,
)  # fmt: skip
SMOLLM2_JS = {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}


@pytest.mark.parametrize(
    "layers, width, heads, kv_heads, ffn, theta, parameters",
    [
        (30, 576, 9, 3, 1536, 100000, 134_515_008),
        (32, 960, 15, 5, 2560, 100000, 361_821_120),
        (24, 2048, 32, 32, 8192, 130000, 1_711_376_384),
    ],
)
def test_smollm2_loads(layers, width, heads, kv_heads, ffn, theta, parameters):
    """135M, 360M and 1.7B, whose files name the tools that wrote them."""
    sizes = dict(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        num_key_value_heads=kv_heads, intermediate_size=ffn, rope_theta=theta,
    )  # fmt: skip
    cfg = parse_config(SMOLLM2 | SMOLLM2_JS | sizes)
    assert (cfg.context, cfg.rope, cfg.tied_head) == (8192, Rope(rope_theta=theta), True)
    projections = (2 * cfg.num_heads + 2 * cfg.num_kv_heads) * cfg.head_dim * cfg.width
    of_layer = projections + 3 * cfg.width * cfg.ffn + 2 * cfg.width
    assert cfg.num_layers * of_layer + (cfg.vocab_size + 1) * cfg.width == parameters


@pytest.mark.parametrize(
    "field",
    [
        "_flash_attn_2_enabled", "_sliding_window_pattern", "transformers.js_config",
        "is_llama_config", "gradient_checkpointing", "use_reentrant_checkpointing",
        "ffn_dropout_prob", "embd_pdrop", "initializer_factor", "attn_implementation_internal",
        "image_token_id", "tokenizer_padding_side", "unsloth_fixed",
    ],
)  # fmt: skip
def test_fields_are_harmless_by_their_names(field):
    for value in (True, 3, 0.5, "x", {"a": 1}):
        assert parse_config(LLAMA | {field: value}) == parse_config(LLAMA)


def test_bookkeeping_of_transformers_is_accepted():
    """All settings of generation and of training, and what tools for tokenizers and hubs write."""
    from transformers import GenerationConfig, PretrainedConfig, TrainingArguments

    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    names |= GenerationConfig().to_dict().keys() | PretrainedConfig().to_dict().keys()
    names |= {"model_max_length", "padding_side", "base_model_name_or_path", "tags", "min_p"}
    assert "neftune_noise_alpha" in names and len(names) > 150
    names -= {"is_encoder_decoder", "architectures", "model_type"}
    for value in (True, 5.0, "x", {"a": 1}):
        fields = dict.fromkeys(names - LLAMA.keys(), value)
        assert parse_config(LLAMA | fields) == parse_config(LLAMA)
    with pytest.raises(ModelError, match="is_encoder_decoder = True is not supported"):
        parse_config(LLAMA | {"is_encoder_decoder": True})


def test_what_is_harmless_does_not_depend_on_the_installed_transformers():
    """Fields that only version 4 or only version 5 has; adapters are part of the network."""
    of_4, of_5 = ("group_by_length", "warmup_ratio"), ("use_mtp", "train_sampling_strategy")
    assert parse_config(LLAMA | dict.fromkeys((*of_4, *of_5), 0.5)) == parse_config(LLAMA)
    with pytest.raises(ModelError, match="adapters = .* is not supported"):
        parse_config(LLAMA | {"adapters": {"a": 1}})


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e308, 10**400, True, "2"])
def test_a_factor_of_yarn_that_is_not_finite_is_one_line(factor: Any):
    rope = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 64}
    with pytest.raises(ModelError, match=r"RoPE: factor = .* (finite|too large)") as error:
        parse_config(LLAMA | {"rope_scaling": rope})
    assert "\n" not in str(error.value)


def test_fields_that_are_off_or_harmless_are_accepted():
    quiet = dict(num_local_experts=None, use_bidirectional_attention=False, quantization_config={})
    loud = dict(temperature=0.6, _name_or_path="x/y", id2label={"0": "LABEL_0"}, max_length=20)
    assert parse_config(LLAMA | quiet | loud) == parse_config(LLAMA)
