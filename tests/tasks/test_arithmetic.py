"""The embedded task: its problems, its grader and its tokenizer file."""

import json
import re
import runpy

import pytest
from helpers.paths import REPO
from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from vinejax.config.load import from_dict
from vinejax.core.settings import Config, DataConfig
from vinejax.core.text import decode
from vinejax.core.types import Problem
from vinejax.tasks.arithmetic import LARGEST, OPERATIONS, TOKENIZER, Arithmetic
from vinejax.tasks.base import Split, Task, load_task
from vinejax.tasks.generated import SIZES
from vinejax.tasks.prompts import encode_prompt, encode_response

TASK = Arithmetic()
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
PROBLEMS = {split: TASK.load(split) for split in SPLITS}
EVERYTHING = [problem for split in SPLITS for problem in PROBLEMS[split]]


def evaluate(question: str) -> int:
    """The value from left to right, by Python, with parentheses around every operation."""
    first, *rest = re.findall(r"\d+|[-+*]\d+", question)
    assert "".join([first, *rest]) == question
    expression = first
    for operation in rest:
        expression = f"({expression}{operation})"
    return eval(expression)


def test_the_registry_finds_it():
    task = load_task(DataConfig())
    assert isinstance(task, Task) and task.name == "arithmetic"


def test_every_line_of_a_worked_solution_is_true():
    for problem in EVERYTHING:
        *lines, last = problem.answer.split("\n")
        assert last == f"#### {evaluate(problem.question)}"
        value, question = "", problem.question
        for line in lines:
            left, result = line.split("=")
            assert evaluate(left) == int(result) and 0 <= int(result) <= LARGEST
            # Each line continues with the last result; together they use the question in order.
            assert left.startswith(value)
            operation = left.removeprefix(value) if value else left
            assert question.startswith(operation)
            value, question = result, question.removeprefix(operation)
        assert question == ""


def test_splits_are_disjoint_and_always_the_same():
    questions = [{problem.question for problem in PROBLEMS[split]} for split in SPLITS]
    assert [len(q) for q in questions] == [SIZES[split] for split in SPLITS]
    assert len(set.union(*questions)) == sum(SIZES.values())
    assert len({problem.id for problem in EVERYTHING}) == len(EVERYTHING)
    for split in SPLITS:
        assert Arithmetic().load(split) == PROBLEMS[split]
        counts = [len(re.findall(r"[-+*]", problem.question)) for problem in PROBLEMS[split]]
        shares = [counts.count(n) / len(counts) for n in OPERATIONS]
        assert max(shares) - min(shares) < 0.01 and abs(sum(shares) - 1) < 1e-9


def test_rewards():
    for problem in PROBLEMS["validation"]:
        worked, gold = TASK.solution(problem), evaluate(problem.question)
        assert TASK.reward(problem, worked) == 1.0 and TASK.answer(worked) == str(gold)
        for wrong in (gold + 1, gold + 10, f"{gold}0", -gold if gold else 1, ""):
            perturbed = worked.replace(f"#### {gold}", f"#### {wrong}")
            assert perturbed != worked and TASK.reward(problem, perturbed) == 0.0


def test_demonstrations_may_skip_the_end_of_the_work_but_not_the_answer():
    skipped = []
    for problem in PROBLEMS["train"]:
        *work, answer = problem.answer.split("\n")
        _, *shown, last = TASK.solution(problem).split("\n")
        assert last == answer and shown == work[: len(shown)]
        assert TASK.solution(problem) == Arithmetic().solution(problem)
        skipped.append(len(work) - len(shown))
    assert min(skipped) == 0 and max(skipped) == max(OPERATIONS)
    assert 0.2 < sum(n == 0 for n in skipped) / len(skipped) < 0.8


@pytest.mark.parametrize(
    "text, answer",
    [
        ("#### 4", "4"),
        ("\n2+2=5\n#### 5\n#### 4", "4"),
        ("\n#### 4\n2+2", "4"),
        ("\n#### -3", "-3"),
        ("\n####4", None),
        ("\n#### ", None),
        ("\n2+2=4", None),
        ("", None),
    ],
)
def test_the_answer_is_the_last_one(text, answer):
    assert TASK.answer(text) == answer
    assert TASK.reward(Problem("x", "2+2", "2+2=4\n#### 4"), text) == float(answer == "4")


def test_a_step_is_a_line():
    problem = max(PROBLEMS["train"], key=lambda p: len(p.answer))
    text = f"\n{problem.answer}"
    ends = TASK.split(text)
    steps = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    *lines, answer = problem.answer.split("\n")
    lines[-1] += "\n" + answer  # the answer belongs to the last operation
    assert steps == [f"\n{line}" for line in lines]


def test_every_text_survives_the_tokenizer():
    tokenizer = TASK.tokenizer()
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    for problem in PROBLEMS["train"]:
        prompt, response = TASK.prompt(problem), TASK.solution(problem)
        prompt_ids = encode_prompt(tokenizer, prompt, chat_template=False)
        ids = encode_response(tokenizer, response)
        assert tokenizer.unk_token_id not in prompt_ids + ids
        assert prompt_ids[0] == bos and ids[-1] == eos and len(ids) == len(response) + 1
        assert decode(tokenizer, prompt_ids) == prompt
        assert decode(tokenizer, prompt_ids + ids) == prompt + response


def test_the_tokenizer_file_is_what_its_recipe_gives():
    special = ["<bos>", "<eos>", "<unk>"]
    vocab = {token: i for i, token in enumerate([*special, *"\n #+-*=0123456789"])}
    built = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    built.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    built.decoder = decoders.Fuse()
    built.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", 0)]
    )
    expected = json.loads(built.to_str())
    shipped = json.loads((TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))
    assert expected == shipped

    loaded = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    text = "\n".join(TASK.prompt(p) + TASK.solution(p) for p in PROBLEMS["test"]) + " x é"
    assert loaded.encode(text).ids == built.encode(text).ids
    assert loaded.decode(loaded.encode(text).ids) == built.decode(built.encode(text).ids)


def test_the_tokenizer_loads_in_transformers():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(TOKENIZER))
    marks = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert marks == (0, 1, 2) and tokenizer.pad_token_id == tokenizer.eos_token_id
    assert len(tokenizer) == 20
    assert tokenizer.encode("1+2=3") == [0, 11, 6, 12, 9, 13]  # BOS in front, nothing after
    assert tokenizer.decode([0, 3, 5, 4, 19, 1], skip_special_tokens=True) == "\n# 9"


def test_every_problem_fits_the_tiny_config():
    root = REPO
    cfg: Config = from_dict(runpy.run_path(str(root / "configs" / "tiny.py"))["get_config"]())
    assert cfg.data.task == "vinejax.tasks.arithmetic"
    tokenizer = TASK.tokenizer()
    for problem in EVERYTHING:
        prompt = encode_prompt(tokenizer, TASK.prompt(problem), cfg.data.chat_template)
        response = encode_response(tokenizer, TASK.solution(problem))
        assert len(prompt) <= cfg.data.max_prompt_tokens
        assert len(response) <= cfg.sample.max_tokens
        assert len(prompt) + cfg.sample.max_tokens <= cfg.model.context or cfg.model.path
