"""DAPO: GRPO on groups with spread alone, a higher upper clip, and a penalty on overlong solutions.

    A: `grpo`'s, of r less up to ½ over the last `reward.overlong` of `sample.max_tokens`

Three of its parts are options of all methods, with DAPO's own defaults: `rollout.flat` 'resample'
(options/spread.py), `reward.overlong` 0.2 (rollout/overlong.py) and `ppo.clip_high` 0.28.

Source: https://arxiv.org/abs/2503.14476, section 3.

Departs: half the penalty, as rewards are 0 and 1, there -1 and 1; bounded rounds.
"""

from vinejax.methods.base import OF_GROUPS, Method
from vinejax.methods.grpo import standardised

METHOD = Method(
    standardised,
    clip_high=0.28,
    flat="resample",
    overlong=0.2,
    scale="group",
    needs_groups=True,
    reads=OF_GROUPS,
)
