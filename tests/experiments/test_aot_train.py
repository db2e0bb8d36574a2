"""Compiling whole updates ahead of time: the counts are right, the program runs."""

import jax
import jax.numpy as jnp
import pytest

from experiments import aot_train
from jaxlab import io
from jaxlab.rl import networks, parallel


def counted(function, *arguments):
    return aot_train.work(jax.make_jaxpr(function)(*arguments).jaxpr)


def encoder(cls):
    net = networks.from_nnx(cls, 18)
    image = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
    params = jax.eval_shape(net.init, jax.random.key(0), image)
    return net, params, jax.ShapeDtypeStruct((1, 84, 84, 4), jnp.uint8)


@pytest.mark.parametrize(
    ("cls", "millions"), [(networks.Hadamax, 157.4), (networks.NatureCNN, 9.35)]
)
def test_a_forward_pass_takes_the_multiply_adds_of_the_architecture(cls, millions):
    net, params, obs = encoder(cls)
    flops, moved = counted(net.apply, params, obs)
    assert flops / 2e6 == pytest.approx(millions, abs=0.05)
    assert moved == 0


def test_a_gradient_takes_three_passes_less_one_into_the_image():
    """Neither what the platform switch would recompute nor dead branches count."""
    net, params, obs = encoder(networks.Hadamax)

    def loss(params, obs):
        return net.apply(params, obs).sum()

    first = 84 * 84 * 64 * 8 * 8 * 4  # the convolution that sees the image
    flops, _ = counted(jax.grad(loss), params, obs)
    forward, _ = counted(net.apply, params, obs)
    assert flops / forward == pytest.approx(3 - 2 * first / forward, abs=0.01)


def test_loops_count_their_length_and_choices_their_dearest_branch():
    x = jnp.ones((3, 3))

    def loop(x):
        return jax.lax.scan(lambda c, _: (c @ x, None), x, length=5)[0]

    def choice(x):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ x @ x, lambda: x @ x)

    assert counted(loop, x) == (5 * 54, 0)
    assert counted(choice, x) == (2 * 54, 0)
    assert counted(lambda x: (x @ x, x)[1], x) == (0, 0)


def test_sums_over_devices_are_counted_in_bytes_per_device():
    def step(x):
        def body(total, _):
            return total + parallel.total(x.sum(axis=0), parallel.AXES), None

        return jax.lax.scan(body, jnp.zeros(4), length=3)[0]

    split = parallel.split(step, (0,), None, shards=2, devices=jax.devices())
    assert counted(split, jnp.ones((6, 4))) == (0, 3 * 4 * 4)


def test_collectives_are_found_in_a_compiled_program():
    split = parallel.split(
        lambda x: parallel.total(x.sum(), parallel.AXES),
        (0,),
        None,
        shards=2,
        devices=jax.devices(),
    )
    text = jax.jit(split).lower(jnp.ones(4)).compile().as_text() or ""
    assert aot_train.collectives(text) == {"all-reduce": 1}
    assert aot_train.collectives("%a = f32[] add(%all-reduce.1, %b)") == {}
    started = "%s = (f32[2], f32[2]) all-reduce-start(%x), channel_id=1"
    assert aot_train.collectives(started) == {"all-reduce": 1}


def test_the_smoke_run_compiles_an_update_for_two_devices(tmp_path, capsys):
    arguments = ["--smoke", "--quiet", "--out", str(tmp_path / "run")]
    io.main(aot_train.run, aot_train.PRESETS, arguments)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "compiled minigrid for cpu:2"
    (record,) = io.read_metrics(tmp_path / "run")
    assert record["devices"] == 2
    assert record["all-reduce"] >= 1
    # At least the gradient of both gradient steps, and both in float32.
    env_actions, cells = 7, 7 * 7 * 3
    hidden = (cells + 1) * 256 + 257 * 256 + 4 * 256 + 257 * env_actions
    assert record["reduced"] == pytest.approx(2 * 4 * hidden, rel=0.01)
    assert record["temporaries"] > 0


@pytest.mark.parametrize("axis_name", [None, parallel.AXES])
def test_the_atari_program_takes_a_rollout_to_parameters(axis_name):
    config = aot_train.Config(
        encoder="cnn", num_envs=2, num_steps=2, num_minibatches=2, num_epochs=1
    )
    program = aot_train.atari(config, axis_name)
    function = program.function
    if axis_name:
        function = parallel.split(
            function,
            program.in_axes,
            program.out_axes,
            shards=2,
            devices=jax.devices(),
        )
    (params, _, _, number), metrics = jax.eval_shape(function, *program.arguments)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, program.arguments[0][0]
    )
    assert number.dtype == jnp.int32
    assert set(metrics) >= {"loss", "grad_norm", "bad_leaf"}


@pytest.mark.parametrize("topology", ["h9000", "tpu", ""])
def test_an_unknown_topology_is_refused_by_name(topology):
    with pytest.raises(ValueError, match=f"topology='{topology}' must be cpu:N, or"):
        aot_train.describe(topology)
