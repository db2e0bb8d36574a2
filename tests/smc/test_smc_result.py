"""Summaries of made-up samples: outliers, guards, variances, control variates."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab.smc import eig
from jaxlab.smc.eig.result import Curves, summarise


def made_up(num=4000, lost=()):
    """Samples whose directions miss log Z by -+0.4 on average, some forward lost."""
    rng = np.random.default_rng(0)
    log_z = rng.normal(-5, 1, num)
    reverse = log_z + 0.4 + 0.9 * rng.normal(size=num)
    forward = log_z - 0.4 + 0.9 * rng.normal(size=num)
    forward[: len(lost)] = lost
    columns = log_z + 6, 0.5 * (reverse + forward), reverse, forward
    numbers = [np.asarray(x, np.float32) for x in columns]
    ones = np.ones(num, np.int32)
    return eig.Sample(*numbers, ones, 0 * ones, numbers[0])


def summary(samples, guard=2.0, expected=None, replicates=0):
    """Eagerly: as a program each variant would take a second to compile."""
    samples = jax.tree.map(jnp.asarray, samples)
    empty = jnp.zeros((0,))
    return summarise(
        samples,
        Curves(empty, empty),
        replicates=replicates,
        overhead=jnp.zeros((), jnp.int32),
        lower=False,
        upper=False,
        guard=guard,
        expected_loglik=expected,
    )


def test_forward_chains_that_lost_their_mode_do_not_spoil_the_mean():
    clean = summary(made_up())
    spoiled = summary(made_up(lost=(-500.0, -80.0, -np.inf)))
    assert clean.n_outliers == 0
    assert spoiled.n_outliers == 3
    assert spoiled.n_nonfinite == 0
    np.testing.assert_allclose(clean.value, 6, atol=0.1)
    np.testing.assert_allclose(spoiled.value, clean.value, atol=0.02)
    assert spoiled.lower == clean.lower  # the bounds stay what they are
    assert spoiled.upper > clean.upper + 0.1


def mixed_works(num=4000):
    """One data set in 50 has a gap of 8 nats: works of variance 8, or lost by 8."""
    rng = np.random.default_rng(2)
    rare = np.arange(num) % 50 == 0
    kicks = rng.normal(size=(4, num))
    base = 0.2 + 0.4**0.5 * kicks[0], -0.2 + 0.4**0.5 * kicks[1]  # log Z is 0
    wild = 4 + 8**0.5 * kicks[2], -4 + 8**0.5 * kicks[3]
    for reverse, forward in (
        (np.where(rare, wild[0], base[0]), np.where(rare, wild[1], base[1])),
        (base[0], base[1] - 8 * rare),
    ):
        numbers = [np.float32(x) for x in (0 * reverse, 0.5 * (reverse + forward))]
        columns = (*numbers, np.float32(reverse), np.float32(forward))
        ones = np.ones(num, np.int32)
        yield rare, eig.Sample(*columns, ones, 0 * ones, columns[0])


def test_capped_gaps_are_less_wrong_than_dropping_or_keeping_them():
    """Bug museum: an outlying gap was taken for a forward chain that lost its mode."""
    (wild, restless), (_, lost) = mixed_works()
    values = [float(summary(s).value) for s in (restless, lost)]
    dropped = np.where(wild, restless.log_z_reverse, restless.log_z).mean()
    assert -dropped < -0.06  # right for the lost ones
    assert lost.log_z.mean() < -0.06  # and keeping them is right for the others
    np.testing.assert_allclose(values, 0, atol=0.055)


def test_inner_deviation_is_read_off_the_two_directions():
    # Each has variance 0.81; their mean 0.405. Between data sets nothing varies.
    result = summary(made_up())
    np.testing.assert_allclose(result.sigma_w**2, 0.405, rtol=0.1)
    np.testing.assert_allclose(result.sigma_b, 0, atol=0.2)


def test_narrow_guard_turns_the_value_into_the_lower_bound():
    result = summary(made_up(), guard=0.5)
    assert result.guarded
    np.testing.assert_allclose(result.value, result.lower, rtol=1e-6)
    assert jnp.isnan(result.sigma_w)


def test_control_variate_removes_what_the_known_mean_explains():
    samples = made_up()
    known = np.random.default_rng(1).normal(0, 2, 4000).astype(np.float32)
    loglik = samples.log_z + 6 + known  # of known mean: that of log Z plus 6
    noisy = samples._replace(loglik=np.asarray(loglik, np.float32))
    plain, better = summary(noisy), summary(noisy, expected=1.0)
    assert 0.5 < better.control <= 1.0
    assert better.se < 0.6 * plain.se
    assert abs(better.value - 6) < 4 * better.se


def test_a_value_without_data_sets_is_no_number():
    samples = made_up()
    nothing = summary(samples._replace(log_z=np.full_like(samples.log_z, np.nan)))
    assert jnp.isnan(nothing.value)
    assert nothing.n_nonfinite == 4000


def test_error_of_replicates_is_that_of_their_means():
    samples = made_up()
    result = summary(samples, replicates=8)
    terms = np.asarray(result.samples.loglik - result.samples.log_z).reshape(8, 500)
    expected = terms.mean(1).std(ddof=1) / 8**0.5
    np.testing.assert_allclose(result.se, expected, rtol=1e-4)
