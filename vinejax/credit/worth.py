"""What step credit is worth beside its price, and the allocation that follows: 'worth'.

Unbiased credits Â of one policy have the same expected gradient, Σ_c Â_c·∇log π(step c), and
differ in its second moment, which is about Σ_c n_c·Â_c². n_c = Σ_t (1 - p_t) over the step's tokens
is what these say of the squared norm of their scores, 1 - Σ_i p_i² each in the logits. So

    worth = Σ n·A² / Σ n·Â²        A the true advantages
    price = (1 + q·(1 + K·L)) / (1 + q)

are the share of the signal in what one solution brings, and the tokens that it takes beside those
of a method without continuations: q = `values.price` is a sampled token's price in trained ones, L
the continuations' tokens per token of the solution. The choice is the least Σ n·Â²·price, as Σ n·A²
is the same for all, among K = 0 (the return less v) and K continuations at every m-th state with
the averages λ and w of `rl.by_role` and the weight μ of v.

What a setting would give is measured on solutions that were *explored*: two continuations at every
state. With x = Q - b and y = v - b of one draw each, products of the two draws have no noise:

    E[x²] at K = x₁·x₂ + ((x₁² + x₂²)/2 - x₁·x₂) / K        likewise x·y and y²
    Â = x - μ·y,    μ = E[x·y] / E[y²] within 0 and 1

What more continuations would gain counts in part until many solutions were explored: of N the share
N / (N + `DOUBT`). Else the setting whose product of draws came out least by chance is chosen.

All of it comes from earlier iterations, and which solutions are explored is drawn before they are
sampled, so the gradient stays unbiased. Source: ours.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.core.seeds import row_seed
from vinejax.core.settings import ValuesConfig
from vinejax.core.shapes import doubled
from vinejax.core.types import Episode
from vinejax.credit.allocation import AllocationRule, Seen
from vinejax.rl.by_role import role_advantages, role_baselines

LAMS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
FILTERS = (0.0, 0.3, 0.5, 0.7)
STRIDES = (1, 2, 4, 8)
GRID = (LAMS, FILTERS, STRIDES)
COUNTS = (1, 2, 3, 4, 6, 9)
EXPLORED = 2  # continuations of each state of a solution that is explored
MOST_EXPLORED = 64  # solutions of an iteration, on average
DOUBT = 16  # explored solutions at which half of what K > 1 gains is believed
HALF_LIFE = 128  # explored solutions after which a sum counts half


class Choice(NamedTuple):
    """A setting of step credit."""

    count: int  # K continuations ...
    stride: int  # ... at every so many states
    lam: float
    filter: float
    weight: float  # μ


class Worth(NamedTuple):
    """What is kept between iterations: sums over explored solutions, which fade as `HALF_LIFE`."""

    clean: np.ndarray  # f64[3, λ, w, stride] Σ n·x², n·x·y, n·y² without the noise of draws
    noise: np.ndarray  # f64[3, λ, w, stride] what one draw adds to each
    outcome: np.ndarray  # f64[] Σ n·(return - v)²: the credit of K = 0
    signal: np.ndarray  # f64[] Σ n·A²
    drawn: np.ndarray  # f64[stride] tokens of one continuation at every so many states
    tokens: np.ndarray  # f64[] tokens of the solutions
    solutions: np.ndarray  # f64[] explored


class Explored(NamedTuple):
    """The steps of an iteration's solutions; n is 0 in rows that were not explored."""

    returns: np.ndarray  # f32[2, B, C] of two continuations of each state
    rewards: np.ndarray  # f32[B, C]
    num_steps: np.ndarray  # i32[B]
    is_state: np.ndarray  # bool[B, C]
    v: np.ndarray  # f32[B, C]
    weight: np.ndarray  # f32[B, C] n
    left: np.ndarray  # f64[B, C] tokens of the solution after the state
    share: np.ndarray  # f64[B, C] 1 / n for a state that n solutions share


def fresh_worth() -> Worth:
    """Before anything was explored."""
    cells = np.zeros((3, len(LAMS), len(FILTERS), len(STRIDES)))
    zero = np.zeros(())
    return Worth(cells, cells, zero, zero, np.zeros(len(STRIDES)), zero, zero)


def updated(worth: Worth, seen: Explored) -> Worth:
    """The sums after an iteration of which solutions were explored.

    A continuation is taken to be as long as what the solution had left; solutions that share one
    have equal parts of it.
    """
    rows = np.flatnonzero((seen.weight > 0).any(axis=1))
    number = np.cumsum(seen.is_state, axis=1) - 1
    is_drawn = [seen.is_state & (number % stride == 0) for stride in STRIDES]
    drawn = np.array([np.sum((seen.left * seen.share * each)[rows]) for each in is_drawn])
    # Rows without weight beside them, so that few programs are compiled.
    places = np.pad(rows, (0, doubled(len(rows)) - len(rows)))
    weight = seen.weight[places] * (np.arange(len(places)) < len(rows))[:, None]
    weight *= len(rows) / weight.sum()
    arrays = seen.rewards, seen.num_steps, seen.is_state, seen.v
    products = _products(seen.returns[:, places], *(x[places] for x in arrays), weight)
    own, cross, outcome = (np.asarray(x, np.float64) for x in products)
    clean, noise = (x.reshape(worth.clean.shape) for x in (cross, own - cross))
    signal, length = clean[0, 0, 0, 0], seen.left[rows, 0].sum()
    new = clean, noise, outcome, signal, drawn, length, len(rows)
    share = 0.5 ** (len(rows) / HALF_LIFE)
    return Worth(*(np.asarray(a + share * b) for a, b in zip(new, worth, strict=True)))


def choice(worth: Worth, price: float) -> Choice:
    """The setting with the least mean square times price; K = 0 while nothing was explored."""
    if not worth.tokens:
        return Choice(0, 1, 0.5, 0.5, 0.0)
    cost, squares, weights = _table(worth, price)
    best = np.unravel_index(np.argmin(squares * cost[:, None, None, :]), squares.shape)
    if float(worth.outcome) <= squares[best] * cost[best[0], best[3]]:
        # Of solutions with continuations only explored ones are left.
        count = COUNTS.index(EXPLORED)
        at = np.unravel_index(np.argmin(squares[count, :, :, 0]), squares.shape[1:3])
        best = (count, *at, 0)
        return Choice(0, 1, LAMS[best[1]], FILTERS[best[2]], float(weights[best]))
    k, lam, w, m = best
    return Choice(COUNTS[k], STRIDES[m], LAMS[lam], FILTERS[w], float(weights[best]))


def metrics(worth: Worth, chosen: Choice, price: float) -> dict[str, float]:
    """The choice, its worth, and that of K = 0."""
    found = {
        "credit/k": chosen.count,
        "credit/stride": chosen.stride,
        "credit/lam": chosen.lam,
        "credit/filter": chosen.filter,
    }
    if not worth.tokens:
        return found
    _, squares, _ = _table(worth, price)
    square = float(worth.outcome)
    if chosen.count:
        k, m = COUNTS.index(chosen.count), STRIDES.index(chosen.stride)
        square = squares[k, LAMS.index(chosen.lam), FILTERS.index(chosen.filter), m]
    found["credit/worth"] = float(worth.signal) / max(float(square), 1e-12)
    found["credit/worth_k0"] = float(worth.signal) / max(float(worth.outcome), 1e-12)
    return found


def chance(
    worth: Worth, chosen: Choice, number: int, solutions: int, values: ValuesConfig
) -> float:
    """The chance of each solution of iteration `number`, from 0, to be explored.

    Exploring adds about the share `values.explore` to the price, and besides that one iteration of
    explored solutions in the whole run: half of them in the first, a quarter in the next. It adds
    more where an explored solution shares states with others.
    """
    share = 0.5 ** (number + 1)
    if worth.tokens:
        cost, _, _ = _table(worth, values.price)
        paid = _price(cost, chosen)
        share += values.explore * paid / max(cost[COUNTS.index(EXPLORED), 0] - paid, 1e-9)
    return float(min(1.0, share, MOST_EXPLORED / solutions))


def is_explored(seed: int, iteration: int, i: int, share: float) -> bool:
    """Whether solution i of an iteration is explored, by a draw of its own."""
    return bool(row_seed(seed, iteration, "explored", i) < share * 2.0**64)


def at_every(count: int, stride: int) -> AllocationRule:
    """The allocation of `count` continuations at every `stride`-th state."""

    def allocate(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
        if wave or not count:
            return None
        return [0 if c % stride else count for c in range(len(seen.returns))]

    return allocate


everywhere = at_every(EXPLORED, 1)  # the allocation of explored solutions
nowhere = at_every(0, 1)  # K = 0: the return less a learned value


def two_returns(episodes: list[Episode], is_state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(f32[2, B, C] two returns of each state, bool[B] whether all states of a row have two)."""
    found = np.zeros((EXPLORED, *is_state.shape), np.float32)
    has_two = np.array(~is_state)
    for i, episode in enumerate(episodes):
        for c, group in enumerate(episode.continuations):
            if len(group) >= EXPLORED:
                found[:, i, c], has_two[i, c] = [group[0].reward, group[1].reward], True
    return found, np.all(has_two, axis=1) & np.any(is_state, axis=1)


@jax.jit
def _products(
    returns: jax.Array,
    rewards: jax.Array,
    num_steps: jax.Array,
    is_state: jax.Array,
    v: jax.Array,
    weight: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """f32[3, cells] mean of each draw's own n·x², n·x·y, n·y²; f32[3, cells] of the two draws'
    products; f32[] n·(return - v)²."""
    number = jnp.cumsum(is_state, axis=1) - 1

    def sums(parts: list[jax.Array]) -> jax.Array:
        return jnp.stack([jnp.sum(weight * part) for part in parts])

    def of_cell(lam: jax.Array, w: jax.Array, stride: jax.Array) -> tuple[jax.Array, jax.Array]:
        sampled = is_state & (number % stride == 0)

        def of_draw(values: jax.Array) -> tuple[jax.Array, jax.Array]:
            rest = lam, w, 1.0, sampled
            x = role_advantages(values, rewards, num_steps, *rest)
            b, is_known = role_baselines(values, rewards, sampled, w, 1.0)
            return jnp.where(is_known, x, x - v), jnp.where(is_known, v - b, 0.0)

        (x1, y1), (x2, y2) = of_draw(returns[0]), of_draw(returns[1])
        own = [(x1**2 + x2**2) / 2, (x1 * y1 + x2 * y2) / 2, (y1**2 + y2**2) / 2]
        cross = [x1 * x2, (x1 * y2 + x2 * y1) / 2, y1 * y2]
        return sums(own), sums(cross)

    lam, w, stride = (x.ravel() for x in jnp.meshgrid(*map(jnp.array, GRID), indexing="ij"))
    own, cross = jax.vmap(of_cell, out_axes=1)(lam, w, stride)
    return own, cross, jnp.sum(weight * role_advantages(v, rewards, num_steps, 1.0) ** 2)


def price_of(price: float, tokens: float | np.ndarray) -> Any:
    """The price of credit with `tokens` tokens of continuations per token of the solution."""
    return (1 + price * (1 + tokens)) / (1 + price)


def _price(cost: np.ndarray, chosen: Choice) -> float:
    """The price of a setting; that of K = 0 is 1."""
    if not chosen.count:
        return 1.0
    return float(cost[COUNTS.index(chosen.count), STRIDES.index(chosen.stride)])


def _table(worth: Worth, price: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(f64[K, stride] price, f64[K, λ, w, stride] Σ n·Â² at the best μ, and that μ)."""
    counts = np.array(COUNTS, float)
    length = worth.drawn / max(float(worth.tokens), 1e-9)
    cost = price_of(price, counts[:, None] * length)
    believed = worth.solutions / (worth.solutions + DOUBT)
    share = 1 - believed + believed / counts  # of the noise of one draw
    xx, xy, yy = worth.clean[:, None] + worth.noise[:, None] * share[:, None, None, None]
    weights = np.clip(xy / np.maximum(yy, 1e-12), 0.0, 1.0)
    squares = np.maximum(xx - 2 * weights * xy + weights**2 * yy, 1e-12)
    return cost, squares, weights
