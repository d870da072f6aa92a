"""What an iteration samples where resets are configured: `helpers.applied` with its sampler."""

import functools

from helpers import applied
from vinejax.contrib.resets.reset_sampler import ResetSampler

sampler = functools.partial(applied.sampler, kind=ResetSampler)
sample_episodes = functools.partial(applied.sample_episodes, kind=ResetSampler)
fill_values = functools.partial(applied.fill_values, kind=ResetSampler)
