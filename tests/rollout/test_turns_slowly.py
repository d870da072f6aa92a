"""Episodes of several turns in the real engine, against a loop that draws one token at a time.

The loop knows neither rows, feeds, kept keys nor skipped repeats: each token comes from a forward
pass over the whole text so far, each turn from its own call, each continuation from an environment
that repeats all actions.
"""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from helpers import turn_cases as cases
from helpers.model_oracles import Model, continue_slowly, random_model

from vinejax.core.seeds import row_seed
from vinejax.core.settings import Config, SampleConfig
from vinejax.core.types import Episode, Problem
from vinejax.engine.engine import Engine
from vinejax.rollout.vine import fill_values
from vinejax.tasks.doors import DoorsTask
from vinejax.tasks.environment import Observation
from vinejax.tasks.generated import share_of

BOS, EOS, END = 0, 1, 3  # END is the newline, with which a turn ends
CUT = -0.5  # `reward.truncated`
SAMPLING = SampleConfig(temperature=0.9, max_tokens=24, stop=("\n",))


class Hashed:
    """Its answers are hashes of the seed and all actions: of 0 to 7 characters, with rewards."""

    def reset(self, problem: Problem, seed: int) -> str:
        self.said = [str(seed)]
        return "\n"

    def step(self, action: str) -> Observation:
        self.said.append(action)
        share, other, third = (share_of(f"{i} {self.said}") for i in range(3))
        text = "1+2=3\n("[: int(8 * share)]
        cut = other > 0.95
        return Observation(text, round(third, 3), done=other < 0.15, truncated=cut)

    def fork(self) -> "Hashed":
        return copy.deepcopy(self)


class HashedTask(DoorsTask):
    name, max_turns = "hashed", 5

    def env(self) -> Any:
        return Hashed()


def text_of(model: Model, ids: list[int]) -> str:
    return str(model.tokenizer.decode(ids, skip_special_tokens=True))


@dataclasses.dataclass
class Slow:
    """An episode under way, or a continuation of one."""

    prompt: list[int]
    env: Hashed
    tokens_left: int
    observed_left: int
    turns_left: int
    response: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    actions: list[str] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    finish: str = ""

    def play(self, model: Model, cfg: Config, seed: int) -> None:
        """Draws turns until the episode is over."""
        context, tokenizer = model.decoder.cfg.context, model.tokenizer
        while not self.finish:
            ids = self.prompt + self.response
            budget = min(self.tokens_left, cfg.env.turn_tokens or self.tokens_left)
            drawn, logprobs, _ = continue_slowly(model, SAMPLING, ids, seed, (EOS, END), budget)
            self.response, self.logprobs = self.response + drawn, self.logprobs + logprobs
            self.tokens_left -= len(drawn)
            room = context - len(self.prompt) - len(self.response)
            if drawn[-1] not in (EOS, END) and min(self.tokens_left, room) <= 0:
                self.finish = "length"
                return
            said = text_of(model, drawn)
            self.actions.append(said)
            seen = self.env.step(said)
            self.rewards.append(seen.reward)
            self.turns_left -= 1
            answer = tokenizer.encode(seen.text, add_special_tokens=False)
            fits = len(answer) <= self.observed_left and len(answer) < room
            if seen.done:
                self.finish = "stop"
            elif seen.truncated or not self.turns_left or not self.tokens_left or not fits:
                self.finish = "length"
            else:
                self.observed_left -= len(answer)
                self.response, self.logprobs = (
                    self.response + answer,
                    self.logprobs + [0.0] * len(answer),
                )


def slow_episode(model: Model, cfg: Config, problem: Problem, number: int) -> Slow:
    env = Hashed()
    first = env.reset(problem, row_seed(cfg.seed, 0, f"environment {problem.id}") % 2**32)
    prompt = [BOS, *model.tokenizer.encode(problem.question + first, add_special_tokens=False)]
    slow = Slow(prompt, env, cfg.sample.max_tokens, cfg.env.observed, 5)
    slow.play(model, cfg, row_seed(cfg.seed, 0, problem.id, number))
    return slow


def slow_continuation(
    model: Model, cfg: Config, problem: Problem, episode: Episode, place: tuple[int, int, int]
) -> Slow:
    """Continuation k of the state before turn c of solution i, where `place` is (i, c, k)."""
    i, c, k = place
    turns = episode.turns[:c]
    used = turns[-1].end if turns else 0
    env = Hashed()
    env.reset(problem, row_seed(cfg.seed, 0, f"environment {problem.id}") % 2**32)
    for turn in turns:
        env.step(turn.action)
    drawn = sum(episode.is_drawn[:used])
    slow = Slow(
        episode.prompt,
        env,
        cfg.sample.max_tokens - int(drawn),
        cfg.env.observed - (used - int(drawn)),
        5 - len(turns),
        response=episode.response[:used],
    )
    slow.play(model, cfg, row_seed(cfg.seed, 0, problem.id, i, c + 1, k))
    return slow


def played(cfg: Config, model: Model, **settings: Any) -> list[Episode]:
    """Valued episodes of the real engine."""
    engine = Engine(model.decoder, SAMPLING, model.tokenizer, **settings)
    sampler, found = cases.sampler(engine, cfg, HashedTask()), cases.problems(2)
    episodes = sampler.solutions(model.params, found, len(found))
    return fill_values(sampler, model.params, found, episodes)


@pytest.fixture(scope="module")
def model() -> Model:
    """A random model that prefers newlines, so that turns have one to three tokens."""
    tokenizer = cases.tokenizer()
    made = random_model(tokenizer=tokenizer, vocab_size=len(tokenizer), context=40)
    params = made.params | {"head": made.params["head"].at[:, END].multiply(3.0)}
    return made._replace(params=params)


LIMITS = {
    "turns and tokens": {"env": {"turn_tokens": 4, "observed": 12}},
    "context": {"env": {"observed": 40}, "sample": {"max_tokens": 24}},
    "tokens": {"env": {"observed": 30, "turn_tokens": 6}, "sample": {"max_tokens": 9}},
}
ENGINES = {
    "rows for all": {"slots": 16},
    "few slots": {"slots": 3, "chunk": 2},
    "few rows": {"slots": 6, "window_rows": 2, "chunk": 3, "skip_repeats": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("settings", ENGINES)
def test_the_engine_plays_as_a_slow_loop_does(model: Model, limits: str, settings: str):
    values = {"k": 2, "dedup": False}
    sections = {"values": values, "reward": {"truncated": CUT}} | LIMITS[limits]
    cfg = cases.config(rollout={"prompts": 2, "per_prompt": 3}, **sections)
    problems = {problem.id: problem for problem, _ in cases.problems(2)}
    episodes = played(cfg, model, **ENGINES[settings])
    numbers, ends, compared = dict.fromkeys(problems, 0), set(), 0
    for episode in episodes:
        problem = problems[episode.problem_id]
        i = numbers[problem.id]
        numbers[problem.id] += 1
        slow = slow_episode(model, cfg, problem, i)
        assert (episode.prompt, episode.response) == (slow.prompt, slow.response)
        np.testing.assert_allclose(episode.logprobs, slow.logprobs, atol=1e-4)
        assert [turn.action for turn in episode.turns] == slow.actions
        assert [turn.reward for turn in episode.turns] == slow.rewards
        assert episode.finished == (slow.finish == "stop")
        assert episode.reward == pytest.approx(slow.rewards[-1] if episode.finished else CUT)
        for c in range(len(episode.turns)):
            for k, given in enumerate(episode.continuations[c]):
                own = slow_continuation(model, cfg, problem, episode, (i, c, k))
                assert given.finish == own.finish
                ends.add(own.finish)
                used = episode.turns[c - 1].end if c else 0
                assert given.text == text_of(model, own.response[used:])
                total = sum(own.rewards) + CUT * (own.finish == "length")
                assert given.reward == pytest.approx(total, abs=1e-5)
                compared += 1
    assert ends == {"stop", "length"} and compared >= 12
    if limits == "context":
        assert max(len(episode.tokens) for episode in episodes) == model.decoder.cfg.context
