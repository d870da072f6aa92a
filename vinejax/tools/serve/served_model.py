"""The model that is served: a folder, or the newest weights of a run, which may still train."""

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from etils import epath
from jax.sharding import Mesh

from vinejax.core.errors import ModelError
from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer
from vinejax.methods.compose import method_of
from vinejax.model.decoder import Decoder
from vinejax.model.hf.weights import RewardModel
from vinejax.runtime.checksums import read_checksums
from vinejax.tools.serve.scheduler import Weights
from vinejax.training.export import load_reward_model
from vinejax.training.start_weights import WARM_UP, load_trained, load_weights

CHECKPOINTS = "checkpoints"  # in the workdir of a run
RELOAD_S = 10.0  # seconds between two looks for a newer checkpoint


class ServedModel(NamedTuple):
    """A model with its first weights, and the name that clients use."""

    name: str
    model: Decoder
    tokenizer: Tokenizer
    weights: Weights
    step: int | None  # iteration of the newest checkpoint before they were loaded


def load_served(cfg: Config, workdir: epath.Path, mesh: Mesh) -> ServedModel:
    """The newest checkpoint of the run in `workdir` or, without one, the weights of its start.

    The start is `model.path` or, if that is empty, the warm-up in the workdir. Raises ModelError if
    there is neither.
    """
    step = newest_checkpoint(workdir / CHECKPOINTS)
    if step is not None:
        trained = load_trained(workdir, workdir / CHECKPOINTS, mesh)
        weights = Weights(trained.params, trained.source)
        model, tokenizer, name = trained.model, trained.tokenizer, workdir.name
    else:
        path = cfg.model.path or os.fspath(workdir / WARM_UP)
        if not cfg.model.path and not (workdir / WARM_UP).exists():
            message = "no run with a checkpoint, and model.path is empty; set --config.model.path"
            raise ModelError(f"{workdir}: {message} to a model's folder")
        model, params, tokenizer = load_weights(path, mesh)
        weights = Weights(params, "the start")
        name = os.path.basename(os.path.abspath(path)) if cfg.model.path else workdir.name
    return ServedModel(name, model.computing(cfg.model), tokenizer, weights, step)


def newest_checkpoint(folder: epath.Path) -> int | None:
    """The iteration of the newest complete checkpoint in a folder that a run may be writing to."""
    if not folder.exists():
        return None
    steps = sorted((int(x.name) for x in folder.iterdir() if x.name.isdigit()), reverse=True)
    for step in steps:
        try:
            if read_checksums(folder / str(step)) is not None:
                return step
        except (OSError, ValueError):  # the run is deleting it
            continue
    return None


class NewerWeights:
    """Looks for newer checkpoints of a run, on a thread of its own, and hands them over."""

    def __init__(
        self,
        workdir: epath.Path,
        mesh: Mesh,
        step: int | None,
        replace: Callable[[Weights], None],
    ):
        """`step` is the iteration of the newest checkpoint before the served weights were loaded.

        Loading takes minutes for a large model, in which the run may write its last checkpoint.
        """
        self._workdir, self._mesh, self._step, self._replace = workdir, mesh, step, replace
        self._reported = ""  # the error of the latest look, '' if it had none
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="newer weights", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after the weights that it may be loading."""
        self._is_over.set()
        self._thread.join()

    def look(self) -> None:
        """Loads the newest checkpoint if it is another one.

        A line says why it cannot be loaded, unless the look before has said the same.
        """
        folder = self._workdir / CHECKPOINTS
        try:
            step = newest_checkpoint(folder)
            if step is None or step == self._step:
                self._reported = ""
                return
            trained = load_trained(self._workdir, folder, self._mesh)
        # The run may have deleted it meanwhile, or a device has no memory for a second copy. With
        # another error than these, too, the server goes on, and looks again.
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            if why != self._reported:
                print(f"vinejax: {folder}: no newer weights are served ({why:.300})", flush=True)
            self._reported = why
            return
        self._step, self._reported = step, ""
        print(f"serves {trained.source} from now on", flush=True)
        self._replace(Weights(trained.params, trained.source))

    def _run(self) -> None:
        while not self._is_over.wait(RELOAD_S):
            self.look()


class LearnedValues:
    """The probe or critic of a run's newest checkpoint, loaded when it is first asked for."""

    def __init__(self, cfg: Config, workdir: epath.Path):
        self._cfg, self._workdir = cfg, workdir
        self._lock = threading.Lock()
        self._loaded: tuple[int, RewardModel] | None = None

    def __call__(self) -> tuple[str, RewardModel] | None:
        """('probe' or 'critic', the value model); None if the run has none, or no checkpoint."""
        step = newest_checkpoint(self._workdir / CHECKPOINTS)
        if step is None:
            return None
        with self._lock:
            if self._loaded is None or self._loaded[0] != step:
                found = load_reward_model(self._cfg, self._workdir)
                if found is None:
                    return None
                scorer = found[0]
                model = scorer.model.computing(self._cfg.model)
                self._loaded = step, scorer._replace(model=model)
            kind = "critic" if method_of(self._cfg).state.has_critic else "probe"
            return kind, self._loaded[1]
