"""D3S: GRPO on the solutions whose advantages vary most, and there on few, uncertain tokens.

    A = (r - mean r) / (std r + 1e-8)
    trained on: the share of solutions with the largest Var(A), and of their tokens by |A|·H

`d3s.solutions` and `d3s.tokens` rise linearly to 1 over the first part of the run, `d3s.until`.

Source: https://arxiv.org/abs/2509.22115 (known to us from another paper's account).

Departs: H is the entropy of π_old.
"""

import numpy as np

from vinejax.contrib.methods.equations.entropy_weights import extremes, uncertain_tokens
from vinejax.contrib.methods.hapo import Entropies
from vinejax.contrib.methods.settings import D3SConfig
from vinejax.contrib.methods.solution_groups import token_means
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, against_group
from vinejax.methods.base import OF_GROUPS, Method


def downsampled_credit(rollout: Rollout, cfg: Config) -> Credit:
    """GRPO's advantages, with a mask of the chosen tokens of the chosen solutions."""
    assert rollout.entropy is not None, "the scoring pass keeps entropies for this method"
    settings, credit = D3SConfig.of(cfg), against_group(rollout, "grpo", cfg)
    advantages, mask = np.asarray(credit.advantages), np.array(rollout.batch.mask)
    span = settings.until * cfg.iterations
    done = min(rollout.number / span, 1.0) if span else 1.0
    solutions, tokens = (
        share + (1 - share) * done for share in (settings.solutions, settings.tokens)
    )
    number = len(rollout.episodes)
    by_solution = token_means(rollout, advantages)
    mask[:number] &= extremes(by_solution, int(np.ceil(solutions * number)))[:, None]
    return credit._replace(mask=uncertain_tokens(advantages, rollout.entropy, mask, tokens))


METHOD = Method(
    downsampled_credit,
    state=Entropies(),
    settings=D3SConfig,
    reads=OF_GROUPS,
    defaults={"reward.scale": "group"},
    flags={"groups", "unmeasured"},
)
