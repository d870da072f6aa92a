"""Saves checkpoints in the background, one folder per iteration, and restores them.

A checkpoint of a run has three items: `params`, `optimizer` (the optimizer state and the step) and
`meta` (JSON). So inference can load only the weights. The items `kept` and `options` have the state
of the method and of its options, if there is any. Orbax writes into a temporary folder and renames
it, so an interrupted save is ignored. Then checksums of the files are written (`checksums.py`), and
they are compared before any file is restored. Every process of a run makes the same calls.
"""

import contextlib
import gc
import json
import logging
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import PyTree
from orbax.checkpoint import checkpoint_managers as policies

from vinejax.core.errors import WorkdirError
from vinejax.core.types import RunState, TrainState
from vinejax.runtime.checksums import (
    find_damage,
    read_checksums,
    replace_file,
    write_checksums,
)
from vinejax.runtime.distributed import exchange, is_writer, process_place
from vinejax.runtime.remedies import MAKE_ROOM
from vinejax.runtime.workdir import is_remote

Args = ocp.args
Restored = TypeVar("Restored")


UNFINISHED = ".orbax-checkpoint-tmp"  # part of the name of Orbax's temporary folders
DELETED = "deleted"  # folder that old checkpoints are moved to, beside the others, and deleted from
META = "meta/metadata"  # the file in which Orbax writes the item `meta`
NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")


class DamagedError(WorkdirError):
    """A checkpoint differs from what was saved. `newest` then tries the checkpoint before it."""


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints `<folder>/<iteration>/`, of which only the newest `keep` are retained.

    This is a context manager, whose exit waits for the save in progress. A thread waits for each
    save and then writes its checksums, so the caller only waits for the copy to host memory.
    """

    def __init__(self, folder: str | os.PathLike, keep: int):
        """Opens or creates `folder`, an absolute path. Raises WorkdirError if it cannot be used.

        Args:
          folder: the folder that contains the checkpoints.
          keep: the number of newest checkpoints to retain.
        """
        self.folder = epath.Path(folder)
        self._replaceable: set[int] = set()  # iterations of damaged or outdated checkpoints
        self._save_thread: threading.Thread | None = None
        self._failure: Exception | None = None  # error of the save in the background
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.LatestN(keep),
            todelete_subdir=None if is_remote(self.folder) else DELETED,
        )
        logging.getLogger("absl").addFilter(_is_wanted)  # once, however often it is called
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(self.folder, options=options)
        except OSError as error:
            raise WorkdirError(f"{self.folder}: cannot be used ({_brief(error)})") from error

    def __exit__(self, *exception: object) -> None:
        self.close()

    def latest(self) -> int | None:
        """The iteration of the newest complete checkpoint; None if there is no checkpoint."""
        return self._manager.latest_step()

    def has(self, iteration: int) -> bool:
        """Whether an undamaged checkpoint of the iteration exists or is being saved."""
        return iteration in self._manager.all_steps() and iteration not in self._replaceable

    def save(self, iteration: int, state: RunState, meta: dict[str, Any]) -> None:
        """Starts to save a checkpoint. After the call, the arrays may be donated.

        Nothing is saved if the iteration already has an undamaged checkpoint, which would be equal.
        Otherwise any later checkpoints, which an earlier process has left, are deleted first.
        Raises WorkdirError if this checkpoint or the previous one cannot be written.
        """
        self._save(iteration, _trees(state), meta)

    def save_params(self, iteration: int, params: PyTree, meta: dict[str, Any]) -> None:
        """Like `save`, but saves weights without an optimizer state.

        A checkpoint of the iteration with another `meta`, which an earlier process has left, is
        replaced: on another mesh, or with another learning rate, its weights differ from `params`.
        """
        if self.has(iteration) and self.meta(iteration) != meta:
            self._replaceable.add(iteration)
        self._save(iteration, {"params": params}, meta)

    def renew_meta(self, iteration: int, meta: dict[str, Any]) -> None:
        """Replaces the `meta` of a complete checkpoint, whose arrays stay as they are.

        If the process dies meanwhile, the checkpoint has the old or the new `meta`. Raises
        WorkdirError if the file cannot be written.
        """
        self.wait()
        if not is_writer():
            return
        try:
            replace_file(self.folder / str(iteration), META, json.dumps(meta))
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error

    def restore(self, iteration: int, like: RunState) -> tuple[RunState, dict[str, Any]]:
        """(the saved state, the saved `meta`) of a checkpoint.

        `like` has arrays or `jax.ShapeDtypeStruct`s with the dtypes and shardings of the result.
        Raises DamagedError if the files differ from what was saved, and WorkdirError if there is no
        such checkpoint or if its shapes differ from `like`. If the checkpoint has no checksums, a
        printed line says so, and wrong shapes may raise DamagedError instead.
        """
        items = self._restore(iteration, _trees(like))
        policy = TrainState(params=items["params"], **items["optimizer"])
        method_state = None
        if like.kept is not None:
            method_state = type(like.kept)(
                **{name: items["kept"][name] for name in like.kept._fields}
            )
            self._check_shapes(iteration, method_state._asdict(), like.kept._asdict())
        options = None
        if like.options is not None:
            options = {name: items["options"][name] for name in like.options}
            self._check_shapes(iteration, options, like.options)
        return RunState(policy, method_state, options), items["meta"]

    def meta(self, iteration: int) -> dict[str, Any]:
        """The `meta` of a checkpoint. No array is read."""
        return self._restore(iteration, {})["meta"]

    def restore_params(self, iteration: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """(the saved weights, the saved `meta`) of a checkpoint. No other item is read."""
        items = self._restore(iteration, {"params": like})
        return items["params"], items["meta"]

    def restore_kept(self, iteration: int, like: dict[str, Any]) -> dict[str, Any]:
        """The saved values of those parts of the method's state that `like` has."""
        self._compare(iteration, ["kept"])
        like = jax.tree.map(abstract, like)
        each = ocp.checkpoint_utils.construct_restore_args(like)
        args = Args.PyTreeRestore(like, restore_args=each, partial_restore=True)
        with ocp.PyTreeCheckpointer() as reader:
            return reader.restore(self.folder / str(iteration) / "kept", args=args)

    def newest(self, restore: Callable[[int], Restored]) -> Restored | None:
        """The result of `restore` for the newest undamaged checkpoint; None without a checkpoint.

        `restore` takes an iteration. If it raises DamagedError, a printed line reports the damaged
        checkpoint, which stays until the next save of its iteration replaces it. Raises
        WorkdirError if all checkpoints are damaged.
        """
        failed: list[DamagedError] = []
        while untried := sorted(set(self._manager.all_steps()) - self._replaceable):
            if failed and is_writer():
                print(f"vinejax: {failed[-1]}; the checkpoint before it is used", file=sys.stderr)
            try:
                return restore(untried[-1])
            except DamagedError as error:
                failed.append(error)
            _collect_quietly()
            self._replaceable.add(untried[-1])
            self._manager.reload()  # another process may have saved one meanwhile
        if failed:
            message = "no checkpoint is left; restore one from a copy, or choose another --workdir"
            raise WorkdirError(f"{self.folder}: {message} ({failed[0]})") from failed[0]
        return None

    def check_newest(self) -> bool:
        """Whether the newest checkpoint is undamaged; True if there is no checkpoint.

        A printed line reports a damaged checkpoint, which the next save of its iteration replaces.
        """
        self._finish()
        iteration = self.latest()
        if iteration is None:
            return True
        try:
            items = [path.name for path in (self.folder / str(iteration)).iterdir()]
            self._compare(iteration, items)
        except DamagedError as error:
            self._replaceable.add(iteration)
            if is_writer():
                print(f"vinejax: {error}; the next one replaces it", file=sys.stderr)
            return False
        return True

    def wait(self) -> None:
        """Waits for the save in progress and its checksums. A failed save raises WorkdirError."""
        self._finish()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises the error of the save in the background, if that save has failed."""
        if isinstance(self._failure, (OSError, ValueError)):
            raise self._unwritable(self._failure) from self._failure
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Waits for the save in progress. Raises WorkdirError if the save cannot be written."""
        self._finish()
        try:
            self._manager.close()
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        self.raise_failure()

    def _unwritable(self, error: Exception) -> WorkdirError:
        full = next((words for words in NO_ROOM if words in str(error)), None)
        if full:
            return WorkdirError(f"{self.folder}: cannot be written ({full}); {MAKE_ROOM}")
        return WorkdirError(f"{self.folder}: cannot be written ({_brief(error)})")

    def _finish(self) -> None:
        """Waits for the thread of the previous save, if there is one."""
        if self._save_thread is not None:
            self._save_thread.join()
            self._save_thread = None

    def _seal(self, iteration: int) -> None:
        """Waits for a save and then writes its checksums. A separate thread runs this method."""
        try:
            self._manager.wait_until_finished()
            folder = self.folder / str(iteration)
            write_checksums(folder, iteration, *process_place())
            self._remove_leftovers()
        except Exception as error:  # `raise_failure` raises it in the main thread
            self._failure = error

    def _save(self, iteration: int, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        self.wait()
        steps = self._manager.all_steps()
        if iteration in steps and iteration not in self._replaceable:
            return
        items = {name: Args.StandardSave(tree) for name, tree in trees.items()}
        args = Args.Composite(**items, meta=Args.JsonSave(meta))
        try:
            self._remove_leftovers()
            if stale := [step for step in steps if step >= iteration]:
                for step in stale:
                    self._manager.delete(step)
                self._remove_leftovers()  # frees their room before the save
            self._replaceable -= set(stale)
            self._manager.save(iteration, args=args, force=True)
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        self._save_thread = threading.Thread(target=self._seal, args=(iteration,), name="checksums")
        self._save_thread.start()

    def _remove_leftovers(self) -> None:
        """Removes old checkpoints, and temporary folders of saves that processes did not finish.

        Orbax only replaces a temporary folder of the same iteration, and a run that is killed while
        it stops saves at any iteration. So each such kill would cost the room of a checkpoint for
        ever.

        A file that cannot be deleted, as on NFS while another process reads it, stays until a later
        save. Orbax would raise an error for it, so it only moves old checkpoints to `DELETED`. What
        stays gets another name, because Orbax cannot move a checkpoint to a name that is taken.
        """
        if is_writer() and not is_remote(self.folder):
            for path in self.folder.iterdir():
                if UNFINISHED in path.name or path.name.startswith(DELETED):
                    shutil.rmtree(path, ignore_errors=True)
                    if path.name == DELETED and path.exists():
                        path.rename(self.folder / f"{DELETED}-{uuid.uuid4().hex[:8]}")

    def _restore(self, iteration: int, like: dict[str, Any]) -> Any:
        folder = self.folder / str(iteration)
        self._finish()
        if iteration not in self._manager.all_steps():
            raise WorkdirError(f"{folder}: no such checkpoint")
        is_checked = self._compare(iteration, [*like, "meta"])
        items = {
            name: Args.StandardRestore(jax.tree.map(abstract, tree)) for name, tree in like.items()
        }
        args = Args.Composite(**items, meta=Args.JsonRestore())
        try:
            return self._manager.restore(iteration, args=args)
        except jax.errors.JaxRuntimeError:  # an error of the devices, such as no memory left
            raise
        except Exception as error:  # Orbax raises many kinds, a bare Exception among them
            if is_checked and _is_whole(folder):
                message = "is of another model or method; choose another --workdir"
                raise WorkdirError(f"{folder}: {message} ({_brief(error)})") from error
            message = f"is damaged, or of another model ({_brief(error)})"
            raise DamagedError(f"{folder}: {message}") from error

    def _compare(self, iteration: int, items: list[str]) -> bool:
        """Whether the checkpoint has checksums.

        Raises DamagedError if a file of one of `items` does not match its checksum.
        """
        folder = self.folder / str(iteration)
        try:
            recorded = read_checksums(folder)
            damage = None
            if recorded is not None:
                damage = find_damage(folder, recorded, items, *process_place())
        except (OSError, ValueError) as error:
            recorded, damage = None, _brief(error)
        of_hosts = exchange([damage, recorded is not None])  # all hosts have to decide alike
        damage = next((damage for damage, _ in of_hosts if damage), None)
        if damage:
            raise DamagedError(f"{folder}: is damaged ({damage})")
        has_checksums = all(is_there for _, is_there in of_hosts)
        if not has_checksums and is_writer():
            message = "has no checksums (not written yet, or its process died before)"
            print(f"vinejax: {folder}: {message}; it is used as it is", file=sys.stderr)
        return has_checksums

    def _check_shapes(self, iteration: int, restored: dict[str, Any], like: dict[str, Any]) -> None:
        """Raises WorkdirError if the shape of a NumPy array in `like` differs from the saved shape.

        Orbax itself does not raise an error for such an array.
        """
        for name, wanted in like.items():
            saved = restored[name]
            if isinstance(wanted, np.ndarray) and saved.shape != wanted.shape:
                folder = self.folder / str(iteration)
                message = f"keeps {name} of shape {saved.shape}, and this data needs {wanted.shape}"
                raise WorkdirError(
                    f"{folder}: {message}; restore the data, or choose another --workdir"
                )


def find_policy(workdir: epath.Path, policy: str) -> tuple[str, int] | None:
    """(folder in the workdir, iteration) of the checkpoint that `policy` names, or None.

    'last' names the newest checkpoint, and 'best' the checkpoint with the best validation accuracy.
    Before the first evaluation, 'best' names the newest checkpoint. If the initial policy was
    better than all evaluated checkpoints, the result for 'best' is None.
    """
    folders = ("best", "checkpoints") if policy == "best" else ("checkpoints",)
    for name in folders:
        if not (workdir / name).exists():
            continue
        with Checkpoints(workdir / name, keep=1) as checkpoints:
            newest = checkpoints.newest(lambda step: (step, checkpoints.meta(step)))
            if newest is None:
                continue
            step, meta = newest
            has_been_worse = policy == "best" and name != "best" and meta["evaluated"] > 0
            return None if has_been_worse else (name, step)
    return None


def find_trained(workdir: epath.Path, policy: str) -> tuple[str, int] | None:
    """The result of `find_policy` for `policy`; if this result is None, the result for 'last'."""
    return find_policy(workdir, policy) or find_policy(workdir, "last")


def restore_policy(folder: epath.Path, like: PyTree) -> tuple[PyTree, str]:
    """(the newest weights in a folder of checkpoints, '<name of the folder>/<iteration>').

    `like` has the shapes of the weights, as in `Checkpoints.restore`.
    """
    with Checkpoints(folder, keep=1) as checkpoints:
        newest = checkpoints.newest(lambda step: (checkpoints.restore_params(step, like)[0], step))
    if newest is None:
        raise WorkdirError(f"{folder}: holds no checkpoint any more")
    params, step = newest
    return params, f"{folder.name}/{step}"


def _trees(state: RunState) -> dict[str, Any]:
    """Maps the name of each item of a state's checkpoint to the item's arrays, except `meta`."""
    policy = state.policy
    trees = {
        "params": policy.params,
        "optimizer": {"step": policy.step, "opt_state": policy.opt_state},
    }
    if state.kept is not None:
        trees["kept"] = state.kept._asdict()
    if state.options is not None:
        trees["options"] = state.options
    return trees


def abstract(leaf: object) -> jax.ShapeDtypeStruct | np.ndarray:
    """The shape, dtype and sharding of a jax array; any other leaf as a NumPy array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return np.asarray(leaf)


def _is_whole(folder: epath.Path) -> bool:
    """Whether all files are there that the checksums of a checkpoint name; their bytes may differ.

    A run deletes its old checkpoints also while another process reads them.
    """
    try:
        recorded = read_checksums(folder)
    except (OSError, ValueError):
        return False
    return recorded is not None and all((folder / name).exists() for name in recorded.files)


def _brief(error: Exception) -> str:
    """The first line of an error message, cut in the middle to 300 characters if it is longer."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else f"{text[:140]} ... {text[-150:]}"


def _is_wanted(record: logging.LogRecord) -> bool:
    """Whether to show a log message. Those of Orbax are shown only if absl's logger shows INFO.

    Orbax logs its errors with tracebacks and also raises them. Then we print one line for the
    raised error, so that the log messages are not needed.
    """
    is_of_orbax = f"{os.sep}orbax{os.sep}" in record.pathname
    return not is_of_orbax or logging.getLogger("absl").isEnabledFor(logging.INFO)


def _collect_quietly() -> None:
    """Runs the garbage collector with warnings silenced, after Orbax has failed to read a file.

    After such a failure, Orbax leaves its reads of other files unfinished. Without this call,
    warnings about these reads would appear at an arbitrary time.
    """
    hook, asyncio = sys.unraisablehook, logging.getLogger("asyncio")
    level = asyncio.level
    sys.unraisablehook = lambda _: None
    asyncio.setLevel(logging.CRITICAL + 1)
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
        asyncio.setLevel(level)
