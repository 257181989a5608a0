"""kvquant from the outside: tables, calibrations, bad input."""
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
from run_tools import TOOLS, Case, must, read, rows, with_defaults

CTX, WINDOWS = 64, 12
SIDES = ["K", "V", "KV"]


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
        for tool in ("kvquant", "kvppl", "kvgen", "kvattn", "kvcalib",
                     "kvsim"):
            self.refused("write -s K-q4_0/V-q8_0", tool, "-ctk", "q4_0",
                         "-ctv", "q8_0", at("eval.h5"))
        self.refused("write -s q4_0", "kvquant", "--cache-type-k", "q4_0",
                     "--cache-type-v", "q4_0", at("eval.h5"))
        self.refused("write -s K-f16/V-q4_0", "kvppl", "-ctv", "q4_0")
        self.refused("'q3_k' is no cache type of llama.cpp that is here: f32,",
                     "kvquant", "-ctk", "q3_k", at("eval.h5"))


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

    def test_append(self):
        """Rows of several dumps in one table, each once."""
        for text, *specs in (("eval", "absmax:b4"), ("calib-text", "absmax:b4"),
                             ("eval", "absmax:b4", "absmax"), ("eval", "absmax:b4")):
            must("kvquant", *(w for s in specs for w in ("-s", s)),
                 at(text + ".h5"), "--append", "-o", at("all.csv"))
        whole = [must("kvquant", "-s", "absmax:b4", "-s", "absmax", at("eval.h5")),
                 must("kvquant", "-s", "absmax:b4", at("calib-text.h5"))]
        key = "text", "spec", "layer", "side", "mse", "attn_rel_err", "bits"
        want, found = ([tuple(r[k] for k in key) for r in table] for table in (
            rows(whole[0]) + rows(whole[1]),
            rows(read(at("all.csv")).decode())))
        self.assertEqual(sorted(found), sorted(want))
        self.assertFalse(os.path.exists(at("all.csv.partial")))
        for words, *more in (
                ("--append wants -o FILE",), ("--columns does not go with",
                 "--columns", "spec", "-o", at("all.csv")),
                ("go without --codes", "--check", "-o", at("all.csv"))):
            self.refused(words, "kvquant", "-s", "absmax:b4", at("eval.h5"),
                         "--append", *more)

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
        """Also if one codebook serves all layers."""
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
        """Transform coding has this column; other schemes do not."""
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
        self.refused("(kvdump --fisher, kvcalib, then -C FILE)", "kvquant",
                     "-s", "klt:b2", at("eval.h5"))
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
        """With one token per block codes are the same as without a policy."""
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


if __name__ == "__main__":
    unittest.main()
