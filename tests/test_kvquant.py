"""kvquant and kvattn from the outside: tables, calibrations, bad input."""
import csv
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import tiny_model
from run_tools import TOOLS, must, run, with_defaults

CTX, WINDOWS = 64, 12
SIDES = ["K", "V", "KV"]


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def flat(members, before=""):
    """{"K": {"g": 32}} as {"K.g": "32"}."""
    out = {}
    for name, value in members.items():
        if isinstance(value, dict):
            out.update(flat(value, before + name + "."))
        else:
            out[before + name] = str(value)
    return out


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    for model, seed in ("m", 1), ("other", 2):
        tiny_model.make(at(model), seed=seed)
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w") as f:
            f.write(tiny_model.text(800, seed))
    dump("eval.h5", "m", "eval.txt")
    dump("calib-text.h5", "m", "calib.txt")
    dump("other.h5", "other", "calib.txt")
    dump("no-queries.h5", "m", "eval.txt", "--what", "k,v")
    dump("no-pre.h5", "m", "eval.txt", "--rope", "post")
    specs = ["-s", "vecinfer:d4b4", "-s", "pq:d4b4,rope=pre"]
    must("kvcalib", *specs, at("calib-text.h5"), "-o", at("calib.h5"))
    must("kvcalib", "-s", "pq:d4b4", "--iters", "3", at("calib-text.h5"),
         "-o", at("three.h5"))
    must("kvcalib", *specs, at("eval.h5"), "-o", at("leaky.h5"))
    must("kvcalib", *specs, at("other.h5"), "-o", at("other-calib.h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def dump(name, model, text, *more):
    must("kvdump", *with_defaults(more, m=at(model), f=at(text), c=CTX,
                                  n=WINDOWS, o=at(name)))


class Case(unittest.TestCase):
    maxDiff = None

    def refused(self, words, tool, *args, **more):
        """Exit code 2, nothing on stdout, one sentence on stderr."""
        done = run(tool, "-q", *args, **more)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(done.stdout)
        self.assertTrue(done.stderr.startswith(tool + ": "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)


class Rounds(Case):
    """A spec that leaves iters out takes the tables that are there."""

    def test_taken_from_the_calibration(self):
        for tool in (["kvquant", at("eval.h5")], ["kvattn", "--dump",
                     at("eval.h5")], ["kvppl", "-m", at("m"), "-f",
                     at("eval.txt"), "-c", "64", "-n", "2"]):
            left_out, given = (
                rows(must(*tool, "-C", at("three.h5"), "-s", spec))[-1]
                for spec in ("pq:d4b4", "pq:d4b4,iters=3"))
            self.assertIn("iters=3", left_out["spec"])
            self.assertEqual(left_out["spec"], given["spec"])
            for column in set(given) & {"mse", "ppl", "attn_rel_err"}:
                self.assertEqual(left_out[column], given[column])

    def test_not_taken(self):
        self.refused("has no tables for pq:d4b4", "kvquant", "-C",
                     at("three.h5"), "-s", "pq:d4b4,iters=100", at("eval.h5"))
        must("kvcalib", "-s", "pq:d4b4,iters={2,3}", at("calib-text.h5"),
             "-o", at("two.h5"))
        self.refused("say which by iters=", "kvquant", "-C", at("two.h5"),
                     "-s", "pq:d4b4", at("eval.h5"))


class Engines(Case):
    def test_cache_types(self):
        """llama.cpp's options get the spec to write."""
        for tool in "kvquant", "kvppl", "kvgen", "kvattn", "kvcalib":
            self.refused("write -s K-q4_0/V-q8_0", tool, "-ctk", "q4_0",
                         "-ctv", "q8_0", at("eval.h5"))
        self.refused("write -s q4_0", "kvquant", "--cache-type-k", "q4_0",
                     "--cache-type-v", "q4_0", at("eval.h5"))
        self.refused("write -s K-f16/V-q4_0", "kvppl", "-ctv", "q4_0")


class Table(Case):
    def test_rows_and_columns(self):
        table = rows(must("kvquant", "-s", "absmax:b{8,2}", at("eval.h5")))
        specs = list(dict.fromkeys(r["spec"] for r in table))
        self.assertEqual([s.split(":")[0] for s in specs],
                         ["f32", "absmax", "absmax"])
        self.assertEqual([(r["side"], r["layer"]) for r in table],
                         [(s, l) for l in ("0", "1", "all") for s in SIDES] * 3)
        self.assertEqual(
            ",".join(table[0]),
            "tool,version,spec,scheme,model,model_hash,weights,text,text_hash,ctx,"
            "windows,protocol,calib_hash,calib_text,calib_leak,device,level,"
            "threads,seed,bos,special,gemm,bits_nominal,bits,"
            "bits_quantized,shared_bytes,"
            "bits_total,clipped,bits_declared,kept,side,layer,mse,sqnr_db,rel_err,"
            "cosine,max_err,"
            "logit_err,attn_kl,attn_rel_err,rd_gap_db,params.axis,params.b,"
            "params.g,params.heads,params.r,params.s")

    def test_numbers_make_sense(self):
        table = rows(must("kvquant", "-s", "absmax:b{8,2}", at("eval.h5")))
        for r in table[:9]:  # f32: nothing is lost
            self.assertEqual(r["bits"], "32")
            self.assertEqual(r["attn_rel_err"], "0")
            if r["side"] != "KV":
                self.assertEqual((r["mse"], r["sqnr_db"], r["cosine"]),
                                 ("0", "inf", "1"))
        fine, coarse = table[9:18], table[18:]
        for a, b in zip(fine, coarse):
            self.assertLess(float(b["bits"]), float(a["bits"]))
            self.assertLess(float(a["attn_rel_err"]),
                            float(b["attn_rel_err"]))
            if a["side"] == "KV":
                self.assertEqual(a["mse"], "")
            else:
                self.assertLess(float(a["mse"]), float(b["mse"]))
            self.assertEqual(a["attn_kl"] == "", a["side"] != "K")
        # over all layers: the mean of layers of equal size
        for i in range(3):
            mean = (float(fine[i]["bits"]) + float(fine[3 + i]["bits"])) / 2
            self.assertAlmostEqual(float(fine[6 + i]["bits"]), mean)

    def test_any_threads_give_the_same_bytes(self):
        out = []
        for threads in "1", "2":
            must("kvquant", "-s", "kivi:b{2,4}", "-s", "hack", "-t", threads,
                 at("eval.h5"), "--codes", at("codes.h5"), "-o",
                 at("table.csv"))
            with open(at("table.csv")) as f:
                table = rows(f.read())
            for r in table:
                del r["threads"]
            with open(at("codes.h5"), "rb") as f:
                out.append((table, f.read()))
        self.assertEqual(out[0], out[1])

    def test_codes_hold_the_bits(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        table = rows(must("kvquant", "-s", "kivi:b2", "-s", "absmax:b3",
                          "-s", "pq:d4b4,rope=pre", "-s", "hack",
                          "-C", at("calib.h5"), at("eval.h5"),
                          "--codes", at("codes.h5")))
        values = WINDOWS * CTX * 2 * 16
        with h5py.File(at("codes.h5")) as f:
            for r in table:
                if r["side"] == "KV" or r["layer"] == "all":
                    continue
                group = f[f"spec_{table.index(r) // 9:03}"]
                self.assertEqual(group.attrs["spec"].decode(), r["spec"])
                name = f"layer_{int(r['layer']):03}/{r['side'].lower()}"
                held = group[name]
                size = (sum(w.size for w in held.values())
                        if isinstance(held, h5py.Group) else held.size)
                self.assertEqual("%.9g" % (8 * size / values),
                                 r["bits"])

    def test_shards_together_are_the_whole(self):
        args = ["-s", "absmax:b{2,3,4}", "-s", "kivi", at("eval.h5")]
        whole = rows(must("kvquant", *args))
        parts = [rows(must("kvquant", *args, "--shard", f"{i}/2"))
                 for i in (1, 2)]
        specs = list(dict.fromkeys(r["spec"] for r in whole))
        for i in (0, 1):
            self.assertEqual(parts[i], [r for r in whole
                                        if r["spec"] in specs[i::2]])
        empty = must("kvquant", *args, "--shard", "9/9")
        self.assertEqual(empty.count("\n"), 1)  # the header

    def test_window(self):
        args = ["-s", "kivi:b2g16r32s2", at("eval.h5")]
        plain = rows(must("kvquant", *args))[9]
        kept = rows(must("kvquant", "--keep-window", *args))[9]
        self.assertIn("r0s0", plain["spec"])
        self.assertIn("r32s2", kept["spec"])
        self.assertGreater(float(kept["bits"]), float(plain["bits"]))
        self.assertNotEqual(plain["protocol"], kept["protocol"])

    def test_formats(self):
        table = rows(must("kvquant", "-s", "kivi", at("eval.h5")))
        lines = must("kvquant", "-s", "kivi", "--format", "jsonl",
                     at("eval.h5")).splitlines()
        self.assertEqual(len(lines), len(table))
        for line, r in zip(lines, table):
            x = json.loads(line)
            self.assertEqual(list(x), [c for c in r if c[:7] != "params."] +
                             ["params"])
            self.assertEqual(flat(x["params"]),
                             {c[7:]: r[c] for c in r if c[:7] == "params."
                              and r[c]})
            self.assertEqual(x["spec"], r["spec"])
            self.assertEqual(x["bits"], float(r["bits"]))
        lines = must("kvquant", "-s", "kivi", "--format", "md",
                     at("eval.h5")).splitlines()
        self.assertEqual(len(lines), len(table) + 2)
        self.assertEqual({line.count("|") for line in lines},
                         {len(table[0]) + 1})

        lines = must("kvquant", "-s", "kivi", "--format", "tsv",
                     at("eval.h5")).splitlines()
        names, *lines = [line.split("\t") for line in lines]
        self.assertEqual([dict(zip(names, line)) for line in lines], table)

    def test_columns(self):
        """Chosen ones in that order; shards have the same."""
        specs = ["-s", "kivi:b2", "-s", "K-nf4/V-absmax:b4", at("eval.h5")]
        whole = rows(must("kvquant", *specs))
        some = rows(must("kvquant", *specs, "--columns", "bits,spec,params.b"))
        self.assertEqual([list(r.items()) for r in some],
                         [[(c, r[c]) for c in ("bits", "spec", "params.b")]
                          for r in whole])
        self.assertEqual({r["scheme"]: (r["params.b"], r["params.V.b"])
                          for r in whole},
                         {"f32": ("", ""), "kivi": ("2", "2"),
                          "K-nf4/V-absmax": ("", "4")})
        self.assertNotIn("params.K.b", whole[0])
        parts = [must("kvquant", *specs, "--shard", f"{i}/4")
                 for i in (1, 2, 3, 4)]
        self.assertEqual({p.splitlines()[0] for p in parts},
                         {",".join(whole[0])})
        self.assertEqual(sum((rows(p) for p in parts), []), whole)
        self.refused("unknown column 'nothing': expected some of tool, ",
                     "kvquant", *specs, "--columns", "spec,nothing")

    def test_queries(self):
        everything = must("kvquant", "-s", "kivi", "--queries", "1000",
                          at("eval.h5"))
        self.assertEqual(everything, must("kvquant", "-s", "kivi", "--queries",
                                          str(CTX), at("eval.h5")))
        for r in rows(must("kvquant", "-s", "kivi", at("no-queries.h5"))):
            self.assertEqual(r["attn_rel_err"], "")
        self.refused("--queries 0", "kvquant", "-s", "kivi", "--attention",
                     "--queries", "0", at("eval.h5"))
        self.refused("no queries", "kvquant", "-s", "kivi", "--attention",
                     at("no-queries.h5"))


class Calibrated(Case):
    def test_rows(self):
        table = rows(must("kvquant", "-s", "vecinfer:d4b4", "-s",
                          "pq:d4b4,rope=pre", "-C", at("calib.h5"),
                          at("eval.h5")))
        self.assertEqual(table[0]["calib_hash"], "")
        self.assertEqual(table[0]["shared_bytes"], "0")
        for r in table[9:]:
            self.assertEqual(r["calib_text"], "calib.txt")
            self.assertEqual(r["calib_leak"], "0")
            self.assertEqual(len(r["calib_hash"]), 16)
            self.assertGreater(float(r["bits_total"]), float(r["bits"]))
        k, v, kv = table[15:18]  # vecinfer over all layers
        self.assertEqual(int(k["shared_bytes"]) + int(v["shared_bytes"]),
                         int(kv["shared_bytes"]))

    def test_layers_add_up_to_all(self):
        """Also where one codebook serves all layers."""
        must("kvcalib", "-s", "million:d4b4", at("calib-text.h5"), "-o",
             at("million.h5"))
        table = rows(must("kvquant", "-s", "million:d4b4", "-C",
                          at("million.h5"), at("eval.h5")))[9:]
        for i in range(3):
            layers = [int(table[i + 3 * l]["shared_bytes"]) for l in (0, 1)]
            self.assertEqual(sum(layers), int(table[6 + i]["shared_bytes"]))
            self.assertEqual(table[i]["bits_total"],
                             table[6 + i]["bits_total"])

    def test_gap_to_the_bound(self):
        """Of transform coding; other schemes have none."""
        klt = "klt,metric=attention"
        must("kvcalib", "-s", klt, at("calib-text.h5"), "-o", at("klt.h5"))
        table = rows(must("kvquant", "-s", "kivi", "-s", klt, "-C",
                          at("klt.h5"), at("eval.h5")))
        self.assertEqual({r["rd_gap_db"] for r in table[:18]}, {""})
        for r in table[18:]:
            self.assertTrue(0 < float(r["rd_gap_db"]) < 6, r["rd_gap_db"])
        sides = [float(r["rd_gap_db"]) for r in table[24:]]
        self.assertTrue(min(sides[:2]) <= sides[2] <= max(sides[:2]))

    def test_keys_before_rope(self):
        self.refused("no keys before RoPE", "kvquant", "-s",
                     "pq:d4b4,rope=pre", "-C", at("calib.h5"),
                     at("no-pre.h5"))

    def test_leakage(self):
        args = ["-s", "vecinfer:d4b4", "-C", at("leaky.h5"), at("eval.h5")]
        self.refused("100.0 % of the evaluated text", "kvquant", *args)
        r = rows(must("kvquant", "--allow-leakage", *args))[9]
        self.assertEqual(r["calib_leak"], "1")
        self.refused("100.0 %", "kvattn", *args[:4], "--dump", at("eval.h5"))

    def test_refused(self):
        spec = ["-s", "vecinfer:d4b4"]
        self.refused("made for another model", "kvquant", *spec,
                     "-C", at("other-calib.h5"), at("eval.h5"))
        self.refused("needs a calibration", "kvquant", *spec, at("eval.h5"))
        for words in "no tables for vecinfer:d2b4", "it has vecinfer:d4b4":
            self.refused(words, "kvquant", "-s", "vecinfer:d2b4",
                         "-C", at("calib.h5"), at("eval.h5"))
        self.refused(at("calib.h5") + " has no tables", "kvattn", "-s", "kivi",
                     "-s", "vecinfer:d2b4", "-C", at("calib.h5"), "--dump",
                     at("eval.h5"))
        self.refused("nowhere.h5", "kvquant", *spec, "-C", "nowhere.h5",
                     at("eval.h5"))
        self.refused("eval.h5", "kvquant", *spec, "-C", at("eval.h5"),
                     at("eval.h5"))


POLICIES = ["streamingllm:s0w%d", "h2o:b%d", "tova:b%d", "knorm:b%d",
            "snapkv:b%dw4", "pyramidkv:b%dw4"]


class Policies(Case):
    def test_all_kept(self):
        """Codes of one token a block: as without a policy."""
        for spec in "f16", "nf4", "absmax:b2,massive":
            whole = [x for p in POLICIES for x in ("-s", f"{p % CTX}+{spec}")]
            table = rows(must("kvquant", "-C", at("calib.h5"), "--queries",
                              "1000", "-s", spec,
                              *whole, at("eval.h5")))[9:]
            for i, r in enumerate(table):
                self.assertEqual(r["kept"], "1")
                self.assertEqual(r["bits"], table[i % 9]["bits"])
                if r["protocol"] == f"prefill:{CTX // 2}":
                    continue  # other queries
                for column in "logit_err", "attn_kl", "attn_rel_err":
                    if not table[i % 9][column]:
                        self.assertFalse(r[column])
                        continue
                    self.assertAlmostEqual(float(r[column]),
                                           float(table[i % 9][column]), 5)
        self.assertEqual({r["protocol"] for r in table},
                         {"all", "stream", f"prefill:{CTX // 2}"})

    def test_budgets(self):
        specs = [x for b in (48, 24, 8) for x in ("-s", f"h2o:b{b}+f16")]
        table = rows(must("kvquant", *specs, at("eval.h5")))[9:]
        for b, i in (48, 6), (24, 15), (8, 24):
            k, v, both = table[i:i + 3]
            self.assertEqual(k["layer"], "all")
            for r in k, v, both:
                self.assertAlmostEqual(float(r["kept"]), b / CTX)
                self.assertAlmostEqual(float(r["bits"]), 16 * b / CTX)
                self.assertEqual((r["mse"], r["protocol"]), ("", "stream"))
        for i in 6, 8:
            for column in ("attn_kl", "attn_rel_err")[i // 8:]:
                self.assertLess(0, float(table[i][column]))
                self.assertLess(float(table[i][column]),
                                float(table[i + 9][column]))
                self.assertLess(float(table[i + 9][column]),
                                float(table[i + 18][column]))
        again = rows(must("kvquant", *specs, "-t", "1", at("eval.h5")))[9:]
        for a, b in zip(table, again):
            for column in "attn_kl", "attn_rel_err", "bits":
                self.assertEqual(a[column], b[column])

    def test_refused(self):
        self.refused("no queries, which h2o:b0.2+f16:r0s0 needs", "kvquant",
                     "-s", "h2o+f16", at("no-queries.h5"))
        self.refused("--codes writes whole windows", "kvquant", "-s",
                     "h2o+f16", "--codes", at("c.h5"), at("eval.h5"))
        self.refused("a spec without a policy", "kvquant", "-s", "h2o+f16",
                     "--channels", at("eval.h5"))
        self.refused("cannot move to other positions", "kvquant", "-s",
                     "streamingllm+hack:b2p16", at("eval.h5"))


class BadInput(Case):
    def test_specs(self):
        for spec, words in [
                ("absmax:q4", "absmax has no 'q'"),
                ("absmax:b99", "b"),
                ("kivy", "kivy"),
                ("kivi:b2g7r0", "g=7"),
                ("kivi:b{2,4", "kivi:b{2,4")]:
            self.refused(words, "kvquant", "-s", spec, at("eval.h5"))
        self.refused("every token is kept here", "kvcalib", "-s",
                     "h2o:b0.5+kivi:b2g32", "--allocate", "3", "-o",
                     at("layers.txt"), at("eval.h5"))
        self.refused("quote sweeps", "kvquant", "-s", "kivi:b2", "kivi:b4",
                     at("eval.h5"))
        self.refused("quote sweeps", "kvattn", "-s", "kivi:b2", "kivi:b9",
                     "--dump", at("eval.h5"))

    def test_options(self):
        self.refused("expected one dump", "kvquant", "-s", "kivi")
        self.refused("-s SPEC", "kvquant", at("eval.h5"))
        self.refused("csv, tsv, jsonl or md", "kvquant", "-s", "kivi", "--format",
                     "xml", at("eval.h5"))
        self.refused("--shard 3/2", "kvquant", "-s", "kivi", "--shard", "3/2",
                     at("eval.h5"))
        self.refused("--colour", "kvquant", "-s", "kivi", "--colour",
                     at("eval.h5"))
        self.refused("--queries", "kvquant", "-s", "kivi", "--queries",
                     "99999999999999", at("eval.h5"))

    def test_outputs_over_inputs(self):
        """Nothing that is read is replaced, under whatever name."""
        names = ["eval.h5", "calib.h5"]
        before = [self.read(n) for n in names]
        os.makedirs(at("sub"), exist_ok=True)
        os.symlink(at("calib.h5"), at("link.h5"))
        quant = ["kvquant", "-s", "vecinfer:d4b4", "-C", at("calib.h5"),
                 at("eval.h5")]
        attn = ["kvattn", "-s", "vecinfer:d4b4", "-C", at("calib.h5"),
                "--dump", at("eval.h5")]
        for tool in quant, attn:
            for out in "eval.h5", "calib.h5", "link.h5", "sub/../calib.h5":
                self.refused("would replace the input", *tool, "-o", at(out))
            self.refused("an output is named", *tool, "-o", "")
        self.refused("would replace the input", *quant, "--codes",
                     at("calib.h5"))
        self.refused("two outputs are one file", *quant, "-o", at("new"),
                     "--codes", at("sub/../new"))
        self.assertEqual([self.read(n) for n in names], before)
        self.assertFalse(os.path.exists(at("new")))

    def read(self, name):
        with open(at(name), "rb") as f:
            return f.read()

    def test_damaged_dumps(self):
        with open(at("eval.h5"), "rb") as f:
            good = f.read()
        damaged = bytearray(good)
        for i in range(len(good) // 3, len(good), 997):
            damaged[i] ^= 0x55
        for name, data in [("cut.h5", good[:len(good) // 3]),
                           ("flipped.h5", damaged),
                           ("empty.h5", b""),
                           ("text.h5", b"not a dump\n")]:
            with open(at(name), "wb") as f:
                f.write(data)
            self.refused(name, "kvquant", "-s", "kivi", at(name))
        self.refused("nowhere.h5", "kvquant", "-s", "kivi", "nowhere.h5")
        self.refused("calib.h5", "kvquant", "-s", "kivi", at("calib.h5"))

    def test_nan_in_the_dump(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        shutil.copy(at("eval.h5"), at("nan.h5"))
        with h5py.File(at("nan.h5"), "r+") as f:
            f["layer_001/v"][2, 5, 0, 3] = float("nan")
        self.refused("layer 1", "kvquant", "-s", "kivi", at("nan.h5"))
        self.refused("token 133", "kvquant", "-s", "kivi", at("nan.h5"))

    def test_outputs(self):
        for option in "-o", "--codes":
            self.refused("/nowhere/x", "kvquant", "-s", "kivi", at("eval.h5"),
                         option, "/nowhere/x")

    # the dump comes last
    TABLES = (["kvquant", "-s", "kivi"],
              ["kvattn", "-s", "kivi", "--reps", "1", "--dump"])

    def test_full_device(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        for args in self.TABLES:
            with open("/dev/full", "w") as full:
                done = subprocess.run(
                    [os.path.join(TOOLS, args[0]), "-q", *args[1:],
                     at("eval.h5")],
                    stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("No space left", done.stderr)
            self.refused("No space left", *args, at("eval.h5"), "-o",
                         "/dev/full")

    def test_full_disk(self):
        out = at("full")
        os.mkdir(out)
        for room in 0, 100, 500:
            def limit():
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            outputs = [args + [at("eval.h5"), "-o"] for args in self.TABLES]
            outputs += [["kvquant", "-s", "kivi", at("eval.h5"), "--codes"]]
            for args in outputs:
                self.refused("File too large", *args, os.path.join(out, "x"),
                             preexec_fn=limit)
                self.assertEqual(os.listdir(out), [])

    def interrupt(self, folder, n_files, tool, *args):
        """Ctrl-C once the outputs are open: none appears."""
        with subprocess.Popen([os.path.join(TOOLS, tool), "-q", *args],
                              stderr=subprocess.PIPE, text=True) as p:
            while p.poll() is None and len(os.listdir(folder)) < n_files:
                time.sleep(0.001)
            p.send_signal(signal.SIGINT)
            _, err = p.communicate()
        self.assertEqual(p.returncode, 2, err)
        self.assertIn("interrupted", err)
        self.assertEqual(os.listdir(folder), [])

    def test_interrupted(self):
        out = at("interrupted")
        os.mkdir(out)
        sweep = ["-s", "absmax:b{2,3,4,5,6,7,8}g{1,2,4,8,16}"] * 20
        table = ["-o", os.path.join(out, "t.csv")]
        self.interrupt(out, 2, "kvquant", at("eval.h5"), *sweep, *table,
                       "--codes", os.path.join(out, "c.h5"))
        self.interrupt(out, 1, "kvattn", "--dump", at("eval.h5"), *sweep,
                       *table)
        self.interrupt(out, 1, "kvattn", "--dump", at("eval.h5"), "-s", "gear",
                       "--reps", "100000", *table)


class Attention(Case):
    def attend(self, *args):
        return rows(must("kvattn", "--reps", "2", "--warmup", "0", *args))

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
        """int8 where it adds less error than the codes have, else exact; a row
        for each path that is not the same."""
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
                                 "--path", "exact,auto")[1:]
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
        """The mark is that of the row's own times, and one sentence tells."""
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
        """The windows' queries, their exact outputs, keys twice, values; what
        caches add to them is in tests/test_memory.py."""
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
