"""One update on a minibatch of unequal lengths: ours with and without packing, and plain PyTorch's.

`python benchmarks/learner.py --step` runs this. All contenders start from the same weights, which
PyTorch's reads from a Hugging Face folder, and make the same update: the clipped loss with KL, by
microbatches, the gradient clipped by its norm, AdamW. PyTorch's has no padding beyond the longest
row of each microbatch, attention by `sdpa`, and all logits. They take turns in one process, with as
many threads; before that their losses and gradient norms are compared.
"""

import argparse
import dataclasses
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from bandwidth import median_seconds
from packed_rows import LENGTHS, episode, num_tokens
from workload import NotInstalled

import vinejax
from vinejax.core.settings import OptimizerConfig
from vinejax.core.types import Batch
from vinejax.learner.batch import collate
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.update import fresh_state, update_step
from vinejax.model.decoder import Decoder, Params
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tools.plan.aot.compile_child import memory_stats

TEMPERATURE, KL_COEF, CLIP = 0.6, 1e-4, (0.2, 0.2)
SETTINGS = OptimizerConfig(warmup_fraction=0.0)
OPTIMIZER = make_optimizer(SETTINGS, 10**9)  # its rate stays as it is
SIDE = 2048  # of the matrices whose product is the peak
AGREE = 2e-3  # relative, of losses and gradient norms in float32


class Reported(NamedTuple):
    """What an update reports, to be compared."""

    loss: float  # mean over the tokens
    grad_norm: float  # before it is clipped


Step = Callable[[], Reported]  # makes one more update, and waits for it


@dataclasses.dataclass(frozen=True)
class Work:
    """A model with its weights, a minibatch on the host, and the rows of a microbatch."""

    model: Decoder
    params: Params
    batch: Batch
    microbatch: int

    @property
    def model_flops(self) -> float:
        """FLOPs of an update that the model needs: forward, twice as much backward; no padding."""
        cfg = self.model.cfg
        heads, kv_heads = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
        layer = 2 * cfg.width * (heads + kv_heads) + 3 * cfg.width * cfg.ffn
        weights = cfg.num_layers * layer + cfg.width * cfg.vocab_size
        lengths = np.count_nonzero(self.batch.segment_ids, axis=1).astype(float)
        seen = np.sum(lengths * (lengths + 1) / 2)  # pairs of a query and a key
        products = 2 * weights * lengths.sum() + 4 * cfg.num_layers * heads * seen
        return 3 * products


def make_work(model: Decoder, lengths: np.ndarray, microbatch: int) -> Work:
    """Random weights, and random tokens of these lengths [N, 2] of prompt and response."""
    rng, vocab = np.random.default_rng(1), model.cfg.vocab_size
    episodes = [
        episode(*(rng.integers(3, vocab, n).tolist() for n in pair)) for pair in lengths.tolist()
    ]
    batch = collate(episodes, len(episodes))
    noise = rng.normal(scale=0.1, size=(2, *batch.mask.shape)).astype(np.float32)
    batch = batch._replace(
        advantages=rng.normal(size=batch.mask.shape).astype(np.float32),
        old_logprobs=noise[0] - np.float32(np.log(vocab)),
        ref_logprobs=noise[1] - np.float32(np.log(vocab)),
    )
    return Work(model, jax.jit(model.init)(jax.random.key(0)), batch, microbatch)


def ours(work: Work, packed: bool) -> tuple[Step, dict[str, float]]:
    """Our update, with the share of padding of its passes and the peak that the compiler plans."""
    assert work.model.mesh is not None
    objective = PolicyObjective(
        model=work.model, temperature=TEMPERATURE, loss=clipped_loss, kl_coef=KL_COEF, clip=CLIP,
        microbatch=work.microbatch, packed=packed,
    )  # fmt: skip
    state = fresh_state(work.params, OPTIMIZER, work.model.mesh)
    rows = objective.pack(work.batch)
    memory = memory_stats(update_step.lower(objective, OPTIMIZER, state, rows).compile())
    passes = np.asarray(rows.segment_ids).reshape(work.microbatch, -1, rows.tokens.shape[1])
    computed = np.count_nonzero(passes.any(axis=(0, 2))) * passes[:, 0].size
    planned = memory["argument"] + memory["output"] + memory["temp"] - memory["alias"]

    def step() -> Reported:
        nonlocal state
        state, update = update_step(objective, OPTIMIZER, state, objective.pack(work.batch))
        sums, norm = jax.device_get((update.sums, update.grad_norm))
        loss = (sums.loss + KL_COEF * sums.kl) / sums.tokens
        return Reported(float(loss), float(norm))

    padding = 1 - num_tokens(work.batch) / computed
    return step, {"padding": padding, "peak_bytes": max(memory["peak"], planned)}


def pytorch(work: Work, device: str) -> tuple[Step, dict[str, float]]:
    """The same update by PyTorch and transformers, in eager mode. Raises NotInstalled."""
    if importlib.util.find_spec("torch") is None:
        raise NotInstalled("torch")
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        vinejax.save_pretrained(folder, work.model, work.params, Arithmetic().tokenizer())
        llama: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    llama = llama.to(device).train()
    adam = torch.optim.AdamW(
        llama.parameters(), lr=SETTINGS.learning_rate, betas=(SETTINGS.b1, SETTINGS.b2),
        eps=SETTINGS.eps, weight_decay=SETTINGS.weight_decay,
    )  # fmt: skip
    batch, count = work.batch, int(np.asarray(work.batch.mask).sum())
    lengths = np.count_nonzero(batch.segment_ids, axis=1)
    parts = [slice(i, i + work.microbatch) for i in range(0, len(lengths), work.microbatch)]
    computed = sum(lengths[part].max() * len(lengths[part]) for part in parts)

    def loss_of(part: slice) -> Any:
        longest = int(lengths[part].max())

        def moved(x: Any) -> Any:
            return torch.from_numpy(np.ascontiguousarray(x[part, :longest])).to(device)

        tokens, is_token = moved(batch.tokens).long(), moved(batch.segment_ids > 0)
        logits = llama(input_ids=tokens, attention_mask=is_token.long(), use_cache=False).logits
        logprobs = torch.log_softmax(logits[:, :-1] / TEMPERATURE, dim=-1)
        taken = logprobs.gather(-1, tokens[:, 1:, None])[..., 0]
        mask, advantages, old, ref = (
            moved(x)[:, 1:]
            for x in (batch.mask, batch.advantages, batch.old_logprobs, batch.ref_logprobs)
        )
        ratio = torch.exp(taken - old)
        held = torch.clamp(ratio, 1 - CLIP[0], 1 + CLIP[1])
        policy = -torch.minimum(ratio * advantages, held * advantages)
        away = ref - taken
        k3 = torch.clamp(torch.exp(away) - 1 - away, 0.0, 10.0)
        return torch.where(mask, policy + KL_COEF * k3, 0.0).sum() / count

    def step() -> Reported:
        total = 0.0
        for part in parts:
            loss = loss_of(part)
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(llama.parameters(), SETTINGS.max_grad_norm)
        adam.step()
        adam.zero_grad()
        return Reported(float(total), float(norm))

    return step, {"padding": 1 - num_tokens(work.batch) / float(computed)}


def matrix_peak(repeats: int = 5) -> float:
    """FLOP/s of the product of two large float32 matrices, the median."""
    x = jnp.ones((SIDE, SIDE), jnp.float32)
    return 2 * SIDE**3 / median_seconds(jax.jit(lambda x: x @ x), x, repeats)


def check_alike(name: str, found: Reported, expected: Reported) -> None:
    """Raises ValueError if an update reports another loss or norm than ours."""
    for field, x, y in zip(Reported._fields, found, expected, strict=True):
        if abs(x - y) > AGREE * abs(y):
            raise ValueError(f"{name}: {field} is {x:.6g}, and ours {y:.6g}")


HEAD = """\
| lengths | update | padding | ms | CPU ms | useful tokens/s | of the peak | peak MiB | speed |
|---|---|---|---|---|---|---|---|---|"""


def table_row(row: dict[str, Any]) -> str:
    """A line of the Markdown table."""
    memory = f"{row['peak_bytes'] / 2**20:,.0f}" if "peak_bytes" in row else ""
    speed = f"{row['tokens_per_s']:,.0f} | {row['of_peak']:.1%} | {memory} | {row['speed']:.2f}"
    start = f"| {row['lengths']} | {row['update']} | {row['padding']:.0%}"
    times = [statistics.median(row[kind]) * 1e3 for kind in ("seconds", "cpu_seconds")]
    return f"{start} | {times[0]:,.0f} | {times[1]:,.0f} | {speed} |"


def measure(name: str, work: Work, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each contender; `speed` is that of PyTorch's, or of rows of their own, divided."""
    made = {"ours, packed": ours(work, True), "ours, a row each": ours(work, False)}
    try:
        made["PyTorch"] = pytorch(work, "cpu" if options.device == "cpu" else "cuda")
    except NotInstalled as missing:
        print(f"PyTorch: {missing} is not installed")
    first = {update: step() for update, (step, _) in made.items()}
    for update, reported in first.items():
        check_alike(update, reported, first["ours, packed"])
    seconds: dict[str, list[float]] = {update: [] for update in made}
    cpu_seconds: dict[str, list[float]] = {update: [] for update in made}
    peaks = []
    for _ in range(options.repeats):
        peaks.append(matrix_peak())
        for update, (step, _) in made.items():
            start, cpu = time.perf_counter(), time.process_time()
            step()
            seconds[update].append(time.perf_counter() - start)
            cpu_seconds[update].append(time.process_time() - cpu)
    medians = {update: statistics.median(times) for update, times in seconds.items()}
    base = medians.get("PyTorch", medians["ours, a row each"])
    return [
        {
            "lengths": name,
            "update": update,
            "seconds": seconds[update],
            "cpu_seconds": cpu_seconds[update],
            "tokens_per_s": num_tokens(work.batch) / medians[update],
            "of_peak": work.model_flops / medians[update] / statistics.median(peaks),
            "peak_flops": peaks,
            "speed": base / medians[update],
            **facts,
        }
        for update, (_, facts) in made.items()
    ]


def compare(model: Callable[[int], Decoder], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints the table for all distributions of lengths; `model` has room for so many tokens."""
    print(HEAD)
    rows = []
    for name in options.lengths:
        lengths = LENGTHS[name](np.random.default_rng(0), options.minibatch)
        work = make_work(model(int(lengths.sum(axis=1).max())), lengths, options.microbatch)
        for row in measure(name, work, options):
            rows.append(row)
            print(table_row(row), flush=True)
    print(f"matrix peak: {statistics.median(rows[-1]['peak_flops']) / 1e9:,.0f} GFLOP/s")
    return rows
