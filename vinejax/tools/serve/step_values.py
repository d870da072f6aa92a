"""The values of a solution's steps: /v1/step_values.

    V(s) = mean return of K continuations of s     A_c = r_c + γ·V(s_{c+1}) - V(s_c)

With a reference answer, V and its standard error come from `rollout.vine.fill_values`, the function
of training, and the solutions from `rollout.sampler.Sampler`. Without one, V is the run's probe or
critic, which has no standard error, and there is no reward: A is γ·V(s_{c+1}) - V(s_c), and the
last step has no advantage.
"""

import dataclasses
import math
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.errors import UserError
from vinejax.core.settings import Config, with_fields
from vinejax.core.shapes import doubled
from vinejax.core.text import (
    Tokenizer,
    continuation_text,
    opens_thinking,
    prefix_end,
    special_tokens,
)
from vinejax.core.types import Episode, Problem, PromptedProblem
from vinejax.engine.branches import Grown
from vinejax.model.hf.weights import RewardModel
from vinejax.rl.advantages import step_advantages
from vinejax.rollout.sampler import Sampler, Solution, episode_of, solution_requests
from vinejax.rollout.vine import divide_at_states, fill_values
from vinejax.tasks.base import WithGold
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import (
    LONGEST_TOKEN,
    encode_within,
    prompt_ids,
    prompt_text,
    template_variables,
    tools_of,
)
from vinejax.tasks.rewards import Reward
from vinejax.tools.serve.fed_engine import FedEngine
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.prompts import PromptEncoder
from vinejax.tools.serve.replies import FINISH
from vinejax.tools.serve.requests import Limits, StepValuesRequest
from vinejax.tools.serve.scoring import values_after

LOW_PROBABILITY = "low_probability"  # the positions rule that reads log-probabilities
PROBLEM_ID = "request"  # the problem's id, on which the seeds of its solutions depend
NO_REFERENCE = "is missing, and the server has no probe and no critic; give a reference answer"


class StepValues(NamedTuple):
    """Solutions with their values, and the source of the values."""

    cfg: Config  # with the fields that the request set
    episodes: list[Episode]
    source: str  # 'monte_carlo', 'probe' or 'critic'
    num_prompt_tokens: int
    num_tokens: int  # tokens drawn for solutions and continuations
    weights: list[str]  # the names of the weights that drew them; newer ones may come in between


@dataclasses.dataclass(frozen=True)
class StepValuer:
    """Answers requests to /v1/step_values, each on a thread of the caller's."""

    cfg: Config  # of the run, with its method's own choices
    graded: GradedTask
    tokenizer: Tokenizer
    encoder: PromptEncoder  # of the same tokenizer, with the lock under which it encodes
    limits: Limits
    # Loads ('probe' or 'critic', the run's value model); None: the run has none.
    load_learned: Callable[[], tuple[str, RewardModel] | None]
    make_engine: Callable[[Config, float, Callable[[], bool]], FedEngine]

    def __call__(
        self, request: StepValuesRequest, deadline: float, is_given_up: Callable[[], bool]
    ) -> StepValues:
        """The values for a request.

        Raises RequestError for a request that the task, the model or the limits do not allow, once
        the client has left, and after the deadline.
        """
        if isinstance(self.graded.task, MultiTurn):
            raise RequestError(400, f"task {self.graded.task.name}: solutions in turns have none")
        learned = self.load_learned() if request.answer is None else None
        if request.answer is None and learned is None:
            raise RequestError(400, f"answer: {NO_REFERENCE}", "answer")
        cfg = self._config(request)
        if request.solutions and cfg.values.positions == LOW_PROBABILITY:
            message = f"{LOW_PROBABILITY!r} reads the probabilities of sampled tokens, which given"
            message += " solutions lack; set other positions, such as 'steps'"
            raise RequestError(400, f"positions: {message}", "positions")
        engine = self.make_engine(cfg, deadline, is_given_up)
        sampler = Sampler(engine, self.graded, cfg, iteration=0)
        # A sampled solution needs room in the trunk on which its continuations are drawn.
        problem = self._prompted(request, 0 if request.solutions else cfg.sample.max_tokens)
        try:
            episodes = self._solutions(sampler, request, problem)
            if learned is None:
                episodes = self._sampled(sampler, problem, episodes)
            else:
                episodes = self._predicted(learned[1], engine, cfg, episodes)
        except UserError as error:
            raise RequestError(400, str(error)) from None
        source = learned[0] if learned else "monte_carlo"
        return StepValues(
            cfg, episodes, source, len(problem[1]), engine.num_tokens, list(engine.weights)
        )

    def _config(self, request: StepValuesRequest) -> Config:
        """The run's configuration with the fields that the request sets."""
        values = self.cfg.values
        positions = "steps" if values.positions in ("method", "turns") else values.positions
        allocation = "uniform" if values.allocation == "method" else values.allocation
        seed = secrets.randbits(64) if request.seed is None else request.seed
        wanted = {
            "seed": seed,
            "values.positions": request.positions or positions,
            "values.allocation": allocation,
            "values.k": request.k,
            "values.every": request.every,
            "values.num_states": request.num_states,
            "values.reuse": False,
            "values.backup": False,
            "credit.labels": "off",
            "rollout.per_prompt": request.n,
            "sample.temperature": request.temperature,
            "sample.top_p": request.top_p,
            "sample.max_tokens": request.max_tokens,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        cfg = with_fields(self.cfg, given)
        if cfg.sample.max_tokens > self.limits.max_tokens:
            cfg = with_fields(cfg, {"sample.max_tokens": self.limits.max_tokens})
        return cfg

    def _prompted(self, request: StepValuesRequest, solution_tokens: int) -> PromptedProblem:
        """The problem with its prompt, as `tasks.prompts.load_problems` makes it.

        Raises RequestError if the prompt leaves no room for `solution_tokens` further tokens.
        """
        data, task = self.cfg.data, self.graded.task
        as_chat = data.chat_template
        context = (("system", data.system),) if as_chat and data.system else ()
        answer = "" if request.answer is None else self._reference(request.answer)
        problem = Problem(PROBLEM_ID, request.problem, answer, {}, context)
        try:
            text = task.prompt(problem)
            if len(text) > self.limits.prompt_tokens * LONGEST_TOKEN:
                raise RequestError(400, "problem: has too many characters", "problem")
            variables = template_variables(self.tokenizer, data, tools_of(task))
            with self.encoder.lock:
                text = prompt_text(self.tokenizer, text, as_chat, context, variables)
                ids = prompt_ids(self.tokenizer, text, as_chat)
        except UserError as error:
            raise RequestError(400, f"problem: {error}", "problem") from None
        room = min(self.limits.prompt_tokens - solution_tokens, self.limits.context - 1)
        if len(ids) > room:
            message = (
                f"problem: its prompt has {len(ids)} tokens, of which {max(room, 0)} are allowed"
            )
            if solution_tokens:
                message += f" beside max_tokens = {solution_tokens} of a solution; set it lower"
            raise RequestError(400, message, "problem")
        is_hidden = self.cfg.sample.skip_special_tokens
        hidden = special_tokens(self.tokenizer) if is_hidden else ()
        return dataclasses.replace(problem, opening=opens_thinking(text, hidden)), ids

    def _reference(self, answer: str) -> str:
        """A reference answer in the form of the task's data, as it is or after '#### '.

        Raises RequestError for an answer that the task reads in neither form.
        """
        task = self.graded.task
        for text in (answer, f"#### {answer}"):
            problem = Problem(PROBLEM_ID, "", text)
            read = task.gold(problem) if isinstance(task, WithGold) else task.answer(text)
            if read is not None and not self.graded.unreadable([problem]):
                return text
        raise RequestError(400, f"answer: task {task.name} cannot read {answer!r:.40}", "answer")

    def _solutions(
        self, sampler: Sampler, request: StepValuesRequest, problem: PromptedProblem
    ) -> list[Episode]:
        """The request's solutions, or sampled ones, with their steps and rewards.

        Without a reference answer all rewards are 0.
        """
        if not request.solutions and request.answer is not None:
            return sampler.solutions({}, [problem], most_groups=1)
        if not request.solutions:
            starts = sampler.prompt_starts([problem], request.n)
            wanted = solution_requests(starts, sampler.cfg.sample.max_tokens)
            stream = sampler.engine.stream({}, wanted.trunks, wanted.branches, wanted.budgets)
            return sampler.episodes_of(starts, stream.in_order(), [Reward(0.0)] * request.n)
        found = [self._solution(problem, text) for text in request.solutions]
        rewards = [Reward(0.0)] * len(found)
        if request.answer is not None:
            ids = [solution.response for solution in found]
            rewards = self.graded.grade([(x.problem, x.text) for x in found], ids)
        return [
            episode_of(
                solution,
                num_given=0,
                grown=Grown(solution.response, [0.0] * len(solution.response), "", "eos"),
                steps=sampler.split(solution),
                reward=reward,
            )
            for solution, reward in zip(found, rewards, strict=True)
        ]

    def _solution(self, problem: PromptedProblem, text: str) -> Solution:
        """A given solution with its tokens. Raises RequestError if it is too long."""
        prompt = problem[1]
        with self.encoder.lock:
            ids = encode_within(self.tokenizer, text)
        room = min(self.limits.prompt_tokens, self.limits.context) - len(prompt)
        if not 0 < len(ids) <= min(room, self.limits.max_tokens):
            most = min(room, self.limits.max_tokens)
            message = f"has {len(ids)} tokens, which must be from 1 to {most}"
            raise RequestError(400, f"solution: {message}", "solution")
        return Solution(problem[0], prompt, ids, text)

    def _sampled(
        self, sampler: Sampler, problem: PromptedProblem, episodes: list[Episode]
    ) -> list[Episode]:
        """The episodes with Monte Carlo values, divided into the steps between states."""
        _, positions = divide_at_states(episodes, sampler.cfg, self.tokenizer)
        count = sum(map(len, positions)) * sampler.cfg.values.k
        if count > self.limits.continuations:
            message = f"{count} continuations, of which {self.limits.continuations} are allowed"
            raise RequestError(400, f"k: {message}; set k or num_states lower", "k")
        return fill_values(sampler, {}, [problem], episodes)

    def _predicted(
        self, scorer: RewardModel, engine: FedEngine, cfg: Config, episodes: list[Episode]
    ) -> list[Episode]:
        """The episodes with the values of a probe or critic, divided like those of `_sampled`."""
        divided, positions = divide_at_states(episodes, cfg, self.tokenizer)
        rows = [episode.tokens for episode in divided]
        valued, after = [], engine.call(lambda _: values_after(scorer, rows))
        for episode, of_episode, row in zip(divided, positions, after, strict=True):
            at, count = np.array(of_episode, np.int64), len(episode.step_ends)
            values = row[len(episode.prompt) - 1 + at] + scorer.per_token * at
            first = count - len(values)  # steps before the first state
            valued.append(
                dataclasses.replace(
                    episode,
                    values=np.concatenate([np.zeros(first), values]).astype(np.float32),
                    is_state=np.arange(count) >= first,
                    value_counts=np.zeros(count, np.int32),
                    value_errors=np.full(count, np.nan, np.float32),
                )
            )
        return valued


def advantages_of(episode: Episode, gamma: float, has_reward: bool) -> list[float | None]:
    """[C] the advantage of each step; None for steps without a state, or without a reward."""
    assert episode.values is not None and episode.is_state is not None
    count = len(episode.step_ends)
    if not count:
        return []
    rewards = episode.rewards if has_reward else [0.0] * count
    padded = np.zeros((2, 1, doubled(count)), np.float32)  # few sizes, so few programs
    padded[0, 0, :count], padded[1, 0, :count] = episode.values, rewards
    row = step_advantages(padded[0], padded[1], [count], gamma)
    found: list[float | None] = np.asarray(row)[0, :count].tolist()
    if not has_reward:
        found[-1] = None
    return [x if is_state else None for x, is_state in zip(found, episode.is_state, strict=True)]


def shown_values(
    values: StepValues, with_continuations: bool, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """The solutions with their steps, as the reply has them."""
    has_reward = values.source == "monte_carlo"
    shown = []
    for i, episode in enumerate(values.episodes):
        advantages = advantages_of(episode, values.cfg.ppo.gamma, has_reward)
        steps = _shown_steps(episode, advantages, tokenizer)
        if with_continuations:
            for step, drawn in zip(steps, episode.continuations, strict=False):
                step["continuations"] = [
                    {"text": x.text, "reward": x.reward, "finish_reason": FINISH[x.finish]}
                    for x in drawn
                ]
        shown.append(
            {
                "index": i,
                "text": episode.text,
                "finish_reason": "stop" if episode.finished else "length",
                "reward": episode.reward if has_reward else None,
                "steps": steps,
            }
        )
    return shown


def _shown_steps(
    episode: Episode, advantages: list[float | None], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    assert episode.values is not None and episode.is_state is not None
    assert episode.value_counts is not None and episode.value_errors is not None
    steps, start = [], 0
    for c, end in enumerate(episode.step_ends):
        is_state, error = bool(episode.is_state[c]), float(episode.value_errors[c])
        before = episode.prompt + episode.response[:start]
        tokens, start = episode.response[start:end], end
        steps.append(
            {
                "text": continuation_text(tokenizer, prefix_end(tokenizer, before), tokens),
                "value": float(episode.values[c]) if is_state else None,
                "standard_error": error if is_state and math.isfinite(error) else None,
                "count": int(episode.value_counts[c]),
                "advantage": advantages[c],
            }
        )
    return steps
