"""Tests the number of updates of a run, over which its learning rate decays."""

import math
from typing import Any

import pytest
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.core.settings import Config
from vinejax.session.budget import RunTotals, groups_left, num_updates


def config(iterations: int, **budget: int | None) -> Config:
    fields: dict[str, Any] = {
        "method": "ppo",
        "iterations": iterations,
        "rollout": {"prompts": 4, "per_prompt": 8},
        "ppo": {"minibatch": 12, "epochs": 2},
        "budget": budget,
    }
    return from_dict(fields)


def played(cfg: Config) -> int:
    """Updates, counted as the loop makes them."""
    spent = RunTotals()
    for _ in range(cfg.iterations):
        prompts = min(cfg.rollout.prompts, groups_left(cfg, spent))
        if prompts < 1:
            break
        episodes = prompts * cfg.rollout.per_prompt
        tried = math.ceil(episodes / cfg.ppo.minibatch) * cfg.ppo.epochs
        spent = spent.plus(prompts=prompts, episodes=episodes, updates=tried)
    return spent.updates


@pytest.mark.parametrize("episodes", [None, 8, 71, 80, 96, 10**6])
def test_the_count_is_what_the_loop_makes(episodes: int | None):
    cfg = config(5, episodes=episodes)
    assert num_updates(cfg) == played(cfg)


def test_whole_groups_are_left():
    assert groups_left(config(5, episodes=71), RunTotals(episodes=40)) == 3
    assert groups_left(config(5), RunTotals()) >= 2**32


@pytest.mark.parametrize("method", ["vineppo", "restem", "sft"])
def test_a_budget_below_one_group_is_refused(method: str):
    fields = {"method": method, "rollout": {"per_prompt": 8}}
    check_config(from_dict(fields | {"budget": {"episodes": 8}}))
    with refuses("budget.episodes"):
        check_config(from_dict(fields | {"budget": {"episodes": 7}}))


def test_dapo_is_counted_with_one_round_an_iteration():
    fields: dict[str, Any] = {"method": "dapo", "iterations": 3}
    fields["rollout"] = {"prompts": 4, "per_prompt": 8}
    for rounds in (1, 4):
        rollout = fields["rollout"] | {"rounds": rounds}
        cfg = from_dict(fields | {"rollout": rollout, "budget": {"episodes": 64}})
        assert num_updates(cfg) == 2 * 1 * 2  # iterations, minibatches, epochs
