"""A task, an engine that replays a script, and episodes of one problem.

For the tests on sampling and step values in tests/rollout, and for the reports.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from helpers import loop_cases as cases
from helpers.applied import assign_credit, fill_values
from vinejax.core.settings import Config, GraderConfig, SampleConfig
from vinejax.core.types import Episode, Problem, Rollout
from vinejax.engine.branches import Branch, Grown, Stream, StreamPairs
from vinejax.engine.engine import Engine
from vinejax.learner.batch import collate, step_layout
from vinejax.tasks.graded import GradedTask

QUESTION, ANSWER = "2+3-1", "2+3=5\n5-1=4\n#### 4"
RIGHT = ("\n2+3=5", "\n5-1=4\n#### 4")
WRONG = ("\n2+3=6", "\n6-1=5", "\n5-1=4", "\n\n#### 5")  # the last joins the step before it
PROMPT = [cases.BOS, *cases.encode(f"{QUESTION}=")]
MAX_TOKENS = 40
PROBLEM = (Problem("train/7", QUESTION, ANSWER), PROMPT)


class Task(cases.FewProblems):
    """Rewards the whole response by a rule, and remembers the responses."""

    def __init__(self, reward: Callable[[str], float] = lambda text: float("#### 4" in text)):
        self.rule, self.graded = reward, []

    def reward(self, problem: Problem, response: str) -> float:
        assert problem == PROBLEM[0]
        self.graded.append(response)
        return self.rule(response)


class FakeEngine(Engine):
    """Returns the text and finish of `script(branch, k)`, the k-th branch of its state from 0."""

    def __init__(self, script: Callable[[Branch, int], tuple[str, str]]):
        self.tokenizer, self.script = cases.tokenizer(), script
        self.sample_config, self.model = SampleConfig(max_tokens=MAX_TOKENS), cases.model()
        self.eos_ids: tuple[int, ...] = (cases.EOS,)

    @property
    def scores_as_learner(self) -> bool:
        return False

    def stream(self, params, trunks, branches, max_tokens=None, scored=False) -> Stream:
        self.trunks, self.branches, self.budgets = trunks, branches, max_tokens
        return Stream(self._scripted)

    def _scripted(self) -> StreamPairs:
        trunks, seen = self.trunks, {}
        for i, branch in enumerate(self.branches):
            assert 1 <= branch.position <= len(trunks[branch.trunk])
            place = (branch.trunk, branch.position)
            text, finish = self.script(branch, seen.get(place, 0))
            seen[place] = seen.get(place, 0) + 1
            ids = cases.encode(text) + [cases.EOS] * (finish == "eos")
            yield i, Grown(ids, [-1.0] * len(ids), text, finish)
        return []

    def states(self) -> list[tuple[int, int]]:
        """(trunk, position) of each state that was grown from, in order."""
        return list(dict.fromkeys((b.trunk, b.position) for b in self.branches))


def episode(steps: tuple[str, ...], finish: str = "eos", reward: float = 1.0) -> Episode:
    pieces = [cases.encode(step) for step in steps]
    if finish == "eos":
        pieces[-1] = [*pieces[-1], cases.EOS]
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    return cases.episode(
        PROMPT,
        sum(pieces, []),
        problem_id=PROBLEM[0].id,
        text="".join(steps),
        step_ends=ends,
        finished=finish != "length",
        reward=reward,
    )


def alternate(branch: Branch, k: int) -> tuple[str, str]:
    """A script whose continuations reach the answer more often the later their state."""
    return ("\n#### 4" if k * 5 < branch.position else "\n#### 5"), "eos"


def fill(episodes: list[Episode], cfg: Config, script=alternate, task: Any = None):
    engine = FakeEngine(script)
    rewards = rewards_of(task or Task())
    filled = fill_values(engine, {}, rewards, [PROBLEM], episodes, cfg, iteration=3)
    return filled, engine


def rewards_of(task: Any) -> GradedTask:
    return GradedTask(task, GraderConfig())


def config(credit: dict[str, Any] | None = None, **values: Any) -> Config:
    values = {"k": 4, "max_states": None} | values
    return cases.config(values=values, credit=credit or {}, sample={"max_tokens": MAX_TOKENS})


def boundaries(of: Episode) -> list[int]:
    """Positions of s_0 .. s_{C-1} on the trunk."""
    return [len(PROMPT) + end for end in (0, *of.step_ends[:-1])]


def values_of(one: Episode) -> np.ndarray:
    assert one.values is not None
    return one.values


def credit_by_step(
    episodes: list[Episode], cfg: Config, learned: np.ndarray | None = None
) -> np.ndarray:
    """f32[episodes, C] the configured method's advantage of each step.

    `learned`, f32[episodes, tokens], are values before each response token, of weight 0.6.
    """
    batch = collate(episodes, len(episodes))
    rollout = Rollout(episodes, batch, step_layout(batch, episodes), weight=0.6)
    if learned is not None:
        values = np.zeros(batch.tokens.shape, np.float32)
        for row, episode in enumerate(episodes):
            start, length = len(episode.prompt), len(episode.response)
            values[row, start : start + length] = learned[row, :length]
        rollout = rollout._replace(values=values)
    return np.asarray(assign_credit(rollout, cfg, "none").by_step)
