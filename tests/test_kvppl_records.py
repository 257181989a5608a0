"""kvppl --records and --jitter, scripts/compare, and the columns that follow
from tokens: percentiles, bits per byte, perplexity per word."""
import csv
import io
import json
import math
import os
import subprocess
import sys
import unittest

import h5py
import numpy

import tiny_model
from run_scripts import ROOT, Scripts, cells
from run_tools import must, run

sys.path.insert(0, os.path.join(ROOT, "scripts"))
import records  # noqa: E402

CTX, WINDOWS = 32, 5


class Records(Scripts):
    maxDiff = None

    def setUp(self):
        super().setUp()
        tiny_model.make(self.at("m"), seed=1)
        self.write("eval.txt", tiny_model.text(400, 1))
        self.records = self.at("r.h5")

    def at(self, name):
        return os.path.join(self.folder, name)

    def args(self, *more, windows=WINDOWS):
        return ["-m", self.at("m"), "-f", self.at("eval.txt"), "-c", str(CTX),
                "-n", str(windows), "--kl", "-s", "kivi:b{8,2}g32", *more]

    def rows(self, *more, **options):
        return list(csv.DictReader(io.StringIO(
            must("kvppl", *self.args(*more, **options)))))

    def compare(self, *args, code=0):
        done = subprocess.run(
            [sys.executable, os.path.join(ROOT, "scripts/compare"), *args],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def refused(self, words, *more):
        done = run("kvppl", "-q", *self.args(*more))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_tokens_make_the_rows(self):
        rows = self.rows("--records", self.records)
        with h5py.File(self.records) as f:
            about = dict(f["set_000"].attrs)
            self.assertEqual(about["text"].decode(), "eval.txt")
            self.assertEqual(about["model_hash"].decode(),
                             rows[0]["model_hash"])
            self.assertEqual(list(f["set_000/positions"]),
                             list(range(1, CTX)))
            tokens = f["set_000/tokens"][:]
            self.assertEqual(tokens.shape, (WINDOWS, CTX - 1))
            size = f["set_000/bytes"][:].sum()
            self.assertEqual(list(f["row_000"]), ["nll"])
            for i, row in enumerate(rows):
                at = f["row_%03d" % i]
                self.assertEqual(at.attrs["spec"].decode(), row["spec"])
                nll = at["nll"][:].astype(float)
                self.near(row["nll"], nll.mean())
                self.near(row["bits_per_byte"], nll.sum() / math.log(2) / size)
                if not i:
                    self.assertEqual(row["kl_windows"], "")
                    continue
                kl = at["kl"][:].astype(float)
                self.near(row["kl_mean"], kl.mean())
                windows = row["kl_windows"].split()
                self.assertEqual(len(windows), WINDOWS)
                for cell, of_window in zip(windows, kl.mean(axis=1)):
                    self.assertAlmostEqual(float(cell), of_window,
                                           delta=1e-5 * of_window)
                self.near(row["same_top1"], at["same"][:].mean())
                self.near(row["dp_rms"], (at["dp"][:].astype(float) ** 2)
                          .mean() ** .5)
                for share, name in ((99.9, "p999"), (99, "p99"), (95, "p95"),
                                    (90, "p90"), (50, "median"), (10, "p10"),
                                    (5, "p5"), (1, "p1")):
                    self.near(row["kl_" + name], numpy.percentile(kl, share))

    def near(self, cell, value):
        self.assertAlmostEqual(float(cell), value, delta=1e-6 * abs(value))

    def test_bytes_and_words(self):
        """For a window that is the whole text: all tokens except the first."""
        text = tiny_model.text(20, 1)
        self.write("short.txt", text)
        short = ["-m", self.at("m"), "-f", self.at("short.txt")]
        ids = must("kvdump", "--tokens", *short).split()
        with open(self.at("m/tokenizer.json"), encoding="utf-8") as f:
            vocabulary = json.load(f)["model"]["vocab"]
        at = len({str(i): t for t, i in vocabulary.items()}[ids[0]])
        words = sum(not text[i].isspace() and (not i or text[i - 1].isspace())
                    for i in range(at, len(text)))
        row, = csv.DictReader(io.StringIO(must(
            "kvppl", *short, "-c", str(len(ids)), "-n", "1", "--records",
            self.records)))
        with h5py.File(self.records) as f:
            self.assertEqual(list(f["set_000/bytes"]), [len(text) - at])
        nats = float(row["tokens"]) * float(row["nll"])
        self.assertAlmostEqual(nats / math.log(float(row["word_ppl"])), words,
                               places=4)

    def test_jitter(self):
        plain = self.rows("--columns", "spec,kl_mean")
        moved = self.rows("--jitter", "2", "--columns",
                          "spec,kl_mean,kl_se,kl_jitter", "-t", "1",
                          "--records", self.records)
        self.assertEqual([r["kl_mean"] for r in moved],
                         [r["kl_mean"] for r in plain])
        self.assertEqual(moved[0]["kl_jitter"], "")
        for row in moved[1:]:
            self.assertGreater(float(row["kl_jitter"]), 0)
            self.assertLess(float(row["kl_jitter"]), float(row["kl_mean"]))
        self.assertEqual(self.rows("--jitter", "2", "--memory", "1k", "-t", "2",
                                   "--columns", "spec,kl_jitter")[1]["kl_jitter"],
                         moved[1]["kl_jitter"])
        self.assertNotEqual(self.rows("--jitter", "2", "--seed", "1",
                                      "--columns", "spec,kl_jitter")[1]["kl_jitter"],
                            moved[1]["kl_jitter"])
        with h5py.File(self.records) as f:
            self.near(moved[1]["kl_jitter"], f["row_001"].attrs["kl_jitter"])
        self.refused("--jitter 8: expected 1 to 7", "--jitter", "8")

    def test_an_append_without_jitter_is_measured_again(self):
        out = self.at("rows.csv")
        for more in ("--append",), ("--append", "--jitter", "1"):
            must("kvppl", *self.args("-o", out, *more))
        with open(out, encoding="utf-8") as f:
            found = list(csv.DictReader(f))
        self.assertTrue(any(r["kl_jitter"] for r in found))

    def test_what_records_go_without(self):
        self.refused("--records does not go with --append", "--records",
                     self.records, "--append", "-o", self.at("x.csv"))
        self.assertFalse(os.path.exists(self.records))

    def test_compare(self):
        rows = self.rows("--records", self.records)
        self.assertIn("1  kivi:K-b8g32", self.compare(self.records))
        a, b = self.records + ":kivi:K-b8", self.records + ":2"
        said = self.compare(a, b, "--buckets", "4")
        figures = {c[0]: c[1:] for c in cells(said)}
        self.assertEqual(list(figures)[4:], [
            "KL at 1 to 8", "KL at 9 to 16", "KL at 17 to 24",
            "KL at 25 to 31"])
        kl = list(map(float, figures["KL, nats"]))
        for i in 0, 1:
            self.assertAlmostEqual(kl[i], float(rows[1 + i]["kl_mean"]),
                                   delta=1e-4 * kl[i])
        self.assertAlmostEqual(kl[2], kl[1] - kl[0], delta=1e-3 * kl[2])
        self.assertTrue(0 < kl[3] < kl[2] < kl[4])
        self.assertIn("By KL: A is the better one.", said)
        self.assertIn("undecided", self.compare(a, a))
        with h5py.File(self.records, "r+") as f:
            for i in 1, 2:
                f["row_00%d" % i].attrs["kl_jitter"] = 1e3
        self.assertIn("rounding alone", self.compare(a, b))

    def test_interval_is_students(self):
        for degrees, factor in (1, 12.7062), (4, 2.77645), (31, 2.03951):
            self.assertAlmostEqual(records.student(degrees), factor, places=3)
        x = numpy.random.default_rng(1).normal(size=8)
        half = records.Bootstrap(8, 20000, 0, .95).halfwidth(
            lambda drawn: x[drawn].mean(axis=1))
        want = 2.364624 * x.std(ddof=1) / 8 ** .5
        self.assertAlmostEqual(half, want, delta=.02 * want)

    def test_without_numpy(self):
        script = os.path.join(ROOT, "scripts/compare")
        for code, words, *args in ((0, "", "--help"),
                                   (2, " has no numpy: ", self.records)):
            done = subprocess.run([sys.executable, "-S", script, *args],
                                  text=True, capture_output=True)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertLessEqual(done.stderr.count("\n"), 1)

    def test_rows_that_cannot_be_compared(self):
        self.rows("--records", self.records)
        self.rows("--records", self.at("few.h5"), windows=4)
        with h5py.File(self.at("other.h5"), "w"):
            pass
        for words, *args in (
                ("no file x.h5", "x.h5"),
                ("which of its rows", self.records),
                ("no row is 'nf4'", self.records + ":nf4"),
                ("'kivi' is 2 rows", self.records + ":kivi"),
                ("not of kvppl --records", self.at("other.h5:1"))):
            with self.assertRaisesRegex(records.Refused, words):
                records.find(*args)
        said = self.compare(self.records + ":1", self.at("few.h5:1"), code=2)
        self.assertTrue(said.startswith("compare: "), said)
        self.assertIn("windows 5", said)
        self.rows("--records", self.at("one.h5"), windows=1)
        self.assertIn("One window has no interval", self.compare(
            self.at("one.h5:1"), self.at("one.h5:2")))
        self.rows("--records", self.at("two.h5"), windows=2)
        said = self.compare(self.at("two.h5:1"), self.at("two.h5:2"))
        self.assertIn("Two windows give no interval, since Student's factor is "
                      "12.7 for them (2.36 for eight): undecided.", said)


if __name__ == "__main__":
    unittest.main()
