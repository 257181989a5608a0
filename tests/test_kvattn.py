"""kvattn from the outside: errors and times over a dump, a shape, a model."""
import os
import resource
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import Case, must, rows, run, with_defaults

CTX, WINDOWS = 64, 12
POLICIES = ["streamingllm:s0w%d", "h2o:b%d", "tova:b%d", "knorm:b%d",
            "snapkv:b%dw4", "pyramidkv:b%dw4"]


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w") as f:
            f.write(tiny_model.text(800, seed))
    dump("eval.h5", "m", "eval.txt")
    dump("calib-text.h5", "m", "calib.txt")
    dump("no-queries.h5", "m", "eval.txt", "--what", "k,v")
    must("kvcalib", "-s", "vecinfer:d4b4", "-s", "pq:d4b4,rope=pre",
         at("calib-text.h5"), "-o", at("calib.h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def dump(name, model, text, *more):
    must("kvdump", *with_defaults(more, m=at(model), f=at(text), c=CTX,
                                  n=WINDOWS, o=at(name)))


class Attention(Case):
    def attend(self, *args):
        return rows(must("kvattn", "--reps", "2", "--warmup", "0", *args))

    def test_append(self):
        """Rows of other shapes and specs stay; f16 is there once a shape."""
        where = "--append", "-o", at("all.csv")
        small, large = "1,2,1,32,64", "1,2,1,32,96"
        for args in (("--shape", small, "--shape", large, "-s", "q4_0"),
                     ("--shape", small, "-s", "q8_0", "-s", "q4_0")):
            must("kvattn", "--warm", "--reps", "1", "--warmup", "0", *args,
                 *where)
        with open(at("all.csv"), encoding="utf-8") as f:
            self.assertEqual(
                [(r["scheme"], r["ctx"]) for r in rows(f.read())],
                [("f16", "64"), ("q4_0", "64"), ("f16", "96"), ("q4_0", "96"),
                 ("q8_0", "64")])

    def test_dump(self):
        args = ["-s", "kivi:b{2,8}r0", "-s", "hack:b8p16", "-s",
                "pq:d4b4,rope=pre", "-C", at("calib.h5"), "--dump",
                at("eval.h5"), "--queries", "3", "--layer", "1"]
        table = self.attend(*args, "-t", "1", "--path", "generic")
        self.assertEqual([r["spec"].split(":")[0] for r in table],
                         ["f16", "kivi", "kivi", "hack", "pq"])
        self.assertEqual([r["path"] for r in table],
                         ["generic"] * 3 + ["codes", "generic"])
        error = [float(r["attn_rel_err"]) for r in table]
        self.assertLess(error[0], 1e-3)  # fp16 rounding
        self.assertLess(error[2], error[1])
        self.assertLess(error[3], 0.1)
        for r in table:
            self.assertEqual((r["layer"], r["windows"], r["protocol"]),
                             ("1", str(WINDOWS), "decode:3"))
            self.assertLessEqual(float(r["lat_us_p10"]),
                                 float(r["lat_us_p50"]))
            self.assertLessEqual(float(r["lat_us_p50"]),
                                 float(r["lat_us_p90"]))
            self.assertGreater(int(r["bytes_moved"]), int(r["device_bytes"]))
            self.assertGreater(float(r["append_us"]), 0)
        self.assertEqual(table[0]["speedup"], "1")
        again = self.attend(*args, "-t", "2", "--path", "generic")
        for a, b in zip(table, again):
            for column in "spec", "attn_rel_err", "bits", "device_bytes":
                self.assertEqual(a[column], b[column])
        tiles = self.attend(*args, "-t", "2", "--path", "exact")
        self.assertEqual(tiles[0]["path"], "exact")
        for a, b in zip(table, tiles):
            self.assertEqual(a["bits"], b["bits"])
            self.assertAlmostEqual(float(b["attn_rel_err"]) /
                                   float(a["attn_rel_err"]), 1, delta=1e-3)

    def test_bias_of_each_layer(self):
        """kvattn takes off a layer's own bias: the error is kvquant's."""
        tiny_model.make(at("biased"), layers=3, k_bias=8, seed=3)
        dump("biased.h5", "biased", "eval.txt", "-n", "2")
        args = ["-s", "absmax:b4r0,no-k_bias", "-s", "absmax:b4r0"]
        want = [(r["layer"], r["spec"], float(r["attn_rel_err"]))
                for r in rows(must("kvquant", *args, "--queries", "64",
                                   at("biased.h5")))
                if r["side"] == "KV" and r["layer"] != "all"]
        for layer in "0", "1", "2":
            less, more = self.attend(*args, "--dump", at("biased.h5"),
                                     "--layer", layer, "--queries", "64",
                                     "--path", "generic")[1:]
            self.assertLess(2 * float(less["attn_rel_err"]),
                            float(more["attn_rel_err"]))
            for r in less, more:
                of = [x for l, spec, x in want
                      if (l, spec) == (layer, r["spec"])]
                self.assertAlmostEqual(float(r["attn_rel_err"]) / of[0], 1,
                                       delta=1e-3)

    def test_default_path(self):
        """int8 if it adds less error than the codes have, else exact; a row for
        each different path."""
        args = ["-s", "kivi:b{2,4}g32", "-s", "q8_0", "-s", "klt:b2",
                "--shape", "1,4,2,64,400"]
        table = self.attend(*args, "--path", "int8,exact,auto")
        of = {(r["spec"], r["path"]): r for r in table}
        self.assertEqual(len(of), len(table))
        for r in self.attend(*args)[1:]:
            exact = of[r["spec"], "exact"]
            self.assertEqual(float(exact["path_rel_err"]), 0)
            if exact["attn_rel_err"]:  # blank: of a calibration on nothing
                added = float(of[r["spec"], "int8"]["path_rel_err"])
                self.assertGreater(added, 0)
                self.assertEqual(r["path"] == "int8",
                                 added < float(exact["attn_rel_err"]))
            same = of[r["spec"], r["path"]]
            for column in "attn_rel_err", "path_rel_err":
                self.assertEqual(r[column], same[column])
        own, tiles = self.attend("-s", "hack", "--shape", "1,4,2,64,400",
                                 "--path", "exact", "--path", "auto")[1:]
        self.assertEqual((own["path"], tiles["path"]), ("codes", "int8"))
        self.assertLess(0, float(tiles["path_rel_err"]))
        self.assertLess(float(tiles["path_rel_err"]),
                        float(own["path_rel_err"]))
        dump = ["-s", "kivi:b2g16r0", "--dump", at("eval.h5")]
        exact, int8 = (self.attend(*dump, "--path", p)[1]
                       for p in ("exact", "int8"))
        self.assertLess(float(int8["path_rel_err"]),
                        float(exact["attn_rel_err"]))
        self.assertEqual(self.attend(*dump)[1]["path"], "int8")

    def test_policies(self):
        dump = ["--dump", at("eval.h5"), "--queries", "2", "--layer", "1"]
        for spec in "f16", "kivi:b4g16r16", "pq:d4b4,rope=pre":
            whole = [x for p in POLICIES for x in ("-s", f"{p % CTX}+{spec}")]
            plain, *table = self.attend(*dump, "-C", at("calib.h5"), "-s", spec,
                                        *whole, "--path", "exact")[-7:]
            for r in table:
                self.assertEqual(r["kept"], "1")
                for column in "bits", "bytes_moved", "path":
                    self.assertEqual(r[column], plain[column])
                self.assertAlmostEqual(float(r["attn_rel_err"]),
                                       float(plain["attn_rel_err"]), 5)
        specs = [f"{p}+f16" for p in ("streamingllm:s2w14", "h2o:b16",
                                      "tova:b16", "snapkv:b16w4")]
        for shape in dump, ["--shape", "2,4,2,16,64,2"]:
            for r in self.attend(*shape, *[x for s in specs
                                           for x in ("-s", s)])[1:]:
                # the two newest tokens come in before the step
                self.assertEqual(float(r["kept"]), 18 / 64)
                self.assertEqual(float(r["bits"]), 16 * 18 / 64)
                self.assertLess(0.01, float(r["attn_rel_err"]))
        # blocks of 16 tokens are passed over whole
        tokens, blocks = self.attend(*dump, "-s", "h2o:b16+absmax:b4", "-s",
                                     "h2o:b16+kivi:b4g16r16")[1:]
        self.assertEqual(tokens["kept"], blocks["kept"])
        self.assertLess(float(tokens["bits"]), float(blocks["bits"]))
        self.assertLess(int(tokens["bytes_moved"]), int(blocks["bytes_moved"]))
        for policy in "knorm:b8", "pyramidkv:b8w4":
            self.refused("layers keep different numbers of tokens", "kvattn",
                         "-s", policy + "+f16", "--shape", "1,4,2,16,64")
        self.refused("fewer than the 32 that it always keeps", "kvattn", "-s",
                     "snapkv:b8+f16", *dump)
        self.refused("expected prefill=full", "kvattn", "-s",
                     "h2o+hack:b2p16", *dump)

    def test_noisy(self):
        """The mark follows from the row's own times, and one sentence says
        so."""
        done = run("kvattn", "-s", "kivi:b{1,2,3,4}", "--shape", "1,4,2,64,130",
                   "--reps", "3", "--warmup", "0")
        table = rows(done.stdout)
        for r in table:
            self.assertEqual(r["noisy"] == "1", float(r["lat_us_p90"]) >
                             2 * float(r["lat_us_p10"]))
        n = sum(r["noisy"] == "1" for r in table)
        self.assertEqual(done.stderr.count("noisy: "), n > 0)
        self.assertEqual("noisy: %d of 5 rows," % n in done.stderr, n > 0)

    def test_shape(self):
        for shape in "1,4,2,16,1", "2,4,4,32,33,5", "1,2,1,64,130":
            table = self.attend("-s", "kivi:b2g16", "-s", "vecinfer:d4b4",
                                "--shape", shape)
            self.assertEqual(len(table), 3)
            self.assertLess(float(table[0]["attn_rel_err"]), 1e-3)
            self.assertEqual(table[2]["attn_rel_err"], "")
            self.assertEqual(table[2]["calib_text"], "random")
        table = self.attend("-s", "vecinfer:d4b4", "-C", at("calib.h5"),
                            "--shape", "1,4,2,16,40")
        self.assertNotEqual(table[1]["attn_rel_err"], "")

    def test_refused(self):
        for shape, words in [("1,4,2,16,0", "N = 0"), ("1,4,2,16", "expected"),
                             ("1,4,3,16,8", "multiple"),
                             ("1,4,2,15,8", "even"), ("1,4,2,16,8,", "expect"),
                             ("1,4,2,16,8,9", "NQ = 9"), ("", "expected"),
                             ("0,4,2,16,8", "positive")]:
            self.refused(words, "kvattn", "-s", "kivi", "--shape", shape)
        self.refused("--path fast: expected auto, exact, int8, generic",
                     "kvattn", "-s", "kivi", "--path", "fast", "--shape",
                     "1,4,2,16,8")
        self.refused("dimension 16", "kvattn", "-s", "vecinfer:d4b4", "-C",
                     at("calib.h5"), "--shape", "1,4,2,32,8")
        self.refused("one of --dump, --shape and -m", "kvattn", "-s", "kivi")
        self.refused("one of --dump, --shape and -m", "kvattn", "-s", "kivi",
                     "--shape", "1,4,2,16,8", "-m", "x.json")
        for option, value in ("-c", "3"), ("--batch", "2"):
            self.refused(option + " goes with -m", "kvattn", "-s", "kivi",
                         "--shape", "1,4,2,16,8", option, value)
        for option in ["--path", "int8"], ["--warm"]:
            self.refused(option[0] + " does not go with -m", "kvattn", "-s",
                         "kivi", "-m", "x.json", *option)
        self.refused("--device cuda", "kvattn", "-s", "kivi", "-m", "x.json")
        self.refused("no q", "kvattn", "-s", "kivi", "--dump",
                     at("no-queries.h5"))
        self.refused("fewer than 65", "kvattn", "-s", "kivi", "--dump",
                     at("eval.h5"), "--queries", "65")
        self.refused("windows, 999 were asked for", "kvattn", "-s", "kivi",
                     "--dump", at("eval.h5"), "-n", "999")
        self.refused("not 2", "kvattn", "-s", "kivi", "--dump", at("eval.h5"),
                     "--layer", "2")
        self.refused("--reps 0: expected at least 1", "kvattn", "-s", "kivi",
                     "--dump", at("eval.h5"), "--reps", "0")
        self.refused("at most", "kvattn", "-s", "kivi", "--dump",
                     at("eval.h5"), "--reps", "1000000000000")
        self.refused("an output is named ''", "kvattn", "-s", "kivi", "--dump",
                     at("eval.h5"), "-o", "")
        self.refused("an output is named '-'", "kvattn", "-s", "kivi",
                     "--dump", at("eval.h5"), "-o", "-")
        for option in (["--queries", "2"], ["--layer", "0"], ["-n", "1"],
                       ["--allow-leakage"]):
            self.refused("is of a --dump", "kvattn", "-s", "kivi", "--shape",
                         "1,4,2,16,8", *option)

    def test_absurd_sizes(self):
        for shape, words in [
                ("4,8,2,64,4611686018427387904", "more than 1000000000000"),
                ("4,8,2,64,46116860184273879040", "expected B,HQ"),
                ("99999999999,8,8,64,999999999999", "more than --memory"),
                ("1,999999999999,1,64,1", "more than --memory"),
                ("1,8,8,99999999,1", "D must be"),
                ("1,1,1,64,999999999999,999999999999", "--memory")]:
            self.refused(words, "kvattn", "-s", "kivi", "--shape", shape)
        self.refused("--path fast: expected auto, exact, int8, generic",
                     "kvattn", "-s", "kivi", "--path", "fast", "--shape",
                     "1,4,2,16,8")

    def test_memory(self):
        """Memory holds the windows' queries, their exact outputs, keys twice,
        and values; tests/test_memory.py checks what caches add."""
        need = WINDOWS * 16 * 4 * (2 * 4 + 3 * CTX * 2)
        args = ["-s", "kivi", "--dump", at("eval.h5")]
        self.refused(f"take {need} bytes as tensors, more than --memory, "
                     f"{need - 1} bytes", "kvattn", *args, "--memory",
                     str(need - 1))
        self.refused("bytes as tensors and caches, more than --memory, "
                     f"{need} bytes", "kvattn", *args, "--memory", str(need))

    def test_warm(self):
        args = ["-s", "kivi", "--shape", "1,4,2,64,130"]
        cold, warm = self.attend(*args), self.attend(*args, "--warm")
        for a, b in zip(cold, warm):
            self.assertEqual((a["protocol"], b["protocol"]),
                             ("decode:1", "decode:1:warm"))
            self.assertEqual(a["attn_rel_err"], b["attn_rel_err"])

    def test_warm_reads_no_memory(self):
        """Before each of 60 cold runs 256 MiB; before warm ones only the five
        times for the bandwidth."""
        took = []
        for how in [], ["--warm"]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            must("kvattn", "-s", "kivi", "--shape", "1,4,2,64,130", "--reps",
                 "20", "--warmup", "0", "-t", "1", *how)
            took.append(resource.getrusage(
                resource.RUSAGE_CHILDREN).ru_utime - before)
        self.assertGreater(took[0], 3 * took[1])

    def test_no_windows_are_all(self):
        args = ["-s", "kivi", "--dump", at("eval.h5"), "-n"]
        for n, want in ("0", WINDOWS), ("5", 5):
            self.assertEqual(self.attend(*args, n)[0]["windows"], str(want))

    def test_counted_operations(self):
        names = ["ops_products", "ops_correction", "ops_formula",
                 "ops_formula_parts", "ops_other"]
        for spec, has in ("hack", 5), ("hack,axes=artifact", 3), ("kivi", 0):
            base, r = self.attend("-s", spec, "--shape", "1,4,2,64,130")
            self.assertEqual([base[c] for c in names], [""] * 5)
            self.assertEqual(sum(r[c] != "" for c in names), has)
            self.assertEqual(r["ops_formula"] != "", has == 5)


if __name__ == "__main__":
    unittest.main()
