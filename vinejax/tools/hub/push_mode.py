"""`--mode=export --push=ORG/NAME`: the export of a run, with a model card, on the hub."""

import contextlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from vinejax.core.errors import UserError
from vinejax.core.settings import Config, as_tree
from vinejax.model.hf.tensors import TEMPORARY, read_json
from vinejax.model.hf.weights import GENERATION
from vinejax.records.read import JsonObject, RunRecords, read_run
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.workdir import is_remote, recorded_settings, resolved_folder, write_atomic
from vinejax.tools.hub.card import README, SETTINGS, CardFacts, model_card, settings_file
from vinejax.tools.hub.evaluations import evaluations_of, iteration_of
from vinejax.tools.hub.origins import base_model, data_set, is_of_core
from vinejax.tools.hub.picture import FILE, picture_of
from vinejax.tools.hub.public_settings import public_settings
from vinejax.tools.hub.upload import checked_name, is_data_set, is_model, push_files
from vinejax.training.export import export_run


def export_and_push(
    cfg: Config, path: str | os.PathLike, policy: str = "best", repository: str = ""
) -> epath.Path:
    """Exports as `export_run` does, writes a model card there, and pushes the folder to the hub.

    The first host pushes, and the others wait. Returns the folder. Raises HubError and UserError
    before anything is written if the hub cannot be used, and what `export_run` and `push_files`
    raise.
    """
    name = ""
    if is_writer():
        if importlib.util.find_spec("matplotlib") is None:
            raise UserError("--push draws the curves with matplotlib: pip install 'vinejax[hub]'")
        name = checked_name(repository)
    folder, source = export_run(cfg, path, policy)
    if is_writer():
        facts = write_card(resolved_folder(path), folder, name, iteration_of(source) or 0)
        with local_files(folder) as files:
            what = f"{facts.settings['method']}, {facts.iteration} iterations"
            pushed = push_files(files, name, f"{what}, by VineJAX")
        state = f"commit {pushed.commit[:12]}" if pushed.is_new else "which had it already"
        print(f"pushed to {pushed.url}, {state}")
    barrier("the push")
    return folder


def write_card(workdir: epath.Path, folder: epath.Path, repository: str, done: int) -> CardFacts:
    """Writes README.md, vinejax.json and the picture of the curves beside an exported policy.

    `done` is the number of finished iterations of the policy. Returns the contents of the card.
    """
    run = read_run(workdir, max_iterations=2)
    settings = _settings_of(run)
    versions: Any = run.config["versions"]
    picture = picture_of(run.records)
    generation = folder / GENERATION
    facts = CardFacts(
        repository=repository,
        iteration=done,
        settings=public_settings(settings),
        base=base_model(settings["model.path"], is_model),
        data=data_set(settings, is_data_set),
        evaluations=evaluations_of(workdir, run.records, done),
        prompt=example_of(run.episodes, settings),
        picture=FILE if picture else "",
        versions=versions,
        revision=run.config["git_revision"],
        generation=read_json(generation) if generation.exists() else {},
    )
    if picture:
        write_atomic(folder / FILE, picture)
    else:
        (folder / FILE).unlink(missing_ok=True)
    write_atomic(folder / SETTINGS, settings_file(facts))
    write_atomic(folder / README, model_card(facts))
    return facts


@contextlib.contextmanager
def local_files(folder: epath.Path) -> Iterator[dict[str, Path]]:
    """Maps the names of the files in a folder to local paths, within the context.

    Files of a remote folder are copied to a temporary one. Files of an export that was killed are
    left out, as are hidden files.
    """
    with contextlib.ExitStack() as stack:
        files = {}
        copy = Path()
        if is_remote(folder):
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vinejax-push-")))
        for file in folder.iterdir():
            if file.is_dir() or file.name.startswith(".") or file.name.endswith(TEMPORARY):
                continue
            files[file.name] = Path(os.fspath(file))
            if is_remote(folder):
                files[file.name] = copy / file.name
                file.copy(copy / file.name)
        yield files


def _settings_of(run: RunRecords) -> dict[str, Any]:
    """The recorded settings of a run, by dotted names, with the defaults of newer settings."""
    config: Any = run.config["config"]
    defaults = json.loads(json.dumps(recorded_settings(as_tree(Config()))))
    return defaults | recorded_settings(config)


def example_of(episodes: Mapping[int, list[JsonObject]], settings: Mapping[str, Any]) -> str:
    """A prompt of training, for tasks of the core with their own problems; '' for all others.

    A task of a user's may read private data, as may an environment of another library.
    """
    rows = [row for of_iteration in episodes.values() for row in of_iteration]
    if settings["data.path"] or not is_of_core(settings["data.task"]) or not rows:
        return ""
    return str(rows[0].get("prompt", ""))
