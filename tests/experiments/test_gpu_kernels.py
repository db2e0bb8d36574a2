"""The benchmark of the GPU kernels, on the CPU with XLA in their place."""

import pytest

from experiments.bench import gpu_kernels

TINY = gpu_kernels.Settings(
    lengths=(256,),
    densities=(0.5,),
    checked_length=200,
    repeats=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    sequences=2,
    cache=128,
    implementation="xla",
    rival="xla",
    dtype="float32",
)


@pytest.mark.slow
def test_every_case_is_checked_and_timed():
    cases = gpu_kernels.measure(TINY)
    assert len(cases) == 5
    assert all(case.ours > 0 for case in cases)


def test_a_kernel_that_computes_something_else_is_not_timed(monkeypatch):
    right = gpu_kernels.flash

    def wrong(settings, implementation, q, k, v):
        shift = 0.1 if q.dtype == TINY.dtype and implementation != "xla" else 0.0
        return right(settings, "xla", q, k, v) + shift

    monkeypatch.setattr(gpu_kernels, "flash", wrong)
    with pytest.raises(RuntimeError, match="flash: differs from XLA by"):
        gpu_kernels.check(gpu_kernels.dataclasses.replace(TINY, implementation=None))


def test_without_such_a_gpu_it_says_so():
    with pytest.raises(RuntimeError, match=r"capability 9\.0; this process has None"):
        gpu_kernels.measure()
