"""kvppl from the outside: protocols, divergence, llama.cpp's base file,
going on after a stop, bad input."""
import csv
import glob
import io
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import tiny_model
from run_tools import TOOLS, must, read, run, with_defaults, write

CTX, WINDOWS = 64, 6


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)
    tiny_model.make(at("other"), seed=2)
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w") as f:
            f.write(tiny_model.text(800, seed))
    for name, model, text in (("calib.h5", "m", "calib.txt"),
                              ("leaky.h5", "m", "eval.txt"),
                              ("other.h5", "other", "calib.txt")):
        must("kvdump", "-m", at(model), "-f", at(text), "-c", str(CTX),
             "-o", at("dump.h5"))
        must("kvcalib", "-s", "vecinfer:d4b4", at("dump.h5"), "-o", at(name))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def args(*more):
    return with_defaults(more, m=at("m"), f=at("eval.txt"), c=CTX, n=WINDOWS)


def ppl(*more):
    return list(csv.DictReader(io.StringIO(must("kvppl", *args(*more)))))


def lines(path):
    if not os.path.exists(path):
        return 0
    with open(path) as f:
        return f.read().count("\n")


def timeless(row):
    return {k: v for k, v in row.items()
            if k not in ("seconds", "attn_seconds", "threads")}


def untimed(path):
    """A table as text, without its rows' seconds."""
    text = read(path).decode()
    for row in csv.DictReader(io.StringIO(text)):
        text = text.replace(f",{row['seconds']},", ",,", 1)
    return text


class Case(unittest.TestCase):
    maxDiff = None

    def refused(self, words, *argv):
        done = run("kvppl", "-q", *argv)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(done.stdout)
        self.assertTrue(done.stderr.startswith("kvppl: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)


class Rows(Case):
    def test_words_of_every_scheme(self):
        plain, kept = ppl("--kl", "-C", at("calib.h5"), "-s", "nf4",
                          "-s", "nf4,massive")[1:]
        self.assertEqual(plain["calib_hash"], "")
        self.assertNotEqual(kept["calib_hash"], "")
        self.assertTrue(kept["spec"].endswith(",massive=yes"))
        self.assertGreaterEqual(float(kept["bits"]), float(plain["bits"]))
        for why, *words in (
                ("massive=yes needs a calibration", "-s", "nf4,massive"),
                ("kivi codes K in blocks of 32 tokens", "-C", at("calib.h5"),
                 "-s", "kivi:b2g32,massive"),
                ("this model's keys have no bias", "-s", "nf4,no-k_bias")):
            self.refused(why, *args(*words))
        done = run("kvcalib", "-s", "kivi:b2g32,massive", at("dump.h5"), "-o",
                   at("massive.h5"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("kivi codes K in blocks of 32 tokens", done.stderr)
        self.assertFalse(os.path.exists(at("massive.h5")))

    def test_base_and_better_bits(self):
        rows = ppl("--kl", "-s", "absmax:b{2,8}")
        self.assertEqual([r["spec"].split(",")[0] for r in rows],
                         ["f32:r0s0", "absmax:b2g16r0s0", "absmax:b8g16r0s0"])
        base, two, eight = rows
        self.assertEqual(base["tokens"], str(WINDOWS * (CTX - 1)))
        self.assertEqual((base["kl_mean"], base["dnll"]), ("", ""))
        self.assertGreater(float(two["kl_mean"]),
                           100 * float(eight["kl_mean"]))
        self.assertGreater(float(eight["same_top1"]),
                           float(two["same_top1"]))
        for r in rows[1:]:
            self.assertAlmostEqual(float(r["dnll"]),
                                   float(r["nll"]) - float(base["nll"]), 6)

    def test_one_window_has_no_error(self):
        for n, error in ("1", ""), ("2", r" \+/- \d+\.\d{4}"):
            done = run("kvppl", "-m", at("m"), "-f", at("eval.txt"), "-c",
                       str(CTX), "-n", n)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr,
                             rf"f32:r0s0: PPL = \d+\.\d{{4}}{error}\n")
            self.assertNotIn("nan", done.stderr)

    def test_one_token_blocks_all_is_stream(self):
        specs = ["-s", "absmax:b3", "-s", "f16", "-s", "vecinfer:d4b4r0",
                 "-C", at("calib.h5")]
        for a, s in zip(ppl(*specs), ppl("-p", "stream", *specs)):
            self.assertLess(abs(float(a["nll"]) / float(s["nll"]) - 1), 1e-5)
            self.assertEqual(a["bits"], s["bits"])

    def test_threads_memory_and_shards(self):
        for protocol in ("all", "stream", "prefill:20", "llama.cpp"):
            specs = ["--kl", "-p", protocol, "-s", "kivi:b{2,4}g16r16",
                     "-s", "hack:b2p16"]
            whole = [timeless(r) for r in ppl("-t", "1", *specs)]
            two = [timeless(r) for r in ppl("-t", "2", "--memory", "1M",
                                            *specs)]
            self.assertEqual(whole, two)
            parts = [timeless(r) for i in (1, 2)
                     for r in ppl("--shard", f"{i}/2", *specs)]
            self.assertEqual(sorted(map(str, whole)), sorted(map(str, parts)))

    def test_gemm(self):
        argv = ["-m", at("m"), "-f", at("eval.txt"), "-c", str(CTX)]
        self.refused("--gemm half: expected f32 or bf16", *argv, "--gemm",
                     "half")
        exact = ppl("--gemm", "f32")[0]
        self.assertEqual(exact["gemm"], "f32")
        done = run("kvppl", *argv, "--gemm", "bf16")
        if "has no products in bf16" in done.stderr:
            self.skipTest("no products in bf16")
        rounded = ppl("--gemm", "bf16")[0]
        self.assertEqual(rounded["gemm"], "bf16")
        self.assertEqual(rounded["weights"], exact["weights"])
        self.assertNotEqual(rounded["nll"], exact["nll"])
        self.assertAlmostEqual(float(rounded["nll"]), float(exact["nll"]), 2)

    def test_residual_helps_stream(self):
        kept, none = (float(ppl("-p", "stream", "--kl", "-s", spec)[1]
                            ["kl_mean"])
                      for spec in ("kivi:b2g16r48", "kivi:b2g16r0"))
        self.assertLess(kept, none)

    def test_formats(self):
        for form, start in (("csv", "tool,"), ("jsonl", "{"), ("md", "| tool")):
            out = must("kvppl", *args("--format", form))
            self.assertTrue(out.startswith(start))


class Patterns(Case):
    """Policies by which a query sees some of the prompt."""

    @classmethod
    def setUpClass(cls):
        for model in "m", "other":
            must("kvdump", "-m", at(model), "-f", at("calib.txt"), "-c", "150",
                 "--what", "q,k,v", "-o", at("queries.h5"))
            must("kvcalib", "-s", "minference:b{0.8,1}+vecinfer:d4b4",
                 at("queries.h5"), "-o", at(f"patterns-{model}.h5"))

    def test_rows(self):
        f32, alone, whole, some, far = ppl(
            "-c", "150", "-n", "2", "-C", at("patterns-m.h5"),
            "-s", "vecinfer:d4b4", "-s", "minference:b{1,0.8}+vecinfer:d4b4",
            "-s", "a-shape:s0w1+f32", "-p", "prefill:140")
        self.assertEqual([r["attn_pairs"] for r in (f32, alone, whole)],
                         ["1", "1", "1"])
        self.assertLess(float(some["attn_pairs"]), 1)
        self.assertGreater(float(some["attn_seconds"]), 0)
        self.assertEqual(far["attn_pairs"], "1") # a share: all of them
        for one, two in (alone, whole), (f32, far):
            self.assertAlmostEqual(float(one["nll"]), float(two["nll"]), 5)
            self.assertEqual(one["bits"], two["bits"])
        self.assertEqual(whole["calib_hash"], some["calib_hash"])
        self.assertEqual(far["calib_hash"], "")
        self.assertEqual(whole["spec"], "minference:b1+" + alone["spec"])

    def test_blank_where_there_is_no_prompt(self):
        for row in ppl("-n", "1", "-p", "stream", "-s", "kivi:b2g8"):
            self.assertEqual(row["attn_pairs"] + row["attn_seconds"], "")

    def test_refused(self):
        spec = "-s", "minference:b0.8+f32"
        for words, more in (
                ("minference:b0.8 needs patterns", spec),
                ("was made for another model",
                 (*spec, "-C", at("patterns-other.h5"))),
                ("has no patterns of minference:b0.5",
                 ("-s", "minference:b0.5+f32", "-C", at("patterns-m.h5"))),
                ("b=0 is out of range", ("-s", "minference:b0+f32")),
                ("for prompts", ("-s", "a-shape+f32", "-p", "stream"))):
            with self.subTest(words):
                self.refused(words, *args(*more))
        must("kvdump", "-m", at("m"), "-f", at("calib.txt"), "-c", str(CTX),
             "--what", "k,v", "-o", at("no-queries.h5"))
        for tool, more in (("kvcalib", ("-o", at("none.h5"))), ("kvquant", ())):
            done = run(tool, "-q", *spec, at("no-queries.h5"), *more)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--what q" if more else "is dense here", done.stderr)


class LlamaCpp(Case):
    """The file of base log-probabilities, written and read back."""

    def test_round_trip(self):
        spec = ["-p", "llama.cpp", "-s", "absmax:b3"]
        own = ppl("--kl", "--kl-divergence-base", at("base.kld"), *spec)
        read = ppl("--kl-divergence", "--kl-divergence-base", at("base.kld"),
                   *spec)
        scored = WINDOWS * (CTX - 1 - CTX // 2)
        self.assertEqual(own[1]["tokens"], str(scored))
        self.assertEqual(own[1]["ppl"], read[1]["ppl"])
        self.assertLess(float(read[0]["kl_mean"]), 1e-6)
        self.assertAlmostEqual(float(read[1]["kl_mean"]) /
                               float(own[1]["kl_mean"]), 1, 3)
        with open(at("base.kld"), "rb") as f:
            self.assertEqual(f.read(8), b"_logits_")

    def test_no_distribution(self):
        base = ["-p", "llama.cpp", "--kl-divergence-base", at("bad.kld")]
        ppl(*base)
        with open(at("bad.kld"), "r+b") as f:
            n_vocab = struct.unpack("<8s3i", f.read(20))[2]
            row = 2 * ((n_vocab + 1) // 2 * 2 + 4)
            scored = CTX - 1 - CTX // 2
            f.seek(20 + 4 * WINDOWS * CTX + (2 * scored + 5) * row)
            f.write(struct.pack("<2f", float("nan"), float("nan")))
        for threads in "1", "2":
            self.refused("bad.kld: chunk 2, row 5: scale is nan",
                         *args(*base, "--kl-divergence", "-t", threads))

    def test_refused(self):
        self.refused("--protocol llama.cpp",
                     *args("--kl-divergence-base", at("x.kld")))
        self.refused("--kl-divergence wants",
                     *args("-p", "llama.cpp", "--kl-divergence"))
        self.refused("does not begin with _logits_",
                     *args("-p", "llama.cpp", "--kl-divergence",
                           "--kl-divergence-base", at("eval.txt")))
        with open(at("lfs.kld"), "w") as f:
            f.write("version https://git-lfs.github.com/spec/v1\n")
        self.refused("lfs.kld is a Git LFS pointer",
                     *args("-p", "llama.cpp", "--kl-divergence",
                           "--kl-divergence-base", at("lfs.kld")))


class LongWindows(Case):
    """Of a spec with a policy, which go piece by piece."""

    def setUp(self):
        write(at("long.txt"), tiny_model.text(9000, 1).encode())

    def args(self, ctx, *more):
        return with_defaults(more, m=at("m"), f=at("long.txt"), c=ctx, n=1,
                             p="stream:64")

    def test_all_kept(self):
        specs = [x for policy in ("streamingllm:s0w9999", "h2o:b1", "tova:b1",
                                  "knorm:b1")
                 for x in ("-s", policy + "+kivi:b4g16r32")]
        rows = [json.loads(line) for line in must(
            "kvppl", *self.args(2500, "--kl", "-s", "kivi:b4g16r32", *specs,
                                "--format", "jsonl")).splitlines()][1:]
        for row in rows[1:]:
            self.assertEqual(row["kept"], 1)
            self.assertEqual(row["bits"], rows[0]["bits"])
            for column in "nll", "kl_mean":
                self.assertAlmostEqual(row[column], rows[0][column], 6)

    def test_prompt(self):
        """One longer than a piece."""
        policies = ["streamingllm:s0w9999", "h2o:b9999", "tova:b9999",
                    "knorm:b1", "snapkv:b1", "pyramidkv:b1"]
        specs = [x for policy in policies
                 for x in ("-s", policy + "+kivi:b4g16r16s2")]
        rows = [json.loads(line) for line in must(
            "kvppl", *self.args(2200, "-p", "prefill:2100", "-s",
                                "kivi:b4g16r16s2", *specs, "--format",
                                "jsonl")).splitlines()][1:]
        for row in rows[1:]:
            self.assertEqual(row["kept"], 1)
            self.assertEqual(row["bits"], rows[0]["bits"])
            self.assertEqual(row["tokens"], 2200 - 1 - 2100)
            self.assertAlmostEqual(row["nll"], rows[0]["nll"], 6)

    def test_without_base(self):
        argv = self.args(2500, "-s", "streamingllm:s4w60+f16", "--format",
                         "jsonl")
        alone = json.loads(must("kvppl", *argv, "--no-base"))
        base, row = map(json.loads, must("kvppl", *argv).splitlines())
        for column in "spec", "nll", "bits", "kept":
            self.assertEqual(alone[column], row[column])
        self.assertIsNone(alone["dnll"])
        self.refused("--no-base goes without --kl", *argv, "--no-base", "--kl")
        self.refused("--no-base without -s",
                     *self.args(2500, "--no-base"))

    def test_memory(self):
        def peak(ctx):
            argv = self.args(ctx, "--no-base", "-q", "-s",
                             "streamingllm:s4w252+kivi:b4g16r32")
            with subprocess.Popen([os.path.join(TOOLS, "kvppl"), *argv],
                                  stdout=subprocess.DEVNULL) as child:
                _, status, used = os.wait4(child.pid, 0)
                child.returncode = status
            self.assertEqual(status, 0)
            return used.ru_maxrss * 1024

        # ids, losses and the text itself, which is bytes here
        self.assertLess(peak(36000), peak(6000) + 30000 * 100)


class Resume(Case):
    SPEC = ["-t", "1", "--kl", "-p", "stream", "-s",
            "kivi:b{1,2,3,4,5,6}g16"]

    def test_killed_at_any_moment(self):
        """The last run ends as one that nothing stopped, with the rows that
        the others measured."""
        must("kvppl", *args(*self.SPEC, "-o", at("whole.csv")))
        whole = untimed(at("whole.csv"))
        n = 0
        for place, rows in enumerate(([1], [0, 0, 2], [3, 4], [1, 2, 3, 5])):
            out = at(f"r{place}.csv")
            seen = set()
            for n_rows in rows:
                n += self.killed(out, n_rows, *args(*self.SPEC))
                if os.path.exists(out + ".partial"):
                    with open(out + ".partial") as f:
                        seen |= set(f)
            must("kvppl", *args(*self.SPEC, "--resume", "-o", out))
            self.assertEqual(untimed(out), whole)
            with open(out) as f:
                self.assertLessEqual(seen, set(f))
            self.assertEqual(glob.glob(out + "*"), [out])
        self.assertGreater(n, 2)

    def killed(self, out, n, *argv):
        """A run that is killed when it has kept n rows; whether it was."""
        with subprocess.Popen([os.path.join(TOOLS, "kvppl"), "-q", *argv,
                               "--resume", "-o", out]) as p:
            while p.poll() is None and lines(out + ".partial") < (n and n + 1):
                time.sleep(0.001)
            p.kill()
        return p.returncode == -signal.SIGKILL

    def test_killed_while_it_writes(self):
        """The temporary files of the table and of its journal."""
        out = at("t.csv")
        self.stopped(out, 2, *args(*self.SPEC))
        left = [out + ".kvtools-aaaaaa", out + ".partial.kvtools-bbbbbb"]
        for path in left:
            write(path, b"tool,")
        must("kvppl", *args(*self.SPEC, "--resume", "-o", out))
        self.assertEqual(glob.glob(out + "*"), [out])

    def test_a_finished_file_is_not_measured_again(self):
        out = at("f.csv")
        must("kvppl", *args(*self.SPEC, "-o", out))
        whole = read(out)
        for more in ["--resume"], ["--append"], ["--resume", "--append"]:
            done = run("kvppl", *args(*self.SPEC, *more, "-o", out))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("PPL", done.stderr)
            self.assertEqual(read(out), whole)
        done = run("kvppl", *args(*self.SPEC[:-1], "kivi:b{8,2}g16",
                                  "--resume", "-o", out))
        self.assertEqual(done.stderr.count("PPL"), 2)  # the base line, b8
        with open(out) as f:
            rows = list(f)
        self.assertEqual([r in whole.decode() for r in rows],
                         [True, True, False, True])

    def test_interrupted(self):
        out = at("stop.csv")
        with subprocess.Popen([os.path.join(TOOLS, "kvppl"), "-q", *args(
                "-s", "hack:b{1,2,3,4,5,6,7,8}p16", "-p", "stream",
                "--resume", "-o", out)], stderr=subprocess.PIPE,
                text=True) as p:
            while p.poll() is None and not lines(out + ".partial"):
                time.sleep(0.001)
            p.send_signal(signal.SIGINT)
            words = p.communicate(timeout=60)[1]
        self.assertEqual((p.returncode, words),
                         (2, "kvppl: finished rows are kept: interrupted\n"))
        self.assertEqual(glob.glob(out + "*"), [out + ".partial"])

    def test_rows_of_other_specs_are_kept(self):
        out, partial = at("left.csv"), at("left.csv.partial")
        spec = ["--kl", "-s", "kivi:b{1,2}g16"]
        self.stopped(out, 3, *args(*spec))
        done = run("kvppl", *args("--kl", "-s", "kivi:b1g16", "--resume",
                                  "-o", out))
        self.assertNotIn("PPL", done.stderr)
        self.assertIn("left.csv.partial keeps 1 finished row of other runs",
                      done.stderr)
        done = run("kvppl", *args(*spec, "--resume", "-o", out))
        self.assertNotIn("PPL", done.stderr)
        self.assertFalse(os.path.exists(partial))

    def stopped(self, out, n, *argv):
        """Leaves the files of a run that is killed after n rows."""
        write(out + ".partial", b"".join(
            must("kvppl", *argv).encode().splitlines(True)[:1 + n]))

    def test_another_run(self):
        for text, words in (("kvtools-partial 2 kvppl\n", "no column tool: "
                             "remove it to start anew"),
                            ("my notes", "the last line has no end")):
            with open(at("o.csv.partial"), "w") as f:
                f.write(text)
            self.refused(words, *args("--resume", "-o", at("o.csv")))
            with open(at("o.csv.partial")) as f:
                self.assertEqual(f.read(), text)

    def test_every_input_counts(self):
        """Each input with something changed that it can be read with."""
        def spoil(path):
            with open(path, "ab") as f:
                f.write(b" ")

        def flip(path):
            with open(path, "r+b") as f:
                f.seek(-2, os.SEEK_END)
                code = f.read(1)
                f.seek(-2, os.SEEK_END)
                f.write(bytes([code[0] ^ 1]))

        shutil.copytree(at("m"), at("k"))
        with open(at("k/tokenizer_config.json"), "w") as f:
            f.write("{}")
        shutil.copy(at("eval.txt"), at("k.txt"))
        must("kvdump", "-m", at("k"), "-f", at("calib.txt"), "-c", str(CTX),
             "-o", at("k-dump.h5"))
        must("kvcalib", "-s", "vecinfer:d4b4", at("k-dump.h5"), "-o",
             at("k.h5"))
        with open(at("m/config.json")) as f:
            n_layers = json.load(f)["num_hidden_layers"]
        with open(at("k.layers"), "w") as f:
            f.write("".join(f"{i} KV absmax:b{i + 2}\n"
                            for i in range(n_layers)))
        argv = ["-m", at("k"), "-f", at("k.txt"), "-c", str(CTX), "-n", "4",
                "-C", at("k.h5"), "-s", "mixed,file=" + at("k.layers"), "-s", "vecinfer:d4b4",
                 "-s", "kivi:b{1,2,3,4}g16"]
        out = at("k.csv")
        inputs = [(at("k/" + f), spoil if f.endswith("json") else flip)
                  for f in sorted(os.listdir(at("k")))]
        self.assertIn((at("k/tokenizer_config.json"), spoil), inputs)
        inputs += [(at("k/added_tokens.json"), None)]
        self.stopped(out, 1, *argv)
        for path, change in inputs:
            if change:
                shutil.copy(path, at("was"))
                change(path)
            else:
                with open(path, "w") as f:
                    f.write("{}")
            # a calibration may have met another model before
            done = run("kvppl", *argv, "--resume", "-o", out)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, "rows of model_hash|another model")
            if change:
                shutil.copy(at("was"), path)
            else:
                os.remove(path)
        text = read(at("k.txt"))
        with open(at("k.txt"), "a") as f:
            f.write("again")
        done = run("kvppl", *argv, "--resume", "-o", out)
        self.assertIn("keeps 1 finished row", done.stderr)
        write(at("k.txt"), text)
        # files that the model does not read do not count
        with open(at("k/trainer_state.json"), "w") as f:
            f.write("{}")
        os.symlink("nowhere", at("k/consolidated.safetensors"))
        with open(at("k.layers")) as f:
            layers = f.read()
        with open(at("k.layers"), "w") as f:
            f.write(layers.replace("b2", "b4", 1))
        must("kvppl", *argv, "--resume", "-o", out)  # a row of its own
        rows = must("kvppl", *argv)
        with open(out, newline="") as f:
            self.assertEqual([timeless(r) for r in csv.DictReader(f)],
                             [timeless(r) for r in
                              csv.DictReader(io.StringIO(rows))])

    def test_wants_an_output(self):
        self.refused("--resume wants -o", *args("--resume"))


class Append(Case):
    def rows(self, name, tab=","):
        with open(at(name), newline="") as f:
            return list(csv.DictReader(f, delimiter=tab))

    def add(self, name, *more):
        must("kvppl", "-q", *args("--append", "-o", at(name), *more))

    def test_a_sweep_in_a_loop(self):
        """Ends as one run of all, but for the order."""
        for bits in "2", "4", "2", "3":
            self.add("loop.csv", "--kl", "-s", f"kivi:b{bits}g16")
        whole = ppl("--kl", "-s", "kivi:b{2,4,3}g16")
        self.assertEqual([timeless(r) for r in self.rows("loop.csv")],
                         [timeless(r) for r in whole])
        before = read(at("loop.csv"))
        done = run("kvppl", *args("--append", "-o", at("loop.csv"), "--kl",
                                  "-s", "kivi:b{3,2}g16"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("PPL", done.stderr)  # not even the base line
        self.assertIn("loop.csv has all these rows", done.stderr)
        self.assertEqual(read(at("loop.csv")), before)

    def test_the_key_decides(self):
        spec = ["-s", "absmax:b4"]
        runs = ([], ["-p", "stream"], ["-n", "2"], ["-c", "32"],
                ["--seed", "1"], ["-f", at("calib.txt")],
                ["-C", at("calib.h5"), "-s", "vecinfer:d4b4"],
                ["-C", at("calib.h5"), "-s", "nf4,massive"])
        for _ in range(2):
            for more in runs:
                self.add("key.tsv", "--format", "tsv", *spec, *more)
        table = self.rows("key.tsv", "\t")
        self.assertEqual(len(table), 2 * (len(runs) - 2) + 2)
        self.assertEqual([r["spec"].split(":")[0] for r in table[-2:]],
                         ["vecinfer", "nf4"])
        self.add("key.tsv", "--format", "tsv", *spec, "--kl", "-t", "1",
                 "--level", "c")
        after = self.rows("key.tsv", "\t")
        self.assertEqual(after[:-1], table)
        self.assertTrue(after[-1]["kl_mean"])
        self.add("key.tsv", "--format", "tsv", *spec)  # there, and with more
        self.add("key.tsv", "--format", "tsv", *spec, "--no-base")
        self.assertEqual(self.rows("key.tsv", "\t"), after)
        for more in ["--no-base"], ["--no-base"], [], []:
            self.add("no-base.csv", *spec, *more)
        self.assertEqual([(r["scheme"], r["dnll"] == "")
                          for r in self.rows("no-base.csv")],
                         [("f32", True), ("absmax", True), ("absmax", False)])

    def test_side_by_side(self):
        started = [subprocess.Popen(
            [os.path.join(TOOLS, "kvppl"), "-q", *args(
                "--append", "-o", at("side.csv"), "-t", "1", "-s", spec)])
            for spec in ("absmax:b{2,3}", "absmax:b{3,4}", "kivi:b2g16")]
        self.assertEqual([p.wait(timeout=120) for p in started], [0] * 3)
        self.assertEqual(sorted(r["spec"].split("r")[0]
                                for r in self.rows("side.csv")),
                         ["absmax:b2g16", "absmax:b3g16", "absmax:b4g16",
                          "f32:", "kivi:b2g16"])

    def test_killed(self):
        self.add("kill.csv", "-s", "absmax:b2")
        before, n = read(at("kill.csv")), 0
        argv = args("--append", "--resume", "-o", at("kill.csv"), "-t", "1",
                    "-s", "absmax:b{2,3,4,5,6}")
        for wait in (0.02, 0.05, 0.1, 0.2, 0.3):
            with subprocess.Popen([os.path.join(TOOLS, "kvppl"), "-q",
                                   *argv]) as p:
                time.sleep(wait)
                p.kill()
            n += p.returncode == -signal.SIGKILL
            if read(at("kill.csv")) != before:  # all of it, or none
                self.assertEqual(len(self.rows("kill.csv")), 6)
        self.assertGreater(n, 0)
        must("kvppl", "-q", *argv)
        self.assertFalse(os.path.exists(at("kill.csv.partial")))
        self.assertEqual([timeless(r) for r in self.rows("kill.csv")],
                         [timeless(r) for r in ppl("-s", "absmax:b{2,3,4,5,6}")
                          ])

    def test_refused(self):
        self.add("no.csv", "-s", "absmax:b2")
        whole = read(at("no.csv"))
        add = ["--append", "-o", at("no.csv"), "-s", "absmax:b3"]
        version = self.rows("no.csv")[0]["version"].encode()
        for words, argv in (
                ("--append wants -o FILE", args("--append")),
                ("--format csv or tsv", args(
                    "--append", "-o", at("no.jsonl"), "-s", "absmax:b3")),
                ("--columns does not go with", args(*add, "--columns", "ppl")),
                ("the table's name", args(*add, "--format", "tsv"))):
            self.refused(words, *argv)
        for words, old, new in (("rows of version v0, here it is", version,
                                 b"v0"),
                                ("has no column scheme", b",scheme", b",plan"),
                                ("was cut short", b"\n", b"")):
            write(at("no.csv"), new.join(whole.rsplit(old, 1))
                  if old == b"\n" else whole.replace(old, new))
            changed = read(at("no.csv"))
            self.refused(words, *args(*add))
            self.assertEqual(read(at("no.csv")), changed)
        os.mkfifo(at("pipe.csv"))
        self.refused("is not a regular file",
                     *args("--append", "-o", at("pipe.csv")))


class Refused(Case):
    def test_options(self):
        self.refused("a model is needed", "-f", at("eval.txt"))
        self.refused("a text is needed", "-m", at("m"))
        self.refused("unknown protocol 'alles'", *args("-p", "alles"))
        self.refused("leaves nothing to score",
                     *args("-p", "prefill:%d" % CTX))
        self.refused("-c 1: expected at least 2 tokens",
                     "-m", at("m"), "-f", at("eval.txt"), "-c", "1")
        self.refused("stands without -s", *args("-s", "kivi:b2", "kivi:b3"))
        self.refused("did you mean 'kivi'", *args("-s", "kivy:b2"))
        self.refused("g=12 must divide", *args("-s", "kivi:b2g12r12"))
        self.refused("out of range",
                     *args("-s", "kivi:K-b9/V-b2"))

    def test_texts(self):
        self.refused("No such file", "-m", at("m"), "-f", at("none.txt"))
        with open(at("short.txt"), "w") as f:
            f.write("short")
        self.refused("short.txt", "-m", at("m"), "-f", at("short.txt"))
        open(at("empty.txt"), "w").close()
        self.refused("empty.txt", "-m", at("m"), "-f", at("empty.txt"))
        self.refused("5000", *args()[:-1], "5000")

    def test_weights(self):
        def spoil(name, x):
            if name == "model.layers.1.self_attn.k_proj.weight":
                x[5] = float("nan")
        tiny_model.make(at("spoilt"), edit=spoil)
        self.refused("spoilt/model.safetensors: tensor model.layers.1."
                     "self_attn.k_proj.weight: value 5 of 1024 is NaN",
                     "-m", at("spoilt"), "-f", at("eval.txt"), "-n", "1")

    def test_calibrations(self):
        spec = ["-s", "vecinfer:d4b4"]
        self.refused("vecinfer", *args(*spec))
        self.refused("vecinfer", *args("-s", "vecinfer:d2b4", "-C",
                                       at("calib.h5")))
        self.refused("other.h5", *args(*spec, "-C", at("other.h5")))
        self.refused("--allow-leakage", *args(*spec, "-C", at("leaky.h5")))
        leak = ppl(*spec, "-C", at("leaky.h5"), "--allow-leakage")[1]
        self.assertGreater(float(leak["calib_leak"]), 0.9)
        self.assertEqual(float(ppl(*spec, "-C", at("calib.h5"))[1]
                               ["calib_leak"]), 0)

    def test_too_short_to_tell(self):
        argv = ["-m", at("m"), "-f", at("eval.txt"), "-c", "32", "-n", "1",
                "-s", "vecinfer:d4b4", "-C"]
        for calib in ("calib.h5", "leaky.h5"):
            self.refused("too short to tell", *argv, at(calib))

    def test_full_disk(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                           (4096, 4096))
        for more in (["--kl"], ["-p", "llama.cpp", "--kl-divergence-base",
                                at("full.kld")]):
            done = run("kvppl", "-q", *args(*more), preexec_fn=limit)
            self.assertEqual(done.returncode, 2, more)
            self.assertIn("File too large", done.stderr)
            self.assertFalse(os.path.exists(at("full.kld")))

    def test_outputs_are_not_inputs(self):
        self.refused("would replace the input", *args("-o", at("eval.txt")))
        self.refused("would replace the input",
                     *args("-C", at("calib.h5"), "-o", at("calib.h5")))
        self.refused("two outputs are one file",
                     *args("-p", "llama.cpp", "--kl-divergence-base", at("x"),
                           "-o", at("x")))

    def test_outputs(self):
        self.refused("cannot write", *args("-o", at("none/x.csv")))
        with open("/dev/full", "w") as full:
            done = subprocess.run([os.path.join(TOOLS, "kvppl"), "-q",
                                   *args()], stdout=full,
                                  stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("No space left", done.stderr)

    def test_interrupted(self):
        out = at("i.csv")
        p = subprocess.Popen([os.path.join(TOOLS, "kvppl"), "-q",
                              *args("-s", "hack:b{1,2,3,4,5,6,7,8}p16",
                                    "-p", "stream", "-o", out)],
                             stderr=subprocess.PIPE, text=True)
        while p.poll() is None:  # the temporary output: it is under way
            if [f for f in os.listdir(folder) if f.startswith("i.csv.")]:
                p.send_signal(signal.SIGINT)
                break
            time.sleep(0.001)
        err = p.communicate()[1]
        self.assertEqual(p.returncode, 2)
        self.assertEqual(err, "kvppl: interrupted\n")
        self.assertFalse(os.path.exists(out))
        self.assertFalse([f for f in os.listdir(folder)
                          if f.startswith("i.csv.")])


if __name__ == "__main__":
    unittest.main()
