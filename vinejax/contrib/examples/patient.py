"""Baichuan-M2: a scripted patient that answers questions, and a rubric that grades the dialogue.

    0042 cough          the prompt: a number, and what the patient complains of
    fever               the policy asks for a finding; every line is a turn
    no                  the patient
    wheeze
    yes
    =asthma             a diagnosis ends the dialogue, and the rubric grades it

    R = Σ_i w_i·[criterion i is met] / Σ of the positive w_i

The criteria: the right diagnosis (5), each finding that the diagnosis rests on asked for (2), a
finding asked for twice (-1), a diagnosis before any question (-3). R is 1 at best, and may be
negative. Any other line is answered by "what" and takes a turn.

The number and the seed determine the disease, which has the findings that its diagnosis rests on.
Demonstrations ask for two findings and name a disease, all at random.

Source: https://arxiv.org/abs/2509.02208, patient simulator and clinical rubrics; R is HealthBench's
rule, openai/simple-evals at 9e2fafd, `healthbench_eval.py`, `calculate_score`.

Departs: the patient and the rubric are a table; in the paper language models play the patient,
write the rubric and judge its criteria.
"""

import copy
import dataclasses
from collections.abc import Mapping

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import Split
from vinejax.tasks.environment import Observation, TurnTask
from vinejax.tasks.generated import CharacterTask, rng_of, split_of

# {complaint: {disease: the findings that it rests on}}
DISEASES = {
    "cough": {"flu": ("fever", "ache"), "asthma": ("wheeze",), "cold": ("sneeze",)},
    "rash": {"measles": ("fever", "spots"), "allergy": ("itch",), "burn": ("blister",)},
}
FINDINGS = {x: sorted({*sum(own.values(), ())}) for x, own in DISEASES.items()}
PATIENTS = 2000
RIGHT, ASKED, AGAIN, BLIND = 5.0, 2.0, -1.0, -3.0  # points of the criteria


def rubric_score(points: Mapping[str, float], met: Mapping[str, bool]) -> float:
    """The points of the criteria that are met, over the sum of the positive points."""
    possible = sum(x for x in points.values() if x > 0)
    return sum(x for name, x in points.items() if met[name]) / possible


@dataclasses.dataclass
class Patient:
    """An episode; see the module's docstring."""

    complaint: str = ""
    disease: str = ""
    asked: tuple[str, ...] = ()  # findings, in the order of the questions

    def reset(self, problem: Problem, seed: int) -> str:
        self.complaint = problem.question.split()[1]
        rng = rng_of(f"patient {problem.question} {seed}")
        self.disease = str(rng.choice(list(DISEASES[self.complaint])))
        return "\n"

    def step(self, action: str) -> Observation:
        said = action.strip()
        if said.startswith("="):
            return Observation("", self.score(said[1:]), done=True)
        if said not in FINDINGS[self.complaint]:
            return Observation("what\n")
        self.asked = (*self.asked, said)
        return Observation("yes\n" if said in DISEASES[self.complaint][self.disease] else "no\n")

    def fork(self) -> "Patient":
        return copy.copy(self)

    def score(self, diagnosis: str) -> float:
        """R of a dialogue that ends with this diagnosis."""
        rests_on = DISEASES[self.complaint][self.disease]
        points = {"right": RIGHT, "again": AGAIN, "blind": BLIND}
        met = {
            "right": diagnosis == self.disease,
            "again": len(set(self.asked)) < len(self.asked),
            "blind": not self.asked,
        }
        asked = {f"asked for {x}": x in self.asked for x in rests_on}
        return rubric_score(points | dict.fromkeys(asked, ASKED), met | asked)


class PatientTask(TurnTask, CharacterTask):
    """The task that the module's docstring describes; `tasks/base.py` documents the methods."""

    name = "patient"
    max_turns = 6
    ends_turn = ("\n",)

    def env(self) -> Patient:
        return Patient()

    def load(self, split: Split) -> list[Problem]:
        complaints = list(DISEASES)
        patients = (f"{i:04} {complaints[i % len(complaints)]}" for i in range(PATIENTS))
        return [Problem(f"{split}/{x[:4]}", x, "") for x in patients if split_of(x) == split]

    def prompt(self, problem: Problem) -> str:
        return problem.question

    def solution(self, problem: Problem) -> str:
        """A demonstration: the patient's first text, then questions, answers and a diagnosis."""
        rng, patient = rng_of(f"doctor {problem.question}"), Patient()
        text = patient.reset(problem, int(rng.integers(2**32)))
        for finding in map(str, rng.choice(FINDINGS[patient.complaint], 2)):
            text += f"{finding}\n{patient.step(finding).text}"
        return f"{text}={rng.choice(list(DISEASES[patient.complaint]))}\n"


def make(data: DataConfig) -> PatientTask:
    return PatientTask()
