"""The scripts that run on a machine with a GPU, without one."""
import csv
import json
import os
import sys
import tarfile
import unittest

from run_scripts import Scripts


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
        row = {"windows": shape[0], "ctx": shape[4]}
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
""" % ["spec", "windows", "ctx", "path", "lat_us_p50", "bw_share", "speedup",
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
                        "tools/kvppl", "tools/kvquant",
                        *("tests/test_" + t for t in self.TESTS)):
            os.chmod(self.write(program, PROGRAM), 0o755)

    def check(self, code, *more, **env):
        # No compute-sanitizer.
        return self.run_script("scripts/gpu-check", "--build", self.folder,
                               "-o", self.folder + "/out", *more,
                               code=code, PATH=os.path.dirname(sys.executable) +
                               ":/usr/bin:/bin", **env)

    def test_all_is_well(self):
        out = self.check(0)
        for test in self.TESTS:
            self.assertIn("tests/test_%s: passed" % test, out)
        self.assertEqual(self.measured().count("kvquant:b4r0"), 6)  # of six sizes
        self.assertEqual(self.measured().count("kivi:b8g128r0"), 6)

    def measured(self):
        with open(self.folder + "/out/decode.csv", encoding="utf-8") as f:
            return [r["spec"] for r in csv.DictReader(f)]

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
        out = self.check(1, FAIL="test_gpu_b_device")
        self.assertIn("failed: tests/test_gpu_b_device (exit status 1)\n", out)

    def test_a_spec_without_a_row(self):
        out = self.check(1, LEAVE="kvquant:b4r0", WHY="no kernel")
        self.assertIn("kvattn, 1 x 8192, exact: kvquant:b4r0: no kernel: left out: "
                      "FAILED", out)
        self.assertIn("failed: kvattn, 1 x 8192, exact: kvquant:b4r0: no kernel: "
                      "left out\n", out)
        out = self.check(1, LOSE="kvquant:b4r0")
        self.assertIn("exact: rows that are missing: 1", out)

    def test_a_failure_without_a_word(self):
        out = self.check(1, GRUMBLE="-m")
        self.assertIn("kvattn -m, 8192 (exit status 1): FAILED", out)

    def test_a_list_without_tests(self):
        for listed, words in ("[]", "lists no test"), (None, "expected a build"):
            path = os.path.join(self.folder, "meson-info/intro-tests.json")
            os.remove(path)
            if listed:
                self.write("meson-info/intro-tests.json", listed)
            self.assertIn(words, self.check(1))

    def test_no_memory_is_no_failure(self):
        out = self.check(0, LEAVE="kvquant:b4r0",
                         WHY="not enough device memory: 2 bytes needed, 1 free")
        self.assertIn("1 free: left out\n", out)


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

    def test_without_peers(self):
        out = self.tables([])
        self.assertNotIn("PyTorch", out)
        self.assertEqual(self.rows(out, "`kivi")[0][-1], "4.00")


if __name__ == "__main__":
    unittest.main(verbosity=1)
