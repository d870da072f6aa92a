"""Tests `--mode=export`: the checkpoint it takes, and that it writes the policy itself."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from helpers import loop_cases as cases
from helpers.model_oracles import Model
from helpers.paths import CONFIGS
from helpers.tokenizer_cases import load

from vinejax.core.errors import ConfigError, ModelError, WorkdirError
from vinejax.core.settings import Config, MeshConfig, ModelConfig, SampleConfig
from vinejax.core.text import Tokenizer, special_tokens
from vinejax.core.types import RunState, TrainState
from vinejax.engine.branches import Branch
from vinejax.engine.engine import Engine
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.model.sharding import make_mesh
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.workdir import check_workdir, record_run
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.prompts import encode_prompt
from vinejax.training import export, start_weights
from vinejax.training.export import export_run, stop_ids
from vinejax.training.start_weights import Trained, load_unweighted, load_weights, model_folder
from vinejax.training.startup import open_session


def times(params: dict, factor: float) -> dict:
    return jax.tree.map(lambda x: x * factor, params)


def run_from(start: Path, params: dict, workdir: Path) -> Config:
    """Makes a workdir whose checkpoint of iteration 7 has `params`, started from a model folder."""
    cfg = Config(model=ModelConfig(path=str(start)))
    record_run(cfg, check_workdir(cfg, workdir))
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        state = RunState(TrainState(jax.numpy.int32(7), params, {}))
        checkpoints.save(7, state, {"best_accuracy": 0.5, "evaluated": 0})
    return cfg


@pytest.fixture
def run(tiny: Model, tmp_path: Path) -> tuple[Config, Path]:
    """A workdir with a checkpoint of iteration 7, weights times 7."""
    start, workdir = tmp_path / "start", tmp_path / "run"
    save_pretrained(start, *tiny)
    (start / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    return run_from(start, times(tiny.params, 7), workdir), workdir


def test_without_a_best_the_newest_is_exported(run, tiny, capsys):
    cfg, workdir = run
    folder, _ = export_run(cfg, workdir)
    assert folder == check_workdir(cfg, workdir) / "export"
    assert capsys.readouterr().out == f"checkpoints/7 is now in {workdir}/export\n"
    model, params, tokenizer = load_pretrained(folder)
    jax.tree.map(np.testing.assert_array_equal, params, times(tiny.params, 7))
    assert model.cfg == dataclasses.replace(tiny.decoder.cfg, eos_ids=(1, 5))
    assert (folder / "generation_config.json").read_text() == '{"eos_token_id": [1, 5]}'
    assert tokenizer.get_vocab() == tiny.tokenizer.get_vocab()


def test_an_export_ends_responses_where_the_run_did(run, tiny):
    """At stop ids and one-token stop strings, besides all EOS ids; other strings have no token."""
    cfg, workdir = run
    text = tiny.tokenizer.convert_ids_to_tokens(7)
    stops = SampleConfig(stop=(text, f"{text}{text}", "\N{SNOWMAN}"), stop_ids=(9,))
    assert stop_ids(stops, tiny.tokenizer) == {7, 9}
    cfg = dataclasses.replace(cfg, sample=stops)
    record_run(cfg, check_workdir(cfg, other := workdir.parent / "other"))
    (workdir / "checkpoints").rename(other / "checkpoints")
    folder, _ = export_run(cfg, other)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [1, 5, 7, 9]}
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == [1, 5]
    assert load_pretrained(folder)[0].cfg.eos_ids == (1, 5, 7, 9)


@pytest.mark.parametrize(
    "name, text, number",
    [
        ("minimind_6400", "<|im_end|>", None),
        ("gpt2", "\n", 198),
        ("gpt2", "\n\nQ", None),
        ("mistral_7b_v1", "\n", 13),
    ],
)
def test_stop_strings_of_one_token(name: str, text: str, number: int | None):
    tokenizer = load(name)
    special = special_tokens(tokenizer).get(text)
    expected = {special, number} - {None}
    assert stop_ids(SampleConfig(stop=(text,)), tokenizer) == expected


def test_the_best_is_exported_unless_the_last_is_asked_for(run, tiny):
    cfg, workdir = run
    with Checkpoints(workdir / "best", keep=1) as best:
        best.save_params(3, times(tiny.params, 3), {"pass_at_1": 0.5})
    for policy, factor in (("best", 3), ("last", 7), ("best", 3)):
        params = load_pretrained(export_run(cfg, workdir, policy)[0])[1]
        jax.tree.map(np.testing.assert_array_equal, params, times(tiny.params, factor))


def test_exported_adapters_name_a_base_that_other_programs_find(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """PEFT may run in another folder, and transformers does not know `~`."""
    (tmp_path / "base").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    workdir = epath.Path(tmp_path / "run")

    def base_for(path: str) -> str:
        settings = ModelConfig(path=path)
        trained = Trained(tiny.decoder, {}, tiny.tokenizer, "best/1", settings, None)
        return export._start(trained, workdir)

    for path in ("~/base", "base", str(tmp_path / "base")):
        assert base_for(path) == str(tmp_path / "base")
    assert base_for("org/model") == "org/model"
    assert base_for("") == str(tmp_path / "run" / "warmup")


def test_what_cannot_be_exported(run, tiny, tmp_path):
    cfg, workdir = run
    with pytest.raises(WorkdirError, match="holds no checkpoint to export"):
        export_run(cfg, tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    other = dataclasses.replace(cfg, seed=3)
    with pytest.raises((WorkdirError, ConfigError), match="seed was 42 and is now 3"):
        export_run(other, workdir)
    (tmp_path / "start" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer.json is missing"):
        export_run(cfg, workdir)
    assert not (workdir / "export").exists()


# --- as users of transformers ask it

MOST_TOKENS = 48  # of an answer


def prompts() -> list[str]:
    task = Arithmetic()
    return [task.prompt(problem) for problem in task.load("train")[:32]]


def test_transformers_gives_the_prompts_of_an_export_the_ids_of_training(run):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(export_run(*run)[0]))
    ours = Arithmetic().tokenizer()
    for text in prompts():
        ids = theirs(text)["input_ids"]
        assert ids == encode_prompt(ours, text, chat_template=False) and ids[0] == 0


@pytest.mark.slow
def test_an_export_of_the_tiny_start_answers_in_transformers_as_here(tmp_path):
    """Greedy decoding as any user does it: tokenize the prompt, call the model."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    start, workdir = CONFIGS / "tiny_start", tmp_path / "run"
    model, params, tokenizer = load_pretrained(start)
    folder = str(export_run(run_from(start, params, workdir), workdir)[0])

    ids = [encode_prompt(tokenizer, text, chat_template=False) for text in prompts()]
    engine = Engine(model, SampleConfig(temperature=0.0, max_tokens=MOST_TOKENS), tokenizer)
    ours = engine.grow(params, ids, [Branch(i, len(x), i) for i, x in enumerate(ids)])

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, out in zip(prompts(), ours, strict=True):
        asked = their_tokenizer(text, return_tensors="pt")
        answer = theirs.generate(**asked, do_sample=False, max_new_tokens=MOST_TOKENS)
        assert answer[0, asked["input_ids"].shape[1] :].tolist() == out.tokens


# --- a run as the start of another


def test_a_run_starts_from_another_runs_policy(
    finished_run: cases.Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    run = finished_run.workdir
    monkeypatch.chdir(run.parent)
    cfg = cases.config(iterations=0, model={"path": run.name}, seed=7)
    with open_session(cfg, tmp_path / "new", trains=True) as session:
        found = session.load_reference()
    like = load_pretrained(str(run / "warmup"))[1]
    with Checkpoints(run / "checkpoints", keep=2) as checkpoints:
        expected = checkpoints.restore_params(3, like)[0]
    cases.assert_equal(found, expected)
    assert f"starts from checkpoints/3 of the run {run.name}" in capsys.readouterr().out
    assert json.loads((tmp_path / "new" / "config.json").read_text())["start"] == "checkpoints/3"
    # and a run that starts from that one, which has no policy of its own yet
    cfg = cases.config(model={"path": str(tmp_path / "new")})
    with pytest.raises(ModelError, match="a run without a checkpoint"):
        open_session(cfg, tmp_path / "third")
    assert model_folder(str(tmp_path / "new")) == str(run / "warmup")
    assert not (tmp_path / "third").exists()


def test_a_damaged_record_of_a_run_is_one_line(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"git_revision": null, "config": []}')
    with pytest.raises(ModelError, match=r"the config\.json of this run is damaged"):
        model_folder(str(tmp_path))


def test_a_tokenizer_beside_adapters_takes_the_place_of_the_bases(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    base, folder = tmp_path / "base", tmp_path / "adapters"
    save_pretrained(base, *tiny)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    monkeypatch.setattr(start_weights, "read_adapters", lambda *_: {"layers": {}})
    mesh = make_mesh(MeshConfig())

    def tokenizers() -> list[Tokenizer]:
        path = str(folder)
        return [load_unweighted(path)[1], load_weights(path, mesh)[2]]

    assert [x.chat_template for x in tokenizers()] == [None, None]
    own = load_unweighted(str(folder))[1]
    own.chat_template = "{{ messages[0].content }}"
    own.save_pretrained(folder)
    assert [x.chat_template for x in tokenizers()] == ["{{ messages[0].content }}"] * 2
