"""The tables of papers (results/paper.mk): each at its smallest, and what is
said where something is missing."""
import csv
import glob
import os
import subprocess
import tempfile
import unittest

from run_scripts import ROOT

RESULTS = os.path.join(ROOT, "results")
BUILD = os.environ.get("KV_BUILD_ROOT", os.path.join(ROOT, "build"))
TOOLS = os.path.join(BUILD, "tools")
PAPERS = sorted(os.path.basename(os.path.dirname(p))
                for p in glob.glob(os.path.join(RESULTS, "*", "paper.csv")))


def rows(paper, name="paper.csv"):
    with open(os.path.join(RESULTS, paper, name), newline="",
              encoding="utf-8") as f:
        return list(csv.DictReader(f))


class Papers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="papers-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def make(self, *args, code=0):
        done = subprocess.run(
            ["make", "-C", RESULTS, f"BIN={TOOLS}", f"SMOKE={self.folder}",
             *args], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def test_every_page(self):
        self.make("smoke")
        for paper in PAPERS:
            for table in {r["table"] for r in rows(paper)}:
                with self.subTest(paper=paper, table=table):
                    path, = glob.glob(f"{self.folder}/{paper}/*-{table}.md")
                    with open(path, encoding="utf-8") as f:
                        page = f.read()
                    self.assertRegex(page.splitlines()[-1],
                                     "^(order|order of schemes|values): ")
                    for r in rows(paper):
                        if r["table"] == table:
                            self.assertIn(f"| {r['row']} |", page)

    def test_text_of_a_page(self):
        said = self.make("-n", "-C", "evasion", "table1-ptb", "table1-c4",
                         "TEXT=/text", "PTB=/ptb", "C4=/c4",
                         f"OUT={self.folder}")
        ran = [l for l in said.splitlines() if "/kvppl " in l]
        self.assertEqual(sorted(l.split(" -f ")[1].split()[0] for l in ran),
                         ["/c4", "/ptb"])

    def test_refused(self):
        for words, *args in (
                ["/none: neither a model folder nor a GGUF", "MODEL=/none"],
                ["/none.txt: no such text", "TEXT=/none.txt"],
                ["tokens, 4000 windows of 64 want 256000", "WINDOWS=4000"],
                ["windows of 1024 tokens, CTX is 2048", "CTX=2048"],
                ["has no kvdump", "BIN=/none"]):
            with self.subTest(words):
                self.assertIn(words, self.make("smoke-vecinfer", *args, code=2))


if __name__ == "__main__":
    unittest.main()
