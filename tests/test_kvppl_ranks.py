"""kvppl --ranks: the rows of one process for any number of ranks, and what
becomes of ranks that differ or end."""
import csv
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import run_ranks
import tiny_model
from run_tools import MPI_ENV, TOOLS, must, read, run, write

KVPPL = os.path.join(TOOLS, "kvppl")
SPECS = ["-s", "kivi:b{2,4}g16r16", "-s", "hack:b2p16"]


def setUpModule():
    global folder
    run_ranks.need_mpi()
    folder = tempfile.mkdtemp(prefix="kvtools-")
    for name, seed in ("m", 1), ("other", 2):
        tiny_model.make(at(name), seed=seed)
    tiny_model.make(at("deep"), seed=3, layers=4)
    write(at("eval.txt"), tiny_model.text(800, 1).encode())
    write(at("text.txt"), tiny_model.text(800, 2).encode())


def tearDownModule():
    if "folder" in globals():
        shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def args(*more, model="m", text="eval.txt"):
    return ["-m", at(model), "-f", at(text), "-c", "64", "-n", "5", "-t", "1",
            *more]


def mpirun(*ranks):
    return run_ranks.mpirun("kvppl", *ranks)


def rows(path):
    with open(path, newline="") as f:
        return [{k: v for k, v in r.items()
                 if k not in ("seconds", "attn_seconds")}
                for r in csv.DictReader(f)]


class Ranks(unittest.TestCase):
    def test_any_number_of_ranks(self):
        for n, more in ((2, ["--kl"]), (3, ["-p", "stream", "--memory", "1",
                                         "-s", "h2o:b0.5+absmax:b4"])):
            options = args(*more, *SPECS)
            must("kvppl", *options, "-o", at("one.csv"))
            done = mpirun(*[options + ["-o", at("more.csv")]] * n)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(rows(at("more.csv")), rows(at("one.csv")))

    def test_layers(self):
        """The rows, and every token's losses, from one rank."""
        for n, more in ((2, ["--memory", "1"]),
                        (3, ["-p", "stream", "-s", "h2o:b0.5+absmax:b4"])):
            options = args("--kl", *more, *SPECS, model="deep")
            must("kvppl", *options, "--records", at("one.h5"), "-o",
                 at("one.csv"))
            options += ["--split", "layers", "--records", at("more.h5")]
            done = mpirun(*[options + ["-o", at("more.csv")]] * n)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(rows(at("more.csv")), rows(at("one.csv")))
            self.assertEqual(read(at("more.h5")), read(at("one.h5")))

    def test_resumed(self):
        options = args("--kl", *SPECS)
        must("kvppl", *options, "-o", at("whole.csv"))
        lines = read(at("whole.csv")).splitlines(True)
        write(at("some.csv"), b"".join(lines[:3]))
        done = mpirun(*[options + ["--resume", "-o", at("some.csv")]] * 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(rows(at("some.csv")), rows(at("whole.csv")))
        self.assertEqual(read(at("some.csv")).splitlines(True)[2], lines[2])

    def test_ranks_that_differ(self):
        options = args("-o", at("no.csv"))
        for words, other in (
                ("rank 1 has the model's hash", args(model="other")),
                ("rank 1 has the text's hash", args(text="text.txt")),
                ("rank 1 has the --seed 4, expected the --seed 0",
                 options + ["--seed", "4"]),
                ("rank 1 has the number of rows 2, expected the number of rows 1",
                 options + ["-s", "f16"]),
                ("rank 1: cannot open", args(text="none.txt"))):
            done = mpirun(options, other)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("kvppl: "), 1, done.stderr)
            self.assertNotEqual(done.returncode, 0)
            self.assertFalse(os.path.exists(at("no.csv")))

    def test_refused(self):
        for words, more in (("--own does not go with --ranks",
                             ["--own", "4"]),
                            ("--kl-divergence-base does not go with --ranks",
                             ["--kl", "-p", "llama.cpp",
                              "--kl-divergence-base", at("b.bin")]),
                            ("--split rows: expected windows or layers",
                             ["--split", "rows"])):
            done = run("kvppl", *args("--ranks", *more), env=MPI_ENV)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)
        done = mpirun(*[args("-o", at("no.csv"))[:-2] + ["-n", "1"]] * 2)
        self.assertIn("2 ranks for 1 window:", done.stderr)
        split = ["--split", "layers"]
        self.assertIn("--split goes with --ranks",
                      run("kvppl", *args(*split)).stderr)
        done = mpirun(*[args(*split, model="deep")] * 5)
        self.assertIn("5 parts of 4 layers", done.stderr)
        done = mpirun(args(*split), args())
        self.assertIn("rank 1 has the --split windows", done.stderr)

    def test_first_rank_that_is_silent(self):
        """A rank that gets no answer prints its own sentence."""
        late = "exec %s --ranks %s -f <(sleep 3; echo short)" % (
            KVPPL, " ".join(args()[:2] + args()[4:]))
        with subprocess.Popen(
                ["mpirun", "-n", "1", KVPPL, "--ranks", *args(), ":",
                 "-n", "1", "bash", "-c", late], env=MPI_ENV, text=True,
                stderr=subprocess.PIPE) as p:
            while len(run_ranks.ranks_of(p)) < 2:
                time.sleep(0.01)
            time.sleep(1.5)
            os.kill(int(run_ranks.ranks_of(p)[0]), signal.SIGSTOP)
            said = p.communicate(timeout=30)[1]
        self.assertIn("kvppl: rank 1: ", said)
        self.assertNotEqual(p.returncode, 0)

    def test_a_rank_that_is_killed(self):
        """Finished rows are kept."""
        options = args("-p", "stream", "-s", "kivi:b{1,2,3,4,5,6,7,8}g{8,16,32}r0",
                       "--resume", "-o", at("k.csv"))
        partial = at("k.csv.partial")
        with subprocess.Popen(["mpirun", "-n", "2", KVPPL, "--ranks", *options],
                              env=MPI_ENV, stderr=subprocess.DEVNULL) as p:
            while p.poll() is None and not (
                    os.path.exists(partial) and
                    read(partial).count(b"\n") > 1):
                time.sleep(0.001)
            os.kill(int(run_ranks.ranks_of(p)[-1]), signal.SIGKILL)
            self.assertLess(run_ranks.end(p), 10)
        self.assertNotEqual(p.returncode, 0)
        kept = read(partial).splitlines()
        self.assertGreater(len(kept), 1)
        must("kvppl", *options)
        self.assertLessEqual(set(kept), set(read(at("k.csv")).splitlines()))


if __name__ == "__main__":
    unittest.main(verbosity=0)
