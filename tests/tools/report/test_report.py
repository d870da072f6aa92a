"""The report of a run: what it shows is what was logged, and what a model wrote stays text."""

import html
import json
import pathlib
import random
import re
from typing import Any

import pytest
from helpers.tools.fake_run import sample_episode, sample_metrics, write_run
from helpers.tools.report_cases import Page, row, write
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.records import formats
from vinejax.records.read import Record, read_run
from vinejax.runtime.display import format_duration
from vinejax.tools.report import axes, vine_view
from vinejax.tools.report import episode_choice as choice
from vinejax.tools.report.build import build_report
from vinejax.tools.report.curves import charts

HOSTILE = "</script></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[pathlib.Path, str]:
    workdir = tmp_path_factory.mktemp("runs") / "arithmetic"
    write_run(workdir, iterations=6, episodes=32)
    path = build_report(workdir)
    assert path.name == "report.html" and not list(workdir.glob("*.tmp"))
    return workdir, pathlib.Path(path).read_text(encoding="utf-8")


def test_page_loads_and_runs_nothing(run):
    page = Page(run[1])
    assert not re.search(r"https?:|//[a-z]|src=|url\(|@import|javascript:", run[1])
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed"})
    assert all(link.startswith("#s") for link in re.findall(r'href="([^"]*)"', run[1]))
    assert not any(name.startswith("on") for name in page.attributes)
    assert "default-src 'none'" in run[1]


def test_numbers_are_those_of_the_run(run):
    workdir, source = run
    page, read = Page(source).text, read_run(build_report(workdir).parent)
    scores = [r.values["eval/pass_at_1"] for r in read.records if r.stage == "eval"]
    assert f"{scores[0]:.3f} → {scores[-1]:.3f}" in page
    low = [r.values["eval/pass_at_1_low"] for r in read.records if r.stage == "eval"]
    assert f"[{low[0]:.3f}, " in page and f"[{low[-1]:.3f}, " in page
    train = [r.values for r in read.records if r.stage == "train"]
    assert f"Entropy{formats.three_digits(train[-1]['actor/entropy'])}" in page.replace(
        "nats per token; 0 where the policy has no doubt ", ""
    )
    assert all(
        f"iteration {i}{formats.three_digits(v['actor/kl'])}" in page for i, v in enumerate(train)
    )
    assert formats.three_digits(sum(v["values/rollouts"] for v in train)) in page
    seconds = sum(v for line in train for name, v in line.items() if name.startswith("timing_s/"))
    assert format_duration(seconds) in page
    assert "values.k" in page and "3f9c1d27ab54e0c8" in page


def test_steps_show_their_values_and_unfold_into_their_continuations(run):
    workdir, source = run
    episodes = [
        json.loads(line) for line in (workdir / "episodes/5.jsonl").read_text().splitlines()
    ]
    shown: Any = choice.choose_episodes(episodes, 24)
    page = Page(source).text.replace(" ", "")
    for episode in shown:
        for step in episode["steps"]:
            advantage = formats.two_decimals(step["advantage"], signed=True)
            assert f"{step['text'].strip()}{advantage}±" in page
            value, error = formats.two_decimals(step["value"]), formats.two_decimals(step["error"])
            assert f"V{value}±{error}" in page
            correct = sum(c["reward"] for c in step["continuations"])
            if step["continuations"]:
                assert f"{correct:.0f}of9continuationsendcorrect,V={correct / 9:.2f}" in page


def test_what_a_model_wrote_is_shown_and_not_run(tmp_path):
    episode = sample_episode(0, 0, 0.3, 9)
    episode |= {"problem_id": HOSTILE[:70], "question": HOSTILE, "answer": HOSTILE}
    episode |= {"prompt": HOSTILE + "Q", "response": HOSTILE}
    episode["steps"][0]["text"] = HOSTILE
    episode["steps"][0]["continuations"][0] |= {"text": HOSTILE, "finish": "<script>"}
    stepless = episode | {"steps": [], "reward": 0.0}
    config = {"config": {HOSTILE: HOSTILE}, "versions": {"jax": HOSTILE}, "git_revision": "<b>"}
    source = write(tmp_path, episodes={0: [episode, stepless]}, config=config)
    page = Page(source)
    assert page.tags.isdisjoint({"script", "img"}) and "onerror" not in page.attributes
    assert "".join(page.words).count(HOSTILE) >= 10
    assert source.count(html.escape(HOSTILE).replace("&#x27;", "&#39;")[:40]) >= 10


def test_invisible_characters_are_made_visible(tmp_path):
    episode = sample_episode(0, 0, 0.3, 9)
    episode["steps"][1]["text"] = "\n\n"
    episode["steps"][0]["text"] = "\na\x00b\x1b[31m\u202egnp\ud800\r\nnext\n"
    source = write(tmp_path, episodes={0: [episode]})
    assert "a␀b␛[31m⟨U+202E⟩gnp⟨U+D800⟩␍" in source
    assert source.count('<i class="nl"></i>') == 2, "of a step that is nothing else"
    assert '<span class="words">a␀b' in source and "next</span>" in source


def test_odd_lines_of_a_log_are_survived(tmp_path):
    lines = [
        '{"iteration": 0, "stage": "train", "reward/mean": 0.25, "actor/kl": NaN}',
        '{"iteration": 1, "stage": "train", "reward/mean": null, "actor/kl": Infinity}',
        '{"iteration": 2, "stage": "tr{"iteration": 2, "stage": "train", "reward/mean": 9}',
        '{"iteration": 2, "stage": "train", "reward/mean": 0.5, "actor/loss": "nan"}',
        '{"iteration": 2, "stage": "train", "reward/mean": 0.75, "x/y": true}',
        "[1, 2]",
        '{"stage": "train", "reward/mean": 77}',
        '{"iteration": 3, "stage": "train", "rew',
    ]
    page = Page(write(tmp_path, "\n".join(lines))).text
    records = read_run(build_report(tmp_path).parent).records
    assert [r.values for r in records] == [{"reward/mean": 0.25}, {}, {"reward/mean": 0.75}]
    assert "training reward" in page and "KL" not in page and "Vine view" not in page


def test_missing_pieces_leave_gaps_and_no_errors(tmp_path):
    steps = [
        {"text": "a", "value": None, "value_after": 0.5, "advantage": float("nan"), "count": 9},
        {"text": "b", "value": 0.5, "value_after": 0, "advantage": 0, "count": 0},
    ]
    episodes = [{"steps": steps, "reward": None}, {"steps": None}, {"finished": False}]
    source = write(tmp_path, episodes={3: episodes, 4: []}, config={"config": None})
    page = Page(source).text
    assert "V – a –" in page and "V (0.50), not sampled b 0.00" in page
    assert "No metrics were logged" in page and "Iteration 3: 3 of 3 solutions" in page


def test_empty_workdir_and_single_point(tmp_path):
    assert "No metrics were logged" in Page(pathlib.Path(build_report(tmp_path)).read_text()).text
    (tmp_path / "one").mkdir()
    one = {"iteration": 7, "step": 1, "stage": "train", "reward/mean": 0.5, "timing_s/value": 2.0}
    source = write(tmp_path / "one", [one, {"stage": "eval", "iteration": 7, "eval/pass_at_1": 0}])
    assert "<circle" in source and "iteration 7" in source and "0.000" in source


def test_long_run_stays_small_and_keeps_its_spikes(tmp_path):
    rng = random.Random(0)
    prose = "".join(rng.choice("abcdefgh <&\"'\n") for _ in range(1500))
    episode = sample_episode(0, 0, 0.3, 9)
    episode["steps"] = [
        step | {"text": prose, "continuations": [c | {"text": prose} for c in grown]}
        for step in episode["steps"] * 4
        if (grown := step["continuations"])
    ]
    metrics = sample_metrics(1000, rng)
    spike = next(m for m in metrics if m["stage"] == "train" and m["iteration"] == 500)
    spike["actor/grad_norm"] = 123.0
    source = write(tmp_path, metrics, {i: [episode] * 16 for i in (0, 500, 900)})
    assert len(source.encode()) < 5_000_000
    assert "more characters" in source and "123]" in Page(source).text
    assert source.count('class="hover"') < 20 * 125


def test_each_reward_function_has_a_curve():
    values = {"reward/mean": 1.1, "reward/std": 0.3, "reward/correct": 1.0, "reward/brevity": 0.1}
    records = [Record("train", n, values) for n in range(3)]
    (chart,) = [chart for chart in charts(records) if chart.spec.title == "Rewards"]
    assert [(curve.label, curve.last) for curve in chart.drawn_curves] == [
        ("brevity", "0.100"),
        ("correct", "1"),
    ]


def test_choice_prefers_wide_credit_and_begins_with_what_unfolds():
    def episode(width: float, grown: bool) -> dict[str, Any]:
        kept = [{"text": "", "reward": 0.0, "finish": "eos"}] if grown else []
        return {"steps": [{"advantage": a, "continuations": kept} for a in (0.0, width)]}

    plain = [episode(0.5 + i / 100, False) for i in range(10)]
    grown = [episode(i / 100, True) for i in range(10)]
    chosen = choice.choose_episodes(plain + grown, 6)
    assert chosen == [grown[9], grown[8], grown[7], plain[9], plain[8], plain[7]]
    assert choice.choose_episodes(grown, 20) == grown[::-1]


def test_verdicts():
    assert vine_view.verdict_of(1.0, False).kind == "correct"
    assert vine_view.verdict_of(0.0, False).kind == "wrong"
    assert vine_view.verdict_of(0.0, True).kind == "cut"
    assert vine_view.verdict_of(None, False).kind == "wrong"
    assert vine_view.verdict_of(0.99, False).kind == "wrong", "partial credit, as in pass@1"


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e30, 1e30, exclude_min=True, exclude_max=True), min_size=1),
    st.lists(st.integers(0, 10**6), min_size=1, unique=True),
)
def test_axis_holds_any_data(values: list[float], positions: list[int]):
    frame = axes.fit_frame(sorted(positions), (min(values), max(values)), axes.SMALL)
    assert len({label for _, label in frame.y_ticks}) == len(frame.y_ticks)
    assert all(frame.top - 0.1 <= frame.y(v) <= frame.bottom + 0.1 for v in values)
    assert all(frame.left <= frame.x(p) <= frame.right for p in positions)
    assert frame.x_ticks and len(frame.y_ticks) >= 2


def test_a_failed_test_of_a_program_is_shown(tmp_path: pathlib.Path):
    failed = {"input": "1 2", "expected": "3", "got": HOSTILE}
    steps = [{"text": "print(4)"}]
    rows = [row(steps, reward=0.0, failed_test=failed), row(steps, problem_id="o", failed_test=7)]
    source = write(tmp_path, episodes={0: rows})
    page = Page(source).text
    assert f"Failed test: input1 2 Failed test: expected3 Failed test: got{HOSTILE}" in page
    assert page.count("Failed test") == 3
    assert "<script" not in source


def test_who_said_what_in_an_episode_is_shown(tmp_path: pathlib.Path):
    steps = [
        {"text": "go\nwall\n", "observed": [[3, 8]], "value": 0.25, "value_after": 0.5},
        {"text": "stop\n", "observed": [], "unread": HOSTILE, "value": 0.5, "value_after": 0.0},
    ]
    source = write(tmp_path, episodes={0: [row(steps, answer="", values_by="critic")]})
    page = Page(source).text
    first, second = page.index("V 0.25"), page.index("V 0.50")
    said = page.index("policygo"), page.index("environmentwall"), page.index("policystop")
    assert first < said[0] < said[1] < second < said[2]
    assert said[2] < page.index(f"environment, unread{HOSTILE}")
    assert "Gold answer" not in page


def test_a_run_without_a_sandbox_says_so_first(tmp_path: pathlib.Path):
    for kind, is_said in (("none", True), ("kernel", False)):
        folder = tmp_path / kind
        folder.mkdir()
        page = Page(write(folder, config={"config": {"code": {"sandbox": kind}}})).text
        words = "No sandbox code.sandbox = 'none': the model's programs ran with all rights"
        assert (words in page) == is_said
        if is_said:
            assert page.index(words) < page.index("VineJAX training report")
