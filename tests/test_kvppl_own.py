"""kvppl --own: specs along text that the model wrote; --kl-curve."""
import csv
import io
import json
import os
import shutil
import tempfile
import unittest

from run_tools import must, prompt, read, run, write

DATA = os.path.join(os.environ["KV_SOURCE_ROOT"], "data")
MODEL = os.path.join(DATA, "model")
PROMPT, WINDOWS, OWN = 24, 3, 16
SPECS = "-s", "kivi:b2g32r0", "-s", "q4_0", "-s", "turboquant:b2"


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def args(*more, n=WINDOWS, own=OWN, protocol="stream"):
    return ["-m", MODEL, "-f", os.path.join(DATA, "sample.txt"), "-c", PROMPT,
            "-n", n, "-p", protocol, *(["--own", own] if own is not None
                                       else []), *more]


def rows(text):
    return [{k: v for k, v in r.items()
             if k not in ("threads", "seconds", "attn_seconds")}
            for r in csv.DictReader(io.StringIO(text))]


def own(*more, **how):
    """Rows of the specs, without the base line's; and of the curve."""
    table = must("kvppl", *args(*more, "--kl-curve", at("c.csv"), **how))
    return rows(table)[1:], rows(read(at("c.csv")).decode())


class Own(unittest.TestCase):
    maxDiff = None

    def test_curve(self):
        """One window with a bucket for each token, whose sums the rows have."""
        table, curve = own(*SPECS, n=1)
        self.assertEqual(len(curve), 3 * OWN)
        for r in table:
            points = [p for p in curve if p["spec"] == r["spec"]]
            self.assertEqual([(p["first_token"], p["last_token"])
                              for p in points],
                             [(str(i), str(i)) for i in range(1, OWN + 1)])
            kl = [float(p["kl_mean"]) for p in points]
            same = [p["same_top1"] for p in points] + ["0"]
            middle = (OWN - 1) / 2
            slope = sum((i - middle) * x for i, x in enumerate(kl)) / sum(
                (i - middle) ** 2 for i in range(OWN))
            self.assertGreater(min(kl), 0)
            self.assertAlmostEqual(float(r["kl_mean"]), sum(kl) / OWN, 6)
            self.assertAlmostEqual(float(r["kl_slope"]), slope * 1000, 3)
            self.assertEqual(float(r["agree"]), same.index("0"))
            self.assertEqual((r["kl_slope_se"], r["agree_se"],
                              points[0]["kl_se"]), ("", "", ""))
            self.assertEqual((r["protocol"], r["ctx"], r["tokens"]),
                             ("stream+own:16", str(PROMPT), str(OWN)))

    def test_buckets(self):
        """Of 2 tokens, the last of 1; means over windows, with errors."""
        (r,), curve = own("-s", "q4_0", own=31)
        ends = [(int(p["first_token"]), int(p["last_token"])) for p in curve]
        self.assertEqual(ends, [(i, min(i + 1, 31)) for i in range(1, 32, 2)])
        mean = sum((last - first + 1) * float(p["kl_mean"])
                   for (first, last), p in zip(ends, curve)) / 31
        self.assertAlmostEqual(float(r["kl_mean"]), mean, 6)
        self.assertEqual(r["tokens"], str(31 * WINDOWS))
        for error in ([r["kl_slope_se"], r["agree_se"]] +
                      [p["kl_se"] for p in curve]):
            self.assertGreaterEqual(float(error), 0)

    def test_agrees_with_what_kvgen_writes(self):
        """One run along the text says how long the spec's own answer is the
        same: until then both caches hold the same tokens."""
        said = {}
        for text in ("The harbour was", "In the morning she", "Take two cups"):
            n = len(must("kvdump", "-m", MODEL, "-f",
                         write(at("p.txt"), text.encode()),
                         "--tokens").split())
            for r in rows(must("kvppl", "-m", MODEL, "-f", at("p.txt"), "-c",
                               n, "-p", f"prefill:{n}", "--own", 24, *SPECS)):
                said.setdefault(r["spec"], []).append(r["agree"])
            must("kvgen", "-m", MODEL, "-f", prompt(at("p.jsonl"), text), "-n",
                 24, "--ignore-eos", "-s", "f32", *SPECS, "-o", at("a.jsonl"))
            for line in read(at("a.jsonl")).splitlines()[1:]:
                a = json.loads(line)
                self.assertEqual(said[a["spec"]][-1], str(a["agrees"]))
        self.assertGreater(len({n for s in said.values() for n in s}), 4)

    def test_nothing_depends_on_threads_and_memory(self):
        one = own(*SPECS, "-t", 1)
        self.assertEqual(one, own(*SPECS, "-t", 2, "--memory", "1M"))

    def test_sampled(self):
        """Text sampled by the run's seed; only greedy text has an agreement."""
        hot = "-s", "q4_0", "--own-temperature", 0.9
        (a,), _ = own(*hot)
        self.assertEqual(a["protocol"], "stream+own:16@0.9")
        self.assertEqual((a["agree"], a["agree_se"]), ("", ""))
        self.assertEqual([a], own(*hot)[0])
        (b,), _ = own(*hot, "--seed", 1)
        self.assertNotEqual(a["nll"], b["nll"])

    def test_a_curve_of_given_text(self):
        (r,), curve = own("--kl", "-s", "q4_0", own=None)
        self.assertEqual((r["protocol"], r["agree"]), ("stream", ""))
        self.assertNotEqual(r["kl_slope"], "")
        self.assertEqual(curve[-1]["last_token"], str(PROMPT - 1))

    def test_refused(self):
        for words, *argv in (
                ("protocols stream and prefill:P", *args(protocol="all")),
                ("not with stream:4", *args(protocol="stream:4")),
                ("the prompt at most, which has 24 tokens",
                 *args(protocol="prefill:25")),
                ("--own 0: expected 1", *args(own=0)),
                ("beyond the model's context of", *args(own=999999)),
                ("--own does not go with --no-base",
                 *args("--no-base", "-s", "q4_0")),
                ("--kl-divergence-base goes with --protocol llama.cpp",
                 *args("--kl-divergence-base", at("base"))),
                ("--own-temperature -1: expected 0",
                 *args("--own-temperature", "-1")),
                ("--own-temperature goes with --own",
                 *args("--own-temperature", 1, own=None)),
                ("--kl-curve goes with --kl", *args("--kl-curve", at("x.csv"), own=None)),
                ("--kl-curve does not go with --resume",
                 *args("-o", at("x.csv"), "--resume", "--kl-curve",
                       at("y.csv")))):
            done = run("kvppl", "-q", *argv)
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertTrue(done.stderr.startswith("kvppl: "), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertFalse(done.stdout)
        self.assertFalse(set(os.listdir(folder)) & {"x.csv", "y.csv", "base"})

    def test_rows_of_own_text_are_found_again(self):
        """--append: the protocol tells them from others."""
        where = "-s", "q4_0", "-o", at("all.csv"), "--append"
        for more in args(*where), args(*where, own=8), args(*where):
            must("kvppl", *more)
        self.assertEqual([r["protocol"] for r in
                          rows(read(at("all.csv")).decode())],
                         ["stream+own:16"] * 2 + ["stream+own:8"] * 2)


if __name__ == "__main__":
    unittest.main()
