"""Every setting and its default, in one place.

A config file is plain Python: `get_config()` starts from `default()`, a ConfigDict of
`ml_collections` with every field below, and assigns what differs. `from_dict` turns the result
into the frozen dataclasses that the program reads. Field names are stable: they are what users
type after `--config.`. Values that make no sense are refused by `checks.py`.
"""

import dataclasses
import difflib
import types
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from ml_collections import config_dict

from vinejax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class DataConfig:
    task: str = "vinejax.tasks.arithmetic"  # module of the task; see tasks/base.py
    path: str = ""  # folder with <split>.jsonl, or the name of a `datasets` set; "": the task's
    max_prompt_tokens: int = 1512  # longer prompts are dropped at load, counted and listed
    chat_template: bool = False  # wrap prompts in the tokenizer's chat template (instruct models)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    path: str = ""  # Hugging Face folder; "": a fresh model of the sizes below, warmed up by sft
    compute_dtype: str = "bfloat16"  # of matrix products; weights, norms, RoPE and logits: float32
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


GROUP = 8  # slots of the engine that decode on one trunk together


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    prompts: int = 64  # problems an iteration
    per_prompt: int = 8  # solutions a problem
    slots: int = 256  # branches decoded at once


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
class PPOConfig:
    clip: float = 0.2
    epochs: int = 2
    minibatch: int = 64  # episodes an optimizer update
    microbatch: int | None = None  # episodes a forward and backward pass; None: the minibatch
    gamma: float = 1.0
    whiten: str = "iteration"  # 'iteration', 'minibatch' (the reference's) or 'none'
    shift_mean: bool = True  # whitening subtracts the mean
    max_ratio: float = 10.0  # an update whose mean probability ratio passes this is skipped


@dataclasses.dataclass(frozen=True)
class KLConfig:
    coef: float = 1e-4
    reduction: str = "token"  # 'token': mean over tokens; 'sequence': sum, then mean over sequences


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
    steps: int = 300
    batch: int = 64
    learning_rate: float = 1e-3
    warmup_fraction: float = 0.03


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
class CheckpointConfig:
    every: int = 10  # iterations; the last one is always saved
    keep: int = 2


@dataclasses.dataclass(frozen=True)
class LogConfig:
    vines: int = 16  # episodes an iteration written with the texts of their continuations
    wandb: str = ""  # Weights & Biases project; "": off


@dataclasses.dataclass(frozen=True)
class Config:
    iterations: int = 1000
    seed: int = 42
    resume: bool = True  # False: a workdir that already holds a run is an error
    profile: str = ""  # 'start:stop' iterations to trace with jax.profiler
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sample: SampleConfig = SampleConfig()
    rollout: RolloutConfig = RolloutConfig()
    values: ValuesConfig = ValuesConfig()
    reward: RewardConfig = RewardConfig()
    ppo: PPOConfig = PPOConfig()
    kl: KLConfig = KLConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sft: SFTConfig = SFTConfig()
    eval: EvalConfig = EvalConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()


class Fields(config_dict.ConfigDict):
    """The fields of `Config` as a ConfigDict, for config files and the command line to change."""

    # Attributes come before keys, and this one would be the method that all mappings have.
    @property
    def values(self) -> Any:
        return self["values"]

    # For type checkers, which could not know the fields of a field.
    def __getattr__(self, attribute: str) -> Any:
        return super().__getattr__(attribute)


def default() -> Fields:
    """Every field at its default, for a config file to change. Optional integers accept None."""

    def tree(section: Any) -> dict[str, Any]:
        hints = get_type_hints(type(section))
        fields = {}
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if dataclasses.is_dataclass(value):
                value = tree(value)
            elif value is None:  # a bare None would accept any type later
                value = config_dict.placeholder(get_args(hints[field.name])[0])
            fields[field.name] = value
        return fields

    return Fields(tree(Config()))


def from_dict(fields: config_dict.ConfigDict | dict[str, Any]) -> Config:
    """The frozen form of a config file's result. Fields that are left out keep their default.

    Raises:
      ConfigError: a field is unknown (the message names the nearest one) or of the wrong type.
    """
    return _section(Config, "", fields)


def check_name(name: str) -> None:
    """Raises ConfigError unless `name` is the dotted name of a field, such as `ppo.clip`."""
    if name not in _names(Config):
        raise _unknown(name)


def _unknown(name: str) -> ConfigError:
    if any(known.startswith(name + ".") for known in _names(Config)):
        return ConfigError(name, f"is a group of fields; set one of them, such as {_nearest(name)}")
    return ConfigError(name, f"no such field; the nearest one is {_nearest(name)}")


def _names(section: type, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(section).items():
        if dataclasses.is_dataclass(hint):
            yield from _names(hint, f"{prefix}{name}.")  # pyright: ignore[reportArgumentType]
        else:
            yield prefix + name


def _nearest(name: str) -> str:
    """The valid name most like `name`; `clip` means `ppo.clip`, so the last part counts twice."""
    leaf = name.rpartition(".")[2]

    def likeness(known: str) -> float:
        whole = difflib.SequenceMatcher(None, name, known).ratio()
        return whole + difflib.SequenceMatcher(None, leaf, known.rpartition(".")[2]).ratio()

    return max(_names(Config), key=likeness)


def _section(kind: type, prefix: str, fields: Any) -> Any:
    """One dataclass from a mapping; `prefix` is the dotted name of the section with its dot."""
    if not isinstance(fields, (dict, config_dict.ConfigDict)):
        raise ConfigError(prefix[:-1] or "config", "must be a group of fields", repr(fields))
    hints = get_type_hints(kind)
    values = {}
    for name, value in fields.items():
        if name not in hints:
            raise _unknown(f"{prefix}{name}")
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _section(hint, f"{prefix}{name}.", value)  # pyright: ignore
        else:
            values[name] = _value(prefix + name, hint, value)
    return kind(**values)


def _value(name: str, hint: Any, value: Any) -> Any:
    """`value` as the declared type. Nothing converts but int to float and list to tuple."""
    if get_origin(hint) is tuple:
        if not isinstance(value, (tuple, list)):
            raise ConfigError(name, "must be a tuple of strings, such as ('###',)", repr(value))
        return tuple(_value(name, get_args(hint)[0], item) for item in value)
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) is int and float in kinds:
        return float(value)
    # isinstance would let True pass for 1.
    if type(value) not in kinds:
        wanted = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise ConfigError(name, f"must be of type {wanted}", repr(value))
    return value
