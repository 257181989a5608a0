"""scripts/plot on small made-up rows; skipped without matplotlib."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import subprocess
import sys
import unittest

from run_scripts import ROOT, Scripts

sys.path.insert(0, os.path.join(ROOT, "scripts"))
BEGINS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
PPL = {"spec": "", "model": "m", "text": "t.txt", "ctx": "256", "windows": "2",
       "protocol": "all", "bits": "", "bits_total": "", "ppl": "9.5",
       "ppl_se": "0.1", "kl_mean": "", "kl_se": "", "same_top1": ""}


def row(spec, bits, kl, **more):
    return dict(PPL, spec=spec, bits=str(bits), bits_total=str(bits + 0.5),
                kl_mean=str(kl), kl_se="0.01", same_top1="0.9", **more)


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
class Plot(Scripts):
    base = dict(PPL, spec="f32:r0s0", bits="32", bits_total="32")
    rows = [base, row("kivi:b4g32r0s0,axis=paper", 5, 0.01),
            row("kivi:b2g32r0s0,axis=paper", 3, 0.5),
            row("cq:c4b8r0s0,books=head", 2, 0.3),
            row("klt:b1r0s0,metric=fisher", 1, 0.4)]

    @classmethod
    def setUpClass(cls):
        """Imported once: matplotlib takes its time to start."""
        path = os.path.join(ROOT, "scripts/plot")
        loader = importlib.machinery.SourceFileLoader("plot", path)
        cls.script = importlib.util.module_from_spec(
            importlib.util.spec_from_loader("plot", loader))
        loader.exec_module(cls.script)

    def plot(self, *args, code=0, said=False):
        out, words = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(words):
            try:
                self.script.main(args)
                done = 0
            except SystemExit as e:
                done = e.code
        self.assertEqual(done, code, words.getvalue())
        return out.getvalue() if code == 0 and not said else words.getvalue()

    def test_run(self):
        for args, code in (["no.csv"], 2), (["--help"], 0):
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "scripts/plot"), *args],
                capture_output=True)
            self.assertEqual(done.returncode, code)

    def drawn(self, *args, kind="svg"):
        """The drawn labels as text; SVG draws them letter by letter, but has
        each label in a comment before."""
        out = os.path.join(self.folder, "out." + kind)
        self.assertEqual(self.plot(*args, "-o", out), out + "\n")
        with open(out, "rb") as f:
            data = f.read()
        self.assertTrue(data.startswith(BEGINS[kind]))
        return data.decode("utf-8", "replace")

    def has(self, drawn, *labels):
        for label in labels:
            self.assertIn("<!-- %s -->" % label, drawn)

    def test_equal_rows(self):
        """Two specs with the same numbers, as where a group is longer than a
        window, stand at one point."""
        same = [row("kivi:b%dg%dr0s0" % (b, g), 5 - b, b / 10)
                for b in (2, 4) for g in (32, 64)]
        self.drawn(self.csv("same.csv", [self.base, *same]))

    def test_bits(self):
        ppl = self.csv("ppl.csv", self.rows)
        self.has(self.drawn(ppl), "kivi:b4g32", "kivi:b2g32", "cq:c4b8",
                 "klt:b1", "m on t.txt, ctx 256, 2 windows, protocol all",
                 "KL divergence from the f32 cache (nats)")
        self.has(self.drawn(ppl, "--y", "ppl"), "perplexity", "f32 cache")
        for kind in BEGINS:
            self.drawn(ppl, kind=kind)
        self.assertEqual(self.plot(ppl), ppl[:-4] + ".png\n")

    def test_the_same_rows_give_the_same_bytes(self):
        ppl = self.csv("ppl.csv", self.rows)
        for kind in BEGINS:
            self.assertEqual(self.drawn(ppl, kind=kind),
                             self.drawn(ppl, kind=kind))

    def test_what_differs_stands_apart(self):
        """Rows of two protocols, from two files."""
        other = [dict(r, protocol="stream") for r in self.rows]
        self.has(self.drawn(self.csv("a.csv", self.rows),
                            self.csv("b.csv", other)),
                 *("m on t.txt, ctx 256, 2 windows, protocol " + p
                   for p in ("all", "stream")))

    def test_words_that_tell_specs_apart(self):
        hack = "hack:b2p64r0s0,axes=%s,round=nearest,qjl=%s"
        self.has(self.drawn(self.csv("p.csv", [
            self.base, row(hack % ("paper", "no"), 2, 0.2),
            row(hack % ("artifact", "no"), 2, 0.1),
            row(hack % ("artifact", "yes"), 2, 0.3)])),
                 "hack:b2p64,paper", "hack:b2p64,artifact",
                 "hack:b2p64,artifact,qjl")

    def ablation(self):
        """Three bits of K, two of V, two groups, and a row without any."""
        rows = [dict(row("kivi:K-b%d/V-b%d,g%d" % (k, v, g), k + v, 1 / k / v,
                         scheme="kivi"), **{
                             "params.b": "", "params.K.b": str(k),
                             "params.V.b": str(v), "params.g": str(g)})
                for k in (2, 3, 4) for v in (2, 4) for g in (32, 64)]
        return rows + [dict(rows[0], spec="q4_0:r0s0", scheme="q4_0", **{
            "params.K.b": "", "params.V.b": "", "params.g": ""})]

    def test_settings(self):
        path = self.csv("a.csv", self.ablation())
        out = os.path.join(self.folder, "out.svg")
        said = self.plot(path, "--x", "K.b", "--hue", "V.b", "-o", out,
                         said=True)
        self.assertIn("1 of 13 rows are not drawn, having no K.b or no V.b: "
                      "q4_0", said)
        with open(out, encoding="utf-8") as f:
            self.has(f.read(), "V.b=2 g32", "V.b=4 g64", "K.b of the spec",
                     "2", "3", "4")
        self.has(self.drawn(path, "--x", "K.b", "--hue", "V.b", "--panel",
                            "g", "--legend", "--title", "both", "--size",
                            "9,4", "--font", "8"),
                 "V.b=2", "V.b=4", "g = 32", "g = 64", "both")

    def test_sides_that_repeat_both(self):
        """As kvppl fills K's columns beside a spec of one scheme for K."""
        rows = [dict(row("kivi:b%dg%d" % (b, g), b, 1 / b / g, scheme="kivi"),
                     **{"params.b": str(b), "params.g": str(g),
                        "params.K.b": str(b), "params.K.g": str(g)})
                for b in (2, 4) for g in (32, 64)]
        path = self.csv("a.csv", rows)
        drawn = self.drawn(path, "--x", "g", "--hue", "b")
        self.has(drawn, "b=2", "b=4")
        self.assertNotIn("K.", drawn)

    def test_a_map(self):
        path = self.csv("a.csv", self.ablation())
        self.has(self.drawn(path, "--x", "K.b", "--map", "V.b", "--panel",
                            "g"), "0.25", "0.0625", "V.b of the spec")
        self.assertIn("two rows are in the cell K.b=2, V.b=2", self.plot(
            path, "--x", "K.b", "--map", "V.b", code=2))

    def test_words_are_places_too(self):
        rows = [dict(row("kivi:b2,axis=" + a, 3, kl), **{"params.axis": a})
                for a, kl in (("paper", 0.1), ("token", 0.2))]
        self.has(self.drawn(self.csv("a.csv", rows), "--x", "axis"), "paper",
                 "token", "axis of the spec")

    def test_layers(self):
        rows = [{"spec": spec, "model": "m", "text": "t.txt", "ctx": "8",
                 "windows": "1", "side": side, "layer": str(layer),
                 "attn_rel_err": "0.%d" % (layer + 1), "sqnr_db": "20"}
                for spec in ("kivi:b2g32r0s0", "absmax:b8g0r0s0")
                for side in ("K", "V", "KV") for layer in (0, 1)]
        quant = self.csv("quant.csv", rows)
        self.has(self.drawn(quant), "kivi:b2g32", "absmax:b8g0", "layer",
                 "m on t.txt, ctx 8, 1 window: keys and values stored")
        self.has(self.drawn(quant, "--y", "sqnr_db"),
                 "m on t.txt, ctx 8, 1 window: values")

    def test_positions(self):
        """A point in the middle of each bucket."""
        rows = [dict(row(spec, 3, kl), first_token=str(first),
                     last_token=str(first + 1))
                for spec, kl in (("kivi:b2g32r0s0", 0.2), ("q4_0:r0s0", 0.1))
                for first in (1, 3, 5)]
        curve = self.csv("curve.csv", rows)
        self.has(self.drawn(curve), "kivi:b2g32", "q4_0",
                 "scored token of the window",
                 "m on t.txt, ctx 256, 2 windows,", "protocol all")
        self.has(self.drawn(curve, "--y", "same_top1"),
                 "share of tokens with the same first guess")
        import picture_rows
        drawn = picture_rows.positions(rows, None).axes[0].lines
        self.assertIn([1.5, 3.5, 5.5],
                      [list(map(float, x.get_xdata())) for x in drawn])

    def test_latency(self):
        rows = [{"spec": spec, "model": "r", "windows": "1", "ctx": str(n),
                 "protocol": "decode:1", "device": "cpu", "threads": "1",
                 "path": path, "lat_us_p50": str(n), "lat_us_p10": str(n - 1),
                 "lat_us_p90": str(n + 9)}
                for n in (1024, 4096) for spec, path in (
                    ("f16:r0s0", "exact"), ("kivi:b2g32r0s0", "int8"))]
        self.has(self.drawn(self.csv("attn.csv", rows)), "f16 (exact)",
                 "kivi:b2g32 (int8)", "1024", "4096", "tokens in the cache")

    def test_refused(self):
        ppl = self.csv("ppl.csv", self.rows)
        for words, *args in (
                ("no.csv: No such file", "no.csv"),
                ("out.gif: expected a name that ends in .png, .pdf or .svg",
                 ppl, "-o", "out.gif"),
                ("has no column spec", self.csv("a.csv", [{"a": "1"}])),
                ("expected rows of kvppl, kvquant or kvattn",
                 self.csv("b.csv", [{"spec": "f32"}])),
                ("ppl.csv has no column attn", ppl, "--y", "attn"),
                ("--hue goes with --x", ppl, "--hue", "g"),
                ("--map goes without", ppl, "--x", "g", "--map", "b",
                 "--legend"),
                ("no row has p: expected", ppl, "--x", "p"),
                ("at one place of one curve", self.csv("g.csv", [
                    dict(r, **{"params.p": "1"}) for r in self.rows[1:3]]),
                 "--x", "p"),
                ("--size 0,1: expected", ppl, "--size", "0,1"),
                ("--font 0: expected", ppl, "--font", "0"),
                ("no rows that can be drawn", self.csv(
                    "f.csv", [dict(row("kivi:b2r0s0", 2, 1), bits="")])),
                ("none/out.png: No such file", ppl, "-o", "none/out.png"),
                ("is 'x', expected a number", self.csv(
                    "c.csv", [row("kivi:b2r0s0", 2, "x")])),
                ("no row has less than 15 bits", self.csv("d.csv",
                                                          [self.base]),
                 "--y", "ppl"),
                ("rows of 7 kinds", self.csv(
                    "e.csv", [dict(row("kivi:b2r0s0", 2, 1), text=str(i))
                              for i in range(7)]))):
            err = self.plot(*args, code=2)
            self.assertIn(words, err)
            self.assertTrue(err.startswith("plot: "), err)
            self.assertEqual(err.count("\n"), 1, err)

    def test_labels_keep_apart(self):
        from picture_style import spread
        self.assertEqual(spread([], 1), [])
        self.assertEqual(spread([0, 5], 1), [0, 5])
        self.assertEqual(spread([2, 2, 2], 1), [1, 2, 3])
        for wanted in ([0, 0, 1, 1, 1, 9], [3, 3.1, 3.2, 5, 5]):
            got = spread(wanted, 1)
            self.assertTrue(all(b - a > 0.999 for a, b in zip(got, got[1:])))

    @unittest.skipUnless(importlib.util.find_spec("h5py"), "no h5py")
    def test_channels(self):
        """The head with the channel that stands out is the one drawn."""
        import h5py
        import numpy as np

        dump = os.path.join(self.folder, "dump.h5")
        rng = np.random.default_rng(1)
        with h5py.File(dump, "w") as f:
            f.attrs["n_layers"] = 2
            f.attrs["model"], f.attrs["text"] = "m", "t.txt"
            for layer in range(2):
                for side in "kv":
                    x = rng.normal(size=(1, 32, 2, 16)).astype("f4")
                    if (layer, side) in ((1, "k"), (0, "v")):
                        x[0, :, 1, 3] *= 20
                    f["layer_%03d/%s" % (layer, side)] = x
        drawn = self.drawn(dump)
        self.has(drawn, "S, then H")
        self.assertIn("keys, layer 1, KV head 1", drawn)
        self.assertIn("values, layer 0, KV head 1", drawn)
        self.assertIn("dump.h5 is a dump: expected a calibration",
                      self.plot(dump, dump, code=2))
        self.assertIn("--y is of rows", self.plot(dump, "--y", "ppl", code=2))
        with h5py.File(dump, "a") as f:
            del f["layer_000/v"], f["layer_001/v"]
        self.assertIn("dump.h5 has no values", self.plot(dump, code=2))
        self.assertIn("expected a dump and at most one calibration",
                      self.plot(dump, dump, dump, code=2))


if __name__ == "__main__":
    unittest.main()
