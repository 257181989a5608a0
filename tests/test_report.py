"""scripts/report on small made-up rows; skipped without matplotlib."""
import html.parser
import importlib.util
import os
import shutil
import subprocess
import sys
import unittest

from run_scripts import ROOT, Scripts

ROW = {"version": "1", "spec": "", "model": "m<1>", "text": "t.txt",
       "ctx": "256", "windows": "2", "protocol": "all", "bits": "",
       "bits_total": "", "ppl": "9.5", "ppl_se": "0.1", "kl_mean": "",
       "kl_se": "0.01", "kl_p99": "", "same_top1": "0.9"}


def row(spec, bits, kl, **more):
    return dict(ROW, spec=spec, bits=str(bits), bits_total=str(bits),
                kl_mean=str(kl), **more)


class Tables(html.parser.HTMLParser):
    """The rows of each table's body, as lists of cells."""

    def __init__(self, text):
        super().__init__()
        self.found, self.tags, self.cell = [], set(), None
        self.in_body = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "tbody":
            self.found.append([])
            self.in_body = True
        elif tag == "tr" and self.in_body:
            self.found[-1].append([])
        elif tag == "td":
            self.cell = ""

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data

    def handle_endtag(self, tag):
        if tag == "tbody":
            self.in_body = False
        elif tag == "td":
            self.found[-1][-1].append(self.cell)
            self.cell = None


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
class Report(Scripts):
    rows = [dict(ROW, spec="f32:r0s0", bits="32", bits_total="32"),
            row("kivi:b4g32r0s0,axis=paper", 5, 0.01),
            row("cq:c4b8r0s0,books=head", 2, 0.3),
            row("kivi:b2g32r0s0,axis=paper", 3, 0.5)]

    def report(self, code=0, rows=None):
        self.html = os.path.join(self.folder, "r.html")
        done = subprocess.run(
            [sys.executable, os.path.join(ROOT, "scripts/report"),
             self.csv("r.csv", rows or self.rows), "-o", self.html], text=True,
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def test_ladder_and_rows(self):
        self.assertEqual(self.report(), "")
        with open(self.html, encoding="utf-8") as f:
            text = f.read()
        page = Tables(text)
        ladder, rows = page.found
        self.assertEqual([(r[0].split(",")[0], r[1], r[3]) for r in ladder],
                         [("cq:c4b8", "2", "0.3"), ("kivi:b4g32", "5", "0.01")])
        self.assertEqual(len(rows), 4)
        self.assertIn("svg", page.tags)
        self.assertIn("m&lt;1&gt;", text)
        self.assertNotIn("http://", text.replace("http://www.w3.org", "")
                         .replace("http://purl.org", "")
                         .replace("http://creativecommons.org", "")
                         .replace("https://matplotlib.org", ""))

    def test_conditions_apart(self):
        self.report(rows=self.rows + [row("q4_0:r0s0", 4.5, 0.02,
                                          protocol="stream")])
        with open(self.html, encoding="utf-8") as f:
            self.assertEqual(len(Tables(f.read()).found), 4)

    def test_places_apart(self):
        drawn = [row("q4_0:r0s0", 4.5, 0.02, places="random", seed=seed)
                 for seed in "01"]
        old, first = (row("q5_0:r0s0", 5.5, 0.01, **more)
                      for more in ({"places": ""}, {"places": "first"}))
        self.report(rows=[dict(old, seed="0"), dict(first, seed="1"), *drawn])
        with open(self.html, encoding="utf-8") as f:
            text = f.read()
        self.assertEqual(len(Tables(text).found), 6)
        for seed in "01":
            self.assertEqual(text.count(
                "tokens at random places (seed %s)," % seed), 1)

    def test_bad_input(self):
        self.assertIn("has no column kl_mean", self.report(
            code=2, rows=[{"spec": "f32", "bits": "1"}]))
        self.assertFalse(os.path.exists(self.html))

    @unittest.skipUnless(shutil.which("chromium"), "no chromium")
    def test_sorts_in_a_browser(self):
        self.report()
        with open(self.html, encoding="utf-8") as f:
            text = f.read()
        click = ("<script>document.querySelectorAll('table')[1]"
                 ".querySelectorAll('button')[5].click()</script>")
        with open(self.html, "w", encoding="utf-8") as f:
            f.write(text.replace("</body>", click + "</body>"))
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu",
             "--dump-dom", "file://" + self.html], text=True, timeout=60,
            capture_output=True, check=True)
        rows = Tables(done.stdout).found[1]
        self.assertEqual([r[5] for r in rows], ["0.01", "0.3", "0.5", ""])


if __name__ == "__main__":
    unittest.main()
