"""`--mode=compare`: the page has the numbers of the runs' files; errors for what has none."""

import html
import json
import pathlib
import re

import pytest
from helpers.tools.report_cases import Page, compared_run

from vinejax import command
from vinejax.core.errors import UserError
from vinejax.statistics.accuracy import paired_interval
from vinejax.tools.report.compare.page import compare_runs
from vinejax.tools.report.compare.read_runs import read_runs
from vinejax.tools.report.compare.run_groups import differing_settings, group_runs
from vinejax.tools.report.interquartile import improvement_interval, iqm_difference, iqm_interval

REWARDS = {"p0": [1.0, 0.0], "p1": [1.0, 1.0], "p2": [0.0, 0.0]}


def shown(source: str) -> str:
    """The visible text of a page, with a space between two cells of a table."""
    body = re.sub(r"<style>.*?</style>", "", source, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def page_of(folders: list[str], target: pathlib.Path) -> str:
    return pathlib.Path(compare_runs(folders, target)).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three seeds of VinePPO and two of GRPO; one of each was evaluated."""
    root = tmp_path_factory.mktemp("runs")
    runs = [
        compared_run(
            root / f"vine_{seed}", 0.6 + seed / 100, 400, REWARDS if seed == 1 else None,
            method="vineppo", seed=seed, log={"vines": seed},
        )
        for seed in (1, 2, 3)
    ]  # fmt: skip
    fewer = {"p0": [0.0], "p1": [1.0], "p2": [0.0]}
    runs += [
        compared_run(root / f"grpo_{seed}", 0.5 + seed / 100, 100, fewer if seed == 1 else None,
                  method="grpo", seed=seed)
        for seed in (1, 2)
    ]  # fmt: skip
    return [str(run) for run in runs]


@pytest.fixture(scope="module")
def source(folders, tmp_path_factory) -> str:
    return page_of(folders, tmp_path_factory.mktemp("page") / "new")


def test_runs_that_differ_in_their_seed_are_one_group(folders):
    groups = group_runs(read_runs(folders))
    assert [group.label for group in groups] == ["vine, 3 seeds", "grpo, 2 seeds"]
    assert differing_settings(groups) == [("method", ["vineppo", "grpo"])]
    alone = group_runs(read_runs([folders[0], folders[3]]))
    assert [group.label for group in alone] == ["vine_1", "grpo_1"]


def test_runs_of_one_seed_are_not_said_to_be_of_several(tmp_path, capsys):
    """Runs that differ in their workdirs alone, whose seed nobody has set, are one run."""
    runs = [str(compared_run(tmp_path / f"run_{i}", 0.6)) for i in (1, 2)]
    page = shown(page_of(runs, tmp_path / "page"))
    assert "run, 2 runs of 1 seed" in page and "2 seeds" not in page
    assert capsys.readouterr().out.startswith("warning: run, 2 runs of 1 seed: runs of one seed")


def test_a_curve_has_the_interval_of_what_it_is(folders):
    """Intervals are over seeds for several runs, and over problems for one."""
    several, single = group_runs(read_runs(folders[:3] + folders[3:4]))
    ends = [0.61, 0.62, 0.63]
    assert several.curve("tokens")[-1] == (1600.0, pytest.approx(iqm_interval([ends])))
    assert [point.x for point in several.curve("seconds")] == [0.0, 1.0, 2.0]
    point = single.curve("episodes")[1]
    assert point.x == 32.0 and point.accuracy == pytest.approx((0.355, 0.305, 0.405))


def test_a_run_that_was_extended_after_its_end_is_compared_at_the_same_iterations(tmp_path):
    """It has an evaluation at its first end, iteration 3, which the other run does not have."""
    folders = [compared_run(tmp_path / f"run_{seed}", 0.6, seed=seed) for seed in (1, 2)]
    lines = (folders[0] / "metrics.jsonl").read_text().splitlines()
    at_its_end = json.loads(lines[1]) | {"iteration": 3, "eval/pass_at_1": 0.3}
    (folders[0] / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(at_its_end)]) + "\n")
    (group,) = group_runs(read_runs(list(map(str, folders))))
    points = [(point.x, point.accuracy.value) for point in group.curve("iteration")]
    assert points == [(0, 0.2), (2, pytest.approx(0.4)), (4, pytest.approx(0.6))]


def test_the_page_has_the_numbers_of_the_runs(source):
    page = shown(source)
    vine, grpo = [0.61, 0.62, 0.63], [0.51, 0.52]
    low, high = iqm_interval([vine])[1:]
    assert f"0.620 [{low:.3f}, {high:.3f}]" in page
    difference = iqm_difference([vine], [grpo])
    assert f"+{difference.value:.3f} [+{difference.low:.3f}, +{difference.high:.3f}]" in page
    improvement = improvement_interval([vine], [grpo])
    assert f"{improvement.value:.2f} [{improvement.low:.2f}, 1.00]" in page
    # GRPO ends at 400 tokens, a quarter of what VinePPO's runs used: theirs are cut there.
    cut = iqm_interval([[0.2 + (x - 0.2) / 4 for x in vine]])
    assert f"validation at 400 tokens {cut.value:.3f} [" in page
    paired = paired_interval(REWARDS, {"p0": [0.0], "p1": [1.0], "p2": [0.0]})
    assert f"over problems: +{paired.difference:.3f} [{paired.low:.3f}, +{paired.high:.3f}]" in page
    assert "vine_2, vine_3, grpo_2" in page and "--mode=eval" in page
    assert "vineppo" in page and "log.vines" not in page


def test_the_page_loads_and_runs_nothing(source):
    page = Page(source)
    assert not re.search(r"https?:|//[a-z]|src=|url\(|@import|javascript:", source)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "a"})
    assert "default-src 'none'" in source and source.count("<svg") >= 6


def test_two_single_runs_have_no_interval_over_seeds(tmp_path):
    """Names that are alike are told apart by their folders, and hostile names stay text."""
    first = compared_run(tmp_path / "<b>a" / "run", 0.6, rewards=REWARDS, seed=1)
    second = compared_run(tmp_path / "b" / "run", 0.5, rewards={"other": [1.0]}, ppo={"clip": 0.1})
    source = page_of([str(first), str(second)], tmp_path)
    page = shown(source)
    assert "&lt;b&gt;a/run" in source and "<b>a/run" not in source
    assert "validation at 64 episodes 0.600 0.500 +0.100 1.00 [0.21, 1.00]" in page
    assert "test, at the ends of the runs 0.500 0.400 +0.100 1.00 [0.21, 1.00]" in page
    assert "over problems: evaluated on other problems" in page
    assert "ppo.clip 0.2 0.1" in page and "Without eval/test.jsonl" not in page


def test_runs_of_one_group_have_a_page_without_pairs(folders, tmp_path):
    page = shown(page_of(folders[:3], tmp_path))
    assert "None but the seed." in page and "Two by two" not in page


def test_runs_without_a_test_and_of_other_lengths(tmp_path, capsys):
    """A killed run has no test at its end, and curves are compared where both have them."""
    first = compared_run(tmp_path / "a", 0.6, method="rloo")
    lines = (first / "metrics.jsonl").read_text().splitlines(keepends=True)
    (first / "metrics.jsonl").write_text("".join(x for x in lines if '"test"' not in x))
    second = compared_run(tmp_path / "b", 0.5)
    capsys.readouterr()
    page = shown(page_of([str(first), str(second)], tmp_path))
    assert capsys.readouterr().out.startswith("a against b, validation at 64 episodes: 0.600")
    assert "test, at the ends of" not in page and "a 0.600 [0.550, 0.650] – 4" in page


def test_a_run_that_goes_on_after_its_end_has_no_test(tmp_path):
    """Its last test is of an iteration before that at which it is compared."""
    folders = [compared_run(tmp_path / "a", 0.6), compared_run(tmp_path / "b", 0.5, method="rloo")]
    assert [run.test for run in read_runs(list(map(str, folders)))] == [0.5, 0.4]
    with open(folders[0] / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"iteration": 4, "step": 5, "stage": "train"}) + "\n")
    assert [run.test for run in read_runs(list(map(str, folders)))] == [None, 0.4]


def refused(*paths: object) -> str:
    with pytest.raises(UserError) as caught:
        read_runs([str(path) for path in paths])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_compared_is_one_line(folders, tmp_path):
    one = folders[0]
    assert "needs the workdirs of two runs or more" in refused(one)
    assert "is given twice" in refused(one, one + "/")
    assert "is not the workdir of a run" in refused(one, tmp_path)
    assert "is not the workdir of a run" in refused(one, tmp_path / "nowhere")
    assert "is not the workdir of a run" in refused(one, f"{one}/metrics.jsonl")
    other = compared_run(tmp_path / "other", 0.5, data={"task": "vinejax.tasks.gsm8k"})
    assert "runs of different tasks cannot be compared" in refused(one, other)
    killed = compared_run(tmp_path / "killed", 0.5)
    (killed / "metrics.jsonl").write_text("")
    assert "has no evaluation on the validation split" in refused(one, killed)
    damaged = compared_run(tmp_path / "damaged", 0.5, rewards={"p": []})
    assert "test.jsonl:1: is damaged" in refused(one, damaged)


def test_a_log_without_its_first_evaluation_may_have_nothing_to_compare(tmp_path):
    """A damaged line was dropped: the first evaluation left is beyond the end of the other run."""
    first = compared_run(tmp_path / "a", 0.6, tokens=100)
    second = compared_run(tmp_path / "b", 0.5, tokens=10, method="rloo")
    lines = (first / "metrics.jsonl").read_text().splitlines(keepends=True)
    (first / "metrics.jsonl").write_text("".join(lines[1:]))
    message = r"a: the first evaluation .* at 200 tokens, and another run ends at 40; leave out"
    with pytest.raises(UserError, match=message):
        compare_runs([str(first), str(second)], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_a_folder_that_cannot_be_written_is_one_line(folders, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        compare_runs(folders, tmp_path / "file")


def test_the_mode_takes_workdirs_and_no_config(folders, tmp_path, monkeypatch, capsys):
    flags = {"mode": "compare", "config": None, "workdir": str(tmp_path / "page")}
    flags |= {"sets": None, "push": None, "policy": None}
    monkeypatch.setattr(command, "FLAGS", type("Flags", (), flags))
    assert command.main(["vinejax", *folders]) == 0
    assert (tmp_path / "page" / "compare.html").exists()
    assert "compare.html" in capsys.readouterr().out
    monkeypatch.setattr(command, "FLAGS", type("Flags", (), flags | {"config": "configs/tiny.py"}))
    with pytest.raises(UserError, match="leave out --config"):
        command.main(["vinejax", *folders])
