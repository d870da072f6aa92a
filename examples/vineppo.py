"""VinePPO on one page: the whole algorithm, on the shipped arithmetic task and model.

    python examples/vineppo.py

It takes about two minutes on two CPU cores. An iteration has four stages:
  1. sample: several solutions to each of a few problems, each graded 1 or 0;
  2. value: V of the state before each step is the mean grade of K continuations from there;
  3. credit: the advantage of a step, V after it minus V before it, goes to all of its tokens;
  4. update: PPO's clipped loss plus a small penalty on the KL divergence from the start.

Simplified: rows are padded to one length, a state that several solutions visit is valued for each,
the learning rate is constant, and an interrupted run starts again. `python -m vinejax.main` adds
packed rows, device meshes and several hosts, checkpoints from which a run resumes exactly, reuse of
samples between states, grading while the devices decode, other tasks, models and methods,
accuracies with confidence intervals, and a report of the run.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import vinejax
from vinejax.core.text import decode
from vinejax.core.types import Problem
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.steps import step_ends

ITERATIONS = 10
PROBLEMS, SOLUTIONS, K = 32, 8, 9  # per iteration, per problem, continuations per state
MAX_PROMPT, MAX_RESPONSE = 16, 48  # tokens
EPOCHS, MINIBATCH = 2, 64
CLIP, KL_COEF = 0.2, 1e-4

task = Arithmetic()
rng = np.random.default_rng(0)
model, start, tokenizer = vinejax.load_pretrained(
    str(Path(__file__).parents[1] / "configs" / "tiny_start")
)
sampling = vinejax.SampleConfig(temperature=1.0, max_tokens=MAX_RESPONSE)
greedy = vinejax.SampleConfig(temperature=0.0, max_tokens=MAX_RESPONSE)
sampler = vinejax.Engine(model, sampling, tokenizer)
evaluator = vinejax.Engine(model, greedy, tokenizer)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, weight_decay=0.0))


class Solution(NamedTuple):
    problem: Problem
    prompt: list[int]  # token ids
    response: list[int]  # token ids
    step_ends: list[int]  # [C] response tokens up to the end of each step
    reward: float


class Batch(NamedTuple):
    tokens: np.ndarray  # i32[B, T] prompt, response, padding
    mask: np.ndarray  # bool[B, T] response tokens
    advantages: np.ndarray  # f32[B, T]
    old_logprobs: np.ndarray  # f32[B, T] under the policy that sampled
    start_logprobs: np.ndarray  # f32[B, T] under the start


def grade(problem: Problem, response: list[int], finish: str) -> float:
    """1 for a right answer; 0 for a wrong one, and for a response that ran out of tokens."""
    return 0.0 if finish == "length" else task.reward(problem, decode(tokenizer, response))


def sample(engine: vinejax.Engine, params, problems: list[Problem], count: int) -> list[Solution]:
    """`count` solutions to each problem, graded and split into steps."""
    prompts = [tokenizer.encode(task.prompt(problem)) for problem in problems]
    branches = [
        vinejax.Branch(i, len(prompt), seed=int(rng.integers(2**63)))
        for i, prompt in enumerate(prompts)
        for _ in range(count)
    ]
    solutions = []
    for branch, grown in zip(branches, engine.grow(params, prompts, branches), strict=True):
        problem, prompt = problems[branch.trunk], prompts[branch.trunk]
        boundaries = vinejax.split_steps(grown.text, style="gsm8k")  # in characters
        ends = step_ends(tokenizer, prompt, grown.tokens, boundaries, grown.text)
        reward = grade(problem, grown.tokens, grown.finish)
        solutions.append(Solution(problem, prompt, grown.tokens, ends, reward))
    return solutions


def step_advantages(params, solutions: list[Solution]) -> jax.Array:
    """f32[B, C] V after each step minus V before it; V is the mean reward of K continuations."""
    # A solution is a trunk, and its states are positions on it: the prompt's end, then step ends.
    trunks = [solution.prompt + solution.response for solution in solutions]
    states = [
        (b, used)  # after `used` response tokens of solution b
        for b, solution in enumerate(solutions)
        for used in [0, *solution.step_ends[:-1]]
    ]
    branches = [
        vinejax.Branch(b, len(solutions[b].prompt) + used, seed=int(rng.integers(2**63)))
        for b, used in states
        for _ in range(K)
    ]
    limits = [MAX_RESPONSE - used for _, used in states for _ in range(K)]
    returns = []
    for i, grown in enumerate(sampler.grow(params, trunks, branches, limits)):
        b, used = states[i // K]
        response = solutions[b].response[:used] + grown.tokens
        returns.append(grade(solutions[b].problem, response, grown.finish))

    num_steps = np.array([len(solution.step_ends) for solution in solutions])
    is_state = np.arange(num_steps.max()) < num_steps[:, None]  # [B, C]
    padded = np.zeros((*is_state.shape, K))
    padded[is_state] = np.reshape(returns, (-1, K))
    values = vinejax.mc_values(padded, K * is_state)
    rewards = np.array([solution.reward for solution in solutions])
    return vinejax.step_advantages(values, rewards, num_steps)


@jax.jit
def token_logprobs(params, tokens: jax.Array) -> jax.Array:
    """f32[B, T] log-probability of each token after those before it; 0 for the first."""
    logprobs = jax.nn.log_softmax(vinejax.apply(model, params, tokens)[:, :-1])
    logprobs = jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=2)[:, :, 0]
    return jnp.pad(logprobs, ((0, 0), (1, 0)))


def make_batch(params, solutions: list[Solution], per_step: jax.Array) -> Batch:
    """The solutions as padded rows; each token has the whitened advantage of its step."""
    tokens = np.zeros((len(solutions), MAX_PROMPT + MAX_RESPONSE), np.int32)
    step_ids = np.full(tokens.shape, -1)  # -1: no response token
    for b, solution in enumerate(solutions):
        first, length = len(solution.prompt), len(solution.response)
        tokens[b, : first + length] = solution.prompt + solution.response
        steps = np.searchsorted(solution.step_ends, np.arange(length), side="right")
        step_ids[b, first : first + length] = steps
    mask = step_ids >= 0
    advantages = vinejax.whiten(vinejax.token_advantages(per_step, step_ids), mask)
    old, ref = token_logprobs(params, tokens), token_logprobs(start, tokens)
    return Batch(tokens, mask, np.asarray(advantages), np.asarray(old), np.asarray(ref))


@jax.jit
def update(params, opt_state, batch: Batch):
    """The parameters and the optimizer's state after one step on a minibatch."""

    def loss(params) -> jax.Array:
        logprobs = token_logprobs(params, batch.tokens)
        policy = vinejax.ppo_clip(logprobs, batch.old_logprobs, batch.advantages, CLIP)
        penalty = vinejax.kl(logprobs, batch.start_logprobs, kind="k3")
        return jnp.mean(policy + KL_COEF * penalty, where=batch.mask)

    steps, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
    return optax.apply_updates(params, steps), opt_state


def accuracy(params, problems: list[Problem]) -> float:
    """Share of problems whose greedy solution is right."""
    return float(np.mean([solution.reward for solution in sample(evaluator, params, problems, 1)]))


def train(iterations: int = ITERATIONS) -> tuple[float, float]:
    """Returns the accuracy on the test problems before and after training."""
    problems, test = task.load("train"), task.load("test")
    params, opt_state = start, optimizer.init(start)
    before = accuracy(params, test)
    print(f"test accuracy of the start: {before:.3f}", flush=True)
    for iteration in range(iterations):
        drawn = [problems[i] for i in rng.choice(len(problems), PROBLEMS, replace=False)]
        solutions = sample(sampler, params, drawn, SOLUTIONS)
        batch = make_batch(params, solutions, step_advantages(params, solutions))
        for _ in range(EPOCHS):
            for rows in rng.permutation(len(solutions)).reshape(-1, MINIBATCH):
                minibatch = Batch(*(x[rows] for x in batch))
                params, opt_state = update(params, opt_state, minibatch)
        solved = np.mean([solution.reward for solution in solutions])
        print(f"iteration {iteration}: {solved:.3f} of the solutions were right", flush=True)
    after = accuracy(params, test)
    print(f"test accuracy after training: {after:.3f}")
    return before, after


if __name__ == "__main__":
    train()
