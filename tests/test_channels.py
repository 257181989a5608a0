"""kvquant --channels and --codebooks."""
import csv
import io
import os
import tempfile
import unittest

import tiny_model
from run_tools import must, run

CTX, WINDOWS, DIM = 64, 6, 16
TRANSFORMS = ["none", "S", "H", "HS", "SH"]


class Inspect(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keep = tempfile.TemporaryDirectory()
        top = cls.keep.name
        model = tiny_model.make(os.path.join(top, "m"))
        for name, seed in ("a", 1), ("b", 2):
            text = os.path.join(top, name + ".txt")
            with open(text, "w", encoding="utf-8") as f:
                f.write(tiny_model.text(800, seed))
            must("kvdump", "-m", model, "-f", text, "-c", CTX, "-n", WINDOWS,
                 "-o", os.path.join(top, name + ".h5"))
        cls.dump = os.path.join(top, "a.h5")
        cls.calib = os.path.join(top, "calib.h5")
        cls.specs = [x for t in TRANSFORMS
                     for x in ("-s", f"vecinfer:d4b4,t={t}")]
        must("kvcalib", *cls.specs, os.path.join(top, "b.h5"), "-o", cls.calib)

    @classmethod
    def tearDownClass(cls):
        cls.keep.cleanup()

    def rows(self, *args):
        return list(csv.DictReader(io.StringIO(must(
            "kvquant", *args, self.dump))))

    def test_channels(self):
        rows = self.rows("--channels", *self.specs, "-C", self.calib)
        heads = {}
        for r in rows:
            key = r["spec"], r["side"], r["layer"], r["head"]
            heads.setdefault(key, []).append(r)
        self.assertEqual(rows[0]["spec"], "f32:r0s0")
        for key, found in heads.items():
            self.assertEqual([int(r["channel"]) for r in found],
                             list(range(DIM)))
            power = CTX * WINDOWS * sum(float(r["mean"]) ** 2 +
                                        float(r["std"]) ** 2 for r in found)
            singular = [float(r["singular"]) for r in found]
            self.assertAlmostEqual(sum(x * x for x in singular) / power, 1, 5)
            self.assertEqual(singular, sorted(singular, reverse=True))
        # a rotation leaves singular values, and values are not transformed
        def of(t, side):
            return [[float(r["singular"]) for r in found]
                    for key, found in heads.items()
                    if f"t={t}," in key[0] and key[1] == side]
        for a, b in zip(of("none", "K"), of("H", "K")):
            for x, y in zip(a, b):
                self.assertAlmostEqual(x, y, 3)
        self.assertEqual(of("none", "V"), of("SH", "V"))
        self.assertNotEqual(of("none", "K"), of("S", "K"))

    def test_codebooks(self):
        rows = self.rows("--codebooks", *self.specs, "-C", self.calib)
        self.assertEqual(len(rows), len(TRANSFORMS) * 2 * 2)
        for r in rows:
            self.assertEqual(r["centroids"], "16")
            self.assertTrue(0 < float(r["used"]) <= 1)
            self.assertTrue(1 <= float(r["index_ppl"]) <=
                            16 * float(r["used"]) + 1e-6)

    def test_the_same_on_any_threads_and_level(self):
        tables = [must("kvquant", "--channels", *self.specs, "-C", self.calib,
                       "-t", t, "--level", level, self.dump)
                  for t, level in (("1", "c"), ("2", "c"), ("2", "avx2"))]
        cells = [[{k: v for k, v in r.items() if k not in ("threads", "level")}
                  for r in csv.DictReader(io.StringIO(t))] for t in tables]
        self.assertEqual(cells[0], cells[1])
        self.assertEqual(cells[0], cells[2])

    def test_refused(self):
        for words, *args in (
                ["tables of their own: one is expected", "--channels", "--codebooks"],
                ["go without --codes, --decoded", "--channels",
                 "--attention"]):
            done = run("kvquant", *args, "-s", "f16", self.dump)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
