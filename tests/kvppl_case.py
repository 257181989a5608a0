"""What the tests of kvppl share: two tiny models, texts, calibrations."""
import csv
import io
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import must, read, run, with_defaults

CTX, WINDOWS = 64, 6


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)
    tiny_model.make(at("other"), seed=2)
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w") as f:
            f.write(tiny_model.text(800, seed))
    for name, model, text in (("calib.h5", "m", "calib.txt"),
                              ("leaky.h5", "m", "eval.txt"),
                              ("other.h5", "other", "calib.txt")):
        must("kvdump", "-m", at(model), "-f", at(text), "-c", str(CTX),
             "-o", at("dump.h5"))
        must("kvcalib", "-s", "vecinfer:d4b4", at("dump.h5"), "-o", at(name))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def args(*more):
    return with_defaults(more, m=at("m"), f=at("eval.txt"), c=CTX, n=WINDOWS)


def ppl(*more):
    return list(csv.DictReader(io.StringIO(must("kvppl", *args(*more)))))


def lines(path):
    if not os.path.exists(path):
        return 0
    with open(path) as f:
        return f.read().count("\n")


def timeless(row):
    return {k: v for k, v in row.items()
            if k not in ("seconds", "attn_seconds", "threads")}


def untimed(path):
    """A table as text, without its rows' seconds."""
    text = read(path).decode()
    for row in csv.DictReader(io.StringIO(text)):
        text = text.replace(f",{row['seconds']},", ",,", 1)
    return text


class Case(unittest.TestCase):
    maxDiff = None

    def refused(self, words, *argv):
        done = run("kvppl", "-q", *argv)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(done.stdout)
        self.assertTrue(done.stderr.startswith("kvppl: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)
