"""kvdump --about and --operations, from a config.json alone."""
import csv
import io
import json
import os
import tempfile
import unittest

import tiny_model
from run_tools import must, run


class Shapes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def opt(self, **fields):
        """The layer that the lecture counts: D = 64, 4 heads, MLP of 4 D."""
        path = os.path.join(self.folder, "opt.json")
        config = dict({
            "architectures": ["OPTForCausalLM"], "model_type": "opt",
            "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 256,
            "num_hidden_layers": 3, "num_attention_heads": 4,
            "vocab_size": 100, "max_position_embeddings": 32,
            "activation_function": "relu"}, **fields)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        return path

    def rows(self, *args):
        return list(csv.DictReader(io.StringIO(must("kvdump", *args))))

    def test_about(self):
        rows = self.rows("--about", self.opt(), "-c", "500", "--batch", "2")
        d = 64
        self.assertEqual([r["n_kv_heads"] for r in rows], ["4", "1"])
        self.assertEqual(int(rows[0]["layer_weight_bytes"]), 24 * d * d)
        self.assertEqual(int(rows[1]["layer_weight_bytes"]),
                         20 * d * d + 4 * d * d // 4)
        self.assertEqual(int(rows[0]["layer_kv_bytes"]), 2 * 4 * 500 * d)
        self.assertEqual(int(rows[0]["kv_bytes"]), 3 * 2 * 4 * 500 * d)
        self.assertEqual(int(rows[0]["even_ctx"]), 6 * d)

    def test_a_shape_weighs_what_its_model_does(self):
        model = tiny_model.make(os.path.join(self.folder, "m"))
        rows = self.rows("--about", "-m", model)
        shape = self.rows("--about", os.path.join(model, "config.json"))
        size = {"f32": 4, "bf16": 2}[rows[0]["weights"]]
        self.assertEqual(int(shape[0]["weight_bytes"]) * size // 2,
                         int(rows[0]["weight_bytes"]))
        self.assertEqual(len(shape), 3)
        self.assertEqual({r["model"] for r in rows + shape}, {"m"})

    def test_experts_and_latents(self):
        for name in "mixtral", "deepseek_v2", "glm4_moe_lite":
            model = os.path.join(os.path.dirname(__file__), "golden", name)
            whole = self.rows("--about", "-m", model)[0]
            shape = self.rows("--about", os.path.join(model, "config.json"))
            self.assertEqual(int(shape[0]["weight_bytes"]) * 2,
                             int(whole["weight_bytes"]), name)
            self.assertEqual(shape[0]["kv_bytes_per_token"],
                             whole["kv_bytes_per_token"])
        self.assertEqual(len(shape), 1)  # a latent has one KV head
        self.assertEqual(int(whole["kv_bytes_per_token"]), 2 * 2 * (8 + 4))

    def test_operations(self):
        n, d, h = 50, 64, 16
        rows = self.rows("--operations", self.opt(), "-c", str(n))
        want = {("prefill", 1): n * d / (2 * n + d),
                ("prefill", 7): n * h / (2 * h + n),
                ("prefill", 11): 4 * n * d / (5 * n + 4 * d),
                ("decode", 1): d / (2 + d),
                ("decode", 9): (h + n * h) / (2 * h + n + n * h + 1),
                ("decode", 15): 4 * d / (5 + 4 * d)}

        self.assertEqual([(r["phase"], int(r["no"])) for r in rows],
                         [("prefill", i) for i in range(1, 14)] +
                         [("decode", i) for i in range(1, 16)])
        for r in rows:
            key = r["phase"], int(r["no"])
            if key in want:
                self.assertAlmostEqual(float(r["intensity"]), want[key], 5)
        self.assertEqual(float(rows[0]["operations"]), 2 * n * d * d)
        self.assertEqual(rows[3]["bytes"], "")

    def test_append(self):
        """Rows of several models and contexts in one table, each once."""
        to = os.path.join(self.folder, "all.csv")
        model = tiny_model.make(os.path.join(self.folder, "m"))
        for table, calls, key in (
                ("--about", [(self.opt(), "-c", "8"), ("-m", model),
                             (self.opt(), "-c", "9"),
                             (self.opt(), "-c", "8")],
                 ["model", "n_kv_heads", "ctx"]),
                ("--operations", [(self.opt(), "-c", "8"),
                                  (self.opt(), "-c", "9"),
                                  (self.opt(), "-c", "8")],
                 ["ctx", "phase", "no"])):
            want = []
            for args in calls:
                must("kvdump", table, *args, "--append", "-o", to)
                new = self.rows(table, *args)
                want += [r for r in new if r not in want]
            with open(to, newline="", encoding="utf-8") as f:
                self.assertEqual(list(csv.DictReader(f)), want)
            self.assertEqual(len({tuple(r[k] for k in key) for r in want}),
                             len(want))
            os.unlink(to)

    def test_refused(self):
        shape = self.opt()
        for words, args in (
                ["cannot open /none", ["--about", "/none"]],
                ["one of both is expected", ["--about", "-m", "m", shape]],
                ["--append adds rows to a table",
                 ["-m", "m", "-f", shape, "--append", "-o", "x.h5"]],
                ["--append wants -o FILE", ["--about", shape, "--append"]],
                ["takes no operands", [shape, "-f", shape]],
                ["takes no operands", ["--about", shape, shape]],
                ["two tables: one is expected",
                 ["--about", "--operations", shape]],
                ["--gemm goes into a dump, --operations makes none",
                 ["--operations", "--gemm", "bf16", shape]],
                ["field vocab_size is missing",
                 ["--about", self.opt(vocab_size=None)]]):
            with self.subTest(words):
                done = run("kvdump", *args)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr.strip().splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
