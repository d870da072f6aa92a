"""The task `table`: named columns, in files of each kind and from the hub, and their splits."""

import csv
import datetime
import decimal
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import refuses

from vinejax.core.errors import DataError
from vinejax.core.settings import DataConfig, GraderConfig, RewardConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.tasks.base import load_task
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.splits import HeldOut
from vinejax.tasks.table import Table

ROWS: list[dict[str, Any]] = [
    {
        "q": f" What is {i} + 1? ",
        "truth": {"value": i + 1.0},
        "level": i % 3,
        "worked": f"It is {i}",
    }
    for i in range(60)
]
FIELDS = {"question": "q", "answer": "truth.value", "solution": "worked"}


def table(path: object, **fields: Any) -> Table:
    columns: dict[str, Any] = FIELDS | fields
    task = load_task(DataConfig(task="vinejax.tasks.table", path=str(path), **columns))
    assert isinstance(task, Table)
    return task


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".csv":
        with open(file, "w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_a_file_gives_three_splits_without_a_row_in_common(suffix: str, tmp_path: Path):
    rows = ROWS
    if suffix == ".csv":  # flat columns, and a field of two lines
        rows = [
            row | {"truth.value": int(row["truth"]["value"]), "note": 'a,\n"b"'} for row in ROWS
        ]
        rows = [{name: x for name, x in row.items() if name != "truth"} for row in rows]
    file = write(tmp_path / f"mine{suffix}", rows)
    task = table(file)
    splits = {split: task.load(split) for split in ("train", "validation", "test")}
    assert {split: len(problems) for split, problems in splits.items()} == {
        "train": 54, "validation": 3, "test": 3,
    }  # fmt: skip
    problems = sum(splits.values(), [])
    assert {p.id for p in problems} == {f"train/{i}" for i in range(60)}
    for problem in problems:
        i = int(problem.id.partition("/")[2])
        assert (problem.question, problem.answer) == (f"What is {i} + 1?", str(i + 1))
        assert problem.columns["level"] == (str(i % 3) if suffix == ".csv" else i % 3)
        assert task.prompt(problem) == f"What is {i} + 1?\n"
        assert task.solution(problem) == f"It is {i}"
    assert [p.id for p in splits["train"]] == sorted(
        (p.id for p in splits["train"]), key=lambda name: int(name[6:])
    )
    again = table(file)
    assert again.load("test") == splits["test"] and again.load("train") == splits["train"]


def test_held_out_rows_are_those_of_every_version():
    """Other rows would put tests into the training of a run that resumes."""
    problems = [Problem(f"train/{i}", f"{i}", "1") for i in range(12_000)]
    splits = HeldOut(lambda source: problems, lambda source: False, lambda problem: problem.id)
    names = {split: [p.id for p in splits.load(split, "x")] for split in ("validation", "test")}
    assert names["validation"][:3] == ["train/2477", "train/6645", "train/6155"]
    assert names["test"][:3] == ["train/11193", "train/1743", "train/9635"]
    assert {split: len(found) for split, found in names.items()} == {"validation": 500, "test": 500}
    assert len(splits.load("train", "x")) == 11_000


def test_a_folder_has_the_splits_that_it_has(tmp_path: Path):
    write(tmp_path / "train.jsonl", ROWS[:40])
    write(tmp_path / "test.parquet", ROWS[40:])
    task = table(tmp_path)
    assert [p.id for p in task.load("test")] == [f"test/{i}" for i in range(20)]
    assert (len(task.load("train")), len(task.load("validation"))) == (38, 2)
    write(tmp_path / "validation.csv", [{"q": "What?", "truth.value": "1/2", "worked": ""}])
    assert [p.answer for p in table(tmp_path).load("validation")] == ["1/2"]
    assert len(table(tmp_path).load("train")) == 40


@pytest.mark.parametrize("name", ["val", "valid", "dev"])
def test_a_validation_split_of_another_name_is_warned_of(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write(tmp_path / "train.jsonl", ROWS[:40])
    write(tmp_path / f"{name}.jsonl", ROWS[40:])
    task = table(tmp_path)
    assert len(task.load("validation")) == 2 and len(task.load("train")) == 36
    said = capsys.readouterr().out
    assert said.startswith(
        f"warning: {tmp_path}: the split {name!r} is not read, and rows of train"
    )
    assert said.count("\n") == 1


def test_solutions_of_one_question_are_in_one_split(tmp_path: Path):
    # Four rows per question with answers of their own, as of several worked solutions.
    rows = [{"q": f"q{i // 4}", "truth": {"value": i}} for i in range(400)]
    task = table(write(tmp_path / "mine.jsonl", rows))
    splits = {split: task.load(split) for split in ("train", "validation", "test")}
    assert [len(problems) for problems in splits.values()] == [360, 20, 20]
    questions = [{problem.question for problem in problems} for problems in splits.values()]
    assert [len(found) for found in questions] == [90, 5, 5]
    assert len(set().union(*questions)) == 100
    # A question with more rows than a held-out split has room for stays in train.
    many = [{"q": "often", "truth": {"value": i}} for i in range(1000, 1100)]
    task = table(write(tmp_path / "more.jsonl", [*many, *rows]))
    assert sum(problem.question == "often" for problem in task.load("train")) == 100
    with pytest.raises(DataError, match="too few prompts"):
        table(write(tmp_path / "one.jsonl", many)).load("train")


def test_repeated_rows_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = ROWS[0] | {"truth": {"value": 9}}  # a second answer may be right, so both rows stay
    file = write(tmp_path / "mine.jsonl", [*ROWS, *ROWS[:20], other])
    task = table(file)
    assert sum(len(task.load(split)) for split in ("train", "validation", "test")) == 61
    assert capsys.readouterr().out == f"{file}: 20 rows repeat an earlier one and are left out\n"


def test_rows_of_one_question_are_no_repetitions_if_their_prompts_differ(tmp_path: Path):
    rows = [
        {"q": "Which is right?", "choices": [i], "truth": {"value": "AB"[i % 2]}} for i in range(20)
    ]
    file = write(tmp_path / "mine.jsonl", rows * 2)
    assert len(table(file, template="{q} {choices}\n{question}").load("train")) == 18


def test_a_column_that_only_some_rows_have_is_empty_in_the_others(tmp_path: Path):
    rows: list[dict[str, Any]] = [{"q": f"q{i}", "truth": {"value": i}} for i in range(20)]
    for i in range(10, 20):
        rows[i] |= {"hint": f"h{i}", "level": i}
    write(tmp_path / "test.jsonl", rows)
    task = table(tmp_path, template="{question} {hint}")
    first, *_, last = problems = task.load("test")
    assert [task.prompt(problem) for problem in (first, last)] == ["q0 ", "q19 h19"]
    path = f"{__name__}.level_or_nothing"
    with GradedTask(task, GraderConfig(), RewardConfig(functions=(path,))) as graded:
        assert graded([(problem, "") for problem in problems]) == [0.0] * 10 + [*range(10, 20)]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_chat_is_a_question_and_the_messages_before_it(suffix: str, tmp_path: Path):
    def said(*messages: str) -> list[dict[str, str]]:
        return [dict(zip(("role", "content"), m.split(":", 1), strict=True)) for m in messages]

    chats = [
        said("user: Why? "),
        said("system:Be brief.", "user:Why?"),
        said("system:Be long.", "user:Why?"),
        said("user:How?", "assistant:So.", "user:Why?"),
    ]
    write(tmp_path / f"test{suffix}", [{"q": chat, "truth": {"value": 1}} for chat in chats])
    problems = table(tmp_path).load("test")
    assert [problem.question for problem in problems] == ["Why?"] * 4
    assert [problem.context for problem in problems] == [
        (),
        (("system", "Be brief."),),
        (("system", "Be long."),),
        (("user", "How?"), ("assistant", "So.")),
    ]


@pytest.mark.parametrize(
    "chat, message",
    [
        ([], "must end with the user's message, not none"),
        ([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], "not user, as"),
        ([{"role": "system", "content": None}, {"role": "user", "content": "?"}], "is no text, in"),
        ([{"role": "user", "content": [{"type": "image"}]}], "must be a text, found"),
        (
            [
                {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]},
                {"role": "user", "content": "?"},
            ],
            "has calls of tools, which no prompt shows: .*add",
        ),
    ],
)
def test_a_chat_without_a_question_of_the_user_is_refused(chat: Any, message: str, tmp_path: Path):
    write(tmp_path / "test.jsonl", [{"q": chat, "truth": {"value": 1}}])
    with pytest.raises(DataError, match=rf"test\.jsonl:1: column 'q' .*{message}"):
        table(tmp_path).load("test")


def test_columns_in_the_template_are_filled_in(tmp_path: Path):
    row = {
        "q": "Which {level}?",
        "truth": {"value": 1.0, "hint": "odd"},
        "level": 3,
        "tests": ["assert a", "assert b"],
        "extra": [1, {"a": None}],
        "none": None,
        "worked": "It is 1",
    }
    write(tmp_path / "test.jsonl", [row])

    def filled(template: str) -> str:
        task = table(tmp_path, template=template)
        return task.prompt(task.load("test")[0])

    assert filled("{question} {level}\n{tests}\n") == "Which {level}? 3\nassert a\nassert b\n"
    assert filled("{question}|{extra}|{none}|") == 'Which {level}?|[1, {"a": null}]||'
    assert filled("{level}{question}{none}{level}{q}") == "3Which {level}?3Which {level}?"
    assert filled("{question}{level}") == "Which {level}?3"
    for kept in (
        r"\frac{level}{level}",
        r"\frac{a}{level}{level}",
        "{levels}{level}",
        "{x^2}{level}",
    ):
        assert filled("{question} " + kept) == f"Which {{level}}? {kept}"
    # What belongs to a formula or to code, what names no column, and the answers stay.
    for kept in (r"\boxed{level}", "x^{level}", "{{level}}", "{levels}", "{}", "{truth.value}"):
        assert filled("{question} " + kept) == f"Which {{level}}? {kept}"
    for kept in ("{truth.hint}", "{worked}", "{1}", "${level}"):
        assert filled("{question} " + kept) == f"Which {{level}}? {kept}"


def test_columns_with_names_of_any_characters_are_filled_in(tmp_path: Path):
    row = {
        "q": "Why?",
        "truth": {"value": 1},
        "Problem Type": "geometry",
        "难度": 3,
        "sub-area": "b",
    }
    write(tmp_path / "test.jsonl", [row])
    template = "{question} {Problem Type}, 难度{难度} {sub-area} {Problem type} {1, 2}"
    task = table(tmp_path, template=template)
    assert task.prompt(task.load("test")[0]) == "Why? geometry, 难度3 b {Problem type} {1, 2}"


def test_dates_within_a_column_are_filled_in(tmp_path: Path):
    row = {"q": "When?", "truth": {"value": 1}, "born": {"on": datetime.date(1815, 12, 10)}}
    write(tmp_path / "test.parquet", [row])
    task = table(tmp_path, template="{question} {born}")
    assert task.prompt(task.load("test")[0]) == 'When? {"on": "1815-12-10"}'


def test_an_answer_may_be_a_decimal_number(tmp_path: Path):
    rows = [
        {"q": text, "truth": {"value": decimal.Decimal(text)}} for text in ("2.50", "-3", "1E+3")
    ]
    write(tmp_path / "test.parquet", rows)
    problems = table(tmp_path).load("test")
    assert [problem.answer for problem in problems] == ["2.50", "-3.00", "1000.00"]


def test_the_template_is_the_prompt(tmp_path: Path):
    write(tmp_path / "test.jsonl", [{"q": "{x} 1+1", "truth": {"value": 2}}])
    task = table(tmp_path, template="Q: {question}\nA:")
    assert task.prompt(task.load("test")[0]) == "Q: {x} 1+1\nA:"


@pytest.mark.parametrize(
    "answer, response, reward",
    [
        ("2", "So it is $\\boxed{2.0}$", 1.0),
        ("2", "The answer is 2", 1.0),
        ("2", "The answer is 3", 0.0),
        ("Half of 4.\n#### 2", "#### 2", 1.0),
        ("Thus $\\boxed{\\frac12}$", "\\boxed{0.5}", 1.0),
        ("Paris", "\\boxed{Paris}", 1.0),
        ("2", "", 0.0),
        ('["2", "3"]', "\\boxed{3, 2}", 1.0),
        ('["2", "3"]', "\\boxed{2}", 0.0),
    ],
)
def test_rewards_compare_the_rows_answer(answer: str, response: str, reward: float):
    task, problem = Table(DataConfig(path="x")), Problem("train/0", "", answer)
    with Grader(workers=1) as grader:
        assert task.rewards([(problem, response)], grader) == [reward]
    assert task.reward(problem, response) == reward


@pytest.mark.parametrize(
    "answer, response",
    [
        (5.04e25, "5.04 \\times 10^{25}"),
        (1e22, "10^{22}"),
        (0.7000000000000001, "0.7"),
        (2.0, "2"),
        (2.5, "5/2"),
        (3e-9, "3 \\cdot 10^{-9}"),
    ],
)
def test_an_answer_may_be_a_float(answer: float, response: str, tmp_path: Path):
    write(tmp_path / "test.jsonl", [{"q": "?", "truth": {"value": answer}}])
    task = table(tmp_path)
    (problem,) = task.load("test")
    assert task.reward(problem, f"It is $\\boxed{{{response}}}$.") == 1.0
    assert task.reward(problem, f"It is $\\boxed{{{response} + 1}}$.") == 0.0


def level(response: str, level: int, ground_truth: str) -> float:
    return level + float(ground_truth in response)


def level_or_nothing(response: str, level: int | None) -> float:
    return float(level or 0)


def test_a_function_of_ones_own_gets_the_columns(tmp_path: Path):
    write(tmp_path / "test.jsonl", ROWS)
    task = table(tmp_path)
    reward = RewardConfig(functions=(f"{__name__}.level",))
    with GradedTask(task, GraderConfig(), reward=reward) as graded:
        items = [(problem, "2") for problem in task.load("test")[:3]]
        assert graded(items) == [0.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "row, fields, message",
    [
        ({"q": "x"}, {}, "column 'truth.value' is missing; there are 'q'"),
        ({"q": "x", "truth": 3}, {}, "column 'truth.value' is missing"),
        ({"q": "x", "truth": {"value": [1]}}, {}, r"must be a text or a number, found \[1\]"),
        ({"q": "x", "truth": {"value": True}}, {}, "must be a text or a number, found True"),
        ({"q": "x", "truth": {"value": " "}}, {}, "the answer is empty"),
        ({"q": 5, "truth": {"value": 1}}, {}, "column 'q' must be a text, found 5"),
        ({"q": " ", "truth": {"value": 1}}, {}, "column 'q': the question is empty"),
    ],
)
def test_faulty_rows_are_named_with_their_line(row: Any, fields: Any, message: str, tmp_path: Path):
    write(tmp_path / "test.jsonl", [ROWS[0], row])
    with pytest.raises(DataError, match=rf"test\.jsonl:2: .*{message}"):
        table(tmp_path, **fields).load("test")


def test_csv_as_spreadsheets_write_it_with_fields_of_any_length(tmp_path: Path):
    """Excel begins a file with a byte order mark. Python's limit of a field is 128 KiB."""
    before = csv.field_size_limit(1000)
    text = "x" * 2000
    (tmp_path / "test.csv").write_text(f"\ufeffq,a\r\n{text},1\r\n", encoding="utf-8")
    try:
        (problem,) = table(tmp_path, question="q", answer="a").load("test")
    finally:
        csv.field_size_limit(before)
    assert problem.question == text


@pytest.mark.parametrize(
    "content, message",
    [
        (b"q,a\nx\n", r"x\.csv:2: not 2 fields"),
        (b"q,a\nx,1,2\n", r"x\.csv:2: not 2 fields"),
        (b'q,a\n"x,1\n', r"x\.csv:2: not CSV"),
        (b'q,a\n"x\ny",1\n"x" y,1\n', r"x\.csv:4: not CSV"),
        (b"q,a\n\xff,1\n", r"x\.csv: not UTF-8"),
        (b"q,a\n", r"x\.csv: no rows"),
    ],
)
def test_faulty_csv_is_one_line(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        table(tmp_path / "x.csv", question="q", answer="a").load("train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"path": ""}, "data.path"),
        ({"path": "x", "question": ""}, "data.question"),
        ({"path": "x", "template": "Solve."}, "data.template"),
    ],
)
def test_what_a_table_needs_is_named(fields: dict[str, Any], field: str):
    with refuses(field):
        load_task(DataConfig(task="vinejax.tasks.table", **fields))


def test_supervised_training_needs_the_column_of_solutions(tmp_path: Path):
    write(tmp_path / "test.jsonl", ROWS)
    task = table(tmp_path, solution="")
    with refuses("data.solution"):
        task.solution(task.load("test")[0])
    with pytest.raises(DataError, match="test/0: column 'nothing' is missing"):
        table(tmp_path, solution="nothing").solution(task.load("test")[0])


# --- the hub


def fake_datasets(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    module = types.ModuleType("datasets")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch):
    calls = []

    def load_dataset(path: str, name: str | None, split: str) -> list[Any]:
        calls.append((path, name, split))
        return ROWS

    def names(path: str, name: str | None) -> list[str]:
        return ["train", "test"]

    fake_datasets(monkeypatch, load_dataset=load_dataset, get_dataset_split_names=names)
    task = table("someone/table", subset="main")
    assert len(task.load("validation")) == 3 and len(task.load("train")) == 57
    assert [p.id for p in task.load("test")] == [f"test/{i}" for i in range(60)]
    calls_once = [("someone/table", "main", "train"), ("someone/table", "main", "test")]
    assert calls == calls_once
    assert table("someone/table").load("test") and calls[-1] == ("someone/table", None, "test")


def test_the_rows_of_the_real_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    file = write(tmp_path / "rows.jsonl", ROWS)
    real = datasets.load_dataset

    def load_dataset(path: str, name: str | None, split: str) -> Any:
        cache = str(tmp_path / "cache")
        files = {"train": str(file)}
        return real("json", data_files=files, split=split, cache_dir=cache)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda path, name: ["train"])
    from_hub = table("someone/table")
    for split in ("train", "validation", "test"):
        problems = from_hub.load(split)
        assert problems == table(file).load(split)
        assert problems[0].columns["level"] in (0, 1, 2)
