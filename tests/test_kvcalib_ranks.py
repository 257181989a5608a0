"""kvcalib --ranks: the bytes of one process for any number of ranks, and what
becomes of ranks that differ or end."""
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

KVCALIB = os.path.join(TOOLS, "kvcalib")
SPECS = ["-s", "vecinfer:d4b2", "-s", "cq:c4b2", "-s", "aqua", "-s", "klt:b2"]


def setUpModule():
    global folder
    run_ranks.need_mpi()
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1, layers=3)
    for name, seed in ("d", 1), ("other", 2):
        write(at("text.txt"), tiny_model.text(800, seed).encode())
        must("kvdump", "-m", at("m"), "-f", at("text.txt"), "-c", "64", "-n",
             "5", "--fisher", "-o", at(name + ".h5"))


def tearDownModule():
    if "folder" in globals():
        shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def mpirun(*ranks):
    return run_ranks.mpirun("kvcalib", *(["-t", "1", *r] for r in ranks))


class Ranks(unittest.TestCase):
    def test_any_number_of_ranks(self):
        table = must("kvcalib", "-t", "1", "--table", *SPECS, at("d.h5"), "-o",
                     at("one.h5"))
        for n in 2, 5:
            done = mpirun(*[["--table", *SPECS, at("d.h5"), "-o",
                             at("more.h5")]] * n)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, table)
            self.assertEqual(read(at("more.h5")), read(at("one.h5")))

    def test_ranks_that_differ(self):
        options = [*SPECS, at("d.h5"), "-o", at("no.h5")]
        for words, other in (
                ("rank 1 has the text's hash", [*SPECS, at("other.h5"), "-o",
                                                at("no.h5")]),
                ("rank 1 has the --seed 4, expected the --seed 0",
                 options + ["--seed", "4"]),
                ("rank 1 has the number of specs 5, expected the number of "
                 "specs 4", options + ["-s", "oscar"]),
                ("rank 1: cannot open", [*SPECS, at("none.h5"), "-o",
                                         at("no.h5")])):
            done = mpirun(options, other)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("kvcalib: "), 1, done.stderr)
            self.assertNotEqual(done.returncode, 0)
            self.assertFalse(os.path.exists(at("no.h5")))

    def test_refused(self):
        done = run("kvcalib", "--ranks", "--allocate", "2", *SPECS, at("d.h5"),
                   "-o", at("no.txt"), env=MPI_ENV)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--ranks goes with training", done.stderr)
        done = subprocess.run(
            ["mpirun", "-n", "2", KVCALIB, "--ranks", "--allocate", "2", *SPECS,
             at("d.h5"), "-o", at("no.txt")], env=MPI_ENV, text=True,
            stderr=subprocess.PIPE)
        self.assertEqual(done.stderr.count("--ranks goes with training"), 1,
                         done.stderr)

    def test_a_rank_that_is_killed(self):
        options = ["-s", "klt:b2,metric={fisher,none},rope={pre,post}", "-s",
                   "klt:b2,pred={1,2}", at("d.h5"), "-o", at("k.h5")]
        with subprocess.Popen(["mpirun", "-n", "2", KVCALIB, "--ranks", "-t",
                               "1", *options], env=MPI_ENV,
                              stderr=subprocess.DEVNULL) as p:
            while len(found := run_ranks.ranks_of(p)) < 2:
                time.sleep(0.01)
                self.assertIsNone(p.poll())
            time.sleep(0.3)
            os.kill(int(found[-1]), signal.SIGKILL)
            self.assertLess(run_ranks.end(p), 10)
        self.assertNotEqual(p.returncode, 0)
        self.assertFalse(os.path.exists(at("k.h5")))


if __name__ == "__main__":
    unittest.main(verbosity=0)
