"""Stacks of heads, which share a register if the queries of one head do not fill it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vinejax.engine.tpu.schedule import SUBLANES


class Stacks(NamedTuple):
    """Stacks of consecutive heads, whose queries are rows of one register and share a softmax.

    All rows of a stack are multiplied by the keys, or values, of each of its heads. From each
    product only the rows of that head are used.
    """

    count: int  # number of stacks
    heads: int  # heads per stack
    queries: int  # M, queries per head

    @property
    def rows(self) -> int:
        """The number of rows of a stack, one for each query of each of the stack's heads."""
        return self.heads * self.queries

    def place(self, head: int) -> tuple[int, slice]:
        """The number of a head's stack, and the slice of the head's rows in the stack."""
        stack, number = divmod(head, self.heads)
        return stack, slice(number * self.queries, (number + 1) * self.queries)

    def of_stack(self, stack: int) -> range:
        """The numbers of the heads of a stack."""
        return range(stack * self.heads, (stack + 1) * self.heads)

    def pick(self, by_head: list[jax.Array]) -> jax.Array:
        """Combines one array [rows, n] per head of a stack into a single array.

        The rows of each head are taken from the array of this head in `by_head`.
        """
        picked = by_head[0]
        row = lax.broadcasted_iota(jnp.int32, picked.shape, 0)
        for number, x in enumerate(by_head[1:], 1):
            picked = jnp.where(row >= number * self.queries, x, picked)
        return picked


def stacks_of(heads: int, queries: int) -> Stacks:
    """The stacks of `heads` heads, all with the same and largest possible number of heads.

    The rows of a stack must fit a register. If not even two heads fit, each stack has one head.
    """
    fitting = (n for n in range(2, heads + 1) if heads % n == 0 and n * queries <= SUBLANES)
    size = max(fitting, default=1)
    return Stacks(heads // size, size, queries)
