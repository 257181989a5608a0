"""kvppl from the outside: protocols, divergence, llama.cpp's base file, bad
input."""
import json
import os
import resource
import signal
import struct
import subprocess
import time
import unittest

import tiny_model
from kvppl_case import (CTX, WINDOWS, Case, args, at, ppl, setUpModule,
                        tearDownModule, timeless)
from run_tools import TOOLS, must, run, with_defaults, write


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
                ("hack attends on its codes alone", "-C", at("calib.h5"),
                 "-s", "hack,massive"),
                ("expected a spec without massive", "-C", at("calib.h5"),
                 "-s", "kivi:b2g32,ott=3,massive"),
                ("ott=3: expected axis=paper", "-s",
                 "kivi:b2g32,ott=3,axis=token"),
                ("this model's keys have no bias", "-s", "nf4,no-k_bias")):
            self.refused(why, *args(*words))
        done = run("kvcalib", "-s", "hack,massive", at("dump.h5"), "-o",
                   at("massive.h5"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("hack attends on its codes alone", done.stderr)
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

    def test_gemm_auto(self):
        """bf16 if no matrix has more bits; then with the row of an f16
        cache."""
        source = os.path.join(os.environ["KV_SOURCE_ROOT"], "data")
        argv = ["-m", os.path.join(source, "model"), "-f",
                os.path.join(source, "sample.txt"), "-c", "32", "-n", "1"]
        self.assertEqual({r["gemm"] for r in ppl("--gemm", "auto")}, {"f32"})
        has = run("kvppl", *argv, "--gemm", "bf16").returncode == 0
        argv += ["--gemm", "auto", "-s", "kivi:b4g32", "--columns", "spec,gemm"]
        done = run("kvppl", *argv)
        rows = [line.split(",")[-1] for line in done.stdout.split()[1:]]
        self.assertEqual(rows, ["bf16"] * 3 if has else ["f32"] * 2)
        self.assertEqual("f16:r0s0" in done.stdout, has)
        self.assertEqual("less is their rounding" in done.stderr, has)
        alone = must("kvppl", *argv, "--no-base").split()
        self.assertEqual([r.split(",")[-1] for r in alone[1:]], ["f32"])

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
    """Windows of a spec with a policy, which run piece by piece."""

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
            if [f for f in os.listdir(at("")) if f.startswith("i.csv.")]:
                p.send_signal(signal.SIGINT)
                break
            time.sleep(0.001)
        err = p.communicate()[1]
        self.assertEqual(p.returncode, 2)
        self.assertEqual(err, "kvppl: interrupted\n")
        self.assertFalse(os.path.exists(out))
        self.assertFalse([f for f in os.listdir(at(""))
                          if f.startswith("i.csv.")])


if __name__ == "__main__":
    unittest.main()
