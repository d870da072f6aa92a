"""POPri: direct preference optimisation on pairs by the rank of rewards, such as noised votes.

    loss of a pair: -logσ(β·((w - l) - (w_ref - l_ref)))
    w, l: log-probability of the solution of rank 1, of rank `popri.rank` among the problem's

Pairs with equal rewards are left out. contrib/examples/noised_votes.py is a reward of private
texts. It is far below 1, so that a method which pairs right with wrong solutions finds no pairs.

Source: https://arxiv.org/abs/2504.16438; meiyuw/POPri at 2f0ac43, `client_feedback.py`; rank 5 of
10 solutions, β = 0.01 and one epoch: its conf/bioarxiv/dpo_eps1.yaml.

Departs: the reference is the policy that the run began with, and all weights are trained unless
the run trains adapters, as the code does.
"""

from vinejax.contrib.methods.settings import POPriConfig
from vinejax.core.types import Episode
from vinejax.methods.dpo_positive import loss
from vinejax.methods.pairs import Pair, pair_method
from vinejax.methods.settings import DPOConfig


def pairs_by_rank(episodes: list[Episode], own: DPOConfig, seed: int) -> list[Pair]:
    """The pairs of each problem; `seed` is not used, because nothing is drawn."""
    assert isinstance(own, POPriConfig)
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.problem_id, []).append(episode)
    found = []
    for group in groups.values():
        ranked = sorted(group, key=lambda episode: -episode.reward)
        pairs = list(zip(ranked, ranked[own.rank - 1 :], strict=False))[: own.pairs]
        found += [(best, other) for best, other in pairs if best.reward > other.reward]
    return found


METHOD = pair_method(loss, __doc__ or "", pairs_by_rank, POPriConfig)
