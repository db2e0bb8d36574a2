"""Designs whose information gain is known to a few thousandths of a nat.

"lg" exactly; "smd" and "jc" by importance sampling from Laplace fits with scrambled
Sobol outer points; "sf" by quadrature ("sf_a") or nested Monte Carlo with 2^19 shared
draws. Add 0.008 ("smd", "jc") or 0.005 ("sf_b", "sf_c") in quadrature to `se`: two
methods differed by about that much.
"""

from typing import NamedTuple


class Reference(NamedTuple):
    """A design with its expected information gain in nats and standard error."""

    model: str
    design: tuple
    eig: float
    se: float


_THIRD = 1 / 3
REFERENCE = {
    "lg_a": Reference("lg", (-1.0, -_THIRD, _THIRD, 1.0), 9.328844348777478, 0.0),
    "lg_b": Reference("lg", (-1.0, -0.9, 0.9, 1.0), 7.601141443345229, 0.0),
    "lg_c": Reference("lg", (0.1, 0.2, 0.3), 3.46929778522256, 0.0),
    "smd_a": Reference("smd", (1.0, 2.0), 4.7673, 0.0041),
    "smd_b": Reference("smd", (2.0, 5.0), 6.4423, 0.0031),
    "smd_c": Reference("smd", (0.5, 1.0), 4.1764, 0.0015),
    "jc_a": Reference("jc", ((0.0, 298.0), (3.0, 298.0)), 5.0253, 0.0032),
    "jc_b": Reference("jc", ((0.0, 298.0), (3.0, 700.0)), 5.585, 0.0029),
    "jc_c": Reference("jc", ((-3.0, 500.0), (3.5, 1000.0)), 5.0693, 0.0028),
    "sf_a": Reference("sf", ((0.0, 0.0),), 0.8275192, 0.0004),
    "sf_b": Reference(
        "sf", ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0)), 2.6588, 0.0064
    ),
    "sf_c": Reference(
        "sf",
        (
            (0.0, 0.0),
            (1.5, 0.0),
            (-1.5, 0.0),
            (0.0, 1.5),
            (0.0, -1.5),
            (0.7, 0.7),
            (-0.7, 0.7),
            (-0.7, -0.7),
        ),
        4.7238,
        0.0081,
    ),
}
