"""Ranks that are killed at random moments: nothing is half-written, and a run
afterwards gives the bytes of an undisturbed one.  KV_KILLS=20 for more."""
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import run_ranks
import tiny_model
from run_tools import MPI_ENV, TOOLS, must, read, write
from test_kvppl_ranks import rows

KILLS = int(os.environ.get("KV_KILLS", "1"))
RANKS = 3
TEMPORARY = ".kvtools-"  # in the name of a file that is being written


def setUpModule():
    global folder
    run_ranks.need_mpi()
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1, layers=3)
    write(at("text.txt"), tiny_model.text(6000, 1).encode())


def tearDownModule():
    if "folder" in globals():
        shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def mpirun(tool, options):
    return subprocess.Popen(["mpirun", "-n", str(RANKS),
                             os.path.join(TOOLS, tool), "--ranks", "-t", "1",
                             *options], env=MPI_ENV,
                            stderr=subprocess.DEVNULL)


def kill_one(p, most):
    """One of the ranks, within so many seconds of their start; whether one was
    there."""
    found, late = [], time.monotonic() + 20
    while (len(found) < RANKS and p.poll() is None and
           time.monotonic() < late):
        found = run_ranks.ranks_of(p)
    time.sleep(random.uniform(0, most))
    try:
        os.kill(int(random.choice(found)), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


class Killed(unittest.TestCase):
    def names(self, tool):
        """Lists the files, without files that the next run removes."""
        return {f for f in os.listdir(at(tool)) if TEMPORARY not in f}

    def clear(self, tool):
        for name in os.listdir(at(tool)):
            os.unlink(os.path.join(at(tool), name))

    def check(self, tool, options, out, seen, kept=()):
        """seen(path): results that must equal the run of one process; kept:
        files that may stay."""
        os.mkdir(at(tool))
        path = os.path.join(at(tool), out)
        options = [*options, "-o", path]
        must(tool, "-t", "1", *options)
        want = seen(path)
        os.unlink(path)
        killed, whole, alone, most = 0, 0, 0, 1.5
        while killed < KILLS:
            with mpirun(tool, options) as p:
                hit = kill_one(p, most)
                took = run_ranks.end(p)
            if p.returncode == 0:  # it was done before
                self.assertEqual(seen(path), want)
                most *= 0.8
                whole += 1
                self.clear(tool)
                continue
            killed += hit
            alone += p.returncode == -signal.SIGKILL
            self.assertLess(took, 10)
            if os.path.exists(path):  # killed when all was done
                self.assertEqual(seen(path), want)
                self.clear(tool)
            self.assertLessEqual(self.names(tool), set(kept))
        if KILLS > 1:
            print(f"{tool}: a rank of {RANKS} killed {killed} times, {whole} "
                  "runs had ended before; mpirun went on without ranks "
                  f"{alone} times", flush=True)
        with mpirun(tool, options) as p:
            p.wait(timeout=120)
        self.assertEqual(p.returncode, 0)
        self.assertEqual(seen(path), want)
        self.assertEqual([f for f in os.listdir(at(tool)) if TEMPORARY in f],
                         [])

    def test_kvdump(self):
        import h5py

        def seen(path):
            with h5py.File(path) as f:
                sets = []
                f.visititems(lambda name, o: sets.append(name) if isinstance(
                    o, h5py.Dataset) else None)
                return {name: f[name][()].tobytes() for name in sets}

        self.check("kvdump", ["-m", at("m"), "-f", at("text.txt"), "-c", "64",
                              "-n", "60", "--fisher"], "d.h5", seen)

    def test_kvcalib(self):
        must("kvdump", "-m", at("m"), "-f", at("text.txt"), "-c", "64", "-n",
             "8", "--fisher", "-o", at("calib-dump.h5"))
        self.check("kvcalib", ["-s", "vecinfer:d4b4", "-s", "kvquant:b2o1",
                               "-s", "klt:b2", at("calib-dump.h5")],
                   "c.h5", read)

    def test_kvppl(self):
        self.check("kvppl", ["-m", at("m"), "-f", at("text.txt"), "-c", "64",
                             "-n", "6", "-p", "stream", "--kl", "--resume",
                             "-s", "kivi:b{1,2,3,4,5,6,7,8}g{8,16}r0"],
                   "r.csv", rows, ["r.csv.partial"])


if __name__ == "__main__":
    unittest.main(verbosity=0)
