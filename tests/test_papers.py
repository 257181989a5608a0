"""The tables of papers (results/paper.mk): each at its smallest, and what is
said where something is missing."""
import csv
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

import tiny_model
from run_scripts import ROOT

RESULTS = os.path.join(ROOT, "results")
BUILD = os.environ.get("KV_BUILD_ROOT", os.path.join(ROOT, "build"))
TOOLS = os.path.join(BUILD, "tools")
PAPERS = sorted(os.path.basename(os.path.dirname(p))
                for p in glob.glob(os.path.join(RESULTS, "*", "paper.csv")))

WANT_ITEMS = {"table10"}  # VecInfer's, of tasks: made with TASKS alone


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
        model = os.path.join(self.folder, "m")  # half the time of data/model
        tiny_model.make(model, seed=1, heads=4, kv_heads=2, head_dim=128,
                        hidden=64, layers=2, ffn=128)
        self.make("smoke", f"MODEL={model}")
        for paper in PAPERS:
            for table in {r["table"] for r in rows(paper)} - WANT_ITEMS:
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

    def test_scores(self):
        items = os.path.join(self.folder, "items")
        os.mkdir(items)
        for name in "gsm8k-test.jsonl", "gsm8k-train200.jsonl":
            with open(os.path.join(items, name), "w", encoding="utf-8") as f:
                for n in range(6):
                    f.write(json.dumps({"question": f"{name} {n} + 1?",
                                        "answer": f"#### {n + 1}"}) + "\n")
        args = ("-C", "kivi", "table5-scores", f"MODEL={ROOT}/data/model",
                f"OUT={self.folder}", "NAME=tiny", f"PYTHON={sys.executable}",
                "ITEMS=50", "LIMIT_gsm8k=3", "ASK=--set max_tokens=6 --shots 1")
        self.make(*args, f"TASKS={items}")
        with open(f"{self.folder}/tiny-table5-scores.md",
                  encoding="utf-8") as f:
            page = f.read()
        self.assertRegex(page.splitlines()[-1], "^order of schemes by scores: ")
        self.assertIn("| GSM8K | group of 64 | 21.00 |", page)
        self.assertIn("shots=1; strict by gsm8k; gsm8k-test.jsonl", page)
        with open(f"{self.folder}/tiny-table5-scores.csv",
                  newline="", encoding="utf-8") as f:
            made = list(csv.DictReader(f))
        self.assertEqual([r["row"] for r in made], [
            "16bit", "group of 32", "group of 64", "group of 128"])
        self.assertEqual({r["items"] for r in made}, {"3"})
        self.assertIn("TASKS=: no such folder of items",
                      self.make(*args, code=2))

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
