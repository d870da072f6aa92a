"""How much the tests' programs are optimized."""

# jax's own tests set it too: LLVM's optimizations take 40% of the processor time of a set of tests
# that compile thousands of programs and run each a few times. XLA's own passes stay as they are.
LESS_OPTIMIZED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
