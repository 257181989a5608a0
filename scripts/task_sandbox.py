"""Runs a generated program where it can do little harm: in namespaces of its
own, without a network, other processes or a file system to write to, in an
empty folder in memory, with limits of time, memory and file size."""
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile

SECONDS = 10
MEMORY = 1 << 30
FILE = 1 << 20
APART = ["unshare", "-r", "-n", "-p", "-m", "-f", "--kill-child", "sh", "-c"]
FAILED = 125

# Arguments: an empty folder, then the command.  Remounts keep the mounts' other
# options, or the kernel would refuse.
PREPARE = f"""
mount -t tmpfs -o size=64m,mode=700 tmpfs "$1" || exit {FAILED}
findmnt -rno TARGET,VFS-OPTIONS | while read -r at with; do
    [ "$at" = "$1" ] || mount -o "remount,bind,ro${{with#r?}}" "$at"
done 2>/dev/null
for at in / /tmp "$HOME"; do
    [ ! -w "$at" ] || {{ echo "$at stays writable" >&2; exit {FAILED}; }}
done
cd "$1" && shift && exec env HOME="$PWD" TMPDIR="$PWD" "$@"
"""

# Input: a word, a newline, the program.  The word is printed after the
# program's last line; a program that ends the interpreter earlier also ends
# this one.
RUN = """
import os, sys
write, leave, say = os.write, os._exit, os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
word, program = sys.stdin.buffer.read().split(b"\\n", 1)
try:
    exec(program.decode(), {})
except BaseException:
    leave(1)
write(say, word)
leave(0)
"""


def limits():
    for what, most in ((resource.RLIMIT_CPU, SECONDS),
                       (resource.RLIMIT_AS, MEMORY),
                       (resource.RLIMIT_FSIZE, FILE),
                       (resource.RLIMIT_NOFILE, 64),
                       (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))


def apart(*command, **options):
    with tempfile.TemporaryDirectory(prefix="task-code-") as folder:
        return subprocess.run(
            APART + [PREPARE, "sh", folder, *command],
            env={"HOME": os.path.expanduser("~"), "PATH": os.environ["PATH"]},
            preexec_fn=limits, timeout=2 * SECONDS, **options)


def why_not():
    """None, or why programs cannot be run here."""
    for tool in "unshare", "findmnt":
        if not shutil.which(tool):
            return f"--run-code wants {tool} (util-linux), which is not " \
                "installed"
    done = apart("true", capture_output=True, text=True)
    if done.returncode:
        return "--run-code wants namespaces without a network and a " \
            f"read-only file system, which this system refuses: " \
            f"{done.stderr.strip()}"
    return None


def passes(program):
    """Whether the program reaches its last line in time."""
    word = secrets.token_hex(16).encode()
    try:
        done = apart(sys.executable, "-I", "-B", "-c", RUN, input=word +
                     b"\n" + program.encode(errors="surrogatepass"),
                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False
    return done.stdout == word
