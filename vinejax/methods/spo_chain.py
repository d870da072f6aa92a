"""SPO-chain: VinePPO's advantages between states at tokens of low probability.

    A_c = V(s_{c+1}) - V(s_c)    states before unlikely tokens, which alone are trained on

Source: https://arxiv.org/abs/2505.23564; AIFrameResearch/SPO at b9fc6a2.

Departs: KL summed over a sequence (`kl.reduction`), whitening per minibatch (`ppo.whiten`), budget
fresh (`values.budget`), probabilities the trainer's.
"""

from vinejax.methods.base import Method
from vinejax.methods.prior import Prior
from vinejax.methods.stages import monte_carlo
from vinejax.methods.vineppo import vine

METHOD = Method(
    vine,
    values=monte_carlo,
    state=Prior(),
    whiten="iteration",
    positions="low_probability",
    mask="low_probability",
    reads=("values", "credit"),
)
