"""`--mode=export`: writes the policy of a run, and its value model, as Hugging Face folders."""

import functools
import os

from etils import epath

from vinejax.core.errors import WorkdirError
from vinejax.core.settings import Config, SampleConfig
from vinejax.core.text import Tokenizer, special_tokens, token_text
from vinejax.methods.compose import method_of
from vinejax.methods.stages import HIDDEN
from vinejax.model.hf.peft import save_adapters
from vinejax.model.hf.weights import RewardModel, save_pretrained, save_reward_model
from vinejax.model.sharding import make_mesh
from vinejax.runtime.checkpoint import Checkpoints, find_policy, find_trained
from vinejax.runtime.devices import on_devices
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.workdir import check_workdir, resolved_folder
from vinejax.tasks.prompts import encode_within
from vinejax.training.start_weights import WARM_UP, Trained, load_trained, load_weights

FOLDER, ADAPTERS, REWARD_MODEL = "export", "adapters", "reward_model"  # folders of the workdir


def export_run(
    cfg: Config, path: str | os.PathLike, policy: str = "best"
) -> tuple[epath.Path, str]:
    """Writes a checkpoint's weights, in the float32 of training, to `<workdir>/export`.

    `policy` 'last' is the newest checkpoint. 'best' is the checkpoint with the best validation
    accuracy or, if no checkpoint was better than the start, the newest. Architecture and tokenizer
    are those of the model that the run started from. Its generation_config.json has the ids at
    which the run's responses ended (`stop_ids`). Adapters are merged into the weights, and also
    written separately, for PEFT, to `<workdir>/adapters`. The newest checkpoint's critic or probe
    is written to `<workdir>/reward_model` (`save_reward_model`).

    Returns (folder of the policy, name of its checkpoint). Raises WorkdirError without a
    checkpoint.
    """
    workdir, cfg = check_workdir(cfg, path), on_devices(cfg)
    checkpoint = find_trained(workdir, policy)
    if checkpoint is None:
        raise WorkdirError(f"{workdir}: holds no checkpoint to export; --mode=train makes one")
    trained = load_trained(workdir, workdir / checkpoint[0], make_mesh(cfg.mesh))
    save_pretrained(
        workdir / FOLDER,
        trained.model,
        trained.params,
        trained.tokenizer,
        stop_ids=stop_ids(cfg.sample, trained.tokenizer),
    )
    folders = [workdir / FOLDER]
    if trained.adapters is not None:
        start = _start(trained, workdir)
        folders.append(workdir / ADAPTERS)
        save_adapters(folders[1], trained.model, trained.adapters, trained.settings, start)
    if is_writer():
        print(f"{trained.source} is now in {' and '.join(map(str, folders))}")
    source = _export_reward_model(cfg, workdir)
    if source and is_writer():
        print(f"the values of {source} are now in {workdir / REWARD_MODEL}")
    barrier("the end")
    return workdir / FOLDER, trained.source


def stop_ids(sample: SampleConfig, tokenizer: Tokenizer) -> set[int]:
    """The single tokens at which a run with these settings ended a response, beside EOS.

    They are those of `sample.stop_ids`, and the stop strings that are one token.
    """
    special, text_of = special_tokens(tokenizer), token_text(tokenizer)
    ids = {*sample.stop_ids, *(special[text] for text in sample.stop if text in special)}
    for text in sample.stop:
        tokens = encode_within(tokenizer, text)
        if len(tokens) == 1 and text_of(tokens[0]) == text:  # not the id of an unknown character
            ids.add(tokens[0])
    return ids


def _start(trained: Trained, workdir: epath.Path) -> str:
    """The weights that a run started from, as an absolute path or the name of a model on the hub.

    PEFT may read the path in another folder, and does not expand `~`.
    """
    path = trained.settings.path or os.fspath(workdir / WARM_UP)
    folder = resolved_folder(path)
    return os.fspath(folder) if folder.is_dir() else path


def _export_reward_model(cfg: Config, workdir: epath.Path) -> str | None:
    """Writes the newest checkpoint's critic or probe; returns the checkpoint's name.

    Without a critic or a probe nothing is written, and the result is None.
    """
    if (found := load_reward_model(cfg, workdir)) is None:
        return None
    scorer, trained = found
    save_reward_model(workdir / REWARD_MODEL, scorer, trained.tokenizer)
    return trained.source


def load_reward_model(cfg: Config, workdir: epath.Path) -> tuple[RewardModel, Trained] | None:
    """(the newest checkpoint's critic or probe as a reward model, the policy of that checkpoint).

    None without a checkpoint, and for a run that has neither a critic nor a probe.
    """
    state, newest = method_of(cfg).state, find_policy(workdir, "last")
    if newest is None or not (state.has_critic or HIDDEN in state.reads(cfg)):
        return None
    name, _ = newest
    trained = load_trained(workdir, workdir / name, mesh := make_mesh(cfg.mesh))
    iteration = int(trained.source.rpartition("/")[2])  # a run may have saved it meanwhile
    params = trained.params
    if state.has_critic and trained.adapters is not None:  # a critic's fit the start's weights
        params = load_weights(_start(trained, workdir), mesh)[1]
    with Checkpoints(workdir / name, keep=1) as checkpoints:
        restore = functools.partial(checkpoints.restore_kept, iteration)
        scorer = state.reward_model(cfg, trained.model, params, restore)
    return None if scorer is None else (scorer, trained)
