"""On-policy distillation: tokens that the policy drew, each judged by a teacher.

    A_t = log(π_T/π_old)_t    π_T: the teacher `opd.teacher`

The advantage of a token does not depend on later tokens (discount 0) or on rewards. The policy
gradient descends the reverse KL to the teacher at every token of the policy's own solutions.

The teacher is a second model in the memory of the devices, in the compute dtype, with the same
sharding rules as the policy. `offload.reference` keeps it in the host's memory between scoring
passes. Checkpoints do not hold it: every start of the run loads it from its folder.

Source: https://arxiv.org/abs/2306.13649 with λ = 1 and the reverse KL;
https://thinkingmachines.ai/blog/on-policy-distillation.

Departs: the gradient is that of sampled tokens; GKD sums over the vocabulary.
"""

import dataclasses
from collections.abc import Set
from typing import Any, NamedTuple

from jax.sharding import AbstractMesh, Mesh

from vinejax.contrib.methods.equations.distillation import Taught, log_ratios, mean_reverse_kl
from vinejax.contrib.methods.settings import OPDConfig
from vinejax.core.errors import ConfigError, ModelError
from vinejax.core.settings import Config, ModelConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import Episode, Rollout, RunState
from vinejax.credit.assign import Credit
from vinejax.learner.packing import passes_for, with_sharing, with_single_rows
from vinejax.learner.score import scores_of
from vinejax.methods import stages
from vinejax.methods.base import OF_RETURNS, Method
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.names import abstract_params
from vinejax.model.sharding import placed_shapes, platform_of
from vinejax.runtime.offload import to_device, to_host
from vinejax.session.budget import longest_sequence
from vinejax.session.iteration import Iteration
from vinejax.tasks.base import Task
from vinejax.training.start_weights import load_unweighted, load_weights


class Teacher(NamedTuple):
    """A teacher in memory."""

    model: Decoder
    params: Params


class LoadedTeacher(stages.MethodState):
    """The state of the method: it keeps nothing, and loads the teacher at every start."""

    scores = True

    def check_loading(self, cfg: Config) -> None:
        """Compares tokenizers and sizes. Without `model.path` the policy's are not known yet."""
        teacher = unloaded_teacher(cfg)
        if cfg.model.path:
            check_teacher(cfg, teacher, load_unweighted(cfg.model.path))

    def load(self, cfg: Config, task: Task, model: Decoder, tokenizer: Tokenizer) -> Teacher:
        check_teacher(cfg, unloaded_teacher(cfg), (model, tokenizer))
        mesh = model.mesh
        assert mesh is not None, "a run has a mesh"
        path, dtype = OPDConfig.of(cfg).teacher, model.compute.dtype
        teacher, params, _ = load_weights(path, mesh, dtype, "the teacher is")
        if cfg.offload.reference and not cfg.model.lora_rank:
            params = to_host(params)
        return Teacher(with_single_rows(teacher.computing(frozen(cfg.model)), cfg), params)

    def loaded_shapes(self, cfg: Config, model: Decoder, mesh: Mesh | AbstractMesh) -> Any:
        teacher, _ = unloaded_teacher(cfg)
        return placed_shapes(mesh, abstract_params(teacher), model.compute.dtype)


def frozen(settings: ModelConfig) -> ModelConfig:
    """The policy's settings without its adapters, which the teacher does not have."""
    return dataclasses.replace(settings, lora_rank=0)


def unloaded_teacher(cfg: Config) -> tuple[Decoder, Tokenizer]:
    """The teacher without weights, and its tokenizer. Raises ConfigError if there is none."""
    path = OPDConfig.of(cfg).teacher
    try:
        return load_unweighted(path)
    except ModelError as error:
        raise ConfigError("opd.teacher", str(error)) from None


def check_teacher(
    cfg: Config, teacher: tuple[Decoder, Tokenizer], policy: tuple[Decoder, Tokenizer]
) -> None:
    """Raises ConfigError unless the teacher can score every solution of the policy.

    Both must have the same tokens with the same ids. The teacher's output matrix may have more rows
    than that, as the larger models of some families have, but not fewer than the policy's.
    """
    path, (own, own_tokenizer), (model, tokenizer) = OPDConfig.of(cfg).teacher, teacher, policy
    tokens, needed = own_tokenizer.get_vocab(), tokenizer.get_vocab()
    message = ""
    if tokens != needed:
        kept = len(tokens.items() & needed.items())
        message = (
            f"its tokenizer is not the policy's ({len(tokens)} tokens against {len(needed)},"
            f" {kept} alike); name a teacher with the same tokenizer"
        )
    elif own.cfg.vocab_size < model.cfg.vocab_size:
        message = (
            f"its vocabulary has {own.cfg.vocab_size} entries, the policy's"
            f" {model.cfg.vocab_size}; the teacher could not score every token"
        )
    elif own.cfg.context < (longest := longest_sequence(cfg, model.cfg.context)):
        message = (
            f"its context is {own.cfg.context}, and a prompt with its response may have {longest}"
            " tokens; lower data.max_prompt_tokens or sample.max_tokens"
        )
    if message:
        raise ConfigError("opd.teacher", message, repr(path))


def scored_by_teacher(
    iteration: Iteration,
    state: RunState,
    episodes: list[Episode],
    keep: Set[str] = frozenset(),
    has_reference: bool = False,
) -> Rollout:
    """The rollout of `stages.scored`, with the teacher's log-probabilities as its `extra`."""
    rollout = stages.scored(iteration, state, episodes, keep, has_reference)
    session, teacher = iteration.session, iteration.session.loaded
    cfg = with_sharing(iteration.cfg, teacher.model, platform_of(session.mesh))
    logprobs = scores_of(
        teacher.model,
        to_device(teacher.params),
        rollout.batch,
        cfg.sample.temperature,
        passes_for(cfg, cfg.ppo.minibatch, session.mesh),
    )
    mask = rollout.batch.mask
    taught = Taught(logprobs, mask.any(axis=1))
    ratios = log_ratios(taught, rollout.batch.old_logprobs, mask)
    iteration.metrics["opd/reverse_kl"] = mean_reverse_kl(ratios, mask, taught.rows)
    return rollout._replace(extra=taught)


def distilled(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    batch = rollout.batch
    return Credit(log_ratios(rollout.extra, batch.old_logprobs, batch.mask))


METHOD = Method(
    distilled,
    score=scored_by_teacher,
    state=LoadedTeacher(),
    settings=OPDConfig,
    ignores=("reward.overlong", *OF_RETURNS),  # rewards are not learned from
    flags={"unmeasured"},
)
