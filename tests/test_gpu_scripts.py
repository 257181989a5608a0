"""The scripts that run on a machine with a GPU, without one."""
import contextlib
import csv
import importlib.machinery
import io
import json
import os
import shutil
import sys
import tarfile
import types
import unittest
from unittest import mock

from run_scripts import ROOT, Scripts

sys.path.insert(0, os.path.join(ROOT, "scripts"))
import gpu_pack  # noqa: E402
import gpu_rows  # noqa: E402

loader = importlib.machinery.SourceFileLoader(
    "gpu_check", os.path.join(ROOT, "scripts/gpu-check"))
GPU_CHECK = types.ModuleType("gpu_check")
GPU_CHECK.__file__ = loader.path
loader.exec_module(GPU_CHECK)


PROGRAM = """#!/usr/bin/env python3
import csv, os, re, sys, time

def swept(spec):
    m = re.search("{(.*?)}", spec)
    return [spec] if not m else [
        s for w in m[1].split(",")
        for s in swept(spec[:m.start()] + w + spec[m.end():])]

name, args, env = os.path.basename(sys.argv[0]), sys.argv[1:], os.environ
code = 0
if name == env.get("FAIL"):
    sys.exit(1)
if name == "kvattn" and env.get("SAY"):
    sys.exit("kvattn: " + env["SAY"])
if env.get("GRUMBLE") in args:
    code = 1
if name in ("kvattn", "kvppl"):
    own = ["params." + b.split(":")[0] for a, b in zip(args, args[1:])
           if a == "-s"]  # runs differ in columns
    out = csv.DictWriter(sys.stdout, %r + list(dict.fromkeys(own)),
                         restval="1")
    row = {}
    if "--shape" in args:
        shape = args[args.index("--shape") + 1].split(",")
        row = {"windows": shape[0], "ctx": shape[4], "model": shape[3]}
    out.writeheader()
    out.writerow({"spec": "f16:r0s0", **row})
    for a, b in zip(args, args[1:]):
        for spec in swept(b) if a == "-s" else []:
            if spec == env.get("LEAVE"):
                print(name + ": " + spec + ": " + env["WHY"] + ": left out",
                      file=sys.stderr)
                code = 1
            elif spec == env.get("HANG"):
                sys.stdout.flush()
                time.sleep(60)
            elif spec != env.get("LOSE"):
                out.writerow({"spec": spec, **row})
sys.exit(code)
""" % ["spec", "model", "windows", "ctx", "path", "lat_us_p50", "bw_share", "speedup",
       "attn_rel_err", "encode_us_p50", "inline_us_p50", "async_us_p50",
       "quantize_us_p50", "decode_us_p50", "attention_us", "speedup_unfused",
       "device", "ppl"]


class GpuCheck(Scripts):
    """Its flow, on programs that do nothing."""
    TESTS = "gpu_a_device", "gpu_b_device"

    def setUp(self):
        super().setUp()
        self.write("meson-info/intro-tests.json", json.dumps(
            [{"name": t} for t in (*self.TESTS, "gpu_a", "tiles")]))
        for program in ("tools/kvattn", "tools/kvcalib", "tools/kvdump",
                        "tools/kvgen", "tools/kvppl", "tools/kvquant",
                        *("tests/test_" + t for t in self.TESTS)):
            os.chmod(self.write(program, PROGRAM), 0o755)

    def check(self, code, *more, **env):
        # Without BIN there is no compute-sanitizer.
        path = [*filter(None, [env.pop("BIN", "")]),
                os.path.dirname(sys.executable), "/usr/bin", "/bin"]
        return self.run_script("scripts/gpu-check", "--build", self.folder,
                               "-o", self.folder + "/out", *more,
                               code=code, PATH=":".join(path), **env)

    def test_all_is_well(self):
        out = self.check(0)
        for test in self.TESTS:
            self.assertIn("tests/test_%s: passed" % test, out)
        self.assertEqual(self.measured().count("kvquant:b4r0"), 6)  # of six sizes
        self.assertEqual(self.measured().count("kivi:b8g128r0"), 6)

    def measured(self):
        with open(self.folder + "/out/decode.csv", encoding="utf-8") as f:
            return [r["spec"] for r in csv.DictReader(f)]

    def test_long_caches_repeat_tokens(self):
        """But not of specs with a token in fp16, nor for a baseline."""
        ran = []

        class Commands(GPU_CHECK.Check):
            decode = papers = None

            def __init__(self):
                self.build = ""

            def rows(self, what, specs, argv, keep):
                ran.append((" ".join(argv), specs))

        check = Commands()
        for first in True, False:
            check.bench(first, gpu_rows.SIZES)
        check.papers_shapes()
        self.assertGreater(len(ran), 50)
        for argv, specs in ran:
            n = int(argv.split("--shape ")[1].split()[0].split(",")[4])
            repeats = n > 8192 and "unfused" not in argv and not any(
                s.startswith(("kvquant", "rotatekv")) for s in specs)
            self.assertEqual(" --repeat %d" % (n / 8192) in argv, repeats, argv)
        every = [s for _, specs in ran for s in specs]
        self.assertEqual(every.count("kvquant:r0"), len(gpu_rows.SIZES))

    def test_shapes_of_papers(self):
        self.check(0, "--only", "papers")
        with open(self.folder + "/out/papers.csv", encoding="utf-8") as f:
            rows = [(r["model"], r["windows"], r["ctx"], r["spec"])
                    for r in csv.DictReader(f)]
        self.assertEqual(len(rows), len(set(rows)))
        for d in "128", "64":
            self.assertIn((d, "32", "196608", "vecinfer:d8b8r0,iters=2"), rows)

    def test_no_gpu(self):
        for words, code in (("this machine has no NVIDIA driver", 77),
                            ("this machine has no NVIDIA GPU, or", 77),
                            ("libx.so: cannot open shared object file", 1)):
            self.assertIn(words, self.check(code, SAY=words))

    def test_some_steps(self):
        out = self.check(0, "--only", "tests,model")
        self.assertNotIn("== bench", out)
        self.assertIn("expected some of", self.check(2, "--only", "test"))

    def test_a_budget_keeps_what_is_there(self):
        """The last of the first specs hangs: all before it have rows."""
        out = self.check(0, "--only", "bench", "--budget", "13",
                         HANG="million:d2b8r0,iters=2")
        self.assertIn("1 x 8192, int8: million:d2b8r0,iters=2: left out: no "
                      "time is left", out)
        self.assertEqual(self.measured()[-1], "vecinfer:d8b8r0,iters=2")

    def test_specs_after_an_error_run_alone(self):
        out = self.check(1, "--only", "bench", "--quick", LEAVE="hack:b2p64r0",
                         WHY="an illegal memory access was encountered")
        self.assertIn("hack:b2p64r0: an illegal memory access was encountered: "
                      "left out: FAILED", out)
        self.assertEqual(self.measured().count("million:d2b8r0,iters=2"), 6)
        self.assertNotIn("missing", out)

    def test_a_pack(self):
        packed = os.path.join(self.folder, "pack.tar.xz")
        with tarfile.open(packed, "w:xz") as f:
            for name in "tools", "tests", "meson-info":
                f.add(os.path.join(self.folder, name), name)
        out = self.run_script("scripts/gpu-check", "--build", packed, "-o",
                              self.folder + "/out", "--only", "tests", code=0)
        self.assertIn("tests/test_gpu_a_device: passed", out)

    def test_a_test_that_fails(self):
        out = self.check(1, "--only", "tests", FAIL="test_gpu_b_device")
        self.assertIn("failed: tests/test_gpu_b_device (exit status 1)\n", out)

    def test_a_test_that_cannot_start(self):
        os.remove(os.path.join(self.folder, "tests/test_gpu_b_device"))
        out = self.check(1, "--only", "tests")
        self.assertIn("failed: tests/test_gpu_b_device\n", out)

    def test_a_spec_without_a_row(self):
        out = self.check(1, "--only", "bench", LEAVE="kvquant:b4r0",
                         WHY="no kernel")
        self.assertIn("kvattn, 1 x 8192, exact: kvquant:b4r0: no kernel: left out: "
                      "FAILED", out)
        self.assertIn("failed: kvattn, 1 x 8192, exact: kvquant:b4r0: no kernel: "
                      "left out\n", out)
        out = self.check(1, "--only", "bench", LOSE="kvquant:b4r0")
        self.assertIn("exact: rows that are missing: 1", out)

    def test_a_failure_without_a_word(self):
        out = self.check(1, "--only", "step", GRUMBLE="-m")
        self.assertIn("kvattn -m, 8192 (exit status 1): FAILED", out)

    def test_a_list_without_tests(self):
        for listed, words in ("[]", "lists no test"), (None, "expected a build"):
            path = os.path.join(self.folder, "meson-info/intro-tests.json")
            os.remove(path)
            if listed:
                self.write("meson-info/intro-tests.json", listed)
            self.assertIn(words, self.check(1))

    def test_no_memory_is_no_failure(self):
        out = self.check(0, "--only", "bench", LEAVE="kvquant:b4r0",
                         WHY="not enough device memory: 2 bytes needed, 1 free")
        self.assertIn("1 free: left out\n", out)


    def sanitizer(self, *more, **env):
        """With a compute-sanitizer that runs its program."""
        path = self.write("bin/compute-sanitizer", """#!/bin/sh
[ "$2" != "$HANGS" ] || sleep 60
shift 4
exec "$@"
""")
        os.chmod(path, 0o755)
        return self.check(env.pop("code", 0), "--only", "sanitize", *more,
                          BIN=os.path.dirname(path), **env)

    def test_every_test_under_every_tool(self):
        out = self.sanitizer()
        for tool in "memcheck", "racecheck", "initcheck", "synccheck":
            for what in "int8", *("tests/test_" + t for t in self.TESTS):
                self.assertIn("%s, %s: passed" % (tool, what), out)

    def test_some_tools_and_tests(self):
        out = self.sanitizer("--checks", "racecheck", "--tests", "b", FAIL="x")
        self.assertIn("racecheck, tests/test_gpu_b_device: passed", out)
        self.assertEqual(out.count(": passed"), 1)
        out = self.sanitizer("--tests", "b", FAIL="test_gpu_b_device", code=1)
        self.assertIn("failed: synccheck, tests/test_gpu_b_device (exit", out)
        self.assertIn("has no tests/test_gpu_c_device",
                      self.sanitizer("--tests", "c", code=2))
        self.assertIn("expected some of memcheck",
                      self.sanitizer("--checks", "leaks", code=2))

    def test_a_program_over_its_limit(self):
        out = self.sanitizer("--tests", "a", "--limit", "1", HANGS="racecheck")
        self.assertIn("racecheck, tests/test_gpu_a_device: left out: does not "
                      "end in 1 s", out)
        self.assertIn("synccheck, tests/test_gpu_a_device: passed", out)
        self.assertIn("left out, too little time: 1", out)

    def test_seconds_of_each_step(self):
        out = self.check(0, "--only", "tests,step")
        self.assertRegex(out.splitlines()[-1],
                         r"seconds: tests \d+, step \d+$")


class GpuPack(Scripts):
    """Of programs that do nothing."""

    def setUp(self):
        super().setUp()
        self.write("meson-info/intro-tests.json",
                   json.dumps([{"name": "gpu_a_device"}]))
        for program in *gpu_pack.TOOLS, "tests/test_gpu_a_device":
            path = self.write(program, "")
            shutil.copy("/bin/true", path)
        self.archive = os.path.join(self.folder, "pack.tar.xz")

    def pack(self, max_bytes):
        with mock.patch.object(gpu_pack, "MAX_BYTES", max_bytes), \
                contextlib.redirect_stderr(io.StringIO()) as words, \
                contextlib.redirect_stdout(words):
            return gpu_pack.pack(self.folder, self.archive), words.getvalue()

    def test_a_pack(self):
        code, words = self.pack(1 << 20)
        self.assertEqual((code, "MiB, 7 programs" in words), (0, True), words)
        folder = gpu_pack.unpack(self.archive)
        self.addCleanup(shutil.rmtree, folder)
        self.assertEqual(gpu_pack.tests(folder), ["tests/test_gpu_a_device"])

    def test_too_large_a_pack(self):
        code, words = self.pack(1 << 10)
        self.assertEqual(code, 2)
        self.assertRegex(words, r"pack.tar.xz: 0.0 MiB, expected at most 0;")
        self.assertEqual([n for n in os.listdir(self.folder) if "pack" in n],
                         [])


class GpuTable(Scripts):
    """Every ratio's denominator has its name."""
    ROW = {"device": "D", "version": "1", "model": "m", "bits": "2",
           "bw_share": "0.5", "gb_s": "100", "speedup": "4", "windows": "1",
           "path": "int8"}
    SPEC = "kivi:b2g128r0s0"

    def tables(self, peers):
        self.csv("decode.csv", [
            {**self.ROW, "spec": self.SPEC, "ctx": n, "lat_us_p50": "10"}
            for n in ("8192", "131072")])
        self.csv("step.csv", [
            {**self.ROW, "spec": self.SPEC, "ctx": "65536", "lat_us_p50":
             "5000", "attention_us": "1000", "speedup_unfused": "1.5"}])
        self.csv("papers.csv", [
            {**self.ROW, "spec": self.SPEC, "ctx": "8192", "lat_us_p50": "9",
             "model": "random-hq64-hkv8-d128", "protocol": "decode:1:repeat2"}])
        if peers:
            self.csv("peers.csv", [
                {"version": "2", "windows": "1", "ctx": n, "path": path,
                 "lat_us_p50": us, "gb_s": "1"} for path, n, us in peers])
        return self.run_script("scripts/gpu-table", self.folder)

    def rows(self, out, first):
        """Cells of the rows that begin so, of all tables."""
        return [[c.strip(" `") for c in line.split("|")[1:-1]]
                for line in out.split("\n") if line.startswith("| " + first)]

    def test_both_denominators(self):
        out = self.tables([("copy", "0", "1"),
                           ("sdpa-cudnn", "131072", "42"),
                           ("hf-cat-repeat", "131072", "95"),
                           ("step-sdpa-static", "65536", "9000"),
                           ("step-hf-cat-repeat", "65536", "30000")])
        heads = self.rows(out, "spec") + self.rows(out, "tokens")
        for h, names in zip(heads, (["sdpa-cudnn", "hf-cat-repeat"],) * 2 +
                            (["sdpa-static", "hf-cat-repeat"],)):
            self.assertEqual(h[-2:], ["over PyTorch (%s)" % n for n in names])
        short, long = self.rows(out, "`kivi")
        self.assertEqual(short[-3:], ["4.00", "", ""])
        self.assertEqual(long[-3:], ["4.00", "4.20", "9.50"])
        self.assertEqual([r[1:4] for r in self.rows(out, "f16, PyTorch")],
                         [["sdpa-cudnn", "16", "42.0"],
                          ["hf-cat-repeat", "16", "95.0"]])
        step = self.rows(out, "65,536")
        self.assertEqual(step[0][-3:], ["1.50", "1.80", "6.00"])
        self.assertEqual([r[2:4] for r in step[1:]],
                         [["sdpa-static", "9000"], ["hf-cat-repeat", "30000"]])
        self.assertIn("`hf-cat-repeat`: torch.cat()", out)
        self.assertEqual(self.rows(out, "hq64")[0][:4],
                         ["hq64-hkv8-d128", "1", "8,192", "1"])

    def test_without_peers(self):
        out = self.tables([])
        self.assertNotIn("PyTorch", out)
        self.assertEqual(self.rows(out, "`kivi")[0][-1], "4.00")


if __name__ == "__main__":
    unittest.main(verbosity=1)
