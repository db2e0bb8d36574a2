"""What is restored is what was saved, bit for bit, or a sound earlier step."""

import asyncio
import dataclasses
import json
import shutil
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxlab.io.checkpoints import CheckpointError, Checkpoints
from jaxlab.io.leaves import digest


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    weights: dict[str, Any]
    key: jax.Array
    keys: jax.Array
    count: jax.Array
    best: float
    host: np.ndarray
    nothing: None
    empty: jax.Array
    updates: int


def make(seed=0):
    key = jax.random.key(seed)
    return State(
        weights={
            "a/b.c": jax.random.normal(key, (30, 20)),
            "half": jnp.full((2,), seed, jnp.bfloat16),
            "nan": jnp.array([jnp.nan, -0.0, jnp.inf]),
        },
        key=key,
        keys=jax.random.split(jax.random.key(seed, impl="rbg"), 2),
        count=jnp.int32(2**31 - 1 - seed),
        best=0.1 + seed,
        host=np.array([2**40 + seed]),
        nothing=None,
        empty=jnp.zeros((0, 3)),
        updates=seed,
    )


def assert_same(a, b):
    leaves_a, treedef_a = jax.tree.flatten(a)
    leaves_b, treedef_b = jax.tree.flatten(b)
    assert treedef_a == treedef_b
    for x, y in zip(leaves_a, leaves_b, strict=True):
        assert type(x) is type(y)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert x.dtype == y.dtype
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert digest(np.asarray(x)) == digest(np.asarray(y))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A folder with steps 1, 2, 3, to be copied by the tests that damage it."""
    directory = tmp_path_factory.mktemp("three") / "checkpoints"
    checkpoints = Checkpoints(directory, config={"lr": 0.1})
    for step in (1, 2, 3):
        checkpoints.save(step, make(step))
    checkpoints.close()
    return directory


@pytest.fixture
def copy(three, tmp_path):
    shutil.copytree(three, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def reader(directory, notes=None, config=None):
    note = (notes if notes is not None else []).append
    return Checkpoints(directory, config=config or {"lr": 0.1}, note=note)


def biggest(step_folder):
    """The file that holds most of the parameters."""
    files = [p for p in (step_folder / "state").rglob("*") if p.is_file()]
    return max(files, key=lambda p: p.stat().st_size)


def flip(path, position=0.5):
    data = bytearray(path.read_bytes())
    data[int(position * len(data))] ^= 1
    path.write_bytes(data)


def test_everything_comes_back_bit_for_bit(copy):
    checkpoints = reader(copy)
    step, state = checkpoints.restore(make(9))
    checkpoints.close()
    assert step == 3
    assert_same(state, make(3))


def test_without_a_checkpoint_the_start_is_given_back(tmp_path):
    state = make()
    assert Checkpoints(tmp_path / "none").restore(state) == (0, state)
    assert Checkpoints(None).restore(state) == (0, state)
    Checkpoints(None).save(1, state)


def test_only_the_last_few_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    for step in range(4):
        checkpoints.save(step, {"x": jnp.ones(2) * step})
    checkpoints.close()
    assert checkpoints.steps() == [2, 3]


def test_a_damaged_newest_step_falls_back_and_is_saved_again(copy):
    flip(biggest(copy / "3"))
    notes = []
    checkpoints = reader(copy, notes)
    step, state = checkpoints.restore(make(9))
    assert step == 2
    assert_same(state, make(2))
    (note,) = notes
    assert "checkpoint 3 is damaged" in note
    assert "continuing from 2" in note
    checkpoints.save(3, make(3))
    checkpoints.close()
    assert reader(copy).steps() == [1, 2, 3]
    again = reader(copy)
    assert_same(again.restore(make(9))[1], make(3))
    again.close()


@pytest.mark.parametrize("damage", ["flip record", "delete", "truncate", "half"])
def test_no_damage_passes_silently(copy, damage):
    target = biggest(copy / "3")
    if damage == "flip record":
        path = copy / "3" / "meta" / "metadata"
        text = path.read_text()
        path.write_text(text.replace('"metrics_bytes": 0', '"metrics_bytes": 1'))
        assert path.read_text() != text
    elif damage == "delete":
        target.unlink()
    elif damage == "truncate":
        target.write_bytes(target.read_bytes()[: target.stat().st_size // 2])
    else:
        shutil.rmtree(copy / "3" / "state")
    checkpoints = reader(copy)
    step, state = checkpoints.restore(make(9))
    checkpoints.close()
    assert step == 2
    assert_same(state, make(2))


def test_what_orbax_drops_after_an_error_fails_no_later_test():
    """Its reads go on in other threads, and call back into a loop that is closed."""
    loop = asyncio.new_event_loop()
    loop.close()
    try:
        loop.call_soon_threadsafe(print)
    except RuntimeError as error:
        late = types.SimpleNamespace(
            exc_type=type(error),
            exc_value=error,
            exc_traceback=error.__traceback__,
            err_msg=None,
            object=None,
        )
    sys.unraisablehook(late)  # pytest hears of it here, and judges after the test


def test_orbax_alone_would_not_notice(copy):
    """The reason for the digests; if this fails, orbax has learnt to check."""
    import orbax.checkpoint as ocp

    from jaxlab.io import leaves

    caught = 0
    original = (copy / "3").rename(copy.parent / "3")
    manager = ocp.CheckpointManager(copy.absolute())
    for position in np.linspace(0.3, 0.7, 5):
        shutil.copytree(original, copy / "3")
        flip(biggest(copy / "3"), position)
        try:
            manager.restore(
                3,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(leaves.targets(make(9)))
                ),
            )
        except Exception:
            caught += 1
        shutil.rmtree(copy / "3")
    manager.close()
    assert caught < 5


def test_nothing_sound_left_is_one_clear_error(copy):
    for step in (1, 2, 3):
        flip(biggest(copy / str(step)))
    checkpoints = reader(copy)
    with pytest.raises(CheckpointError, match="no checkpoint.*step 3.*step 2.*step 1"):
        checkpoints.restore(make())
    checkpoints.close()
    assert checkpoints.steps() == [1, 2, 3], "evidence is kept"


def test_another_config_is_refused_with_the_fields(copy):
    checkpoints = reader(copy, config={"lr": 0.2, "n": 1})
    with pytest.raises(CheckpointError, match=r"lr: 0.1 there, 0.2 here; n: absent"):
        checkpoints.restore(make())
    checkpoints.close()


def test_a_newer_format_is_refused(copy):
    from jaxlab.io.checkpoints import _sealed

    path = copy / "3" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(_sealed({**meta, "format": 2})))
    checkpoints = reader(copy)
    with pytest.raises(CheckpointError, match="format 2.*is newer.*upgrade"):
        checkpoints.restore(make())
    checkpoints.close()


def test_a_tree_that_does_not_fit_is_refused_by_leaf(copy):
    checkpoints = reader(copy)
    state = dataclasses.replace(make(), host=np.zeros(2, np.int64), nothing=1.0)
    with pytest.raises(
        CheckpointError, match=r"\.host is int64\[1\].*\.nothing is not"
    ):
        checkpoints.restore(state)
    checkpoints.close()


def test_leftovers_of_a_killed_save_are_removed(copy):
    (copy / "4.orbax-checkpoint-tmp").mkdir()
    checkpoints = reader(copy)
    assert checkpoints.restore(make(9))[0] == 3
    checkpoints.close()
    assert sorted(p.name for p in copy.iterdir() if "tmp" in p.name) == []


def test_steps_go_up_but_the_same_state_may_be_saved_twice(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(2, {"x": jnp.ones(2)})
    checkpoints.save(2, {"x": jnp.ones(2)})
    with pytest.raises(ValueError, match="step=2 must be above the last saved one, 2"):
        checkpoints.save(2, {"x": jnp.zeros(2)})
    with pytest.raises(ValueError, match="step=1 must be above"):
        checkpoints.save(1, {"x": jnp.ones(2)})
    checkpoints.close()


def test_a_leaf_that_is_no_array_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"leaf \['f'\] has type function"):
        Checkpoints(tmp_path / "c").save(0, {"f": make})


def test_an_error_in_the_background_stops_the_run(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(0, {"x": jnp.ones(2)})
    checkpoints.wait()

    class Failing:
        def check_for_errors(self):
            raise OSError("disk full")

        def close(self):
            pass

        wait_until_finished = check_for_errors

    checkpoints._manager_.close()
    checkpoints._manager_ = Failing()
    for act in (checkpoints.check, lambda: checkpoints.save(1, {"x": jnp.ones(2)})):
        with pytest.raises(CheckpointError, match="cannot save to .*disk full"):
            act()


def test_the_state_may_move_to_other_devices(copy, tmp_path):
    mesh = Mesh(np.array(jax.devices()), ("d",))
    split = NamedSharding(mesh, PartitionSpec("d"))
    whole = NamedSharding(mesh, PartitionSpec())
    tree = {"x": jnp.arange(8.0), "y": jnp.ones(3), "free": jnp.ones(2)}
    saved = Checkpoints(tmp_path / "c")
    saved.save(0, {**tree, "x": jax.device_put(tree["x"], split)})
    saved.close()
    like = {
        "x": jax.ShapeDtypeStruct((8,), jnp.float32),
        "y": jax.ShapeDtypeStruct((3,), jnp.float32, sharding=whole),
        "free": jnp.zeros(2),
    }
    checkpoints = Checkpoints(tmp_path / "c")
    _, restored = checkpoints.restore(like)
    checkpoints.close()
    assert_same(restored, tree)
    assert restored["y"].sharding == whole
    assert not restored["free"].committed, "free to go where the others are"


def test_restored_state_may_be_donated(copy):
    checkpoints = reader(copy)
    _, state = checkpoints.restore(make(9))
    checkpoints.close()
    before = np.array(state.weights["a/b.c"])
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    np.testing.assert_array_equal(double(state.weights["a/b.c"]), before * 2)
