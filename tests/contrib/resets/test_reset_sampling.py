"""Solutions that begin after the first tokens of a known solution, with scripted policies."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.contrib.resets import fill_values, sample_episodes, sampler
from helpers.refusals import refuses
from helpers.vine_cases import MAX_TOKENS, PROMPT, FakeEngine, credit_by_step, rewards_of

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.contrib.resets.reset_sampler import ResetSampler, known_solutions
from vinejax.contrib.resets.settings import ResetConfig
from vinejax.core.errors import DataError
from vinejax.core.settings import Config, SampleConfig
from vinejax.core.types import Episode, Problem
from vinejax.credit.assign import group_numbers
from vinejax.engine.branches import Branch
from vinejax.learner.batch import collate, step_layout
from vinejax.methods.known import find_method
from vinejax.rollout.sampler import Start
from vinejax.session.metrics import episode_metrics
from vinejax.tasks.base import Split
from vinejax.tasks.doors import DoorsTask
from vinejax.training.startup import prompted_problems

WORKED = "\n2+3=5\n5-1=4\n#### 4"
MANY = 10**6  # groups


class Task(cases.FewProblems):
    """A task whose problems have one worked solution; texts that end with its answer are right."""

    def solution(self, problem: Problem) -> str:
        return WORKED

    def reward(self, problem: Problem, response: str) -> float:
        return float(response.endswith("#### 4"))


class Policy(FakeEngine):
    """A policy that goes on by a rule of (response so far, branch, number of the branch there)."""

    def __init__(self, rule: Callable[[str, Branch, int], str]):
        super().__init__(self._written)
        self.rule = rule
        self.calls: list[list[tuple[int, ...]]] = []  # the trunks of each call
        self.seeds: list[int] = []  # of all branches

    def stream(self, params, trunks, branches, max_tokens=None, scored=False):
        self.calls.append([tuple(trunk) for trunk in trunks])
        self.seeds += [branch.seed for branch in branches]
        return super().stream(params, trunks, branches, max_tokens, scored)

    def _written(self, branch: Branch, k: int) -> tuple[str, str]:
        given = self.trunks[branch.trunk][len(PROMPT) : branch.position]
        assert branch.response == len(PROMPT) or branch.response is None and not given
        return self.rule(self.tokenizer.decode(given), branch, k), "eos"


def by_seed(so_far: str, branch: Branch, k: int) -> str:
    """A line, then a right or wrong answer, both by the branch's random number."""
    answer = 4 if branch.seed % 2 else 5
    return f"\n{branch.seed % 7}+1=2\n#### {answer}"


K = {"k": 9, "max_states": None}  # values as the default configuration has them


def problems_of(*names: str) -> list[tuple[Problem, list[int]]]:
    return [(Problem(name, "2+3-1", "4"), PROMPT) for name in names]


def config(per_prompt: int = 4, method: str = "grpo", **reset: Any) -> Config:
    rollout, sample = {"per_prompt": per_prompt}, {"max_tokens": MAX_TOKENS}
    values = {"max_states": None} if method == "vineppo" else K
    return cases.config(method=method, reset=reset, rollout=rollout, sample=sample, values=values)


def sample(
    policy: Policy, problems: Any, cfg: Config, iteration: int = 0, most: int = MANY
) -> list[Episode]:
    return sample_episodes(policy, {}, rewards_of(Task()), problems, cfg, iteration, most)


def groups_of(episodes: list[Episode]) -> dict[tuple[str, int], list[Episode]]:
    """The episodes by problem and number of given tokens."""
    groups: dict[tuple[str, int], list[Episode]] = {}
    for one in episodes:
        groups.setdefault((one.problem_id, one.given), []).append(one)
    return groups


def check(one: Episode, source: list[int]) -> None:
    """Asserts what holds for every solution that begins like `source`."""
    assert one.response[: one.given] == source[: one.given]
    assert one.given < len(source) and len(one.response) > one.given
    assert one.logprobs[: one.given] == [0.0] * one.given
    assert all(x == -1.0 for x in one.logprobs[one.given :])
    assert len(one.logprobs) == len(one.response) == one.step_ends[-1]
    assert all(end > one.given for end in one.step_ends)
    text = cases.tokenizer().decode(one.response, skip_special_tokens=True)
    assert one.text == text and one.reward == float(text.endswith("#### 4"))


# --- gold


def test_gold_prefixes_are_of_every_length_and_shared_by_a_group():
    cfg, problems = config(source="gold"), problems_of(*"abcdef")
    gold = [*cases.encode(WORKED), cases.EOS]
    lengths = set()
    for iteration in range(20):
        policy = Policy(by_seed)
        episodes = sample(policy, problems, cfg, iteration)
        groups = groups_of(episodes)
        assert [e.problem_id for e in episodes] == [name for name in "abcdef" for _ in range(4)]
        assert len(groups) == len(set(group_numbers(episodes))) == 6 and len(policy.calls) == 1
        budgets = [MAX_TOKENS - e.given for e in episodes]
        assert policy.budgets == budgets
        for one in episodes:
            check(one, gold)
            lengths.add(one.given)
    assert lengths == set(range(len(gold)))


def test_a_share_of_the_problems_begins_within_the_gold_solution():
    problems = problems_of(*(f"p{i}" for i in range(200)))
    plain = sample_episodes(Policy(by_seed), {}, rewards_of(Task()), problems, config(2), 2)
    for share in (0.0, 0.25, 1.0):
        cfg = config(2, source="gold", share=share)
        episodes = sample(Policy(by_seed), problems, cfg, 2)
        if share == 0:
            assert episodes == plain
        resets = sum(e.given > 0 for e in episodes) / len(episodes)
        length = len(cases.encode(WORKED)) + 1
        assert abs(resets - share * (1 - 1 / length)) < 0.1
        # Problems that begin at their prompt have the solutions of a run without resets.
        for one, other in zip(episodes, plain, strict=True):
            assert one.given > 0 or one == other


def test_a_gold_solution_ends_where_the_policy_would_have_to_stop():
    engine, (problem, prompt) = Policy(by_seed), problems_of("a")[0]
    gold = [*cases.encode(WORKED), cases.EOS]

    def gold_response(prompt: list[int], most: int = MAX_TOKENS) -> list[int]:
        cfg = cases.config(method="grpo", values=K, sample={"max_tokens": most})
        resets = ResetSampler(engine, rewards_of(Task()), cfg, 0)
        return resets.gold_response(problem, prompt)

    assert gold_response(prompt) == gold
    assert gold_response(prompt, 5) == gold[:5]
    long = [*prompt, *[5] * 50]  # of a context of 64
    assert gold_response(long) == gold[: 64 - len(long)]
    engine.sample_config = SampleConfig(stop=("=4", "\n5"))
    cut = gold_response(prompt)
    assert cases.tokenizer().decode(cut) == "\n2+3=5\n5"
    engine.eos_ids = (cases.EOS, gold[3])
    assert gold_response(prompt) == gold[:4]


def test_an_environment_has_no_resets():
    with refuses("reset.source"):
        ResetConfig(source="gold").check_task(DoorsTask(), [])


def test_a_missing_solution_of_any_problem_is_found_before_the_run():
    class Partly(Task):
        def solution(self, problem: Problem) -> str:
            if problem.id == "q":
                raise DataError("data q", None, "column 'worked' has no value")
            return WORKED

    problems = [Problem(name, "2+3-1=", "#### 4") for name in "pq"]
    ResetConfig(source="gold").check_task(Partly(), problems[:1])
    ResetConfig(source="solved").check_task(Partly(), problems)
    with pytest.raises(DataError, match="data q: column 'worked' has no value"):
        ResetConfig(source="gold").check_task(Partly(), problems)


def test_a_task_without_worked_solutions_is_refused():
    class Unworked(Task):
        def solution(self, problem: Problem) -> str:
            raise NotImplementedError

    class Empty(Task):
        def solution(self, problem: Problem) -> str:
            return " "

    def load(cfg: Config, task: Task, split: Split) -> None:
        graded, tokenizer = rewards_of(task), cases.tokenizer()
        prompted_problems(cfg, find_method("vineppo"), graded, tokenizer, (split,))

    for task in (Unworked(), Empty()):
        load(config(), task, "train")
        load(config(source="gold"), task, "test")
        with refuses("reset.source"):
            load(config(source="gold"), task, "train")
    load(config(source="gold"), Task(), "train")


# --- solutions of the iteration

RIGHT = {"none": 0, "few": 1, "half": 2, "most": 3, "all": 4}  # of the four solutions of a problem


def some_right(so_far: str, branch: Branch, k: int) -> str:
    """A rule with as many right solutions as the problem's name says; further ones end at once."""
    names = list(RIGHT)
    if so_far:
        return "\n#### 4" if k == 0 else "\n#### 5"
    return f"\n{k}+3=5\n#### {4 if k < RIGHT[names[branch.trunk]] else 5}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("solved", {"few": 4}),
        ("failed", {"most": 5}),
        ("both", {"few": 4, "most": 5}),
        ("none", {}),
    ],
)
def test_problems_away_from_the_target_get_a_further_group(source: str, expected: dict):
    problems = problems_of(*RIGHT)
    cfg = config(source=source)
    plain = sample(Policy(some_right), problems, config())
    for iteration in range(3):
        episodes = sample(Policy(some_right), problems, cfg, iteration)
        assert episodes[:20] == plain  # those from the prompts stay
        further = groups_of(episodes[20:])
        assert [name for name, _ in further] == list(expected)
        for (name, given), group in further.items():
            assert len(group) == 4 and given > 0
            sources = [
                e.response
                for e in plain
                if e.problem_id == name and e.text.endswith(f"#### {expected[name]}")
            ]
            (known,) = [s for s in sources if s[:given] == group[0].response[:given]][:1]
            for one in group:
                check(one, known)
    found = sampler(Policy(by_seed), rewards_of(Task()), config(source="both")).metrics(episodes)
    assert found["reset/groups"] == len(expected)
    if expected:
        assert found["reset/pass_rate"] == 0.25 and 0 < found["reset/given"] < 1
    assert episode_metrics(episodes) == episode_metrics(plain)


def test_a_budget_of_groups_is_kept():
    problems = problems_of(*RIGHT)
    for most, groups in ((5, 5), (6, 6), (7, 7), (MANY, 7)):
        policy = Policy(some_right)
        episodes = sample(policy, problems, config(source="both"), most=most)
        assert len(episodes) == 4 * groups and len(policy.calls) == 1 + (groups > 5)


def test_every_length_and_every_solution_is_chosen():
    chosen, lengths = set(), set()
    problems, cfg = problems_of("p"), config(source="solved", target=1.0)

    def rule(so_far: str, branch: Branch, k: int) -> str:
        return "\n#### 4" if so_far else f"\n{k}+3=5\n#### {4 if k < 3 else 5}"

    for iteration in range(80):
        (known,) = known_solutions(
            problems, sample(Policy(rule), problems, config()), cfg, iteration
        )
        chosen.add(cases.tokenizer().decode(known.response)[1])
        lengths.add(sample(Policy(rule), problems, cfg, iteration)[-1].given)
    assert chosen == {"0", "1", "2"}
    assert lengths == set(range(1, len("\n0+3=5\n#### 4") + 1))


@pytest.mark.parametrize("reset", [{"source": "gold", "share": 0.5}, {"source": "both"}])
@pytest.mark.parametrize("at", ["uniform", "edge"])
def test_a_problems_solutions_depend_on_no_other_problem(reset: dict, at: str):
    """They do not depend on the order either, so restarts, meshes and hosts change nothing."""
    names = [f"p{i}" for i in range(12)]
    cfg = config(**reset, at=at)
    policy = Policy(by_seed)
    whole = groups_of(sample(policy, problems_of(*names), cfg, 1))
    assert len(set(policy.seeds)) == len(policy.seeds)
    part = groups_of(sample(Policy(by_seed), problems_of(*names[::-2]), cfg, 1))
    assert any(given for _, given in part) and len(part) < len(whole)
    for place, group in part.items():
        assert group == whole[place]
    other = groups_of(sample(Policy(by_seed), problems_of(*names), cfg, 2))
    assert set(other) != set(whole)


def test_solutions_that_are_too_short_to_be_cut_are_not_chosen():
    def rule(so_far: str, branch: Branch, k: int) -> str:
        assert not so_far
        return "" if k else "\n#### 4"  # a wrong solution is EOS alone

    problems = problems_of("p")
    episodes = sample(Policy(rule), problems, config(source="failed", target=0.1))
    assert len(episodes) == 4


# --- the edge


def test_the_edge_is_searched_in_waves_over_all_problems():
    """Three of five continuations are right from the token on that the prompt's digit names."""
    encode, decode = cases.encode, cases.tokenizer().decode
    problems = [(Problem(x, "", "4"), [cases.BOS, *encode(f"{x}+3-1=")]) for x in "369"]
    assert len(problems[0][1]) == len(PROMPT) and len(encode(WORKED)) == 19

    def rule(so_far: str, branch: Branch, k: int) -> str:
        if not so_far:
            return WORKED if k == 2 else "\n#### 5"
        digit = int(decode(policy.trunks[branch.trunk][1]))
        return "\n#### 4" if len(so_far) >= digit and k < 3 else "\n#### 5"

    policy = Policy(rule)
    episodes = sample(policy, problems, config(source="solved", at="edge", k=5))
    given = [[len(trunk) - len(PROMPT) for trunk in call] for call in policy.calls]
    waves = [[10, 10, 10], [5, 5, 5], [2, 7, 7], [3, 6, 8], [9]]
    assert given == [[0, 0, 0], *waves, [3, 6, 9]]
    for (name, length), group in groups_of(episodes[12:]).items():
        assert length == int(name)
        assert [e.reward for e in group] == [1.0, 1.0, 1.0, 0.0]


def test_the_edge_of_a_wrong_solution_is_where_it_is_lost():
    wrong = "\n2+3=6\n#### 5"

    def rule(so_far: str, branch: Branch, k: int) -> str:
        if not so_far:
            return wrong if k == 0 else "\n#### 4"
        is_lost = so_far.startswith("\n2+3=6")
        return "\n#### 5" if is_lost or k == 0 else "\n#### 4"

    for iteration in range(3):
        policy = Policy(rule)
        episodes = sample(policy, problems_of("p"), config(source="both", at="edge"), iteration)
        (one, *_) = episodes[4:]
        # A quarter of the continuations fails before the slip, which is nearer to the target.
        assert cases.tokenizer().decode(one.response[: one.given]) == "\n2+3="
        assert [e.reward for e in episodes[4:]] == [0.0, 1.0, 1.0, 1.0]


# --- credit, batches, values


def test_credit_and_batch_leave_out_what_was_given():
    problems = problems_of("p")
    given = cases.encode("\n2+3=5\n5-")
    texts = ["1=4\n#### 4", "1=3\n#### 5"]
    start = Start(*problems[0], given, [0, 1])
    policy = Policy(lambda so_far, branch, k: texts[k])
    cfg = config(method="rloo")
    episodes = sampler(policy, rewards_of(Task()), cfg).episodes({}, [start])
    batch = collate(episodes, 2)
    first = len(PROMPT) + len(given)
    for row, one in enumerate(episodes):
        assert one.given == len(given) and one.step_ends == [len(one.response)]
        expected = np.zeros(batch.mask.shape[1], bool)
        expected[first : len(one.tokens)] = True
        np.testing.assert_array_equal(batch.mask[row], expected)
        np.testing.assert_array_equal(step_layout(batch, episodes).step_ids[row] >= 0, expected)
    np.testing.assert_allclose(credit_by_step(episodes, cfg)[:, 0], [1.0, -1.0])


def test_rewards_of_steps_that_were_given_are_dropped():
    class Stepwise(Task):
        def step_rewards(self, problem: Problem, steps: list[str]) -> list[float]:
            return [float(i) for i, _ in enumerate(steps, start=1)]

    given = "\n2+3=5\n5-1"
    for length, expected in ((0, [1.0, 2.0]), (5, [1.0, 2.0]), (6, [2.0]), (9, [2.0])):
        tokens = cases.encode(given[:length])
        start = Start(*problems_of("p")[0], tokens, [0])
        policy = Policy(lambda so_far, branch, k: WORKED[len(so_far) :])
        (one,) = sampler(policy, rewards_of(Stepwise()), config()).episodes({}, [start])
        check(one, [*cases.encode(WORKED), cases.EOS])
        assert one.step_rewards == expected and len(one.step_ends) == len(expected)


def test_vineppo_values_the_states_from_what_was_given_on():
    """Half of the continuations are right before the line 5-1=4, and all of them after it."""
    given = cases.encode("\n2+3")

    def rule(so_far: str, branch: Branch, k: int) -> str:
        if branch.seed < 2:  # the solutions
            return "=5\n5-1=4\n4+0=4\n#### 4" if branch.seed == 0 else "=6\n#### 5"
        return "\n#### 4" if "5-1=4" in so_far or k % 2 else "\n#### 5"

    start = Start(*problems_of("p")[0], given, [0, 1])
    cfg = config(method="vineppo")
    cfg = dataclasses.replace(cfg, values=dataclasses.replace(cfg.values, k=4))
    policy = Policy(rule)
    graded = rewards_of(Task())
    episodes = sampler(policy, graded, cfg).episodes({}, [start])
    filled = fill_values(policy, {}, graded, problems_of("p"), episodes, cfg, 0)
    right, wrong = filled
    # s_0 is after "2+3", which both share; then the ends of "2+3=5" and "5-1=4".
    text = cases.tokenizer().decode
    ends = [text(right.response[:end]) for end in right.step_ends[:-1]]
    assert ends == ["\n2+3=5", "\n2+3=5\n5-1=4"]
    assert right.values is not None and wrong.values is not None
    np.testing.assert_array_equal(right.values, [0.5, 0.5, 1.0])
    np.testing.assert_array_equal(wrong.values, [0.5])
    assert policy.states() == [(0, len(PROMPT) + used) for used in (4, 6, 12)]
    advantages = credit_by_step(filled, cfg)
    np.testing.assert_allclose(advantages[0, :3], [0.0, 0.5, 0.0])
    np.testing.assert_allclose(advantages[1, :1], [-0.5])


def test_a_state_that_a_reset_shares_with_its_source_is_sampled_once():
    source = cases.encode("\n2+3=5")
    problem = problems_of("p")[0]
    starts = [Start(*problem, [], [0]), Start(*problem, source, [1])]
    texts = ["\n2+3=5\n5-1=4\n#### 4", "\n5-1=3\n#### 5"]

    def rule(so_far: str, branch: Branch, k: int) -> str:
        return texts[branch.seed] if branch.seed < 2 else f"\n#### {4 + k % 2}"

    policy, graded, cfg = Policy(rule), rewards_of(Task()), config(method="vineppo")
    episodes = sampler(policy, graded, cfg).episodes({}, starts)
    own, reset = fill_values(policy, {}, graded, [problem], episodes, cfg, 0)
    assert reset.given == own.step_ends[0] == len(source)
    assert len(policy.states()) == 2 and len(policy.branches) == 2 * cfg.values.k
    assert own.values is not None and reset.values is not None
    assert reset.continuations[0] is own.continuations[1]
    assert reset.values[0] == own.values[1] == pytest.approx(2 / 3)
    np.testing.assert_allclose(credit_by_step([own, reset], cfg)[:, 0], [0.0, -2 / 3], atol=1e-6)


# --- errors


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"method": "dapo", "reset": {"source": "gold"}}, "reset.source"),
        ({"method": "treepo", "reset": {"source": "gold"}}, "reset.source"),
        (
            {
                "method": "single_stream",
                "rollout": {"per_prompt": 1},
                "reset": {"source": "gold"},
            },
            "reset.source",
        ),
        ({"method": "restem", "reset": {"source": "gold"}}, "reset.source"),
        ({"method": "sft", "reset": {"source": "both"}}, "reset.source"),
        ({"method": "dpo_positive", "reset": {"source": "both"}}, "reset.source"),
        ({"reset": {"source": "tree"}}, "reset.source"),
        ({"reset": {"at": "edge"}}, "reset.at"),
        ({"reset": {"source": "both", "share": 0.5}}, "reset.share"),
        ({"reset": {"source": "gold", "target": 0.3}}, "reset.target"),
        ({"reset": {"source": "both", "k": 3}}, "reset.k"),
        ({"reset": {"source": "gold", "share": 1.5}}, "reset.share"),
        ({"reset": {"source": "both", "at": "edge", "k": 0}}, "reset.k"),
        ({"reset": {"source": "solved"}, "values": {"reuse": True}}, "values.reuse"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], field: str):
    with refuses(field):
        check_config(from_dict(fields))


def test_what_goes_with_resets():
    for fields in (
        {"reset": {"source": "gold", "at": "edge", "target": 0.4}, "values": {"reuse": True}},
        {"reset": {"source": "both", "target": 0.2}, "method": "spo_chain"},
        {"reset": {"source": "failed", "at": "edge", "k": 2}, "method": "ppo"},
    ):
        check_config(from_dict(fields))
