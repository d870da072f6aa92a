"""Programs of a run, lowered for CUDA on a machine without a GPU: that they can be, over eight
devices, and what cuDNN would be given. Whether it takes it only a GPU can tell."""

import re
from pathlib import Path

import pytest
from helpers import eight_devices

T = 256  # prompt and response
KERNEL, BACKWARD, BIASED = "fmhaSoftmax", "fmhaSoftmaxBackward", "fmhaScaleBiasSoftmax"
PROGRAMS = ["decode copy", "prefill", "decode", "decode, rollout", "score", "train_step"]


def lowered(folder: Path, *settings: str) -> dict[str, str]:
    """Program -> its text, of two layers on a mesh of 2 x 2 x 2."""
    names = eight_devices.printed("-m", "helpers.tools.cuda_programs", str(folder), *settings)
    return {name: (folder / f"{name.replace(' ', '_')}.txt").read_text() for name in names}


def kernels(text: str) -> set[str]:
    """The names of the cuDNN kernels in a program."""
    return set(re.findall(r"__cudnn\$(\w+)", text))


def biases(text: str) -> list[str]:
    """Arrays of a bias per row over all pairs of positions."""
    return re.findall(rf"tensor<\d+x1x{T}x{T}xbf16>", text)


def test_unpacked_rows_and_prefill_have_no_bias(tmp_path: Path):
    texts = lowered(tmp_path, 'model.attention="cudnn"', "ppo.packing=false")
    assert list(texts) == PROGRAMS
    assert not any(map(biases, texts.values()))
    assert kernels(texts["prefill"]) == kernels(texts["score"]) == {KERNEL}
    assert kernels(texts["train_step"]) == {KERNEL, BACKWARD}
    for name in ("score", "train_step"):  # lengths of 8 / 4 rows a device
        assert re.search(r"__cudnn.*tensor<2xi32>, tensor<2xi32>", texts[name]), name
    assert "PADDING_CAUSAL" in texts["score"] and '"CAUSAL"' in texts["prefill"].replace(
        "\\22", '"'
    )


@pytest.mark.slow  # model/test_cudnn.py has the mask
def test_packed_rows_have_a_mask(tmp_path: Path):
    texts = lowered(tmp_path, 'model.attention="cudnn"')
    assert list(texts) == PROGRAMS
    assert kernels(texts["score"]) == {BIASED} and biases(texts["score"])
    assert kernels(texts["prefill"]) == {KERNEL} and not biases(texts["prefill"])


@pytest.mark.slow
def test_products_and_a_critic_too(tmp_path: Path):
    texts = lowered(tmp_path, 'method="ppo"', "model.lora_rank=0", 'model.attention="xla"')
    assert list(texts) == [*(x for x in PROGRAMS if x != "decode, rollout"), "critic_step"]
    assert not any(map(kernels, texts.values()))
