"""SPO-chain: VinePPO's advantages between states at tokens of low probability.

    A_c = V(s_{c+1}) - V(s_c)    states before unlikely tokens, which alone are trained on

Source: https://arxiv.org/abs/2505.23564; AIFrameResearch/SPO at b9fc6a2.

Departs: KL summed over a sequence (`kl.reduction`), whitening per minibatch (`ppo.whiten`), budget
fresh (`values.budget`), probabilities the trainer's.
"""

from vinejax.methods.base import Method
from vinejax.methods.learned_value import LearnedValue
from vinejax.methods.stages import monte_carlo
from vinejax.methods.vineppo import vine

METHOD = Method(
    vine,
    values=monte_carlo,
    state=LearnedValue(),
    reads=("values", "credit"),
    defaults={
        "ppo.whiten": "iteration",
        "values.positions": "low_probability",
        "credit.mask": "low_probability",
    },
    about=__doc__ or "",
)
