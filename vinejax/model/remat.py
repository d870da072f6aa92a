"""The results that a layer's forward pass saves for the backward pass; others are recomputed."""

import jax

from vinejax.model import attention

# Checkpoint name of gathered weights, which are never saved for the backward pass.
GATHERED_WEIGHT = "weight"
# Maps `model.remat` to the policy that says what is saved.
REMAT = {
    "none": jax.checkpoint_policies.save_anything_except_these_names(GATHERED_WEIGHT),
    # Products with weights, and what an attention kernel needs; not the scores of 'xla'.
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(attention.SAVED),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}
