"""Data as published: layouts of folders, forms of JSON, missing values, repeated names."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import refuses

from vinejax.core.errors import DataError
from vinejax.core.settings import DataConfig
from vinejax.tasks.dapo_math import pair_of
from vinejax.tasks.gsm8k import GSM8K
from vinejax.tasks.math import MATH
from vinejax.tasks.read_rows import split_files
from vinejax.tasks.table import Table

ROWS = [{"question": f"Thrice {i}?", "answer": f"{3 * i}"} for i in range(40)]


def loaded(path: Path, split: Any = "train", **fields: Any) -> list[tuple[str, str]]:
    """Questions and answers of a split, in the order of the data."""
    problems = Table(DataConfig(path=str(path), **fields)).load(split)
    return [(problem.question, problem.answer) for problem in problems]


def pairs(rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(row["question"], row["answer"]) for row in rows]


def write(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


# --- folders


@pytest.mark.parametrize("folder", ["", "data"])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_shards_of_a_split_are_read_in_order(folder: str, suffix: str, tmp_path: Path):
    names = [f"test-{i:05}-of-00003{'-0a1b2c' * (suffix == '.parquet')}" for i in range(3)]
    for i in random.Random(0).sample(range(3), 3):
        write(tmp_path / folder / f"{names[i]}{suffix}", ROWS[10 * i : 10 * i + 10])
    write(tmp_path / folder / f"testing-00000-of-00001{suffix}", ROWS[:1])
    assert loaded(tmp_path, "test") == pairs(ROWS[:30])
    bad = write(tmp_path / folder / f"{names[1]}{suffix}", [ROWS[10], {"question": "?"}])
    with pytest.raises(DataError, match=rf"{bad.name}:2: column 'answer' "):
        loaded(tmp_path, "test")
    bad.unlink()
    with pytest.raises(DataError, match=rf"shards are missing, or too many: {names[0]}"):
        loaded(tmp_path, "test")
    write(tmp_path / folder / f"{names[1]}{suffix}", ROWS[:10])  # only repeated rows
    assert loaded(tmp_path, "test") == pairs(ROWS[:10] + ROWS[20:30])
    write(tmp_path / folder / f"test-00000-of-00001{suffix}", ROWS[:30])
    with pytest.raises(DataError, match="shards are missing, or too many: "):
        loaded(tmp_path, "test")


def test_shards_may_be_numbered_without_zeros(tmp_path: Path):
    for i in range(12):
        write(tmp_path / f"test-{i}-of-12.jsonl", ROWS[2 * i : 2 * i + 2])
    assert loaded(tmp_path, "test") == pairs(ROWS[:24])


def test_a_folder_of_one_problem_per_file(tmp_path: Path):
    """The layout of MATH; numbered files are in numeric order, not 1, 10, 2."""
    for split in ("train", "test"):
        for subject in ("algebra", "number_theory"):
            for i in (2, 10, 1):
                text = {"problem": f"{split} {subject} {i}?", "solution": f"\\boxed{{{i}}}"}
                file = tmp_path / split / subject / f"{i}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(text, indent=2))
    for hidden in ("algebra/.ipynb_checkpoints/1-checkpoint.json", "algebra/._1.json"):
        file = tmp_path / "train" / hidden  # JupyterLab's and macOS'
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"problem": "an old one", "solution": "\\boxed{1}"}))
    files = split_files(tmp_path, "train")
    assert len(files) == 6
    assert [f"{file.parent.name}/{file.stem}" for file in files[:4]] == [
        "algebra/1", "algebra/2", "algebra/10", "number_theory/1",
    ]  # fmt: skip
    task = MATH(str(tmp_path))
    assert sum(len(task.load(split)) for split in ("train", "validation", "test")) == 12
    files[2].write_text('{"problem": "p"}')
    with pytest.raises(DataError, match=r"algebra/10\.json:1: field 'solution' is missing"):
        MATH(str(tmp_path)).load("train")


def test_what_the_library_saved_is_read_without_it(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    both = datasets.DatasetDict({"train": whole, "test": whole.select(range(5, 12))})
    both.save_to_disk(str(tmp_path / "both"), num_shards={"train": 3, "test": 1})
    assert loaded(tmp_path / "both", "test") == pairs(ROWS[5:12])
    assert loaded(tmp_path / "both") == [
        pair for pair in pairs(ROWS) if pair in loaded(tmp_path / "both")
    ]
    whole.save_to_disk(str(tmp_path / "one"))
    splits = [loaded(tmp_path / "one", split) for split in ("train", "validation", "test")]
    assert sorted(sum(splits, [])) == sorted(pairs(ROWS))
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(DataError, match=r"state\.json: names no files of a data set"):
        loaded(tmp_path / "one")


def test_arrow_files(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.ipc.new_stream(str(tmp_path / "test.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    assert loaded(tmp_path, "test") == pairs(ROWS)
    (tmp_path / "test.arrow").write_bytes(b"no stream")
    with pytest.raises(DataError, match=r"test\.arrow: not Arrow: "):
        loaded(tmp_path, "test")


def test_several_configurations_are_named(tmp_path: Path):
    for i, name in enumerate(("main", "socratic")):
        write(tmp_path / name / "train-00000-of-00001.parquet", ROWS[20 * i : 20 * i + 20])
    rule = rf"has the configurations main, socratic; .*--config\.data\.path={tmp_path}/main"
    with pytest.raises(DataError, match=rule):
        loaded(tmp_path)
    for fields in ({"path": tmp_path / "main"}, {"path": tmp_path, "subset": "main"}):
        assert set(loaded(**fields)) < set(pairs(ROWS[:20]))
    with refuses("data.subset"):
        loaded(tmp_path, subset="other")
    worked = [{"question": "?", "answer": f"#### {i}"} for i in range(20)]
    write(tmp_path / "main" / "test.jsonl", worked)
    assert len(GSM8K(str(tmp_path)).load("test")) == 20  # its configuration is 'main'


def test_one_configuration_needs_no_choice_and_a_backup_is_none(tmp_path: Path):
    write(tmp_path / "hub" / "default" / "train.jsonl", ROWS)
    (tmp_path / "hub" / "dataset_infos.json").write_text("{}")  # in older data sets of the hub
    assert len(loaded(tmp_path / "hub")) == 36
    write(tmp_path / "own" / "train.jsonl", ROWS)
    write(tmp_path / "own" / "old" / "test.jsonl", ROWS[:3])
    assert len(loaded(tmp_path / "own", "test")) == 2  # held out of train


def test_configurations_of_the_hub_are_named(monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")

    def several(*_: Any, **__: Any) -> None:
        names = "['main', 'socratic']"
        raise ValueError(
            f"Config name is missing.\nPlease pick one among the available configs: {names}\nFor"
        )

    monkeypatch.setattr(datasets, "load_dataset", several)
    with pytest.raises(DataError, match=r"has the configurations \['main', 'socratic'\]; choose"):
        loaded(Path("someone/table"))


# --- JSON


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "whole",
    [
        ROWS,
        {"data": ROWS},
        {"version": "1.1", "data": ROWS},
        {"rows": ROWS},
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
    ],
    ids=["list", "data", "beside others", "rows", "columns"],
)
def test_the_forms_of_a_json_file(whole: Any, indent: int | None, tmp_path: Path):
    (tmp_path / "test.json").write_text("\ufeff" + json.dumps(whole, indent=indent))
    assert loaded(tmp_path, "test") == pairs(ROWS)


def test_json_lines_may_be_called_json(tmp_path: Path):
    write(tmp_path / "test.json", [*ROWS, {"question": "?"}])
    with pytest.raises(DataError, match=r"test\.json:41: column 'answer' is missing"):
        loaded(tmp_path, "test")
    write(tmp_path / "test.json", ROWS)
    assert loaded(tmp_path, "test") == pairs(ROWS)


@pytest.mark.parametrize(
    "text, message",
    [
        ('[{"question": "?"},\n {"question" "?"}]', r"test\.json:2: not JSON .*column 14"),
        (
            '{"train": [{"a": 1}], "test": [{"a": 1}]}',
            "'train', 'test' are not columns; put each",
        ),
        (
            '{"question": ["a", "b"], "answer": ["1"]}',
            "the lists .* are not columns",
        ),
        (
            '[{"question": "?"},\n {"answer": 1, "answer": 2}]',
            r"test\.json: two fields are called 'answer'",
        ),
        ('[{"question": "?"},\n {"answer": "\udcff"}]', r"test\.json:2: not UTF-8 text"),
        ("[1]", r"test\.json:1: expected an object, found int"),
        ("[]", "no rows"),
        ("", r"test\.json:1: not JSON"),
    ],
)
def test_other_json_is_refused(text: str, message: str, tmp_path: Path):
    (tmp_path / "test.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=message):
        loaded(tmp_path, "test")


def test_the_kind_of_a_file_is_that_of_its_suffix_in_either_case(tmp_path: Path):
    text = "question,answer\n" + "".join(f"Thrice {i}?,{3 * i}\n" for i in range(40))
    (tmp_path / "MINE.CSV").write_text(text)
    assert set(loaded(tmp_path / "MINE.CSV")) < set(pairs(ROWS))
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(DataError, match=r"mine\.txt:1: not JSON .*; names .* end in \.jsonl, "):
        loaded(tmp_path / "mine.txt")
    (tmp_path / "mine.xlsx").write_bytes(b"PK\xff")
    with pytest.raises(DataError, match=r"mine\.xlsx:1: not UTF-8 .*; names .* end in \.jsonl, "):
        loaded(tmp_path / "mine.xlsx")


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("digits", [5, 3999, 4300, 5000, 100_000])
def test_integers_of_any_length(digits: int, sign: str, tmp_path: Path):
    number = sign + "3" * digits
    (tmp_path / "test.jsonl").write_text(
        f'{{"question": "How many?", "answer": {number}, "x": [{{"y": {number}}}]}}'
    )
    assert loaded(tmp_path, "test") == [("How many?", number)]
    row: Any = {"prompt": "?", "reward_model": {"ground_truth": f"{sign}00{number[-digits:]}"}}
    assert pair_of(row) == ("?", number)


@pytest.mark.parametrize("given, bare", [("-0", "0"), ("+7", "7"), ("000", "0"), ("-012", "-12")])
def test_integers_are_written_in_one_way(given: str, bare: str):
    assert pair_of({"prompt": "?", "reward_model": {"ground_truth": given}})[1] == bare


# --- missing values and names


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "null"])
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_json_without_a_number_is_a_missing_value(value: str, suffix: str, tmp_path: Path):
    file = tmp_path / f"test{suffix}"
    rows = [json.dumps(row | {"level": "VALUE"}) for row in ROWS]
    text = "\n".join(rows).replace('"VALUE"', value)
    file.write_text(text if suffix == ".jsonl" else f"[{','.join(text.splitlines())}]")
    problems = Table(DataConfig(path=str(tmp_path))).load("test")
    assert {problem.columns["level"] for problem in problems} == {None}
    file.write_text(f'{{"question": "?", "answer": 1.5}}\n{{"question": "?", "answer": {value}}}')
    with pytest.raises(DataError, match=rf"test\{suffix}:2: column 'answer' has no value, or one"):
        loaded(tmp_path, "test")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None])
def test_parquet_without_a_number_is_a_missing_value(value: float | None, tmp_path: Path):
    rows = [
        {"question": "?", "answer": {"value": 0.5}},
        {"question": "?", "answer": {"value": value}},
    ]
    write(tmp_path / "test.parquet", rows)
    with pytest.raises(DataError, match=r"test\.parquet:2: column 'answer\.value' has no value"):
        loaded(tmp_path, "test", answer="answer.value")


def test_numbers_in_lists_of_parquet_are_finite_or_missing(tmp_path: Path):
    rows = [{"question": "?", "answer": 1, "scores": [0.5, float("nan")]}]
    write(tmp_path / "test.parquet", rows)
    (problem,) = Table(DataConfig(path=str(tmp_path))).load("test")
    assert problem.columns["scores"] == [0.5, None]


@pytest.mark.parametrize(
    "name, text, place",
    [
        ("test.csv", "question,answer,answer\n?,1,2\n", "test.csv:1: two columns are"),
        ("test.tsv", "answer\tquestion\tanswer\n1\t?\t2\n", "test.tsv:1: two columns are"),
        (
            "test.jsonl",
            '{"question": "?", "answer": 1, "answer": 2}',
            "test.jsonl:1: two fields are",
        ),
        (
            "test.json",
            '[{"question": "?", "answer": 1, "answer": 2}]',
            "test.json:1: two fields are",
        ),
    ],
)
def test_two_columns_of_one_name_are_refused(name: str, text: str, place: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{place} called 'answer'; rename one"):
        loaded(tmp_path, "test")


def test_two_columns_of_one_name_are_refused_in_parquet(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    made = pyarrow.table([pyarrow.array(["?"])] * 3, names=["question", "answer", "answer"])
    parquet.write_table(made, tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet: two columns are called 'answer'"):
        loaded(tmp_path, "test")


@pytest.mark.parametrize("time", [("ms", None, 10**15), ("s", "No/Where", 1)])
def test_a_value_that_python_lacks_is_named_in_parquet(time: tuple, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    unit, zone, number = time
    times = pyarrow.array([number], pyarrow.timestamp(unit, zone))
    parquet.write_table(pyarrow.table({"when": times}), tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet: a value of column 'when' cannot be read"):
        loaded(tmp_path, "test")


def test_tab_separated_values(tmp_path: Path):
    lines = ["question\tanswer", '"What,\nnow?"\t1,5', "Why?\t2"]
    (tmp_path / "test.tsv").write_text("\r\n".join(lines))
    assert loaded(tmp_path, "test") == [("What,\nnow?", "1,5"), ("Why?", "2")]
    (tmp_path / "test.tsv").write_text("question\tanswer\nWhy?\t2\t3\n")
    with pytest.raises(DataError, match=r"test\.tsv:2: not 2 fields"):
        loaded(tmp_path, "test")
