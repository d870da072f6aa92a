"""Checkpoints: one folder per iteration, written in the background, found again on resume.

A checkpoint of a run has three items, `params`, `optimizer` (the optimizer state and the step) and
`meta` (JSON), so that inference loads the weights alone; `critic` has the train state of a critic,
and `tracker` a value tracker, if the method has one. Orbax writes into a temporary folder and
renames it, so an interrupted save is ignored. Every process of a run makes every call.
"""

import os
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import PyTree

from vinejax.errors import WorkdirError
from vinejax.types import RunState, TrainState, ValueTracker

Args = ocp.args


class Checkpoints:
    """The checkpoints `<folder>/<iteration>/`, of which the newest `keep` stay.

    A context manager; leaving it waits for the save in progress.
    """

    def __init__(self, folder: str | os.PathLike, keep: int):
        """Opens or creates `folder`, an absolute path. Raises WorkdirError if it cannot be used."""
        self.folder = epath.Path(folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(self.folder, options=options)
        except OSError as error:
            raise WorkdirError(f"{self.folder}: cannot be used ({_brief(error)})") from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def latest(self) -> int | None:
        """Iteration of the newest complete checkpoint, None without one."""
        return self._manager.latest_step()

    def save(self, iteration: int, state: RunState, meta: dict[str, Any]) -> None:
        """Starts to save; the arrays may be donated as soon as this returns.

        A checkpoint of the same iteration stays as it is, because a run repeats itself exactly.
        Later checkpoints are deleted: they are of an earlier process, which had got further.
        Raises WorkdirError if this save, or the save before, cannot be written.
        """
        self._save(iteration, _trees(state), meta)

    def save_params(self, iteration: int, params: PyTree, meta: dict[str, Any]) -> None:
        """Saves weights alone, which are not trained further; else like `save`."""
        self._save(iteration, {"params": params}, meta)

    def restore(self, iteration: int, like: RunState) -> tuple[RunState, dict[str, Any]]:
        """The state and `meta` as they were saved.

        `like` has arrays or `jax.ShapeDtypeStruct`s with the dtypes and shardings of the result.
        Raises WorkdirError if there is no such checkpoint, it is damaged, or it has other shapes.
        """
        items = self._restore(iteration, _trees(like))
        policy = TrainState(params=items["params"], **items["optimizer"])
        critic = None
        if like.critic is not None:
            critic = TrainState(**{name: items["critic"][name] for name in TrainState._fields})
        tracker = None
        if like.tracker is not None:
            tracker = ValueTracker(**items["tracker"])
            self._check_problems(iteration, len(tracker.alpha), len(like.tracker.alpha))
        return RunState(policy, critic, tracker), items["meta"]

    def meta(self, iteration: int) -> dict[str, Any]:
        """The meta of a checkpoint, without reading any array."""
        return self._restore(iteration, {})["meta"]

    def restore_params(self, iteration: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """The weights and `meta`. The optimizer state and a critic are not read, even if saved."""
        items = self._restore(iteration, {"params": like})
        return items["params"], items["meta"]

    def close(self) -> None:
        """Waits for the save in progress. Raises WorkdirError if it cannot be written."""
        try:
            self._manager.close()
        except (OSError, ValueError) as error:
            raise WorkdirError(f"{self.folder}: cannot be written ({_brief(error)})") from error

    def _save(self, iteration: int, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        steps = self._manager.all_steps()
        if iteration in steps:
            return
        items = {name: Args.StandardSave(tree) for name, tree in trees.items()}
        args = Args.Composite(**items, meta=Args.JsonSave(meta))
        try:
            for later in [step for step in steps if step > iteration]:
                self._manager.delete(later)
            self._manager.save(iteration, args=args, force=True)
        except (OSError, ValueError) as error:
            raise WorkdirError(f"{self.folder}: cannot be written ({_brief(error)})") from error

    def _restore(self, iteration: int, like: dict[str, Any]) -> Any:
        folder = self.folder / str(iteration)
        if iteration not in self._manager.all_steps():
            raise WorkdirError(f"{folder}: no such checkpoint")
        items = {
            name: Args.StandardRestore(jax.tree.map(_abstract, tree)) for name, tree in like.items()
        }
        args = Args.Composite(**items, meta=Args.JsonRestore())
        try:
            return self._manager.restore(iteration, args=args)
        except jax.errors.JaxRuntimeError:  # an error of the devices, such as no memory left
            raise
        except Exception as error:  # Orbax raises many kinds, a bare Exception among them
            rule = "is damaged, or of another model; without it the one before it is used"
            raise WorkdirError(f"{folder}: {rule} ({_brief(error)})") from error

    def _check_problems(self, iteration: int, saved: int, wanted: int) -> None:
        """Raises WorkdirError unless the numbers are equal: Orbax does not compare NumPy arrays."""
        if saved != wanted:
            folder = self.folder / str(iteration)
            rule = f"has values of {saved} train problems, and the data has {wanted}"
            raise WorkdirError(f"{folder}: {rule}; restore the data, or choose another --workdir")


def find_policy(workdir: epath.Path, policy: str) -> tuple[str, int] | None:
    """(folder of the workdir, iteration) of the checkpoint with a run's policy; None without one.

    `policy` 'last' is the newest checkpoint, 'best' the checkpoint with the best accuracy on
    validation. If there is no 'best' because nothing was evaluated yet, it is the newest; if there
    is none because the start was better than all evaluated checkpoints, None.
    """
    folders = ("best", "checkpoints") if policy == "best" else ("checkpoints",)
    for name in folders:
        if not (workdir / name).exists():
            continue
        with Checkpoints(workdir / name, keep=1) as checkpoints:
            step = checkpoints.latest()
            if step is None:
                continue
            # Checkpoints without this field, by earlier versions, count as not evaluated.
            has_been_worse = name != "best" and checkpoints.meta(step).get("evaluated", 0) > 0
            return None if policy == "best" and has_been_worse else (name, step)
    return None


def _trees(state: RunState) -> dict[str, Any]:
    """The items of a checkpoint for a state, by their names."""
    policy = state.policy
    trees = {
        "params": policy.params,
        "optimizer": {"step": policy.step, "opt_state": policy.opt_state},
    }
    if state.critic is not None:
        # The empty entry is part of the format since the first version.
        trees["critic"] = state.critic._asdict() | {"critic": {}}
    if state.tracker is not None:
        trees["tracker"] = state.tracker._asdict()
    return trees


def _abstract(leaf: object) -> jax.ShapeDtypeStruct | np.ndarray:
    """Shape, dtype and sharding of an array; a NumPy array is restored on the host."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return np.asarray(leaf)


def _brief(error: Exception) -> str:
    """The first line of an error message; those of Orbax can be pages long."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
