"""Channels of keys have the model's own order: groups of neighbouring channels
are the groups of keys that numpy computes as transformers does."""
import json
import os
import tempfile
import unittest

import numpy as np

import tiny_model
from run_tools import must, run, write

HEADS, DIM, TURNING, CTX, GROUP = 2, 32, 12, 64, 8
HIDDEN = HEADS * DIM
CONFIG = {
    "architectures": ["GPTJForCausalLM"], "model_type": "gptj",
    "n_embd": HIDDEN, "n_head": HEADS, "n_layer": 1, "n_inner": HIDDEN,
    "n_positions": CTX, "rotary_dim": TURNING, "vocab_size": tiny_model.VOCAB,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    "tie_word_embeddings": False,
}


def weights():
    rng = np.random.default_rng(3)
    out = {}

    def put(name, *shape):
        scale = 1 if "wte" in name else shape[-1] ** -0.5
        out[name] = rng.normal(0, scale, shape).astype("<f4")

    put("transformer.wte.weight", tiny_model.VOCAB, HIDDEN)
    put("lm_head.weight", tiny_model.VOCAB, HIDDEN)
    put("lm_head.bias", tiny_model.VOCAB)
    for name in "k_proj", "v_proj", "q_proj", "out_proj":
        put(f"transformer.h.0.attn.{name}.weight", HIDDEN, HIDDEN)
    for name in "fc_in", "fc_out":
        put(f"transformer.h.0.mlp.{name}.weight", HIDDEN, HIDDEN)
        put(f"transformer.h.0.mlp.{name}.bias", HIDDEN)
    for name in "h.0.ln_1", "ln_f":
        out[f"transformer.{name}.weight"] = np.ones(HIDDEN, "<f4")
        out[f"transformer.{name}.bias"] = np.zeros(HIDDEN, "<f4")
    return out


def keys(w, tokens):
    """[token][head][channel], as transformers' GPTJAttention has them."""
    x = w["transformer.wte.weight"][tokens].astype("f8")
    x -= x.mean(-1, keepdims=True)
    x /= np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    k = x @ w["transformer.h.0.attn.k_proj.weight"].T.astype("f8")
    k = k.reshape(len(tokens), HEADS, DIM)
    angle = np.arange(len(tokens))[:, None] * 10000.0 ** (
        -np.arange(0, TURNING, 2) / TURNING)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = k[..., 0:TURNING:2].copy(), k[..., 1:TURNING:2].copy()
    k[..., 0:TURNING:2] = a * c - b * s
    k[..., 1:TURNING:2] = b * c + a * s
    return k


def q4_0(x):
    """ggml's blocks of 32 values: bytes [..., 18]."""
    x = x.reshape(*x.shape[:-1], -1, 32)
    at = np.abs(x).argmax(-1)[..., None]
    d = np.take_along_axis(x, at, -1) / np.float32(-8)
    code = np.clip(x * (1 / d) + np.float32(8.5), 0, 15).astype(np.uint8)
    nibble = code[..., :16] | code[..., 16:] << 4
    scale = d.astype("<f2").view(np.uint8)
    return np.concatenate([scale, nibble], -1)


def kivi(x, bits):
    """Values in groups of GROUP channels, as KIVI gives them back."""
    x = x.reshape(*x.shape[:-1], -1, GROUP)
    low, top = x.min(-1, keepdims=True), np.float32(2 ** bits - 1)
    scale = ((x.max(-1, keepdims=True) - low) / top).astype("f2").astype("f4")
    low = low.astype("f2").astype("f4")
    code = np.clip(np.rint((x - low) / scale), 0, top)
    return (low + scale * code).reshape(*x.shape[:-2], -1)


class Order(unittest.TestCase):
    def setUp(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        self.h5py = h5py
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        model, self.w = self.at("gptj"), weights()
        os.mkdir(model)
        write(self.at("gptj/config.json"), json.dumps(CONFIG).encode())
        tiny_model.write_tokenizer(model, False)
        tiny_model.write_safetensors(
            self.at("gptj/model.safetensors"),
            {name: (x.shape, x.ravel()) for name, x in self.w.items()})
        write(self.at("some.txt"), tiny_model.text(60).encode())
        must("kvdump", "-m", model, "-f", self.at("some.txt"), "-c", CTX,
             "-n", 1, "-o", self.at("dump.h5"))

    def at(self, name):
        return os.path.join(self.folder.name, name)

    def dumped(self):
        with self.h5py.File(self.at("dump.h5")) as f:
            self.assertEqual(f.attrs["channel_order"].decode(), "model")
            self.assertEqual(f.attrs["rope_pairs"].decode(), "neighbours")
            self.assertEqual(len(f["inv_freq"]), TURNING // 2)
            return f["layer_000/k"][0], f["tokens"][0]

    def test_groups_are_the_models(self):
        k, tokens = self.dumped()
        np.testing.assert_allclose(k, keys(self.w, tokens), atol=2e-5)
        k = k.astype("f2").astype("f4")  # as keys enter a cache
        must("kvquant", "-s", "q4_0", self.at("dump.h5"), "--codes",
             self.at("codes.h5"))
        with self.h5py.File(self.at("codes.h5")) as f:
            np.testing.assert_array_equal(
                f["spec_001/layer_000/k"][0], q4_0(k).reshape(-1))
        for bits in 2, 4:
            must("kvquant", "-s", f"kivi:b{bits}g{GROUP}r0,axis=token",
                 self.at("dump.h5"), "--decoded", self.at("decoded.npz"))
            with np.load(self.at("decoded.npz")) as f:
                np.testing.assert_allclose(
                    f["layers.0.keys"][0].transpose(1, 0, 2), kivi(k, bits),
                    rtol=1e-6, atol=1e-6)

    def test_a_dump_of_an_older_version_is_refused(self):
        with self.h5py.File(self.at("dump.h5"), "r+") as f:
            f.attrs["channel_order"] = "halves"
        said = run("kvquant", "-s", "q4_0", self.at("dump.h5"))
        self.assertEqual(said.returncode, 2)
        self.assertIn("channel_order is halves, expected model", said.stderr)


if __name__ == "__main__":
    unittest.main()
