"""The metrics of several rewards, against figures computed by hand."""

from helpers import loop_cases as cases

from vinejax.session.metrics import episode_metrics


def test_the_share_of_flat_problems_is_that_of_each_reward():
    """The sum is equal for all solutions of both problems, and each reward has spread in one."""
    parts = {
        "a": [{"right": 1.0, "brief": 0.0}, {"right": 0.0, "brief": 1.0}, None],
        "b": [{"right": 1.0, "right/seen": 3.0}, {"right": 1.0, "right/seen": 4.0}],
        "c": [{"right": 0.5, "brief": 0.5}, {"right": 0.5, "brief": 0.5}],
    }
    episodes = [
        cases.episode([1], [2], problem_id=problem, reward=1.0, reward_parts=part)
        for problem, of_problem in parts.items()
        for part in of_problem
    ]
    found = episode_metrics(episodes)
    assert found["frac_reward_zero_std"] == 1.0
    shares = {name: x for name, x in found.items() if name.startswith("frac_reward_zero_std/")}
    assert shares == {"frac_reward_zero_std/right": 2 / 3, "frac_reward_zero_std/brief": 0.5}
    assert found["reward/right"] == 4.0 / 6 and found["reward/right/seen"] == 3.5


def test_a_task_without_functions_has_no_such_metric():
    found = episode_metrics([cases.episode([1], [2], reward=1.0)])
    assert not [name for name in found if name.startswith("frac_reward_zero_std/")]


def test_a_problem_is_flat_if_outcomes_and_steps_together_are_equal():
    """Methods that compare a problem's solutions compare these sums."""
    rewards = {"a": [(1.0, [0.5]), (1.0, [0.25])], "b": [(1.0, [0.5]), (0.5, [1.0])]}
    episodes = [
        cases.episode([1], [2], problem_id=problem, reward=outcome, step_rewards=of_steps)
        for problem, of_problem in rewards.items()
        for outcome, of_steps in of_problem
    ]
    assert episode_metrics(episodes)["frac_reward_zero_std"] == 0.5
    assert episode_metrics(episodes[:2])["frac_reward_zero_std"] == 0
