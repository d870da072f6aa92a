"""The settings of problems, of their rewards and of the grader; `settings.py` has all others."""

import dataclasses
from typing import Literal

from vinejax.ranges import Count, Module, Positive, Whole


@dataclasses.dataclass(frozen=True)
class DataConfig:
    task: Module = "vinejax.tasks.arithmetic"  # module of the task; see tasks/base.py
    path: str = ""  # folder with <split>.jsonl, or name of a `datasets` data set; "": the task's
    max_prompt_tokens: Count = 1512  # longer prompts are dropped at load, counted and listed
    chat_template: bool = False  # wrap prompts in the tokenizer's chat template (instruct models)
    # Task `table`: columns by name, with dots into a column ('reward_model.ground_truth').
    question: str = "question"
    answer: str = "answer"
    solution: str = ""  # worked solutions, for supervised training and resets; "": there are none
    subset: str = ""  # configuration of a data set of the hub, such as 'main'; "": its only one
    template: str = "{question}\n"  # the prompt, or with `chat_template` the user's message
    # Length of a problem: the free lines of bifurcation, the sub-expressions beyond one of
    # free_order, the numbers beyond two of countdown. None: the task's own mixture.
    free_steps: Whole | None = None


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    truncated: float = 0.0  # reward of a response or continuation that ran out of tokens
    # Dotted paths of functions, whose weighted sum is the reward, and 'task' for the task's own;
    # each is a metric, reward/<name>. (): the task's own alone. See tasks/rewards.py.
    functions: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()  # one per function; (): all 1


@dataclasses.dataclass(frozen=True)
class GraderConfig:
    """How answers are compared, for tasks that grade with a `Grader`."""

    mode: Literal["strict", "reference"] = "strict"  # as a mathematician, or as VinePPO's code
    workers: Count | None = None  # processes; None: by the machine's cores, see docs/tasks.md
    timeout_s: Positive = 5.0  # wall-clock time per pair; a pair that takes longer is wrong
    memory_mb: Count = 2048  # address space of a worker
    unreadable: Literal["drop", "keep"] = "drop"  # training problems whose answer no rule can read
