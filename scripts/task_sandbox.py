"""Runs a generated program where it can do little harm: in namespaces of its
own without a network and without other processes, in an empty folder, with
limits of time, memory, file size and output."""
import os
import resource
import shutil
import subprocess
import sys
import tempfile

SECONDS = 10
MEMORY = 1 << 30
FILE = 1 << 20
APART = ["unshare", "-r", "-n", "-p", "-f", "--kill-child"]


def limits():
    for what, most in ((resource.RLIMIT_CPU, SECONDS),
                       (resource.RLIMIT_AS, MEMORY),
                       (resource.RLIMIT_FSIZE, FILE),
                       (resource.RLIMIT_NOFILE, 64),
                       (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))


def why_not():
    """None, or why programs cannot be run here."""
    if not shutil.which("unshare"):
        return "--run-code wants unshare (util-linux), which is not installed"
    done = subprocess.run(APART + ["true"], capture_output=True, text=True)
    if done.returncode:
        return "--run-code wants namespaces without a network, which this " \
            f"system refuses: {done.stderr.strip()}"
    return None


def passes(program):
    """Whether it ends by itself, without an error, in time."""
    with tempfile.TemporaryDirectory(prefix="task-code-") as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(program)
        try:
            done = subprocess.run(
                APART + [sys.executable, "-I", "-B", path], cwd=folder,
                env={"HOME": folder, "TMPDIR": folder, "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, preexec_fn=limits,
                timeout=2 * SECONDS)
        except (subprocess.TimeoutExpired, UnicodeEncodeError):
            return False
        return done.returncode == 0
