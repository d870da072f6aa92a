"""Stacks of heads: where a head's few queries do not fill a register, several heads share it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vinejax.engine.tpu.schedule import SUBLANES


class Stacks(NamedTuple):
    """Consecutive heads whose queries are the rows of one register, and so have one softmax.

    All rows of a stack are multiplied by the keys, or values, of each of its heads; of a product
    those rows are of use that are that head's.
    """

    count: int
    heads: int  # of a stack
    queries: int  # M

    @property
    def rows(self) -> int:
        """Rows of a stack: its heads one after the other, with M rows each."""
        return self.heads * self.queries

    def place(self, head: int) -> tuple[int, slice]:
        """A head's stack, and its rows there."""
        stack, number = divmod(head, self.heads)
        return stack, slice(number * self.queries, (number + 1) * self.queries)

    def of_stack(self, stack: int) -> range:
        """The heads of a stack."""
        return range(stack * self.heads, (stack + 1) * self.heads)

    def pick(self, by_head: list[jax.Array]) -> jax.Array:
        """[rows, n], each row from the array of its own head; `by_head` are those of a stack."""
        picked = by_head[0]
        row = lax.broadcasted_iota(jnp.int32, picked.shape, 0)
        for number, x in enumerate(by_head[1:], 1):
            picked = jnp.where(row >= number * self.queries, x, picked)
        return picked


def stacks_of(heads: int, queries: int) -> Stacks:
    """The largest equal stacks of `heads` heads that fit into a register, or of single heads."""
    fitting = (n for n in range(2, heads + 1) if heads % n == 0 and n * queries <= SUBLANES)
    size = max(fitting, default=1)
    return Stacks(heads // size, size, queries)
