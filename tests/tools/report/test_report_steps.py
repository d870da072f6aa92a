"""The report's steps, by method and task: values, advantages and rewards, where there are any."""

from typing import Any

import pytest
from helpers.tools.fake_run import sample_episode
from helpers.tools.report_cases import Page, nodes, row, write

from vinejax.records.read import Record
from vinejax.tools.report import curves
from vinejax.tools.report import episode_choice as choice
from vinejax.tools.report.build import header_facts
from vinejax.tools.report.figure import vine_svg
from vinejax.tools.report.vine_view import LIMITS, StemScale, vine_view


def test_a_critics_values_are_shown_with_the_advantages(tmp_path):
    steps = [
        {"text": "one", "value": -0.25, "advantage": 0.75},
        {"text": "two", "value": 0.5, "advantage": -0.125},
    ]
    episode = row(steps, values_by="critic", reward=1.0)
    source = write(tmp_path, episodes={0: [episode]})
    page = Page(source).text
    assert "what the critic expects" in page and "continuations" not in page
    assert "V −0.25 one +0.75 V 0.50 two −0.12 ✓ reward 1" in page
    assert "not sampled" not in page and "step reward" not in page
    assert nodes(source) == [0.0, 60.0, 100.0]  # on an axis from -0.25 to 1
    assert "−0.25V(s)1" in page and "A −0.12 … +0.75" in page


def test_errors_of_advantages_know_the_discount_of_the_run(tmp_path):
    """As `values/advantage_error` does, in the page and in a figure."""
    steps = [
        {"text": "one", "value": 0.5, "advantage": -0.25, "count": 9, "error": 0.3},
        {"text": "two", "value": 0.5, "advantage": 0.5, "count": 9, "error": 0.8},
    ]
    episodes = {0: [row(steps, values_by="continuations", reward=1.0)]}
    config = {"config": {"ppo": {"gamma": 0.5}}}
    assert "one −0.25 ± 0.50 V" in Page(write(tmp_path, episodes=episodes, config=config)).text
    assert "A −0.25 ± 0.50" in vine_svg(tmp_path, "s0-0")


def test_step_rewards_are_shown_and_move_the_stem(tmp_path):
    grown = [{"text": "", "reward": r, "finish": "eos"} for r in (1.5, 0.0)]
    steps = [
        {"text": "one", "value": 0.75, "advantage": 0.25, "reward": 0.5, "count": 2}
        | {"continuations": grown},
        {"text": "two", "value": 0.5, "advantage": -1.0, "reward": -0.5, "count": 2},
    ]
    paid = row(steps, values_by="continuations", reward=0.0)
    unpaid = row([{"text": "three", "value": 0.0, "advantage": 0.0, "reward": 0.0, "count": 2}])
    source = write(tmp_path, episodes={0: [paid, unpaid]})
    page = Page(source).text
    assert "V 0.75 2 continuations" in page
    assert "one +0.25 step reward 0.5 V 0.50 two −1.00 step reward −0.5 ✗ reward 0" in page
    assert "V 0.00 three 0.00 step reward 0 ✓ reward 1" in page
    assert "reward 0, wrong, and 0 from the steps" in page
    # What so far was earned and V: 0 + 0.75, 0.5 + 0.5, and in the end 0.
    assert nodes(source)[:3] == [75.0, 100.0, 0.0] and "Σr + V(s)" in page
    assert "2 continuations with their returns, whose mean is V = 0.75" in page
    assert "return 1.5" in page and "return 0" in page and "end correct" not in page


def test_a_penalty_for_the_length_moves_the_end_of_the_stem(tmp_path):
    steps = [{"text": "one", "value": 0.5, "advantage": 0.25, "count": 2}]
    long = row(steps, values_by="continuations", reward=1.0) | {"penalty": 0.25}
    source = write(tmp_path, episodes={0: [long, row(steps, reward=1.0)]})
    page = Page(source).text
    assert "✓ reward 1, correct, less 0.250 for the length" in page
    assert page.count("for the length") == 2 and nodes(source)[:2] == [50.0, 75.0]


def test_a_right_continuation_is_right_whatever_its_return(tmp_path):
    """A penalty for the length or a discount takes from its return."""
    grown = [
        {"text": "", "reward": 0.75, "finish": "eos", "outcome": 1.0},
        {"text": "", "reward": -0.25, "finish": "eos", "outcome": 0.0},
        {"text": "", "reward": 1.0, "finish": "eos"},
    ]
    step = {"text": "one", "value": 0.5, "advantage": 0.25, "count": 3, "continuations": grown}
    solution = row([step], values_by="continuations", reward=1.0)
    page = Page(write(tmp_path, episodes={0: [solution]})).text
    assert "2 of 3 continuations end correct, V = 0.50" in page
    assert "✓correct 0.750" in page and "✗wrong −0.250" in page
    view = vine_view({0: [solution]}, LIMITS[0])
    assert view is not None
    leaves = view.iterations[0].solutions[0].steps[0].leaves
    assert [leaf.verdict.kind for leaf in leaves] == ["correct", "wrong", "correct"]


def test_a_step_shows_its_samples_and_a_solution_what_it_began_with(tmp_path):
    steps = [
        {"text": "one", "value": 0.5, "advantage": 0.25, "count": 9, "reused": 6, "error": 0.125},
        {"text": "two", "value": 0.75, "advantage": 0.25, "count": 0, "error": 0.0},
        {"text": "three", "value": 1.0, "advantage": 0.0, "count": 3, "error": 0.0625},
    ]
    begun = row(steps, values_by="continuations", reward=1.0) | {"given": "first, zero"}
    page = Page(write(tmp_path, episodes={0: [begun]})).text
    assert "V 0.50 ± 0.12, 6 reused one +0.25 V (0.75), not sampled two +0.25" in page
    assert "V 1.00 ± 0.06 three 0.00 ± 0.06 ✓ reward 1" in page
    assert "Began withfirst, zero" in page
    whole = row(steps, values_by="continuations", reward=1.0) | {"given": ""}
    (tmp_path / "whole").mkdir()
    assert "Began with" not in Page(write(tmp_path / "whole", episodes={0: [whole]})).text


def left_at(position: int, character: int, token: str, **fields: Any) -> dict[str, Any]:
    place = {"position": position, "character": character, "token": token}
    return {"departure": place | {"return": 0.0, "coefficient": 0.5} | fields}


def with_leaves(*leaves: dict[str, Any]) -> dict[str, Any]:
    """An episode of one step, from before which continuations with these fields were drawn."""
    plain = {"text": "", "reward": 0.0, "finish": "eos"}
    step = {"text": "one", "value": 0.0, "advantage": 0.0, "count": len(leaves)}
    return row([step | {"continuations": [plain | leaf for leaf in leaves]}])


def test_a_continuation_shows_where_it_left_the_solution(tmp_path):
    leaves = (
        {"text": "\none=<4>\ntwo\n"} | left_at(7, 5, "<4", coefficient=-0.08349),
        {"text": "\none="} | left_at(1, 5, "</s>"),  # its text does not show the token
        {"text": "\n\nx"} | left_at(2, 1, "\n", **{"return": 1.5}),
        {"text": "one", "departure": None},
    )
    source = write(tmp_path, episodes={0: [with_leaves(*leaves)]})
    page = Page(source).text
    assert '<span class="repeated">one=</span><b class="token">&lt;4</b>&gt;\ntwo</span>' in source
    assert "leaves after 7 tokens: return 0, coefficient −0.083" in page
    assert '<b class="token">&lt;/s&gt;</b></span>' in source
    assert "leaves after 1 token: return 0, coefficient +0.500" in page
    assert '<b class="token"><i class="nl"></i>\n</b>x</span>' in source
    assert "leaves after 2 tokens: return 1.5, coefficient +0.500" in page
    assert page.count("leaves after") == 3 and page.count("repeats the solution") == 1
    assert "one label, whose coefficient is the sum" in page


def test_a_run_without_labels_says_nothing_of_them(tmp_path):
    source = write(tmp_path, episodes={0: [with_leaves({"text": "\none="})]})
    page = Page(source).text
    assert '<span class="words">one=</span>' in source and 'class="token"' not in source
    assert not any(words in page for words in ("leaves after", "repeats the", "trains on this"))


@pytest.mark.parametrize("place", [7, {}, {"character": -3}, {"character": 1e9, "token": None}])
def test_a_damaged_departure_is_survived(tmp_path, place: Any):
    damaged = with_leaves({"text": "one=4", "departure": place})
    source = write(tmp_path, episodes={0: [damaged]})
    page = Page(source).text
    assert "one=4" in page and ">None</b>" not in source and "repeats the solution" not in page
    unknown = "leaves after – tokens: return –, coefficient –"
    assert (unknown in page) == (place != 7)


def test_a_long_continuation_is_cut_but_keeps_its_token():
    text = "a" * 30 + "bc" + "d" * 30
    limits = LIMITS[0]._replace(continuation_characters=40)
    episodes: Any = {0: [with_leaves({"text": text} | left_at(9, 30, "bc"))]}
    view = vine_view(episodes, limits)
    short = vine_view(episodes, limits._replace(continuation_characters=20))
    assert view and short
    shown, cut = (x.iterations[0].solutions[0].steps[0].leaves[0] for x in (view, short))
    assert shown.departure and cut.departure
    assert (shown.departure.repeated.text, shown.departure.repeated.hidden) == ("a" * 30, 0)
    assert (shown.text.text, shown.text.hidden) == ("d" * 10, 20)
    assert (cut.departure.repeated.text, cut.departure.repeated.hidden) == ("a" * 20, 10)
    assert (cut.text.text, cut.text.hidden) == ("", 30)
    assert shown.departure.token.text == cut.departure.token.text == "bc"


def test_rewards_of_steps_that_are_all_zero_are_not_mentioned(tmp_path):
    steps = [{"text": "one", "value": 0.5, "advantage": 0.5, "reward": 0.0, "count": 2}]
    page = Page(write(tmp_path, episodes={0: [row(steps)]})).text
    assert "V 0.50 one +0.50 ✓ reward 1" in page
    assert "step reward" not in page and "from the steps" not in page and "Σr" not in page


def test_methods_without_values_show_advantages_alone(tmp_path):
    steps = [{"text": "one", "advantage": 0.5}, {"text": "two", "advantage": 0.5}]
    page = Page(write(tmp_path, episodes={0: [row(steps, values_by=None)]})).text
    assert "one +0.50 two +0.50 reward 1, correct" in page
    assert "all steps of a solution share it" in page and "Sampled solutions" in page
    assert "not sampled" not in page and "V –" not in page and "V (" not in page
    (tmp_path / "by_step").mkdir()
    steps[1] |= {"advantage": 0.25, "reward": 0.125}
    page = Page(write(tmp_path / "by_step", episodes={0: [row(steps)]})).text
    assert "one +0.50 step reward 0 two +0.25 step reward 0.125" in page
    assert "share it" not in page and "A +0.25 … +0.50" in page


def test_methods_without_advantages_show_the_solutions(tmp_path):
    page = Page(write(tmp_path, episodes={0: [row([{"text": "one"}, {"text": "two"}])]})).text
    assert "one two reward 1, correct" in page and "learns from whole solutions" in page
    assert "A =" not in page and "–" not in page and "widest" not in page


def test_rows_of_earlier_versions_give_the_same_page(tmp_path):
    old = [sample_episode(0, i, 0.3, 9) for i in range(4)]
    new = [
        episode
        | {"values_by": "continuations", "steps": [s | {"reward": None} for s in episode["steps"]]}
        for episode in old
    ]
    for name, episodes in (("old", old), ("new", new)):
        (tmp_path / name / "run").mkdir(parents=True)
        write(tmp_path / name / "run", episodes={0: episodes})
    pages = [(tmp_path / name / "run/report.html").read_text() for name in ("old", "new")]
    assert pages[0] == pages[1] and "Vine view" in pages[0]


def test_choice_repeats_a_solution_only_where_there_is_no_other():
    def episode(response: str, width: float) -> dict[str, Any]:
        return row([{"text": response, "advantage": a} for a in (0.0, width)])

    wide, same, narrow = episode("a", 0.9), episode("a", 0.9), episode("b", 0.1)
    assert choice.choose_episodes([wide, same, narrow], 2) == [wide, narrow]
    assert choice.choose_episodes([wide, same, narrow], 3) == [wide, narrow, same]


def test_choice_takes_one_solution_of_each_problem_before_a_second():
    def episode(problem: str, width: float) -> dict[str, Any]:
        steps = [{"text": str(width), "advantage": a} for a in (0.0, width)]
        return row(steps, problem_id=problem)

    a = [episode("a", width) for width in (0.9, 0.8, 0.7)]
    b = [episode("b", width) for width in (0.2, 0.1)]
    assert choice.choose_episodes([*a, *b], 4) == [a[0], b[0], a[1], b[1]]
    assert choice.choose_episodes([*a, *b], 5)[-1] == a[2]


def test_the_depth_of_a_colour_means_the_same_in_every_figure():
    def strengths(*advantages: float) -> list[float]:
        steps = [{"text": "one", "advantage": a} for a in advantages]
        view = vine_view({0: [row(steps)]}, LIMITS[0])
        assert view is not None
        return [step.strength for step in view.iterations[0].solutions[0].steps]

    assert strengths(0.11) == [0.11], "luck does not look like certainty"
    assert strengths(-0.5, 1.0, 2.5) == [0.5, 1.0, 1.0]


def test_ends_of_the_axis_are_numbers_to_read():
    assert StemScale(-0.05, 1.07).ends == ("−0.05", "1.07")
    assert StemScale(0.0, 10.0).ends == ("0", "10")


@pytest.mark.parametrize(("method", "has_k"), [("vineppo", True), ("ppo", False)])
def test_header_names_the_method_and_k_where_it_is_used(method: str, has_k: bool):
    config = {"method": method, "values": {"k": 9}, "model": {"path": ""}}
    found = header_facts({"config": config})
    assert "model" not in dict(found)
    assert (
        found[0] == ("method", method) and (("continuations per state (K)", "9") in found) == has_k
    )


def test_the_loss_of_the_method_sft_has_a_chart_beside_that_of_its_warm_up():
    records = [Record("sft", 20, {"sft/loss": 2.5}), Record("train", 0, {"sft/loss": 0.75})]
    found = [(c.spec.title, c.spec.x_label, c.drawn_curves[0].last) for c in curves.charts(records)]
    assert found == [("Supervised loss", "iteration", "0.750"), ("SFT loss", "SFT step", "2.50")]


def test_what_a_critic_and_steps_log_has_charts():
    values = {"critic/value": 0.5, "critic/error": 0.25, "reward/steps": -0.125}
    found = curves.charts([Record("train", 0, values)])
    shown = {chart.spec.title: chart.drawn_curves[0].last for chart in found}
    assert shown == {"Critic's value": "0.500", "Critic's error": "0.250", "Step rewards": "−0.125"}


def test_labels_have_a_chart():
    values = {"credit/labels": 0.15, "credit/coverage": 0.75, "credit/agreement": 0.9}
    (chart,) = curves.charts([Record("train", 0, values)])
    shown = {curve.label: curve.last for curve in chart.drawn_curves}
    assert shown == {"labels": "0.150", "coverage": "0.750", "agreement": "0.900"}
    assert curves.charts([Record("train", 0, {"credit/mask": 0.15})]) == []
