"""A decoder in plain NumPy, float64, one token row at a time: the definition."""

import numpy as np


def random_tensors(raw: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor that a checkpoint with this config.json would have."""
    rng = np.random.default_rng(seed)
    heads, kv = raw["num_attention_heads"], raw["num_key_value_heads"]
    width, ff = raw["hidden_size"], raw["intermediate_size"]
    dim = raw.get("head_dim") or width // heads
    kind = raw["model_type"]
    attention_bias = raw.get("attention_bias", False) and kind != "qwen2"
    found = {"model.embed_tokens.weight": (raw["vocab_size"], width)}
    if not raw.get("tie_word_embeddings", False):
        found["lm_head.weight"] = (raw["vocab_size"], width)
    for i in range(raw["num_hidden_layers"]):
        stem = f"model.layers.{i}"
        for name, (out, into) in {
            "q": (heads * dim, width), "k": (kv * dim, width), "v": (kv * dim, width),
            "o": (width, heads * dim),
        }.items():  # fmt: skip
            found[f"{stem}.self_attn.{name}_proj.weight"] = (out, into)
            if attention_bias or (kind == "qwen2" and name != "o"):
                found[f"{stem}.self_attn.{name}_proj.bias"] = (out,)
        for name, (out, into) in {
            "gate": (ff, width), "up": (ff, width), "down": (width, ff)
        }.items():  # fmt: skip
            found[f"{stem}.mlp.{name}_proj.weight"] = (out, into)
            if raw.get("mlp_bias", False):
                found[f"{stem}.mlp.{name}_proj.bias"] = (out,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{stem}.{name}.weight"] = (width,)
        if kind == "qwen3":
            for name in ("q_norm", "k_norm"):
                found[f"{stem}.self_attn.{name}.weight"] = (dim,)
    found["model.norm.weight"] = (width,)
    return {
        name: (rng.normal(size=shape) * 0.2 + ("norm" in name)).astype(np.float32)
        for name, shape in found.items()
    }


def logits(tensors: dict[str, np.ndarray], raw: dict, ids) -> np.ndarray:
    """`[T, V]` for one sequence."""
    t = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
    heads, kv = raw["num_attention_heads"], raw["num_key_value_heads"]
    dim = raw.get("head_dim") or raw["hidden_size"] // heads
    eps, length = raw["rms_norm_eps"], len(ids)
    f = _frequencies(raw, dim)
    angle = np.arange(length)[:, None] * f
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rms(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    def linear(x, name):
        return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0)

    def turn(x):
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = t["model.embed_tokens.weight"][ids]
    for i in range(raw["num_hidden_layers"]):
        stem = f"model.layers.{i}"
        h = rms(x, t[f"{stem}.input_layernorm.weight"])
        q, k, v = (
            linear(h, f"{stem}.self_attn.{n}_proj").reshape(length, -1, dim)
            for n in "qkv"
        )
        if raw["model_type"] == "qwen3":
            q = rms(q, t[f"{stem}.self_attn.q_norm.weight"])
            k = rms(k, t[f"{stem}.self_attn.k_norm.weight"])
        q, k = turn(q), turn(k)
        distance = np.arange(length)[:, None] - np.arange(length)
        seen = distance >= 0
        if raw.get("use_sliding_window") and i >= raw["max_window_layers"]:
            seen &= distance < raw["sliding_window"]
        out = np.empty_like(q)
        for n in range(heads):
            x_ = q[:, n] @ k[:, n // (heads // kv)].T * dim**-0.5
            e = np.where(seen, np.exp(x_ - x_.max()), 0)
            out[:, n] = e / e.sum(-1, keepdims=True) @ v[:, n // (heads // kv)]
        x = x + linear(out.reshape(length, -1), f"{stem}.self_attn.o_proj")
        h = rms(x, t[f"{stem}.post_attention_layernorm.weight"])
        gate = linear(h, f"{stem}.mlp.gate_proj")
        inner = gate / (1 + np.exp(-gate)) * linear(h, f"{stem}.mlp.up_proj")
        x = x + linear(inner, f"{stem}.mlp.down_proj")
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return rms(x, t["model.norm.weight"]) @ head.T


def _frequencies(raw, dim):
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    f = theta ** (-2.0 * np.arange(dim // 2) / dim)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        return f / rope["factor"]
    if kind == "llama3":
        length, out = rope["original_max_position_embeddings"], []
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        for x in f:
            wave = 2 * np.pi / x
            if wave > length / low:
                out.append(x / rope["factor"])
            elif wave < length / high:
                out.append(x)
            else:
                s = (length / wave - low) / (high - low)
                out.append((1 - s) * x / rope["factor"] + s * x)
        return np.array(out)
    return f
