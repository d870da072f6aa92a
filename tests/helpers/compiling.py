"""How the tests' programs are compiled, and where they are kept. Imports no jax."""

import os
from importlib import metadata

from helpers.paths import REPO

# jax's own tests set it too: LLVM's optimizations take 40% of the processor time of a set of tests
# that compile thousands of programs and run each a few times. XLA's own passes stay as they are.
LESS_OPTIMIZED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
# XLA's newer fusion emitters for CPUs compile a program in three times the time of the older ones.
# Other versions of XLA do not have the flag, and an unknown one ends the process.
FUSION_EMITTERS = "--xla_cpu_use_fusion_emitters"
JAXLIB_WITH_FLAG = "0.10."
KEPT = REPO / ".compiled"  # a program is found by its text, the flags, the processor and jax


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
    if metadata.version("jaxlib").startswith(JAXLIB_WITH_FLAG) and FUSION_EMITTERS not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FUSION_EMITTERS}=false".strip()
