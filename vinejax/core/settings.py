"""Every setting with its range and its default, as the frozen dataclasses that the program reads.

Field names are stable, because users type them after `--config.`. `config/load.py` makes these
dataclasses from a config file. `config/checks.py` checks the ranges, and whether fields fit
together.
"""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vinejax.core.ranges import (
    AboveOne,
    BelowOne,
    Count,
    Heartbeat,
    MaxRatio,
    MeshSize,
    Module,
    NotNegative,
    Pair,
    Port,
    Positive,
    Rule,
    Seed,
    Share,
    Temperature,
    TokenIds,
    TopP,
    Variables,
    Whole,
    ZeroToOne,
)
from vinejax.core.sections import MethodSettings as MethodSettings  # methods import it from here
from vinejax.core.sections import Section

# Old name of a field -> its name now. Setting an old name raises an error that has the new one; a
# run with an old name on record is resumed as if it had the new one.
RENAMED = {
    "rollout.flat": "rollout.zero_variance",
    "values.spread": "values.num_states",
    "credit.lam": "credit.lambda_",
    "credit.filter": "credit.baseline_lambda",
}
PROJECTIONS = ("q", "k", "v", "out", "gate", "up", "down")  # matrices that may have adapters
Projections = Annotated[
    tuple[str, ...],
    Rule(f"must be some of {', '.join(PROJECTIONS)}", lambda x: x and set(x) <= set(PROJECTIONS)),
]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    task: Module = "vinejax.tasks.arithmetic"  # module of the task; see tasks/base.py
    path: str = ""  # folder or file, or name of a data set of the hub; "": the task's
    max_prompt_tokens: Count = 1512  # longer prompts are dropped at load, counted and listed
    chat_template: bool = False  # wrap prompts in the tokenizer's chat template (instruct models)
    system: str = ""  # with `chat_template`: the system message of problems without their own
    # Further variables of the chat template, with values of Python, or true and false:
    # ('enable_thinking=False',).
    template_vars: Variables = ()
    # Tasks of tables, such as `table`: columns by name, with dots into a column
    # ('reward_model.ground_truth').
    question: str = "question"
    answer: str = "answer"
    solution: str = ""  # worked solutions, for supervised training and resets; "": there are none
    subset: str = ""  # configuration of a data set of the hub, such as 'main'; "": its only one
    # Tasks of tables, `reasoning_gym` and games: the prompt, or with `chat_template` the user's
    # message. Of tables, columns in braces are filled in.
    template: str = "{question}\n"
    size: Count | None = None  # train problems that `reasoning_gym` or a game draws; None: 5,000
    # Length of a problem: free lines (bifurcation), sub-expressions after the first (free_order)
    # or numbers after the second (countdown). None: the task's own mixture.
    free_steps: Whole | None = None


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    truncated: float = 0.0  # reward of a response or continuation that ran out of tokens
    # Dotted paths of functions, or files with one; 'task' is the task's own reward. The reward is
    # their weighted sum, and each is a metric, reward/<name>. (): the task's own. tasks/rewards.py.
    functions: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()  # one per function; (): all 1
    # Last share of sample.max_tokens, along which a response's penalty grows to 0.5; None: the
    # method's own.
    overlong: BelowOne | None = None
    # A solution's reward less the mean of its group is divided by the standard deviation of the
    # group's rewards, by that of all rewards of the iteration ('batch'), or by 1 ('none').
    scale: Literal["method", "group", "batch", "none"] = "method"


@dataclasses.dataclass(frozen=True)
class GraderConfig:
    """How answers are compared, for tasks that grade with a `Grader`."""

    mode: Literal["strict", "reference"] = "strict"  # as a mathematician, or as VinePPO's code
    workers: Count | None = None  # processes; None: by the machine's cores, see docs/tasks.md
    timeout_s: Positive = 5.0  # seconds per pair of answers; a pair that takes longer is wrong
    memory_mb: Count = 2048  # address space of a worker
    # Training problems whose correct answer the grader cannot read.
    unreadable: Literal["drop", "keep"] = "drop"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    # A Hugging Face folder, a hub name, PEFT's folder of adapters (added to their model), or the
    # workdir of a run, whose best policy it then is. "": a new model of the sizes below, warmed up
    # by sft.
    path: str = ""
    # Path of the model's config.json, with which `--mode=plan` needs no weights. A run compares it
    # with the architecture of the loaded weights. "": not given.
    architecture: str = ""
    # Precision of matrix products; auto: float32 on CPUs, where bfloat16 is slower, and bfloat16
    # elsewhere. Weights, norms, RoPE and logits are always float32.
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attention: Literal["auto", "xla", "splash", "cudnn"] = "auto"  # splash: TPUs, cudnn: GPUs
    # Activations computed again in the backward pass: none, all but matrix products, or all.
    remat: Literal["none", "dots", "full"] = "none"
    # Rank of the adapters that are trained in place of all weights (LoRA: docs/models.md). The
    # weights then have the compute dtype and are those of the reference model, too. 0: off.
    lora_rank: Whole = 0
    lora_alpha: Positive = 32.0  # the product of adapters is scaled by lora_alpha / lora_rank
    lora_targets: Projections = PROJECTIONS
    num_layers: Count = 4  # this and all below: sizes of the new model
    width: Count = 128
    num_heads: Count = 4
    num_kv_heads: Count = 4
    ffn: Count = 512
    context: Count = 256

    def dtype_on(self, platform: str) -> str:
        """`compute_dtype`, or what 'auto' means on the platform ('tpu', 'gpu' or 'cpu')."""
        if self.compute_dtype != "auto":
            return self.compute_dtype
        return "float32" if platform == "cpu" else "bfloat16"


@dataclasses.dataclass(frozen=True)
class SampleConfig:
    """How responses and continuations are sampled.

    >>> sample = vinejax.SampleConfig(temperature=0.6, max_tokens=64, stop=("\\n\\n",))
    """

    temperature: Temperature = 1.0  # 0: argmax, with log-probabilities at temperature 1
    top_p: TopP = 1.0
    top_k: Whole = 0  # 0: off
    max_tokens: Count = 1024
    stop: tuple[str, ...] = ()  # texts that end a response, also special tokens ('<|im_end|>')
    stop_ids: TokenIds = ()  # tokens that end a response, beside EOS; its text ends before them
    # Whether texts lack all special tokens; False: they lack BOS, EOS and the like, but not tokens
    # such as '<think>'.
    skip_special_tokens: bool = False


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    prompts: Count = 64  # problems per iteration
    per_prompt: Count = 8  # solutions per problem
    # Groups of solutions whose rewards are all equal are kept; dropped before their states are
    # valued; or replaced by groups of further problems, until there are `prompts` groups of unequal
    # rewards or `rounds` are over. After that, groups of equal rewards fill the places left.
    zero_variance: Literal["method", "keep", "drop", "resample"] = "method"
    rounds: Count = 4  # zero_variance 'resample': rounds of sampling per iteration, at most
    # Branches decoded at once, over all devices. None: 256, or on GPUs up to 1,024 per shard, by
    # their free memory; a run's first line has the number.
    slots: Count | None = None
    memory_gib: Positive | None = None  # keys and values per device; None: part of free memory
    # Attention of decoding. 'kernel' is for TPUs and GPUs and reads only columns in use; 'auto' is
    # 'kernel' where that can run.
    attention: Literal["auto", "xla", "kernel"] = "auto"
    skip_repeats: bool = True  # a continuation is decoded from where it differs from its solution


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Settings for tasks with an environment (tasks/environment.py).

    `sample.max_tokens` limits the tokens of an episode without its observations.
    """

    max_turns: Count | None = None  # turns of an episode; None: the task's own limit
    turn_tokens: Count | None = None  # tokens of a turn; None: all that the episode has left
    observed: Whole = 0  # tokens of an episode's observations, beside `sample.max_tokens`
    timeout_s: Positive = 60.0  # seconds of a `reset` or `step`; a longer call ends the run
    # Whether environments get what the policy thinks (`<think>` to `</think>`) in its turns.
    thinking: Literal["removed", "kept"] = "removed"
    workers: Count = 1  # environments that are stepped in parallel, by threads
    check_every: Count = 16  # one of this many continuations is checked by repeating its actions


@dataclasses.dataclass(frozen=True)
class ValuesConfig:
    """Monte Carlo values: where the states are, what is sampled at each, and what is a value.

    `positions` and `allocation` are names of credit/rules.py or dotted paths of functions;
    'method' is the method's own choice. docs/credit.md has the equations.
    """

    positions: str = "method"
    # positions 'tokens': a state every n tokens; 'low_probability': before every n-th unlikely one
    every: Count = 5
    below: ZeroToOne = 0.9  # positions 'low_probability': tokens less likely than this
    merge: Count = 1  # n: keep every n-th position, and the prompt's end
    # Keep at most this many, evenly spaced, beside the prompt's end; None: all.
    num_states: Count | None = None
    max_states: Whole | None = None  # s_0 and the first `max_states` others; None: all
    allocation: str = "method"
    k: Count = 9  # continuations per state
    threshold: NotNegative = 1.0  # allocation 'bisection': in standard errors of a difference
    reuse: bool = False  # a value uses all samples of the problem that pass through the state
    backup: bool = False  # with `reuse`: a sample counts with the value of the next state
    # A learned value, mixed into baselines by credit.prior. 'probe' is a regression on the policy's
    # hidden states (credit/probe.py); with contrib/priors/ it may be the dotted path of a function.
    # "": none.
    prior: str = ""
    # Token limit of a continuation: what its solution has left, or again all of max_tokens.
    budget: Literal["left", "fresh"] = "left"
    dedup: bool = True  # equal token prefixes of a problem share one estimate


@dataclasses.dataclass(frozen=True)
class CreditConfig:
    mask: str = "method"  # rule for the tokens to train on: credit/rules.py or a dotted path
    mask_above: ZeroToOne = 0.9  # mask 'low_probability': tokens at least as likely are left out
    # mask 'top_entropy': share of an iteration's tokens that are kept, those of highest entropy
    mask_share: Share = 0.2
    lambda_: ZeroToOne = 0.0  # λ: a step's target averages later values; 0: the next value
    # w: the baseline of a step is an average over earlier values; 0: the value of its state
    baseline_lambda: ZeroToOne = 0.0
    prior: ZeroToOne | None = None  # μ: weight of `values.prior` in the baseline; None: measured
    # Continuations are trained on where they leave their solution: rl/labels.py has the kinds.
    labels: Literal["off", "group", "mixed", "blend"] = "off"
    # w, the weight of the solution's own token: with 'mixed' wherever a sample passes, with 'blend'
    # where just one passes.
    label_weight: BelowOne = 0.7


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    clip: Positive = 0.2
    clip_high: Positive | None = None  # the upper clip; None: the method's, mostly `clip`
    epochs: Count = 2
    minibatch: Count = 64  # solutions from the prompt per optimizer update
    # Rows of a forward and backward pass; None: the minibatch, or a part of it if `packing`.
    microbatch: Count | None = None
    packing: bool = True  # episodes share rows of the longest one's length where they fit
    # With packing, episodes of a row that begin alike share these tokens, where attention can.
    share_prefixes: bool = True
    # Least tokens of a packed row; None: enough for the longest episode. A row with all solutions
    # of a problem computes the prompt once: raise `row_tokens`, and divide `microbatch` by as much.
    row_tokens: Count | None = None
    gamma: Share = 1.0
    # Tokens over which advantages are whitened; VinePPO's code: 'minibatch'.
    whiten: Literal["method", "iteration", "minibatch", "none"] = "method"
    shift_mean: bool = True  # whitening subtracts the mean
    # How tokens are averaged in the policy loss: see `learner.policy.token_weights`.
    reduction: Literal["method", "token", "sequence", "budget"] = "method"
    max_ratio: MaxRatio = 10.0  # an update with a greater mean probability ratio is skipped
    # The policy loss; 'method': the method's own, for most of them 'clip'. See docs/methods.md.
    loss: Literal["method", "clip", "gspo", "cispo", "sapo"] = "method"
    # Loss 'clip': the largest ratio that counts where the advantage is negative; None: any.
    dual_clip: AboveOne | None = None
    gspo_clip: Pair = (3e-4, 4e-4)  # below and above 1, of a solution's mean ratio
    cispo_clip: Pair = (1.0, 4.0)  # below and above 1, of a token's weight
    sapo_tau: Pair = (1.0, 1.05)  # sharpness of the gate for positive advantages, and for others
    # The policy loss is weighted by the probability ratio learner / sampler of a token or a whole
    # solution. Outside the bounds the weight is the nearer bound ('truncate') or 0 ('mask').
    correction: Literal[
        "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = "sequence_mask"
    correction_min: Positive | None = None  # None: no bound
    correction_max: Positive | None = 3.0  # None: no bound
    mask_truncated: bool = False  # responses that ran out of tokens are left out of the loss


@dataclasses.dataclass(frozen=True)
class EntropyConfig:
    """The entropy bonus."""

    coef: NotNegative = 0.0  # weight of the mean entropy of a token, subtracted from the loss


@dataclasses.dataclass(frozen=True)
class KLConfig:
    # 0: the KL is not measured, and the reference model has no pass unless the method reads one.
    coef: NotNegative = 1e-4
    # Place of the KL: a term of the loss (k3), or subtracted from the rewards of tokens (k1).
    place: Literal["method", "loss", "reward"] = "method"
    # 'policy': the mean of the policy loss; 'token': mean over tokens; 'sequence': a sum over each
    # response, then the mean over responses (VinePPO's code).
    reduction: Literal["policy", "token", "sequence"] = "policy"
    # KL per response, in nats, that `coef` follows; None: `coef` is constant.
    target: Positive | None = None
    # With `target`: responses in which `coef` changes by a fifth, at most; an iteration with more
    # of them changes it no further.
    horizon: Positive = 10_000.0


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer's settings.

    `adafactor` keeps a row and a column of second moments for each matrix, and no first moment. It
    does not read `b1`, `b2` and `eps`.
    """

    name: Literal["adamw", "adafactor"] = "adamw"
    learning_rate: Positive = 1e-6
    warmup: Literal["linear", "log"] = "linear"  # 'log': DeepSpeed's default, VinePPO's code
    warmup_fraction: BelowOne = 0.03
    # After the warm-up: to 0 in a straight line or half a cosine, or not at all.
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    b1: BelowOne = 0.9
    b2: BelowOne = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive = 1.0


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning, by `--mode=sft` or by the method 'sft', whose iterations are epochs.

    Neither the mode nor the method reads `optimizer`.
    """

    steps: Whole = 300  # updates of `--mode=sft`, and of the warm-up of a run without model.path
    batch: Count = 64
    learning_rate: Positive = 1e-3
    warmup_fraction: BelowOne = 0.03
    reduction: Literal["token", "sequence"] = "token"  # mean over tokens, or of solutions' means


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """The budget of a run, to compare methods. No iteration starts after the budget is used up."""

    # Sampled solutions. Continuations do not count; a problem with trees counts as
    # `rollout.per_prompt` solutions. None: no bound.
    episodes: Count | None = None


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: Whole = 10  # iterations between evaluations; 0: only before the first, after the last
    samples: Count = 16  # responses per problem: pass@1 is their mean, pass@k and maj@k use all
    temperature: Temperature = 0.35
    top_p: TopP = 0.9
    problems: Count | None = None  # number of the first problems of a split; None: all


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    data: MeshSize = 1
    fsdp: MeshSize = 1
    tensor: MeshSize = 1


@dataclasses.dataclass(frozen=True)
class TopologyConfig(MeshConfig):
    """A row of `meshes`: the mesh for one topology, and values that replace settings there."""

    slots: Count | None = None  # replaces rollout.slots; None: as it is
    memory_gib: Positive | None = None  # replaces rollout.memory_gib; None: as it is
    microbatch: int | None = None  # replaces ppo.microbatch; None: as it is
    remat: Literal["none", "dots", "full"] | None = None  # replaces model.remat; None: as it is


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Runs on several hosts. TPU VMs, GKE, Slurm and Open MPI name the hosts themselves. Elsewhere
    set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""

    port: Port = 8476  # port of the coordinator, where the platform does not fix it
    timeout_s: Count = 300  # seconds to wait for all hosts at the start
    heartbeat_s: Heartbeat = 100  # seconds without a heartbeat of a host, which end the others
    silence_s: Count = 600  # seconds without a chunk, minibatch or new stage, before a warning


@dataclasses.dataclass(frozen=True)
class OffloadConfig:
    """Which arrays are moved to the host's memory between uses, to save device memory."""

    reference: bool = False  # the model that the KL is measured from
    optimizer: bool = False  # the optimizer's state, while text is sampled


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every: Count = 10  # iterations between checkpoints; the last one is always saved
    keep: Count = 2  # number of the newest checkpoints that stay


@dataclasses.dataclass(frozen=True)
class LogConfig:
    vines: Whole = 16  # episodes per iteration that are written with their continuations' texts
    wandb: str = ""  # Weights & Biases project; "": off
    wandb_name: str = ""  # name of the run in W&B; "": the name of the workdir
    wandb_group: str = ""  # group of the run in W&B; "": none


@dataclasses.dataclass(frozen=True)
class Config:
    method: str = "vineppo"  # a name in methods/, or the name or path of a module with a METHOD
    iterations: Whole = 1000
    seed: Seed = 42
    resume: bool = True  # False: a workdir that already holds a run is an error
    profile: str = ""  # 'start:stop' iterations to trace with jax.profiler
    # Name of the devices, such as 'v5e:16x16' or 'cpu:8'; the mesh is that of this row of `meshes`.
    # "": the row that matches the devices, or `mesh` if `meshes` is empty.
    topology: str = ""
    # Folder or gs:// path that keeps compiled programs for the next start. 'auto': the folder in
    # JAX_COMPILATION_CACHE_DIR, else the user's cache folder, or on several hosts `compiled` in the
    # workdir. "" or 'none': none are kept.
    compile_cache: str = "auto"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sample: SampleConfig = SampleConfig()
    rollout: RolloutConfig = RolloutConfig()
    env: EnvConfig = EnvConfig()
    values: ValuesConfig = ValuesConfig()
    credit: CreditConfig = CreditConfig()
    reward: RewardConfig = RewardConfig()
    grader: GraderConfig = GraderConfig()
    ppo: PPOConfig = PPOConfig()
    kl: KLConfig = KLConfig()
    entropy: EntropyConfig = EntropyConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sft: SFTConfig = SFTConfig()
    budget: BudgetConfig = BudgetConfig()
    eval: EvalConfig = EvalConfig()
    mesh: MeshConfig = MeshConfig()
    meshes: dict[str, TopologyConfig] = dataclasses.field(default_factory=dict)
    distributed: DistributedConfig = DistributedConfig()
    offload: OffloadConfig = OffloadConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    # Groups of settings of the method and of accessories, by their names: core/sections.py.
    sections: dict[str, Section] = dataclasses.field(default_factory=dict)


def flatten(fields: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names and values of a configuration, in the order of its fields.

    The fields of `Config.sections` come last, with the name of their section in front.
    """
    flat = []
    for name, value in vars(fields).items():
        if dataclasses.is_dataclass(value):
            flat += flatten(value, f"{prefix}{name}.")
        elif name == "sections":
            for section, settings in value.items():
                flat += flatten(settings, f"{section}.")
        else:
            flat.append((prefix + name, value))
    return flat


def unset(cfg: Config) -> Config:
    """The configuration with the same sections whose fields all have their defaults."""
    return Config(sections={name: type(section)() for name, section in cfg.sections.items()})


def as_tree(cfg: Config) -> dict[str, Any]:
    """A configuration as nested dicts, with `Config.sections` beside the core's groups."""
    tree = dataclasses.asdict(cfg)
    return tree | tree.pop("sections")


def field_of(cfg: Config, name: str) -> Any:
    """The value of a field by its dotted name, such as 'ppo.clip'."""
    return operator.attrgetter(name)(cfg)


def with_fields(cfg: Config, fields: Mapping[str, Any]) -> Config:
    """A copy of `cfg` with the values in `fields`, by dotted names such as 'ppo.clip'."""
    for name, value in fields.items():
        group, _, leaf = name.rpartition(".")
        if group:
            value = dataclasses.replace(getattr(cfg, group), **{leaf: value})
        cfg = dataclasses.replace(cfg, **{group or leaf: value})
    return cfg
