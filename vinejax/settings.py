"""Every setting with its range and its default: the frozen dataclasses that the program reads.

Field names are stable: they are what users type after `--config.`. `config.py` makes these
dataclasses from a config file; `checks.py` applies the rules below, and those that relate fields.
"""

import dataclasses
from typing import Any, Literal

from vinejax.method_settings import (
    AsymREConfig,
    CriticConfig,
    DAPOConfig,
    DPOConfig,
    OPMDConfig,
    RestEMConfig,
    SingleStreamConfig,
    SPOTreeConfig,
    TreeGRPOConfig,
    TreePOConfig,
    TreeRLConfig,
)
from vinejax.ranges import (
    BelowOne,
    Count,
    Half,
    Heartbeat,
    MaxRatio,
    MeshSize,
    Module,
    NotNegative,
    Port,
    Positive,
    Seed,
    TopP,
    Whole,
    ZeroToOne,
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    task: Module = "vinejax.tasks.arithmetic"  # module of the task; see tasks/base.py
    path: str = ""  # folder with <split>.jsonl, or name of a `datasets` data set; "": the task's
    max_prompt_tokens: Count = 1512  # longer prompts are dropped at load, counted and listed
    chat_template: bool = False  # wrap prompts in the tokenizer's chat template (instruct models)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    path: str = ""  # Hugging Face folder; "": a new model of the sizes below, warmed up by sft
    # The model's config.json, for `--mode=plan`, which then needs no weights. When weights are
    # loaded, it is compared with theirs. "": not given.
    architecture: str = ""
    # Precision of matrix products. Weights, norms, RoPE and logits are always float32.
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    attention: Literal["auto", "xla", "splash", "cudnn"] = "auto"  # splash: TPUs, cudnn: GPUs
    # Results computed again in the backward pass: none, all but matrix products, or all.
    remat: Literal["none", "dots", "full"] = "none"
    num_layers: Count = 4  # this and all below: sizes of the new model
    width: Count = 128
    num_heads: Count = 4
    num_kv_heads: Count = 4
    ffn: Count = 512
    context: Count = 256


@dataclasses.dataclass(frozen=True)
class SampleConfig:
    """How responses and continuations are sampled."""

    temperature: float = 1.0  # 0: argmax, with log-probabilities at temperature 1
    top_p: TopP = 1.0
    top_k: Whole = 0  # 0: off
    max_tokens: Count = 1024
    stop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    prompts: Count = 64  # problems per iteration
    per_prompt: Count = 8  # solutions per problem
    slots: Count = 256  # branches decoded at once, over all devices
    memory_gib: Positive | None = None  # for keys and values per device; None: part of free memory


@dataclasses.dataclass(frozen=True)
class ValuesConfig:
    """Monte Carlo values: where the states are, what is sampled at each, and what is a value.

    `positions` and `allocation` are names of credit/rules.py or dotted paths of functions;
    'method' is the method's own. docs/credit.md has the equations.
    """

    positions: str = "method"
    every: Count = 5  # positions 'tokens' and 'low_probability': every so many
    below: ZeroToOne = 0.9  # positions 'low_probability': tokens less likely than this
    merge: Count = 1  # keep every so many of the positions, and the prompt's end
    spread: Count | None = None  # keep at most so many, evenly; None: all
    max_states: Whole | None = None  # s_0 and the first `max_states` others; None: all
    allocation: str = "method"
    k: Count = 9  # continuations per state
    k_first: Count = 3  # allocations 'adaptive' and 'neighbours': continuations of the first wave
    threshold: NotNegative = 1.0  # allocation 'bisection': in standard errors of a difference
    waves: Count = 1  # with `reuse`: states in so many waves, later ones draw what `k` still lacks
    reuse: bool = False  # a value uses all samples of the problem that pass through the state
    backup: bool = False  # with `reuse`: a sample counts with the value of the next state
    shrink: Half = 0.0  # weight of each of the two neighbours in a value
    budget: Literal["left", "fresh"] = "left"  # what the trajectory has left, or max_tokens again
    dedup: bool = True  # equal token prefixes of a problem share one estimate


@dataclasses.dataclass(frozen=True)
class CreditConfig:
    mask: str = "method"  # which tokens are trained on: a name of credit/rules.py, or a dotted path
    mask_above: ZeroToOne = 0.9  # mask 'low_probability': tokens at least as likely are left out
    progress: NotNegative = 0.0  # α: weight of the progress of a prover, best of so many solutions:
    prover: Count = 4  # 1 - (1 - V)^prover, see docs/credit.md


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """With Monte Carlo values: what the policy is updated on."""

    # 'continuations': on solutions and the continuations of their states, weighted: credit/shares.
    on: Literal["solutions", "continuations"] = "solutions"


@dataclasses.dataclass(frozen=True)
class ResetConfig:
    """Solutions that begin after the first tokens of a known solution: rollout/resets.py."""

    # 'gold': of the data set's solution. 'solved', 'failed': of a right or a wrong solution of the
    # iteration, where the problem's pass rate is below or above `target`. 'both': of either.
    source: Literal["none", "gold", "solved", "failed", "both"] = "none"
    # How many tokens: any number, or at the edge, where the pass rate crosses `target`.
    at: Literal["uniform", "edge"] = "uniform"
    share: ZeroToOne = 1.0  # source 'gold': chance that a problem's solutions begin so
    target: ZeroToOne = 0.5  # pass rate
    k: Count = 4  # at 'edge': continuations per pass rate


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    truncated: float = 0.0  # reward of a response or continuation that ran out of tokens


@dataclasses.dataclass(frozen=True)
class GraderConfig:
    """How answers are compared, for tasks that grade with a `Grader`."""

    mode: Literal["strict", "reference"] = "strict"  # as a mathematician, or as VinePPO's code
    workers: Count = 2  # processes
    timeout_s: Positive = 5.0  # wall-clock time per pair; a pair that takes longer is wrong
    memory_mb: Count = 2048  # address space of a worker
    unreadable: Literal["drop", "keep"] = "drop"  # training problems whose answer no rule can read


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    clip: Positive = 0.2
    clip_high: Positive | None = None  # the upper clip; None: `clip`, and 0.28 for 'dapo'
    epochs: Count = 2
    minibatch: Count = 64  # episodes per optimizer update
    microbatch: Count | None = None  # episodes per forward and backward pass; None: the minibatch
    gamma: ZeroToOne = 1.0
    # What advantages are whitened over; 'method': the method's own; VinePPO's code: 'minibatch'.
    whiten: Literal["method", "iteration", "minibatch", "none"] = "method"
    shift_mean: bool = True  # whitening subtracts the mean
    # What the policy loss is a mean over; 'method' is the method's own.
    reduction: Literal["method", "token", "sequence", "budget"] = "method"
    max_ratio: MaxRatio = 10.0  # an update with a greater mean probability ratio is skipped


@dataclasses.dataclass(frozen=True)
class KLConfig:
    coef: NotNegative = 1e-4
    # 'policy': the mean of the policy loss; 'token': mean over tokens; 'sequence': a sum over each
    # response, then the mean over responses (VinePPO's code).
    reduction: Literal["policy", "token", "sequence"] = "policy"


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    learning_rate: Positive = 1e-6
    warmup: Literal["linear", "log"] = "linear"  # 'log': DeepSpeed's default, VinePPO's code
    warmup_fraction: BelowOne = 0.03
    b1: BelowOne = 0.9
    b2: BelowOne = 0.999
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive = 1.0


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning: `--mode=sft`, and method 'sft', whose iterations are epochs.

    Neither reads `optimizer`.
    """

    steps: Whole = 300  # updates of `--mode=sft`
    batch: Count = 64
    learning_rate: Positive = 1e-3
    warmup_fraction: BelowOne = 0.03
    reduction: Literal["token", "sequence"] = "token"  # mean over tokens, or of solutions' means


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """Limits of a run, to compare methods: nothing begins after one of them is reached."""

    prompts: Count | None = None  # problems drawn, counted at every draw; None: no bound
    episodes: Count | None = None  # solutions sampled from them; continuations do not count
    updates: Count | None = None  # gradient steps of the policy


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: Whole = 10  # iterations; 0: only before the first and after the last
    samples: Count = 16  # per problem: pass@1 is their mean, pass@k and maj@k use them all
    temperature: NotNegative = 0.35
    top_p: TopP = 0.9
    problems: Count | None = None  # the first so many of a split; None: all


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    data: MeshSize = 1
    fsdp: MeshSize = 1
    tensor: MeshSize = 1


@dataclasses.dataclass(frozen=True)
class TopologyConfig(MeshConfig):
    """A row of `meshes`: how named devices are laid out, and how much they do at once."""

    slots: Count | None = None  # replaces rollout.slots; None: as it is
    memory_gib: Positive | None = None  # replaces rollout.memory_gib; None: as it is
    microbatch: int | None = None  # replaces ppo.microbatch; None: as it is


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Runs on several hosts. TPU VMs, GKE and Slurm name the hosts themselves; elsewhere
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID do."""

    port: Port = 8476  # port of the coordinator, where the platform does not fix it
    timeout_s: Count = 300  # to wait for all hosts at the start
    heartbeat_s: Heartbeat = 20  # a host that is silent for so long ends the others


@dataclasses.dataclass(frozen=True)
class OffloadConfig:
    """Arrays that stay in the host's memory between uses, to save device memory."""

    reference: bool = False  # the model that the KL is measured from
    optimizer: bool = False  # the optimizer's state, while text is sampled


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """The assumptions of `--mode=plan`, and its time limit."""

    timeout_s: Count = 1800  # to compile one program
    tokens: Count | None = None  # average response; None: a quarter of sample.max_tokens
    steps: Count = 12  # average reasoning steps per response


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every: Count = 10  # iterations; the last one is always saved
    keep: Count = 2


@dataclasses.dataclass(frozen=True)
class LogConfig:
    vines: Whole = 16  # episodes per iteration that are written with their continuations' texts
    wandb: str = ""  # Weights & Biases project; "": off


@dataclasses.dataclass(frozen=True)
class Config:
    method: str = "vineppo"  # a name of methods.py, or the dotted path of a module with a METHOD
    iterations: Whole = 1000
    seed: Seed = 42
    resume: bool = True  # False: a workdir that already holds a run is an error
    profile: str = ""  # 'start:stop' iterations to trace with jax.profiler
    # Name of the devices, such as 'v5e:16x16' or 'cpu:8': takes the mesh from that row of `meshes`.
    # "": the row that the devices found match, if `meshes` has any, else `mesh`.
    topology: str = ""
    compile_cache: str = ""  # folder or gs:// path of compiled programs, kept for the next start
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sample: SampleConfig = SampleConfig()
    rollout: RolloutConfig = RolloutConfig()
    values: ValuesConfig = ValuesConfig()
    credit: CreditConfig = CreditConfig()
    train: TrainConfig = TrainConfig()
    reset: ResetConfig = ResetConfig()
    reward: RewardConfig = RewardConfig()
    grader: GraderConfig = GraderConfig()
    ppo: PPOConfig = PPOConfig()
    kl: KLConfig = KLConfig()
    critic: CriticConfig = CriticConfig()
    spo_tree: SPOTreeConfig = SPOTreeConfig()
    treepo: TreePOConfig = TreePOConfig()
    treerl: TreeRLConfig = TreeRLConfig()
    tree_grpo: TreeGRPOConfig = TreeGRPOConfig()
    dapo: DAPOConfig = DAPOConfig()
    opmd: OPMDConfig = OPMDConfig()
    asymre: AsymREConfig = AsymREConfig()
    single_stream: SingleStreamConfig = SingleStreamConfig()
    restem: RestEMConfig = RestEMConfig()
    dpo: DPOConfig = DPOConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sft: SFTConfig = SFTConfig()
    budget: BudgetConfig = BudgetConfig()
    eval: EvalConfig = EvalConfig()
    mesh: MeshConfig = MeshConfig()
    meshes: dict[str, TopologyConfig] = dataclasses.field(default_factory=dict)
    distributed: DistributedConfig = DistributedConfig()
    offload: OffloadConfig = OffloadConfig()
    plan: PlanConfig = PlanConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()


def flatten(fields: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names and values of a configuration, in the order of its fields."""
    flat = []
    for name, value in vars(fields).items():
        is_section = dataclasses.is_dataclass(value)
        flat += flatten(value, f"{prefix}{name}.") if is_section else [(prefix + name, value)]
    return flat
