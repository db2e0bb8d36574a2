"""Grouping many small ragged shapes into a few dense ones.

A table of a game is ragged: infosets with 1 to 13 actions, payoff blocks of many
sizes, parents with 0 to 30 children. One dense array for all wastes memory on
padding, one array per shape wastes time on launching tiny operations. `merge` finds
the groups in between, by a cost that counts both.
"""

import numpy as np

# Costs in units of one vectorised multiply-add, measured with XLA on x86: what
# a further operation in a loop costs, and what a gathered element costs.
LAUNCH = 1500.0
GATHER = 6.0


def merge(
    shapes: np.ndarray, *, launch: float = LAUNCH, gather: float = GATHER
) -> np.ndarray:
    """Group boxes `[R, C]` so that padding each to its group's largest is cheap.

    cost(group of n boxes) = launch + n * (R * C + gather * C)

    Greedy: start with one group per distinct shape, join the pair that saves most,
    stop when no pair saves anything.

    Args:
      shapes: int `[n, 2]`, rows and columns of each box.

    Returns:
      int `[n]`: group of each box; groups are numbered by size, largest first.
    """
    distinct, inverse, counts = np.unique(
        shapes, axis=0, return_inverse=True, return_counts=True
    )
    member = np.arange(len(distinct))
    size, number = distinct.astype(np.float64), counts.astype(np.float64)

    def cost(size, number):
        return launch + number * size[..., 1] * (size[..., 0] + gather)

    while len(size) > 1:
        joint = np.maximum(size[:, None], size[None])
        together = cost(joint, number[:, None] + number[None])
        alone = cost(size, number)
        saved = alone[:, None] + alone[None] - together
        np.fill_diagonal(saved, -np.inf)
        i, j = sorted(np.unravel_index(saved.argmax(), saved.shape))
        if saved[i, j] <= 0:
            break
        size[i], number[i] = joint[i, j], number[i] + number[j]
        member[member == j] = i
        member[member > j] -= 1
        size, number = np.delete(size, j, 0), np.delete(number, j)
    rank = np.empty(len(size), np.int64)
    rank[np.lexsort((size[:, 0], size[:, 1]))[::-1]] = np.arange(len(size))
    return rank[member][np.ravel(inverse)]
