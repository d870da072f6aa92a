"""Tests checkpoints: a saved state comes back, and a damaged checkpoint raises an error."""

import errno
import gc
import os
import pathlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from etils import epath
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from vinejax.core.errors import WorkdirError
from vinejax.core.types import RunState, TrainState
from vinejax.runtime import checkpoint as checkpoint_module
from vinejax.runtime.checkpoint import Checkpoints, find_policy, find_trained, restore_policy
from vinejax.runtime.checksums import write_checksums
from vinejax.runtime.remedies import MAKE_ROOM

OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(1e-2, 0.0, 9))
)


def make_state(seed: int = 0) -> RunState:
    keys = jax.random.split(jax.random.key(seed), 2)
    blocks = {"w": jax.random.normal(keys[1], (2, 3, 3), jnp.bfloat16)}
    params = {"embed": jax.random.normal(keys[0], (5, 4)), "blocks": blocks}
    return RunState(TrainState(jnp.int32(0), params, OPTIMIZER.init(params)))


def update(state: RunState) -> RunState:
    policy = state.policy
    grads = jax.tree.map(lambda x: x - 1, policy.params)
    updates, opt_state = OPTIMIZER.update(grads, policy.opt_state, policy.params)
    params = optax.apply_updates(policy.params, updates)
    return RunState(TrainState(policy.step + 1, params, opt_state))


def with_params(state: RunState, params: Any) -> RunState:
    return RunState(state.policy._replace(params=params))


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: pathlib.Path):
    state = update(update(make_state()))
    meta = {"data": [1, 2.5, "three", None], "best": {"pass_at_1": 0.5}}
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(2, state, meta)
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        assert checkpoints.latest() == 2
        restored, found = checkpoints.restore(2, like=make_state(seed=1))
    assert found == meta
    assert_equal(restored, state)
    assert_equal(update(restored), update(state))


def test_layout_and_the_newest_are_kept(tmp_path: pathlib.Path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for i in (1, 5, 10):
            checkpoints.save(i, make_state(i), {"i": i})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "5"]
    assert {"params", "optimizer", "meta"} <= {path.name for path in (tmp_path / "10").iterdir()}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        state, meta = checkpoints.restore(5, make_state())
    assert meta == {"i": 5}
    assert_equal(state, make_state(5))


def test_the_newest_stay_without_options_that_orbax_deprecates(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    options = ocp.CheckpointManagerOptions

    def only_with(
        *, preservation_policy: Any, todelete_subdir: str
    ) -> ocp.CheckpointManagerOptions:
        return options(preservation_policy=preservation_policy, todelete_subdir=todelete_subdir)

    monkeypatch.setattr(ocp, "CheckpointManagerOptions", only_with)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for i in range(1, 10):
            checkpoints.save(i, make_state(i), {"i": i})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["8", "9"]


def test_an_old_checkpoint_that_cannot_be_deleted_ends_no_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """On NFS, a file that another process reads stays in its folder under a name like .nfs0001."""
    rmdir = os.rmdir
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, make_state(1), {"i": 1})
        with monkeypatch.context() as busy:

            def refuse(path: Any, **options: Any) -> None:
                if os.path.basename(path) == "params":
                    raise OSError(errno.EBUSY, "Device or resource busy", str(path))
                rmdir(path, **options)

            busy.setattr(os, "rmdir", refuse)
            checkpoints.save(2, make_state(2), {"i": 2})
            checkpoints.wait()
        assert checkpoints.has(2) and (tmp_path / "2/checksums.0-of-1.json").exists()
        kept, left = sorted(path.name for path in tmp_path.iterdir())
        # Orbax could not move a second checkpoint 1 to deleted/1.
        assert kept == "2" and left.startswith("deleted-")
        checkpoints.save(3, make_state(3), {"i": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_saving_again_keeps_what_is_there(tmp_path: pathlib.Path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, make_state(1), {"i": 1})
        checkpoints.save(1, make_state(2), {"i": 2})
        checkpoints.close()
        state, meta = Checkpoints(tmp_path, keep=2).restore(1, make_state())
    assert meta == {"i": 1}
    assert_equal(state, make_state(1))


def test_what_an_earlier_process_saved_later_goes(tmp_path: pathlib.Path):
    for steps in ((5, 10), (8,)):
        with Checkpoints(tmp_path, keep=1) as best:
            for i in steps:
                best.save_params(i, make_state(i).policy.params, {})
    with Checkpoints(tmp_path, keep=1) as best:
        assert best.latest() == 8
        params, _ = best.restore_params(8, make_state().policy.params)
    assert_equal(params, make_state(8).policy.params)


def test_weights_that_were_judged_otherwise_are_replaced(tmp_path: pathlib.Path):
    """A resumed run on another mesh evaluates other weights after the same iteration."""
    for seed, accuracy in ((1, 0.5), (2, 0.5), (3, 0.4)):
        with Checkpoints(tmp_path, keep=1) as best:
            best.save_params(8, make_state(seed).policy.params, {"pass_at_1": accuracy})
        with Checkpoints(tmp_path, keep=1) as best:
            params, meta = best.restore_params(8, make_state().policy.params)
        assert meta == {"pass_at_1": accuracy}
        assert_equal(params, make_state(3 if seed == 3 else 1).policy.params)


def test_arrays_may_be_overwritten_while_they_are_saved(tmp_path: pathlib.Path):
    add = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = RunState(
        TrainState(jnp.int32(0), {"w": jnp.zeros((1000, 1000))}, {"m": jnp.zeros(100)})
    )
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        for i in range(3):
            checkpoints.save(i, state, {})
            state = add(state)
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        for i in range(3):
            found, _ = checkpoints.restore(i, state)
            assert all(np.all(np.asarray(leaf) == i) for leaf in jax.tree.leaves(found))


def test_like_decides_sharding_and_dtype(tmp_path: pathlib.Path):
    state = make_state()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
    mesh = jax.make_mesh((1, 1), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    shape = jax.ShapeDtypeStruct((5, 4), jnp.bfloat16, sharding=sharding)
    blocks = jax.device_put(state.policy.params["blocks"], sharding)
    like = with_params(state, {"embed": shape, "blocks": blocks})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        found, _ = checkpoints.restore(1, like)
        on_host, _ = checkpoints.restore_params(1, jax.tree.map(np.asarray, state.policy.params))
    assert (
        found.policy.params["embed"].sharding
        == sharding
        == found.policy.params["blocks"]["w"].sharding
    )
    assert found.policy.step.sharding == state.policy.step.sharding
    assert_equal(found.policy.params["embed"], state.policy.params["embed"].astype(jnp.bfloat16))
    assert isinstance(on_host["embed"], np.ndarray)
    assert_equal(on_host, state.policy.params)


def test_weights_alone(tmp_path: pathlib.Path):
    state = make_state()
    with Checkpoints(tmp_path / "best", keep=1) as best:
        best.save_params(3, state.policy.params, {"pass_at_1": 0.25})
        best.save_params(7, state.policy.params, {"pass_at_1": 0.5})
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(7, state, {"i": 7})
    shutil.rmtree(tmp_path / "checkpoints" / "7" / "optimizer")  # it is not even read
    for folder, meta in (("best", {"pass_at_1": 0.5}), ("checkpoints", {"i": 7})):
        with Checkpoints(tmp_path / folder, keep=1) as checkpoints:
            assert checkpoints.latest() == 7
            params, found = checkpoints.restore_params(7, make_state(1).policy.params)
        assert found == meta
        assert_equal(params, state.policy.params)
    with Checkpoints(tmp_path / "best", keep=1) as best:
        with pytest.raises(WorkdirError, match=r"best/7: is of another model or method.*optimizer"):
            best.restore(7, make_state())


def test_the_policies_that_best_and_last_name(tmp_path: pathlib.Path):
    workdir, weights = epath.Path(tmp_path), {"w": np.arange(3.0)}
    assert find_policy(workdir, "best") is None and not list(tmp_path.iterdir())
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        checkpoints.save_params(2, weights, {"evaluated": 0})
        checkpoints.wait()
        for policy in ("best", "last"):  # nothing was evaluated
            assert find_policy(workdir, policy) == ("checkpoints", 2)
        checkpoints.save_params(3, weights, {"evaluated": 3})
    assert find_policy(workdir, "best") is None, "the start of the run was better"
    assert find_trained(workdir, "best") == find_policy(workdir, "last") == ("checkpoints", 3)
    with Checkpoints(tmp_path / "best", keep=1) as best:
        with pytest.raises(WorkdirError, match="best: holds no checkpoint any more"):
            restore_policy(workdir / "best", weights)
        best.save_params(1, weights, {"pass_at_1": 0.5})
    assert find_policy(workdir, "best") == ("best", 1)
    found, name = restore_policy(workdir / "best", weights)
    assert_equal(found, weights)
    assert name == "best/1"


def test_a_save_that_was_cut_short_does_not_count(tmp_path: pathlib.Path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, make_state(1), {})
    for i in (2, 7):  # the latter was that of a run which a signal stopped
        shutil.copytree(tmp_path / "1", tmp_path / f"{i}.orbax-checkpoint-tmp")
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest() == 1
    assert len(list(tmp_path.iterdir())) == 3  # to look is not to clean: another process may save
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(2, make_state(2), {"i": 2})  # the resumed run gets there again
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        state, meta = checkpoints.restore(2, make_state())
    assert meta == {"i": 2}
    assert_equal(state, make_state(2))


def test_room_is_made_before_a_save(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """The disk may have none for a checkpoint beside those that are replaced or unfinished.

    An earlier checkpoint 4, too, is there where a process was killed while it deleted it.
    """
    saved(tmp_path, 1, 4)
    for left in ("7.orbax-checkpoint-tmp", "deleted/4/params"):
        (tmp_path / left).mkdir(parents=True)
    found: list[set[str]] = []
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        save = checkpoints._manager.save

        def look(*arguments: Any, **options: Any) -> None:
            found.append({path.name for path in tmp_path.iterdir()})
            save(*arguments, **options)

        monkeypatch.setattr(checkpoints._manager, "save", look)
        checkpoints.save(2, make_state(2), {"i": 2})
    assert found == [{"1"}]


def test_only_the_first_process_removes_what_is_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Another one may be slower, and what it finds may be the save that the first has begun."""
    monkeypatch.setattr(checkpoint_module, "is_writer", lambda: False)
    (tmp_path / "7.orbax-checkpoint-tmp").mkdir()
    saved(tmp_path, 1)
    assert (tmp_path / "7.orbax-checkpoint-tmp").exists()


def refusal(folder: pathlib.Path, iteration: int, params: Any) -> str:
    """The message of the error that restoring from `folder` raises."""
    with Checkpoints(folder, keep=1) as checkpoints, pytest.raises(WorkdirError) as error:
        state = make_state()
        checkpoints.restore(iteration, with_params(state, params))
    return str(error.value)


@pytest.fixture
def tidy() -> Iterator[None]:
    """Orbax abandons its other reads when one fails; this collects them within the test."""
    yield
    gc.collect()


# What the garbage collector then says about them.
abandons_reads = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def truncate(folder: pathlib.Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@abandons_reads
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize(
    ("damage", "part"),
    [(truncate, "params"), (truncate, "optimizer"), (truncate, "meta"), (shutil.rmtree, "params")],
)
def test_damaged_checkpoints(tmp_path: pathlib.Path, damage: Any, part: str):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(4, make_state(), {"i": 4})
    damage(tmp_path / "4" / part)
    message = refusal(tmp_path, 4, make_state().policy.params)
    assert message.startswith(f"{tmp_path}/4: is damaged")
    assert "\n" not in message and len(message) < 500


@abandons_reads
@pytest.mark.usefixtures("tidy")
def test_one_data_file_that_was_cut_short(tmp_path: pathlib.Path):
    """Orbax raises a bare Exception for it. Small arrays have no such file."""
    params = {"w": jax.random.normal(jax.random.key(0), (300, 1000))}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save_params(4, params, {})
    files = list((tmp_path / "4/params/ocdbt.process_0/d").iterdir())
    file = max(files, key=lambda path: path.stat().st_size)
    assert file.stat().st_size > 1_000_000
    file.write_bytes(file.read_bytes()[:1000])
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        with pytest.raises(WorkdirError, match="4: is damaged") as error:
            checkpoints.restore_params(4, params)
    assert "\n" not in str(error.value)


@abandons_reads
@pytest.mark.usefixtures("tidy")
def test_other_shapes_are_refused(tmp_path: pathlib.Path):
    state = make_state()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(4, state, {})
    for change in ({"embed": jnp.zeros((5, 6))}, {"head": jnp.zeros(3)}):
        message = refusal(tmp_path, 4, state.policy.params | change)
        assert "another model" in message and "\n" not in message


def test_an_error_of_the_devices_is_no_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(4, make_state(), {})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        monkeypatch.setattr(checkpoints._manager, "restore", fail)
        with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
            checkpoints.restore(4, make_state())


@abandons_reads
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("part", ["", "params"])
def test_a_checkpoint_that_is_deleted_while_it_is_read_is_no_other_model(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    """A run deletes its old checkpoints beside `--mode=eval`, which then takes another one."""
    saved(tmp_path, 2, 4)
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        restore = checkpoints._manager.restore

        def restore_late(iteration: int, **arguments: Any) -> Any:
            if iteration == 4:
                shutil.rmtree(tmp_path / "4" / part)
            return restore(iteration, **arguments)

        monkeypatch.setattr(checkpoints._manager, "restore", restore_late)
        found = checkpoints.newest(lambda step: checkpoints.restore(step, make_state()))
    assert found is not None and found[1] == {"i": 2}


def test_missing_checkpoints_and_folders(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkdirError, match="cannot be used"):
        Checkpoints(tmp_path / "file", keep=1)
    with Checkpoints(tmp_path / "new", keep=1) as checkpoints:
        with pytest.raises(WorkdirError, match="new/3: no such checkpoint"):
            checkpoints.restore(3, make_state())
        assert checkpoints.check_newest(), "none is damaged"


def test_a_meta_is_renewed_by_the_process_that_writes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, make_state(), {"evaluated": 2})
        checkpoints.renew_meta(3, {"evaluated": 3})  # after the save, which is not finished yet
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(checkpoint_module, "is_writer", lambda: False)
            checkpoints.renew_meta(3, {"evaluated": 4})
        assert checkpoints.restore(3, make_state())[1] == {"evaluated": 3}
        (tmp_path / "3/checksums.0-of-1.json").write_text("{")
        with pytest.raises(WorkdirError, match="cannot be written"):
            checkpoints.renew_meta(3, {"evaluated": 5})


@pytest.mark.parametrize("name", ["kept", "options"])
def test_state_of_the_data_has_the_shape_of_the_data(tmp_path: pathlib.Path, name: str):
    """Orbax restores a NumPy array of any shape, such as one number for each problem."""

    class Kept(NamedTuple):
        values: np.ndarray

    def with_values(count: int) -> RunState:
        values = np.arange(count)
        part = Kept(values) if name == "kept" else {"values": values}
        return make_state()._replace(**{name: part})

    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(4, with_values(3), {})
        found, _ = checkpoints.restore(4, with_values(3))
        assert_equal(getattr(found, name), getattr(with_values(3), name))
        message = r"4: keeps values of shape \(3,\), and this data needs \(5,\); restore the data"
        with pytest.raises(WorkdirError, match=message):
            checkpoints.restore(4, with_values(5))


def test_a_part_of_the_methods_state_is_compared_and_read(tmp_path: pathlib.Path):
    class Kept(NamedTuple):
        count: np.ndarray
        weights: dict[str, np.ndarray]

    kept = Kept(np.arange(3), {"w": np.ones(2)})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(4, make_state()._replace(kept=kept), {})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        found = checkpoints.restore_kept(4, {"weights": {"w": np.zeros(2)}})
        assert_equal(found, {"weights": kept.weights})
        flip(tmp_path / "4/kept/_METADATA")
        with pytest.raises(WorkdirError, match=r"4: is damaged \(kept/_METADATA"):
            checkpoints.restore_kept(4, {"weights": {"w": np.zeros(2)}})


@pytest.mark.parametrize("words", checkpoint_module.NO_ROOM)
def test_a_disk_without_room_is_told_with_the_remedy(tmp_path: pathlib.Path, words: str):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        error = checkpoints._unwritable(ValueError(f"Error writing\n x: {words} [source]"))
    assert str(error) == f"{tmp_path}: cannot be written ({words}); {MAKE_ROOM}"


def test_a_failed_save_is_reported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    manager = checkpoints._manager
    monkeypatch.setattr(manager, "save", fail)
    with pytest.raises(WorkdirError, match=r"checkpoints: cannot be written \(.*No space left"):
        checkpoints.save(1, make_state(), {})
    monkeypatch.setattr(manager, "wait_until_finished", fail)
    with pytest.raises(WorkdirError, match=r"checkpoints: cannot be written \(.*No space left"):
        checkpoints.close()


# --- damage that is found before anything is restored


def saved(folder: pathlib.Path, *iterations: int) -> pathlib.Path:
    """A folder of checkpoints of `make_state(i)`, with checksums."""
    with Checkpoints(folder, keep=9) as checkpoints:
        for i in iterations:
            checkpoints.save(i, make_state(i), {"i": i})
    return folder


def newest(folder: pathlib.Path) -> tuple[RunState, dict] | None:
    with Checkpoints(folder, keep=9) as checkpoints:
        return checkpoints.newest(lambda step: checkpoints.restore(step, make_state()))


def flip(file: pathlib.Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_a_flipped_bit_anywhere_goes_back_to_the_checkpoint_before(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
):
    folder = saved(tmp_path / "run", 2, 4)
    files = [path for path in (folder / "4").rglob("*") if path.is_file()]
    assert len(files) > 15
    for file in files[::4]:
        whole = file.read_bytes()
        flip(file)
        found = newest(folder)
        assert found is not None and found[1] == {"i": 2}
        assert_equal(found[0], make_state(2))
        said = capfd.readouterr().err
        assert said.count("\n") == 1, said
        assert said.startswith(f"vinejax: {folder}/4: is damaged (") and "before it is used" in said
        file.write_bytes(whole)
    found = newest(folder)
    assert found is not None and found[1] == {"i": 4} and capfd.readouterr().err == ""


@pytest.mark.slow
def test_no_damage_restores_anything_wrong(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
):
    """A flipped bit in one of 30 bytes of metadata files, or one of 10 files cut short."""
    folder = saved(tmp_path / "run", 2, 4)
    files = sorted(path for path in (folder / "4").rglob("*") if path.is_file())
    metadata = [path for path in files if "/d/" not in str(path)]  # all but the arrays' own
    assert 5 < len(metadata) < len(files)
    rng, outcomes = np.random.default_rng(0), Counter()
    for sample in range(40):
        is_cut = sample % 4 == 0
        file = (files if is_cut else metadata)[sample % len(files if is_cut else metadata)]
        whole = file.read_bytes()
        at = int(rng.integers(max(len(whole), 1)))
        damaged = bytearray(whole[:at] if is_cut else whole)
        if not is_cut and whole:
            damaged[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        found = newest(folder)
        said = capfd.readouterr().err
        assert found is not None
        assert_equal(found[0], make_state(found[1]["i"]))
        assert (found[1]["i"] == 4) == (said == ""), (file, at)
        outcomes[found[1]["i"]] += 1
        file.write_bytes(whole)
    assert outcomes[2] > 30, outcomes  # empty files cannot be damaged
    assert newest(folder) is not None and capfd.readouterr().err == ""


def test_a_copy_under_a_later_number_is_not_believed(tmp_path: pathlib.Path):
    folder = saved(tmp_path, 2, 4)
    shutil.copytree(folder / "2", folder / "30")
    found = newest(folder)
    assert found is not None and found[1] == {"i": 4}


def test_the_next_save_replaces_what_is_damaged(tmp_path: pathlib.Path):
    folder = saved(tmp_path, 2, 4)
    flip(folder / "4/params/_METADATA")
    with Checkpoints(folder, keep=9) as checkpoints:
        checkpoints.newest(lambda step: checkpoints.restore(step, make_state()))
        checkpoints.save(4, make_state(4), {"i": "again"})
        assert checkpoints.has(4), "the new one is not damaged"
    found = newest(folder)
    assert found is not None and found[1] == {"i": "again"}
    flip(folder / "4/params/_METADATA")
    with Checkpoints(folder, keep=9) as checkpoints:
        assert not checkpoints.check_newest()
        checkpoints.save(4, make_state(4), {"i": "once more"})
        assert checkpoints.check_newest()


def test_without_one_that_is_whole_there_is_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    assert newest(tmp_path / "empty") is None
    folder = saved(tmp_path / "one", 3)
    flip(folder / "3" / "meta/metadata")
    with pytest.raises(WorkdirError, match=r"no checkpoint is left; .*3: is damaged \(meta"):
        newest(folder)
    assert not capsys.readouterr().err
    folder = saved(tmp_path / "run", 2, 4)
    for step in (2, 4):
        flip(folder / str(step) / "meta/metadata")
    with pytest.raises(WorkdirError, match=r"no checkpoint is left; .*4: is damaged \(meta") as e:
        newest(folder)
    assert "\n" not in str(e.value)


def test_a_checkpoint_that_another_process_saves_meanwhile_is_found(tmp_path: pathlib.Path):
    """As beside `--mode=eval`: the run has deleted the one that was read, and has a newer one."""
    saved(tmp_path, 4)

    def restore(iteration: int) -> int:
        if iteration == 4:
            shutil.copytree(tmp_path / "4", tmp_path / "6")
            raise checkpoint_module.DamagedError("4: is gone")
        return iteration

    with Checkpoints(tmp_path, keep=9) as checkpoints:
        assert checkpoints.newest(restore) == 6


def test_processes_find_the_same_damage_and_the_same_checksums(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Each compares a part of the files, and all go back to the same checkpoint."""
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        monkeypatch.setattr(checkpoint_module, "process_place", lambda: (1, 2))
        checkpoints.save_params(4, {"w": np.ones(1)}, {"i": 4})
        checkpoints.wait()
        assert (tmp_path / "4/checksums.1-of-2.json").exists()
        monkeypatch.undo()
        write_checksums(epath.Path(tmp_path / "4"), 4, 0, 2)
        other = ["params/x is not as it was saved", True]
        monkeypatch.setattr(checkpoint_module, "exchange", lambda own: [own, other])
        with pytest.raises(WorkdirError, match=r"4: is damaged \(params/x is not"):
            checkpoints.meta(4)
        assert capfd.readouterr().err == ""
        other[:] = None, False
        assert checkpoints.meta(4) == {"i": 4}
        assert "4: has no checksums (not written yet" in capfd.readouterr().err
        monkeypatch.setattr(checkpoint_module, "is_writer", lambda: False)
        checkpoints.meta(4)
        assert capfd.readouterr().err == "", "one process says so"


@abandons_reads
@pytest.mark.usefixtures("tidy")
def test_one_without_checksums_is_used_and_said(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
):
    """A process that dies early leaves none, and another may read a checkpoint before it has any.

    If Orbax finds damage, the one before is used.
    """
    folder = saved(tmp_path, 2, 4)
    (folder / "4/checksums.0-of-1.json").unlink()
    found = newest(folder)
    assert found is not None and found[1] == {"i": 4}
    reasons = "has no checksums (not written yet, or its process died before)"
    assert capfd.readouterr().err.startswith(f"vinejax: {folder}/4: {reasons}")
    truncate(folder / "4/params")
    hook = sys.unraisablehook
    found = newest(folder)
    assert found is not None and found[1] == {"i": 2}
    assert sys.unraisablehook is hook, "later warnings are shown"
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith(f"vinejax: {folder}/4: ") for line in lines)


@pytest.mark.parametrize(
    ("failure", "raised", "message"),
    [
        (OSError(28, "No space left"), WorkdirError, r"run: cannot be written \(.*No space left"),
        (RuntimeError("a bug"), RuntimeError, "^a bug$"),
    ],
)
def test_a_save_that_fails_in_the_background_is_raised_at_the_next_call(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    raised: type[Exception],
    message: str,
):
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(checkpoint_module, "write_checksums", fail)
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    checkpoints.save(1, make_state(), {})
    calls = [lambda: checkpoints.save(2, make_state(), {}), checkpoints.wait]
    for call in (*calls, checkpoints.raise_failure, checkpoints.close):
        with pytest.raises(raised, match=message):
            call()


def test_a_long_error_keeps_its_end():
    """Orbax's error for a full disk names the reason at its end."""
    text = checkpoint_module._brief(OSError("Error writing " + "x" * 900 + ": No space left"))
    assert len(text) < 310 and text.startswith("Error") and text.endswith("No space left")


def test_the_reader_of_orbax_v1_opens_a_checkpoint(tmp_path: pathlib.Path):
    """From Orbax 1.0 on it is the only interface."""
    from orbax.checkpoint.experimental import v1

    policy = make_state(4).policy
    items = {
        "params": policy.params,
        "optimizer": {"step": policy.step, "opt_state": policy.opt_state},
    }
    items = jax.tree.map(jnp.asarray, items)
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), items
    )
    found = v1.load_checkpointables(str(saved(tmp_path, 2, 4) / "4"), abstract)
    assert_equal(found, items)
