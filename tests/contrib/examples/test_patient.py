"""The scripted patient: its answers, the rubric against NumPy, and dialogues that go wrong."""

import itertools

import numpy as np
import pytest

from vinejax.contrib.examples import patient
from vinejax.contrib.examples.patient import (
    DISEASES,
    FINDINGS,
    Patient,
    PatientTask,
    rubric_score,
)
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import load_task
from vinejax.tasks.environment import Environment, EnvRules, EnvStart, MultiTurn


@pytest.fixture(scope="module")
def task() -> PatientTask:
    found = load_task(DataConfig(task=patient.__name__))
    assert isinstance(found, PatientTask) and isinstance(found, MultiTurn)
    return found


def ill_with(disease: str) -> Patient:
    """A patient with this disease at the start of an episode."""
    complaint = next(name for name, diseases in DISEASES.items() if disease in diseases)
    for seed in range(200):
        found = Patient()
        assert found.reset(Problem("p", f"0001 {complaint}", ""), seed) == "\n"
        if found.disease == disease:
            return found
    raise AssertionError(disease)


def earned(disease: str, *lines: str) -> tuple[list[str], float | None]:
    """(the answers, the reward of the diagnosis or None without one) of a dialogue."""
    env, answers, reward = ill_with(disease), [], None
    for line in lines:
        observation = env.step(f"{line}\n")
        assert observation.done == line.startswith("=")
        answers.append(observation.text)
        reward = observation.reward if observation.done else None
    return answers, reward


def test_the_score_is_healthbenchs():
    """The sum of the points of met criteria over the sum of the positive ones, of random rubrics;
    the first is the example of HealthBench's own test."""
    assert rubric_score(
        {"a": 7, "b": 5, "c": 10, "d": -6}, {"a": True, "b": False, "c": True, "d": True}
    ) == pytest.approx(11 / 22)
    rng = np.random.default_rng(0)
    for _ in range(50):
        points = np.append(rng.integers(-10, 11, 6), 4)
        met = rng.random(7) < 0.5
        names = "abcdefg"
        found = rubric_score(
            dict(zip(names, points.tolist(), strict=True)),
            dict(zip(names, met.tolist(), strict=True)),
        )
        assert found == pytest.approx(points @ met / np.maximum(points, 0).sum())


@pytest.mark.parametrize(
    ("disease", "lines", "points", "possible"),
    [
        ("flu", ("fever", "ache", "=flu"), 9, 9),
        ("flu", ("ache", "wheeze", "fever", "=flu"), 9, 9),
        ("flu", ("fever", "=flu"), 7, 9),
        ("flu", ("fever", "=cold"), 2, 9),
        ("flu", ("fever", "fever", "ache", "=flu"), 8, 9),
        ("flu", ("what do you feel", "", "fever", "ache", "=flu"), 9, 9),
        ("asthma", ("=asthma",), 2, 7),
        ("asthma", ("=cold",), -3, 7),
        ("asthma", ("sneeze", "= asthma"), 0, 7),  # not the name of a disease
        ("allergy", ("itch", "spots", "=measles"), 2, 7),
    ],
)
def test_the_rubric_of_a_dialogue(disease: str, lines: tuple[str, ...], points: int, possible: int):
    answers, reward = earned(disease, *lines)
    assert reward == pytest.approx(points / possible)
    own = next(x[disease] for x in DISEASES.values() if disease in x)
    for line, answer in zip(lines[:-1], answers, strict=False):
        known = line in set().union(*FINDINGS.values())
        assert answer == (("yes\n" if line in own else "no\n") if known else "what\n")


def test_findings_of_another_complaint_are_not_understood():
    assert earned("flu", "itch") == (["what\n"], None)
    assert ill_with("flu").asked == ()


def test_only_the_full_rubric_counts_as_correct():
    """Over all dialogues of up to three different questions, and all diagnoses."""
    asks = [q for n in range(4) for q in itertools.permutations(FINDINGS["cough"], n)]
    for questions, named in itertools.product(asks, DISEASES["cough"]):
        _, reward = earned("flu", *questions, f"={named}")
        assert reward is not None
        assert (reward >= 1.0) == (named == "flu" and {"fever", "ache"} <= set(questions))


def test_a_copy_goes_on_by_itself_and_a_seed_repeats(task: PatientTask):
    problem = task.load("train")[0]
    start = EnvStart(problem, 5)
    first, second = (Environment(task, start, EnvRules(timeout_s=5)) for _ in range(2))
    assert first.reset() == second.reset()
    finding = FINDINGS[problem.question.split()[1]][0]
    twin = first.fork()
    assert first.step(f"{finding}\n") == twin.step(f"{finding}\n") == second.step(f"{finding}\n")
    blind, asked = twin.fork(), first
    twin.step(f"{finding}\n")
    ends = [env.step("=nothing\n").reward for env in (asked, blind, twin)]
    assert ends[0] == ends[1] > ends[2]


def test_problems_and_demonstrations(task: PatientTask):
    splits = [task.load(split) for split in ("train", "validation", "test")]
    assert sum(map(len, splits)) == patient.PATIENTS and min(map(len, splits)) > 100
    texts = [problem.question + task.solution(problem) for problem in splits[1]]
    named = {text.rpartition("=")[2].strip() for text in texts}
    assert named == {disease for diseases in DISEASES.values() for disease in diseases}
    assert all(len(text.splitlines()) == 6 <= task.max_turns for text in texts)
    tokenizer = task.tokenizer()
    assert tokenizer.unk_token_id not in tokenizer.encode("".join(texts))
