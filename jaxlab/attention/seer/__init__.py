"""SeerAttention: small learned gates that say which blocks attention should read.

    gate = seer.PrefillGate(num_heads=32, num_kv_heads=8, head_dim=128)
    params = gate.init(key)
    mask = seer.Selection(density=0.3).mask(gate.logits(params, q_nope, k_nope))
    out = kernels_pallas.block_sparse_attention(q, k, v, mask, block_q=64, block_k=64)

`PrefillGate` chooses blocks of keys for blocks of queries, `DecodeGate` for one token,
from a compressed copy of the keys (`KeyCache`). Both learn from the attention they
imitate: `prefill_target`, `decode_target`, `gate_loss`.

Source: Gao et al. 2024 (SeerAttention, arXiv 2410.13276) and 2025 (SeerAttention-R,
  arXiv 2506.08889), following the released code where the two differ.
"""

from jaxlab.attention.seer.decode import DecodeGate, KeyCache, select_blocks
from jaxlab.attention.seer.distill import decode_target, gate_loss, prefill_target
from jaxlab.attention.seer.pooling import pool
from jaxlab.attention.seer.prefill import PrefillGate, Selection

__all__ = [
    "DecodeGate",
    "KeyCache",
    "PrefillGate",
    "Selection",
    "decode_target",
    "gate_loss",
    "pool",
    "prefill_target",
    "select_blocks",
]
