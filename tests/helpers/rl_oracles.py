"""The mathematics of `vinejax.rl` as loops over Python floats, for tests/rl and tests/learner.

An oracle never looks at an entry that its function promises not to read: tests put NaN there.
"""

import math

import numpy as np


def mc_values(returns, counts):
    out = np.zeros(counts.shape)
    for b, c in np.ndindex(counts.shape):
        taken = [float(returns[b, c, m]) for m in range(counts[b, c])]
        if taken:
            out[b, c] = sum(taken) / len(taken)
    return out


def step_advantages(values, rewards, num_steps, gamma=1.0):
    out = np.zeros(values.shape)
    for b, n in enumerate(num_steps):
        for c in range(n):
            is_last = c == n - 1
            next_value = 0.0 if is_last else float(values[b, c + 1])
            if rewards.ndim == 2:
                reward = float(rewards[b, c])
            else:
                reward = float(rewards[b]) if is_last else 0.0
            out[b, c] = reward + gamma * next_value - float(values[b, c])
    return out


def token_advantages(advantages, step_ids):
    out = np.zeros(step_ids.shape)
    for b, t in np.ndindex(step_ids.shape):
        if step_ids[b, t] != -1:
            out[b, t] = advantages[b, step_ids[b, t]]
    return out


def group_advantages(rewards, group_ids, kind):
    out = np.zeros(len(rewards))
    for i, reward in enumerate(rewards):
        group = [float(r) for r, g in zip(rewards, group_ids, strict=True) if g == group_ids[i]]
        if kind == "grpo" and max(group) > min(group):
            mean = sum(group) / len(group)
            std = math.sqrt(sum((r - mean) ** 2 for r in group) / len(group))
            out[i] = (float(reward) - mean) / (std + 1e-8)
        if kind == "rloo" and len(group) > 1:
            out[i] = float(reward) - (sum(group) - float(reward)) / (len(group) - 1)
    return out


def runs(row):
    """(start, end) of every run of True in one row of a mask."""
    found, start = [], None
    for t, selected in enumerate([*row, False]):
        if selected and start is None:
            start = t
        if not selected and start is not None:
            found.append((start, t))
            start = None
    return found


def gae(rewards, values, mask, gamma, lam):
    """A_t = Σ_k (γλ)^k δ_{t+k}, by the sum of the definition instead of the recursion."""
    advantages, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    for b, row in enumerate(mask):
        for start, end in runs(row):
            v = [float(x) for x in values[b, start:end]] + [0.0]
            r = [float(x) for x in rewards[b, start:end]]
            delta = [r[t] + gamma * v[t + 1] - v[t] for t in range(end - start)]
            for t in range(end - start):
                total = sum((gamma * lam) ** k * d for k, d in enumerate(delta[t:]))
                advantages[b, start + t] = total
                returns[b, start + t] = total + v[t]
    return advantages, returns


def whiten(x, mask, shift_mean=True):
    out = np.zeros(mask.shape)
    taken = [float(v) for v in x[mask]]
    if not taken:
        return out
    mean = sum(taken) / len(taken)
    variance = sum((v - mean) ** 2 for v in taken) / max(len(taken) - 1, 1)
    for b, t in zip(*np.nonzero(mask), strict=True):
        shifted = float(x[b, t]) - (mean if shift_mean else 0.0)
        out[b, t] = shifted / math.sqrt(variance + 1e-8)
    return out


def ppo_clip(logprobs, old_logprobs, advantages, low, high):
    out = np.zeros(logprobs.shape)
    for i in np.ndindex(logprobs.shape):
        ratio = math.exp(float(logprobs[i]) - float(old_logprobs[i]))
        clipped = min(max(ratio, 1 - low), 1 + high)
        advantage = float(advantages[i])
        out[i] = max(-advantage * ratio, -advantage * clipped)
    return out


def value_clip(values, old_values, returns, clip):
    out = np.zeros(values.shape)
    for i in np.ndindex(values.shape):
        value, old, target = float(values[i]), float(old_values[i]), float(returns[i])
        clipped = min(max(value, old - clip), old + clip)
        out[i] = 0.5 * max((value - target) ** 2, (clipped - target) ** 2)
    return out


def kl(logprobs, ref_logprobs, kind):
    out = np.zeros(logprobs.shape)
    for i in np.ndindex(logprobs.shape):
        p, q = float(logprobs[i]), float(ref_logprobs[i])
        out[i] = {
            "k1": p - q,
            "k2": (p - q) ** 2 / 2,
            "k3": math.expm1(q - p) - (q - p),
        }[kind]
    return out
