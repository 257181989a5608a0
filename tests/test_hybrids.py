"""The tools on a model with layers without attention: a tiny LFM2."""
import csv
import io
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import h5py
import tiny_model
from run_tools import MPI_ENV, TOOLS, must, run, write

DATA = os.path.join(os.environ["KV_SOURCE_ROOT"], "data")
TYPES = ["conv", "full_attention", "conv", "full_attention", "conv"]
HIDDEN, HEADS, KV_HEADS, INTER, KERNEL = 64, 2, 1, 48, 3
SPECS = "-s", "f16", "-s", "kivi:b2g16r16", "-s", "q8_0"


def shapes():
    v, h = tiny_model.VOCAB, HIDDEN
    yield "embed_tokens.weight", (v, h)
    yield "embedding_norm.weight", (h,)
    for i, kind in enumerate(TYPES):
        parts = {"operator_norm": (h,), "ffn_norm": (h,),
                 "feed_forward.w1": (INTER, h), "feed_forward.w3": (INTER, h),
                 "feed_forward.w2": (h, INTER)}
        if kind == "conv":
            parts |= {"conv.in_proj": (3 * h, h), "conv.out_proj": (h, h),
                      "conv.conv": (h, 1, KERNEL)}
        else:
            d = h // HEADS
            parts |= {"self_attn.q_proj": (h, h),
                      "self_attn.k_proj": (KV_HEADS * d, h),
                      "self_attn.v_proj": (KV_HEADS * d, h),
                      "self_attn.out_proj": (h, h),
                      "self_attn.q_layernorm": (d,),
                      "self_attn.k_layernorm": (d,)}
        for name, shape in parts.items():
            yield f"layers.{i}.{name}.weight", shape


def make(folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2",
                   "hidden_size": HIDDEN, "intermediate_size": INTER,
                   "block_auto_adjust_ff_dim": False, "layer_types": TYPES,
                   "num_hidden_layers": len(TYPES), "conv_L_cache": KERNEL,
                   "num_attention_heads": HEADS,
                   "num_key_value_heads": KV_HEADS, "norm_eps": 1e-5,
                   "vocab_size": tiny_model.VOCAB,
                   "max_position_embeddings": 256}, f)
    tiny_model.write_tokenizer(folder, False)
    tiny_model.write_weights(folder, shapes())


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    make(at("m"))
    write(at("p.jsonl"), "".join(
        json.dumps({"prompt": tiny_model.text(n, n)}) + "\n"
        for n in (3, 9, 5)).encode())


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
    return rows(must("kvppl", "-m", at("m"), "-f",
                     os.path.join(DATA, "sample.txt"), "-c", "96", "-n", "3",
                     *more))


class Hybrids(unittest.TestCase):
    maxDiff = None

    def test_about(self):
        """Shows states beside the cache of the two layers with attention."""
        r = rows(must("kvdump", "-m", at("m"), "--about", "-c", "96", "--batch",
                      "2"))[1]
        self.assertEqual([int(r[k]) for k in ("n_layers", "n_states",
                                              "kv_bytes", "state_bytes")],
                         [2, 3, 2 * 2 * 96 * 2 * 2 * HIDDEN // HEADS,
                          2 * 3 * (KERNEL - 1) * HIDDEN * 4])

    def test_dump(self):
        must("kvdump", "-m", at("m"), "-f", os.path.join(DATA, "sample.txt"),
             "-c", "32", "-n", "2", "-o", at("d.h5"))
        with h5py.File(at("d.h5")) as f:
            self.assertEqual([(k, int(f[k].attrs["model_layer"]))
                              for k in f if k.startswith("layer_")],
                             [("layer_000", 1), ("layer_001", 3)])

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
        """The same rows for windows that pass together or one by one, with
        tokens dropped too."""
        more = *SPECS, "-s", "h2o:b0.3+kivi:b2g16r0", "-p", "stream"
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
        text = "-f", os.path.join(DATA, "sample.txt"), "-o", at("no.h5")
        self.refused("layers without attention, which a Lfm2ForCausalLM has, "
                     "is not implemented", "kvdump", *text, "--fisher")
        self.refused("--layers 2: the model has layers 0 to 1 with attention",
                     "kvdump", *text, "--layers", "2")
        self.refused("knows no model with layers without attention", "kvdump",
                     "--operations")
        self.assertFalse(os.path.exists(at("no.h5")))

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_disaggregated(self):
        """A state is sent with its cache, and the answers are those of one
        process.  The 3rd message is the first state: if altered, it is sent
        again."""
        if "has no MPI" in run("kvgen", "--disaggregate", "1:1", "-m", "none",
                               "-f", "none", "-o", "none", env=MPI_ENV).stderr:
            self.skipTest("a build without MPI")
        more = ["-m", at("m"), "-f", at("p.jsonl"), *SPECS, "-n", "9",
                "--ignore-eos", "-q"]
        must("kvgen", *more[:-1], "-o", at("one.jsonl"))
        for n, fault in enumerate([[], ["--disaggregate-fault", "alter:3"]]):
            done = subprocess.run(
                ["mpirun", "-n", "2", os.path.join(TOOLS, "kvgen"), *more,
                 "--disaggregate", "1:1", *fault, "-o", at("two.jsonl")],
                env=MPI_ENV, text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(ids("one.jsonl"), ids("two.jsonl"))
            with open(at("two.jsonl")) as f:
                self.assertEqual(sum(json.loads(line)["layers_again"]
                                     for line in f), n)


if __name__ == "__main__":
    unittest.main()
