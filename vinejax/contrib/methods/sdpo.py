"""Self-distillation policy optimisation: the teacher is the policy, shown a right solution.

    A_t = log(π_T/π_old)_t    π_T = π_old after a question with a right solution (`sdpo.text`)

The right solution is the first one of the problem's others. A solution whose problem has no other
right one is not trained on, and neither is one that does not fit into the model's context with the
longer question. So the method learns nothing from a problem that no solution gets right.

Source: https://arxiv.org/abs/2601.20802; huggingface/trl at f2cd577, trl/experimental/sdpo.

Departs: the gradient is that of sampled tokens, as by default in TRL; the paper sums over the
vocabulary. The teacher is the policy of the iteration; TRL's default is a moving average of
policies. The ratio is clipped as in PPO; in TRL it is at most 2. Feedback in words is not shown.
"""

import dataclasses
import re
from collections.abc import Sequence, Set

import numpy as np

from vinejax.contrib.methods.equations.distillation import Taught, log_ratios, mean_reverse_kl
from vinejax.contrib.methods.settings import SDPOConfig
from vinejax.contrib.methods.solution_groups import members_of
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.shapes import packed_length
from vinejax.core.types import Episode, Problem, Rollout, RunState, is_correct
from vinejax.credit.assign import Credit
from vinejax.learner.batch import collate
from vinejax.learner.packing import passes_for
from vinejax.learner.score import scores_of
from vinejax.methods import stages
from vinejax.methods.base import OF_RETURNS, Method
from vinejax.session.budget import longest_sequence
from vinejax.session.iteration import Iteration
from vinejax.tasks.base import Task
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.prompts import encode_prompt, template_variables


class SelfTeacher(stages.MethodState):
    """A state without data, of a method with one more scoring pass."""

    scores = True

    def check_problem(self, cfg: Config, task: Task, problem: Problem) -> None:
        """Raises ConfigError for a task of several turns, whose prompts have more than a question.

        The teacher's prompt would lack the environment's first text and the schemas of tools.
        """
        if isinstance(task, MultiTurn):
            message = f"shows solutions after a question, and task {task.name} has turns; take opd"
            raise ConfigError("method", message, repr(cfg.method))


def shown_solutions(episodes: Sequence[Episode], groups: Sequence[np.ndarray]) -> list[int | None]:
    """For each episode the index of the first other right one of its group; None without any.

    `groups` has the indices of each group's episodes.
    """
    shown: list[int | None] = [None] * len(episodes)
    for group in groups:
        right = [int(i) for i in group if is_correct(episodes[i].reward)]
        for i in group:
            shown[i] = next((j for j in right if j != i), None)
    return shown


def question_with(text: str, question: str, solution: str) -> str:
    """The setting `sdpo.text` with a question and a solution in their places."""
    parts = {"question": question, "solution": solution}
    return re.sub(r"\{(question|solution)\}", lambda found: parts[found[1]], text)


def teacher_prompt(iteration: Iteration, problem: Problem, solution: str) -> list[int]:
    """The token ids of the problem's prompt whose question shows the right `solution`."""
    session, data = iteration.session, iteration.cfg.data
    text = question_with(SDPOConfig.of(iteration.cfg).text, problem.question, solution)
    return encode_prompt(
        session.tokenizer,
        session.task.prompt(dataclasses.replace(problem, question=text)),
        chat_template=data.chat_template,
        context=problem.context,
        variables=template_variables(session.tokenizer, data),
    )


def taught_episodes(
    iteration: Iteration, episodes: list[Episode], groups: Sequence[np.ndarray]
) -> dict[int, Episode]:
    """The episodes that have a teacher, by their indices, with the teacher's prompt."""
    problems = {problem.id: problem for problem, _ in iteration.session.problems["train"]}
    taught = {}
    for i, shown in enumerate(shown_solutions(episodes, groups)):
        if shown is None:
            continue
        problem = problems[episodes[i].problem_id]
        prompt = teacher_prompt(iteration, problem, episodes[shown].text)
        if len(prompt) + len(episodes[i].response) <= iteration.session.model.cfg.context:
            taught[i] = dataclasses.replace(episodes[i], prompt=prompt)
    return taught


def teacher_scores(
    iteration: Iteration,
    state: RunState,
    rollout: Rollout,
    taught: dict[int, Episode],
) -> np.ndarray:
    """f32[B, T] log-probabilities by the teacher, at the tokens' places in the rollout's batch."""
    cfg, session, mask = iteration.cfg, iteration.session, rollout.batch.mask
    logprobs = np.zeros(mask.shape, np.float32)
    if not taught:
        return logprobs
    shown, context = list(taught.values()), session.model.cfg.context
    limit = min(longest_sequence(cfg, context) + cfg.sample.max_tokens, context)
    longest = packed_length(limit, max(len(episode.tokens) for episode in shown))
    passes = passes_for(cfg, cfg.ppo.minibatch, session.mesh)
    # As many rows as the batch, so that the program does not depend on how many have a teacher.
    batch = collate(shown, len(mask), longest if passes.packed else 0)
    weights = session.weights(state.policy.params)
    scores = scores_of(session.model, weights, batch, cfg.sample.temperature, passes)
    for row, (i, episode) in enumerate(taught.items()):
        first = len(rollout.episodes[i].prompt)
        of_response = scores[row, len(episode.prompt) : len(episode.tokens)]
        logprobs[i, first : first + len(of_response)] = of_response
    return logprobs


def scored_with_solutions(
    iteration: Iteration,
    state: RunState,
    episodes: list[Episode],
    keep: Set[str] = frozenset(),
    has_reference: bool = False,
) -> Rollout:
    """The rollout of `stages.scored`, with the teacher's log-probabilities as its `extra`."""
    rollout = stages.scored(iteration, state, episodes, keep, has_reference)
    groups = members_of(episodes)
    taught = taught_episodes(iteration, episodes, groups)
    rows = np.zeros(len(rollout.batch.mask), bool)
    rows[list(taught)] = True
    given = Taught(teacher_scores(iteration, state, rollout, taught), rows)
    ratios = log_ratios(given, rollout.batch.old_logprobs, rollout.batch.mask)
    right = [any(is_correct(episodes[i].reward) for i in group) for group in groups]
    iteration.metrics |= {
        "sdpo/reverse_kl": mean_reverse_kl(ratios, rollout.batch.mask, rows),
        "sdpo/right_groups": float(np.mean(right)),
        "sdpo/taught": len(taught) / len(episodes),
    }
    return rollout._replace(extra=given)


def self_distilled(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring, and a mask of the solutions that have a teacher."""
    batch, taught = rollout.batch, rollout.extra
    advantages = log_ratios(taught, batch.old_logprobs, batch.mask)
    return Credit(advantages, mask=np.asarray(batch.mask) & taught.rows[:, None])


METHOD = Method(
    self_distilled,
    score=scored_with_solutions,
    state=SelfTeacher(),
    settings=SDPOConfig,
    # A solution is right or not, and else has no reward.
    ignores=("reward.overlong", *OF_RETURNS),
    flags={"groups", "unmeasured"},
)
