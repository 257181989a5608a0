"""kvsim from outside: the contents of a row, settings that do not change it,
and refusals."""
import csv
import io
import json
import os
import shutil
import tempfile
import unittest

from run_tools import must, run, write

PARAMS = os.path.join(os.environ["KV_SOURCE_ROOT"], "data", "serving",
                      "hack.json")
TODAY = os.path.join(os.path.dirname(PARAMS), "today.json")
USUAL = ("-m", "L", "-g", "A10G", "--dataset", "Cocktail")
PARTS = ("queue", "prefill", "quantize", "wait", "communication", "unpack",
         "join", "step", "read", "products", "vector")


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def rows(*args, params=PARAMS, usual=USUAL):
    table = must("kvsim", "-p", params, *usual, *args)
    return list(csv.DictReader(io.StringIO(table)))


def changed(change):
    """A file of parameters that change(tree) has changed."""
    with open(PARAMS, encoding="utf-8") as f:
        tree = json.load(f)
    change(tree)
    return write(at("p.json"), json.dumps(tree).encode())


class Kvsim(unittest.TestCase):
    def refused(self, words, *args, params=PARAMS, usual=USUAL):
        done = run("kvsim", "-q", "-p", params, *usual, *args)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(words, done.stderr)

    def test_parts(self):
        """Parts sum to the whole, in means and for each request."""
        for more in (), ("--set", "transfer.pipelined=1"), \
                ("--set", "memory.limit=0.6"):
            for r in rows("--load", ".8", "-n", 300, "--seeds", 2, *more,
                          "--each", at("each.csv")):
                self.assertAlmostEqual(sum(float(r[p]) for p in PARTS),
                                       float(r["jct"]), 4)
                self.assertLessEqual(float(r["peak_memory"]), 94)
            with open(at("each.csv"), newline="", encoding="utf-8") as f:
                each = list(csv.DictReader(f))
            self.assertEqual(len(each), 4 * 300)
            for r in each:
                self.assertAlmostEqual(sum(float(r[p]) for p in PARTS),
                                       float(r["jct"]), 3)
            # memory.limit: requests wait for room
            self.assertEqual(any(float(r["wait"]) > 0 for r in each),
                             "memory.limit=0.6" in more)

    def test_same(self):
        """No result depends on threads or on other rows."""
        one = rows("--load", ".7", "--load", ".5", "-n", 400, "-t", 1)
        self.assertEqual(one, rows("--load", ".7,.5", "-n", 400,
                                   "-t", 4))
        alone, = rows("--load", ".5", "-n", 400, "-s", "kvquant")
        kvquant = next(r for r in one if r["scheme"] == "kvquant" and
                       float(r["load"]) < .6)
        self.assertEqual(alone["jct"], kvquant["jct"])
        self.assertNotEqual(alone["jct"], rows(
            "--load", ".5", "-n", 400, "-s", "kvquant", "--seed", 1)[0]["jct"])

    def test_bits(self):
        """Bits decide bytes: as many as the baseline, as long a transfer."""
        a, b, h = rows("--load", ".2", "-s", "baseline", "-s", "cachegen=16",
                       "-s", "hack64", "-n", 200)
        self.assertEqual(a["communication"], b["communication"])
        self.assertEqual((h["bits_sent"], h["bits_kept"]), ("2.5", "2.625"))

    def test_costs(self):
        """A single request, by the formulas of docs/serving.md."""
        n_in, n_out, d = 10000, 101, 128
        write(at("t.jsonl"), "".join(
            json.dumps({"timestamp": 1e6 * i, "input_length": n_in,
                        "output_length": n_out}) + "\n"
            for i in range(12)).encode())
        got = rows("--trace", at("t.jsonl"), "--rps", "0.0001", "--seeds", 1,
                   "-s", "baseline", "-s", "cachegen", "-s", "hack64", "-s",
                   "hack64-no-se", usual=("-m", "L", "-g", "A10G"))
        token = 80 * 8 * d * 4  # bytes in fp16
        linear, attention = (x / (4 * 70e12 * .505) for x in (
            2 * 70.6e9 * n_in, 2 * 80 * 64 * d * n_in ** 2))
        read = token / (4 * 2039e9 * .01015)
        steps, held = n_out - 1, (n_out - 1) * (n_in + 1) + 4950
        hack = (18 * d / 64 + 1) / (4 * d)
        for r, bits, kept, vector, prefill in zip(
                got, (16, 2.24, 2.5, 2.5), (16, 2.24, 2.625, 2.5),
                (0, 1, hack, hack + .5),
                [linear + attention] * 2 + [.66 * linear + attention / 2] * 2):
            hacks = r["scheme"].startswith("hack")
            opened = steps * 16 * hacks  # V's open block, in fp16
            for column, want in (
                    ("queue", 0), ("prefill", .05 + prefill), ("wait", 0),
                    ("quantize", 2 * (bits < 16) * n_in * token /
                     (4 * 600e9 * .01015)), ("unpack", 0),
                    ("communication", .108 + n_in * token * bits / 16 /
                     (40e9 / 8 * .0566 * 2)),
                    ("step", steps * (.0084 + 2 * 70.6e9 /
                                      (4 * 2039e9 * .7))),
                    ("read", read * (held * kept + opened * (16 - kept)) / 16),
                    ("products", (held / (1 + hacks) + opened / 2) * 4 * 64 *
                     d * 80 / (4 * 312e12)),
                    ("vector", read * .6 * vector * held)):
                self.assertAlmostEqual(float(r[column]), want,
                                       delta=1e-6 * max(want, 1),
                                       msg=(r["scheme"], column))

    def test_lengths(self):
        """The widest law stays within least and most, about the mean."""
        rows("--load", ".2", "-s", "hack64", "-n", 3000, "--seeds", 1, "--set",
             "requests.concentration=0.1", "--each", at("each.csv"))
        with open(at("each.csv"), newline="", encoding="utf-8") as f:
            each = list(csv.DictReader(f))
        for column, least, most, mean in (("in", 9400, 28800, 16200),
                                          ("out", 44, 246, 159)):
            n = [int(r[column]) for r in each]
            self.assertTrue(least <= min(n) and max(n) <= most, column)
            self.assertLess(abs(sum(n) / len(n) - mean), .05 * mean, column)

    def test_order(self):
        h, c, k, b = (float(r["jct"]) for r in rows(
            "--load", ".7", "-s", "hack64", "-s", "cachegen", "-s", "kvquant",
            "-s", "baseline"))
        self.assertTrue(h < c < k < b)

    def test_append(self):
        """Rows of several schemes, models and seeds in one table, each once."""
        to = at("all.csv")
        want = []
        for args in (("-s", "baseline", "--load", ".3,.6"),
                     ("-s", "hack64", "--load", ".6"),
                     ("-s", "hack64", "-s", "hack64=3", "--load", ".6"),
                     ("-s", "baseline", "--load", ".3", "--seed", 1),
                     ("-s", "baseline", "--load", ".3", "--set",
                      "transfer.pipelined=1"),
                     ("-s", "baseline", "--load", ".3,.6")):
            args += "-n", 100, "--seeds", 2
            must("kvsim", "-p", PARAMS, *USUAL, *args, "--append", "-o", to)
            want += [r for r in rows(*args) if r not in want]
        with open(to, newline="", encoding="utf-8") as f:
            self.assertEqual(list(csv.DictReader(f)), want)
        self.assertEqual(len(want), 6)
        self.assertFalse(os.path.exists(to + ".partial"))
        self.refused("--append wants -o FILE", "--append")

    def test_load(self):
        """--rps at the load that --load names is the same run."""
        a, = rows("--load", ".6", "-s", "baseline")
        b, = rows("--rps", a["rps"], "-s", "baseline")
        self.assertAlmostEqual(float(b["load"]), .6, 5)
        self.assertAlmostEqual(float(a["jct"]) / float(b["jct"]), 1, 4)
        done = run("kvsim", "-q", "-p", PARAMS, *USUAL, "--load", "1.2")
        self.assertEqual(done.returncode, 0)
        self.assertIn("the queue grows without bound", done.stderr)
        # the least rate: each request alone, as at twice of it
        one, two = (rows("--rps", x, "-s", "baseline", "-n", 100)[0]["jct"]
                    for x in ("1e-6", "2e-6"))
        self.assertAlmostEqual(float(one), float(two), 5)

    def test_used(self):
        rows("--load", ".5", "-n", 50, "--set", "decode.kv_share=0.5", "--used",
             at("used.json"))
        again, = rows("--load", ".5", "-n", 50, "-s", "baseline",
                      params=at("used.json"))
        said, = rows("--load", ".5", "-n", 50, "-s", "baseline", "--set",
                     "decode.kv_share=0.5")
        self.assertEqual(again["jct"], said["jct"])
        self.assertEqual(again["params_hash"], said["params_hash"])
        with open(at("used.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["decode"]["kv_share"]["kind"],
                             "given")

    def test_set(self):
        """Column set has all changes."""
        sets = [f"decode.kv_share=0.{i}5" for i in range(1, 40)]
        r, = rows("--load", ".5", "-n", 20, "-s", "baseline",
                  *(x for s in sets for x in ("--set", s)))
        self.assertEqual(r["set"], " ".join(sets))

    def test_traces(self):
        """The same requests in both formats of traces give the same run."""
        lengths = [(1000 + 7 * i, 10 + i % 5) for i in range(20)]
        write(at("m.jsonl"), "".join(
            json.dumps({"timestamp": 1500 * i, "input_length": a,
                        "output_length": b, "hash_ids": []}) + "\n"
            for i, (a, b) in enumerate(lengths)).encode())
        write(at("a.csv"), ("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
            f"2023-11-16 23:59:{45 + 1.5 * i:010.7f},{a},{b}\n" if i < 10 else
            f"2023-11-17 00:00:{1.5 * i - 15:010.7f},{a},{b}\n"
            for i, (a, b) in enumerate(lengths))).encode())
        usual = ("-m", "L", "-g", "A10G", "--load", ".5")
        m = rows("--trace", at("m.jsonl"), usual=usual)
        a = rows("--trace", at("a.csv"), usual=usual)
        self.assertEqual([r["jct"] for r in m], [r["jct"] for r in a])
        self.assertEqual(m[0]["requests"], "20")

    def test_bad_traces(self):
        usual = ("-m", "L", "-g", "A10G")
        head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        row = "2023-11-16 18:15:%02d.5,100,10\n"
        for words, text in (
                ("line 3: arrives 4 s before", head + row % 9 + row % 5),
                ("line 2: 0 tokens in", head + "2023-11-16 18:15:01.5,0,10\n"),
                ("131100 tokens, the model takes 131072",
                 head + "2023-11-16 18:15:01.5,131000,100\n"),
                ("line 2: expected YYYY", head + "yesterday,1,2\n"),
                ("line 2: there is no such date or time",
                 head + "2024-13-45 77:99:10,1,2\n"),
                ("no such date", head + "2023-02-29 18:15:01.5,1,2\n"),
                ("no such date", head + "2023-11-16 24:15:01.5,1,2\n"),
                ("no such date", head + "2023-11-16 18:15:nan,1,2\n"),
                ("no such date", head + "2023-11-16 18:15:inf,1,2\n"),
                ("1.7 tokens in, 2 out: expected whole",
                 head + "2023-11-16 18:15:01.5,1.7,2\n"),
                ("nan tokens in", head + "2023-11-16 18:15:01.5,nan,2\n"),
                ("is not text: a zero byte at %d" % len(head + row % 9),
                 head + row % 9 + "\0" + row % 10),
                ("10 tokens in, 2.5 out",
                 '{"timestamp": 1, "input_length": 10, "output_length": 2.5}'),
                ("line 2: expected three fields",
                 head + "2023-11-16 18:15:01.5,1,2,3\n"),
                ("expected JSON lines", "a,b\n"),
                ("no requests", head),
                ("expected a number \"output_length\"",
                 '{"timestamp": 1, "input_length": 1}\n'),
                ("1 requests, expected 10", head + row % 9),
                ("all requests arrive at one time", head + row % 9 * 12)):
            with self.subTest(words):
                self.refused(words, "--trace",
                             write(at("bad"), text.encode()), usual=usual)

    # ---- measured rows ------------------------------------------------------

    # Attention takes 1 + .5 n + .001 t us for f16 and 2 + .0002 t us for kivi.
    # Encoding and decoding 128 tokens a sequence take 4 + t / 32 and 3 + t / 64
    # us, and the rest of a step 5000 us.
    KIVI = "kivi:b2g128r0s0,axis=paper"

    def measured(self, **more):
        """kvattn's rows, and the options that name them."""
        head = ("tool,spec,model,device,ctx,windows,protocol,bits,lat_us_p50,"
                "quantize_us_p50,decode_us_p50,path\n")
        shape = more.get("shape", "random-hq32-hkv8-d128")
        device = more.get("device", "NVIDIA H200")
        lines = []
        for n in 1, 32:
            for ctx in 1000, 100000:
                t, some = n * ctx, 128 * n
                lines.append(f"kvattn,f16:r0s0,{shape},{device},{ctx},{n},"
                             f"decode:1,16,{1 + .5 * n + .001 * t},,,exact")
                for path, slow in ("generic", 9), ("int8", 1):
                    lines.append(
                        f'kvattn,"{self.KIVI}",{shape},{device},{ctx},{n},'
                        f"decode:1,2.25,{slow * (2 + .0002 * t)},"
                        f"{more.get('encode', 4 + some / 32)},"
                        f"{3 + some / 64},{path}")
        write(at("attn.csv"), (head + "\n".join(lines) + "\n").encode())
        write(at("step.csv"), (
            "tool,model,device,protocol,windows,lat_us_p50,attention_us\n"
            "kvattn,llama-3.1-8b,NVIDIA H200,decode-step,1,5100,100\n"
            "kvattn,llama-3.1-8b,NVIDIA H200,decode-step,1,5300,300\n"
            "kvattn,other,NVIDIA H200,decode-step,1,9300,300\n").encode())
        return ("-p", TODAY, "-m", "llama-3.1-8b", "-g", "H200", "--attn",
                at("attn.csv"), "--step", at("step.csv"))

    def economics(self, *args):
        done = run("kvsim", "economics", "-q", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return list(csv.DictReader(io.StringIO(done.stdout)))

    def test_economics(self):
        """Every figure of a row, by hand from the rows' laws."""
        token, n, link = 32 * 8 * 128 * 4, 10000, 100e9 / 8
        f16, r = self.economics(*self.measured(), "-s", "f16:r0", "-s",
                                "kivi:b2g128r0", "--ctx", n, "--link", 100)
        encode, decode = 32 * (4e-6 + n / 32e6), 32 * (3e-6 + n / 64e6)
        saved, gain = token * (16 - 2.25) / 16, 32e-6 / 32
        a16, b16, a, b = 5032 + 16, 32e-3, 5064, 32 * .0002
        for column, want in (
                ("bits", 2.25), ("encode_gb_s", token * n / encode / 1e9),
                ("decode_gb_s", token * n / decode / 1e9),
                ("send_ms", 1e3 * (encode + (token - saved) * n / link)),
                ("decoded_send_ms",
                 1e3 * (encode + decode + (token - saved) * n / link)),
                ("pays_below_gbits", 8e-9 * saved * n / encode),
                ("pays_below_piped_gbits", 8e-9 * token * n / encode),
                ("decoded_below_gbits", 8e-9 * saved * n / (encode + decode)),
                ("pays_from_ctx", -(-32 * 4e-6 // (saved / link - gain))),
                ("capacity_over_f16", 16 / 2.25),
                ("step_a_us", a), ("step_b_ns", 1e3 * b),
                ("step_us", a + b * n),
                ("step_over_f16", (a + b * n) / (a16 + b16 * n)),
                ("step_even_ctx", -(-(a - a16) // (b16 - b)))):
            self.assertAlmostEqual(float(r[column]) / want, 1, 6, column)
        self.assertLess(float(r["fit_off"]), 1e-9)
        self.assertEqual(r["measured"], "attention rest encode decode")
        self.assertEqual((f16["step_over_f16"], f16["send_over_f16"],
                          f16["pays_below_gbits"]), ("1", "1", ""))
        # 32 sequences: the term of a sequence counts
        f16, = self.economics(*self.measured(), "-s", "f16:r0", "--ctx", n,
                              "--link", 100, "--batch", 32)
        self.assertAlmostEqual(float(f16["step_a_us"]), 5032 + 512, 3)
        # on a fast link no context pays, since encoding has a fixed time
        r, = self.economics(*self.measured(), "-s", "kivi:b2g128r0", "--ctx", n,
                            "--link", 1e6)
        self.assertEqual(r["pays_from_ctx"], "")

    def test_economics_missing(self):
        good = self.measured()
        kivi = "-s", "kivi:b2g128r0"
        for words, *args in (
                ("no row of a whole step", *good[:-2], *kivi),
                ("unknown scheme", *good, "-s", "kiwi:b2"),
                ("no row has its bits", *good, "-s", "kivi:b4g128r0"),
                ("--missing law goes without", *self.measured(
                    shape="random-hq8-hkv8-d128"), *kivi),
                ("no row of encoding", *self.measured(encode=""), *kivi),
                ("expected refuse or law", *good, *kivi, "--missing", "guess"),
                ("takes 131072 tokens", *good, *kivi, "--ctx", 200000),
                ("--link 0: expected", *good, *kivi, "--link", 0),
                ("--attn is needed", *good[:6], *kivi),
                ("specs are needed", *good),
                ("step.csv has no column spec: expected rows of kvattn",
                 *good[:7], good[9], *kivi)):
            with self.subTest(words):
                if words == "no row of encoding":
                    self.measured(encode="")
                elif "without" in words:
                    self.measured(shape="random-hq8-hkv8-d128")
                else:
                    self.measured()
                done = run("kvsim", "economics", "-q", *args)
                self.assertEqual((done.returncode, done.stdout), (2, ""),
                                 done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
        law, = self.economics(*self.measured(encode="", device="NVIDIA H100"),
                              *kivi, "--missing", "law", "--ctx", 1000,
                              "--link", 10)
        self.assertEqual((law["measured"], law["pays_below_gbits"],
                          law["encode_gb_s"]), ("rest", "", ""))
        token = 32 * 8 * 128 * 4  # the parameters' law: bytes over bandwidth
        self.assertAlmostEqual(float(law["step_b_ns"]), 1e9 * (
            token * 2.25 / 16 / (4800e9 * .89) + 4 * 32 * 128 * 32 /
            (989e12 * .5)), 5)

    def test_measured_runs(self):
        """A single request, by measured times, also decoded on arrival."""
        write(at("t.jsonl"), "".join(
            json.dumps({"timestamp": 1e6 * i, "input_length": 10000,
                        "output_length": 101}) + "\n"
            for i in range(12)).encode())
        held = 100 * 10001 + 4950
        for more, kept, b, fixed, unpack in (
                ((), 2.25, .0002, 2, 0),
                (("--unpack",), 2.25, .001, 1.5, 32 * (3 + 1e4 / 64))):
            r, = rows("--trace", at("t.jsonl"), "--rps", "0.0001", "--seeds", 1,
                      "-s", "kivi:b2g128r0", "--base", "f16:r0",
                      "--decode-gpu", "H200", *self.measured()[6:], *more,
                      params=TODAY, usual=("-m", "llama-3.1-8b", "-g", "H200"))
            self.assertEqual(r["measured"], "attention rest encode decode")
            for column, us in (("quantize", 32 * (4 + 1e4 / 32)),
                               ("unpack", unpack),
                               ("step", 100 * (5000 + 32 * (
                                   fixed if not more else 1))),
                               ("read", 32 * (b * held +
                                              (50 if more else 0)))):
                self.assertAlmostEqual(float(r[column]), us * 1e-6,
                                       delta=1e-6 * us * 1e-6 + 1e-12,
                                       msg=column)
            self.assertAlmostEqual(float(r["bits_sent"]), kept, 6)
            held_bits, gib = 16 if more else kept, 131.3 * 2 ** 30
            self.assertAlmostEqual(float(r["peak_memory"]), 100 * (
                .05 + (2 * 8.03e9 + 10101 * 32 * 8 * 128 * held_bits / 4) /
                gib), 4)

    def test_bad_parameters(self):
        def kind(t):
            t["decode"]["step_s"]["kind"] = "guessed"

        for words, change in (
                ("prefill.speed: there is no such parameter",
                 lambda t: t["prefill"].update(speed={})),
                ("network: there is no such section",
                 lambda t: t.update(network={})),
                ("decode.step_s is missing",
                 lambda t: t["decode"].pop("step_s")),
                ("schemes is missing", lambda t: t.pop("schemes")),
                ("decode.step_s: expected {\"value\"", kind),
                ("memory.limit is 3: expected",
                 lambda t: t["memory"]["limit"].update(value=3)),
                ("gpus.T4.nic_share is 0: expected",
                 lambda t: t["gpus"]["T4"]["nic_share"].update(value=0)),
                ("a mean is not between",
                 lambda t: t["datasets"]["Cocktail"]["input_mean"].update(
                     value=5)),
                ("parallel.A10G.L is missing",
                 lambda t: t["parallel"]["A10G"].pop("L"))):
            with self.subTest(words):
                self.refused(words, params=changed(change))

    def test_refused(self):
        for words, *args in (
                ("the file has no such parameter", "--set", "decode.speed=1"),
                ("expected NAME=NUMBER", "--set", "decode.kv_share"),
                ("expected a number", "--set", "decode.kv_share=fast"),
                ("decode.kv_share is 2: expected", "--set",
                 "decode.kv_share=2"),
                ("requests.concentration is 0.001: expected 0.1", "--set",
                 "requests.concentration=0.001"),
                ("parallel.A10G.L.pp is 1.5: expected a whole number", "--set",
                 "parallel.A10G.L.pp=1.5"),
                ("models.L.layers is 80.5: expected a whole", "--set",
                 "models.L.layers=80.5"),
                ("schemes.hack64.se is 0.5: expected a whole", "--set",
                 "schemes.hack64.se=0.5"),
                ("transfer.pipelined is 0.5: expected a whole", "--set",
                 "transfer.pipelined=.5"),
                ("warm_up + requests.cool_down is 1.2: expected less than 1",
                 "--set", "requests.warm_up=0.6", "--set",
                 "requests.cool_down=0.6"),
                (PARAMS + ": schemes has no kivi; it has baseline, cachegen",
                 "-s", "kivi"),
                ("--base: " + PARAMS + ": schemes has no x", "--base", "x"),
                ("expected bits of a value", "-s", "cachegen=0"),
                ("--scheme hack64 is given twice", "-s", "hack64", "-s",
                 "hack64"),
                ("--scheme cachegen=2.240 is given twice", "-s", "cachegen",
                 "-s", "cachegen=2.240"),
                ("--load 0: expected", "--load", "0"),
                ("--load 1e4: expected more than 0 and at most 1000",
                 "--load", "1e4"),
                ("--dataset Cocktail goes without --trace", "--trace", PARAMS),
                ("kvgen, kvppl, kvquant have", "--device", "cuda"),
                ("--rps 1e-310: expected 1e-06 or more", "--rps", "1e-310"),
                ("--load 1e-300 is", "--load", "1e-300"),
                ("--rps goes without --load", "--load", "1", "--rps", "1"),
                ("the weights need", "--set", "parallel.A10G.L.pp=1"),
                ("no room for caches", "--set", "memory.limit=0.3"),
                ("needs", "--set", "memory.limit=0.57", "--load", ".5"),
                ("a replica takes 64", "--set", "parallel.A10G.L.tp=64"),
                ("--memory:", "--memory", "1K"),
                ("--seeds 0", "--seeds", "0"),
                ("--requests 3", "-n", "3")):
            with self.subTest(words):
                self.refused(words, *args)
        self.refused("models has no X; it has M, P, Y, L, F",
                     usual=("-m", "X", "-g", "A10G", "--dataset", "IMDb"))
        self.refused("either --dataset or --trace", usual=("-m", "L"))
        self.assertFalse(os.path.exists(at("no.csv")))
        self.refused("has no such parameter", "--set", "a.b=1", "-o",
                     at("no.csv"))
        self.assertFalse(os.path.exists(at("no.csv")))
        # --used fails before the first run, and is whole or not there
        self.refused("No such file", "--used", at("no/u.json"), "--memory",
                     "1K")
        self.refused("--memory:", "--used", at("u.json"), "--memory", "1K")
        self.assertEqual([x for x in os.listdir(folder) if "u.json" in x], [])


if __name__ == "__main__":
    unittest.main()
