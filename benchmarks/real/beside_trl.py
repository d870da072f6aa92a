"""An iteration of GRPO here and in TRL: the same model, problems, samples and hyperparameters.

    pip install -e '.[real]' trl peft
    python benchmarks/real/model.py models/smollm2
    python benchmarks/real/beside_trl.py [--rounds=3] [--base=models/smollm2]

and, for curves of the reward, on the problems of configs/alice.py, whose start is made first:

    python -m vinejax.main --config=configs/alice.py:sft --workdir=runs/alice_start
    python -m vinejax.main --config=configs/alice.py:sft --workdir=runs/alice_start --mode=export
    python benchmarks/real/beside_trl.py --config=configs/alice.py --rounds=10 --seed=1 \
        --start=runs/alice_start/adapters

Both start from the weights of `--start` added to the model's, train adapters of rank 8 on the same
layers in float32, and take the config's settings; those of configs/smollm2.py are 64 solutions of
eight problems, at most 192 tokens, two updates on 32 of them, clip 0.2, no KL penalty, AdamW
without weight decay. A round is an iteration of ours and one of TRL's on the same problems, in one
process that is bound to one core. The table leaves the first round out, in which both are still
warm-up. Seconds are the processor's, of all threads of the process.

The loss is a mean over the tokens of a minibatch: 'dapo' in TRL. Draws differ, and with them the
lengths; the table has tokens beside seconds. Answers are graded in processes of their own, which
are not counted on either side.

On configs/smollm2.py an iteration of TRL took 1.76 times our processor time (2026-11-26, three
rounds). Curves on configs/alice.py (2026-11-27, ten rounds after the first, two runs at a time on
two shared cores; trl 1.16, torch 2.14, jax 0.10.2), the mean reward of 64 solutions:

  seed 1  ours  .25 .25 .23 .30 .48 .34 .50 .55 .56 .61 .45
          TRL   .19 .27 .28 .28 .47 .31 .61 .61 .66 .67 .61
  seed 2  ours  .28 .39 .27 .38 .44 .50 .58 .44 .58 .72 .66
          TRL   .20 .34 .20 .36 .31 .31 .48 .42 .56 .53 .45
  seed 3  ours  .17 .28 .22 .36 .38 .39 .44 .52 .41 .59 .58
          TRL   .22 .20 .19 .23 .33 .30 .45 .42 .47 .59 .45

Over the last five iterations of all seeds the mean is .55 here and .53 in TRL. An iteration of TRL
took 1.95, 2.30 and 1.81 times our processor time, a token 2.07, 2.03 and 2.22 times: sampling 1.3
to 1.7 times, updates 2.3 to 2.8 times.
"""

import argparse
import collections
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before the libraries count the cores

import peft  # noqa: E402  # pyright: ignore
import torch  # noqa: E402  # pyright: ignore
import transformers  # noqa: E402
import trl  # noqa: E402  # pyright: ignore
from datasets import Dataset  # noqa: E402

from vinejax.config.checks import check_config  # noqa: E402
from vinejax.config.load import from_dict, from_file  # noqa: E402
from vinejax.core.settings import Config  # noqa: E402
from vinejax.core.types import RunState  # noqa: E402
from vinejax.learner.optimizer import make_optimizer  # noqa: E402
from vinejax.learner.update import fresh_state  # noqa: E402
from vinejax.methods.known import find_method  # noqa: E402
from vinejax.rollout.draw import draw  # noqa: E402
from vinejax.runtime.log import RunLog  # noqa: E402
from vinejax.session.budget import RunTotals  # noqa: E402
from vinejax.session.iteration import Iteration  # noqa: E402
from vinejax.training.startup import Session, open_session  # noqa: E402

CONFIGS = Path(__file__).parents[2] / "configs"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ROWS = 8  # of TRL's passes


class Timed(NamedTuple):
    """An iteration, in seconds of the processor."""

    sampling: float  # and the log-probabilities that the updates start from
    updates: float
    tokens: int  # of the solutions
    reward: float

    @property
    def total(self) -> float:
        return self.sampling + self.updates


def start_weights(base: Path, adapters: Path, folder: Path) -> Path:
    """A Hugging Face folder of the model with the start's adapters merged into it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged: Any = peft.PeftModel.from_pretrained(model, str(adapters)).merge_and_unload()
    merged.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def config_of(config: Path, start: Path, rounds: int, seed: int) -> Config:
    fields: Any = from_file(str(config), f"{config.name}:grpo")
    fields.model.path = str(start)
    fields.iterations = rounds
    fields.seed = seed
    fields.ppo.reduction = "token"
    fields.kl.coef = 0.0
    fields.optimizer.schedule = "constant"
    fields.optimizer.warmup_fraction = 0.0
    cfg = from_dict(fields)
    check_config(cfg)
    return cfg


class ProcessorLog(RunLog):
    """A log that also has the processor's seconds of each stage of the current iteration."""

    seconds: collections.defaultdict[str, float] = collections.defaultdict(float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begun = time.process_time()
        with super().stage(name):
            yield
        self.seconds[name] += time.process_time() - begun


def updates(cfg: Config) -> int:
    """The updates of an iteration."""
    return cfg.rollout.prompts * cfg.rollout.per_prompt // cfg.ppo.minibatch


def ours(session: Session, log: ProcessorLog) -> Iterator[Timed]:
    """Our iterations, one at each `next`."""
    steps = updates(session.cfg) * session.cfg.iterations
    optimizer = make_optimizer(session.cfg.optimizer, steps)
    state = RunState(fresh_state(session.fresh_params(), optimizer, session.mesh))
    method = find_method(session.cfg.method)
    for number in range(session.cfg.iterations):
        iteration, log.seconds = (
            Iteration(session, log, number, RunTotals()),
            collections.defaultdict(float),
        )
        state = method.iteration(method, iteration, state)
        iteration.record(int(state.policy.step))
        sampling = log.seconds["rollout"] + log.seconds["score"]
        yield Timed(
            sampling, log.seconds["train"], iteration.spent.tokens, iteration.metrics["reward/mean"]
        )


class TimedTrainer(trl.GRPOTrainer):
    """TRL's trainer, whose `sampled` has the time and the tokens of its last solutions."""

    sampled: tuple[float, int, float] = 0.0, 0, 0.0  # seconds, tokens, mean reward

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        begun = time.process_time()
        batch: Any = super()._generate_and_score_completions(inputs)
        reward = self._metrics["train"]["reward"][-1]
        tokens = int(batch["completion_mask"].sum())
        self.sampled = time.process_time() - begun, tokens, reward
        return batch


class Turns(transformers.TrainerCallback):
    """Times TRL's iterations of so many updates; before each it lets `other` run one."""

    def __init__(self, other: Iterator[Timed], updates: int):
        self.other = other
        self.updates = updates
        self.trainer: TimedTrainer | None = None
        self.rounds: list[tuple[Timed, Timed]] = []  # ours, TRL's

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.updates == 0:
            self.of_ours = next(self.other)
            self.begun = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.updates == 0:
            assert self.trainer is not None
            total = time.process_time() - self.begun
            sampling, tokens, reward = self.trainer.sampled
            of_trl = Timed(sampling, total - sampling, tokens, reward)
            self.rounds.append((self.of_ours, of_trl))
            for name, timed in (("ours", self.of_ours), ("TRL", of_trl)):
                print(len(self.rounds), name, timed, f"{timed.total:.1f}", flush=True)


def trainer_of(session: Session, start: Path, folder: Path, turns: Turns) -> TimedTrainer:
    """TRL's trainer with the settings of the session, on the problems of our iterations in turn."""
    cfg, problems = session.cfg, session.problems["train"]
    rounds = [draw(problems, cfg.rollout.prompts, cfg.seed, i) for i in range(cfg.iterations)]
    by_text = {session.task.prompt(problem): problem for r in rounds for problem, _ in r}

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return session.graded([(by_text[p], c) for p, c in zip(prompts, completions, strict=True)])

    samples = cfg.rollout.prompts * cfg.rollout.per_prompt
    settings = trl.GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        max_steps=updates(cfg) * cfg.iterations,
        num_generations=cfg.rollout.per_prompt,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=cfg.ppo.minibatch // ROWS,
        steps_per_generation=samples // ROWS,
        max_completion_length=cfg.sample.max_tokens,
        temperature=cfg.sample.temperature,
        top_p=cfg.sample.top_p,
        epsilon=cfg.ppo.clip,
        loss_type="dapo",
        beta=0.0,
        learning_rate=cfg.optimizer.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=cfg.optimizer.max_grad_norm,
        seed=cfg.seed,
    )
    lora = peft.LoraConfig(r=8, lora_alpha=32, target_modules=LAYERS, task_type="CAUSAL_LM")
    model = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    prompts = Dataset.from_dict({"prompt": [*by_text]})
    trainer = TimedTrainer(
        model,
        reward,
        settings,
        train_dataset=prompts,
        processing_class=tokenizer,
        callbacks=[turns],
        peft_config=lora,
    )
    turns.trainer = trainer
    return trainer


def table(rounds: list[tuple[Timed, Timed]]) -> str:
    """Medians, and the median of the ratios TRL / ours of a round."""
    lines = [
        "| | sampling, s | updates, s | iteration, s | tokens | s per 1,000 tokens |",
        "|---" * 6 + "|",
    ]
    rows = []
    for name, side in zip(("vinejax", "TRL"), zip(*rounds, strict=True), strict=True):
        each = [(x.sampling, x.updates, x.total, x.tokens, 1e3 * x.total / x.tokens) for x in side]
        rows.append(each)
        medians = [statistics.median(column) for column in zip(*each, strict=True)]
        lines.append(f"| {name} | " + " | ".join(f"{x:,.1f}" for x in medians) + " |")
    pairs = [[b / a for a, b in zip(*r, strict=True)] for r in zip(*rows, strict=True)]
    ratios = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return "\n".join([*lines, "| TRL / vinejax | " + " | ".join(f"{x:.2f}" for x in ratios) + " |"])


def curves(rounds: list[tuple[Timed, Timed]]) -> str:
    """The mean rewards of both, round by round."""
    lines = []
    for name, side in zip(("vinejax", "TRL"), zip(*rounds, strict=True), strict=True):
        lines.append(f"reward, {name}: " + " ".join(f"{x.reward:.2f}" for x in side))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="after the first, which is left out")
    parser.add_argument("--base", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--config", type=Path, default=CONFIGS / "smollm2.py")
    parser.add_argument("--start", type=Path, default=CONFIGS / "smollm2_start", help="adapters")
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="vinejax-beside-") as temporary:
        folder = Path(temporary)
        start = start_weights(given.base, given.start, folder / "start")
        cfg = config_of(given.config, start, given.rounds + 1, given.seed)
        with open_session(cfg, folder / "ours") as session:
            log = ProcessorLog(session.workdir, cfg.log, cfg.iterations, True)
            with log:
                turns = Turns(ours(session, log), updates(cfg))
                trainer_of(session, start, folder / "trl", turns).train()
            print(table(turns.rounds[1:]), curves(turns.rounds), sep="\n")


if __name__ == "__main__":
    main()
