"""What a page of scores says (results/scores): a folder of a paper, and answers,
whose order and errors are known."""
import csv
import os
import subprocess
import unittest

from run_scripts import ROOT, Scripts

README = "# A paper\n\n## t: a table\n\nWords.\n"
PAPER = [("full", "A one", 60), ("full", "A two", 70), ("full", "B one", 50),
         ("full", "B two", 40),
         ("good", "A one", 58), ("good", "A two", 69), ("good", "B one", 48),
         ("good", "B two", 39),
         ("bad", "A one", 30), ("bad", "A two", 35), ("bad", "B one", 47),
         ("bad", "B two", 39.5)]
SPECS = {"full": "f16", "good": "kivi:b4g32", "bad": "kivi:b2g32"}
ANSWERS = {"A": {"f16": [100, 100, 100, 0], "kivi:b4g32": [100, 100, 0, 0],
                 "kivi:b2g32": [0, 0, 0, 100]},
           "B": {"f16": [50, 60, 70, 80], "kivi:b4g32": [50, 60, 70, 80],
                 "kivi:b2g32": [49, 58, 69, 78]}}


class ScorePages(Scripts):
    def setUp(self):
        super().setUp()
        self.write("README.md", README)
        self.csv("paper.csv", [
            {"table": "t", "row": r, "column": c, "value": v, "unit": "score",
             "page": "p. 1"} for r, c, v in PAPER])
        self.csv("rows.csv", [
            {"table": "t", "row": r, "group": "g",
             "spec": "f32" if s == "f16" else s} for r, s in SPECS.items()])
        self.csv("tasks.csv", [
            {"table": "t", "column": c, "task": t, "items": i,
             "metric": "acc" if i else "", "prompts": "--shots 1", "kvgen": ""}
            for c, t, i in (("A", "a", "a.jsonl"), ("B", "b", "b.jsonl"),
                            ("C", "-", "none at hand"))])
        for column, specs in ANSWERS.items():
            self.answers(column.lower(), specs)

    def answers(self, task, specs):
        self.csv(f"g-{task}.csv", [
            {"spec": s + "r0", "bits": 4, "version": "1", "model": "m",
             "model_hash": "h", "weights": "f32", "gemm": "f32",
             "device": "cpu", "level": "c", "calib_text": "",
             "prompt_tokens": 41.6} for s in specs])
        self.csv(f"t-{task}.csv", [
            {"task": task, "metric": "acc", "spec": s + "r0", "items": 4,
             "score": sum(x) / 4, "score_se": 1, "difference": -1,
             "difference_se": 2, "gained": 0, "lost": 1, "p": 1,
             "same": 0.5, "first_differs": 3, "scorer": "own",
             "harness": "H"} for s, x in specs.items()])
        self.csv(f"t-{task}-items.csv", [
            {"task": task, "metric": "acc", "spec": s + "r0", "id": n,
             "sample": 0, "score": v}
            for s, x in specs.items() for n, v in enumerate(x)])

    def scores(self, *args):
        done = subprocess.run([os.path.join(ROOT, "results/scores"), *args],
                              cwd=self.folder, text=True, check=True,
                              stdout=subprocess.PIPE)
        return done.stdout

    def test_page(self):
        self.scores("page", "t", ".", "out.md")
        with open(self.folder + "/out.md", encoding="utf-8") as f:
            page = f.read()
        self.assertIn("- A: H; acc by own; a.jsonl; prompts of 42 "
                      "tokens on average\n", page)
        self.assertIn("- C is not made: none at hand.\n", page)
        self.assertIn("| A | good | 63.50 | -1.50 | `kivi:b4g32` | 4.00 | 4 "
                      "| 50.00 ± 1.00 | -1.00 ± 2.00 | 0 | 1 | 1 | 0.500 | 3.0"
                      " |", page)
        # -50 ± 50 of A, -1.5 ± 0.29 of B
        self.assertIn("| mean | bad | 37.88 | -17.12 | `kivi:b2g32` |  |  | "
                      "44.25 | -25.75 ± 25.00 |", page)
        # "bad" is ahead in the paper's B of model two: no pair of B counts.
        self.assertEqual(
            "order of schemes by scores: one pair alone, undecided; within "
            "two standard errors: mean: good ahead of bad",
            page.splitlines()[-1])
        self.assertIn("\nBy task, pairs as in the paper, not, and undecided: "
                      "A 0, 0, 1; B 0, 0, 0.\n", page)
        with open(self.folder + "/out.csv", encoding="utf-8") as f:
            self.assertEqual(len(list(csv.DictReader(f))), 6)

    def test_order(self):
        self.answers("a", {"f16": [100] * 4, "kivi:b4g32": [90, 80, 100, 70],
                           "kivi:b2g32": [80, 60, 90, 50]})
        self.scores("page", "t", ".", "out.md", "a")
        with open(self.folder + "/out.md", encoding="utf-8") as f:
            page = f.read()
        self.assertIn("- B is not made.\n", page)
        self.assertEqual("order of schemes by scores: one pair alone, as in "
                         "the paper", page.splitlines()[-1])

    def test_runs(self):
        self.assertEqual(self.scores("runs", "t").split(), ["g:a", "g:b"])
        self.assertEqual(self.scores("runs", "t", "b").split(), ["g:b"])
        self.assertEqual(self.scores("tables", "g", "a").split(), ["t"])
        self.assertEqual(self.scores("prompts", "a", "in").split(),
                         ["a", "in/a.jsonl", "--shots", "1"])


if __name__ == "__main__":
    unittest.main()
