"""SPO-chain: VinePPO's advantages between states at tokens of low probability.

    A_c = V(s_{c+1}) - V(s_c)    states after every n-th token with a probability below a bound

Only tokens below the bound are trained on.

Source: https://arxiv.org/abs/2505.23564; AIFrameResearch/SPO at b9fc6a2. Departures from that code:
its KL is a sum over each sequence, here a mean over tokens, which the same `kl.coef` makes weaker
by a response's number of trained tokens (`kl.reduction`); it whitens per minibatch, here per
iteration (`ppo.whiten`); its continuations have a fresh budget (`values.budget`); its probabilities
are the trainer's, here the sampler's.
"""

from vinejax.methods.base import Method
from vinejax.methods.stages import monte_carlo
from vinejax.methods.vineppo import vine
from vinejax.methods.worth import Priced

METHOD = Method(
    vine,
    values=monte_carlo,
    state=Priced(),
    whiten="iteration",
    positions="low_probability",
    mask="low_probability",
    reads=("values", "credit"),
)
