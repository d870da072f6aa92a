"""The model card: what it says about a run, and what it must not say."""

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
from etils import epath
from huggingface_hub import ModelCard, ModelCardData
from matplotlib.image import imread

from vinejax.core.settings import Config, as_tree
from vinejax.records.read import Record
from vinejax.runtime.workdir import flatten_names
from vinejax.statistics.accuracy import accuracy_metrics
from vinejax.tools.hub.card import CardFacts, changed_settings, model_card, settings_file
from vinejax.tools.hub.evaluations import Evaluation, Measured, evaluations_of, iteration_of
from vinejax.tools.hub.origins import Origin, base_model, data_set
from vinejax.tools.hub.picture import picture_of
from vinejax.tools.hub.public_settings import last_part, public_settings

TOKEN = "hf_abcdefghijklmnopqrstuv"


def settings(**changes: Any) -> dict[str, Any]:
    """All recorded settings, by dotted names; `changes` with '__' for the dot."""
    found = json.loads(json.dumps(flatten_names(as_tree(Config()))))
    return found | {name.replace("__", "."): value for name, value in changes.items()}


def facts(**changes: Any) -> CardFacts:
    test = Evaluation("test", 20, {"pass@1": Measured(0.5, 0.25, 0.75)}, 16, 256)
    start = Evaluation("test", 0, {"pass@1": Measured(0.125, None, None)}, 16, 256)
    of_a_run = CardFacts(
        repository="org/model",
        iteration=20,
        settings=settings(),
        base=Origin("Qwen/Qwen2.5-0.5B", True),
        data=Origin("openai/gsm8k", True),
        evaluations=[start, test],
        prompt="",
        picture="training_curves.png",
        versions={"vinejax": "0.1.0", "jax": "0.12", "flax": None},
        revision="abc-dirty",
        generation={},
    )
    return of_a_run._replace(**changes)


def metadata_of(facts: CardFacts) -> ModelCardData:
    return cast(ModelCardData, ModelCard(model_card(facts)).data)


def test_the_metadata_is_what_the_hub_expects():
    data = metadata_of(facts())
    assert data.base_model == "Qwen/Qwen2.5-0.5B" and data.datasets == ["openai/gsm8k"]
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.tags == ["vinejax", "vineppo", "reinforcement-learning"]
    assert metadata_of(facts(settings=settings(method="sft"))).tags == ["vinejax", "sft"]
    assert data.license is None
    assert data.model_name == "org/model" and data.eval_results is not None
    (result,) = data.eval_results
    assert (result.dataset_type, result.dataset_split) == ("openai/gsm8k", "test")
    assert (result.metric_type, result.metric_value) == ("pass@1", 0.5)
    assert result.dataset_args == {"problems": 256, "samples": 16}


def test_names_that_are_not_on_the_hub_are_no_metadata():
    """The base and the data of a local folder are named in the text, and make no result."""
    local = facts(base=Origin("my_start", False), data=Origin("my_data", False))
    card = ModelCard(model_card(local))
    assert "base_model" not in card.data.to_dict() and "datasets" not in card.data.to_dict()
    assert metadata_of(local).eval_results is None
    assert "| start | `my_start` |" in card.text and "(`my_data`)" in card.text
    other = facts(iteration=30)  # another policy than that of the evaluation
    assert metadata_of(other).eval_results is None


def test_the_text_says_what_was_trained_and_measured():
    text = model_card(facts())
    assert "[Qwen/Qwen2.5-0.5B](https://huggingface.co/Qwen/Qwen2.5-0.5B) after 20 iterat" in text
    assert "| method | VinePPO: step advantages" in text and "arxiv.org/abs/2410.01679" in text
    assert "| test (256 problems, 16 samples each) | start | 12.5% |" in text
    measured = "| after 20 iterations | 50.0% (25.0% to 75.0%) |"
    assert f"| test (256 problems, 16 samples each) {measured}" in text
    assert "](training_curves.png)" in text and "kazemnejad2025vineppo" in text
    assert "vinejax 0.1.0, jax 0.12, commit abc-dirty of vinejax" in text
    assert "{" not in text.partition("```bibtex")[0].partition("# model")[2]
    assert "| solutions per iteration | 64 problems, 8 each; up to 9 continuations" in text
    assert "solutions per" not in model_card(facts(settings=settings(method="sft")))
    for own, count in ((None, "all"), (500, "500")):
        restem = settings(method="restem", restem__problems=own)
        assert f"iteration | {count} problems, 8 each |" in model_card(facts(settings=restem))
    bare = model_card(facts(evaluations=[], picture="", base=Origin("", False)))
    assert "was not evaluated" in bare and "training_curves" not in bare
    assert "A new model after 20" in bare


@pytest.mark.parametrize("chat", [False, True])
def test_the_example_is_python_with_the_sampling_of_evaluations(chat: bool):
    changes: dict[str, Any] = dict(data__chat_template=chat, data__system="Be 'brief'.")
    changes |= dict(sample__stop=["\n\n"], sample__top_k=7)
    changes |= dict(data__template_vars=["level=very high", "thinking=false", "depth=3"])
    text = model_card(facts(settings=settings(**changes, eval__temperature=0.5)))
    code = text.partition("```python\n")[2].partition("```")[0]
    compile(code, "card", "exec")
    assert "temperature=0.5, top_p=0.9, top_k=7, stop_strings=['\\n\\n']" in code
    assert ("level='very high', thinking=False, depth=3)" in code) == chat
    assert ("apply_chat_template" in code) == ("\"Be 'brief'.\"" in code) == chat
    greedy = model_card(facts(settings=settings(eval__temperature=0.0)))
    assert "do_sample=False\n)" in greedy
    penalised = model_card(facts(generation={"repetition_penalty": 1.1, "top_k": 20}))
    assert "repetition_penalty=1.0\n)" in penalised and "no_repeat" not in penalised
    shown = model_card(facts(prompt="1+'2'=\n```"))
    assert f"prompt = {'1+' + chr(39) + '2' + chr(39) + '=' + chr(10) + '```'!r}\n" in shown


def test_settings_are_the_changed_ones_and_a_file_has_all():
    changed = settings(method="grpo", ppo__clip=0.1, sample__stop=["```\n"])
    assert dict(changed_settings(changed)) == {
        "method": "grpo",
        "ppo.clip": 0.1,
        "sample.stop": ["```\n"],
    }
    text = model_card(facts(settings=changed))
    assert 'sample.stop: ["```\\n"]' in text  # no line begins with a fence
    record = json.loads(settings_file(facts(settings=changed)))
    assert record["config"] == changed and record["iteration"] == 20


def test_secrets_and_places_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MY_API_KEY", "a-key-of-mine")
    found = public_settings(
        settings(
            model__path=os.fspath(tmp_path / "start"),
            data__path="~/problems/",
            model__architecture="C:\\models\\config.json",
            reward__functions=["/home/me/rewards.py:exact", "task"],
            code__url="http://me:secret@10.0.0.1:80/run",
            compile_cache="gs://bucket/cache",
            data__system=f"/no_think {TOKEN}",
            data__template="{question} a-key-of-mine",
            log__wandb="internal",
            serve__key="abc",
            some__api_token="abc",
            prior="https://me:secret@host/a/prior?key=1",
            sdpo__text=" / {solution} /",
        )
    )
    assert found["sdpo.text"] == " / {solution} /"
    assert found["model.path"] == "start" and found["data.path"] == "problems"
    assert found["model.architecture"] == "config.json"
    assert found["reward.functions"] == ["rewards.py:exact", "task"]
    assert found["data.system"] == "/no_think ***" and found["data.template"] == "{question} ***"
    assert found["prior"] == "prior"
    text = json.dumps(found)
    for hidden in ("secret", "10.0.0.1", "bucket", "internal", "api_token", TOKEN, "me/"):
        assert hidden not in text
    assert "serve.key" not in found and "compile_cache" not in found
    assert found["sample.max_tokens"] == 1024  # no secret, whatever its name
    assert found["data.task"] == "vinejax.tasks.arithmetic"


@pytest.mark.parametrize(
    "path, last",
    [("configs/tiny_start", "configs/tiny_start"), ("gs://b/c/d/", "d"), ("/a/b.c", "b.c")]
    + [("Qwen/Qwen3", "Qwen/Qwen3"), ("~me/x", "x"), ("", ""), ("s3://bucket", "")]
    + [("/home/my rows/a.csv", "a.csv"), ("textarena game=Hangman-v0", "textarena game=Hangman-v0")]
    + [("rows file=/home/me/a.csv n=3", "rows file=a.csv n=3"), ("rows file=~/b", "rows file=b")]
    + [("rows url=http://10.0.0.1:80", "rows url="), ("rows url=http://h:80/a/b", "rows url=b")]
    + [("rows api_key=abc n=3", "rows api_key=*** n=3"), ("game:Sokoban-v0", "game:Sokoban-v0")],
)
def test_the_last_part_of_a_path(path: str, last: str):
    assert last_part(path) == last


# --- where a run comes from


def test_the_base_is_found_through_runs_and_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    def folder(name: str, file: str, content: dict) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(json.dumps(content))
        return name

    def run(name: str, path: str) -> str:
        record = {"git_revision": None, "config": {"model": {"path": path}}}
        return folder(name, "config.json", record)

    adapters = folder("peft", "adapter_config.json", {"base_model_name_or_path": "org/base"})

    def base_of(path: str) -> Origin:
        return base_model(path, lambda name: name in ("org/base", "gpt2"))

    first = run("sft", adapters)
    assert base_of(run("rl", os.fspath(tmp_path / first))) == Origin("org/base", True)
    assert base_of(run("of a folder that is gone", "runs/old")) == Origin("runs/old", False)
    local = folder("start", "config.json", {"model_type": "llama"})
    assert base_of(os.fspath(tmp_path / local)) == Origin("start", False)
    assert base_of(run("anew", "")) == Origin("", False)
    assert base_of("gpt2") == Origin("gpt2", True)
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    assert base_of("small.gguf") == Origin("small.gguf", False)


def test_a_data_set_of_the_hub_is_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def is_there(name: str) -> bool:
        asked.append(name)
        return name.startswith("openai/")

    gsm8k = settings(data__task="vinejax.tasks.gsm8k")
    assert data_set(gsm8k, is_there) == Origin("openai/gsm8k", True)
    assert data_set(settings(data__path="data/gone"), is_there) == Origin("data/gone", False)
    assert asked == ["openai/gsm8k", "data/gone"]
    (tmp_path / "openai/mine").mkdir(parents=True)
    assert data_set(settings(data__path="openai/mine"), is_there) == Origin("openai/mine", False)
    assert data_set(settings(), is_there) == Origin("", False)
    contributed = settings(data__task="vinejax.tasks.gem")  # whose library may be missing
    assert data_set(contributed, is_there) == Origin("", False)
    assert len(asked) == 2


# --- what was measured


def test_evaluations_are_those_of_the_start_and_of_the_policy(tmp_path: Path):
    records = [
        Record("eval", 0, {"eval/pass_at_1": 0.1, "eval/response_length": 9.0}),
        Record("eval", 10, {"eval/pass_at_1": 0.4}),
        Record("eval", 20, {"eval/pass_at_1": 0.6, "eval/maj_at_4": 0.7}),
        Record("train", 20, {"reward/mean": 0.5}),
        Record("test", 20, {"test/pass_at_1": 0.3}),
    ]
    workdir = epath.Path(tmp_path)
    found = evaluations_of(workdir, records, 20)
    assert [(x.problems, x.iteration) for x in found] == [
        ("test", 20),
        ("validation", 0),
        ("validation", 20),
    ]
    (tmp_path / "eval").mkdir()
    record = {"source": "best/20", "problems": 6, "samples": 2, "response_length": 3.0}
    record |= {"pass_at_1": 0.5, "pass_at_1_low": 0.4, "pass_at_1_high": 0.6}
    record |= {"org/data/pass_at_1": 1.0, "org/data/maj_at_2": 1.0, "math/part": 0.5}
    (tmp_path / "eval/test.json").write_text(json.dumps(record))
    (tmp_path / "eval/old.json").write_text(json.dumps(record | {"source": "best/10"}))
    (tmp_path / "eval/sets.json").write_text('{"rows": [{"set": "gsm8k"}]}')
    measured = {"pass_at_1": 0.5, "pass_at_1_low": 0.25, "pass_at_1_high": 0.75}
    named = {"problems": 30, "samples": 4, "start": measured, "result": None}
    sets = {"start": "warmup", "result": "checkpoints/20", "sets": {"aime24": named, "x": 1}}
    (tmp_path / "eval/named.json").write_text(json.dumps(sets))
    (tmp_path / "eval/half.json").write_text('{"source": "be')
    (tmp_path / "eval/list.json").write_text("[1]")
    found = evaluations_of(workdir, records, 20)
    assert found[0] == Evaluation("aime24", 0, {"pass@1": Measured(0.5, 0.25, 0.75)}, 4, 30)
    assert found[1] == Evaluation("test", 20, {"pass@1": Measured(0.5, 0.4, 0.6)}, 2, 6)
    assert found[2].problems == "test: org/data" and found[2].data == "org/data"
    assert set(found[2].metrics) == {"pass@1", "maj@2"} and found[2].num_problems is None
    assert [x.problems for x in found[3:]] == ["validation", "validation"]
    assert str(found[1].metrics["pass@1"]) == "50.0% (40.0% to 60.0%)"


def test_the_iteration_of_a_policy():
    sources = ("best/20", "checkpoints/3", "the start", "somewhere")
    assert [iteration_of(x) for x in sources] == [20, 3, 0, None]


def test_the_picture_has_a_panel_for_each_curve_there_is(tmp_path: Path):
    """Two records make a curve; points of the test alone make none."""
    once = [Record("train", 0, {"reward/mean": 0.5}), Record("test", 0, {"test/pass_at_1": 0.5})]
    assert picture_of(once) is None and picture_of([]) is None
    trained = [Record("train", i, {"actor/entropy": 1 / (i + 1)}) for i in range(60)]
    measured = {"eval/pass_at_1": 0.5, "eval/pass_at_1_low": 0.4, "eval/pass_at_1_high": 0.6}
    both = [*trained, *(Record("eval", i, measured) for i in (0, 50)), *once]
    sizes = []
    for records in (trained, both):
        picture = picture_of(records)
        assert picture is not None and picture == picture_of(records)
        (tmp_path / "a.png").write_bytes(picture)
        sizes.append(imread(tmp_path / "a.png").shape[:2])
    assert sizes[0] == (360, 552) and sizes[1] == (360, 1104)


def test_an_interval_of_no_width_may_miss_its_value_by_a_rounding():
    """As of 30 problems with 9 right samples of 10 each."""
    measured = accuracy_metrics([[1.0] * 9 + [0.0]] * 30, [[None] * 10] * 30)
    assert measured["pass_at_1_high"] < measured["pass_at_1"]
    values = {f"test/{name}": value for name, value in measured.items()}
    trained = [Record("train", i, {"reward/mean": 0.5}) for i in range(2)]
    picture = picture_of([*trained, Record("test", 1, values)])
    assert picture is not None and picture.startswith(b"\x89PNG")
