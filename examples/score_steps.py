"""The value of every step of one solution: where did it go right, where wrong?

    python examples/score_steps.py [MODEL_FOLDER]

Any problem, solution and grader will do; here the shipped arithmetic model and a solution with a
slip in its second line. A step's value is the share of fresh continuations, sampled after it, that
still reach the right answer, so V falls at the slip and its advantage is negative.

    python examples/score_steps.py runs/NAME/reward_model

Without continuations, by the reward model that `--mode=export` writes of a run with a critic or a
probe; this needs torch. `success` may be a learned value of another run, too: with
REWARD_MODEL=FOLDER in the environment, `--config.values.prior=examples.score_steps.success`.
"""

import functools
import json
import os
import sys
from pathlib import Path

import numpy as np

import vinejax

MODEL = Path(__file__).parents[1] / "configs" / "tiny_start"
PROMPT = "7+8-4-3="
SOLUTION = "\n7+8=15\n15-4=12\n12-3=9\n#### 9"  # 15 - 4 is 11, so the answer should be 8
ANSWER = "#### 8"
K = 64  # continuations per state


def score_steps(folder: str, prompt: str, solution: str, answer: str, k: int = K):
    """(steps, V(s_0) .. V(s_{C-1}), advantages) of a worked solution."""
    model, params, tokenizer = vinejax.load_pretrained(folder)
    config = vinejax.SampleConfig(temperature=1.0, max_tokens=64)
    engine = vinejax.Engine(model, config, tokenizer)

    boundaries = vinejax.split_steps(solution, style="gsm8k")
    steps = [solution[a:b] for a, b in zip(boundaries, boundaries[1:], strict=False)]
    ids = tokenizer.encode(prompt)  # with BOS in front if the model was trained with it
    positions = [len(ids)]  # ends of the states: of the prompt, then of each step
    for step in steps:
        ids += tokenizer.encode(step, add_special_tokens=False)
        positions.append(len(ids))

    # One trunk, K branches at every state but the terminal one.
    states = range(len(steps))
    branches = [vinejax.Branch(0, positions[c], seed=k * c + i) for c in states for i in range(k)]
    grown = engine.grow(params, [ids], branches)
    returns = np.array([out.text.endswith(answer) for out in grown], np.float32)
    counts = np.full((1, len(steps)), k)
    values = vinejax.mc_values(returns.reshape(1, len(steps), k), counts)
    reward = np.array([float(solution.endswith(answer))])
    advantages = vinejax.step_advantages(values, reward, np.array([len(steps)]))
    return steps, np.asarray(values)[0], np.asarray(advantages)[0]


@functools.cache
def reward_model(folder: str):
    """(tokenizer, model) of a folder, in transformers."""
    from transformers import AutoModelForTokenClassification, PreTrainedTokenizerFast

    model = AutoModelForTokenClassification.from_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder), model.float().eval()


def success(prompts, completions) -> list[float]:
    """The chance of success after each prompt with the completion so far, by REWARD_MODEL."""
    import torch  # pyright: ignore[reportMissingImports]

    tokenizer, model = reward_model(os.environ["REWARD_MODEL"])
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = tokenizer(str(prompt))["input_ids"]
        response = tokenizer(str(completion), add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            value = model(torch.tensor([ids + response])).logits[0, -1, 0].item()
        # What the model had learned of the length of the response so far.
        value += model.config.value_per_token * len(response)
        found.append(min(max(value, 0.0), 1.0))
    return found


def is_reward_model(folder: str) -> bool:
    file = Path(folder) / "config.json"
    return file.exists() and "value_per_token" in json.loads(file.read_text())


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else str(MODEL)
    if is_reward_model(folder):
        os.environ["REWARD_MODEL"] = folder
        ends = vinejax.split_steps(SOLUTION, style="gsm8k")
        chances = success([PROMPT] * len(ends), [SOLUTION[:end] for end in ends])
        print(f"{PROMPT}\n\n  success after")
        for start, end, chance in zip([0, *ends], ends, chances, strict=False):
            print(f"  {chance:13.2f}  {SOLUTION[start:end].strip()!r}")
        return
    steps, values, advantages = score_steps(folder, PROMPT, SOLUTION, ANSWER)
    print(f"{PROMPT}\n\n  V before  advantage  step")
    for step, value, advantage in zip(steps, values, advantages, strict=True):
        print(f"  {value:8.2f}  {advantage:+9.2f}  {step.strip()!r}")


if __name__ == "__main__":
    main()
