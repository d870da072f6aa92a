"""`--mode=credit` measures errors and costs of credit estimators for a run's policy or a model."""

import dataclasses
import json
import math
import os
from collections.abc import Sequence

import numpy as np
from etils import epath
from rich.console import Console

from vinejax.core.errors import ConfigError
from vinejax.core.seeds import row_seed
from vinejax.core.settings import Config
from vinejax.learner.batch import collate
from vinejax.methods.compose import method_of
from vinejax.rollout.draw import draw
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.offload import to_device
from vinejax.runtime.workdir import resolved_folder, write_atomic
from vinejax.session.session import Session
from vinejax.tasks.base import load_task
from vinejax.tasks.environment import MultiTurn
from vinejax.tools.bench.estimators import (
    ESTIMATORS,
    RUN,
    FixedParts,
    estimator_config,
    needs_critic,
    predicted_values,
)
from vinejax.tools.bench.measure import MeasuredRepeats, MeasuredSolutions, measure_gradients
from vinejax.tools.bench.next_steps import (
    NextStepChoice,
    partial_solution,
    sample_next_steps,
    step_returns,
    step_values,
)
from vinejax.tools.bench.price import Price, critic_training_seconds, training_seconds
from vinejax.tools.bench.ranking import ROUNDING, RankingScores, ranking_scores
from vinejax.tools.bench.reference import sample_reference
from vinejax.tools.bench.results import BenchResult, as_json, print_result, rows_of
from vinejax.tools.bench.settings import BenchConfig
from vinejax.tools.bench.truth import choose_states, positions_of_states, true_returns
from vinejax.tools.bench.value_error import ValueScores, truth_of, value_scores
from vinejax.tools.report.build import build_report
from vinejax.training.loop import resume
from vinejax.training.startup import open_session

FOLDER = "credit"  # in the workdir
WIDTH = 150  # columns of the tables, if the output is not a terminal
RANKED_K = (1, 3, 9)  # a prediction is the mean return of so many continuations after a next step


def credit_bench(cfg: Config, path: str | os.PathLike) -> BenchResult:
    """Measures the estimators in setting `bench.estimators`; writes `<workdir>/credit/bench.json`.

    The policy is that of the workdir's newest checkpoint, or the run's start if there is none. If
    the workdir has a `metrics.jsonl`, its report is made again and shows the results. Raises
    ConfigError if an estimator cannot be measured, or if there are too few reference solutions.
    """
    if isinstance(load_task(cfg.data), MultiTurn):
        message = "its solutions have several turns, which --mode=credit does not measure"
        raise ConfigError("data.task", message, repr(cfg.data.task))
    has_critic = needs_critic(cfg) and (resolved_folder(path) / "checkpoints").exists()
    chosen_estimators(cfg, has_critic)
    check_sizes(cfg)
    with open_session(cfg, path, splits=("train",)) as session:
        parts, policy = fixed_parts(session)
        # The choice is made again: sizes depend on devices, and there may be no checkpoint.
        configs = chosen_estimators(with_open_choices(session.cfg, cfg), parts.critic is not None)
        result = measure(parts, policy, configs)
        workdir = session.workdir
    if is_writer():
        write_result(result, workdir)
    barrier("the end")
    return result


def with_open_choices(applied: Config, as_set: Config) -> Config:
    """The configuration `applied`, with the fields that a method may choose reset to `as_set`.

    A field with the value 'method' leaves a choice to the method. In `applied`, the configuration
    of a session, the run's method has made its choices; an estimator's method may choose otherwise.
    """
    ppo = as_set.ppo
    choices = {name: getattr(ppo, name) for name in ("whiten", "loss", "reduction", "clip_high")}
    return dataclasses.replace(
        applied,
        values=as_set.values,
        credit=as_set.credit,
        kl=as_set.kl,
        reward=as_set.reward,
        ppo=dataclasses.replace(applied.ppo, **choices),
        rollout=dataclasses.replace(applied.rollout, zero_variance=as_set.rollout.zero_variance),
    )


def chosen_estimators(cfg: Config, has_critic: bool) -> dict[str, Config]:
    """Maps the estimators in `bench.estimators` to their configurations.

    If this setting is empty, the result has all estimators that can be measured. In that case
    'run', the run's own configuration, is left out if another estimator's configuration is equal.
    """
    configs = {}
    for name in BenchConfig.of(cfg).estimators or ESTIMATORS:
        try:
            configs[name] = estimator_config(cfg, name)
        except ConfigError:
            if BenchConfig.of(cfg).estimators:
                raise
    other_configs = [config for name, config in configs.items() if name != RUN]
    if not BenchConfig.of(cfg).estimators and configs.get(RUN) in other_configs:
        del configs[RUN]
    without_critic = [name for name, x in configs.items() if needs_critic(x) and not has_critic]
    if without_critic and BenchConfig.of(cfg).estimators:
        message = "needs a critic: the workdir of a run with method 'ppo' that saved a checkpoint"
        raise ConfigError("bench.estimators", message, repr(without_critic[0]))
    return {name: config for name, config in configs.items() if name not in without_critic}


def check_sizes(cfg: Config) -> None:
    """Raises ConfigError if `bench.reference` or `bench.truth` is too small.

    Each half of the reference needs two solutions of every problem. The variance of a true value
    needs two rollouts.
    """
    if BenchConfig.of(cfg).truth < 2:
        raise ConfigError("bench.truth", "must be at least 2", repr(BenchConfig.of(cfg).truth))
    minimum = 4 * BenchConfig.of(cfg).problems
    if BenchConfig.of(cfg).reference < minimum:
        message = f"must be at least {minimum}, four for each of bench.problems"
        raise ConfigError("bench.reference", message, repr(BenchConfig.of(cfg).reference))


def fixed_parts(session: Session) -> tuple[FixedParts, str]:
    """The parts that all estimators share, and the source of the policy as text."""
    cfg = session.cfg
    seed = row_seed(cfg.seed, 0, "credit bench, problems")
    problems = draw(session.problems["train"], BenchConfig.of(cfg).problems, seed, 0)
    folder = session.workdir / "checkpoints"
    if folder.exists():
        with Checkpoints(folder, cfg.checkpoint.keep) as checkpoints:
            state, progress = resume(session, checkpoints)
        if progress.done:
            has_critic = method_of(cfg).state.has_critic
            critic = to_device(state.kept.params) if has_critic else None
            source = f"checkpoints/{progress.done}"
            return FixedParts(session, state.policy.params, critic, problems), source
    return FixedParts(session, session.fresh_params(), None, problems), "the start"


def measure(parts: FixedParts, policy: str, configs: dict[str, Config]) -> BenchResult:
    """Measures the estimators of `configs`; `policy` is the policy's source as text."""
    cfg = parts.session.cfg
    count = BenchConfig.of(cfg).reference
    _say(f"credit: {len(parts.problems)} problems, {count:,} reference solutions")
    reference = sample_reference(parts, cfg)
    if reference.product <= 0:
        message = (
            f"gives no gradient: the mean reward is {reference.reward:.3f}. Where problems are"
            " always or never solved, choose another policy; else raise it"
        )
        raise ConfigError("bench.reference", message, repr(BenchConfig.of(cfg).reference))
    repeats, solutions = measure_gradients(parts, cfg, configs, reference, _say)
    trained = training_seconds(parts, cfg, solutions.episodes) / len(solutions.episodes)
    critic_seconds = {
        name: critic_training_seconds(parts, config, solutions.episodes) / len(solutions.episodes)
        for name, config in configs.items()
        if needs_critic(config)
    }
    price = Price(solutions.seconds / solutions.tokens, trained / solutions.trained_tokens)
    _say("credit: true values")
    values = measure_values(parts, configs, repeats, solutions)
    _say("credit: next steps")
    ranking, ranked = measure_ranking(parts, solutions)
    rows = rows_of(repeats, solutions, reference, price, values, critic_seconds)
    return BenchResult(
        policy=policy,
        problems=len(parts.problems),
        per_prompt=cfg.rollout.per_prompt,
        reward=reference.reward,
        reference_solutions=reference.solutions,
        reference_error=reference.error,
        price=price,
        rows=rows,
        ranking=ranking,
        ranked=ranked,
    )


def measure_values(
    parts: FixedParts,
    configs: dict[str, Config],
    repeats: dict[str, MeasuredRepeats],
    solutions: MeasuredSolutions,
) -> dict[str, ValueScores]:
    """The errors of each estimator's values at states of the first repeat's solutions."""
    session, cfg, episodes = parts.session, parts.session.cfg, solutions.episodes
    states = choose_states(episodes, BenchConfig.of(cfg).states, cfg.seed)
    sampler = parts.sampler(cfg, 0)
    returns = true_returns(
        sampler, parts.weights, parts.problems, episodes, states, BenchConfig.of(cfg).truth
    )
    truth = truth_of(returns)
    session.engine.release()
    positions, problems = positions_of_states(episodes, states)
    scores = {}
    for name, measured in repeats.items():
        assert measured.first_estimate is not None
        predicted = predicted_values(configs[name], measured.first_estimate, states)
        if np.isfinite(predicted).any():
            scores[name] = value_scores(predicted, truth, positions, problems)
    return scores


def measure_ranking(
    parts: FixedParts, solutions: MeasuredSolutions
) -> tuple[dict[str, RankingScores], dict[str, float]]:
    """Maps sources of predicted values to the scores of their rankings of next steps.

    The sources are means over K continuations, for a few small K, and the critic if there is one.
    A second dict has the numbers of states in `NextSteps` and, if there are choices, 'margin': the
    largest difference of true values that is a tie, about two standard errors of a true value.
    """
    session, cfg = parts.session, parts.session.cfg
    sampler = parts.sampler(cfg, 0)
    states = choose_states(
        solutions.episodes, BenchConfig.of(cfg).ranked, cfg.seed, with_last=False
    )
    next_steps = sample_next_steps(
        sampler, parts.weights, parts.problems, solutions.episodes, states
    )
    choices = next_steps.choices
    counts = {name: getattr(next_steps, name) for name in ("tried", "few", "decided")}
    if not choices:
        return {}, counts
    truth = step_returns(sampler, parts.weights, choices, BenchConfig.of(cfg).truth, "truth")
    returns = step_returns(sampler, parts.weights, choices, max(RANKED_K), "prediction")
    session.engine.release()
    problems = [choice.problem.id for choice in choices]
    values = [truth_of(x) for x in truth]
    variance = float(np.mean(np.concatenate([x.variances for x in values])))
    margin = max(2 * math.sqrt(variance), ROUNDING)
    predictions = {f"K = {k}": [x[:, :k].mean(axis=1) for x in returns] for k in RANKED_K}
    if parts.critic is not None:
        values_after = critic_values_after(parts, cfg, choices)
        pairs = zip(choices, values_after, strict=True)
        predictions["critic"] = [step_values(choice, list(x), cfg.ppo.gamma) for choice, x in pairs]
    true_values = [x.means for x in values]
    scores = {
        name: ranking_scores(predicted, true_values, problems, margin=margin)
        for name, predicted in predictions.items()
    }
    return scores, counts | {"margin": margin}


def critic_values_after(
    parts: FixedParts, cfg: Config, choices: Sequence[NextStepChoice]
) -> list[np.ndarray]:
    """For each choice, f64[A]: the critic's values of the states after its A next steps."""
    next_token = 0  # any token: the critic gives the value of the state before it
    rows = [
        partial_solution(choice, [*step.tokens, next_token])
        for choice in choices
        for step in choice.steps
    ]
    values = parts.critic_values(cfg, collate(rows, cfg.ppo.minibatch))
    after_steps = iter([values[i, len(row.tokens) - 1] for i, row in enumerate(rows)])
    return [np.array([next(after_steps) for _ in choice.steps], np.float64) for choice in choices]


def write_result(result: BenchResult, workdir: epath.Path) -> None:
    """Prints the tables of the result, and writes the record of the bench to the workdir.

    If the workdir contains a run, the report of that run is made again.
    """
    folder = workdir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "bench.json"
    write_atomic(file, json.dumps(as_json(result), indent=1, allow_nan=False) + "\n")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    print_result(result, console)
    console.print(f"in full: {file}", soft_wrap=True, markup=False)
    if (workdir / "metrics.jsonl").exists():
        console.print(f"report: {build_report(workdir)}", soft_wrap=True, markup=False)


def _say(line: str) -> None:
    if is_writer():
        print(line, flush=True)
