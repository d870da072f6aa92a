"""The rows of the named sets, made up in the columns of the real data, and how they are graded."""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import refuses

from vinejax.config.load import from_dict
from vinejax.core.accessories import contributed
from vinejax.core.errors import UserError
from vinejax.core.settings import Config, DataConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.tasks.base import BatchGraded, load_task
from vinejax.tools.sets.named_sets import CODE, SETS
from vinejax.tools.sets.set_tasks import SetTask, chosen_sets, set_task, set_tasks, template_of

CFG = Config()
ADD = 'def add(a: int, b: int) -> int:\n    """The sum of a and b."""\n'
CHECK = "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate(2, 3) == 5\n"
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {
        "question": "Tom has 3 pens and buys 1,200. How many has he? ",
        "answer": "He has 3+1200=<<3+1200=1203>>1203 pens.\n#### 1,203",
    },
    "math500": {
        **{"problem": "Halve $x$.", "solution": "Thus $\\boxed{\\frac{x}{2}}$."},
        **{"answer": "\\frac{x}{2}", "subject": "Algebra", "level": 1},
        "unique_id": "test/algebra/1.json",
    },
    "aime24": {
        **{"id": 60, "problem": "Find $m+n$.", "solution": "It is 73.", "answer": "073"},
        **{"url": "https://example.org", "year": "2024"},
    },
    "aime25": {"problem": "Find $k$.", "answer": "588", "id": "0"},
    "svamp": {
        **{"ID": "chal-1", "Body": "There are 87 oranges", "Question": "How many are left?"},
        **{"Equation": "( 87.0 - 1.0 )", "Answer": "86.0", "Type": "Subtraction"},
    },
    "minerva": {"question": "How many ergs?", "answer": "4.5e33"},
    "olympiadbench": {
        **{"id": 1, "question": "Find all $x$.", "solution": ["..."], "context": None},
        **{"final_answer": ["$-2$,$3$"], "is_multiple_answer": True, "unit": "minutes"},
        **{"answer_type": "Numerical", "error": None, "image_1": None},
    },
    "humaneval": {
        **{"task_id": "HumanEval/0", "prompt": ADD, "canonical_solution": "    return a + b\n"},
        **{"test": CHECK, "entry_point": "add"},
    },
    "mbpp": {
        **{"task_id": 11, "text": "Write a function to double a number.", "code": "..."},
        **{"test_list": ["assert double(2) == 4", "assert double(0) == 0"]},
        **{"test_setup_code": "", "challenge_test_list": []},
    },
}
ANSWERS = {
    **{"gsm8k": "1,203", "math500": "\\frac{x}{2}", "aime24": "73", "aime25": "588"},
    **{"svamp": "86", "minerva": "4.5e33", "olympiadbench": "$-2$,$3$"},
}
GRADED: dict[str, tuple[list[str], list[str]]] = {  # right responses, wrong responses
    "gsm8k": (["So\n#### 1203", "It is \\boxed{1{,}203}."], ["#### 1202", "1203 = x, so #### 3"]),
    "math500": (["\\boxed{x/2}", "The answer is $\\frac{x}{2}$."], ["\\boxed{x}", ""]),
    "aime24": (["\\boxed{73}", "\\boxed{073}"], ["\\boxed{730}"]),
    "aime25": (["\\boxed{588}", "So\n#### 588"], ["\\boxed{85}"]),
    "svamp": (["#### 86", "The answer is 86 oranges."], ["#### 87"]),
    "minerva": (["\\boxed{4.5e33}", "\\boxed{4.5 \\times 10^{33}}"], ["\\boxed{4.5e32}"]),
    "olympiadbench": (["\\boxed{-2, 3}", "\\boxed{3,-2}"], ["\\boxed{3}", "\\boxed{-2, 3, 4}"]),
}
PROGRAMS = {
    "humaneval": ("def add(a, b):\n    return a + b", "def add(a, b):\n    return a - b"),
    "mbpp": ("def double(x):\n    return 2 * x", "def double(x):\n    return x + 2"),
}
MATH = [name for name, row in SETS.items() if row.task != CODE]
needs_code = pytest.mark.skipif(CODE not in contributed("TASKS"), reason="without contrib/")


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(workers=1, timeout_s=5.0) as made:
        yield made


def write(folder: Path, name: str, *rows: dict[str, Any]) -> Path:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def one_set(name: str, path: Path) -> SetTask:
    (found,) = set_tasks(CFG, f"{name}={path}")
    return found


def first(found: SetTask) -> Problem:
    return found.task.load("test")[0]


def rewards(found: SetTask, responses: list[str], grader: Grader) -> list[float]:
    assert isinstance(found.task, BatchGraded)
    return found.task.rewards([(first(found), text) for text in responses], grader)


def test_every_set_has_a_row_here():
    assert list(ROWS) == list(SETS)
    for name, row in SETS.items():
        assert {row.question, row.answer} <= ROWS[name].keys()


@pytest.mark.parametrize("name", MATH)
def test_answers_are_read_and_graded(name: str, tmp_path: Path, grader: Grader):
    found = one_set(name, write(tmp_path, name, ROWS[name]))
    (problem,) = found.task.load("test")
    assert (problem.id, problem.answer) == (f"{SETS[name].split}/0", ANSWERS[name])
    assert found.task.prompt(problem) == f"{problem.question}="  # that of the run
    right, wrong = GRADED[name]
    assert rewards(found, right + wrong, grader) == [1.0] * len(right) + [0.0] * len(wrong)


def test_the_body_goes_before_the_question(tmp_path: Path):
    for answer in ("86.0", 86.0, 86):  # the hub's copy; the authors' file
        found = one_set("svamp", write(tmp_path, "svamp", ROWS["svamp"] | {"Answer": answer}))
        assert first(found).question == "There are 87 oranges. How many are left?"
        assert first(found).answer == "86"


@pytest.mark.parametrize("answer", ["336^\\circ", "336^{\\circ}", "336 °", 336])
def test_degrees_of_an_answer_of_aime(answer: Any, tmp_path: Path, grader: Grader):
    """A problem of AIME 2025 asks for an arc, and copies of the data keep the unit."""
    found = one_set("aime25", write(tmp_path, "aime25", ROWS["aime25"] | {"answer": answer}))
    assert first(found).answer == "336"
    right = ["\\boxed{336^\\circ}", "\\boxed{336}"]
    assert rewards(found, [*right, "\\boxed{33}"], grader) == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("answers", "unit", "right", "wrong"),
    [
        (["8"], "min", "\\boxed{8\\text{ min}}", "\\boxed{9\\text{ min}}"),
        (["4.2"], "%", "\\boxed{4.2\\%}", "\\boxed{42\\%}"),
        (["$\\frac{41}{12}$"], "km", "\\boxed{41/12}", "\\boxed{41}"),
        (["$1$", "$2$"], None, "\\boxed{2} and \\boxed{1}", "\\boxed{1}"),
    ],
)
def test_units_and_several_answers(
    answers: list[str], unit: str, right: str, wrong: str, tmp_path: Path, grader: Grader
):
    row = ROWS["olympiadbench"] | {"final_answer": answers, "unit": unit}
    found = one_set("olympiadbench", write(tmp_path, "olympiadbench", row))
    assert rewards(found, [right, wrong], grader) == [1.0, 0.0]


@needs_code
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_with_the_tests_of_the_row(name: str, tmp_path: Path, grader: Grader):
    cfg = from_dict({"code": {"sandbox": "none"}})
    (found,) = set_tasks(cfg, f"{name}={write(tmp_path, name, ROWS[name])}")
    question = ROWS[name][SETS[name].question].strip()
    prompt = found.task.prompt(first(found))
    assert prompt.startswith(question) and prompt.endswith("=")
    assert name == "humaneval" or "double(2)" in prompt  # which the text does not name
    right, wrong = (f"```python\n{program}\n```" for program in PROGRAMS[name])
    assert rewards(found, [right, wrong, "no program"], grader) == [1.0, 0.0, 0.0]


FAULTS: list[Any] = [
    ("gsm8k", {"question": "How many?"}, "column 'answer' is missing; there are 'question'"),
    ("gsm8k", {"question": "?", "answer": "72"}, "column 'answer' has no answer after '####'"),
    ("gsm8k", {"question": "?", "answer": "#### "}, "column 'answer' has no answer after '####'"),
    ("math500", {"problem": "?", "solution": "5"}, "column 'answer' is missing; there are"),
    ("aime24", {"problem": "?", "answer": "1/2"}, "'answer' must be a whole number, found '1/2'"),
    ("aime25", {"question": "?", "answer": "7"}, "column 'problem' is missing"),
    ("svamp", {"Question": "?", "Answer": "3"}, "column 'Body' is missing"),
    ("svamp", {"Body": ".", "Question": "?", "Answer": "few"}, "must be a number, found 'few'"),
    ("minerva", {"question": "?", "answer": None}, "column 'answer' has no value"),
    ("olympiadbench", {"question": "?", "final_answer": "3"}, "must be a list of strings"),
    ("olympiadbench", {"question": "?", "final_answer": []}, "the answer is empty"),
    pytest.param("humaneval", {"prompt": ADD, "entry_point": "add"}, "column 'test' is missing",
                 marks=needs_code),
    pytest.param("mbpp", {"prompt": "?", "test_list": ["assert f(1)"]}, "column 'text' is missing",
                 marks=needs_code),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "message"), FAULTS)
def test_a_faulty_row_is_named(name: str, row: dict[str, Any], message: str, tmp_path: Path):
    file = write(tmp_path, name, ROWS[name], row)
    with pytest.raises(UserError) as error:
        one_set(name, file)
    assert str(error.value).startswith(f"--sets: {name}: {file}:2: ")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_folder_has_the_file_of_the_split(tmp_path: Path):
    write(tmp_path, "train", ROWS["aime24"])
    assert first(one_set("aime24", tmp_path)).answer == "73"
    with pytest.raises(UserError, match=r"--sets: aime25: .*test\.jsonl: no such file"):
        one_set("aime25", tmp_path)
    (tmp_path / "gsm8k" / "main").mkdir(parents=True)  # as the hub's folders are
    (tmp_path / "gsm8k" / "socratic").mkdir()
    for subset in ("main", "socratic"):
        write(tmp_path / "gsm8k" / subset, "test", ROWS["gsm8k"])
    assert first(one_set("gsm8k", tmp_path / "gsm8k")).answer == "1,203"


def test_names_of_the_hub(monkeypatch: pytest.MonkeyPatch):
    calls = {}

    def load_dataset(path: str, name: str | None, split: str) -> list[Any]:
        calls[path] = name, split
        return [row for key, row in ROWS.items() if SETS[key].path == path]

    module = types.ModuleType("datasets")
    vars(module)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    found = set_tasks(CFG, ",".join(MATH))
    assert [each.name for each in found] == MATH
    assert [each.path for each in found] == [SETS[name].path for name in MATH]
    assert calls["openai/gsm8k"] == ("main", "test")
    assert calls["Hothan/OlympiadBench"] == ("OE_TO_maths_en_COMP", "train")
    assert calls["HuggingFaceH4/MATH-500"] == (None, "test")


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    def load_dataset(*_: object, **__: object) -> list[Any]:
        raise OSError("offline")

    module = types.ModuleType("datasets")
    vars(module)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    line = "--sets: aime25: math-ai/aime25: .*: offline; aime25=FILE reads a copy of yours"
    with pytest.raises(UserError, match=line):
        set_tasks(CFG, "aime25")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("gsm8", "no set 'gsm8'; the nearest is 'gsm8k'; there are gsm8k, math500, aime24,"),
        ("GSM8K", "no set 'GSM8K'; the nearest is 'gsm8k'"),
        ("", "no set ''; there are gsm8k"),
        ("gsm8k,", "no set ''; there are gsm8k"),
        ("aime24, svamp ,aime24", "aime24 is named twice"),
        ("gsm8k=no/such.jsonl", "gsm8k: 'no/such.jsonl' is no file or folder"),
        ("gsm8k=", "gsm8k: '' is no file or folder"),
    ],
)
def test_wrong_lists_of_sets(sets: str, message: str):
    with pytest.raises(UserError) as error:
        chosen_sets(sets)
    assert str(error.value).startswith("--sets: ") and message in str(error.value)


def test_the_template_is_the_runs():
    table = DataConfig(task="vinejax.tasks.table", path="x", template="Q: {question}\n{level} A:")
    assert template_of(load_task(table)) == "Q: {question}\n{level} A:"
    gsm8k = template_of(load_task(DataConfig(task="vinejax.tasks.gsm8k")))
    assert gsm8k == "[MATH_TASK] Problem:\n{question}\n\nSolution:"


def test_a_column_that_a_set_lacks_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    template = "{level} {subject_name} {1, 2} {answer} \\frac{a}{question}"
    paths = {name: write(tmp_path, name, ROWS[name]) for name in ("math500", "aime25")}
    found = [set_task(CFG, template, name, str(path)) for name, path in paths.items()]
    assert found[0].task.prompt(first(found[0])).startswith("1 {subject_name} {1, 2} {answer} ")
    lines = capsys.readouterr().out.splitlines()
    why = "as text, because no column has this name"
    assert lines == [
        f"warning: math500: the prompts have {{subject_name}} {why}",
        f"warning: aime25: the prompts have {{level}}, {{subject_name}} {why}",
    ]
    set_task(CFG, "{question}=", "aime25", str(paths["aime25"]))
    assert not capsys.readouterr().out


def test_a_task_of_turns_is_refused():
    with refuses("data.task"):
        template_of(load_task(DataConfig(task="vinejax.tasks.doors")))
