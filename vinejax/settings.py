"""Every setting and its default: the frozen dataclasses that the program reads.

Field names are stable: they are what users type after `--config.`. `config.py` makes these of what
a config file gives, and gives their names on; `checks.py` refuses values that make no sense.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DataConfig:
    task: str = "vinejax.tasks.arithmetic"  # module of the task; see tasks/base.py
    path: str = ""  # folder with <split>.jsonl, or the name of a `datasets` set; "": the task's
    max_prompt_tokens: int = 1512  # longer prompts are dropped at load, counted and listed
    chat_template: bool = False  # wrap prompts in the tokenizer's chat template (instruct models)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    path: str = ""  # Hugging Face folder; "": a fresh model of the sizes below, warmed up by sft
    # A config.json of the model, for `--mode=plan`, which needs no weights; compared with theirs at
    # load. "": not given.
    architecture: str = ""
    compute_dtype: str = "bfloat16"  # of matrix products; weights, norms, RoPE and logits: float32
    attention: str = "auto"  # of whole sequences: 'xla', 'splash' (TPU), 'cudnn' (GPU)
    remat: str = "none"  # what backward computes again: 'none', 'dots' (all but products), 'full'
    num_layers: int = 4  # this and all below: the fresh model only
    width: int = 128
    num_heads: int = 4
    num_kv_heads: int = 4
    ffn: int = 512
    context: int = 256


@dataclasses.dataclass(frozen=True)
class SampleConfig:
    """How responses and continuations are drawn."""

    temperature: float = 1.0  # 0: argmax, with log-probabilities at temperature 1
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    prompts: int = 64  # problems an iteration
    per_prompt: int = 8  # solutions a problem
    slots: int = 256  # branches decoded at once, over all devices
    memory_gib: float | None = None  # for keys and values on one device; None: a share of its own


@dataclasses.dataclass(frozen=True)
class ValuesConfig:
    k: int = 9  # Monte Carlo continuations a state
    budget: str = "left"  # 'left': what the trajectory has left; 'fresh': max_tokens again
    max_states: int | None = None  # s_0 and the first max_states step ends; None: all
    dedup: bool = True  # equal token prefixes of a problem share one estimate


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    truncated: float = 0.0  # reward of a response, or continuation, that the budget cut


@dataclasses.dataclass(frozen=True)
class GraderConfig:
    """How answers are compared, for tasks that grade with a `Grader`."""

    mode: str = "strict"  # what a mathematician would say; 'reference': the reference's verdicts
    workers: int = 2  # processes
    timeout_s: float = 5.0  # wall-clock time of one pair, which then counts as wrong
    memory_mb: int = 2048  # address space of a worker
    unreadable: str = "drop"  # training problems whose gold no rule can read; or 'keep'


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    clip: float = 0.2
    clip_high: float | None = None  # the upper clip; None: `clip`, and 0.28 for 'dapo'
    epochs: int = 2
    minibatch: int = 64  # episodes an optimizer update
    microbatch: int | None = None  # episodes a forward and backward pass; None: the minibatch
    gamma: float = 1.0
    whiten: str = (
        "method"  # 'iteration', 'minibatch' (the reference's), 'none', or the method's own
    )
    shift_mean: bool = True  # whitening subtracts the mean
    reduction: str = "method"  # mean of the policy loss: 'token', 'sequence', 'budget', or as above
    max_ratio: float = 10.0  # an update whose mean probability ratio passes this is skipped


@dataclasses.dataclass(frozen=True)
class KLConfig:
    coef: float = 1e-4
    # 'policy': the mean of the policy loss; 'token': mean over tokens; 'sequence': a sum over each
    # response, then the mean over responses (the reference's).
    reduction: str = "policy"


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """Of method 'ppo': a second model that predicts the return at every token."""

    lam: float = 1.0  # of the generalised advantage estimates; 1: return less value
    clip: float = 0.2  # a value moves no further from the old one in the loss
    learning_rate: float = 1e-6
    warmup_iterations: int = 0  # at the start of the run, that train the critic alone


@dataclasses.dataclass(frozen=True)
class DAPOConfig:
    """Of method 'dapo'."""

    rounds: int = 4  # of sampling an iteration, at most, in search of groups with spread
    overlong: float = 0.2  # last part of sample.max_tokens in which the reward sinks by up to 1


@dataclasses.dataclass(frozen=True)
class OPMDConfig:
    tau: float = 1.0  # of method 'opmd': weight of the squared log-ratio of a solution


@dataclasses.dataclass(frozen=True)
class AsymREConfig:
    shift: float = -0.1  # of method 'asymre': added to the group's mean as the baseline


@dataclasses.dataclass(frozen=True)
class RestEMConfig:
    """Of method 'restem'. Solutions a problem: rollout.per_prompt."""

    problems: int | None = None  # sampled an iteration; None: the whole train split
    keep: int = 10  # correct solutions a problem at most
    epochs: int = 8  # at most: see eval_every
    eval_every: int = 500  # updates between two looks at validation; the first that is no better
    #                        than the one before ends the iteration


@dataclasses.dataclass(frozen=True)
class DPOConfig:
    """Of method 'dpo_positive'. Solutions a problem: rollout.per_prompt."""

    problems: int | None = None  # sampled an iteration; None: the whole train split
    pairs: int = 64  # a problem at most; ppo.minibatch of them an update
    beta: float = 0.1
    penalty: float = 50.0  # λ: on a correct solution less likely than it was at the start
    epochs: int = 3


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    learning_rate: float = 1e-6
    warmup: str = "linear"  # or 'log', DeepSpeed's default and so the reference's
    warmup_fraction: float = 0.03
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning: `--mode=sft`, and method 'sft', whose iterations are epochs.

    Nothing of `optimizer` is read.
    """

    steps: int = 300  # of `--mode=sft`
    batch: int = 64
    learning_rate: float = 1e-3
    warmup_fraction: float = 0.03
    reduction: str = "token"  # mean over tokens; 'sequence': over each solution first


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """What a run may use, so that methods compare: nothing is begun once one is used up."""

    prompts: int | None = None  # problems drawn, each time anew; None: no bound
    episodes: int | None = None  # solutions sampled from them; continuations do not count
    updates: int | None = None  # gradient steps of the policy


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    every: int = 10  # iterations; 0: only before the first and after the last
    samples: int = 16  # a problem: pass@1 is their mean, pass@k and maj@k use them all
    temperature: float = 0.35
    top_p: float = 0.9
    problems: int | None = None  # the first so many of a split; None: all


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    data: int = 1  # -1: whatever devices are left
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True)
class TopologyConfig:
    """A row of `meshes`: how named devices are laid out, and how much they do at once."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    slots: int | None = None  # instead of rollout.slots; None: that
    memory_gib: float | None = None  # instead of rollout.memory_gib; None: that
    microbatch: int | None = None  # instead of ppo.microbatch; None: that


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Of runs on several hosts. TPU VMs, GKE and Slurm name the hosts themselves; elsewhere
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID do."""

    port: int = 8476  # of the coordinator, where the platform does not fix it
    timeout_s: int = 300  # to wait for all hosts at the start
    heartbeat_s: int = 20  # a host that is silent for so long ends the others


@dataclasses.dataclass(frozen=True)
class OffloadConfig:
    """What waits in the host's memory between uses, so that the devices have room."""

    reference: bool = False  # the model that the KL is measured from
    optimizer: bool = False  # its state, while text is sampled


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """Of `--mode=plan`."""

    timeout_s: int = 1800  # to compile one program
    tokens: int | None = None  # of a response, on average; None: a quarter of sample.max_tokens
    steps: int = 12  # reasoning steps of a response, on average


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every: int = 10  # iterations; the last one is always saved
    keep: int = 2


@dataclasses.dataclass(frozen=True)
class LogConfig:
    vines: int = 16  # episodes an iteration written with the texts of their continuations
    wandb: str = ""  # Weights & Biases project; "": off


@dataclasses.dataclass(frozen=True)
class Config:
    method: str = "vineppo"  # a name of methods.py, or the dotted path of a module with a METHOD
    iterations: int = 1000
    seed: int = 42
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
    reward: RewardConfig = RewardConfig()
    grader: GraderConfig = GraderConfig()
    ppo: PPOConfig = PPOConfig()
    kl: KLConfig = KLConfig()
    critic: CriticConfig = CriticConfig()
    dapo: DAPOConfig = DAPOConfig()
    opmd: OPMDConfig = OPMDConfig()
    asymre: AsymREConfig = AsymREConfig()
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
