"""The commands of docs/tutorial.md, run from the first to the last; what they
print is what the page says."""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

from run_scripts import ROOT
from run_tools import TOOLS

FENCE = re.compile(r"^```(\w*) *(.*)\n((?:.*\n)*?)```$", re.M)
SHOWN = 0.05  # of a number that is no whole one: products differ by processor


def commands(page):
    """(module that they need or "", commands, what they print or None)."""
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as f:
        blocks = FENCE.findall(f.read())
    for (kind, word, body), (after, _, shown) in zip(
            blocks, blocks[1:] + [("", "", "")]):
        if kind == "sh" and word != "build":
            yield word, body, shown if after == "text" else None


def same(shown, printed):
    """Word for word; numbers with a point nearly."""
    if shown == printed:
        return True
    try:
        a, b = float(shown), float(printed)
    except ValueError:
        return False
    return "." in shown and abs(a - b) <= SHOWN * abs(a)


class Tutorial(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvtools-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in "data", "examples", "python", "scripts":
            os.symlink(os.path.join(ROOT, name),
                       os.path.join(self.folder, name))
        python = os.path.join(self.folder, "bin", "python3")
        os.mkdir(os.path.dirname(python))
        with open(python, "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\nexec "%s" "$@"\n' % sys.executable)
        os.chmod(python, 0o755)
        self.env = dict(os.environ, PATH=os.pathsep.join(
            [os.path.dirname(python), TOOLS, os.environ["PATH"]]))

    def run_block(self, body):
        done = subprocess.run(
            ["bash", "-euc", body], cwd=self.folder,
            env=self.env, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, body + done.stderr)
        return done.stdout

    def test_commands(self):
        n = 0
        for module, body, shown in commands("tutorial.md"):
            if module and not importlib.util.find_spec(module):
                continue
            printed = self.run_block(body)
            n += 1
            if shown is None:
                continue
            lines = [x.splitlines() for x in (shown, printed)]
            self.assertEqual(*map(len, lines), body + printed)
            for a, b in zip(*lines):
                words = a.split(), b.split()
                self.assertTrue(len(words[0]) == len(words[1]) and
                                all(map(same, *words)),
                                "%s\nthe page: %s\nprinted:  %s" % (body, a, b))
        self.assertGreater(n, 8)


if __name__ == "__main__":
    unittest.main()
