"""The tools on a model whose layers differ in their heads by kind, and whose last
layers attend with keys and values of others: a tiny Gemma 4."""
import csv
import io
import json
import os
import shutil
import tempfile
import unittest

import h5py
import tiny_model
from run_tools import must, run, write

DATA = os.path.join(os.environ["KV_SOURCE_ROOT"], "data")
TEXT = os.path.join(DATA, "sample.txt")
CALIB = os.path.join(DATA, "calib.txt")
HIDDEN, HEADS, INTER, OWN = 64, 4, 48, 8  # OWN: of a layer's own embedding
# KV heads, channels, by kind.
SLIDE, FULL = ("sliding_attention", 2, 32), ("full_attention", 1, 64)
KINDS = [SLIDE, FULL, SLIDE, FULL, SLIDE, FULL]
SHARED = 2
SPECS = "-s", "f16", "-s", "kivi:b2g16r16", "-s", "q8_0"


def shapes():
    h, vocab = HIDDEN, tiny_model.VOCAB
    yield "embed_tokens.weight", (vocab, h)
    yield "embed_tokens_per_layer.weight", (vocab, len(KINDS) * OWN)
    yield "per_layer_model_projection.weight", (len(KINDS) * OWN, h)
    yield "per_layer_projection_norm.weight", (OWN,)
    yield "norm.weight", (h,)
    for i, (_, kv, d) in enumerate(KINDS):
        shared = i >= len(KINDS) - SHARED
        inter = INTER * (2 if shared else 1)
        yield f"layers.{i}.layer_scalar", (1,)
        parts = {"self_attn.q_proj": (HEADS * d, h),
                 "self_attn.o_proj": (h, HEADS * d), "self_attn.q_norm": (d,),
                 "mlp.gate_proj": (inter, h), "mlp.up_proj": (inter, h),
                 "mlp.down_proj": (h, inter), "input_layernorm": (h,),
                 "post_attention_layernorm": (h,),
                 "pre_feedforward_layernorm": (h,),
                 "post_feedforward_layernorm": (h,),
                 "per_layer_input_gate": (OWN, h),
                 "per_layer_projection": (h, OWN),
                 "post_per_layer_input_norm": (h,),
                 # of the last layers too, as in released files, which have them
                 "self_attn.k_proj": (kv * d, h), "self_attn.k_norm": (d,)}
        if d == SLIDE[2]:  # the others' values are of the keys' matrix
            parts["self_attn.v_proj"] = (kv * d, h)
        for name, shape in parts.items():
            yield f"layers.{i}.{name}.weight", shape


def make(folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"architectures": ["Gemma4ForCausalLM"],
                   "model_type": "gemma4_text", "hidden_size": HIDDEN,
                   "intermediate_size": INTER, "num_hidden_layers": len(KINDS),
                   "num_attention_heads": HEADS,
                   "num_key_value_heads": SLIDE[1], "head_dim": SLIDE[2],
                   "num_global_key_value_heads": FULL[1],
                   "global_head_dim": FULL[2], "attention_k_eq_v": True,
                   "layer_types": [k[0] for k in KINDS], "sliding_window": 48,
                   "num_kv_shared_layers": SHARED, "use_double_wide_mlp": True,
                   "hidden_size_per_layer_input": OWN,
                   "vocab_size_per_layer_input": tiny_model.VOCAB,
                   "vocab_size": tiny_model.VOCAB,
                   "max_position_embeddings": 256,
                   "rope_parameters": {
                       "full_attention": {
                           "rope_type": "proportional", "rope_theta": 1e6,
                           "partial_rotary_factor": 0.25},
                       "sliding_attention": {"rope_type": "default",
                                             "rope_theta": 1e4}}}, f)
    tiny_model.write_tokenizer(folder, False)
    tiny_model.write_weights(folder, shapes())


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    make(at("m"))
    write(at("p.jsonl"), "".join(
        json.dumps({"prompt": tiny_model.text(n, n)}) + "\n"
        for n in (3, 19, 5)).encode())


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def rows(text):
    return [{k: v for k, v in r.items()
             if k not in ("threads", "seconds", "attn_seconds")}
            for r in csv.DictReader(io.StringIO(text))]


def ids(name):
    with open(at(name)) as f:
        return [json.loads(line)["ids"] for line in f]


def ppl(*more):
    return rows(must("kvppl", "-m", at("m"), "-f", TEXT, "-c", "96", "-n", "3",
                     *more))


class Kinds(unittest.TestCase):
    maxDiff = None

    def test_about(self):
        """A layer that shares counts once: in its owner."""
        r = rows(must("kvdump", "-m", at("m"), "--about", "-c", "96"))[0]
        token = 2 * 2 * 64  # keys and values, halves; both kinds alike
        self.assertEqual([int(r[k]) for k in (
            "n_layers", "shared_layers", "n_kv_heads", "head_dim",
            "slide_kv_heads", "slide_head_dim", "kv_bytes_per_token",
            "kv_bytes")], [4, SHARED, 1, 64, 2, 32, 4 * token,
                           2 * (96 + 48) * token])

    def test_dump_and_calibration(self):
        """Tensors of the layers' own sizes; klt of them."""
        must("kvdump", "-m", at("m"), "-f", CALIB, "-c", "64", "-n", "6",
             "--rope", "pre,post", "-o", at("d.h5"))
        with h5py.File(at("d.h5")) as f:
            self.assertEqual(
                [(f[k]["q"].shape[2:], f[k]["k"].shape[2:])
                 for k in f if k.startswith("layer_")],
                [((HEADS, d), (kv, d)) for _, kv, d in KINDS[:4]])
            self.assertEqual(int(f.attrs["shared_layers"]), SHARED)
        klt = "klt:b4,metric=attention"
        must("kvcalib", at("d.h5"), "-s", klt, "-o", at("c.h5"))
        _, klt, kivi = ppl("-s", klt, "-s", "kivi:b2g16r16", "-C", at("c.h5"),
                           "--kl")
        self.assertLess(float(klt["kl_mean"]), float(kivi["kl_mean"]))
        table = rows(must("kvquant", "-s", "q8_0", at("d.h5")))
        self.assertEqual([r["bits"] for r in table if r["side"] == "K"],
                         ["32"] * 5 + ["8.5"] * 5)

    def test_protocols(self):
        """Bits are of the cache; f16 is nearer to f32 than 2 bits."""
        for protocol in "all", "stream", "prefill:48":
            f32, f16, kivi, q8_0 = ppl("-s", "f32", *SPECS, "-p", protocol,
                                       "--kl")
            self.assertEqual((f32["bits"], f16["bits"], q8_0["bits"]),
                             ("32", "16", "8.5"))
            self.assertLess(float(f16["kl_mean"]), float(q8_0["kl_mean"]))
            self.assertLess(float(q8_0["kl_mean"]), float(kivi["kl_mean"]))

    def test_windows(self):
        """The same rows for windows that pass together or one by one."""
        more = *SPECS, "-p", "stream"
        self.assertEqual(ppl(*more), ppl(*more, "--memory", "1M", "-t", "1"))

    def test_answers(self):
        """The same for any batch, and for specs that share a prompt."""
        def answers(*more):
            must("kvgen", "-m", at("m"), "-f", at("p.jsonl"), *SPECS, "-n", "9",
                 "--ignore-eos", *more, "-o", at("a.jsonl"))
            return ids("a.jsonl")
        self.assertEqual(answers("--batch", "1"), answers("--batch", "8"))

    def refused(self, words, tool, *args):
        done = run(tool, "-q", "-m", at("m"), *args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)

    def test_refused(self):
        text = "-f", TEXT, "-c", "96", "-n", "1"
        self.refused("what a Gemma 4 has, which a Gemma4ForCausalLM has, is "
                     "not implemented", "kvdump", *text, "--fisher", "-o",
                     at("no.h5"))
        self.refused("knows no layers that differ in their heads", "kvdump",
                     "--operations")
        for spec, words in (
                ("h2o:b0.3+f16", "a policy is not implemented for layers"),
                ("kvtc:b3", "a calibration of kvtc is not implemented"),
                ("kivi:b2g64", "would take other parameters"),
                ("pq:d4b4", "a calibration of pq is not implemented")):
            self.refused(words, "kvppl", *text, "-s", spec, "-p", "stream")


if __name__ == "__main__":
    unittest.main()
