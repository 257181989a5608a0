"""kvtools.cache in transformers, frames, and the model of lm-eval; for a Python
that has them (meson setup -Dtorch_python=...)."""
import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, \
    Gemma3TextConfig, GPTNeoXConfig, GPTNeoXForCausalLM, Qwen2Config, \
    Qwen2ForCausalLM

ROOT = os.environ["KV_SOURCE_ROOT"]
BUILD = os.environ["KV_BUILD_ROOT"]
sys.path.insert(0, os.path.join(ROOT, "python"))
import kvtools  # noqa: E402

MODEL = os.path.join(ROOT, "data", "model")
TEXT = os.path.join(ROOT, "data", "sample.txt")
N = 64
torch.manual_seed(0)


def tool(name, *args):
    return subprocess.run(
        [os.path.join(BUILD, "tools", name), *args], text=True, check=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def setUpModule():
    global folder, model, ids, calib
    temporary = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(temporary.cleanup)
    folder = temporary.name
    dump = os.path.join(folder, "dump.h5")
    tool("kvdump", "-m", MODEL, "-f", os.path.join(ROOT, "data", "calib.txt"),
         "-c", str(N), "-n", "8", "--fisher", "-o", dump)
    calib = os.path.join(folder, "calib.h5")
    tool("kvcalib", "-s", "klt:b2", "-s", "vecinfer:d4b4r0", "-s",
         "cq:c4b4,iters=2", dump, "-o", calib)
    model = AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32).eval()
    tool("kvdump", "-m", MODEL, "-f", TEXT, "-c", str(N), "-n", "1", "-o",
         os.path.join(folder, "text.h5"))
    ids = torch.from_numpy(kvtools.dump(os.path.join(
        folder, "text.h5"))["tokens"].values).long()


def steps(m, text, cache, sizes):
    """Logits of a text that goes in by pieces."""
    out, first = [], 0
    with torch.no_grad():
        for n in sizes:
            out.append(m(text[:, first:first + n], cache=cache,
                         use_cache=True).logits)
            first += n
    return torch.cat(out, 1)


def relative(a, b):
    return float((a - b).norm() / b.norm())


class Layers(unittest.TestCase):
    """A cache's update() against tensors that are coded and decoded whole."""

    def update(self, cache, k, v, sizes, padding=(0, 0)):
        first, out = 0, None
        for n in sizes:
            end = first + n
            at = torch.stack([torch.arange(first, end) - p for p in padding])
            out = cache.update(k[:, :, first:end], v[:, :, first:end], 0,
                               kwargs={"position_ids": at})
            first = end
        return out

    def tensors(self, n=75):
        return torch.randn(2, 2, n, 128), torch.randn(2, 2, n, 128)

    def test_decoded(self):
        k, v = self.tensors()
        for spec in ("kivi:b2g32r32", "kivi:b4g32r0s3", "q8_0", "f32",
                     "K-q8_0/V-kivi:b2g32r0", "vecinfer:d4b4r0"):
            cache = kvtools.cache(spec, model, calib, prompt="codes")
            got = self.update(cache, k, v, [40, 1, 1, 33], (0, 7))
            for side, x, y in zip("kv", (k, v), got):
                for row, pad in enumerate((0, 7)):
                    expected = kvtools.decode(
                        cache.spec, x[row, :, pad:].transpose(0, 1), calib,
                        side=side)
                    self.assertTrue(torch.equal(
                        y[row, :, pad:].transpose(0, 1), expected), spec)

    def test_before_rope(self):
        k, v = self.tensors()
        x = k[0].transpose(0, 1).contiguous().numpy()
        for spec in "klt:b2", "cq:c4b4,iters=2":
            cache = kvtools.cache(spec, model, calib, prompt="codes")
            self.assertTrue(cache.binding.pre_rope[0])
            rope = cache.model.rope
            self.assertLess(np.abs(rope.turn(0, 5, rope.turn_back(0, 5, x))
                                   - x).max(), 1e-5)
            got = self.update(cache, k, v, [40, 35])[0]
            stored = kvtools.decode(cache.spec, rope.turn_back(0, 0, x), calib)
            np.testing.assert_array_equal(got[0].transpose(0, 1).numpy(),
                                          rope.turn(0, 0, stored))

    def test_prompt_is_exact(self):
        k, v = self.tensors()
        cache = kvtools.cache("kivi:b2g32r0", model)
        got = self.update(cache, k[:, :, :40], v[:, :, :40], [40])
        self.assertTrue(torch.equal(got[0], k[:, :, :40]))
        got = cache.update(k[:, :, 40:41], v[:, :, 40:41], 0, kwargs={
            "position_ids": torch.tensor([[40]])})
        self.assertFalse(torch.equal(got[0][:, :, :40], k[:, :, :40]))
        self.assertEqual(got[0].shape[2], 41)

    def test_positions(self):
        k, v = self.tensors(4)
        for at, sentence in [(torch.tensor([[9]]), "from 0 on"),
                             (None, "position_ids")]:
            cache = kvtools.cache("f16", model)
            with self.assertRaisesRegex(ValueError, sentence):
                cache.update(k, v, 0, kwargs={"position_ids": at})
        cache = kvtools.cache("f16", model)
        self.update(cache, k, v, [4])
        with self.assertRaisesRegex(ValueError, "go on by one"):
            cache.update(k[:, :, :1], v[:, :, :1], 0, kwargs={
                "position_ids": torch.tensor([[7]])})

    def test_refused(self):
        cache = kvtools.cache("f16", model)
        for what in (lambda: cache.reorder_cache(torch.tensor([0])),
                     lambda: cache.crop(-1),
                     lambda: cache.batch_repeat_interleave(2)):
            with self.assertRaisesRegex(NotImplementedError, "kvtools.cache"):
                what()
        with self.assertRaisesRegex(ValueError, "prompt"):
            kvtools.cache("f16", model, prompt="half")
        with self.assertRaisesRegex(ValueError, "neighbouring"):
            kvtools.cache("f16", GPTNeoXForCausalLM(GPTNeoXConfig(
                hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                intermediate_size=32, vocab_size=16)))


class Models(unittest.TestCase):
    def test_same_as_transformers(self):
        with torch.no_grad():
            whole = model(ids).logits
        for spec in ("f32", "h2o:b1+f32"):
            for kind in ("exact", "codes"):
                cache = kvtools.cache(spec, model, prompt=kind, tokens=N)
                got = steps(model, ids, cache, [20, 1, 1, 42])
                self.assertLess(relative(got, whole), 1e-5, (spec, kind))
        with torch.no_grad():  # the model's own cache, as before
            self.assertLess(relative(model(ids).logits, whole), 1e-6)

    def test_same_as_kvppl(self):
        """Rounding of the two models' products turns a code here and there."""
        specs = {"f32": 1e-5, "h2o:b0.5+f32": 1e-5, "q8_0": 1e-3, "kivi:b4g32r0": 2e-3,
                 "vecinfer:d4b4r0": 3e-2, "klt:b2": 2e-2,
                 "h2o:b0.5+kivi:b4g32r0": 2e-2}
        args = [x for s in specs for x in ("-s", s)]
        rows = list(csv.DictReader(tool(
            "kvppl", "-m", MODEL, "-f", TEXT, "-c", str(N), "-n", "1", "-p",
            "stream", "-C", calib, *args).splitlines()))
        self.assertEqual(len(rows), len(specs))
        for (spec, bound), row in zip(specs.items(), rows):
            cache = kvtools.cache(spec, model, calib, prompt="codes",
                                  tokens=N)
            logits = steps(model, ids, cache, [1] * N)[:, :-1]
            loss = float(torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), ids[:, 1:]))
            ppl = float(row["ppl"])
            self.assertEqual(cache.spec, row["spec"])
            self.assertLess(abs(np.exp(loss) - ppl) / ppl, bound, spec)
            self.assertAlmostEqual(cache.bits()["bits"], float(row["bits"]),
                                   delta=.05 if "h2o" in spec else 1e-6)
            self.assertAlmostEqual(cache.bits()["kept"], float(row["kept"]))

    def test_sliding(self):
        small = Gemma3ForCausalLM(Gemma3TextConfig(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, intermediate_size=64,
            vocab_size=100, sliding_window=8, pad_token_id=0,
            layer_types=["sliding_attention", "full_attention",
                         "sliding_attention"])).eval()
        text = torch.randint(1, 100, (2, 40))
        with torch.no_grad():
            whole = small(text).logits
        for spec in ("f32", "h2o:b1+f32"):
            got = steps(small, text, kvtools.cache(spec, small,
                                                           tokens=40),
                        [20] + [1] * 12 + [8])
            self.assertLess(relative(got, whole), 1e-5, spec)

    def test_k_bias(self):
        small = Qwen2ForCausalLM(Qwen2Config(
            hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=64, vocab_size=100,
            use_sliding_window=False)).eval()
        for layer in small.model.layers:
            layer.self_attn.k_proj.bias.data[::16] = 60
        text = torch.randint(1, 100, (1, 40))
        with torch.no_grad():
            whole = small(text).logits
        error = [relative(steps(small, text, kvtools.cache(
            spec, small, prompt="codes"), [1] * 40), whole)
            for spec in ("K-q4_0/V-f16", "K-q4_0,no-k_bias/V-f16")]
        self.assertLess(2 * error[1], error[0])

    def test_generate(self):
        mask = torch.ones(2, 24, dtype=torch.long)
        mask[1, :9] = 0
        prompt = torch.cat((ids[:, :24], ids[:, 20:44])) * mask
        options = dict(attention_mask=mask, max_new_tokens=12,
                       do_sample=False, pad_token_id=0)
        expected = model.generate(prompt, **options)
        for spec in ("f32", "h2o:b1+f32"):
            got = model.generate(prompt, cache=kvtools.cache(
                spec, model, tokens=99), **options)
            self.assertTrue(torch.equal(got, expected), spec)
        both = model.generate(prompt, cache=kvtools.cache(
            "kivi:b2g32r0", model), **options)
        alone = model.generate(prompt[1:, 9:], max_new_tokens=12,
                               do_sample=False, pad_token_id=0,
                               cache=kvtools.cache(
                                   "kivi:b2g32r0", model))
        self.assertTrue(torch.equal(both[1, 24:], alone[0, 15:]))
        with self.assertRaises(NotImplementedError):
            model.generate(prompt, num_beams=2, cache=kvtools.cache(
                "f16", model), **options)


class Frames(unittest.TestCase):
    def test_results(self):
        path = os.path.join(folder, "quant.csv")
        tool("kvquant", "-s", "q4_0", "-s", "kivi:b2g32",
             os.path.join(folder, "text.h5"), "-o", path)
        table = kvtools.results(path, path)
        with open(path, encoding="utf-8") as f:
            self.assertEqual(len(table), 2 * len(list(csv.DictReader(f))))
        self.assertEqual(table["bits"].dtype, float)
        with self.assertRaisesRegex(ValueError, "expected a name"):
            kvtools.results("x.png")

    def test_dump(self):
        d = kvtools.dump(os.path.join(folder, "text.h5"))
        self.assertEqual(dict(d.sizes), dict(
            layer=5, window=1, token=N, query_head=4, head=2, channel=128))
        with self.assertRaisesRegex(ValueError, "expected a dump"):
            kvtools.dump(calib)


class LmEval(unittest.TestCase):
    TASK = """
task: local_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{answer}}}}"
output_type: {kind}
{more}
"""
    KINDS = {
        "until": ("generate_until", "generation_kwargs: {max_gen_toks: 8, "
                  "until: [\"\\n\"]}\nmetric_list: [{metric: exact_match}]"),
        "choice": ("multiple_choice", "doc_to_choice: [' yes', ' no']\n"
                   "metric_list: [{metric: acc}]"),
        "rolling": ("loglikelihood_rolling", "metric_list: "
                    "[{metric: word_perplexity}]"),
    }

    def test_tasks(self):
        try:
            import lm_eval  # noqa: F401
        except ImportError:
            self.skipTest("lm_eval is not installed")
        data = os.path.join(folder, "data.jsonl")
        with open(data, "w", encoding="utf-8") as f:
            for text in ("The old house stood by the", "She said that the"):
                f.write(json.dumps({"text": text, "answer": " yes"}) + "\n")
        for name, (kind, more) in self.KINDS.items():
            with open(os.path.join(folder, name + ".yaml"), "w",
                      encoding="utf-8") as f:
                task = self.TASK
                if name == "rolling":
                    task = task.replace('doc_to_target: "{{{{answer}}}}"',
                                        'doc_to_target: "{{{{text}}}}"').replace(
                        'doc_to_text: "{{{{text}}}}"', 'doc_to_text: ""')
                f.write(task.format(name=name, data=data, kind=kind,
                                    more=more))
        out = os.path.join(folder, "out")
        run = subprocess.run(
            [sys.executable, "-m", "kvtools.lm_eval", "--model", "kvtools",
             "--model_args", "model=%s,spec=kivi:b4g32r0" % MODEL,
             "--include_path", folder, "--tasks",
             ",".join("local_" + n for n in self.KINDS), "--output_path", out],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"),
                 "HF_HUB_OFFLINE": "1", "HF_HOME": folder})
        self.assertEqual(run.returncode, 0, run.stdout[-3000:])
        (path,) = [os.path.join(d, f) for d, _, files in os.walk(out)
                   for f in files]
        with open(path, encoding="utf-8") as f:
            results = json.load(f)["results"]
        self.assertEqual(set(results), {"local_" + n for n in self.KINDS})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
