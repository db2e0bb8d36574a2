"""CFR+ on a TPU: game and state stay in VMEM for all iterations of a launch.

The batch runs along lanes, 128 settings per program. Slots run along sublanes, each
group's infosets padded to whole tiles, so that every action of a group is one aligned
slice. The payoff matrix and the parent matrices of each level are dense: what would be
a gather or a scatter is a product on the MXU, forward for plans and gradients of
player 0, transposed for values and gradients of player 1.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_LANES, _SUBLANES = 128, 8
# Every chip described in `kernels_pallas.aot` has 16 MiB; the rest is the compiler's.
_BUDGET = 12 * 2**20


@dataclasses.dataclass(frozen=True)
class _Group:
    level: int
    width: int
    count: int
    padded: int  # infosets, in whole tiles
    start: int  # first row

    def rows(self, action: int):
        return pl.ds(self.start + action * self.padded, self.padded)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Where a player's slots stand: a tile of the empty sequence, then the groups."""

    groups: tuple[_Group, ...]
    rows: int

    @classmethod
    def of(cls, tree) -> "_Shape":
        groups, start = [], _SUBLANES
        for uniform, level in zip(tree.uniform, tree.levels, strict=True):
            width, count = uniform.shape
            padded = _round(count, _SUBLANES)
            groups.append(_Group(level, width, count, padded, start))
            start += width * padded
        return cls(tuple(groups), _round(start, _LANES))

    @property
    def depth(self) -> int:
        return 1 + max((g.level for g in self.groups), default=-1)

    def level(self, level: int) -> list[int]:
        return [i for i, g in enumerate(self.groups) if g.level == level]

    def span(self, level: int) -> tuple[int, int]:
        """First row of a level and its number of rows."""
        members = [self.groups[i] for i in self.level(level)]
        return members[0].start, sum(g.width * g.padded for g in members)

    def infosets(self, level: int) -> int:
        return sum(self.groups[i].padded for i in self.level(level))

    def place(self) -> np.ndarray:
        """Row of each slot."""
        rows = [np.zeros(0, np.int32)]
        for g in self.groups:
            action, infoset = np.divmod(np.arange(g.width * g.count), g.count)
            rows.append(g.start + action * g.padded + infoset)
        return np.concatenate(rows).astype(np.int32)


def obstacle(dtype, game, steps: int) -> str | None:
    """Why this kernel cannot take such a call; `None` where it can."""
    if dtype != jnp.float32:
        return f"{dtype} is not the kernel's type; use float32"
    if steps == 0 or not all(tree.uniform for tree in game.trees):
        return "there is nothing to do"
    shapes = [_Shape.of(tree) for tree in game.trees]
    floats = shapes[0].rows * shapes[1].rows + 2 * steps * _LANES
    for s in shapes:
        # State, plan and uniform, the gradient, parent matrices.
        floats += 6 * s.rows * _LANES
        for level in range(1, s.depth):
            floats += s.infosets(level) * _round(s.span(level - 1)[1], _LANES)
    if 4 * floats > _BUDGET:
        return (
            f"the game takes {4 * floats / 2**20:.1f} MiB of on-chip memory, above "
            f"{_BUDGET / 2**20:.0f}"
        )
    return None


def iterate(vectors, game, weights, rm_eps, interpret):
    """See `cfr_plus_iterations`; weights `[steps, B]`, rm_eps `[B]`."""
    steps, batch = weights.shape
    width = _round(batch, _LANES)
    shapes = tuple(_Shape.of(tree) for tree in game.trees)
    places = [s.place() for s in shapes]
    payoff = jnp.zeros((shapes[0].rows, shapes[1].rows), jnp.float32)
    above = [np.concatenate([np.zeros(1, np.int32), p]) for p in places]
    row, col = jnp.asarray(above[0])[game.row], jnp.asarray(above[1])[game.col]
    payoff = payoff.at[row, col].add(game.value)

    def lanes(x):
        return jnp.pad(x, ((0, 0), (0, width - batch)))

    states, uniforms, families = [], [], []
    for p, (shape, tree) in enumerate(zip(shapes, game.trees, strict=True)):
        stacked = jnp.stack([lanes(v[p]) for v in vectors])
        empty = jnp.zeros((3, shape.rows, width), jnp.float32)
        states.append(empty.at[:, places[p]].set(stacked))
        flat = jnp.concatenate([u.ravel() for u in tree.uniform]).astype(jnp.float32)
        rows = jnp.zeros((shape.rows, _LANES), jnp.float32)
        spread = jnp.broadcast_to(flat[:, None], (flat.size, _LANES))
        uniforms.append(rows.at[places[p]].set(spread))
        families.append(_families(shape, tree))

    resident = [payoff, *uniforms, *families[0], *families[1]]
    tile = pl.BlockSpec((steps, _LANES), lambda b: (0, b))
    out = pl.pallas_call(
        functools.partial(_kernel, shapes=shapes, steps=steps),
        grid=(width // _LANES,),
        in_specs=[
            tile,
            pl.BlockSpec((1, _LANES), lambda b: (0, b)),
            *(_whole(x) for x in resident),
            *(pl.BlockSpec(memory_space=pltpu.HBM) for _ in states),
        ],
        out_specs=[pl.BlockSpec(memory_space=pltpu.HBM) for _ in states],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in states],
        scratch_shapes=[
            *(pltpu.VMEM((3, s.rows, _LANES), jnp.float32) for s in shapes),
            *(pltpu.VMEM((s.rows, _LANES), jnp.float32) for s in shapes),
            pltpu.VMEM((max(s.rows for s in shapes), _LANES), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=16 * 2**20
        ),
        interpret=interpret or False,
        name="cfr_plus_iterations",
    )(lanes(weights), lanes(rm_eps[None]), *resident, *states)
    pairs = [x[:, place, :batch] for x, place in zip(out, places, strict=True)]
    return tuple((pairs[0][i], pairs[1][i]) for i in range(3))


def _families(shape: _Shape, tree) -> list:
    """Per level below the first `[infosets, slots above]`, 1 at each parent."""
    out = []
    for level in range(1, shape.depth):
        first, size = shape.span(level - 1)
        above = shape.place()
        inside = above[(above >= first) & (above < first + size)] - first
        columns = []
        for i in shape.level(level):
            group = shape.groups[i]
            place = jnp.asarray(inside)[tree.parent[i]]
            # Padding infosets have no parent: -1 marks no column.
            pad = (0, group.padded - group.count)
            columns.append(jnp.pad(place, pad, constant_values=-1))
        at = jnp.arange(size, dtype=jnp.int32)[None]
        marks = jnp.concatenate(columns)[:, None] == at
        out.append(marks.astype(jnp.float32))
    return out


def _kernel(weights, eps, payoff, *refs, shapes, steps):
    depth = [s.depth - 1 for s in shapes]
    uniform, refs = refs[:2], refs[2:]
    families = (refs[: depth[0]], refs[depth[0] : sum(depth)])
    before, after, state, plan, (gradient, semaphores) = (
        refs[sum(depth) + i : sum(depth) + i + 2] for i in range(0, 10, 2)
    )
    program = pl.program_id(0)

    def copies(source, target, leave):
        lanes = pl.ds(program * _LANES, _LANES)
        for p in (0, 1):
            a, b = source[p], target[p]
            a, b = (a, b.at[:, :, lanes]) if leave else (a.at[:, :, lanes], b)
            yield pltpu.make_async_copy(a, b, semaphores.at[p])

    arriving = list(copies(before, state, leave=False))
    for copy in arriving:
        copy.start()
    for copy in arriving:
        copy.wait()
    for p in (0, 1):
        # Tiles no group owns stay zero, but for the empty sequence's own row.
        plan[p][...] = jnp.zeros_like(plan[p])
        first = lax.broadcasted_iota(jnp.int32, (_SUBLANES, _LANES), 0) == 0
        plan[p][:_SUBLANES] = first.astype(jnp.float32)
        _lay_plan(shapes[p], families[p], state[p], plan[p])

    def one(k, _):
        weight = weights[pl.ds(k, 1)]
        for p in (0, 1):
            rows = pl.ds(0, shapes[p].rows)
            gradient[rows] = _dot(payoff[...], plan[1 - p][...], p)
            if p == 1:
                gradient[rows] = -gradient[rows]
            state[p][1] = weight * state[p][1] + plan[p][...]
            _update(shapes[p], families[p], state[p], gradient, uniform[p], eps[...])
            _lay_plan(shapes[p], families[p], state[p], plan[p])
        return 0

    lax.fori_loop(0, steps, one, 0)
    leaving = list(copies(state, after, leave=True))
    for copy in leaving:
        copy.start()
    for copy in leaving:
        copy.wait()


def _lay_plan(shape: _Shape, family, state, plan) -> None:
    """x(I, a) = sigma(I, a) x(parent of I), level by level."""
    for level in range(shape.depth):
        above, done = None, 0
        if level:
            first, size = shape.span(level - 1)
            above = _dot(family[level - 1][...], plan[pl.ds(first, size)], 0)
        for i in shape.level(level):
            group = shape.groups[i]
            for action in range(group.width):
                x = state[2, group.rows(action)]
                if above is not None:
                    x = x * above[done : done + group.padded]
                plan[group.rows(action)] = x
            done += group.padded


def _update(shape: _Shape, family, state, gradient, uniform, eps) -> None:
    """Values bottom-up; each infoset's regrets and strategy on the way."""
    for level in reversed(range(shape.depth)):
        values = []
        for i in shape.level(level):
            group = shape.groups[i]
            value = jnp.zeros((group.padded, _LANES), jnp.float32)
            for action in range(group.width):
                rows = group.rows(action)
                value += gradient[rows] * state[2, rows]
            values.append(value)
            total = jnp.zeros_like(value)
            for action in range(group.width):
                rows = group.rows(action)
                gain = jnp.where(uniform[rows] > 0, gradient[rows] - value, 0)
                regret = jnp.maximum(state[0, rows] + gain, 0)
                state[0, rows] = regret
                total += regret
            divisor = jnp.where(total > 0, total, 1)
            for action in range(group.width):
                rows = group.rows(action)
                ratio = state[0, rows] / divisor
                state[2, rows] = jnp.where(total > eps, ratio, uniform[rows])
        if level:
            first, size = shape.span(level - 1)
            below = jnp.concatenate(values) if len(values) > 1 else values[0]
            above = pl.ds(first, size)
            gradient[above] += _dot(family[level - 1][...], below, 1)


def _dot(matrix, x, axis: int):
    """`matrix @ x`, or its transpose with axis 1; exact where the matrix is 0 or 1."""
    return lax.dot_general(
        matrix,
        x,
        (((1 - axis,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _whole(x):
    """All of an array, copied to VMEM once."""
    zeros = (0,) * x.ndim
    return pl.BlockSpec(x.shape, lambda b: zeros, pipeline_mode=pl.Buffered(1))


def _round(n: int, to: int) -> int:
    return -(-n // to) * to
