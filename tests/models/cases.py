"""The stored models, loaded once, and one jitted forward for all tests."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from safetensors.numpy import save_file

from jaxlab import models

FOLDER = pathlib.Path(__file__).parents[1] / "oracles" / "hf_models"
STORED = ("llama_rope3", "llama_tied", "qwen2", "qwen3")
SMALL = dict(
    model_type="llama", vocab_size=31, hidden_size=16, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
    rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=False,
)  # fmt: skip


@functools.cache
def stored(name: str):
    """`(params, config, expected)` of a stored model, float32."""
    expected = {
        k: jnp.asarray(v) for k, v in np.load(FOLDER / name / "expected.npz").items()
    }
    return *models.load(FOLDER / name), expected


@functools.cache
def small(**changes):
    """Random parameters of a small model: `(params, config)`."""
    config = models.DecoderConfig(
        **{
            **dict(
                vocab=31, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8,
                d_ff=24, qk_norm=True, qkv_bias=True,
            ),
            **changes,
        }
    )  # fmt: skip
    params = models.init(jax.random.key(0), config)
    key = jax.random.key(1)
    # Away from the nearly linear beginning, so that every part matters.
    noisy = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(jax.random.fold_in(key, x.size), x.shape),
        params,
    )
    return noisy, config


# Dense attention by its definition: it compiles in no time. The stored models run what
# users run.
PLAIN = models.Dense(implementation="reference")


def _jitted(function, *static):
    @functools.partial(jax.jit, static_argnames=("config", "attention", *static))
    def run(*args, attention=PLAIN, **kwargs):
        return function(*args, attention=attention, **kwargs)

    # By position, config is what jit must not trace.
    return lambda params, config, *rest, **options: run(
        params, *rest, config=config, **options
    )


def _forward(params, tokens, *, config, **options):
    return models.forward(params, config, tokens, **options)


def _prefill(params, tokens, *, config, **options):
    return models.prefill(params, config, tokens, **options)


def _step(params, cache, token, *, config, **options):
    return models.step(params, config, cache, token, **options)


forward = _jitted(_forward, "remat", "sharding", "return_aux")
prefill = _jitted(_prefill, "max_len", "return_aux")
step = _jitted(_step, "return_aux")


def mesh(shape, names):
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def write(
    folder: pathlib.Path, raw: dict, tensors: dict, shards: int = 1
) -> pathlib.Path:
    """A Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    homes, names = {}, sorted(tensors)
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {x: tensors[x] for x in names[i::shards]}
        save_file(part, folder / file)
        homes |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
