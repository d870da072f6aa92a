"""The rewards of Open-RS: right answers earn more if they are short, and a format is asked for.

    --config.reward.functions="('open_rs.form', 'open_rs.cosine')" \\
    --config.reward.weights="(1.0, 2.0)"

in a folder with this file, or on PYTHONPATH; configs/tiny_open_rs.py is such a run. The rest of the
recipe: GRPO with 6 solutions, temperature 0.7, 3,584 tokens, a rate of 1e-6.

Source: https://arxiv.org/abs/2503.16219; knoveleng/open-rs at 2889c47, `rewards.py`. Departs: a
response longer than LONGEST counts as that long; there its cosine goes on, and rises again.
"""

import math

from vinejax.grading import grade_response

LONGEST = 1000  # characters


def cosine(response, ground_truth):
    """hi for no text to lo for LONGEST characters: 1 to ½ if right, -1 to -½ if wrong.

    lo + ½·(hi - lo)·(1 + cos(π·characters / LONGEST))
    """
    is_right = grade_response(response, ground_truth)
    low, high = (0.5, 1.0) if is_right else (-0.5, -1.0)
    share = min(len(response) / LONGEST, 1.0)
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * share))


def form(response):
    """1 if thinking ends exactly once, on a line of its own."""
    return float(response.count("\n</think>\n") == 1)
