"""The cases that tests, ahead-of-time compilation and benchmarks share."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One static configuration of attention over block lists."""

    head_dim: int
    dtype: str
    rows: int = 4096
    keys: int = 4096
    heads: int = 8
    kv_heads: int = 2
    batch: int = 1
    block_q: int = 64
    block_k: int = 64
    slots: int = 16
    per_head: bool = True  # lists per query head, else per KV head

    @property
    def name(self) -> str:
        return (
            f"T{self.rows} S{self.keys} N{self.heads} K{self.kv_heads} "
            f"H{self.head_dim} b{self.block_q}x{self.block_k} {self.dtype} "
            f"lists per {'head' if self.per_head else 'group'}"
        )

    @property
    def lists(self) -> tuple[int, int, int, int]:
        heads = self.heads if self.per_head else self.kv_heads
        return (self.batch, heads, self.rows // self.block_q, self.slots)


_LONG = Case(
    128, "bfloat16", 131_072, 131_072, heads=32, kv_heads=8, slots=256, per_head=False
)

# Every head dim and type, then long context, large and small blocks.
COMPILE = tuple(
    Case(head_dim, dtype)
    for dtype in ("bfloat16", "float32")
    for head_dim in (64, 80, 96, 128, 256)
) + (
    _LONG,
    dataclasses.replace(_LONG, per_head=True),
    Case(128, "bfloat16", block_q=128, block_k=128),
    Case(64, "float32", block_q=32, block_k=16),
)

COMPILE_GPU = (
    *(
        Case(head_dim, dtype)
        for dtype in ("bfloat16", "float16")
        for head_dim in (64, 80, 96, 128, 192, 256)
    ),
    *(
        Case(head_dim, "bfloat16", block_k=block_k)
        for head_dim in (64, 128, 256)
        for block_k in (16, 32, 128)
    ),
    _LONG,
    dataclasses.replace(_LONG, per_head=True),
)

# Small enough to interpret: tails, groups, more steps than ring slots, and steps of one
# and of two blocks.
INTERPRET = (
    Case(16, "float32", 20, 321, heads=2, kv_heads=1, block_q=8, block_k=64),
    Case(80, "bfloat16", 32, 389, heads=2, kv_heads=2, block_q=16, block_k=128),
)

# For the GPU interpreter, more blocks than pipeline stages in each: half-filled
# tiles of 64 rows, stacked heads in two tiles, key blocks below and above 64 rows.
INTERPRET_GPU = (
    Case(80, "bfloat16", 104, 232, heads=2, kv_heads=1, block_q=40, block_k=32),
    Case(64, "float16", 128, 384, heads=4, kv_heads=2, block_k=128, per_head=False),
)
