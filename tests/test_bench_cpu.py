"""scripts/bench-cpu: its tables, its comparisons, and its refusals."""
import os
import signal
import subprocess
import sys
import time
import unittest

from run_scripts import ROOT, Scripts, cells


class BenchCpu(Scripts):
    row = {"tool": "kvattn", "version": "1", "device": "cpu", "level": "c",
           "ctx": "64", "protocol": "decode:1:warm",
           "model": "random-hq12-hkv4-d96", "bw_share": "0.5",
           "lat_us_p10": "2970", "lat_us_p90": "3060",
           "bits_quantized": "16", "spec": "f16:r0s0", "threads": "1",
           "path": "exact", "lat_us_p50": "3000", "speedup": "1",
           "command": "scripts/bench-cpu --reps 7"}
    kivi = dict(row, spec="kivi:b2g32r0s0", bits_quantized="3", speedup="4")

    def bench(self, *args):
        return self.run_script("scripts/bench-cpu", *args)

    def refused(self, words, *args):
        """Exit status 2, and one sentence."""
        out = self.run_script("scripts/bench-cpu", *args, code=2)
        self.assertTrue(out.startswith("bench-cpu: "), out)
        self.assertEqual(out.count("\n"), 1, out)
        for w in [words] if isinstance(words, str) else words:
            self.assertIn(w, out)

    def rows(self, name, *times):
        return self.csv(name, [
            {"tool": "kvattn", "spec": spec, "ctx": "64",
             "protocol": "decode:1", "threads": "1",
             "path": "exact", "lat_us_p50": str(time)} for spec, time in times])

    def kernels(self, name, *times):
        return self.csv(name, [
            {"family": "vecops", "operation": "add", "size": size,
             "version": "c", "ns": str(time), "speedup": "1.00"}
            for size, time in times])

    def test_machine(self):
        source = os.path.join(ROOT, "scripts/bench-cpu")
        bench = {"__name__": "bench_cpu", "__file__": source}
        sys.path.insert(0, os.path.dirname(source))
        self.addCleanup(sys.path.pop, 0)
        with open(source) as f:
            exec(compile(f.read(), source, "exec"), bench)
        avx2, avx512 = "fma bmi1 bmi2 avx2", "avx512f avx512dq avx512bw"
        for flags, level in ((avx2, "avx2"), ("fpu avx2", "c"),
                             ("%s %s avx512vl" % (avx2, avx512), "avx512"),
                             ("%s %s" % (avx2, avx512), "avx2"),
                             ("fma avx2 %s avx512vl" % avx512, "c")):
            self.assertEqual(
                bench["machine"](2 * ("model name\t: A(R) B 1\n"
                                      "flags\t\t: %s\nbugs\t: x\n" % flags)),
                "a-r-b-1-" + level)
        self.assertTrue(bench["machine"]("processor: 0").endswith("-c"))

    def test_compare(self):
        out = self.bench(
            "--compare",
            self.rows("a.csv", ("f16", 30), ("nf4", 8), ("old", 1)),
            self.rows("b.csv", ("nf4", 4), ("f16", 30), ("new", 1)))
        self.assertIn("f16,64,decode:1,1,exact,30,30,1.000\n", out)
        self.assertIn("nf4,64,decode:1,1,exact,8,4,2.000\n", out)
        self.assertIn("2 rows in both, 1 only before, 1 only after", out)

    def test_a_reader_that_has_seen_enough(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [os.path.join(ROOT, "scripts/bench-cpu"), "--compare",
             self.rows("a.csv", ("f16", 30)), self.rows("b.csv", ("f16", 30))],
            stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        self.assertEqual(done.returncode, -signal.SIGPIPE, done.stderr)
        self.assertNotIn(b"Traceback", done.stderr)

    def test_compare_kernels(self):
        out = self.bench("--compare", self.kernels("a.csv", ("n1", 20)),
                         self.csv("b.csv", [  # without the other column
                             {"family": "vecops", "operation": "add",
                              "size": "n1", "version": "c", "ns": "10.0"}]))
        self.assertIn("family,operation,size,version,ns before,ns after,ratio"
                      "\nvecops,add,n1,c,20,10,2.000\n", out)

    def test_table(self):
        out = self.bench("--table", self.csv("t.csv", [
            self.row, self.kivi, dict(self.kivi, path="int8", speedup="6"),
            dict(self.row, threads="2")]))
        self.assertEqual(cells(out), [
            ["`f16`", "16", "3 ms (0.50)", "", "3 ms (0.50)", ""],
            ["`kivi:b2g32`", "3", "4.00 (0.50)", "6.00 (0.50)", "", ""]])
        self.assertIn("64 tokens, what fits in the caches (`decode:1:warm`):",
                      out)
        self.assertIn("12 query heads over caches of 4 KV heads of\n"
                      "96 channels", out)
        self.assertIn("span\n3 % of the median in the middle row, 3 % in", out)
        self.assertTrue(out.startswith(
            "`t.csv`, kvtools 1, cpu, level c.\n"
            "Made by `scripts/bench-cpu --reps 7`.\n\n"), out)

    def test_cold_and_warm_of_one_length(self):
        cold = [dict(r, protocol="decode:1", lat_us_p50="5000")
                for r in (self.row, dict(self.kivi, speedup="2"))]
        out = self.bench("--table", self.csv("t.csv", [self.row, self.kivi,
                                                       *cold]))
        warm, cold = out.split("64 tokens, from memory (`decode:1`):")
        self.assertEqual(cells(warm)[:2],
                         [["`f16`", "16", "3 ms (0.50)", ""],
                          ["`kivi:b2g32`", "3", "4.00 (0.50)", ""]])
        self.assertEqual(cells(cold)[:2],
                         [["`f16`", "16", "5 ms (0.50)", ""],
                          ["`kivi:b2g32`", "3", "2.00 (0.50)", ""]])

    def test_table_says_what_its_rows_are_of(self):
        row = {c: v for c, v in self.row.items() if c != "command"}
        out = self.bench("--table", self.csv("t.csv", [
            dict(row, version="1+gabc-dirty")]))
        self.assertIn("tree that was built differed", out)
        self.assertIn("do not say which command made them", out)
        self.assertNotIn("differed", self.bench("--table", self.csv(
            "t.csv", [self.row])))

    def test_what_is_no_table(self):
        row, other = self.row, dict(self.kivi)
        for rows, words in [
                ([{"a": "1"}],
                 ["expected the columns version, ", "has no version, "]),
                ([{c: v for c, v in row.items() if c != "speedup"}],
                 ["expected the columns version, ", "has no speedup\n"]),
                ([row, dict(other, speedup="")],
                 ["line 3, speedup: '', expected a positive number"]),
                ([row, dict(other, lat_us_p50="fast")],
                 ["line 3, lat_us_p50: 'fast'"]),
                ([row, dict(other, bw_share="nan")], ["bw_share: 'nan'"]),
                ([row, other, row], ["two rows of 64, decode:1:warm, f16:r0s0, "
                                     "1, exact, expected one"]),
                ([row, dict(other, path="generic"), other], ["two rows of 64"]),
                *(([row, dict(other, **{c: "other"})],
                   ["%s is %s and other, expected the same" % (c, row[c])])
                  for c in ("version", "device", "level", "model", "command")),
                ([dict(row, model="m")], ["model is m, expected random"])]:
            path = self.csv("u.csv", rows)
            self.refused([path, *words], "--table", path)

    def test_what_cannot_be_read(self):
        good = self.rows("a.csv", ("f16", 30))
        head = ",".join(self.row)
        for text, words in [
                ("", "has no version, "), (head + "\n", "a header alone"),
                (head + "\n1,2\n", "line 2: expected %d cells" % len(self.row)),
                (head + "\n" + "1," * len(self.row) + "1\n",
                 "line 2: expected %d cells" % len(self.row)),
                (head + '\n"1,2\n', "not a CSV table")]:
            path = self.write("w.csv", text)
            self.refused([path, words], "--table", path)
            self.refused(path, "--compare", good, path)
        with open(path, "wb") as f:
            f.write(b"\xff\n")
        self.refused([path, "not a CSV table"], "--table", path)
        none = os.path.join(self.folder, "none.csv")
        for path, words in ((none, "No such file"), ("", "No such file"),
                            (self.folder, "Is a directory")):
            words = "cannot read '%s': %s" % (path, words)
            self.refused(words, "--table", path)
            self.refused(words, "--compare", path, good)
            self.refused(words, "--compare", good, path)

    def test_what_cannot_be_compared(self):
        a = self.rows("a.csv", ("f16", 30))
        for other, words in [
                (self.kernels("k.csv", ("n1", 1)),
                 "hold different measurements"),
                (self.csv("x.csv", [{"spec": "f16"}]),
                 "or family, operation, size, version, ns; it has no ctx, "),
                (self.csv("y.csv", [{"spec": "f16", "ctx": "1"}]),
                 "; it has no protocol, threads, path, lat_us_p50\n"),
                (self.rows("b.csv", ("nf4", 1)), "no row in common"),
                (self.rows("c.csv", ("f16", "slow")), "lat_us_p50: 'slow'"),
                (self.rows("d.csv", ("f16", 0)), "lat_us_p50: '0'"),
                (self.rows("e.csv", ("f16", 1), ("f16", 2)),
                 "two rows of f16, 64, decode:1, 1, exact, expected one")]:
            self.refused([other, words], "--compare", a, other)

    def build(self, *then):
        """A build whose programs print a row, and then run given lines."""
        lines = ["#!/bin/sh", "touch '%s/ran'" % self.folder, "echo spec,path",
                 "echo f16,exact", *then]
        for program in "tools/kvattn", "tests/check_ops":
            os.chmod(self.write("build/" + program, "\n".join(lines)), 0o755)
        return os.path.join(self.folder, "build")

    def test_rows_as_they_come(self):
        path = os.path.join(self.folder, "new/er.csv")
        argv = ["--build", self.build("exit 2"), "-o", path]
        self.refused(["tools/kvattn ended with status 2", path + ".partial"],
                     *argv)
        self.assertFalse(os.path.exists(path))
        with open(path + ".partial") as f:
            self.assertEqual(f.read(), "spec,path,command\n"
                             "f16,exact,scripts/bench-cpu --reps 20\n")
        self.build()
        self.bench(*argv, "--reps", "3")
        self.assertFalse(os.path.exists(path + ".partial"))
        with open(path) as f:
            self.assertEqual(f.readline(), "spec,path,command\n")
            self.assertIn("--reps 3\n", f.readline())
        with open(os.path.join(self.folder, "new/er-kernels.csv")) as f:
            self.assertEqual(f.read(), "spec,path\nf16,exact\n")

    def test_interrupted(self):
        """Also if SIGINT is ignored, as in a script's background jobs."""
        path = os.path.join(self.folder, "i.csv")
        for before in signal.SIG_DFL, signal.SIG_IGN:
            with subprocess.Popen(
                    [os.path.join(ROOT, "scripts/bench-cpu"), "--build",
                     self.build("exec sleep 60"), "-o", path], text=True,
                    stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(
                        signal.SIGINT, before)) as p:
                while p.poll() is None and not os.path.exists(
                        path + ".partial"):
                    time.sleep(0.01)
                p.send_signal(signal.SIGINT)
                said = p.stderr.read()
            self.assertEqual(p.returncode, 2, said)
            self.assertEqual(said, "bench-cpu: interrupted; the rows before "
                             "that are in %s.partial\n" % path)
            self.assertFalse(os.path.exists(path))
            os.remove(path + ".partial")

    def test_arguments(self):
        table = self.rows("a.csv", ("f16", 1))
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        out = ["--build", self.build(), "-o"]
        for words, *args in [
                ("--reps: '0', expected", "--reps", "0"),
                ("--reps: '-1', expected", "--reps=-1"),
                ("--reps: 'x', expected", "--reps", "x"),
                ("unrecognized", "x"),
                ("not allowed with", "--table", table, "--compare", table,
                 table),
                ("--reps: not with", "--table", table, "--reps", "3"),
                ("--output: not with", "--compare", table, table, "-o", "x"),
                ("--build: not with", "--table", table, "--build", ""),
                ("-o '': expected the name", *out, ""),
                ("expected the name of a file", *out, self.folder),
                ("expected the name of a file", *out, pipe),
                ("expected the name of a file", *out, self.folder + "/new/"),
                ("a.csv: Not a directory", *out, table + "/x/y.csv")]:
            self.refused(words, *args)
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["a.csv", "build", "pipe"])

    def test_a_build_without_a_program(self):
        build = self.build()
        for program in "tests/check_ops", "tools/kvattn":
            os.remove(os.path.join(build, program))
            self.refused([program, "not a program; expected a build"],
                         "--build", build, "-o", self.folder + "/new/x.csv")
        self.assertEqual(os.listdir(self.folder), ["build"])  # nothing ran

    def test_a_start_that_fails_leaves_nothing(self):
        build = self.build()
        self.write("build/tools/kvattn", "#!/bin/sh\nexit 2\n")
        self.refused("ended with status 2, expected 0", "--build", build, "-o",
                     self.folder + "/new/x.csv")
        self.write("build/tools/kvattn", "no program")
        self.refused("cannot run %s/tools/kvattn" % build, "--build", build,
                     "-o", self.folder + "/new/x.csv")
        self.assertEqual(os.listdir(self.folder), ["build"])


# A build's tools and tests: rows of every spec, but of those that LEAVE names,
# for the reason WHY; rows that LOSE names are omitted.


if __name__ == "__main__":
    unittest.main(verbosity=1)
