"""What a page of a paper says of its rows (results/paper): a folder of a paper
whose order, and whose errors, are known."""
import csv
import os
import subprocess

from run_scripts import ROOT, Scripts

NOTE = " (errors are not paired, since older rows lack kl_windows)"
PAPER = os.path.join(ROOT, "results", "paper")
SAME = {"version": "1", "model": "m", "model_hash": "h", "gemm": "f32",
        "text": "t", "text_hash": "x", "ctx": "8", "windows": "4", "bos": "0",
        "protocol": "all", "device": "cpu", "level": "c", "calib_text": "",
        "calib_leak": "", "bits": "4", "bits_total": "4", "ppl": "9",
        "ppl_se": "1"}


class Pages(Scripts):
    def page(self, table):
        self.write("README.md", f"# A paper\n\n## {table}: a table\n")
        done = subprocess.run(
            [PAPER, "page", table, "m", "page.md", self.write("set", "")],
            cwd=self.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(os.path.join(self.folder, "page.md"), encoding="utf-8") as f:
            return f.read()

    def last(self, score, found, full="f32", jitter=None, windows=None,
             paired=True):
        """The last line, of {row: score of the paper} and of {row: (KL, its
        error)}; row "full" is the cache at full precision.  jitter: None, or
        all rows' kl_jitter.  windows: None, or {row: its kl_windows}; paired:
        whether the line may not say that errors are not paired."""
        self.csv("paper.csv", [
            {"table": "t", "row": r, "column": "c", "value": v, "unit": "score",
             "page": "p. 1"} for r, v in score.items()])
        self.csv("rows.csv", [
            {"table": "t", "row": r, "group": "g",
             "spec": "f32" if r == "full" else r} for r in score])
        rows = [{"spec": full, "scheme": full, "kl_mean": "", "kl_se": "", **SAME}]
        rows += [{"spec": r, "scheme": r, "kl_mean": kl, "kl_se": se, **SAME}
                 for r, (kl, se) in found.items()]
        for row in rows if jitter else []:
            row["kl_jitter"] = jitter if row["kl_mean"] else ""
        for row in rows if windows else []:
            row["kl_windows"] = windows.get(row["spec"], "")
        self.csv("m-g.csv", rows)
        last = self.page("t").splitlines()[-1]
        some = "order of schemes: none" not in last
        self.assertEqual(NOTE in last, some and not (windows and paired), last)
        return last.replace(NOTE, "")

    def test_windows_are_paired(self):
        # Two rows that rise and fall together: errors of 1 each, and of .01 of
        # their difference.
        score = {"a": 8, "b": 7}
        a, b = "1 3 1 3", "1.04 3.06 1.06 3.04"
        found = {"a": (2, 1), "b": (2.05, 1)}
        self.assertIn("undecided", self.last(score, found))
        self.assertEqual(self.last(score, found, windows={"a": a, "b": b}),
                         "order of schemes: one pair alone, as in the paper")
        self.assertEqual(
            self.last(score, {"a": (2.05, 1), "b": (2, 1)},
                      windows={"a": b, "b": a}),
            "order of schemes: one pair alone, not as in the paper; not: a "
            "ahead of b")
        # apart by less than two errors, in either direction
        near = "1.04 2.97 1.04 2.97"  # differences .04 -.03 .04 -.03
        for first, second in (a, near), (near, a):
            self.assertIn("undecided; within two standard errors: a ahead",
                          self.last(score, {"a": (2, 1), "b": (2.005, 1)},
                                    windows={"a": first, "b": second}))
        # one row of an older version: no pair of windows
        self.assertIn("undecided", self.last(score, found, windows={"a": a},
                                             paired=False))

    def test_one_pair_of_windows(self):
        self.assertIn(
            "one window has no error: a ahead of b",
            self.last({"a": 8, "b": 7}, {"a": (.1, ""), "b": (.2, "")},
                      windows={"a": "0.1", "b": "0.2"}))

    def test_a_table_under_other_settings(self):
        score = {"a": 8, "b": 7}
        found = {"a": (.1, .001), "b": (.2, .001)}
        self.last(score, found)
        numbers = [("t", "a", "8"), ("t", "b", "7"), ("t-c4", "a", "5"),
                   ("t-c4", "b", "6")]
        self.csv("paper.csv", [
            {"table": t, "row": r, "column": "c", "value": v, "unit": "score",
             "page": ""} for t, r, v in numbers])
        self.csv("rows.csv", [{"table": t, "row": r, "group": "g", "spec": r}
                              for t in ("t", "t-c4", "t-other") for r in "ab"])
        for table, words in (("t-c4", "not as in the paper"),
                             ("t-other", "alone, as in the paper")):
            self.assertIn(words, self.page(table).splitlines()[-1])

    def test_what_rounding_moves(self):
        # .1001 is beyond two of .05, not of what --jitter moves
        score, found = {"a": 8, "b": 7}, {"a": (.2, .03), "b": (.3001, .04)}
        self.assertIn("one pair alone, as in", self.last(score, found,
                                                         jitter=".02"))
        self.assertIn("undecided", self.last(score, found, jitter=".04"))

    def figures(self, compares, unit, paper, here):
        """The same for figures, {row: value}."""
        columns = ("table", "row", "column", "value", "unit", "page")
        self.csv("paper.csv", [dict(zip(columns, ("t", r, "c", v, unit, "")))
                               for r, v in paper.items()])
        self.csv("rows.csv", [{"table": "t", "row": "*", "group": "g",
                               "spec": compares}])
        self.csv("m-g.csv", [{"row": r, "column": "c", "value": v, "unit": ""}
                             for r, v in here.items()])
        return self.page("t").splitlines()[-1]

    def test_three_counts(self):
        # a to d in the paper's order.  The error of a and b is
        # (.03^2 + .04^2)^(1/2) = .05: a gap of .1001 is beyond two of it, one
        # of .0999 is not.  c and d are ahead of both, and as good as equal.
        score = {"full": 9, "a": 8, "b": 7, "c": 6, "d": 5}
        self.assertEqual(
            self.last(score, {"a": (.2, .03), "b": (.3001, .04),
                              "c": (.05, .001), "d": (.0501, .001)}),
            "order of schemes: 1 of 6 pairs as in the paper, 4 not, 1 "
            "undecided; not: a ahead of c, a ahead of d, b ahead of c, b ahead "
            "of d; within two standard errors: c ahead of d")
        self.assertIn(
            "0 of 6 pairs as in the paper, 4 not, 2 undecided",
            self.last(score, {"a": (.2, .03), "b": (.2999, .04),
                              "c": (.05, .001), "d": (.0501, .001)}))

    def test_full_precision_is_no_scheme(self):
        found = {"a": (.1, .001), "b": (.2, .001)}
        self.assertEqual(self.last({"full": 9, "a": 8, "b": 7}, found),
                         "order of schemes: one pair alone, as in the paper")
        # nor has it a rank: that of a is 1
        with open(os.path.join(self.folder, "page.md"), encoding="utf-8") as f:
            cells = [[c.strip() for c in line.split("|")]
                     for line in f if line.startswith(("| full", "| a"))]
        self.assertEqual([(c[4], c[10]) for c in cells], [("", ""), ("1", "1")])
        self.assertEqual(self.last({"full": 9, "a": 8}, {"a": (.1, .001)}),
                         "order of schemes: none is claimed here")

    def test_one_pair(self):
        score = {"a": 8, "b": 7}
        self.assertEqual(
            self.last(score, {"a": (.2, .001), "b": (.1, .001)}),
            "order of schemes: one pair alone, not as in the paper; not: a "
            "ahead of b")
        self.assertEqual(
            self.last(score, {"a": (.1, .1), "b": (.2, .1)}),
            "order of schemes: one pair alone, undecided; within two standard "
            "errors: a ahead of b")

    def test_one_window_decides_nothing(self):
        self.assertEqual(
            self.last({"a": 8, "b": 7, "c": 6},
                      {"a": (.1, ""), "b": (.2, ""), "c": (.3, "")}),
            "order of schemes: 0 of 3 pairs as in the paper, 0 not, 3 "
            "undecided; one window has no error: a ahead of b, a ahead of c, b "
            "ahead of c")

    def test_order_of_figures(self):
        ranks = {"x": 1, "y": 2, "z": 3}
        self.assertEqual(
            self.figures("order", "rank, least first", ranks,
                         {"x": .5, "y": .5, "z": .4}),
            "order: 0 of 3 pairs as in the paper, 2 not, 1 undecided (figures "
            "without errors); not: c: x below z, c: y below z; equal here: c: "
            "x below y")

    def test_values_of_figures(self):
        self.assertEqual(
            self.figures("values", "%", {"x": 50, "y": 200, "z": 0},
                         {"x": 50.4, "y": 150, "z": 0}),
            "values: 2 of 3 within 1 % of the paper's; farthest: y, c, "
            "-25.00 %")
        self.assertEqual(self.figures("values", "%", {"x": 50}, {"x": 49.6}),
                         "values: 1 of 1 within 1 % of the paper's")

    def test_context_that_outgrows_a_layer(self):
        # A layer as large as 3,000 tokens in fp16.  Of 100 tokens 20 stay in
        # fp16 and 80 take 2 bits: 4.8 bits a value.  At 23,860 tokens 20 in
        # fp16 and 23,840 of 2 bits take the 48,000 bits a channel of 3,000.
        about = self.csv("about.csv", [
            {"n_heads": 4, "n_kv_heads": 1, "even_ctx": 9, "kv_bytes_per_token": 9},
            {"n_heads": 4, "n_kv_heads": 4, "even_ctx": 3000,
             "kv_bytes_per_token": 160}])
        shape = self.csv("shape.csv", [
            {"spec": "kivi:b2r20,axis=paper", "bits": 4.8, "bits_quantized": 2,
             "ctx": 100}])
        out = os.path.join(self.folder, "bits.csv")
        self.run_script("results/figures", "lecture-schemes", out, about, shape)
        with open(out, newline="", encoding="utf-8") as f:
            found = {r["column"]: float(r["value"]) for r in csv.DictReader(f)}
        self.assertEqual(found.pop("value at 100 tokens"), 4.8)
        self.assertEqual(found.pop("quantized value"), 2)
        self.assertEqual(found.pop("further token"), 20)
        self.assertAlmostEqual(found.pop("context that outgrows a layer"), 23860)
        self.assertEqual(found, {})



class Contradictions(Scripts):
    """results/hack/contradictions, with the paper's numbers and with one that
    would end a contradiction."""

    def said(self, change=lambda text: text):
        hack = os.path.join(ROOT, "results", "hack")
        for name in "serving.csv", "README.md":
            with open(os.path.join(hack, name), encoding="utf-8") as f:
                text = f.read()
            self.write(name, change(text) if name == "serving.csv" else text)
        done = subprocess.run(
            [os.path.join(hack, "contradictions"), "page.md", os.path.join(
                ROOT, "data", "serving", "hack.json")],
            cwd=self.folder, text=True, stderr=subprocess.PIPE)
        page = os.path.join(self.folder, "page.md")
        with open(page, encoding="utf-8") as f:
            return done.returncode, f.read()

    def test_paper(self):
        code, page = self.said()
        self.assertEqual(code, 0, page)
        self.assertIn("| 0.725 of the baseline's JCT at least |", page)
        self.assertIn("10 of 10 hold", page)

    def test_changed(self):
        for old, new, wrong in (
                ("figure9,Cocktail,cachegen,41.5", "figure9,Cocktail,cachegen,55",
                 "CacheGen's parts"),
                ("figure1,instances,decode most,82.5",
                 "figure1,instances,decode most,70", "instances"),
                ("HACK's prefill time below the others' least,14.6",
                 "HACK's prefill time below the others' least,0.2", "IMDb")):
            code, page = self.said(lambda text: text.replace(old, new))
            self.assertEqual(code, 1, page)
            held, = [x for x in page.splitlines() if "**no**" in x]
            self.assertIn(wrong, held)


if __name__ == "__main__":
    import unittest
    unittest.main()
