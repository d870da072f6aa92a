"""Makes trl_distillation.json: numbers of TRL's own code, for test_distillation.py to compare with.

    python tests/contrib/methods/make_trl_distillation.py CHECKOUT

in an environment with torch. CHECKOUT is https://github.com/huggingface/trl at f2cd577. The code is
taken out of the files of trl/experimental by name, and run as it is on made-up numbers: a whole
trainer would need a model and a data set.
"""

import ast
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

B, T, V, GROUP = 6, 5, 7, 3
LENGTHS = [5, 3, 4, 1, 5, 2]
REWARDS = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]  # the second group has one right solution
PROMPTS = ["1+1"] * GROUP + ["2+2"] * GROUP
TEXTS = ["=3", "=2", "=1+1=2", "=5", "=4", "=0"]
Tensors = dict[str, torch.Tensor]


def names_of(folder: Path, file: str, *names: str, **scope: Any) -> dict[str, Any]:
    """The functions and classes of a file with these names; annotations are left unread."""
    nodes = ast.walk(ast.parse((folder / file).read_text(encoding="utf-8")))
    module = ast.parse("from __future__ import annotations")
    kinds = (ast.FunctionDef, ast.ClassDef)
    module.body += [n for n in nodes if isinstance(n, kinds) and n.name in names]
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    exec(compile(ast.fix_missing_locations(module), file, "exec"), scope)
    return scope


def gradients(
    folder: Path, student: torch.Tensor, teacher: torch.Tensor, given: Tensors
) -> Tensors:
    """Gradients of a sum over the mask by the student's logits: SDPO's loss and GKD's."""
    pick = {"selective_log_softmax": selected}
    sdpo = names_of(
        folder, "sdpo/loss_utils.py", "compute_sampled_token_self_distillation_loss", **pick
    )["compute_sampled_token_self_distillation_loss"]
    gkd = names_of(folder, "gkd/gkd_trainer.py", "generalized_jsd_loss", torch=torch, F=F)
    mask, found = given["mask"].bool(), {}
    losses = {
        "sdpo": lambda x: sdpo(x, teacher, given["ids"], distillation_alpha=1.0)[mask].sum(),
        "gkd": lambda x: gkd["generalized_jsd_loss"](
            x, teacher, labels=torch.where(mask, 0, -100), beta=1, reduction="sum"
        ),
    }
    for name, loss in losses.items():
        logits = student.clone().requires_grad_()
        loss(logits).backward()
        found[f"{name}_grad"] = logits.grad
    return found


def selected(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """What trl.trainer.utils.selective_log_softmax computes."""
    return F.log_softmax(logits, dim=-1).gather(-1, ids[..., None])[..., 0]


def minillm(folder: Path, student: torch.Tensor, teacher: torch.Tensor, given: Tensors) -> Any:
    """The advantages of MiniLLM without discounted later tokens."""
    scope = names_of(folder, "minillm/minillm_trainer.py", "_compute_advantage", torch=torch)
    me = types.SimpleNamespace(gamma=0.0, length_normalization=False)
    chosen = [selected(x, given["ids"]) for x in (student, teacher)]
    return scope["_compute_advantage"](me, *chosen, given["mask"])


def teacher_contexts(folder: Path) -> tuple[list[str], list[float], dict[str, float]]:
    """(prompts of SDPO's teacher, which solutions have one, metrics), with TRL's templates."""
    names = "SuccessfulRolloutTeacherContextBuilder"
    scope = names_of(
        folder, "sdpo/sdpo_trainer.py", names, torch=torch, re=re,
        pad=lambda x, **_: torch.nn.utils.rnn.pad_sequence(x, batch_first=True),
        gather_object=lambda x: x,
    )  # fmt: skip
    config = ast.parse((folder / "sdpo/sdpo_config.py").read_text(encoding="utf-8"))
    defaults = {
        node.target.id: ast.literal_eval(value.value)
        for node in ast.walk(config)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Call)
        for value in node.value.keywords if value.arg == "default"
    }  # fmt: skip
    seen: list[str] = []

    def tokenize(texts: list[str]) -> list[list[int]]:
        seen.extend(texts)
        return [[1] for _ in texts]

    def same(x: Any, **_: Any) -> Any:
        return x

    trainer = types.SimpleNamespace(
        args=types.SimpleNamespace(**defaults),
        accelerator=types.SimpleNamespace(
            device="cpu", process_index=0, gather=same, pad_across_processes=same
        ),
        model=types.SimpleNamespace(training=True),
        num_generations=GROUP, num_generations_eval=GROUP,
        _tokenizer=types.SimpleNamespace(pad_token_id=0),
        processing_class=types.SimpleNamespace(decode=lambda ids, **_: TEXTS[int(ids[0]) - 1]),
        _tokenize_prompts_untruncated=tokenize,
    )  # fmt: skip
    builder = scope[names](trainer)
    ids = torch.arange(1, B + 1)[:, None]
    output = {"completion_ids": ids, "completion_mask": torch.ones_like(ids)}
    found = builder.build(output, PROMPTS, torch.tensor(REWARDS))
    return seen, found["self_distillation_mask"].tolist(), builder.last_metrics


def main() -> None:
    folder, rng = Path(sys.argv[1]) / "trl" / "experimental", np.random.default_rng(0)
    student, teacher = (torch.tensor(rng.normal(0, 1.5, (B, T, V))) for _ in range(2))
    given = {
        "ids": torch.tensor(rng.integers(0, V, (B, T))),
        "mask": torch.tensor(np.arange(T) < np.array(LENGTHS)[:, None]).long(),
    }
    arrays = {"student": student, "teacher": teacher, **given}
    arrays["minillm_advantages"] = minillm(folder, student, teacher, given)
    arrays |= gradients(folder, student, teacher, given)
    record: dict[str, Any] = {name: np.round(x.numpy(), 9).tolist() for name, x in arrays.items()}
    prompts, has_teacher, metrics = teacher_contexts(folder)
    record |= {"prompts": PROMPTS, "texts": TEXTS, "rewards": REWARDS, "group": GROUP}
    record |= {"teacher_prompts": prompts, "has_teacher": has_teacher, "metrics": metrics}
    file = Path(__file__).with_name("trl_distillation.json")
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
