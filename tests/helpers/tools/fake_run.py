"""A workdir as a training run leaves it, sampled from a toy policy that learns to add and multiply.

The episodes are a real vine: each value is the mean reward of continuations that are sampled from
the state it belongs to. `python tests/helpers/tools/fake_run.py DIR` writes one and its report.
"""

import json
import math
import operator
import pathlib
import random
import sys
from typing import Any

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
Chain = list[tuple[str, int]]


def sample_chain(rng: random.Random) -> tuple[int, Chain]:
    start = rng.randint(2, 9)
    return start, [(rng.choice("+-*"), rng.randint(2, 9)) for _ in range(rng.randint(2, 5))]


def continue_from(value: int, chain: Chain, error: float, rng: random.Random) -> tuple[list, str]:
    """The lines that a policy with this error rate writes from `value` on, and its finish."""
    lines = []
    for op, operand in chain:
        result = OPERATIONS[op](value, operand)
        if rng.random() < error * (1.6 if op == "*" else 0.8):
            result += rng.choice((-10, -2, -1, 1, 2, 10))
        lines.append(f"{value}{op}{operand}={result}\n")
        value = result
        if rng.random() < error * 0.08:
            return [*lines, f"{value}{value}{value}"], "length"
    return [*lines, f"#{value}"], "eos"


def reward_of(lines: list[str], finish: str, gold: int) -> float:
    return float(finish == "eos" and lines[-1] == f"#{gold}")


def sample_episode(iteration: int, index: int, error: float, k: int) -> dict[str, Any]:
    rng = random.Random(f"{iteration}/{index // 4}")
    start, chain = sample_chain(rng)
    gold = start
    for op, operand in chain:
        gold = OPERATIONS[op](gold, operand)
    question = str(start)
    for op, operand in chain:
        question = f"({question}{op}{operand})"
    rng = random.Random(f"{iteration}/{index}")
    lines, finish = continue_from(start, chain, error, rng)
    reward = reward_of(lines, finish, gold)
    vines = []
    for c in range(len(lines)):
        value = int(lines[c - 1].split("=")[1]) if c else start
        grown = [continue_from(value, chain[c:], error, rng) for _ in range(k)]
        vines.append([("".join(g), reward_of(g, f, gold), f) for g, f in grown])
    values = [sum(r for _, r, _ in vine) / k for vine in vines]
    errors = [math.sqrt((v * (1 - v) * k + 0.1) / (k + 1) / k) for v in values]
    steps = []
    for c, line in enumerate(lines):
        after = values[c + 1] if c + 1 < len(lines) else 0.0
        earned = reward if c + 1 == len(lines) else 0.0
        kept = vines[c] if index % 2 == 0 else []
        steps.append(
            {"text": line, "value": values[c], "value_after": after, "count": k}
            | {"advantage": earned + after - values[c], "error": errors[c]}
            | {"continuations": [{"text": t, "reward": r, "finish": f} for t, r, f in kept]}
        )
    return {
        "iteration": iteration,
        "problem_id": f"arithmetic/{iteration}-{index // 4}",
        "question": f"{question}=?",
        "answer": str(gold),
        "prompt": f"Q: {question}=?\nA:",
        "response": "".join(lines),
        "finished": finish == "eos",
        "reward": reward,
        "steps": steps,
    }


def sample_metrics(iterations: int, rng: random.Random) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [
        {"iteration": 0, "step": s, "stage": "sft", "sft/loss": 2.2 * math.exp(-s / 60) + 0.31}
        for s in range(0, 200, 10)
    ]
    for i in range(iterations + 1):
        done = i / iterations
        skill = 0.16 + 0.72 / (1 + math.exp(-9 * (done - 0.42)))
        if i % max(1, iterations // 6) == 0 or i == iterations:
            score, half = skill + rng.gauss(0, 0.008), 0.035
            line = {"eval/pass_at_1": score, "eval/pass_at_4": 1 - (1 - score) ** 1.9}
            line |= {"eval/pass_at_1_low": score - half, "eval/pass_at_1_high": score + half}
            line |= {"eval/maj_at_4": min(1.0, score * 1.06)}
            lines.append({"iteration": i, "step": 4 * i, "stage": "eval"} | line)
        if i in (0, iterations):
            line = {"test/pass_at_1": skill - 0.02}
            line |= {"test/pass_at_1_low": skill - 0.045, "test/pass_at_1_high": skill + 0.005}
            lines.append({"iteration": i, "step": 4 * i, "stage": "test"} | line)
        if i < iterations:
            lines.append(train_line(i, skill, done, rng))
    return lines


def train_line(i: int, skill: float, done: float, rng: random.Random) -> dict[str, Any]:
    def noisy(value: float, share: float = 0.06) -> float:
        return value * (1 + rng.gauss(0, share))

    length = noisy(21.4 + 5 * done, 0.02)
    return {
        "iteration": i,
        "step": 4 * (i + 1),
        "stage": "train",
        "reward/mean": min(1.0, noisy(skill, 0.05)),
        "actor/kl": noisy(0.0004 + 0.011 * done**1.4, 0.1),
        "actor/entropy": noisy(0.62 - 0.44 * done, 0.03),
        "actor/clip_frac": noisy(0.021 + 0.02 * math.sin(3 * done), 0.15),
        "actor/grad_norm": noisy(1.4 - 0.9 * done, 0.12) * (3.5 if i == 17 else 1),
        "actor/loss": rng.gauss(-0.004, 0.006),
        "response_length/mean": length,
        "response_length/max": float(round(noisy(47, 0.05))),
        "response_length/clip_ratio": max(0.0, noisy(0.06 * (1 - done), 0.3)),
        "frac_reward_zero_std": noisy(0.28 + 0.9 * (done - 0.45) ** 2, 0.08),
        "values/mean": min(1.0, noisy(skill * 0.97, 0.03)),
        "values/rollouts": round(noisy(9 * 64 * 3.6, 0.03)),
        "rollout/logprob_diff/mean": noisy(2.1e-6, 0.2),
        "rollout/logprob_diff/max": noisy(4.4e-5, 0.4),
        "timing_s/rollout": noisy(1.9 + 0.4 * done),
        "timing_s/value": noisy(5.6 + 0.9 * done),
        "timing_s/score": noisy(0.8),
        "timing_s/train": noisy(2.7),
        "perf/tokens_per_s": noisy(14_800, 0.04),
        **{f"by_eighth/entropy/{n}": noisy(0.9 - 0.4 * done - 0.05 * n) for n in range(1, 9)},
        **{f"by_eighth/ratio/{n}": 1 + rng.gauss(0, 0.01) for n in range(1, 9)},
        **{f"by_eighth/clip_frac/{n}": noisy(0.02 + 0.002 * n, 0.2) for n in range(1, 9)},
        **{f"by_eighth/logprob_diff/{n}": noisy(2e-6 * n, 0.2) for n in range(1, 9)},
    }


def write_run(workdir: pathlib.Path, iterations: int = 30, episodes: int = 64, k: int = 9) -> None:
    """Writes metrics, episodes and configuration of a whole run."""
    (workdir / "episodes").mkdir(parents=True)
    metrics = sample_metrics(iterations, random.Random(0))
    lines = "".join(json.dumps(line) + "\n" for line in metrics)
    (workdir / "metrics.jsonl").write_text(lines, encoding="utf-8")
    for i in range(iterations):
        error = 0.3 * (1 - i / iterations) + 0.03
        found = [sample_episode(i, e, error, k) for e in range(episodes)]
        text = "".join(json.dumps(episode) + "\n" for episode in found)
        (workdir / f"episodes/{i}.jsonl").write_text(text, encoding="utf-8")
    config = {
        "iterations": iterations,
        "seed": 0,
        "model": {"path": "scratch:tiny-decoder", "dtype": "float32"},
        "values": {"k": k, "budget": "remaining", "max_states": None, "dedup": True},
        "sample": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 48},
        "ppo": {"clip": [0.2, 0.28], "epochs": 2, "minibatch": 32},
        "kl": {"coef": 1e-4, "reduction": "token"},
        "eval": {"every": 5, "samples": 4},
    }
    versions = {"vinejax": "0.1.0", "jax": "0.10.2", "flax": "0.12.1", "python": "3.11.7"}
    whole = {"config": config, "versions": versions, "git_revision": "3f9c1d27ab54e0c8"}
    (workdir / "config.json").write_text(json.dumps(whole, indent=2), encoding="utf-8")


if __name__ == "__main__":
    from vinejax.tools.report.build import build_report

    write_run(pathlib.Path(sys.argv[1]))
    print(build_report(pathlib.Path(sys.argv[1])))
