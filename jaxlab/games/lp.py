"""The sequence-form linear program: exact values, to check iterative solvers with."""

import numpy as np

from jaxlab.games.efg import EFG
from jaxlab.games.evaluate import Profile
from jaxlab.games.tables import Tables


def solve_lp(game: EFG) -> tuple[float, Profile]:
    """Value to player 0 and a pair of equilibrium strategies.

    For player 0 (player 1 likewise on -A^T):

        max_{x, w} w_root   s.t.  E x = e, x >= 0,  w(parent of J's block) ... :
        for each sequence s of player 1:  w(infoset of s) - sum_{J below s} w(J)
                                          <= (A^T x)_s

    Returns:
      `(value, profile)`, profile in NumPy float64; unreached infosets play uniformly.

    Source: Koller, Megiddo and von Stengel 1996.
    """
    tables = game.require_tables()
    value, plan_0 = _maximin(tables, 0)
    other_value, plan_1 = _maximin(tables, 1)
    if abs(value + other_value) > 1e-6 * max(1.0, abs(value)):
        raise RuntimeError(
            f"the two programs disagree: {value} and {-other_value}; the LP solver "
            "did not converge"
        )
    return value, (_behaviour(tables, 0, plan_0), _behaviour(tables, 1, plan_1))


def _maximin(tables: Tables, p: int) -> tuple[float, np.ndarray]:
    import scipy.optimize
    import scipy.sparse as sparse

    own, other = _constraints(tables, p), _constraints(tables, 1 - p)
    shape = tables.num_sequences
    matrix = sparse.coo_array((tables.val, (tables.row, tables.col)), shape=shape)
    matrix = matrix.tocsr() if p == 0 else -matrix.T.tocsr()
    num_own, num_duals = shape[p], 1 + tables.num_infosets[1 - p]
    num_rows = 1 + tables.num_infosets[p]
    # Variables x, then w (w[0] the value): F^T w <= A^T x.
    objective = np.zeros(num_own + num_duals)
    objective[num_own] = -1
    upper = sparse.hstack([-matrix.T, other.T]).tocsr()
    equal = sparse.hstack([own, sparse.csr_array((num_rows, num_duals))]).tocsr()
    right = np.zeros(num_rows)
    right[0] = 1
    bounds = [(0, None)] * num_own + [(None, None)] * num_duals
    result = scipy.optimize.linprog(
        objective,
        A_ub=upper,
        b_ub=np.zeros(shape[1 - p]),
        A_eq=equal,
        b_eq=right,
        bounds=bounds,
        method="highs",
    )
    if result.status != 0:
        raise RuntimeError(f"the LP solver failed: {result.message}")
    return -float(result.fun), result.x[:num_own]


def _constraints(tables: Tables, p: int):
    """E of E x = e: the empty sequence is 1, an infoset's block sums to its parent."""
    import scipy.sparse as sparse

    owner = tables.infoset_of[p]
    count = tables.num_infosets[p]
    seqs = np.arange(1, len(owner))
    rows = np.concatenate([[0], 1 + owner[seqs], 1 + np.arange(count)])
    cols = np.concatenate([[0], seqs, tables.parent_seq[p]])
    vals = np.concatenate([[1.0], np.ones(len(seqs)), -np.ones(count)])
    return sparse.csr_array((vals, (rows, cols)), shape=(1 + count, len(owner)))


def _behaviour(tables: Tables, p: int, plan: np.ndarray) -> np.ndarray:
    plan = np.maximum(plan, 0)
    owner = tables.infoset_of[p][1:]
    total = np.bincount(owner, plan[1:], minlength=tables.num_infosets[p])[owner]
    uniform = 1 / tables.num_actions[p][owner]
    ratio = plan[1:] / np.where(total > 0, total, 1)
    return np.concatenate([[1.0], np.where(total > 1e-12, ratio, uniform)])
