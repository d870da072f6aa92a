"""How fast a token is drawn for many sequences in each form of `sampling.FORMS`, on this device.

    python benchmarks/sampling.py [--sequences=64] [--vocab=32000] [--repeats=15]

The forms take turns in one process, on the same logits; times of the processor are medians,
over that of one bit a pass. All forms draw the same tokens.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.engine import sampling
from vinejax.engine.sampling import PLAIN, Form, sample

CPU = sampling.FORMS["cpu"]
FORMS = (PLAIN, CPU, Form(bits=2, rows=1), Form(bits=3, rows=1), Form(bits=3, rows=8))
TEMPERATURE, TOP_P, TOP_K = 0.6, 0.9, 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in (("sequences", 64), ("vocab", 32_000), ("repeats", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    logits = jnp.asarray(2 * rng.normal(size=(args.sequences, args.vocab)), jnp.float32)
    u = jnp.asarray(rng.random(args.sequences), jnp.float32)
    draw = jax.jit(sample, static_argnums=(2, 3, 4, 5, 6))

    def drawn(form: Form) -> np.ndarray:
        return np.asarray(draw(logits, u, TEMPERATURE, TOP_P, TOP_K, None, form)[0])

    tokens = {form: drawn(form) for form in FORMS}  # compiles, too
    assert all((x == tokens[PLAIN]).all() for x in tokens.values()), "a form draws other tokens"
    seconds: dict[Form, list[float]] = {form: [] for form in FORMS}
    for _ in range(args.repeats):
        for form in FORMS:
            start = time.process_time()
            drawn(form)
            seconds[form].append(time.process_time() - start)
    plain = statistics.median(seconds[PLAIN])
    print(f"{args.sequences} sequences, {args.vocab} tokens, {jax.devices()[0].device_kind}")
    for form in FORMS:
        at_once = form.sequences(args.sequences, args.vocab)
        ratio = statistics.median(seconds[form]) / plain
        print(f"bits {form.bits}, rows {form.rows}, {at_once} sequences at once: {ratio:.2f}")


if __name__ == "__main__":
    main()
