"""Reward functions: calls, weights, metrics and errors."""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.core.errors import UserError
from vinejax.core.settings import GraderConfig, RewardConfig
from vinejax.core.types import Problem
from vinejax.methods.known import find_method
from vinejax.session.metrics import part_means
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.gsm8k import GSM8K
from vinejax.tasks.rewards import Chat, Reward, TrainerState, find_rewards
from vinejax.training.loop import train
from vinejax.training.startup import prompted_problems

COLUMNS = {"level": 3, "extra_info": {"index": 7}, "data_source": "mine/set", "answer": "column"}
PROBLEMS = [Problem("train/0", "1+1", "2", COLUMNS), Problem("train/1", "2+2", "4", COLUMNS)]
ITEMS = [(PROBLEMS[0], "it is 2"), (PROBLEMS[1], "no")]

SOURCE = '''
import asyncio
import numpy
SEEN, WAITING = [], []


def accuracy(response, answer):
    return float(answer in response)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Written for verl."""
    SEEN.append((data_source, ground_truth, extra_info["index"]))
    return {"score": float(ground_truth in solution_str), "acc": 1.0}


def short(prompts, completions, level, **kwargs):
    """Written for TRL."""
    SEEN.append((tuple(prompts), tuple(level), tuple(sorted(kwargs))))
    return [1.0 / len(text) for text in completions]


def brief(completions):
    return [1.0 / (1 + len(text)) for text in completions]


def as_messages(prompts, completions, **kwargs):
    """As TRL's functions for conversations read them."""
    asked = [prompt[-1]["content"] for prompt in prompts]
    first = [prompt[0]["role"] for prompt in prompts]
    said = [completion[0]["content"] for completion in completions]
    assert all(completion[-1]["role"] == "assistant" for completion in completions)
    SEEN.append((asked, first, said))
    return [float(len(text)) for text in said]


def as_either(completions, **kwargs):
    """As those that take both kinds apart."""
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    return [float(text[0] == "i" and text.startswith("it")) for text in texts]


async def waited(completions, **kwargs):
    await asyncio.sleep(0)
    return [1.0 if len(text) > 2 else None for text in completions]


async def judged(solution_str, ground_truth):
    WAITING.append(solution_str)
    while len(WAITING) < 2:  # the other call has begun, too
        await asyncio.sleep(0)
    return {"score": float(ground_truth in solution_str)}


def judged_if_long(response):
    return asyncio.sleep(0, 1.0) if len(response) > 2 else None


async def failing_later(response):
    await asyncio.sleep(0)
    return 1 / (len(response) - 2)


def array(completions):
    return numpy.array([len(text) for text in completions])


def made_lazily(completions):
    return (float(len(text)) for text in completions)


def failing_lazily(completions):
    return (1 / (len(text) - 2) for text in completions)


def by_ids(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def telling(completions, log_metric, log_extra, trainer_state, **kwargs):
    for text in completions:
        log_metric("letters", len(text))
    log_extra("text", completions)
    return [float(trainer_state.global_step < trainer_state.max_steps)] * len(completions)


def undecided(completions):
    return [None, 0.25]


def one_number(completions):
    return 1.0


def one_text(completions):
    return "ab"


def hoping(completions, hints, **kwargs):
    return [0.0 for _ in completions]


def truthful(problem, response):
    return problem.id == "train/0"


def mean(response):
    return 0.0


def hopeful(response, hints):
    return 0.0


def failing(response):
    return 1 / (len(response) - 2)


def leaving(response):
    exec("exit()")  # as a program that the model wrote may do


def one_too_few(completions):
    return [0.0] * (len(completions) - 1)


def no_score(response):
    return {"acc": 1.0}


def text(response):
    return "good"


def number_as_text(response):
    return "1"


def with_more(response):
    return 1.0, {}


def not_finite(completions):
    return [1, float("nan")]


def by_name(completions):
    return {text: 1.0 for text in completions}


def telling_texts(completions, log_metric):
    log_metric("a", "1")
    return [0.0 for _ in completions]
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_rewards.py").write_text(SOURCE)
    (tmp_path / "broken_rewards.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    from vinejax.core.plugins import find_function

    find_function.cache_clear()
    import my_rewards  # pyright: ignore[reportMissingImports]

    return my_rewards


def graded(*names: str, weights: tuple[float, ...] = (), task: Any = None) -> GradedTask:
    paths = tuple(name if name == "task" else f"my_rewards.{name}" for name in names)
    return GradedTask(
        task or GSM8K("x"), GraderConfig(), reward=RewardConfig(functions=paths, weights=weights)
    )


def test_functions_of_three_kinds_are_called_by_name_weighted_and_added(module: Any):
    rewards = graded("accuracy", "compute_score", "short", "truthful", weights=(1, 0.5, 2, 0.25))
    first, second = rewards.grade(ITEMS)
    assert first.parts == {"accuracy": 1.0, "compute_score": 1.0, "short": 1 / 7, "truthful": 1.0}
    assert first.total == pytest.approx(1 + 0.5 + 2 / 7 + 0.25)
    assert second == Reward(1.0, {"accuracy": 0, "compute_score": 0, "short": 0.5, "truthful": 0})
    assert rewards(ITEMS) == [first.total, second.total]
    verl, trl = module.SEEN[0], module.SEEN[2]
    assert verl == ("mine/set", "2", 7)
    prompts = tuple(GSM8K("x").prompt(problem) for problem in PROBLEMS)
    others = ("completion_ids", "ground_truth", "log_extra", "log_metric", "trainer_state")
    others += ("answer", "data_source", "extra_info", "question")
    assert trl == (prompts, (3, 3), tuple(sorted(others)))


def test_weights_whose_sum_is_1_give_a_right_response_1(module: Any):
    """Added as float64 they are 0.9999999999999999, and 1 and more counts as correct."""
    for name in ("first", "second", "third"):
        setattr(module, name, lambda response: 1.0)
    rewards = graded("first", "second", "third", weights=(0.7, 0.2, 0.1))
    assert rewards([(PROBLEMS[0], "2")]) == [1.0]


WRAPPERS = """
import functools


def plain(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Wrapped:
    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def twice(function):
    return plain(Wrapped(function))
"""
FUNCTIONS = {  # each gives [1, 0] for ITEMS
    "of_trl": "completions, **kwargs: [float('is' in x) for x in completions]",
    "of_trl_with_more": "prompts, completions, answer, level, **kwargs: "
    "[float(a in c) for a, c in zip(answer, completions)]",
    "of_verl": "data_source, solution_str, ground_truth, extra_info=None: "
    "{'score': float(ground_truth in solution_str)}",
    "of_verl_with_more": "solution_str, ground_truth, **kwargs: "
    "float(ground_truth in solution_str and kwargs['level'] == 3)",
    "ours": "response, answer: float(answer in response)",
}


@pytest.mark.parametrize("wrapper", ["plain", "Wrapped", "twice", "functools.partial"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrapper_without_a_signature_is_called_as_what_it_wraps(
    wrapper: str, name: str, module: Any
):
    exec(f"{WRAPPERS}\nwrapped = {wrapper}(lambda {FUNCTIONS[name]})", module.__dict__)
    assert graded("wrapped")(ITEMS) == [1.0, 0.0]


@pytest.mark.parametrize(
    "function",
    [
        "**kwargs: [float('is' in x) for x in kwargs['completions']]",
        "*args, **kwargs: [float(not args and x > 0) for x in map(len, kwargs['prompts'])]",
        "**kwargs: float('is' in kwargs['response'])",
        "**kwargs: float('is' in kwargs['solution_str'])",
        "answer, **kwargs: [float(a in c) for a, c in zip(answer, kwargs['completions'])]",
        "answer, **kwargs: float(answer in kwargs['response'])",
        "**given: helper(**given)",
        # A column of TRL's data may be called as an argument of ours.
        "**kwargs: [float('is' in x and kwargs.get('problem') is None) "
        "for x in kwargs['completions']]",
    ],
)
def test_arguments_without_names_are_those_that_the_function_reads(function: str, module: Any):
    code = "def helper(completions, **kwargs): return [float('is' in x) for x in completions]"
    exec(f"{code}\nreading = lambda {function}", module.__dict__)
    expected = [1.0, 1.0] if "prompts" in function else [1.0, 0.0]
    assert graded("reading")(ITEMS) == expected


@pytest.mark.parametrize(
    ("function", "in_chats", "in_texts"),
    [
        ("float(len(c))", 1.0, 7.0),
        ("float(len(list(c)))", 1.0, 7.0),
        ("float(isinstance(c, list))", 1.0, 0.0),
        ("float(isinstance(c, str))", 0.0, 1.0),
        ("float(len(c[0]['content']))", 7.0, 7.0),
        ("float(c[-1].get('role') == 'assistant')", 1.0, 1.0),
        ("float('is' in c) + float('IS' in c)", 1.0, 1.0),
        ("float(len(' '.join(m['content'] for m in c if isinstance(m, dict))))", 7.0, 0.0),
        ("float(len([*p, *c]) == 3)", 1.0, 0.0),
    ],
)
def test_completions_are_messages_if_the_questions_are(
    function: str, in_chats: float, in_texts: float, module: Any
):
    source = (
        f"read = lambda prompts, completions: [{function} for p, c in zip(prompts, completions)]"
    )
    exec(source, module.__dict__)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1+1\n"}]
    question = Problem("train/0", "1+1", "2", {"prompt": chat}, (("system", "Be brief."),))
    assert graded("read")([(question, "it is 2")]) == [in_chats]
    # A chat in another column, or the system message of a run, makes no conversation.
    for columns in ({"history": chat[:1]}, {"history": [{"role": "user", "content": "3"}]}, {}):
        text = dataclasses.replace(question, columns=columns)
        assert graded("read")([(text, "it is 2")]) == [in_texts]


def test_a_reward_in_one_file_is_named_by_the_file(tmp_path: Path):
    files = {
        "brief": "def brief(response): return 1.0\ndef other(response): return 2.0",
        "named_reward": "def reward(response): return 3.0\ndef other(response): return 2.0",
        "of_verl": "def compute_score(solution_str): return 4.0\ndef other(response): return 2.0",
        "alone": "import re\nfrom json import dumps\ndef it(response): return 5.0\n_x = re",
    }
    for name, code in files.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        sys.modules.pop(name, None)
    for path, expected in (
        ("brief", 1.0),
        ("brief.py", 1.0),
        ("brief.other", 2.0),
        ("named_reward", 3.0),
        ("of_verl", 4.0),
        ("alone", 5.0),
    ):
        (function,) = find_rewards(RewardConfig(functions=(path,)))
        assert function.name == path.removesuffix(".py").rpartition(".")[2]
        assert function.rewards(ITEMS[:1], "task", lambda problem: "") == [expected]
    (tmp_path / "two_rewards.py").write_text("def a(response): ...\ndef b(response): ...")
    (tmp_path / "no_rewards.py").write_text("x = 1")
    made = "from functools import partial\nit = partial(int)\nfrom json import dumps"
    (tmp_path / "made_rewards.py").write_text(made)
    many = "\n".join(f"def f{i}(response): ..." for i in range(9))
    (tmp_path / "many_rewards.py").write_text(many)
    (tmp_path / "leaving_rewards.py").write_text("import sys\nsys.exit(0)")
    (tmp_path / "rewards_folder").mkdir()
    for path, words in (
        (
            "two_rewards",
            "2 functions; name one by its dotted path: 'two_rewards.a', 'two_rewards.b'",
        ),
        ("no_rewards", "no_rewards.py has no function of its own$"),
        (
            "made_rewards",
            "made_rewards.py has no .* own; .*: 'made_rewards.it', 'made_rewards.dumps'",
        ),
        ("many_rewards", "has 9 functions; .*: 'many_rewards.f0', .*'many_rewards.f4' and 4 more$"),
        ("rewards_folder", "the folder .*rewards_folder has no function of its own$"),
        ("broken_rewards", "broken_rewards.py:1: ModuleNotFoundError"),
        ("leaving_rewards", r"leaving_rewards.py:2: ImportError: it calls exit\(0\); put that"),
        ("json", "no such function"),  # a module of Python's own is nobody's reward
        ("nowhere.brief", "no module 'nowhere' in the current folder or on PYTHONPATH; name one"),
        ("./brief.py", "no module './brief' in the current folder or on PYTHONPATH; name one"),
        ("nowhere", "no module 'nowhere' in the current folder or on PYTHONPATH; name one"),
        ("brief.long", "brief.py has nothing called 'long'; name one"),
    ):
        with pytest.raises(UserError, match=words):
            find_rewards(RewardConfig(functions=(path,)))


def test_a_text_can_be_read_as_trls_messages(module: Any):
    problem = dataclasses.replace(PROBLEMS[0], context=(("system", "Be brief."),))
    items = [(problem, "it is 2"), (PROBLEMS[1], "")]
    assert graded("as_messages", "as_either").grade(items[:1])[0].total == 8.0
    assert graded("as_messages")(items) == [7.0, 0.0]
    prompts = [GSM8K("x").prompt(problem) for problem, _ in items]
    assert module.SEEN[-1] == (prompts, ["system", "user"], ["it is 2", ""])


def test_a_chat_is_its_text():
    chat = Chat.of("ab{}", "assistant")
    assert chat == "ab{}" and isinstance(chat, str) and hash(chat) == hash("ab{}")
    assert (chat[0], chat[1], chat[-1], chat[1:3], len(chat)) == ("a", "b", "}", "b{", 4)
    assert (chat[0]["role"], chat[-1]["content"]) == ("assistant", "ab{}")
    assert (chat[0].get("content"), chat[0].get("tool_calls")) == ("ab{}", None)
    with pytest.raises(IndexError):
        chat[4]
    with pytest.raises(TypeError):
        chat[1]["content"]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("waited", [1.0, 0.0]),
        ("judged", [1.0, 0.0]),
        ("judged_if_long", [1.0, 0.0]),
        ("array", [7.0, 2.0]),
        ("made_lazily", [7.0, 2.0]),
        ("by_ids", [3.0, 1.0]),
    ],
)
def test_what_a_function_may_be_and_give(name: str, expected: list[float]):
    for _ in range(2):  # async functions run in the same event loop again
        rewards = graded(name).grade(ITEMS, [[5, 6, 7], [8]])
        assert [reward.total for reward in rewards] == expected


@pytest.mark.parametrize(("name", "expected"), [("waited", [1.0, 0.0]), ("judged", [1.0, 0.0])])
def test_async_functions_run_beside_the_event_loop_of_a_notebook(name: str, expected: list[float]):
    async def cell() -> list[float]:
        return graded(name)(ITEMS)

    assert asyncio.run(cell()) == expected == graded(name)(ITEMS)


def test_a_response_without_ids_counts_its_bytes():
    assert graded("by_ids")([(PROBLEMS[0], "\u00e9"), (PROBLEMS[0], "")]) == [2.0, 0.0]


def test_what_a_function_tells_is_a_metric_and_it_learns_of_the_run():
    rewards = graded("telling", "accuracy")
    first, second = rewards.grade(ITEMS)
    parts = {"telling": 0.0, "accuracy": 1.0, "telling/letters": 4.5}
    assert (first.parts, first.total) == (parts, 1.0)
    rewards.state = TrainerState(3, 10)
    second = rewards.grade(ITEMS)[1]
    assert second == Reward(1.0, parts | {"telling": 1.0, "accuracy": 0.0})
    assert part_means([first.parts, None, second.parts])["reward/telling/letters"] == 4.5


def test_a_response_that_no_function_judges_is_named_once(capsys: pytest.CaptureFixture[str]):
    rewards = graded("undecided")
    for _ in range(2):
        first, second = rewards.grade(ITEMS)
        assert (first, second) == (Reward(0.0, {}), Reward(0.25, {"undecided": 0.25}))
    assert capsys.readouterr().out.count("problem train/0: no reward function judged") == 1
    assert part_means([first.parts, second.parts]) == {"reward/undecided": 0.25}
    both = graded("undecided", "accuracy").grade(ITEMS)
    assert [reward.total for reward in both] == [1.0, 0.25]
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer", ["2", "Add.\n#### 2", r"So $\boxed{2}$.", r"\boxed{1}, no:\n#### 2 "]
)
def test_the_ground_truth_is_the_answer_without_its_solution(answer: str, module: Any):
    problem = Problem("train/0", "1+1", answer, {"extra_info": {"index": 0}})
    graded("compute_score")([(problem, "2")])
    assert module.SEEN[-1][1] == "2"
    module.in_batches = lambda completions, ground_truth: [float(x) for x in ground_truth]
    assert graded("in_batches")([(problem, "")]) == [2.0]


def test_verls_functions_get_the_tasks_name_and_an_empty_dict_without_such_columns(module: Any):
    module.given = lambda data_source, extra_info: data_source == "gsm8k" and extra_info == {}
    assert graded("given")([(Problem("train/0", "1+1", "2", {"extra_info": None}), "")]) == [1.0]


def test_the_problems_answer_goes_before_a_column_of_that_name(module: Any):
    assert graded("accuracy")([(PROBLEMS[0], "2, not the column")]) == [1.0]
    module.together = lambda completions, answer, ground_truth: [answer == ground_truth == ["2"]]
    numbers = Problem("train/0", "1+1", "2", {"answer": 3, "ground_truth": 3})
    assert graded("together")([(numbers, "")]) == [1.0]


@pytest.mark.parametrize("number, answer", [(2, "2"), (2.0, "2"), (0.5, "0.5")])
def test_a_column_of_numbers_gives_numbers_in_lists(number: float, answer: str, module: Any):
    module.alone = lambda response, answer, ground_truth: len(answer) == len(ground_truth) > 0
    module.together = lambda completions, answer, ground_truth: [answer == ground_truth == [number]]
    columns = {"answer": number, "ground_truth": number}
    assert graded("alone", "together")([(Problem("train/0", "1+1", answer, columns), "")]) == [2.0]


def test_the_tasks_own_reward_is_one_of_them_or_is_not_asked():
    items = [(Problem("train/0", "", "So many.\n#### 3"), "\n#### 3")]
    with graded("task", "accuracy", weights=(1.0, 0.5)) as both:
        assert both.grade(items) == [Reward(1.0, {"task": 1.0, "accuracy": 0.0})]
        assert both.stats.pairs == 1
        assert both.unreadable([Problem("train/1", "", r"#### \foo{")]) != {}
    with graded("accuracy") as alone:
        alone(items)
        assert alone.stats.pairs == 0
        # The function may need a gold that the grader cannot read.
        assert alone.unreadable([Problem("train/1", "", r"#### \foo{")]) == {}
    with GradedTask(GSM8K("x"), GraderConfig(), reward=RewardConfig()) as plain:
        assert plain.grade(items) == [Reward(1.0, None)]


@pytest.mark.parametrize(
    "functions, weights, field",
    [
        (("my_rewards.accurate",), (), "reward.functions"),
        (("no_module.f",), (), "reward.functions"),
        (("accuracy",), (), "reward.functions"),
        (("broken_rewards.f",), (), "reward.functions"),
        (("my_rewards.mean",), (), "reward.functions"),  # a metric of ours has its name
        (("my_rewards.text",) * 2, (), "reward.functions"),
        (("task",), (1.0, 2.0), "reward.weights"),
        ((), (1.0,), "reward.weights"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_with_the_configuration(functions, weights, field):
    cfg = cases.config(reward={"functions": functions, "weights": weights})
    with refuses(field):
        check_config(cfg)
    with refuses(field):
        find_rewards(cfg.reward)


@pytest.mark.parametrize(
    "name, message",
    [
        ("failing", r"my_rewards\.failing failed, problem train/1: .*my_rewards\.py:\d+: ZeroDiv"),
        ("leaving", r"my_rewards\.leaving failed, problem train/0: .*:\d+: SystemExit"),
        ("one_too_few", r"my_rewards\.one_too_few gave 1 rewards for 2 completions"),
        ("one_number", r"my_rewards\.one_number gave 1\.0 as rewards for 2 completions"),
        ("one_text", r"my_rewards\.one_text gave 'ab' as rewards for 2 completions"),
        ("failing_later", r"my_rewards\.failing_later failed, problem train/1: .*:\d+: ZeroDiv"),
        ("failing_lazily", r"my_rewards\.failing_lazily failed: .*my_rewards\.py:\d+: ZeroDiv"),
        ("no_score", r"my_rewards\.no_score gave \{'acc': 1\.0\}, a dict without 'score'"),
        ("text", r"my_rewards\.text gave 'good' for problem train/0; needed is a finite number"),
        ("number_as_text", r"my_rewards\.number_as_text gave '1' for problem train/0; needed is"),
        ("with_more", r"my_rewards\.with_more gave \(1\.0, \{\}\) for problem train/0; needed"),
        ("not_finite", r"not_finite gave nan for problem train/1; .*my_rewards\.py:\d+\)$"),
        ("by_name", r"my_rewards\.by_name gave \{.*\} as rewards for 2 completions; .*\.py:\d+\)$"),
        (
            "telling_texts",
            r"telling_texts failed: .*my_rewards\.py:\d+: ValueError: log_metric\('a'",
        ),
    ],
)
def test_what_a_function_may_get_wrong_is_one_line(name: str, message: str):
    with pytest.raises(UserError, match=message) as error:
        graded(name)(ITEMS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('first\\n  second')", "ValueError: first second$"),
        (
            "import numpy; return numpy.zeros((2, 2))",
            r"gave array\(\[\[0., 0.\], \[0., 0.\]\]\) for",
        ),
    ],
)
def test_errors_and_results_of_several_lines_are_shown_in_one(body: str, words: str, module: Any):
    exec(f"def several(response): {body}", module.__dict__)
    with pytest.raises(UserError, match=words) as error:
        graded("several")(ITEMS)
    assert "\n" not in str(error.value)


def test_a_failure_names_the_file_of_a_function_that_another_file_imports(tmp_path: Path):
    (tmp_path / "all_rewards.py").write_text("from my_rewards import failing")
    (function,) = find_rewards(RewardConfig(functions=("all_rewards.failing",)))
    with pytest.raises(UserError, match=r"train/1: \S+/my_rewards\.py:\d+: ZeroDivisionError"):
        function.rewards(ITEMS, "task", lambda problem: "")


def test_a_parameter_that_nothing_gives_is_refused_before_anything_is_sampled():
    cfg = cases.config(reward={"functions": ("my_rewards.hopeful",)})
    for name in ("hopeful", "hoping"):
        rewards = graded(name, task=cases.FewProblems())
        with pytest.raises(
            UserError, match=rf"my_rewards\.{name} takes 'hints', which is none of "
        ):
            prompted_problems(cfg, find_method(cfg.method), rewards, cases.tokenizer(), ("train",))


@pytest.mark.slow
def test_each_function_is_a_metric_of_its_own_and_stands_with_its_solution(tmp_path: Path):
    functions = ("task", "my_rewards.accuracy", "my_rewards.brief")
    cfg = cases.config(
        iterations=1, reward={"functions": functions, "weights": (1.0, 0.5, 0.0), "truncated": -1.0}
    )
    workdir = train(cfg, tmp_path / "run")
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    (record,) = (r for r in records if r["stage"] == "train")
    lines = (workdir / "episodes" / "0.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    finished = [row for row in rows if row["finished"]]
    assert finished and len(finished) < len(rows) == 12
    for row in rows:
        if not row["finished"]:
            assert row["reward"] == -1.0 and "rewards" not in row
            continue
        assert list(row["rewards"]) == ["task", "accuracy", "brief"]
        assert row["reward"] == pytest.approx(
            row["rewards"]["task"] + 0.5 * row["rewards"]["accuracy"], abs=1e-6
        )
    for name in ("task", "accuracy", "brief"):
        mean = sum(row["rewards"][name] for row in finished) / len(finished)
        assert record[f"reward/{name}"] == pytest.approx(mean)
    for split in ("eval", "test"):
        (first, *_) = (r for r in records if r["stage"] == split)
        assert 0 <= first[f"{split}/reward/task"] <= 1 and f"{split}/reward/brief" in first
