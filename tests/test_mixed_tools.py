"""Layer files from the outside: mixed specs in every tool, and kvcalib
--allocate, which writes them."""
import csv
import io
import itertools
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import must, prompt, run

CTX, WINDOWS, LAYERS = 64, 12, 2
PLACES = [(layer, side) for layer in "01" for side in "KV"]
CANDIDATES = ["-s", "kivi:b{1,2,4}g16"]


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1, layers=LAYERS)
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w") as f:
            f.write(tiny_model.text(800, seed))
    dump("eval.h5", "eval.txt")
    dump("calib-text.h5", "calib.txt")
    dump("no-queries.h5", "eval.txt", "--what", "k,v")
    dump("half.h5", "eval.txt", "--layers", "1-1")


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def dump(name, text, *more):
    must("kvdump", "-m", at("m"), "-f", at(text), "-c", str(CTX), "-n",
         str(WINDOWS), "-o", at(name), *more)


def on_text(*more):
    return ["-m", at("m"), "-f", at("eval.txt"), "-c", str(CTX), "-n", "4",
            *more]


def write(name, text):
    with open(at(name), "w") as f:
        f.write(text)
    return "mixed,file=" + at(name)


def read(name):
    with open(at(name)) as f:
        return f.read()


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def places(name):
    """(layer, side) -> spec, of a written layer file."""
    lines = [line.split("#")[0].split() for line in
             read(name).splitlines()]
    return {(layer, side): spec for layer, side, spec in filter(None, lines)}


class Case(unittest.TestCase):
    maxDiff = None

    def refused(self, words, tool, *args):
        """Exit code 2, nothing on stdout, one sentence on stderr."""
        done = run(tool, "-q", *args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(done.stdout)
        self.assertTrue(done.stderr.startswith(tool + ": "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)


class Mixed(Case):
    def same_rows(self, table, spec):
        """The rows of `spec` and of the mixed spec after it, in all columns
        but names, parameters and times."""
        def mine(start):
            return [{c: r[c] for c in r if c not in
                     ("spec", "scheme", "seconds", "attn_seconds")
                     and c[:7] != "params."}
                    for r in table if r["spec"].startswith(start)]

        self.assertTrue(mine(spec))
        self.assertEqual(mine("mixed"), mine(spec))

    def test_one_spec_everywhere_is_that_spec(self):
        must("kvcalib", "-s", "vecinfer:d4b4", at("calib-text.h5"), "-o",
             at("calib.h5"))
        for spec in ("kivi:b2g16", "vecinfer:d4b4", "hack:b4p16",
                     "zipcache"):
            with self.subTest(spec):
                mixed = write("one.txt", f"0-1 KV {spec}\n")
                both = ["-s", spec, "-s", mixed, "-C", at("calib.h5")]
                for protocol in "all", "stream:16":
                    table = must("kvppl", *on_text("--kl", "-p", protocol),
                                 *both)
                    self.same_rows(rows(table), spec.split(":")[0])
                self.same_rows(rows(must("kvquant", *both, at("eval.h5"))),
                               spec.split(":")[0])
                attn = rows(must("kvattn", *both, "--dump", at("eval.h5"),
                                 "--reps", "1", "-n", "2"))
                self.assertEqual(*[[r[c] for c in ("attn_rel_err", "bits",
                                                   "shared_bytes", "path")]
                                   for r in attn[1:]])

    def test_every_tool_takes_it(self):
        mixed = write("four.txt", "0 K kivi:b4g16\n0 V pq:d4b4\n"
                      "1 K vecinfer:d4b4\n1 V quarot:g16\n")
        calib = at("four.h5")
        done = run("kvcalib", "-s", mixed, at("calib-text.h5"), "-o", calib,
                   "--table")
        self.assertEqual(done.returncode, 0, done.stderr)
        trained = {r["spec"].split(":")[0] for r in rows(done.stdout)}
        self.assertEqual(trained, {"pq", "vecinfer"})
        ppl = rows(must("kvppl", *on_text("-s", mixed, "-C", calib)))
        quant = rows(must("kvquant", "-s", mixed, "-C", calib, at("eval.h5"),
                          "--codes", at("codes.h5")))
        attn = rows(must("kvattn", "-s", mixed, "-C", calib, "--dump",
                         at("eval.h5"), "--layer", "1", "--reps", "1"))
        name = ppl[1]["spec"]
        self.assertRegex(name, r"^mixed:r0s0,file=four.txt@[0-9a-f]{16}$")
        self.assertEqual(quant[-1]["spec"], name)
        self.assertEqual(attn[1]["spec"], name.replace(":r0s0", ""))
        bits = {(r["layer"], r["side"]): float(r["bits"]) for r in quant[9:]}
        self.assertEqual(bits["0", "K"], 4 + 32 / 16)
        self.assertEqual(bits["0", "V"], 4 / 4)
        self.assertEqual(bits["1", "K"], 4 / 4)
        self.assertEqual(bits["all", "KV"],
                         sum(bits[p] for p in PLACES) / len(PLACES))
        self.assertEqual(float(ppl[1]["bits"]), bits["all", "KV"])
        shared = {(r["layer"], r["side"]): float(r["shared_bytes"])
                  for r in quant[9:]}
        self.assertEqual(shared["0", "K"], 0)
        self.assertGreater(shared["0", "V"], 0)
        self.assertEqual(shared["all", "KV"], shared["0", "V"] +
                         shared["1", "K"])
        self.assertTrue(ppl[1]["calib_hash"])

    def test_a_scheme_for_each_side(self):
        """As a layer file that names them for all layers; sweeps; tables of
        either side from one calibration."""
        sides = "K-vecinfer:d4b{4,6}/V-kivi:b4g16"
        calib = at("sides.h5")
        must("kvcalib", "-s", sides, at("calib-text.h5"), "-o", calib)
        mixed = write("sides.txt", "0-1 K vecinfer:d4b6\n"
                      "0-1 V kivi:b4g16\n")
        both = ["-s", sides, "-s", mixed, "-C", calib]
        for args in (["kvppl", *on_text("--kl")],
                     ["kvppl", *on_text("--kl", "-p", "stream:16")],
                     ["kvgen", "-m", at("m"), "-f",
                      prompt(at("p.jsonl"), tiny_model.text(30, 1)), "-n", "2",
                      "-c", "999", "-o", os.devnull],
                     ["kvquant", at("eval.h5")],
                     ["kvattn", "--dump", at("eval.h5"), "--reps", "1"]):
            with self.subTest(args):
                table = rows(must(args[0], *both, *args[1:]))
                specs = list(dict.fromkeys(r["spec"] for r in table))
                self.assertEqual(len(specs), 3 + (args[0] != "kvgen"))
                self.assertRegex(specs[-3], "^K-vecinfer:d4b4r[0-9]+s0,.*/"
                                 "V-kivi:b4g16r[0-9]+s0,axis=paper$")
                one, other = ([{c: r[c] for c in r if c[:7] != "params." and
                                c not in ("spec", "scheme", "agree", "same")
                                and "second" not in c and
                                not c.startswith("tokens_s")}
                               for r in table if r["spec"] == s]
                              for s in specs[-2:])
                if args[0] == "kvattn":
                    one, other = ([{c: r[c] for c in ("attn_rel_err", "bits",
                                                      "shared_bytes", "path")}
                                   for r in x] for x in (one, other))
                self.assertEqual(one, other)

    def test_the_text_reads_back(self):
        mixed = write("back.txt", "0-1 KV kivi:b2g16\n")
        table = rows(must("kvquant", "-s", mixed, at("eval.h5")))
        name = table[-1]["spec"].split("=")[1]
        again = rows(must("kvquant", "-s", "mixed:r0s0,file=" + at(name),
                          at("eval.h5")))
        self.assertEqual(again, table)
        write("back.txt", "0-1 KV kivi:b4g16\n")
        self.refused("says something else by now", "kvquant", "-s",
                     "mixed,file=" + at(name), at("eval.h5"))

    def test_refused(self):
        for text, words in (
                ("0-1 KV kivi\n1 K kivi\n", "bad.txt:2: layer 1, K is named"),
                ("0 KV kivi\n", "bad.txt: layer 1, K is not named: the model"),
                ("0-2 KV kivi\n", "bad.txt:1: layer 2 is named: expected"),
                ("0-1 K kivi\n", "bad.txt: layer 0, V is not named"),
                ("0-1 KV kivi:g12\n", "bad.txt:1: spec 'kivi:b2g12"),
                ("0-1 KV vecinfer\n", "needs a calibration made for it "
                 "(kvcalib, then -C FILE)")):
            with self.subTest(text):
                self.refused(words, "kvquant", "-s", write("bad.txt", text),
                             at("eval.h5"))
        self.refused("no.txt: No such file", "kvppl", *on_text(
            "-s", "mixed,file=" + at("no.txt")))
        self.refused("--iters does not reach into", "kvcalib", "-s",
                     write("pq.txt", "0-1 KV pq:d4b4\n"), "--iters", "3",
                     at("calib-text.h5"), "-o", at("c.h5"))

    def test_listed(self):
        self.assertIn("mixed,file=", must("kvppl", "--list"))
        self.assertIn("K-SPEC/V-SPEC", must("kvppl", "--list"))


class Allocate(Case):
    def allocate(self, *args):
        return rows(must("kvcalib", "--table", "-o", at("layers.txt"), *args))

    def check_best(self, table, budget):
        """The file against every choice, by the table's bits and costs."""
        offers = {}
        for r in table:
            spec = r["spec"].replace("r0s0", "r128s0")
            offers.setdefault((r["layer"], r["side"]), []).append(
                (spec, float(r["bits"]), float(r["cost"]), r["chosen"] == "1"))
        self.assertEqual(list(offers), PLACES)
        fits = [c for c in itertools.product(*offers.values())
                if sum(o[1] for o in c) <= budget * len(PLACES)]
        least = min(sum(o[2] for o in c) for c in fits)
        chosen = [next(o for o in offers[p] if o[3]) for p in PLACES]
        self.assertAlmostEqual(sum(o[2] for o in chosen), least, places=12)
        self.assertEqual(places("layers.txt"),
                         {p: o[0] for p, o in zip(PLACES, chosen)})
        self.assertLess(len({o[0] for o in chosen}), len(PLACES))
        return sum(o[1] for o in chosen) / len(PLACES)

    def test_by_attention(self):
        table = self.allocate("--allocate", "4", *CANDIDATES, at("eval.h5"))
        bits = self.check_best(table, 4)
        quant = rows(must("kvquant", *CANDIDATES, "-s", "mixed,file=" +
                          at("layers.txt"), at("eval.h5")))
        self.assertEqual(float(quant[-1]["bits"]), bits)
        self.assertIn(f"# {bits:g} bits per value", read("layers.txt"))
        alone = {(r["layer"], r["side"], r["spec"]): r for r in quant}
        for r in table:
            one = alone[r["layer"], r["side"], r["spec"]]
            self.assertEqual(r["bits"], one["bits"])
            self.assertAlmostEqual(float(r["cost"]),
                                   float(one["attn_rel_err"]) ** 2, places=7)

    def test_by_divergence(self):
        table = self.allocate("--allocate", "4", *CANDIDATES, *on_text())
        self.check_best(table, 4)
        for r in table[3], table[-1]:
            spec = {p: "f32" for p in PLACES}
            spec[r["layer"], r["side"]] = r["spec"]
            mixed = write("alone.txt", "".join(
                f"{layer} {side} {s}\n" for (layer, side), s in spec.items()))
            one = rows(must("kvppl", *on_text("--kl", "-s", mixed)))[1]
            self.assertEqual(r["cost"], one["kl_mean"])
            self.assertAlmostEqual(float(r["bits"]) + 3 * 32,
                                   float(one["bits"]) * 4, places=6)

    def test_calibrated_specs(self):
        """Tables come from -C, and their training text is named."""
        specs = ["-s", "vecinfer:d{2,4}b4", "-s", "kivi:b2g16"]
        must("kvcalib", "-s", "vecinfer:d{2,4}b4", at("calib-text.h5"), "-o",
             at("vq.h5"))
        with_calib = ["--allocate", "1.6", *specs, "-C", at("vq.h5")]
        table = self.allocate(*with_calib, at("eval.h5"))
        self.assertIn("vecinfer:d2b4", read("layers.txt"))
        self.assertIn(f"calibration {table[0]['calib_hash']}",
                      read("layers.txt"))
        must("kvppl", *on_text("-s", "mixed,file=" + at("layers.txt"), "-C",
                               at("vq.h5")))
        self.allocate(*with_calib, *on_text())
        self.refused("needs a calibration", "kvcalib", "--allocate", "1.6",
                     *specs, at("eval.h5"), "-o", at("x.txt"))
        for where in [at("calib-text.h5")], ["-m", at("m"), "-f",
                                             at("calib.txt"), "-c", "64"]:
            self.refused("use other text, or --allow-leakage", "kvcalib",
                         *with_calib, *where, "-o", at("x.txt"))
        self.assertFalse(os.path.exists(at("x.txt")))

    def test_threads_change_no_byte(self):
        for where in [at("eval.h5")], on_text():
            texts = set()
            for threads in "1", "2":
                self.allocate("--allocate", "4", *CANDIDATES, "-t", threads,
                              *where)
                texts.add(read("layers.txt"))
            self.assertEqual(len(texts), 1)

    def test_refused(self):
        def refused(words, *args):
            self.refused(words, "kvcalib", *args, "-o", at("x.txt"))
            self.assertFalse(os.path.exists(at("x.txt")))

        four = ["--allocate", "4", *CANDIDATES]
        refused("--allocate 1: 1 bits per value cannot be met: the given "
                "specs need at least 3.0000", "--allocate", "1", *CANDIDATES,
                at("eval.h5"))
        for bad in "", "0", "two", "-1", "1e3", "inf", "2.5.1", "0x4":
            refused("expected bits per value", "--allocate", bad, *CANDIDATES,
                    at("eval.h5"))
        refused("has no queries", *four, at("no-queries.h5"))
        refused("holds layers 1 to 1 of 2", *four, at("half.h5"))
        refused("hack:", *four, "-s", "hack", at("eval.h5"))
        refused("no spec that does: mixed", *four, "-s",
                write("some.txt", "0-1 KV kivi\n"), at("eval.h5"))
        refused("either a dump, or -m DIR and -f FILE", *four)
        refused("either a dump, or -m DIR and -f FILE", *four, at("eval.h5"),
                *on_text())
        refused("both -m DIR and -f FILE", *four, "-m", at("m"))
        refused("-c and -n go with -m", *four, at("eval.h5"), "-n", "2")
        refused("--queries 0", *four, "--queries", "0", at("eval.h5"))
        refused("--iters does not go with", *four, "--iters", "2",
                at("eval.h5"))
        refused("-c 1: expected at least 2", *four, "-m", at("m"), "-f",
                at("eval.txt"), "-c", "1")
        refused("-C goes with --allocate", "-s", "pq:d4b4", "-C",
                at("calib.h5"), at("calib-text.h5"))
        refused("-m goes with --allocate", "-s", "pq:d4b4", "-m", at("m"),
                at("calib-text.h5"))
        self.refused("would replace the input", "kvcalib", *four,
                     *on_text("-o", at("eval.txt")))
        self.assertEqual(run("kvcalib", *four, at("eval.h5")).returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=0)
