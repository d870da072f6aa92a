"""The tables of the comparison: tasks, variants, settings that are swept, and sizes of runs.

All settings are dotted fields of `vinejax/core/settings.py`, as after `--config.` on a
command line.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

Fields = Mapping[str, Any]  # dotted name of a field -> its value


class Task(NamedTuple):
    """A task of the comparison: its config file, the learning rate that the sweep multiplies, and
    the iterations of a run.

    After a colon `config` has the argument of `get_config`: the number of free steps. Runs are
    short enough that no task is solved by all variants at the end, and that the sweep and the
    variants with as many episodes fit into five hours of two cores: K = 9 at every step of
    bifurcation takes 4 s an iteration on one.
    """

    config: str
    learning_rate: float
    iterations: int


TASKS = {
    "arithmetic": Task("tiny.py", 2.5e-4, 24),  # the control: every line is critical
    "bifurcation": Task("bifurcation.py:24", 4e-4, 24),
    "free_order": Task("free_order.py", 3e-4, 24),
    # So short that a prompt with a solution and a response fit into the model's context: SDPO.
    "free_order_2": Task("free_order.py:2", 3e-4, 24),
}

# States after the first token of their step, and the probe's values (docs/credit.md).
PROBE: Fields = {"method": "vineppo", "values.positions": "after", "values.prior": "probe"}
# Labels with the settings of the credit bench's estimator `blend_k1`. The bench prefers states at
# every fifth token on arithmetic and free_order, at every tenth on bifurcation.
BLEND: Fields = {
    "method": "vineppo",
    "values.k": 1,
    "values.positions": "tokens",
    "values.reuse": True,
    "values.prior": "probe",
    "credit.lambda_": 0.5,
    "credit.baseline_lambda": 0.5,
    "credit.labels": "blend",
    "credit.label_weight": 0.7,
}
# Groups of equal rewards are replaced, so that every group of a batch teaches. Late in training the
# default of four rounds would leave places to groups of equal rewards.
REPLACED: Fields = {"rollout.zero_variance": "resample", "rollout.rounds": 8}

VARIANTS: dict[str, Fields] = {
    "vineppo": {"method": "vineppo", "values.k": 9},
    "backup": {
        "method": "vineppo",
        "values.k": 3,
        "values.num_states": 8,
        "values.reuse": True,
        "values.backup": True,
    },
    "bisection": {
        "method": "vineppo",
        "values.k": 9,
        "values.allocation": "bisection",
        "values.reuse": True,
    },
    "spo_chain": {"method": "spo_chain"},
    "ppo": {"method": "ppo", "critic.learning_rate": 1e-3},
    "grpo": {"method": "grpo"},
    "rloo": {"method": "rloo"},
    # Of `CHEAP`:
    "by_role": {**PROBE, "credit.lambda_": 0.7, "credit.baseline_lambda": 0.3, "values.k": 1},
    "ppo_probe": {"method": "ppo_probe"},
    "rloo_whitened": {"method": "rloo", "ppo.whiten": "iteration"},
    # Four times the solutions an iteration, the same number of updates.
    "grpo_64": {"method": "grpo", "rollout.prompts": 16, "ppo.minibatch": 64},
    # Of `LABELS`:
    "labels": {**BLEND, "values.every": 5},
    "labels_10": {**BLEND, "values.every": 10},
    "vineppo_k1": {"method": "vineppo", "values.k": 1},
    "grpo_flat": {"method": "grpo", **REPLACED},
    # Twice the solutions, of which half are trained on: pods.py.
    "pods": {"method": "benchmarks.learning.pods", "rollout.per_prompt": 8, "ppo.minibatch": 32},
    "labels_flat": {**BLEND, "values.every": 5, **REPLACED},  # of `BOTH`
    # Of `DISTIL`:
    "opd": {"method": "opd", "opd.teacher": "runs/distil_teacher"},
    "sdpo": {"method": "sdpo", "sdpo.text": "{question}={solution}\n{question}"},
}


class Longer(NamedTuple):
    """A variant with more iterations: as many as `base` has in the seconds of `as_long_as`, or with
    a price in its cost: trained + price · generated tokens.
    """

    base: str
    as_long_as: str
    price: float | None = None  # of a generated token in trained tokens


LONGER = {
    "grpo_seconds": Longer("grpo", "vineppo"),
    "rloo_seconds": Longer("rloo", "vineppo"),
    "grpo_seconds_bisection": Longer("grpo", "bisection"),
    "grpo_seconds_by_role": Longer("grpo", "by_role"),
    "grpo_seconds_labels": Longer("grpo", "labels"),
    "grpo_cost_labels": Longer("grpo", "labels", 0.14),
    "grpo_flat_cost_labels": Longer("grpo_flat", "labels", 0.14),
    "rloo_whitened_cost_labels": Longer("rloo_whitened", "labels", 0.14),
    "pods_cost_labels": Longer("pods", "labels", 0.14),
    "grpo_flat_cost_labels_flat": Longer("grpo_flat", "labels_flat", 0.14),
}


BASELINES = ("grpo", "rloo")  # variants that all others are compared with, and of the part 'rates'

# What is tried besides, at equal seconds: fields that one variant and its baseline both get.
TRIES: dict[str, Fields] = {
    # Half and twice the rate of bifurcation in TASKS.
    "rate_half": {"optimizer.learning_rate": 2e-4},
    "rate_double": {"optimizer.learning_rate": 8e-4},
    "epochs_1": {"ppo.epochs": 1},
    "epochs_4": {"ppo.epochs": 4},
    "episodes_8": {"rollout.prompts": 2, "ppo.minibatch": 8},
    "episodes_64": {"rollout.prompts": 16, "ppo.minibatch": 64},
}

# Of all runs of a dose: a start that knows every one of them (wide_bifurcation.py).
DOSE_START: Fields = {"model.path": "runs/dose_start/warmup"}


class Trial(NamedTuple):
    """One point of the sweep, the same points for every variant and task."""

    rate_factor: float  # of the task's learning rate
    kl_coef: float


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What is run, in parts: the sweep, the comparison, baselines at another variant's rate, dose
    and response, tries, and seconds.
    """

    tasks: tuple[str, ...] = ("arithmetic", "bifurcation", "free_order")
    variants: tuple[str, ...] = (
        *("vineppo", "backup", "bisection", "spo_chain", "ppo", "grpo", "rloo"),
    )
    longer: tuple[str, ...] = ("grpo_seconds", "rloo_seconds", "grpo_seconds_bisection")
    trials: tuple[Trial, ...] = (
        *(Trial(factor, 1e-4) for factor in (0.5, 1.0, 1.5, 2.0)),
        Trial(1.0, 1e-2),
    )
    # Of the rate, at the first trial's KL coefficient: tried in turn for a variant whose best trial
    # has the highest or the lowest rate so far, so that its optimum lies within what was tried.
    higher: tuple[float, ...] = ()
    lower: tuple[float, ...] = ()
    sweep_seeds: tuple[int, ...] = (1001, 1002, 1003, 1004)
    seeds: tuple[int, ...] = tuple(range(21, 31))
    # The baselines of one task once more, with the seeds of the comparison and the settings that
    # the sweep found for one variant. Not at all if the task is None.
    rates_task: str | None = "bifurcation"
    rates_of: str = "vineppo"
    # Dose and response: the number of free steps of one task, with the settings that its sweep
    # found at the number in TASKS, in runs so short that no variant is at the ceiling.
    dose_task: str = "bifurcation"
    doses: tuple[int, ...] = (0, 6, 12, 24, 48)
    dose_variants: tuple[str, ...] = ("backup", "grpo", "rloo")
    dose_seeds: tuple[int, ...] = tuple(range(21, 26))
    dose_iterations: int = 12
    # At equal seconds, one variant against one baseline, with their settings of the sweep but for
    # those of a try.
    tries: tuple[str, ...] = tuple(TRIES)
    try_task: str = "bifurcation"
    try_variant: str = "backup"
    try_baseline: str = "grpo"
    try_seeds: tuple[int, ...] = tuple(range(21, 26))
    seconds_seed: int = 2001
    seconds_iterations: int = 24
    iterations: int | None = None  # None: the task's
    evaluations: int = 8  # of the validation split during a run, beside that of the start
    test_problems: int = 256  # of the last policy, `eval.samples` solutions each
    baselines: tuple[str, ...] = BASELINES  # that all variants are compared with
    # Of a generated token in trained tokens, for comparisons at equal cost.
    prices: tuple[float, ...] = ()
    against_all: str | None = None  # variant that is compared with every other at equal cost
    # Other experiments, whose runs count for this one where they are the same. Their seconds do
    # not: all seconds of an experiment are to be of one machine.
    reuses: tuple[str, ...] = ()

    def further(self, factors: tuple[float, ...]) -> list[Trial]:
        """The trials of further rates, given as factors of the task's."""
        return [Trial(factor, self.trials[0].kl_coef) for factor in factors]

    @property
    def every_trial(self) -> tuple[Trial, ...]:
        """The trials, and those that only some variants get."""
        return *self.trials, *self.further(self.higher), *self.further(self.lower)


FULL = Experiment()
# One continuation per state and fewer, beside as many seconds and as many updates of GRPO.
CHEAP = Experiment(
    variants=(
        *("backup", "by_role", "ppo_probe"),
        *("grpo", "grpo_64", "rloo", "rloo_whitened"),
    ),
    longer=("grpo_seconds_by_role",),
    higher=(3.0, 4.0, 6.0),
    rates_task=None,
    doses=(),
    try_task="free_order",
    try_variant="by_role",
)
# Labels (docs/credit_bench.md) beside what else the same tokens buy.
LABELS = Experiment(
    variants=(
        *("labels", "labels_10", "vineppo_k1", "vineppo", "by_role"),
        *("grpo", "grpo_flat", "rloo_whitened", "pods", "grpo_64"),
    ),
    longer=(
        *("grpo_cost_labels", "grpo_flat_cost_labels", "rloo_whitened_cost_labels"),
        *("pods_cost_labels", "grpo_seconds_labels"),
    ),
    higher=(3.0, 4.0, 6.0),
    lower=(0.25, 0.125),
    rates_task=None,
    doses=(),
    tries=(),
    baselines=("grpo",),
    prices=(0.05, 0.14, 0.4),
    against_all="labels",
    reuses=("full", "cheap"),
)
# Labels in groups of unequal rewards: do the gains of labels and of replaced groups add up?
BOTH = Experiment(
    variants=("labels_flat", "labels", "grpo_flat", "grpo"),
    longer=("grpo_flat_cost_labels_flat",),
    higher=LABELS.higher,
    lower=LABELS.lower,
    rates_task=None,
    doses=(),
    tries=(),
    baselines=("grpo",),
    prices=LABELS.prices,
    against_all="labels_flat",
    reuses=("full", "cheap", "labels"),
)
# Distillation (vinejax/contrib/methods): three seeds, all at the rate of `labels` on `free_order`.
DISTIL = Experiment(
    tasks=("free_order_2",),
    variants=("labels", "grpo", "opd", "sdpo"),
    longer=(),
    trials=(Trial(1.5, 1e-4),),
    sweep_seeds=(),
    seeds=(21, 22, 23),
    rates_task=None,
    doses=(),
    tries=(),
)
# The same code within five minutes: too few seeds and trials for any claim.
QUICK = Experiment(
    tasks=("arithmetic",),
    variants=("bisection", "grpo"),
    longer=(),
    trials=(Trial(1.0, 1e-4), Trial(2.0, 1e-4)),
    sweep_seeds=(1001,),
    seeds=(1, 2, 3),
    rates_task=None,
    doses=(),
    tries=(),
    seconds_iterations=20,
    iterations=20,
    evaluations=5,
    test_problems=128,
)

EXPERIMENTS = {
    "full": FULL,
    "cheap": CHEAP,
    "labels": LABELS,
    "both": BOTH,
    "distil": DISTIL,
    "quick": QUICK,
}

# Of every run: 16 solutions an iteration, one update an epoch; evaluation samples as training does.
SIZES: Fields = {
    "rollout.prompts": 4,
    "rollout.per_prompt": 4,
    "rollout.slots": 64,
    "ppo.minibatch": 16,
    "eval.problems": 128,
    "eval.samples": 2,
    "eval.temperature": 1.0,
    "eval.top_p": 1.0,
    "log.vines": 0,
    # Without it the first updates, which Adam makes as large as any other, took the format from
    # some runs of every variant before the third iteration (docs/decisions.md).
    "optimizer.warmup_fraction": 0.25,
}
