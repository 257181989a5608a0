"""kvppl goes on after a stop (--resume) and adds to a table (--append)."""
import csv
import glob
import io
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from kvppl_case import (CTX, Case, args, at, lines, ppl, setUpModule,
                        tearDownModule, timeless, untimed)
from run_tools import TOOLS, must, read, run, write


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
        """Kills a run when it has stored n rows; returns whether it was
        killed."""
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
        """The result equals one run of all rows, except for their order."""
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


if __name__ == "__main__":
    unittest.main()
