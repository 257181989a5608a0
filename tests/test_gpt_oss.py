"""gpt-oss in the tools: its sink logits count in every attention, of dumps too,
and a folder that is not what its config says is refused by name."""
import csv
import io
import json
import os
import shutil
import struct
import tempfile
import unittest

import numpy as np

import tiny_model
from run_tools import must, run

HEADS, KV_HEADS, DIM, HIDDEN, INTER, EXPERTS, LAYERS = 4, 2, 32, 32, 32, 3, 2
CONFIG = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
    "hidden_size": HIDDEN, "intermediate_size": INTER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": DIM,
    "vocab_size": tiny_model.VOCAB, "max_position_embeddings": 64,
    "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
    "rope_theta": 1e4, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "truncate": False,
        "original_max_position_embeddings": 16},
    "sliding_window": 24, "swiglu_limit": 7.0,
    "quantization_config": {"quant_method": "mxfp4"},
}
LAYER = "model.layers.0."
GATE_UP = LAYER + "mlp.experts.gate_up_proj"


def random_layer(rng, tensors, p):
    def put(name, *shape, scale=None):
        scale = scale or 0.6 / shape[-1] ** 0.5
        tensors[p + name] = rng.normal(0, scale, shape).astype("<f4")

    for name, rows, columns in (("q", HEADS * DIM, HIDDEN),
                                ("k", KV_HEADS * DIM, HIDDEN),
                                ("v", KV_HEADS * DIM, HIDDEN),
                                ("o", HIDDEN, HEADS * DIM)):
        put(f"self_attn.{name}_proj.weight", rows, columns, scale=0.3)
        put(f"self_attn.{name}_proj.bias", rows, scale=0.2)
    tensors[p + "self_attn.sinks"] = np.array([4, 3, 5, 2], "<f4")
    for name in "input_layernorm", "post_attention_layernorm":
        tensors[p + name + ".weight"] = np.ones(HIDDEN, "<f4")
    put("mlp.router.weight", EXPERTS, HIDDEN)
    put("mlp.router.bias", EXPERTS)
    for name, rows, columns in (("gate_up_proj", 2 * INTER, HIDDEN),
                                ("down_proj", HIDDEN, INTER)):
        shape = EXPERTS, rows, columns // 32
        tensors[f"{p}mlp.experts.{name}_blocks"] = rng.integers(
            0, 256, (*shape, 16), np.uint8)
        tensors[f"{p}mlp.experts.{name}_scales"] = rng.integers(
            120, 122, shape, np.uint8)
        put(f"mlp.experts.{name}_bias", EXPERTS, rows, scale=0.1)


def random_model():
    rng = np.random.default_rng(5)
    tensors = {
        "model.embed_tokens.weight": rng.normal(
            0, 1, (tiny_model.VOCAB, HIDDEN)).astype("<f4"),
        "model.norm.weight": np.ones(HIDDEN, "<f4"),
        "lm_head.weight": rng.normal(
            0, 0.15, (tiny_model.VOCAB, HIDDEN)).astype("<f4")}
    for i in range(LAYERS):
        random_layer(rng, tensors, f"model.layers.{i}.")
    return tensors


def write(name, tensors, **fields):
    """A model's folder; a field with None is left out."""
    out = os.path.join(folder, name)
    os.makedirs(out, exist_ok=True)
    tiny_model.write_tokenizer(out, False)
    config = {k: v for k, v in {**CONFIG, **fields}.items()
              if v is not None}
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump({k: None if v == "null" else v
                   for k, v in config.items()}, f)
    header, at = {}, 0
    for key, x in tensors.items():
        header[key] = {"dtype": "U8" if x.dtype == np.uint8 else "F32",
                       "shape": x.shape, "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    head = json.dumps(header).encode()
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x).tobytes())
    return out


def setUpModule():
    global folder, tensors, model, text
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tensors = random_model()
    model = write("m", tensors)
    text = os.path.join(folder, "text")
    with open(text, "w") as f:
        f.write(tiny_model.text(60))


def tearDownModule():
    shutil.rmtree(folder)


def rows(out):
    return list(csv.DictReader(io.StringIO(out)))


def ppl(of, protocol, *specs):
    args = [x for spec in specs for x in ("-s", spec)]
    out = must("kvppl", "-m", of, "-f", text, "-c", "48", "-n", "2", "-p",
               protocol, *args)
    return [float(r["ppl"]) for r in rows(out)]


class Experts(unittest.TestCase):
    def test_many_that_are_not_packed(self):
        """Each is a piece of two tensors; of so many more than the parts of a
        layer, the first two are those of the model with two."""
        n, rng = 200, np.random.default_rng(6)
        dense = {k: x for k, x in tensors.items() if "mlp" not in k}
        for i in range(LAYERS):
            p = f"model.layers.{i}.mlp."
            for name, shape in (
                    ("router.weight", (n, HIDDEN)), ("router.bias", (n,)),
                    ("experts.gate_up_proj", (n, HIDDEN, 2 * INTER)),
                    ("experts.gate_up_proj_bias", (n, 2 * INTER)),
                    ("experts.down_proj", (n, INTER, HIDDEN)),
                    ("experts.down_proj_bias", (n, HIDDEN))):
                dense[p + name] = rng.normal(0, .1, shape).astype("<f4")
            dense[p + "router.bias"][2:] = -99  # never chosen
        two = {k: x[:2] if ".mlp." in k else x for k, x in dense.items()}
        plain = {"quantization_config": None}
        many, few = (ppl(write(f"e{x}", t, num_local_experts=x, **plain),
                         "all", "f32")[0] for x, t in ((n, dense), (2, two)))
        self.assertLess(abs(many / few - 1), 1e-6)


class Sinks(unittest.TestCase):
    def test_they_count_in_every_protocol_and_scheme(self):
        without = write("without", {
            k: x - 1e4 if k.endswith("sinks") else x
            for k, x in tensors.items()})
        for protocol in "all", "prefill:20", "stream":
            policy = ["h2o:b1+q8_0"] if protocol == "stream" else []
            f32, *others = ppl(model, protocol, "f32", "f16", "q8_0",
                               "absmax:b8g32", "hack:b8p32,nearest", *policy)
            self.assertGreater(
                abs(ppl(without, protocol, "f32")[0] / f32 - 1), 0.04)
            for i, x in enumerate(others):
                self.assertLess(abs(x / f32 - 1), 0.01, (protocol, i))

    def test_a_dump_holds_them(self):
        dump = os.path.join(folder, "d.h5")
        must("kvdump", "-m", model, "-f", text, "-c", "48", "-n", "2",
             "-o", dump)
        out = must("kvquant", "-s", "q8_0", "-s", "hack:b8p32,nearest",
                   dump)
        for r in rows(out):
            self.assertLess(float(r["attn_rel_err"]), 0.05)


    def test_arrays_do_not_hold_them(self):
        arrays = {f"layers.{i}.{name}": np.ones((1, heads, 24, DIM), "<f4")
                  for i in range(LAYERS) for name, heads in (
                      ("keys", KV_HEADS), ("values", KV_HEADS),
                      ("queries", HEADS))}
        path = os.path.join(folder, "a.npz")
        args = ["--from", path, "--config", model + "/config.json", "-o",
                os.path.join(folder, "a.h5")]
        np.savez(path, **arrays)
        done = run("kvdump", *args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("has sink logits", done.stderr)
        np.savez(path, **{k: x for k, x in arrays.items() if "q" not in k})
        done = run("kvdump", *args)
        self.assertEqual(done.returncode, 0, done.stderr)


class Refusals(unittest.TestCase):
    def refused(self, changed, *says, **fields):
        done = run("kvppl", "-m", write("bad", {
            k: x for k, x in {**tensors, **changed}.items()
            if x is not None}, **fields), "-f", text, "-s", "f32")
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in says:
            self.assertIn(word, done.stderr)

    def test_sinks(self):
        name = LAYER + "self_attn.sinks"
        self.refused({name: None}, name, "missing")
        self.refused({name: np.zeros(HEADS + 1, "<f4")},
                     f"tensor {name} has shape [5]; config.json says [4]")
        self.refused({name: np.full(HEADS, np.inf, "<f4")}, name, "infinite")

    def test_fields(self):
        self.refused({}, "swiglu_limit is null", swiglu_limit="null")
        self.refused({}, "swiglu_limit", "above 0", swiglu_limit=-7.0)
        self.refused({}, "rope_scaling is missing", rope_scaling=None)
        self.refused({}, "hidden_act is \"gelu\"", hidden_act="gelu")

    def test_packed_against_the_header(self):
        blocks, scales = GATE_UP + "_blocks", GATE_UP + "_scales"
        self.refused({}, "_blocks is packed", "no quantization_config",
                     quantization_config=None)
        self.refused({scales: None}, f"{blocks} has no _scales")
        self.refused({scales: tensors[scales][:, 1:]}, scales,
                     "has shape [3, 63, 1]", blocks, "[3, 64, 1]")
        self.refused({blocks: tensors[blocks].astype("<f4")}, blocks,
                     "has type F32; U8 expected")
        self.refused({blocks: tensors[blocks][..., :8]}, blocks,
                     "the last of 16 bytes")
        self.refused({blocks: tensors[blocks][:, 2:],
                      scales: tensors[scales][:, 2:]}, GATE_UP,
                     "[3, 62, 32]", "[3, 64, 32]")
        self.refused({scales: np.full_like(tensors[scales], 255)}, GATE_UP,
                     "value 0 of")
        dense = {k: None for k in tensors if k.endswith(("_blocks",
                                                         "_scales"))}
        self.refused(dense, "but no tensor is called ..._blocks")
        self.refused(dense, GATE_UP, "missing", quantization_config=None)


if __name__ == "__main__":
    unittest.main()
