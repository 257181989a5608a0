"""Tools with --ranks under mpirun, as tests start them."""
import os
import shutil
import subprocess
import time
import unittest

from run_tools import MPI_ENV, TOOLS, run


def need_mpi():
    """Skips if mpirun is missing, or the build is without MPI."""
    if not shutil.which("mpirun"):
        raise unittest.SkipTest("mpirun is not installed (openmpi-bin)")
    if "has no MPI" in run("kvppl", "--ranks", env=MPI_ENV).stderr:
        raise unittest.SkipTest("a build without MPI")


def mpirun(tool, *ranks):
    """A list of options for each rank."""
    command = ["mpirun"]
    for more in ranks:
        command += ["-n", "1", os.path.join(TOOLS, tool), "--ranks", *more,
                    ":"]
    return subprocess.run(command[:-1], env=MPI_ENV, text=True, timeout=60,
                          capture_output=True)


def ranks_of(p):
    """Processes of the ranks that mpirun p started, without ended processes that
    it has not noticed."""
    return subprocess.run(["pgrep", "-r", "R,S,D,T", "-P", str(p.pid)],
                          text=True, capture_output=True).stdout.split()


def end(p):
    """Waits for mpirun p, and returns after how many seconds its ranks had
    ended.  Stops p if it goes on without them: Open MPI's with PMIx 4.2 waits
    for ever on a lock of its own when a rank is killed within MPI_Init()."""
    start = time.monotonic()
    while p.poll() is None and ranks_of(p):
        time.sleep(0.05)
    took = time.monotonic() - start
    try:
        p.wait(timeout=5)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
    return took
