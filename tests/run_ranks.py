"""Tools with --ranks under mpirun, as tests start them."""
import os
import shutil
import subprocess
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
