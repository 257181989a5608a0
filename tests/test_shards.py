"""Parts of a run: by a launcher's variables, and joined again."""
import csv
import io
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import tiny_model
from run_scripts import ROOT
from run_tools import must, read, run, write

LAUNCHERS = ("SLURM", "OMPI", "PMI")
SPECS = ["-s", "absmax:b{2,3,4,5}", "-s", "f16"]


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)
    write(at("eval.txt"), tiny_model.text(400, 1).encode())
    must("kvdump", "-m", at("m"), "-f", at("eval.txt"), "-c", "64", "-n", "1",
         "-o", at("dump.h5"))
    write(at("p.jsonl"), b"".join(
        json.dumps({"prompt": "ab"[:1 + i % 2]}).encode() + b"\n"
        for i in range(5)))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def clean(**variables):
    """This environment, with no launcher's variables but these."""
    return {**{k: v for k, v in os.environ.items()
               if not k.startswith(LAUNCHERS)}, **variables}


def array(task, count, low=0, step=1, **more):
    return clean(SLURM_ARRAY_TASK_ID=str(task),
                 SLURM_ARRAY_TASK_COUNT=str(count),
                 SLURM_ARRAY_TASK_MIN=str(low),
                 SLURM_ARRAY_TASK_STEP=str(step),
                 SLURM_ARRAY_TASK_MAX=str(low + (count - 1) * step), **more)


def kvppl(*more, env=None):
    return run("kvppl", "-m", at("m"), "-f", at("eval.txt"), "-c", "64", "-n",
               "2", *SPECS, *more, env=env or clean())


def rows(path, *without):
    """A table's rows without the timed columns."""
    with open(path, newline="") as f:
        return [{k: v for k, v in r.items() if k not in
                 ("seconds", "attn_seconds", *without)}
                for r in csv.DictReader(f)]


def merge(*paths):
    return subprocess.run([os.path.join(ROOT, "scripts", "merge"), *paths],
                          text=True, capture_output=True, cwd=folder)


class Launched(unittest.TestCase):
    def shard(self, env):
        done = kvppl("--shard", "--no-base", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr.splitlines()[0], [
            r["spec"] for r in csv.DictReader(io.StringIO(done.stdout))]

    def test_launchers(self):
        every = [r["spec"] for r in csv.DictReader(io.StringIO(
            must("kvppl", "-m", at("m"), "-f", at("eval.txt"), "-c", "64",
                 "-n", "2", *SPECS, "--no-base")))]
        for i, n, env in (
                (2, 3, array(1, 3)), (3, 3, array(9, 3, 5, 2)),
                (1, 2, clean(SLURM_PROCID="0", SLURM_NTASKS="2")),
                (2, 2, clean(SLURM_PROCID="1", SLURM_NTASKS="9",
                             SLURM_STEP_NUM_TASKS="2")),
                (2, 3, clean(OMPI_COMM_WORLD_RANK="1", SLURM_PROCID="0",
                             OMPI_COMM_WORLD_SIZE="3", SLURM_NTASKS="2")),
                (3, 3, clean(PMI_RANK="2", PMI_SIZE="3")),
                (4, 6, array(1, 3, OMPI_COMM_WORLD_RANK="1",
                             OMPI_COMM_WORLD_SIZE="2"))):
            words, specs = self.shard(env)
            self.assertIn(f"--shard {i}/{n}: ", words)
            self.assertEqual(specs, every[i - 1::n])

    def test_refused(self):
        for words, env in (
                ("no launcher has set", clean()),
                ("SLURM_ARRAY_TASK_ID is 7, out of range: expected 0 to 2",
                 {**array(0, 3), "SLURM_ARRAY_TASK_ID": "7"}),
                ("SLURM_ARRAY_TASK_ID is 2, out of range: expected 1 to 5 by 2",
                 array(2, 3, 1, 2)),
                ("not its 2: expected one without gaps",
                 {**array(0, 2), "SLURM_ARRAY_TASK_MAX": "5"}),
                ("SLURM_ARRAY_TASK_ID is 'x', expected a whole number",
                 {**array(0, 3), "SLURM_ARRAY_TASK_ID": "x"}),
                ("OMPI_COMM_WORLD_RANK is 2, out of range: "
                 "OMPI_COMM_WORLD_SIZE is 2",
                 clean(OMPI_COMM_WORLD_RANK="2", OMPI_COMM_WORLD_SIZE="2")),
                ("this is the batch script", clean(
                    SLURM_JOB_ID="1", SLURM_PROCID="0", SLURM_NTASKS="2"))):
            done = kvppl("--shard", "-o", at("no.csv"), env=env)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        self.assertFalse(os.path.exists(at("no.csv")))
        self.assertIn("--shard 7: expected I/N", kvppl("--shard", "7").stderr)


class Merged(unittest.TestCase):
    def setUp(self):
        for name in os.listdir(folder):
            if name.startswith("r") or name.startswith("a"):
                os.unlink(at(name))

    def shards(self, n, *more):
        for i in range(n):
            done = kvppl("--shard", "--resume", "-o", at("r.csv"), *more,
                         env=array(i, n))
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_as_without_shards(self):
        self.assertEqual(kvppl("--kl", "-o", at("r.csv")).returncode, 0)
        whole = rows(at("r.csv"))
        for n in 2, 3, 7:  # of seven one has no row
            os.unlink(at("r.csv"))
            self.shards(n, "--kl")
            parts = {p: read(at(p)) for p in os.listdir(folder)
                     if f"-of-{n}." in p}
            self.assertEqual(len(parts), n)
            done = merge("r.csv")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(rows(at("r.csv")), whole)
            lines = b"".join(parts.values()).splitlines()
            self.assertLessEqual(set(read(at("r.csv")).splitlines()), set(lines))
            for p in parts:
                os.unlink(at(p))

    def test_kvquant_and_kvgen(self):
        quant = ["-q", *SPECS, "--codes", at("rc.h5"), "-o", at("r.csv"),
                 at("dump.h5")]
        gen = ["-q", "-m", at("m"), "-f", at("p.jsonl"), "-n", "3", "-s", "f16",
               "-s", "kivi:b2g8", "-o", at("a.jsonl")]
        must("kvquant", *quant)
        must("kvgen", *gen)
        whole = read(at("r.csv")), [
            json.loads(x)["ids"] for x in read(at("a.jsonl")).splitlines()]
        for i in range(2):
            env = clean(PMI_RANK=str(i), PMI_SIZE="2")
            for tool, args in (("kvquant", quant[:-1] + ["--shard", quant[-1]]),
                               ("kvgen", gen + ["--shard"])):
                done = run(tool, *args, env=env)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(os.path.exists(at("rc-2-of-2.h5")))
        self.assertEqual(merge("r.csv", "a.jsonl").stderr, "")
        self.assertEqual(read(at("r.csv")), whole[0])
        self.assertEqual([json.loads(x)["ids"] for x in
                          read(at("a.jsonl")).splitlines()], whole[1])

    def test_append_shares_a_file(self):
        for i in range(2):
            done = kvppl("--shard", "--append", "-o", at("r.csv"),
                         env=array(i, 2))
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(rows(at("r.csv"))), 6)

    def refused(self, words):
        write(at("r.csv"), b"as it was\n")
        done = merge("r.csv")
        self.assertEqual(done.returncode, 2)
        self.assertIn(words, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertEqual(read(at("r.csv")), b"as it was\n")
        self.assertFalse(os.path.exists(at("r.csv.merging")))

    def test_refused(self):
        self.refused("r.csv has no shards: expected r-1-of-N.csv")
        self.shards(3)
        one, two = at("r-1-of-3.csv"), at("r-2-of-3.csv")
        was, cells = read(two), rows(two)[0]
        os.unlink(two)
        self.refused("r-2-of-3.csv is missing")
        write(two + ".partial", b"")
        self.refused("its run was stopped, --resume goes on")
        head, *lines = was.splitlines(True)
        for words, data in (
                ("r-2-of-3.csv is cut", was[:-1]),
                ("r-2-of-3.csv has 1 specs, expected 2 of 5",
                 head + lines[0]),
                ("has other columns", head[:-1] + b",x\n"),
                ("is both in", read(one)),
                ("text_hash is 0, expected",
                 was.replace(cells["text_hash"].encode(), b"0")),
                ("places is random, expected",
                 was.replace(b",first,", b",random,")),
                ("version is v0, expected",
                 was.replace(cells["version"].encode(), b"v0")),
                ("has no column spec", b"a,b\n1,2\n")):
            write(two, data)
            self.refused(words)
        write(two, was)
        three = at("r-3-of-3.csv")
        last = read(three)
        write(three, head)  # the file with too few is named, not one with more
        self.refused("r-3-of-3.csv has 0 specs, expected 1 of 4")
        write(three, last)
        write(at("r-1-of-4.csv"), was)
        self.refused("shards of two runs")


if __name__ == "__main__":
    unittest.main(verbosity=0)
