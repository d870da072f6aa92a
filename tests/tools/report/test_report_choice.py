"""The report's examples: ranked by how far their credit is beyond luck, and narrowed by menus."""

import math
import re
from typing import Any

import pytest
from helpers.tools.report_cases import Page, row, write

from vinejax.records.read import Record
from vinejax.tools.report import curves, rows, timing
from vinejax.tools.report import episode_choice as choice

GROWN = [{"text": "", "reward": 1.0, "finish": "eos"}]


def valued(values: list[float], reward: float, grown: bool = True, **fields: Any) -> dict[str, Any]:
    """An episode with these V by nine continuations of rewards 0 and 1 each."""
    after = [*values[1:], reward]
    steps = [
        {"text": f"step {v}", "value": v, "advantage": w - v, "count": 9}
        | {"error": math.sqrt(v * (1 - v) / 9), "continuations": GROWN if grown else []}
        for v, w in zip(values, after, strict=True)
    ]
    return row(steps, values_by="continuations", reward=reward, **fields)


def test_certainty_is_that_of_a_test_of_two_shares():
    first, last = rows.read_steps(valued([3 / 9, 9 / 9], 1.0))
    # 12 of 18 returns are 1: z = (2/3) / sqrt(2/3 · 1/3 · 2/9) = 3
    assert first.certainty == pytest.approx(3.0) and last.certainty == 0.0
    assert first.advantage_error == pytest.approx(math.sqrt(2 / 9 / 9))
    valued_twice = rows.read_steps(valued([3 / 9, 3 / 9], 1.0), gamma=0.5)
    expected = [math.sqrt(2 / 9 / 9) * x for x in (math.hypot(1, 0.5), 1)]
    assert [step.advantage_error for step in valued_twice] == pytest.approx(expected)
    sure, _ = rows.read_steps(valued([1.0, 0.0], 0.0))
    assert sure.certainty == pytest.approx(math.sqrt(18)), "an error of 0 is no certainty"
    lucky = rows.read_steps(valued([3 / 9], 1.0))[0]
    # The outcome is one return, 4 of 10: z = (2/3) / sqrt(0.4 · 0.6 · (1/9 + 1))
    assert lucky.certainty == pytest.approx(2 / 3 / math.sqrt(0.24 * 10 / 9))
    assert lucky.advantage_error == pytest.approx(math.sqrt(2 / 9 / 9))


def test_certainty_is_0_where_a_value_was_not_sampled():
    episode = valued([0.5, 0.25, 0.0], 0.0)
    episode["steps"][1] |= {"count": 0, "error": 0.0}
    assert [s.certainty for s in rows.read_steps(episode)][:2] == [0.0, 0.0]
    assert [s.advantage_error for s in rows.read_steps(episode)] == [None, None, 0.0]
    critic = row([{"text": "a", "value": 0.5, "advantage": 0.5}], values_by="critic")
    assert rows.certainty_of(critic) == 0.0


def test_luck_does_not_open_the_page():
    lucky = valued([3 / 9, 6 / 9, 3 / 9], 1.0, response="lucky")  # the widest is the outcome's
    certain = valued([8 / 9, 0.0, 0.0], 0.0, response="certain")
    bare = valued([9 / 9, 0.0], 0.0, grown=False, response="bare")
    plain = valued([4 / 9, 5 / 9], 1.0, response="plain")
    chosen = choice.choose_episodes([plain, lucky, bare, certain], 4)
    assert chosen == [certain, lucky, plain, bare]
    assert choice.count_open(chosen) == 1
    assert choice.count_open([lucky, plain]) == 1 and choice.count_open([certain] * 5) == 3
    assert choice.count_open([row([{"text": "a", "advantage": a}]) for a in (1.0, 2.0)]) == 2


def test_solutions_have_the_classes_of_the_menus_and_a_link(tmp_path):
    right = valued([4 / 9, 7 / 9], 1.0, problem_id="a", question="<one>?")
    wrong = valued([8 / 9, 0.0], 0.0, problem_id="b", question="two?")
    source = write(tmp_path, episodes={2: [right], 5: [wrong, right | {"response": "again"}]})
    kinds = re.findall(r'<details class="solution ([^"]*)"', source)
    assert kinds == ["p0 right quarter", "p1 wrong half quarter certain"] + kinds[:1]
    links = re.findall(r'href="#([^"]*)"', source)
    assert links == ["s2-0", "s5-0", "s5-1"]
    assert all(source.count(f'id="{link}"') == 1 for link in links)
    assert '<option value="p0">&lt;one&gt;?</option>' in source
    page = Page(source).text
    assert "some |A| beyond 2 of its errors" in page and "some |A| from 0.5 on" in page
    for kind in ("right", "wrong", "certain", "half", "p0", "p1"):
        assert f":has([value={kind}]:checked) .solution:not(.{kind}, " in source


def test_a_solution_says_where_its_continuations_are(tmp_path):
    episodes = [valued([0.5], 1.0), valued([0.25], 1.0, grown=False)]
    page = Page(write(tmp_path, episodes={0: episodes})).text
    assert page.count("Its continuations were not kept") == 1
    assert "A state with dots unfolds" in page and "1 continuations" in page
    (tmp_path / "bare").mkdir()
    page = Page(write(tmp_path / "bare", episodes={0: episodes[1:]})).text
    assert "unfolds" not in page and "not kept" not in page


def test_curves_of_pass_at_k_differ():
    names = ("pass_at_1", "pass_at_2", "pass_at_4", "pass_at_8", "maj_at_8")
    record = Record("eval", 0, {f"eval/{name}": 0.5 for name in names})
    (chart, _) = curves.charts([record], ("1.0", "0.35"))
    assert len({c.style for c in chart.drawn_curves}) == len(names)
    assert "most frequent of k answers" in chart.spec.note
    assert "temperature 1.0, the other curves at 0.35" in chart.spec.note


def test_an_iteration_that_compiles_does_not_flatten_the_others():
    assert timing.highest_shown([43.0, 5.0, 4.0, 6.0, 5.0]) == 6.0
    assert timing.highest_shown([43.0, 5.0, 4.0]) == 43.0, "a third of all is no outlier"
    records = [Record("train", i, {"timing_s/value": 43.0 if i == 0 else 5.0}) for i in range(10)]
    chart = timing.time_chart(records)
    assert chart is not None
    assert [cut.seconds for cut in chart.cuts] == ["43"] and chart.frame.y_range[1] < 10
    assert chart.total == 88.0 and "43 s" in chart.hovers[0].lines[0]
    assert "-" not in chart.phases[0].bars, "no bar leaves the plot"
