"""A tool that waits for another program - for a text, for a reader, for a lock
- ends at the first request to stop, and leaves nothing behind."""
import fcntl
import os
import pty
import shutil
import signal
import subprocess
import tempfile
import termios
import time
import unittest

import tiny_model
from run_tools import TOOLS, run

STOPS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
QUICK = {**os.environ, "OMP_NUM_THREADS": "1"}


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), layers=1)
    with open(at("some.txt"), "w") as f:
        f.write(tiny_model.text(900))
    with open(at("long.txt"), "w") as f:  # its ids fill a pipe
        f.write(tiny_model.text(30000))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def small_pipe():
    """The size of a page, so that few words fill the pipe."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    return ours, theirs


def state(pid):
    """Of a process: "S" while its first thread sleeps; the ticks of processors
    that it has taken."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def as_usual():
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


def ignoring():
    """Also as a script's background job, and under nohup, except SIGHUP, which
    stays ignored there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, signal.SIG_DFL)


class Waits(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=folder)
        self.fds = []

    def tearDown(self):
        for fd in self.fds:
            os.close(fd)

    def pair(self, two):
        self.fds += two
        return two

    def path(self, name):
        return os.path.join(self.dir, name)

    def fifo(self):
        if not os.path.exists(self.path("fifo")):
            os.mkfifo(self.path("fifo"))
        return self.path("fifo")

    def ends(self, number, *args, start=as_usual, **more):
        """Started, it soon does nothing; the signal ends it."""
        with subprocess.Popen(
                [os.path.join(TOOLS, args[0]), *args[1:]], env=QUICK,
                preexec_fn=start,
                **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
                   **more}) as running:
            before = None
            while before != (now := state(running.pid)) or now[0] != "S":
                before = now
                time.sleep(0.5)
                self.assertIsNone(running.poll(), args)
            running.send_signal(number)
            try:
                running.wait(timeout=20)
            except subprocess.TimeoutExpired:
                running.kill()
                raise
        self.assertEqual(running.returncode, -number, args)
        self.assertEqual(set(os.listdir(self.dir)) - {"fifo"}, set())

    def tokens(self, *more):
        return ["kvdump", "-q", "-m", at("m"), "--tokens", "-f", *more]

    def ppl(self, *more):
        return ["kvppl", "-q", "-m", at("m"), "-f", at("some.txt"), "-c", "16",
                "-s", "kivi:b{1,2,3,4,5,6,7,8}g{4,8,16}", "-p", "llama.cpp",
                "--kl-divergence-base", self.path("x.kl"), *more]

    def test_for_a_text(self):
        for number in STOPS:
            self.ends(number, *self.tokens("-"), stdin=self.pair(os.pipe())[0])
            self.ends(number, *self.tokens(self.fifo()))
        self.ends(signal.SIGTERM, *self.tokens("-"),
                  stdin=self.pair(pty.openpty())[1])
        # input that has begun, and input of a chat
        ours, theirs = self.pair(os.pipe())
        os.write(theirs, b"some words")
        self.ends(signal.SIGTERM, *self.tokens(f"/dev/fd/{ours}"),
                  pass_fds=[ours])
        self.ends(signal.SIGTERM, "kvgen", "-q", "-m", at("m"), "-f", "-", "-o",
                  os.devnull, stdin=ours)

    def test_for_a_text_that_never_ends(self):
        """A word now and then is a wait too."""
        with subprocess.Popen(
                ["sh", "-c", "while sleep 0.03; do echo word; done"],
                stdout=subprocess.PIPE) as words:
            with subprocess.Popen(
                    [os.path.join(TOOLS, "kvdump"), *self.tokens("-")[1:]],
                    stdin=words.stdout, env=QUICK) as running:
                time.sleep(2)
                running.terminate()
                running.wait(timeout=20)
            words.kill()
        self.assertEqual(running.returncode, -signal.SIGTERM)

    def test_for_a_reader(self):
        for number in STOPS:
            self.ends(number, *self.ppl("-o", self.fifo()))
        self.ends(signal.SIGTERM, *self.tokens(at("long.txt")),
                  stdout=self.pair(small_pipe())[1])
        self.ends(signal.SIGTERM, *self.tokens(at("long.txt"), "-o",
                                               "/dev/stdout"),
                  stdout=self.pair(small_pipe())[1])
        self.ends(signal.SIGTERM, *self.ppl(), stdout=self.pair(
            small_pipe())[1])

    def test_for_a_reader_of_words(self):
        _, theirs = self.pair(small_pipe())
        os.write(theirs, b"x" * 4096)
        self.ends(signal.SIGTERM, "kvppl", "-v", *self.ppl()[2:],
                  stderr=theirs)

    def test_for_a_terminal_that_is_stopped(self):
        _, theirs = self.pair(pty.openpty())
        termios.tcflow(theirs, termios.TCOOFF)
        self.ends(signal.SIGTERM, *self.tokens(at("long.txt")), stdout=theirs)

    def test_where_interrupts_are_ignored(self):
        for number in STOPS:
            self.ends(number, *self.tokens("-"), start=ignoring,
                      stdin=self.pair(os.pipe())[0])

    def test_for_another_run_that_adds_rows(self):
        where = os.open(self.dir, os.O_RDONLY)
        fcntl.flock(where, fcntl.LOCK_EX)
        self.fds.append(where)
        with subprocess.Popen(
                [os.path.join(TOOLS, "kvppl"), "-q", "-m", at("m"), "-f",
                 at("some.txt"), "-c", "16", "-n", "1", "--append", "-o",
                 self.path("t.csv")], env=QUICK) as running:
            while running.poll() is None and not self.waits(running.pid):
                time.sleep(0.05)
            running.terminate()
            running.wait(timeout=20)
        self.assertEqual(running.returncode, -signal.SIGTERM)
        self.assertEqual(os.listdir(self.dir), [])

    def waits(self, pid):
        """For a lock of whole files."""
        with open("/proc/locks") as f:
            return any("->" in line and f" {pid} " in line for line in f)

    def test_a_wait_that_ends_by_itself(self):
        """No wait is cut short: what comes late, and in pieces, is read; what
        is read late is written."""
        want = run(*self.tokens(at("some.txt"))).stdout
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)  # as whoever shares it may have it
        with open(at("some.txt"), "rb") as f, subprocess.Popen(
                [os.path.join(TOOLS, "kvdump"), *self.tokens("-")[1:]],
                stdin=ours, stdout=subprocess.PIPE, env=QUICK) as running:
            while more := f.read(1000):
                os.write(theirs, more)
                time.sleep(0.05)
            os.close(theirs)
            os.close(ours)
            self.assertEqual(running.stdout.read().decode(), want)
        self.assertEqual(running.returncode, 0)


if __name__ == "__main__":
    unittest.main()
