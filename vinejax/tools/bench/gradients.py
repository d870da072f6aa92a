"""The error of an estimator's policy gradient, at a fixed policy.

The policy gradient of the mean reward J over solutions y of fixed problems is

    g = ∇J = E[Σ_t A_t·∇log π(y_t)],

and an estimator gives ĝ = 1/n·Σ_i Σ_t Â_it·∇log π(y_it) for a batch of n solutions. For an unbiased
estimator E ĝ = g, and |ĝ - g|²/|g|² is its relative squared error, which falls as 1/n. The mean of
an estimator that scales its advantages (GRPO) is g times a factor, to which Adam is invariant. So
we rescale every estimator such that the component of its mean along g is as long as g:

    error  = E|ĝ|²·|g|² / (E ĝ·g)² - 1        cosine = E[ĝ·g / |ĝ|] / |g|

With more solutions the error falls to the squared bias |E ĝ|²·|g|²/(E ĝ·g)² - 1. All means are
over repeats. Because g is not known, we use two independent references g₁ and g₂ from equally many
solutions, with |g|² ≈ g₁·g₂ and ĝ·g ≈ ĝ·(g₁ + g₂)/2. Both approximations are unbiased.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from vinejax.core.types import Batch, Labels
from vinejax.credit.labels import LabelRows, label_keys
from vinejax.learner.batch import strided_parts
from vinejax.learner.packing import Passes, packing_for
from vinejax.learner.score import batch_scores
from vinejax.model.decoder import Decoder, Params
from vinejax.model.lora import weights_of
from vinejax.model.sharding import replicate
from vinejax.statistics.bootstrap import percentile_interval, resampled
from vinejax.tools.bench.intervals import Measure

DRAWS = 1000  # bootstrap draws


@functools.partial(jax.jit, static_argnames=("model", "temperature"))
def _gradients(
    model: Decoder,
    params: Params,
    batch: Batch,
    advantages: Float[Array, "E B T"],
    coefficients: Float[Array, "E B N"] | None,
    temperature: float,
    base: Params | None,
) -> Params:
    def logprobs(trained: Params) -> tuple[Float[Array, "B T"], Float[Array, "B N"] | None]:
        scores = batch_scores(model, weights_of(trained, base), batch, temperature)
        return jnp.where(batch.mask, scores.logprob, 0.0), scores.of_labels

    _, pull = jax.vjp(logprobs, params)
    return lax.map(lambda credit: pull(credit)[0], (advantages, coefficients))


def policy_gradients(
    model: Decoder,
    params: Params,
    batch: Batch,
    advantages: Float[np.ndarray, "E B T"],
    solutions: int,
    temperature: float,
    passes: Passes,
    base: Params | None = None,
    labels: Sequence[Labels | None] = (),
) -> Params:
    """The gradients ĝ of E estimators: 1/`solutions`·Σ_b Σ_t A_ebt·∇log π(token t of row b).

    Labels add their coefficients times ∇log π(label | tokens before t) to the sum.

    Args:
      batch: B rows; tokens outside its mask do not count.
      advantages: float32, one array per estimator.
      temperature: the sampling temperature, by which the logits are divided.
      passes: division of the batch into passes, as in training; B is a multiple of `passes.rows`.
        Packing rows changes the sums by rounding only.
      base: frozen weights, if `params` are adapters for them; else None.
      labels: the labels of each estimator, which may be None; (): no estimator has any.

    Returns:
      The tree of `params` with a leading axis E: E gradients, each as large as `params`.
    """
    scaled, coefficients = advantages / np.float32(solutions), None
    if any(x is not None for x in labels):
        joint, coefficients = joined_labels(batch, labels)
        batch, coefficients = batch._replace(labels=joint), coefficients / np.float32(solutions)
    if passes.packed:
        packing = packing_for(batch, passes._replace(shared=False), model.mesh)
        if coefficients is not None:
            places = packing.label_places(batch)
            coefficients = np.stack([places.move(x) for x in coefficients])
        batch, scaled = packing.pack(batch), np.stack([packing.move(x) for x in scaled])
    by_row = jax.tree.map(lambda x: x.swapaxes(0, 1), (scaled, coefficients))
    parts = []
    for part, credit in strided_parts((batch, by_row), passes.rows):
        credit = jax.tree.map(lambda x: x.swapaxes(0, 1), credit)
        parts.append(_gradients(model, params, part, *credit, temperature, base))
    return functools.reduce(optax.tree.add, parts)


def joined_labels(batch: Batch, labels: Sequence[Labels | None]) -> tuple[Labels, np.ndarray]:
    """(the labels of E estimators together, f32[E, B, N] the coefficients of each estimator)."""
    length = batch.tokens.shape[1]
    keys = [np.zeros(0, np.int64) if x is None else label_keys(x, length) for x in labels]
    together = np.unique(np.concatenate(keys))
    rows, coefficients = LabelRows.of(batch, together), []
    for own, of_estimator in zip(keys, labels, strict=True):
        numbers = np.zeros(len(together))
        if of_estimator is not None:
            is_label = of_estimator.position > 0
            numbers[np.searchsorted(together, own)] = of_estimator.coefficients[is_label]
        coefficients.append(rows.array(numbers, np.float32))
    return rows.labels, np.stack(coefficients)


@functools.partial(jax.jit, static_argnames="model")
def _products(model: Decoder, gradients: Params, references: Params) -> tuple[Array, Array]:
    def product(gradient: Array, reference: Array) -> Float[Array, "E F"]:
        rows, columns = (x.reshape(x.shape[0], -1) for x in (gradient, reference))
        return jnp.einsum("en,fn->ef", rows, columns, precision="highest")

    leaves = list(zip(*map(jax.tree.leaves, (gradients, references)), strict=True))
    with_references = jnp.stack([product(x, y) for x, y in leaves]).sum(axis=0)
    squares = jnp.stack([jnp.sum(jnp.square(x), axis=tuple(range(1, x.ndim))) for x, _ in leaves])
    return replicate((squares.sum(axis=0), with_references), model.mesh)


def inner_products(
    model: Decoder, gradients: Params, references: Params
) -> tuple[np.ndarray, np.ndarray]:
    """The squared norms |ĝ|², f64[E], and the inner products ĝ·g_f, f64[E, F].

    Each array in `gradients` has a leading axis for E gradients ĝ, and each array in `references`
    has a leading axis for F references g_f.
    """
    squares, with_references = jax.device_get(_products(model, gradients, references))
    return np.asarray(squares, np.float64), np.asarray(with_references, np.float64)


@dataclasses.dataclass(frozen=True)
class GradientError:
    """The error of an estimator's gradient for one batch; the module's docstring has equations.

    Intervals are 95% bootstrap intervals over repeats.
    """

    error: Measure
    cosine: Measure  # 0 for a gradient of 0, for instance where all rewards are equal
    scale: Measure  # E ĝ·g / |g|²: 1 for an unbiased estimator of unscaled advantages
    bias: float | None  # the relative squared bias; noise may make it negative
    repeats: int


class MeasuredGradients(NamedTuple):
    """Squared norms of an estimator's R gradients ĝ, and inner products with references g₁, g₂."""

    squares: list[float]  # [R] |ĝ|²
    products: list[float]  # [R] ĝ·(g₁ + g₂)/2
    sum_square: float  # |Σ_r ĝ_r|²


def gradient_error(gradients: MeasuredGradients, g_squared: float) -> GradientError:
    """The error of an estimator; `g_squared` is g₁·g₂ and must be positive.

    If the mean of ĝ·g is not positive, `bias` and the value of `error` are None.
    """
    draws = _draws(len(gradients.squares))
    squares, products = np.asarray(gradients.squares), np.asarray(gradients.products)
    mean_product = products.mean()
    lengths = np.sqrt(squares * g_squared)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    repeats, bias = len(squares), None
    pairs = repeats * (repeats - 1)
    if pairs and mean_product > 0:
        # Products of different repeats only: the square of a repeat would include its noise.
        between = (gradients.sum_square - squares.sum()) / pairs
        product_square = (products.sum() ** 2 - np.sum(products**2)) / pairs
        bias = float(between * g_squared / product_square - 1) if product_square > 0 else None
    return GradientError(
        error=measure_of(error_draws(gradients, g_squared)),
        cosine=measure_of(cosines[draws].mean(axis=1)),
        scale=measure_of(products[draws].mean(axis=1) / g_squared),
        bias=bias,
        repeats=repeats,
    )


def error_draws(gradients: MeasuredGradients, g_squared: float) -> np.ndarray:
    """f64[1 + draws]: the relative squared error over all repeats, then over bootstrap draws.

    Estimators with the same number of repeats have the same draws, so their errors can be divided
    draw by draw. An entry is nan where the mean of ĝ·g is not positive.
    """
    draws = _draws(len(gradients.squares))
    square = np.asarray(gradients.squares)[draws].mean(axis=1)
    product = np.asarray(gradients.products)[draws].mean(axis=1)
    product = np.where(product > 0, product, np.nan)
    return square * g_squared / product**2 - 1


def _draws(repeats: int) -> np.ndarray:
    """i64[1 + draws, R]: indices of repeats, drawn with replacement; row 0 has each index once."""
    draws = resampled(np.random.default_rng(0), repeats, DRAWS)
    return np.concatenate([np.arange(repeats)[None], draws])


def measure_of(draws: np.ndarray) -> Measure:
    """A measure whose value is `draws[0]`, with the percentile interval of `draws[1:]`.

    `draws[0]` belongs to the sample itself, and the later entries to bootstrap draws. A draw that
    is nan counts as infinite, because it stands for a very large error. An infinite end of the
    interval becomes None. There is no interval if all draws are equal, for instance with one
    repeat. If `draws[0]` is nan, the value is None, too.
    """
    if not np.isfinite(draws[0]):
        return Measure(None, None, None)
    if np.all(draws == draws[0]):
        return Measure(float(draws[0]), None, None)
    ends = percentile_interval(np.where(np.isfinite(draws[1:]), draws[1:], np.inf))
    low, high = (end if np.isfinite(end) else None for end in ends)
    return Measure(float(draws[0]), low, high)


def reference_error(first: float, second: float, product: float) -> float:
    """The relative squared error of (g₁ + g₂)/2, from |g₁|², |g₂|² and g₁·g₂.

    E|g₁ - g₂|² is twice the error of g₁, and four times the error of the mean.
    """
    return (first + second - 2 * product) / 4 / product
