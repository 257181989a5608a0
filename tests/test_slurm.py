"""The batch files of scripts/slurm under a Slurm of this machine: the rows are
those of runs without it, also after a task was stopped."""
import os
import shutil
import subprocess
import tempfile
import unittest

import run_slurm
from run_scripts import ROOT
from run_tools import TOOLS, must, read
from test_shards import rows

MODEL = os.path.join(ROOT, "data", "model")
TEXT = os.path.join(ROOT, "data", "sample.txt")
SWEEP = ["-m", MODEL, "-f", TEXT, "-c", "64", "-n", "1", "-t", "1", "--kl",
         "-s", "absmax:b{2,3,4}"]
# Without --kl a row is stored as soon as it is finished.
LONG = ["-m", MODEL, "-f", TEXT, "-c", "64", "-n", "2", "-t", "1", "-p",
        "stream", "-s", "kivi:b{1,2,3,4,5,6,7,8}g{8,16,32}r0"]


def setUpModule():
    global folder, slurm
    why = run_slurm.lacks()
    if why:
        raise unittest.SkipTest(why)
    folder = tempfile.mkdtemp(prefix="kvtools-", dir="/tmp")
    slurm = run_slurm.Cluster(folder)
    slurm.__enter__()
    slurm.env.update(BIN=TOOLS, KVTOOLS=ROOT, SBATCH_OUTPUT=at("%x-%A-%a.log"))


def tearDownModule():
    slurm.stop()
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def batch(name, *args, options=()):
    """The number of the job."""
    return slurm.call("sbatch", "--parsable", *options, os.path.join(
        ROOT, "scripts", "slurm", name), *args, cwd=folder).strip()


def state(job):
    return slurm.call("scontrol", "show", "job", job)


def ended(job, how="COMPLETED"):
    """Waits; sbatch --wait looks every few seconds only."""
    slurm.wait_for(lambda: not any(s in state(job) for s in (
        "=PENDING", "=RUNNING", "=COMPLETING", "=CONFIGURING")))
    words = state(job)
    if words.count("JobState=") != words.count("JobState=" + how):
        raise AssertionError(words)


def merge(path):
    slurm.call(os.path.join(ROOT, "scripts", "merge"), path)


class Slurm(unittest.TestCase):
    def test_sweep(self):
        must("kvppl", *SWEEP, "-o", at("whole.csv"))
        ended(batch("sweep.sbatch", "kvppl", *SWEEP, "-o", "rows.csv",
                    options=["--array=0-2"]))
        merge(at("rows.csv"))
        self.assertEqual(rows(at("rows.csv")), rows(at("whole.csv")))

    def test_ranks_of_srun(self):
        must("kvppl", *SWEEP, "-o", at("all.csv"))
        slurm.call("srun", "-n2", "-O", os.path.join(TOOLS, "kvppl"), "-q",
                   *SWEEP, "--shard", "-o", at("ranks.csv"))
        merge(at("ranks.csv"))
        self.assertEqual(rows(at("ranks.csv")), rows(at("all.csv")))

    def test_calibrate(self):
        dump = ["-m", MODEL, "-f", TEXT, "-c", "64", "-n", "2"]
        specs = ["-s", "million:d4b4"]
        ended(batch("calibrate.sbatch", *dump, "--", *specs, "-o", "calib.h5"))
        self.assertFalse(os.path.exists(at("calib.h5.dump")))
        must("kvdump", *dump, "-o", at("dump.h5"))
        must("kvcalib", *specs, at("dump.h5"), "-o", at("here.h5"))
        self.assertEqual(read(at("calib.h5")), read(at("here.h5")))

    def test_stopped(self):
        """The task is queued again; Slurm would start it in two minutes."""
        must("kvppl", *LONG, "-o", at("long.csv"))
        task = ["sweep.sbatch", "kvppl", *LONG, "-o", "again.csv"]
        job = batch(*task, options=["--array=1-2"])
        part = at("again-2-of-2.csv")
        slurm.wait_for(lambda: os.path.exists(part + ".partial") and
                       read(part + ".partial").count(b"\n") > 1)
        slurm.call("scancel", "--signal=TERM", "--batch", f"{job}_2")
        slurm.wait_for(lambda: f"Requeuing JobId={job}_2" in
                       read(at("ctl.log")).decode())
        slurm.call("scancel", f"{job}_2")
        slurm.wait_for(lambda: os.path.exists(at("again-1-of-2.csv")))
        self.assertFalse(os.path.exists(part))
        kept = read(part + ".partial").splitlines()
        ended(batch(*task, options=["--array=1-2"]))
        merge(at("again.csv"))
        self.assertEqual(rows(at("again.csv")), rows(at("long.csv")))
        self.assertLessEqual(set(kept), set(read(at("again.csv")).splitlines()))

    def test_paper(self):
        make = ["make", "-s", "-C", os.path.join(ROOT, "results", "kvquant"),
                "table18", f"MODEL={MODEL}", f"TEXT={TEXT}", f"BIN={TOOLS}",
                f"CALIB={os.path.join(ROOT, 'data', 'calib.txt')}", "CTX=64",
                "WINDOWS=1", "CALIB_WINDOWS=2", "ROUNDS=1", "NAME=m"]
        here, there = at("here"), at("there")
        words = slurm.call(*make, f"OUT={there}", "SUBMIT=slurm", "SHARDS=2")
        last = words.split("job ")[-1].split(":")[0]
        done = subprocess.run([*make, f"OUT={here}"], text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        ended(last)
        tables = [n for n in os.listdir(here) if n.endswith((".csv", ".md"))]
        self.assertEqual(sorted(tables), sorted(
            n for n in os.listdir(there) if n.endswith((".csv", ".md"))))
        for name in tables:
            if name.endswith(".csv"):
                self.assertEqual(rows(os.path.join(there, name), "threads"),
                                 rows(os.path.join(here, name), "threads"))

    def test_refused(self):
        for words, *args in (("the tool is missing", "sweep.sbatch"),
                             ("-- is missing", "calibrate.sbatch", "-m", MODEL)):
            ended(batch(*args, options=["--output=no.log"]), "FAILED")
            self.assertIn(words, read(at("no.log")).decode())


if __name__ == "__main__":
    unittest.main(verbosity=0)
