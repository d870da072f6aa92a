"""How the tests' programs are compiled, where they are kept, and how many a file may compile.

Imports no jax.
"""

import os
from importlib import metadata

from helpers.paths import REPO

# jax's own tests set it too: LLVM's optimizations take 40% of the processor time of a set of tests
# that compile thousands of programs and run each a few times. XLA's own passes stay as they are.
LESS_OPTIMIZED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
# XLA's newer fusion emitters for CPUs compile a program in three times the time of the older ones.
# One part of a program takes 15% less processor time to compile than up to 32 for as many cores.
# Other versions of XLA may lack these flags, and an unknown one ends the process.
FLAGS = {"--xla_cpu_use_fusion_emitters": "false", "--xla_cpu_parallel_codegen_split_count": "1"}
JAXLIB_WITH_FLAGS = "0.10."
KEPT = REPO / ".compiled"  # a program is found by its text, the flags, the processor and jax

# Programs, loaded ones too, that the fast tests of a file may compile; other files than these are
# below BUDGET. A fifth more than with jax 0.10, as other versions divide the work otherwise.
BUDGET = 60
BUDGETS: dict[str, int] = {
    "engine/test_accept.py": 160,
    "engine/test_engine.py": 75,
    "engine/test_engine_window.py": 90,
    "engine/test_kernels.py": 140,
    "engine/test_sampling.py": 310,
    "learner/test_golden_step.py": 100,
    "learner/test_methods.py": 160,
    "learner/test_optimizer.py": 280,
    "learner/test_step.py": 210,
    "methods/test_baselines.py": 90,
    "model/test_attention.py": 90,
    "model/test_cudnn.py": 70,
    "model/test_decoder.py": 280,
    "model/test_families.py": 300,
    "model/test_lora.py": 190,
    "model/test_saving.py": 110,
    "model/test_weights.py": 130,
    "rl/test_advantages.py": 110,
    "rl/test_against_trl.py": 70,
    "runtime/test_checkpoint.py": 150,
    "system/test_method_runs.py": 65,
    "test_public.py": 90,
    "tools/benchmarks/test_benchmarks.py": 90,
    "tools/benchmarks/test_gpu_benchmark.py": 130,
    "training/test_train.py": 70,
}


def set_environment() -> None:
    """Sets what jax reads when it is imported, in this process and in those that tests start.

    A variable or a flag that the user set stays.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(KEPT))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault(LESS_OPTIMIZED, "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["HF_HUB_OFFLINE"] = "1"  # no test may need the network
    flags = os.environ.get("XLA_FLAGS", "")
    if metadata.version("jaxlib").startswith(JAXLIB_WITH_FLAGS):
        ours = [f"{name}={value}" for name, value in FLAGS.items() if name not in flags]
        os.environ["XLA_FLAGS"] = " ".join([flags, *ours]).strip()
