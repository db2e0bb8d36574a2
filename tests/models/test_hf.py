"""Hugging Face folders: the stored numbers, every form of config, and one-line errors."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxlab import models
from jaxlab.layers.rope import Rope
from tests.models import numpy_decoder
from tests.models.cases import FOLDER, SMALL, STORED, forward, stored, write


@pytest.mark.parametrize("name", STORED)
def test_logits_are_those_of_transformers(name):
    params, config, expected = stored(name)
    ids, mask = expected["input_ids"], expected["attention_mask"]
    got = forward(params, config, ids, mask=mask, attention=models.Dense())
    seen = np.asarray(mask, bool)
    wanted = np.asarray(expected["logits_left_padded"])
    assert not seen.all()
    np.testing.assert_allclose(np.asarray(got)[seen], wanted[seen], atol=1e-4)
    np.testing.assert_allclose(got[:1], expected["logits_row0"], atol=1e-4)


@pytest.mark.parametrize("name", STORED)
def test_float64_is_closer(name):
    with jax.enable_x64(True):
        params, config = models.load(FOLDER / name, dtype=jnp.float64)
        expected = np.load(FOLDER / name / "expected.npz")
        got = forward(params, config, jnp.asarray(expected["input_ids"][:1]))
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected["logits_row0"], atol=1e-5)


@pytest.mark.parametrize("name", STORED)
def test_greedy_continuation_is_that_of_transformers(name):
    params, config, expected = stored(name)
    prompt = expected["greedy_prompt"]
    new = models.generate(params, config, prompt, 16)
    whole = np.concatenate([prompt, new.tokens], axis=1)
    np.testing.assert_array_equal(whole, expected["greedy_output"])
    np.testing.assert_array_equal(new.lengths, [16])


LLAMA3 = dict(
    factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
VARIANTS = {
    "old llama3 rope": dict(rope_scaling={"rope_type": "llama3", **LLAMA3}),
    "old rope type": dict(rope_scaling={"type": "linear", "factor": 3.0}),
    "new linear rope": dict(
        rope_theta=None,
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0},
    ),
    "no scaling": dict(rope_scaling=None, head_dim=6),
    "every bias": dict(attention_bias=True, mlp_bias=True),
    "window": dict(
        model_type="qwen2", use_sliding_window=True, sliding_window=3,
        max_window_layers=1,
    ),
    "window off": dict(
        model_type="qwen2", use_sliding_window=False, sliding_window=3,
        max_window_layers=1,
    ),
    "tied": dict(model_type="qwen3", tie_word_embeddings=True, head_dim=8),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_every_form_of_config_means_what_it_says(name, tmp_path):
    raw = {**SMALL, **VARIANTS[name]}
    raw = {k: v for k, v in raw.items() if v is not None or k == "rope_scaling"}
    tensors = numpy_decoder.random_tensors(raw)
    params, config = models.load(write(tmp_path, raw, tensors))
    ids = np.random.default_rng(1).integers(0, 31, 11)
    got = forward(params, config, jnp.asarray(ids, jnp.int32)[None])[0]
    np.testing.assert_allclose(got, numpy_decoder.logits(tensors, raw, ids), atol=2e-4)


def test_layer_types_say_which_layers_have_a_window():
    raw = {**SMALL, "model_type": "qwen3", "head_dim": 8, "sliding_window": 5,
           "use_sliding_window": True, "max_window_layers": 0}  # fmt: skip
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert models.parse_config(raw).windows == (5, 5, 5)
    assert models.parse_config(raw | {"layer_types": kinds}).windows == (None, 5, None)
    off = raw | {"layer_types": kinds, "use_sliding_window": False}
    assert models.parse_config(off).windows == ()
    assert models.parse_config({**SMALL, "sliding_window": 5}).windows == ()


def test_shards_are_one_model(tmp_path):
    single = FOLDER / "qwen3"
    raw = json.loads((single / "config.json").read_text())
    tensors = load_file(single / "model.safetensors")
    got = models.load(write(tmp_path, raw, tensors, shards=3))
    assert got.config == stored("qwen3")[1]
    jax.tree.map(np.testing.assert_array_equal, got.params, stored("qwen3")[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_halves_are_kept_or_cast(dtype, tmp_path):
    wide = load_file(FOLDER / "llama_tied" / "model.safetensors")
    raw = json.loads((FOLDER / "llama_tied" / "config.json").read_text())
    tensors = {k: v.astype(jnp.dtype(dtype)) for k, v in wide.items()}
    folder = write(tmp_path, raw, tensors)
    params, config = models.load(folder)
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {dtype}
    logits = forward(params, config, jnp.zeros((1, 4), jnp.int32))
    assert logits.dtype == jnp.float32
    cast, _ = models.load(folder, dtype=jnp.float32)
    np.testing.assert_array_equal(
        cast["embed"], tensors["model.embed_tokens.weight"].astype(np.float32)
    )
    exact = forward(cast, config, jnp.zeros((1, 4), jnp.int32))
    np.testing.assert_allclose(logits, exact, atol=0.1 * float(np.abs(exact).max()))


def test_stacked_loading_is_loading_and_stacking():
    params, _, _ = stored("qwen2")
    got, _ = models.load(FOLDER / "qwen2", stacked=True)
    jax.tree.map(np.testing.assert_array_equal, got, models.stack_layers(params))


def test_what_was_loaded_does_not_hang_on_the_file(tmp_path):
    folder = write(tmp_path, SMALL, numpy_decoder.random_tensors(SMALL))
    params, _ = models.load(folder)
    before = jax.tree.map(np.array, params)
    file = folder / "model.safetensors"
    with open(file, "r+b") as f:
        f.seek(4000)
        f.write(b"\xff" * (file.stat().st_size - 4000))
    jax.tree.map(np.testing.assert_array_equal, params, before)


def test_a_tied_head_may_be_stored_but_not_differ(tmp_path):
    raw = {**SMALL, "tie_word_embeddings": True}
    tensors = numpy_decoder.random_tensors(raw)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    params, _ = models.load(write(tmp_path, raw, tensors))
    assert "head" not in params
    tensors["lm_head.weight"][30, 15] += 1e-6
    with pytest.raises(ValueError, match="lm_head.weight differs from the embedding"):
        models.load(write(tmp_path, raw, tensors))


def broken(tmp_path, raw=None, drop=(), add=None, shards=1):
    raw = SMALL if raw is None else raw
    tensors = numpy_decoder.random_tensors(SMALL)
    tensors = {k: v for k, v in tensors.items() if k not in drop} | (add or {})
    return write(tmp_path, raw, tensors, shards)


def refused(folder, message, kind=ValueError):
    with pytest.raises(kind, match=message) as caught:
        models.load(folder)
    assert "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    drop = [
        f"model.layers.{i}.mlp.{x}_proj.weight" for i in (0, 1) for x in ("up", "gate")
    ]
    refused(
        broken(tmp_path / "a", drop=drop), "lacks 4 tensors: .*layers.0.mlp.gate_proj"
    )
    add = {f"score.{i}": np.ones(1, np.float32) for i in range(7)}
    refused(
        broken(tmp_path / "b", add=add),
        "7 tensors that its config does not.*\\.\\.\\.$",
    )
    add = {"model.norm.weight": np.ones(17, np.float32)}
    refused(
        broken(tmp_path / "c", add=add), r"model.norm.weight is \[17\].*says \[16\]"
    )
    add = {"model.norm.weight": np.ones(16, np.int8)}
    refused(broken(tmp_path / "d", add=add), "model.norm.weight is int8")
    refused(
        broken(tmp_path / "e", raw=SMALL | {"num_hidden_layers": 4}), "lacks 9 tensors"
    )


def test_architectures_that_are_not_there_are_named(tmp_path):
    refused(
        broken(tmp_path / "a", raw=SMALL | {"model_type": "gpt2"}), "model_type='gpt2'"
    )
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    refused(broken(tmp_path / "b", raw=SMALL | yarn), "rope type 'yarn' is not")
    bare = {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}
    refused(
        broken(tmp_path / "c", raw=SMALL | bare), "needs low_freq_factor, high_freq"
    )
    gelu = {"hidden_act": "gelu"}
    refused(
        broken(tmp_path / "d", raw=SMALL | gelu), "hidden_act='gelu' must be 'silu'"
    )
    lost = {k: v for k, v in SMALL.items() if k != "hidden_size"}
    refused(broken(tmp_path / "e", raw=lost), "must have hidden_size")
    nested = {"rope_parameters": {"full_attention": {"rope_type": "default"},
                                  "rope_theta": {}}}  # fmt: skip
    refused(broken(tmp_path / "f", raw=SMALL | nested), "rope type")


def test_files_that_are_not_there_or_cut_short_are_named(tmp_path):
    refused(tmp_path / "none", "no config.json", FileNotFoundError)
    folder = broken(tmp_path / "a")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    refused(folder, "model.safetensors is truncated: tensor .* ends at byte")
    file.write_bytes(whole[:300])
    refused(folder, "truncated: its header")
    file.write_bytes(b"")
    refused(folder, "not a safetensors file")
    file.write_bytes(whole[:8] + b"}" + whole[9:])
    refused(folder, "not a sound safetensors file")
    file.unlink()
    refused(folder, "neither model.safetensors nor", FileNotFoundError)
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, "pickled weights .pytorch_model.bin.*save_pretrained")
    folder = broken(tmp_path / "b", shards=3)
    shard = folder / "model-00002-of-00003.safetensors"
    save_file({"x": np.ones(1, np.float32)}, shard)
    refused(folder, "index places tensors in shards that lack them")
    shard.unlink()
    refused(folder, "lacks shards .*00002", FileNotFoundError)
    (folder / "config.json").write_text("{")
    refused(folder, "config.json is not valid JSON")


def test_float64_without_x64_is_refused():
    with pytest.raises(ValueError, match="float64 needs jax_enable_x64"):
        models.load(FOLDER / "qwen2", dtype=np.float64)


@pytest.mark.usefixtures("untyped")
def test_configs_that_contradict_themselves_are_refused():
    good = models.parse_config(SMALL)
    assert hash(good) == hash(models.parse_config(SMALL))
    with pytest.raises(ValueError, match="n_kv_heads=3 must divide n_heads=4"):
        models.parse_config(SMALL | {"num_key_value_heads": 3})
    with pytest.raises(ValueError, match="must divide hidden_size=18"):
        models.parse_config(SMALL | {"hidden_size": 18})
    with pytest.raises(ValueError, match="scaling='ntk' must be one of"):
        Rope(scaling="ntk")  # pyright: ignore
    with pytest.raises(ValueError, match="below high_freq_factor"):
        Rope(scaling="llama3", low_freq_factor=5.0)


@pytest.mark.parametrize(
    "changes",
    [
        dict(model_type="llama", attention_bias=True, mlp_bias=True),
        dict(model_type="llama", rope_scaling={"rope_type": "llama3", **LLAMA3}),
        dict(model_type="qwen2", use_sliding_window=True, sliding_window=4,
             max_window_layers=1),
        dict(model_type="qwen3", head_dim=12, tie_word_embeddings=True),
    ],
)  # fmt: skip
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_live_transformers_agrees(changes, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    options = {k: v for k, v in {**SMALL, **changes}.items() if k != "model_type"}
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(changes["model_type"], **options)
    )
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.2 * torch.randn_like(p))
    theirs.save_pretrained(tmp_path)
    params, config = models.load(tmp_path)
    ids = np.random.default_rng(0).integers(1, 31, (2, 21))
    mask = np.ones_like(ids)
    mask[1, :6] = 0
    with torch.no_grad():
        wanted = theirs(
            torch.tensor(ids), attention_mask=torch.tensor(mask)
        ).logits.numpy()
        longer = theirs.generate(
            torch.tensor(ids), attention_mask=torch.tensor(mask), max_new_tokens=8,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        ).numpy()  # fmt: skip
    ids, mask = jnp.asarray(ids, jnp.int32), jnp.asarray(mask)
    got = np.asarray(forward(params, config, ids, mask=mask))
    seen = np.asarray(mask, bool)
    np.testing.assert_allclose(got[seen], wanted[seen], atol=1e-4)
    new = models.generate(params, config, ids, 8, mask=mask).tokens
    np.testing.assert_array_equal(new, longer[:, 21:])
