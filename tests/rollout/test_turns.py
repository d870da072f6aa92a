"""Episodes of several turns: tokens, masks, budgets, values of turns, and copies by `fork`."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from helpers import hosts
from helpers import turn_cases as cases
from helpers.applied import assign_credit
from helpers.model_oracles import random_model

from vinejax.core.settings import SampleConfig
from vinejax.core.types import Episode, Rollout, Turn
from vinejax.credit.assign import token_estimates
from vinejax.engine.engine import Engine
from vinejax.learner.batch import collate, step_layout
from vinejax.rollout.overlong import penalised_episodes
from vinejax.rollout.sampler import ValuedState
from vinejax.rollout.turns import TurnSampler
from vinejax.rollout.vine import divide_at_states, fill_values
from vinejax.session.metrics import episode_metrics
from vinejax.tasks.doors import LEAN, MOVES, Doors, DoorsTask
from vinejax.tasks.environment import Observation


def test_an_episode_is_what_both_said_in_turn():
    cfg = cases.config()
    for episode in cases.sampled(cfg):
        problem = next(p for p, _ in cases.problems() if p.id == episode.problem_id)
        env = cases.environment(cfg, problem)
        text = cases.tokenizer().decode(episode.prompt[1:])
        assert text == f"{problem.question}\n{env.sight}"
        said = ""
        for turn in episode.turns:
            found = env.step(turn.action)
            assert (turn.observation, turn.reward) == found[:2]
            said += turn.action + found.text
        assert said == episode.text == cases.tokenizer().decode(episode.response)
        assert found.done and episode.finished and episode.reward == found.reward
        drawn = [x for x, own in zip(episode.response, episode.is_drawn, strict=True) if own]
        assert cases.tokenizer().decode(drawn) == "".join(turn.action for turn in episode.turns)
        assert episode.logprobs == np.where(episode.is_drawn, -1.0, 0.0).tolist()
        assert episode.step_ends == [turn.end for turn in episode.turns]
        assert episode.length == len(drawn) == 2 * len(episode.turns)


def test_the_tokens_of_an_evaluated_episode_are_those_that_the_policy_drew():
    """So its length is that of an episode in training, which does not count observations."""
    cfg = cases.config()
    episodes = cases.sampled(cfg)
    problems = cases.problems(cfg.rollout.prompts)
    groups = cases.sampler(cases.PolicyEngine(), cfg).responses({}, problems, 3).groups
    for grown, episode in zip(itertools.chain(*groups), episodes, strict=True):
        drawn = np.array(episode.response)[episode.is_drawn].tolist()
        assert (grown.tokens, grown.text) == (drawn, episode.text)
        assert len(grown.tokens) == len(grown.logprobs) == episode.length < len(episode.response)


def test_an_evaluated_episode_without_turns_left_has_the_reward_of_its_last_action():
    class Slow(Doors):
        def step(self, action: str) -> Observation:
            return Observation("more\n", 0.2)

    class Task(DoorsTask):
        def env(self) -> Doors:
            return Slow()

    cfg = cases.config(env={"max_turns": 2}, reward={"truncated": -0.5})
    found = cases.sampler(cases.PolicyEngine(), cfg, Task()).responses({}, cases.problems(), 3)
    np.testing.assert_array_equal(found.rewards, np.full((2, 3), 0.2, np.float32))


def test_environments_differ_between_iterations():
    cfg, first = cases.config(), []
    found = cases.problems(8)
    for iteration in (0, 3):
        episodes = cases.sampler(cases.PolicyEngine(), cfg, None, iteration).solutions({}, found, 8)
        texts = [
            cases.tokenizer().decode(e.prompt[1:]) for e in episodes[:: cfg.rollout.per_prompt]
        ]
        assert texts == [
            f"{p.question}\n{cases.environment(cfg, p, iteration).sight}" for p, _ in found
        ]
        first.append(texts)
    assert first[0] != first[1]


@pytest.mark.parametrize("budget, tokens, turns", [("fresh", 24, 9), ("left", 24 - 5, 7)])
def test_a_continuation_has_the_budgets_of_its_state(budget: str, tokens: int, turns: int):
    """Its state is one token into the third turn; two tokens were drawn in each turn before."""
    cfg = cases.config(values={"budget": budget}, env={"max_turns": 9, "turn_tokens": 3})
    sampler, (problem, _) = cases.sampler(cases.PolicyEngine(), cfg), cases.problems(1)[0]
    episode = cases.sampled(cfg)[0]
    observed = sum(turn.end - turn.drawn for turn in episode.turns[:2])
    used = episode.turns[1].end + 1
    play = sampler._continued(ValuedState(problem, 0, episode, 0, 2, used, []), seed=1)
    assert (play.tokens_left, play.turns_left) == (tokens, turns)
    assert play.observed_left == cfg.env.observed - observed < cfg.env.observed
    assert sampler.branches_of([play], None).max_tokens == [2]


def test_continuations_pay_for_the_tokens_that_they_drew():
    cfg = cases.config(reward={"overlong": 0.99}, rollout={"zero_variance": "keep"})
    sampler = cases.sampler(cases.PolicyEngine(), cfg)
    episodes = cases.sampled(cfg)
    for are_penalised in (False, True):
        paid = penalised_episodes(episodes, cfg) if are_penalised else episodes
        filled = fill_values(sampler, {}, cases.problems(), paid)
        lost = {c.outcome - c.reward for e in filled for g in e.continuations for c in g}
        length = 2 * MOVES  # of every continuation, with the turns before it
        penalty = (length - 0.01 * 24) / (0.99 * 24) / 2
        np.testing.assert_allclose([*lost], penalty if are_penalised else 0.0, atol=1e-6)


def test_equal_rewards_have_no_deviation():
    """A run then warns that it learns nothing. In float64 the mean of 24 times 0.1 is not 0.1."""
    cfg = cases.config(reward={"truncated": 0.1}, rollout={"prompts": 4, "per_prompt": 6})
    episodes = cases.sampled(cfg, cases.PolicyEngine(lambda text, rng: ">" * 30))
    found = episode_metrics(episodes)
    assert len(episodes) == 24 and not any(episode.finished for episode in episodes)
    assert (found["reward/mean"], found["reward/std"]) == (np.float32(0.1), 0)


def test_order_and_waves_change_nothing_but_the_seed_does(monkeypatch: pytest.MonkeyPatch):
    cfg = cases.config()
    first = cases.valued(cfg)
    assert same(first, cases.valued(cfg, cases.PolicyEngine(backwards=True)))
    assert same(
        first, cases.valued(dataclasses.replace(cfg, env=dataclasses.replace(cfg.env, workers=3)))
    )
    assert not same(first, cases.valued(dataclasses.replace(cfg, seed=7)))
    without = cases.valued(cfg, task=cases.WithoutFork())
    assert [e.continuations for e in without] == [e.continuations for e in first]
    # On several hosts turns come in waves, in a different order on each host.
    monkeypatch.setattr(TurnSampler, "_feed", lambda self, turns: None)
    engines = [cases.PolicyEngine(), cases.PolicyEngine(backwards=True)]
    assert all(same(first, cases.valued(cfg, engine)) for engine in engines)
    assert engines[0].calls == engines[1].calls and len(engines[0].calls) > 4


def test_a_wave_may_have_no_continuations():
    """That happens if all episodes end in their first turn, so that no state follows it."""
    values = {"reuse": True, "allocation": "helpers.turn_cases.in_two_waves", "max_states": 0}
    cfg = cases.config(values=values)
    episodes = cases.valued(cfg)
    assert len(episodes) == 6 and not any(len(x) for e in episodes for x in e.continuations[1:])


HOST = """
import jax
from helpers import turn_cases as cases
from vinejax.core.settings import DistributedConfig
from vinejax.runtime import distributed

distributed.initialize(DistributedConfig())
assert jax.process_count() == 3
engine = cases.PolicyEngine(backwards=jax.process_index() == 1)
print([(x.tokens, x.turns, x.continuations) for x in cases.valued(cases.config(), engine)])
assert len(engine.calls) > 4
"""


@pytest.mark.slow
def test_three_hosts_have_the_episodes_of_one():
    """Each host has a third of the environments, and sees turns end in an order of its own."""
    alone = [(x.tokens, x.turns, x.continuations) for x in cases.valued(cases.config())]
    assert hosts.last_lines(3, HOST) == [str(alone)] * 3


def same(a: list[Episode], b: list[Episode]) -> bool:
    return all(
        (x.tokens, x.turns, x.continuations) == (y.tokens, y.turns, y.continuations)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.first  # the tests above cover replay and reuse
@pytest.mark.parametrize(
    "task, values",
    [(DoorsTask(), {}), (cases.WithoutFork(), {}), (DoorsTask(), {"reuse": True})],
    ids=["fork", "replay", "reuse"],
)
def test_values_equal_enumeration(task: Any, values: dict[str, Any]):
    """Sampled values agree with sums over all actions in copies of the environments."""
    k = 150
    values = {"k": k, "dedup": False} | values
    cfg = cases.config(values=values, rollout={"prompts": 3, "per_prompt": 1})
    spread = check(cases.valued(cfg, task=task), k, cases.enumerated, cfg)
    assert spread > 0.2


def check(episodes: list[Episode], k: int, exact: Any, cfg: Any) -> float:
    """Checks that values are within 4 standard errors; returns the exact ones' deviation."""
    expected = []
    for episode in episodes:
        problem = next(p for p, _ in cases.problems(3) if p.id == episode.problem_id)
        env = cases.environment(cfg, problem)
        assert episode.values is not None and len(episode.values) == len(episode.turns)
        for value, turn in zip(episode.values, episode.turns, strict=True):
            v = exact(env)
            expected.append(v)
            assert abs(value - v) <= 4 * np.sqrt(v * (1 - v) / k) + 1e-6
            env.step(turn.action)
    return float(np.std(expected))


def test_the_gradient_of_an_episode_has_the_error_that_is_computed():
    """The gradient with respect to the log-odds of `>` has no bias and the error due to K."""
    k, per_prompt = 3, 40
    cfg = cases.config(
        values={"k": k, "dedup": False}, rollout={"prompts": 3, "per_prompt": per_prompt}
    )
    known = {p.id: gradient(cases.environment(cfg, p), k) for p, _ in cases.problems(3)}
    errors = []
    assert all(exact == pytest.approx(0.21) for exact, _ in known.values())
    for episode in cases.valued(cfg):
        assert episode.values is not None
        scores = np.array([SCORES[turn.action[0]] for turn in episode.turns])
        advantages = np.diff([*episode.values, episode.reward])
        errors.append(scores @ advantages - known[episode.problem_id][0])
    squares, expected = np.square(errors), np.mean([square for _, square in known.values()])
    for found, mean, size in ((np.array(errors), 0.0, 0.21), (squares, expected, expected)):
        deviation = np.std(found) / np.sqrt(len(found))
        assert abs(np.mean(found) - mean) < 4 * deviation < size, "4 standard errors"


SCORES = {">": 1 - LEAN, "<": -LEAN}  # d log pi(arm) / d log-odds


def gradient(env: Doors, k: int) -> tuple[float, float]:
    """(the exact gradient of V(env), E|g - exact|^2 of an episode's g with K continuations).

    The errors e_t of values are independent; g's error is the sum of e_t (score_(t-1) - score_t).
    """
    paths: list[tuple[float, float, float]] = []  # chance, gradient by exact values, variance

    def walk(env: Doors, chance: float, made: float, variance: float, before: float) -> None:
        v = cases.enumerated(env)
        for arm, score in SCORES.items():
            after = env.fork()
            found = after.step(f"{arm}\n")
            gained = made + score * ((found.reward if found.done else cases.enumerated(after)) - v)
            more = variance + v * (1 - v) / k * (before - score) ** 2
            likely = chance * (LEAN if arm == ">" else 1 - LEAN)
            if found.done:
                paths.append((likely, gained, more))
            else:
                walk(after, likely, gained, more, score)

    walk(env, 1.0, 0.0, 0.0, 0.0)
    chances, gradients, variances = np.array(paths).T
    exact = chances @ gradients
    return exact, chances @ ((gradients - exact) ** 2 + variances)


def test_credit_is_of_turns_and_nothing_is_trained_on_observations():
    cfg = cases.config()
    episodes = cases.valued(cfg)
    batch = collate(episodes, len(episodes))
    steps = step_layout(batch, episodes)
    credit = assign_credit(Rollout(episodes, batch, steps), cfg, "none")
    assert credit.mask is not None
    for row, episode in enumerate(episodes):
        start = len(episode.prompt)
        of_row = slice(start, start + len(episode.response))
        assert (batch.mask[row, of_row] == episode.is_drawn).all()
        assert batch.mask[row].sum() == credit.mask[row].sum() == episode.length
        assert (steps.step_ids[row, of_row] >= 0).tolist() == episode.is_drawn.tolist()
        assert (credit.advantages[row][~credit.mask[row]] == 0).all()
        assert episode.values is not None
        v = [*episode.values, 0.0]
        rewards = episode.rewards
        by_hand = [r + b - a for r, a, b in zip(rewards, v[:-1], v[1:], strict=True)]
        by_step = np.asarray(credit.by_step)[row, : len(by_hand)]
        np.testing.assert_allclose(by_step, by_hand, atol=1e-6)


def test_masks_positions_and_credit_of_an_episode_by_hand():
    """Turns of drawn tokens and an observation of 3, of one token and one of 1, of two tokens."""
    own = [1, 1, 0, 0, 0, 1, 0, 1, 1]
    turns = (
        Turn(2, 5, "a", "b", 0.0, None),
        Turn(6, 7, "c", "d", 0.0, None),
        Turn(9, 9, "e", "", 1.0, None),
    )
    episode = Episode(
        problem_id="x",
        prompt=[1, 2],
        response=[10, 11, 12, 13, 14, 15, 16, 17, 18],
        logprobs=[0.0] * 9,
        text="",
        finished=True,
        reward=1.0,
        step_ends=[5, 7, 9],
        step_rewards=[0.0, 0.0, 0.0],
        turns=turns,
        values=np.array([0.5, 0.25, 0.75], np.float32),
        is_state=np.ones(3, bool),
        value_counts=np.ones(3, np.int32),
    )
    assert episode.is_drawn.astype(int).tolist() == own and episode.length == 5
    cfg = cases.config()
    for rule, expected in (("turns", [0, 5, 7]), ("tokens", [0, 1, 5, 7, 8]), ("after", [0, 8])):
        values = dataclasses.replace(cfg.values, positions=rule, every=1)
        with_rule = dataclasses.replace(cfg, values=values)
        _, (places,) = divide_at_states([episode], with_rule, cases.tokenizer())
        assert places == expected
    batch = collate([episode], 1)
    rollout = Rollout([episode], batch, step_layout(batch, [episode]))
    credit = assign_credit(rollout, cfg, "none")
    np.testing.assert_allclose(np.asarray(credit.by_step)[0, :3], [-0.25, 0.5, 0.25])
    expected = [-0.25, -0.25, 0, 0, 0, 0.5, 0, 0.25, 0.25]
    np.testing.assert_allclose(credit.advantages[0, 2:11], expected)


@pytest.mark.parametrize("lam", [1.0, 0.5])
def test_token_estimates_pass_over_observations(lam: float):
    """Estimates equal those of the same tokens without the observations in between."""
    cfg = cases.config(ppo={"gamma": 0.9})
    episodes = cases.sampled(cfg)
    bare = [
        dataclasses.replace(
            e,
            response=np.array(e.response)[e.is_drawn].tolist(),
            logprobs=[-1.0] * e.length,
            step_ends=np.cumsum(e.is_drawn)[np.array(e.step_ends) - 1].tolist(),
            turns=(),
        )
        for e in episodes
    ]
    found = []
    for rows in (episodes, bare):
        batch = collate(rows, len(rows), longest=96)
        rollout = Rollout(rows, batch, step_layout(batch, rows))
        values = np.zeros(batch.mask.shape, np.float32)
        values[batch.mask] = np.arange(batch.mask.sum()) % 7 / 7
        advantages, returns = token_estimates(rollout, cfg, values, lam)
        assert (np.asarray(advantages)[~batch.mask] == 0).all()
        found.append([np.asarray(advantages)[batch.mask], np.asarray(returns)[batch.mask]])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0]).max() > 0.1


@pytest.mark.slow  # engine/test_keeping.py compares the tokens of the same engine
def test_keys_that_are_kept_change_no_episode(monkeypatch: pytest.MonkeyPatch):
    """A model plays doors: solutions, and continuations of their states."""
    cfg = cases.config(env={"turn_tokens": 3}, rollout={"prompts": 2, "per_prompt": 4})
    tokenizer = cases.tokenizer()
    model = random_model(tokenizer=tokenizer, vocab_size=len(tokenizer))
    found, made, counts = cases.problems(2), [], []
    for is_fed in (True, False):
        if not is_fed:  # turns come in waves, each in a call of its own
            monkeypatch.setattr(TurnSampler, "_feed", lambda *_: None)
        sampling = SampleConfig(max_tokens=24, stop=("\n",))
        engine = Engine(model.decoder, sampling, model.tokenizer, slots=8)
        sampler = cases.sampler(engine, cfg)
        episodes = sampler.solutions(model.params, found, 2)
        counts.append(engine.stats.prefill_tokens)
        made.append(fill_values(sampler, model.params, found, episodes))
        counts.append(engine.stats.prefill_tokens)
    assert same(*made)
    for kept, whole in zip(*made, strict=True):
        np.testing.assert_allclose(kept.logprobs, whole.logprobs, atol=1e-4)
    assert counts[0] <= sum(len(e.tokens) for e in made[0])
    assert counts[0] < counts[2] / 2 and counts[1] < counts[3] / 2
