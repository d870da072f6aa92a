"""Who deserves the credit? VinePPO's advantages for two small solutions, without any model.

    python examples/advantages.py

Everything in `vinejax`'s mathematics is a pure function of arrays, so it fits into any training
loop: bring your own rollouts, take the advantages. Letters: B solutions, C reasoning steps,
M Monte Carlo rollouts per state, T tokens.
"""

import numpy as np

import vinejax

SOLUTIONS = [
    ["Half of 48 is 24.", "48 + 24 = 72.", "#### 72"],
    ["Half of 48 is 22.", "#### 70"],
]
NUM_STEPS = np.array([3, 2])
REWARDS = np.array([1.0, 0.0])  # [B] the first answer is right, the second wrong

# Before each step the policy was asked to finish the solution from there four times, and every
# continuation was graded: returns[b, c, m]. Both solutions answer one prompt, so they share s_0.
# The second one has no third step: nothing is read there, and NaN makes the point.
NONE = [np.nan] * 4
RETURNS = np.array(
    [
        [[1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]],
        [[1, 0, 0, 1], [0, 0, 0, 0], NONE],
    ]
)
COUNTS = np.array([[4, 4, 4], [4, 4, 0]])

# Which step each token belongs to; -1 is the prompt before the response and the padding after it.
STEP_IDS = np.array(
    [
        [-1, -1, 0, 0, 0, 1, 1, 1, 1, 2, 2],
        [-1, -1, 0, 0, 0, 1, 1, -1, -1, -1, -1],
    ]
)


def print_steps(values, advantages):
    for b, steps in enumerate(SOLUTIONS):
        print(f"\nSolution {b + 1}, reward {REWARDS[b]:g}")
        print(f"  {'step':<20}{'value before':>14}{'advantage':>12}")
        for c, step in enumerate(steps):
            print(f"  {step:<20}{values[b, c]:>14.2f}{advantages[b, c]:>+12.2f}")
        # The advantages telescope: nothing is lost and nothing invented.
        total, gain = advantages[b].sum(), REWARDS[b] - values[b, 0]
        print(f"  {'sum = R - V(s_0)':<20}{'':>14}{total:>+12.2f} = {gain:+.2f}")


def print_tokens(title, per_token):
    print(f"\n{title}")
    for row, is_response in zip(per_token, STEP_IDS >= 0, strict=True):
        cells = (f"{x:+.2f}" if r else "." for x, r in zip(row, is_response, strict=True))
        print("  " + "".join(f"{cell:>7}" for cell in cells))


def main():
    # V(s) is the mean return of the rollouts from s.
    values = np.asarray(vinejax.mc_values(RETURNS, COUNTS))

    # A step is worth what it changed: V after it (plus its reward) less V before it. The blame
    # in solution 2 falls on the step with the mistake and not on the one that repeats it.
    step_advantages = np.asarray(vinejax.step_advantages(values, REWARDS, NUM_STEPS))
    print_steps(values, step_advantages)

    # Each token takes its step's advantage. This is what the policy loss multiplies.
    token_advantages = vinejax.token_advantages(step_advantages, STEP_IDS)
    print_tokens("Token advantages [B, T]", np.asarray(token_advantages))

    # Whitened over all response tokens together: mean 0 and variance 1. With the shift, tokens
    # whose advantage was 0 move; shift_mean=False only rescales.
    is_response = STEP_IDS >= 0
    whitened = vinejax.whiten(token_advantages, is_response)
    print_tokens("Whitened", np.asarray(whitened))
    rescaled = vinejax.whiten(token_advantages, is_response, shift_mean=False)
    print_tokens("Whitened, shift_mean=False", np.asarray(rescaled))

    # GRPO sees only the final rewards: every step of a solution gets the same credit.
    grpo = np.asarray(vinejax.group_advantages(REWARDS, np.array([0, 0]), "grpo"))
    print(
        f"\nGRPO, for comparison: {grpo[0]:+.2f} on all of solution 1, {grpo[1]:+.2f} on all of 2"
    )


if __name__ == "__main__":
    main()
