"""A tool as its users run it: outputs, refusals, and no partial file left."""
import os
import signal
import subprocess
import tempfile
import unittest

import tiny_model
from run_tools import TOOLS, write

LAYERS, HEADS, KV_HEADS, DIM, CTX = 2, 4, 2, 16, 64


def run(tool, *args, cwd=None, preexec=None, stdout=subprocess.PIPE):
    return subprocess.run([os.path.join(TOOLS, tool), *map(str, args)],
                          stdout=stdout, stderr=subprocess.PIPE, text=True,
                          cwd=cwd, preexec_fn=preexec, timeout=240)


def not_ignored():
    """The tests themselves may run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class ToolTest(unittest.TestCase):
    """A model, a text and a dump to share; an empty folder for each test."""

    @classmethod
    def setUpClass(cls):
        cls.keep = tempfile.TemporaryDirectory()
        top = cls.keep.name
        cls.model = tiny_model.make(os.path.join(top, "tiny"))
        cls.text = write(os.path.join(top, "some.txt"),
                         tiny_model.text(800).encode())
        cls.dump = os.path.join(top, "dump.h5")
        made = run("kvdump", "-m", cls.model, "-f", cls.text, "-n", 16, "-o",
                   cls.dump)
        assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        cls.keep.cleanup()

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.dir = self.scratch.name

    def tearDown(self):
        self.scratch.cleanup()

    def path(self, name):
        return os.path.join(self.dir, name)

    def good(self, tool, *args, **more):
        done = run(tool, *args, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, words, tool, *args, **more):
        """One sentence with these words, exit code 2, no new file."""
        before = sorted(os.listdir(self.dir))
        done = run(tool, *args, **more)
        self.assertEqual(done.returncode, 2, done.stderr)
        last = done.stderr.strip().split("\n")[-1]
        self.assertTrue(last.startswith(tool + ": "), done.stderr)
        self.assertIn(words, last)
        self.assertEqual(done.stdout or "", "")
        self.assertEqual(sorted(os.listdir(self.dir)), before)
        return done
