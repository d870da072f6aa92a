"""Chooses and orders the solutions of an iteration that the report shows.

The largest advantages among some hundred solutions are mostly due to chance. With K = 9
continuations per state an advantage has a standard error of about 0.2, and the largest of a
thousand errors is three or four times as large. So the report begins with solutions of different
problems whose credit is significant and whose continuations were kept in the run's files.
"""

from collections import Counter

from vinejax.records.read import JsonObject
from vinejax.tools.report import rows

# Threshold of `StepRow.certainty`. If the true advantages of n steps are 0, their largest certainty
# is near sqrt(2 ln n): 2.9 for the 64 steps of 16 solutions whose continuations are kept.
CERTAIN = 3.0
MAX_OPEN = 3  # maximum number of solutions per iteration that the report shows expanded


def choose_episodes(episodes: list[JsonObject], count: int) -> list[JsonObject]:
    """At most `count` of the episodes, in the order in which the report shows them.

    Episodes are ranked by `rows.certainty_of` or, if values have no standard errors, by their
    largest advantage minus their smallest. In the order of preference, the best episode of each
    problem comes before the second best of each, and so on; repeated solutions of a problem come
    last. Up to half of the places are reserved for episodes whose continuations were kept in the
    run's files. The result has all chosen episodes with kept continuations first, then the others,
    both in the order of preference.
    """
    ranked = sorted(
        episodes,
        key=lambda e: (rows.certainty_of(e), rows.width_of(e), rows.unfolds(e)),
        reverse=True,
    )
    seen: set[str] = set()
    listed: Counter[str] = Counter()  # episodes of the problem that were listed before
    rounds: list[tuple[bool, int]] = []
    for episode in ranked:
        problem, identity = str(episode.get("problem_id")), rows.identity_of(episode)
        rounds.append((identity in seen, listed[problem]))
        listed[problem] += identity not in seen
        seen.add(identity)
    preferred = [ranked[i] for i in sorted(range(len(ranked)), key=rounds.__getitem__)]
    chosen_ids = {id(e) for e in [e for e in preferred if rows.unfolds(e)][: count // 2]}
    for episode in preferred:
        if len(chosen_ids) < count:
            chosen_ids.add(id(episode))
    chosen = [e for e in preferred if id(e) in chosen_ids]
    return sorted(chosen, key=rows.unfolds, reverse=True)  # stable: each half stays in order


def count_open(episodes: list[JsonObject]) -> int:
    """How many of the chosen `episodes`, counted from the first, the report shows expanded.

    If values have standard errors, this is the number of episodes whose continuations were kept and
    whose `rows.certainty_of` is at least CERTAIN, but at least 1 and at most MAX_OPEN. Without
    standard errors it is MAX_OPEN, or the number of episodes if that is smaller.
    """
    if not any(map(rows.certainty_of, episodes)):
        return min(MAX_OPEN, len(episodes))
    certain = [e for e in episodes if rows.certainty_of(e) >= CERTAIN and rows.unfolds(e)]
    return min(MAX_OPEN, max(1, len(certain)))
