"""The scripts that make tables, count and check, on small made-up inputs."""
import json
import os
import re
import shutil
import subprocess
import unittest

from run_scripts import ROOT, Scripts, cells

PPL = {"tool": "kvppl", "version": "1", "model": "m", "model_hash": "aa",
       "text": "t.txt", "text_hash": "bb", "ctx": "256", "windows": "2",
       "bos": "0", "special": "0", "protocol": "all", "calib_text": "", "calib_leak": "", "device": "cpu",
       "level": "c", "gemm": "f32",
       "seed": "0", "bits": "", "bits_quantized": "",
       "bits_total": "", "ppl": "9.5", "ppl_se": "0.1", "dnll": "",
       "dnll_se": "", "kl_mean": "", "kl_se": "", "same_top1": ""}
HACK = "axes=paper,round=%s,se=yes,rqe=yes,prefill=codes,qb=8"


class Demo(Scripts):
    def test_refused(self):
        for words, *args in (
                ["/none: neither a model folder with a config.json nor a GGUF",
                 "none"],
                ["--foo: expected MODEL, TEXT", "--foo"],
                ["d: expected three arguments at most", "a", "b", "c", "d"]):
            self.assertIn(words, self.run_script("scripts/demo", *args, code=2))


class Table(Scripts):
    def table(self, *rows):
        """Rows are (spec, bits)."""
        ppl = [dict(PPL, spec=s, bits=b, bits_quantized=b,
                    bits_total=str(float(b) * 1.25)) for s, b in rows]
        error = [{"spec": s, "side": side, "layer": layer, "sqnr_db": "20",
                  "attn_rel_err": "0.5" if side == "KV" else ""}
                 for s, _ in rows if s != "f32:r0s0"
                 for side in ("K", "V", "KV")
                 for layer in ("0", "all")]
        return self.run_script("scripts/table", self.csv("quant.csv", error),
                               self.csv("ppl.csv", ppl))

    def test_distinct_specs_stay_distinct(self):
        out = self.table(("f32:r0s0", "32"),
                         ("hack:b2p64r0s0," + HACK % "stochastic", "2.6"),
                         ("hack:b2p64r0s0," + HACK % "nearest", "2.6"))
        self.assertEqual([r[0] for r in cells(out)],
                         ["f32", "hack:b2p64,round=stochastic",
                          "hack:b2p64,round=nearest"])
        self.assertIn("`all: r0s0`", out)
        self.assertIn("`hack: axes=paper,se=yes,rqe=yes,prefill=codes,qb=8`",
                      out)

    def test_what_is_left_out_is_said(self):
        out = self.table(("f16:r0s0", "16"),
                         ("million:d2b8r0s0,t=none,iters=10", "4"),
                         ("million:d4b8r0s0,t=none,iters=10", "2"))
        self.assertEqual([r[0] for r in cells(out)],
                         ["f16", "million:d2b8", "million:d4b8"])
        self.assertIn("`million: t=none,iters=10`", out)

    def test_tsv(self):
        row = dict(PPL, spec="pq:d4b8r0s0,t=none", text='"a".txt', bits="2",
                   bits_quantized="2", bits_total="2.5")
        csv = self.csv("one.csv", [row])
        tsv = self.write("one.tsv", "%s\n%s\n" % (
            "\t".join(row), "\t".join(row.values())))
        quant = self.csv("quant.csv", [{"spec": "", "side": "", "layer": ""}])
        self.assertEqual(self.run_script("scripts/table", quant, csv),
                         self.run_script("scripts/table", quant, tsv))

    def test_total(self):
        out = self.table(("pq:d4b8r0s0", "2"))
        self.assertEqual(cells(out)[0][1:4], ["2.000", "2.000", "2.500"])

    def test_refused(self):
        one = self.csv("one.csv", [dict(PPL, spec="f32:r0s0")])
        self.assertEqual(
            self.run_script("scripts/table", one, "no.csv", code=1),
            "table: no.csv: No such file or directory\n")
        self.assertIn("has no column layer: expected quant.csv of kvquant",
                      self.run_script("scripts/table", one, one, code=1))

    def test_sides_and_residual(self):
        out = self.table(("kivi:K-b2g32r0s0/V-b2g8r0s0", "4.5"))
        self.assertEqual(cells(out)[0][0], "kivi:K-b2g32/V-b2g8")
        out = self.table(("f32:r0s0", "32"),
                         ("K-q8_0:r0s0,rot=no/V-q4_0:r0s0,rot=no", "6.5"),
                         ("h2o:b0.2+K-q8_0:r0s0,rot=no/V-f16:r0s0", "12"))
        self.assertEqual([r[0] for r in cells(out)],
                         ["f32", "h2o:b0.2+K-q8_0/V-f16", "K-q8_0/V-q4_0"])
        self.assertIn("`q8_0: rot=no`", out)
        out = self.table(("f16:r0s0", "16"), ("kivi:b2g32r128s0", "3"))
        self.assertEqual([r[0] for r in cells(out)],
                         ["f16:r0s0", "kivi:b2g32r128s0"])
        self.assertNotIn("Left out", out)

    def test_by_bits(self):
        out = self.table(("f32:r0s0", "32"), ("kivi:b2g32r0s0", "3"),
                         ("absmax:b8g8r0s0", "10"))
        self.assertEqual([r[1] for r in cells(out)],
                         ["32.000", "10.000", "3.000"])

    def test_blank_cells_stay_blank(self):
        out = self.table(("f32:r0s0", "32"), ("kivi:b2g32r0s0", "3"))
        self.assertEqual(cells(out)[0][1:],
                         ["32.000", "32.000", "40.000", "", "", "", "9.500",
                          "0.100", "", ""])
        self.assertEqual(cells(out)[1][4:7], ["20.0", "20.0", "0.5000"])


# cmocka's output, on stdout and stderr.
CMOCKA_OUT = """[==========] Running 6 test(s).
[ RUN      ] a
[  FAILED  ] a
[==========] 6 test(s) run.
"""
CMOCKA_ERR = """[  ERROR   ] --- 0
[   LINE   ] --- a.c:8: error: Failure!
[  PASSED  ] 3 test(s).
[  SKIPPED ] 2 test(s), listed below:
[  SKIPPED ] b

 2 SKIPPED TEST(S)
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] a
"""


class Count(Scripts):
    def count(self, *runs, code):
        lines = [json.dumps({"name": "kvtools:x", "result": result,
                             "duration": 1.0, "stdout": out, "stderr": err})
                 for result, out, err in runs]
        log = self.write("testlog.json", "".join(x + "\n" for x in lines))
        out = self.run_script("scripts/count_tests", log, code=code)
        return out.splitlines()[-1]

    def test_cmocka(self):
        self.assertEqual(self.count(("FAIL", CMOCKA_OUT, CMOCKA_ERR), code=1),
                         "3 passed, 1 failed, 2 skipped")
        self.assertEqual(self.count(("OK", "[==========] 3 test(s) run.\n",
                                     "[  PASSED  ] 3 test(s).\n"), code=0),
                         "3 passed, 0 failed, 0 skipped")

    def test_unittest(self):
        self.assertEqual(
            self.count(("OK", "", "Ran 5 tests in 1s\n\nOK (skipped=2)\n"),
                       ("FAIL", "", "Ran 4 tests in 1s\n\n"
                                    "FAILED (failures=1, errors=1)\n"),
                       code=1), "5 passed, 2 failed, 2 skipped")

    def test_a_class_skipped_as_a_whole(self):
        self.assertEqual(
            self.count(("OK", "ok", ""),
                       ("OK", "", "Ran 0 tests in 0s\n\nOK (skipped=1)\n"),
                       code=0), "1 passed, 0 failed, 1 skipped")

    def test_a_crash_is_a_failure(self):
        cut = "[==========] Running 9 test(s).\n[ RUN      ] test_a\n"
        self.assertEqual(self.count(("OK", "", ""), ("FAIL", "", cut),
                                    ("TIMEOUT", "", ""), code=1),
                         "1 passed, 2 failed, 0 skipped")
        # Every test passed, and then the program died.
        self.assertEqual(self.count(("FAIL", "[==========] 2 test(s) run.\n",
                                     "[  PASSED  ] 2 test(s).\n"), code=1),
                         "2 passed, 1 failed, 0 skipped")

    def test_nothing_ran(self):
        self.assertEqual(self.count(code=1), "0 passed, 1 failed, 0 skipped")
        out = self.run_script("scripts/count_tests",
                              os.path.join(self.folder, "none"), code=1)
        self.assertEqual(out.splitlines()[-1], "0 passed, 1 failed, 0 skipped")
        self.assertIn("no tests ran", out)


class Recipes(Scripts):
    """Of the recipes only make's goals and groups of rows are looked at."""
    STUBS = """
make() { command make -n "$@" > made 2>&1 || { cat made; exit 1; }; }
tables() { :; }; category() { :; }; plot() { :; }
cp() { :; }; head() { :; }; mkdir() { :; }
"""

    TABLES = """#!/bin/sh
[ $1 != specs ] || grep -q "^$3," rows.csv || echo "no group $3" >> missing
"""

    def test_schemes(self):
        results = os.path.join(ROOT, "results")
        work = os.path.join(self.folder, "schemes")
        os.mkdir(work)
        for name in "Makefile", "rows.csv":
            shutil.copy(os.path.join(results, "schemes", name), work)
        shutil.copy(os.path.join(results, "slurm.mk"), self.folder)
        tables = os.path.join(work, "tables")
        with open(tables, "w") as f:
            f.write(self.TABLES)
        os.chmod(tables, 0o755)
        with open(os.path.join(results, "schemes/README.md")) as f:
            block = re.findall(r"(?:^    .*\n)+", f.read(), re.M)[1]
        self.assertGreater(block.count("make "), 20)
        block = re.sub(r"\S*/(tables|category|plot) ", r"\1 ", block)
        run = subprocess.run(["bash", "-c", self.STUBS + block], cwd=work,
                             capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))
        self.assertFalse(os.path.exists(os.path.join(work, "missing")))


class Schemes(Scripts):
    name = "results/schemes/tables"
    base = dict(PPL, spec="f32:r0s0", bits="32", bits_total="32",
                calib_hash="")
    LISTED = [["group", "spec", "s0", "s1"],
              ["plain", "kivi:b2g32", "", "kivi:K-b2g31/V-b2g32"],
              ["plain", "zipcache:b4l2", "zipcache:b4l2nCTX",
               "zipcache:b4l2nCTX-1"],
              ["books", "cq:c4b8", "", ""], ["books", "cq:c8b8", "", ""],
              ["klt", "klt:b2", "", ""], ["klt", "klt:b1,metric=none", "", ""]]

    def listed(self):
        return self.csv("rows.csv", [dict(zip(self.LISTED[0], r))
                                     for r in self.LISTED[1:]])

    def specs(self, group, form, code=0):
        return self.run_script(self.name, "specs", self.listed(), group, form,
                               "64", "9", code=code)

    def test_specs(self):
        self.assertEqual(self.specs("plain", "rs"),
                         "-s kivi:b2g32 -s zipcache:b4l2 ")
        self.assertEqual(self.specs("plain", "s0"),
                         "-s kivi:b2g32 -s zipcache:b4l2n64 ")
        self.assertEqual(self.specs("plain", "s1"),
                         "-s kivi:K-b2g31r0s1/V-b2g32r0s1 "
                         "-s zipcache:b4l2n63r0s1 ")
        self.assertEqual(self.specs("klt", "s1"),
                         "-s klt:b2r0s1 -s klt:b1r0s1,metric=none ")
        self.assertEqual(self.specs("books", "s0"),
                         "-s cq:c4b8,iters=9 -s cq:c8b8,iters=9 ")
        self.assertIn("rows.csv has no group none",
                      self.specs("none", "s0", code=2))

    def rows(self, form, group, *figures, domain=""):
        """A file of kvppl's rows: (spec, bits, KL)."""
        return self.csv("t-%s-%s%s.csv" % (form, group,
                                           domain and "-" + domain),
                        [self.base] + [dict(
                            self.base, spec=spec, bits=bits, bits_total=bits,
                            dnll="0.1", dnll_se="0.01", kl_mean=kl,
                            kl_se="0.001", same_top1="0.9",
                            calib_hash=domain, calib_leak=domain and "0",
                            calib_text=domain and "calib-%s.txt" % domain)
                            for spec, bits, kl in figures])

    def table(self, **books):
        """A text's table: two groups of others, klt on two calibrations."""
        files = [
            self.rows("s0", "plain", ("kivi:b2g32r0s0", "3", "0.05"),
                      ("zipcache:b4l2n64r0s0", "3.4", "0.06")),
            self.rows("s1", "plain", ("kivi:b2g31r0s1", "3.1", "0.04"),
                      ("zipcache:b4l2n63r0s1", "3.5", "0.05")),
            self.rows("s0", "books", ("cq:c4b8r0s0", "2", "0.04"),
                      ("cq:c8b8r0s0", "1", "0.4"), domain="wiki"),
            self.rows("s0", "klt", ("klt:b2r0s0", "2", "0.01"),
                      ("klt:b1r0s0", "1", "0.1"), domain="wiki"),
            self.rows("s0", "klt", ("klt:b2r0s0", "2", "0.02"),
                      ("klt:b1r0s0", "1", "0.5"), domain="books")]
        return self.write("m-t.csv", self.run_script(
            self.name, "join", self.listed(), "64", "9", *files))

    def test_page(self):
        every, klt = self.run_script(self.name, "page", self.table()).split(
            "## klt against")
        self.assertEqual([r[:2] + [r[2], r[5], r[7], r[10]]
                          for r in cells(every)], [
            ["`f32`", "", "32.000", "", "32.000", ""],
            ["`zipcache:b4l2`", "", "3.400", "0.06000 ± 0.00100", "3.500",
             "0.05000 ± 0.00100"],
            ["`kivi:b2g32`", "", "3.000", "0.05000 ± 0.00100", "3.100",
             "0.04000 ± 0.00100"],
            ["`klt:b2`", "wiki", "2.000", "0.01000 ± 0.00100", "", ""],
            ["`klt:b2`", "books", "2.000", "0.02000 ± 0.00100", "", ""],
            ["`cq:c4b8`", "wiki", "2.000", "0.04000 ± 0.00100", "", ""],
            ["`klt:b1,metric=none`", "wiki", "1.000", "0.10000 ± 0.00100", "",
             ""],
            ["`cq:c8b8`", "wiki", "1.000", "0.40000 ± 0.00100", "", ""],
            ["`klt:b1,metric=none`", "books", "1.000", "0.50000 ± 0.00100", "",
             ""]])
        self.assertEqual([[r[0], r[1], r[2], r[5], r[8]] for r in cells(klt)], [
            ["s0", "2", "wiki", "`cq:c4b8`", "0.250 ± 0.026"],
            ["s0", "2", "books", "`cq:c4b8`", "0.500 ± 0.028"],
            ["s0", "1", "wiki", "`cq:c8b8`", "0.250 ± 0.003"],
            ["s0", "1", "books", "`cq:c8b8`", "1.250 ± 0.004"]])

    def test_overview(self):
        out = self.run_script(self.name, "overview", self.table())
        self.assertIn("klt leads in 3 of 4 comparisons, clearly in 3, and is "
                      "behind in 1, clearly in 1; ratio 0.250 to 1.250.", out)
        self.assertEqual(cells(out)[0][0], "[m-t](m-t.md)")
        self.assertIn("Errors are not paired, since older rows lack", out)

    def test_clear_leads(self):
        """Of paired windows."""
        for windows, said, ratio, clear in (
                ("0.01 0.03 0.01 0.03", "clearly in 1, and is behind in 0",
                 "0.500 ± 0.000", "yes"),
                ("0.036 0.004 0.036 0.004", "clearly in 0, and is behind in 0",
                 "0.500 ± 0.375", "no")):
            rows = [dict(self.base, row=row, form="s0", spec=row, bits="2",
                         kl_mean=kl, kl_se="0.1", kl_windows=each,
                         calib_text=text)
                    for row, kl, each, text in (
                        ("klt:b2", "0.02", windows, "calib-wiki.txt"),
                        ("cq:c4b8", "0.04", "0.02 0.06 0.02 0.06",
                         "calib-wiki.txt"))]
            for r in rows:
                r["calib_leak"] = "0"
            out = self.run_script(self.name, "overview",
                                  self.csv("m-t.csv", rows))
            self.assertIn("klt leads in 1 of 1 comparisons, " + said, out)
            self.assertEqual(cells(out)[0][-2:], [ratio, clear])
            self.assertNotIn("not paired", out)

    def test_beside(self):
        """The order of b and c is another on the second text, where the order
        of a and b is not clear.  All are before d on both."""
        def text(name, **kl):
            rows = [dict(self.base, row="f32", form="s0", text=name, seed="7",
                         places="random", kl_windows="")]
            return self.csv(name + ".csv", rows + [
                dict(rows[0], row=row, spec=row, bits="2", kl_mean=str(at),
                     kl_se="0.1", kl_windows=" ".join(
                         str(at + d) for d in (-noise, noise) * 2))
                for row, (at, noise) in kl.items()])

        paths = [text("one.txt", a=(1, 0), b=(2, 0), c=(3, 0), d=(9, 0)),
                 text("two.txt", a=(1, 0), b=(1.5, 1), c=(0.5, 1), d=(9, 0))]
        out = self.run_script(self.name, "beside", "s0", *paths)
        self.assertEqual([r[0] + r[3][:3] + r[4][:3] for r in cells(out)],
                         ["`a`1.01.0", "`b`2.01.5", "`c`3.00.5", "`d`9.09.0"])
        self.assertEqual(out.count("2 windows at random places (seed 7)"), 2)
        self.assertIn("Of 6 pairs of rows 3 have one clear order with all texts, "
                      "and 1 clear but different\norders with two: `b` and `c`.", out)
        self.assertNotIn("not paired", out)
        for other, words in ((dict(form="s1"), "other.csv has no rows at s0"),
                             (dict(model_hash="zz", text_hash="zz"),
                              "expected tables of one model or of one text")):
            path = self.csv("other.csv", [dict(self.base, row="f32", form="s0")
                                          | other])
            self.assertIn(words, self.run_script(
                self.name, "beside", "s0", paths[0], path, code=2))

    def test_beside_models(self):
        rows = [dict(self.base, row=row, form="rs", bits="2", kl_mean=kl)
                for row, kl in (("f32", ""), ("a", "1"), ("b", "2"))]
        paths = [self.csv(model + ".csv", [
            dict(r, model=model, model_hash=model, bits=bits) for r in rows])
            for model, bits in (("m1", "2"), ("m2", "3"))]
        out = self.run_script(self.name, "beside", "rs", *paths)
        self.assertIn("| scheme | calibrated on | bits | m1 | bits | m2 |", out)
        self.assertEqual([[r[0], r[2], r[4]] for r in cells(out)],
                         [["`a`", "2.00", "3.00"], ["`b`", "2.00", "3.00"]])

    def test_beside_and_calibrations(self):
        """A name has a row for each text that it was calibrated on."""
        path = self.table()
        found = cells(self.run_script(self.name, "beside", "s0", path, path))
        self.assertEqual([r[:2] + [r[3][:4]] for r in found
                          if r[0] == "`klt:b2`"],
                         [["`klt:b2`", "wiki", "0.01"],
                          ["`klt:b2`", "books", "0.02"]])
        none = self.csv("n.csv", [dict(self.base, form="s0", row="f32")])
        self.assertIn("no row is in each of", self.run_script(
            self.name, "beside", "s0", path, none, code=2))

    def test_other_places(self):
        base = dict(self.base, row="f32", form="s0", places="random")
        for other in dict(places="first"), dict(seed="1"):
            mixed = self.csv("mixed.csv", [base, dict(base, **other)])
            self.assertIn("at random places (seed 0)", self.run_script(
                self.name, "page", mixed, code=2))

    def test_category(self):
        name = "results/schemes/category"
        items = self.write("i.jsonl", json.dumps(
            {"question": "1 + 1?", "answer": "It is <<1+1=2>>2."}) + "\n" +
            json.dumps({"text": "Add.", "code": "a<<b\r\nc>>d"}) + "\n")
        self.assertEqual(self.run_script(name, "chat", items), "".join(
            f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}"
            "<|im_end|>\n" for q, a in (("1 + 1?", "It is 2."),
                                        ("Add.", "a<<b\nc>>d"))))
        self.assertIn("i.jsonl:1: expected a field context",
                      self.run_script(name, "code", items, code=2))
        self.assertEqual(self.run_script(name, "code", self.write(
            "c.jsonl", json.dumps({"context": "int x;"}))), "int x;\n")
        self.assertIn("c.jsonl:1: not a JSON object", self.run_script(
            name, "code", self.write("c.jsonl", "{"), code=2))

    def test_stress(self):
        """The first of two rows of a name; a row without its bias."""
        names = ["turboquant:b4", "turboquant:b3", "quarot:b4", "q4_0",
                 "q4_0,rot", "nvfp4", "nf4", "kivi:b4g32", "kivi:b2g32",
                 "cq:c4b8", "klt:b2", "klt:b2"]

        def rows(name, ppl, kl):
            return self.csv(name, [dict(self.base, row="f32", form="s0")] + [
                dict(self.base, row=row, form=form, spec=row + ":r0", bits="4",
                     ppl=ppl * (1 + n), kl_mean=kl * (1 + n), kl_se="0.01")
                for form in ("s0", "s1") for n, row in enumerate(names)])

        bare = dict(self.base, spec="q4_0:r0,k_bias=no", ppl="19", kl_mean="0.5",
                    kl_se="0.01")
        table = [rows("a-t.csv", 19, 1), self.csv("b.csv", [self.base, bare]),
                 rows("c-t.csv", 9.5, .1)]
        found = cells(self.run_script(self.name, "stress", *table))
        self.assertEqual(len(found), 11)
        self.assertEqual(found[0][:3], ["`klt:b2`", "4.000", "22.000"])
        self.assertEqual(found[7], [
            "`q4_0`", "4.000", "8.000", "4.0000 ± 0.0100", "2.000",
            "0.5000 ± 0.0100", "4.000", "0.4000 ± 0.0100"])
        self.assertEqual(found[-1][4], "")
        self.assertIn("has no row turboquant:b4", self.run_script(
            self.name, "stress", self.csv("d-t.csv", [dict(
                self.base, row="f32", form="s0")]), *table[1:], code=2))

    def test_published_settings_alone(self):
        rows = self.rows("rs", "plain", ("kivi:b2g32r128s0", "3.8", "0.02"),
                         ("zipcache:b4l2n64r0s0", "3.4", "0.06"))
        out = self.run_script(self.name, "page", self.write(
            "m-stream.csv", self.run_script(
                self.name, "join", self.listed(), "64", "9", rows)))
        self.assertIn("Protocol stream", out)
        self.assertEqual([r[:3] for r in cells(out)], [
            ["`f32`", "", "32.000"], ["`kivi:b2g32`", "", "3.800"],
            ["`zipcache:b4l2`", "", "3.400"]])
        self.assertNotIn("best other", out)

    def test_bos_is_said(self):
        said = "A BOS is the first token of each window."
        for bos in "0", "1", "2":
            table = self.csv("m-t.csv", [dict(self.base, row="f32", form="s0",
                                              bos=bos)])
            self.assertEqual(said in self.run_script(self.name, "page", table),
                             bos == "2")

    def test_rows_that_do_not_fit(self):
        few = self.rows("s0", "plain", ("kivi:b2g32r0s0", "3", "0.05"))
        self.assertIn("has 2 rows, expected 3", self.run_script(
            self.name, "join", self.listed(), "64", "9", few, code=2))
        table = self.csv("m-t.csv", [dict(self.base, row="f32", form="s0"),
                                     dict(self.base, row="f32", form="s1",
                                          windows="3")])
        self.assertIn("windows is 3, expected 2", self.run_script(
            self.name, "page", table, code=2))

    def test_check(self):
        """With the test's own kvdump."""
        for tool in "kvcalib", "kvppl", "kvdump":
            os.chmod(self.write("bin/" + tool, """#!/bin/sh
case $* in
*--about*) echo '{"n_ctx": 64}' ;;
*) seq 99 ;;
esac
"""), 0o755)
        text, model = self.write("t.txt", "x" * 99), self.write("m.gguf", "")
        folder = os.path.join(self.folder, "bin")

        def check(*args, code=2):
            return self.run_script(self.name, "check", *args, code=code)

        self.assertEqual(check(folder, model, "32", text + ":3", code=0), "")
        for words, *args in (
                ("has 99 tokens, 4 windows of 32 want 128", folder, model, "32",
                 text + ":4"),
                ("takes windows of 64 tokens, CTX is 65", folder, model, "65",
                 text + ":1"),
                ("no.txt: no such text", folder, model, "32", "no.txt:1"),
                ("no.gguf: neither a model folder nor a GGUF file", folder,
                 "no.gguf", "32"),
                ("has no kvdump: scripts/build", self.folder, model, "32")):
            self.assertIn(words, check(*args))


class Layers(Scripts):
    def setUp(self):
        super().setUp()
        for folder in ("lib/base", "kernels", "calib", "eval", "tools",
                       "tests", "scripts"):
            os.makedirs(os.path.join(self.folder, folder))
        shutil.copy(os.path.join(ROOT, "scripts/check_layers"),
                    os.path.join(self.folder, "scripts"))
        self.write("lib/h5.c", "#include <hdf5.h>\n")
        self.write("kernels/a.c", '#include "lib/base/err.h"\n')

    def check(self, code):
        return self.run_script("scripts/check_layers", root=self.folder,
                               code=code)

    def test_a_clean_tree(self):
        self.assertEqual(self.check(0), "")

    def test_an_include_that_points_up(self):
        self.write("lib/base/b.c", '#include "kernels/gemm.h"\n')
        self.assertIn("lib/base/b.c:1:", self.check(1))

    def test_a_library_outside_its_door(self):
        self.write("eval/b.c", "#include <hdf5.h>\n")
        self.assertIn("outside its door: eval/b.c", self.check(1))

    def test_one_name_twice(self):
        self.write("lib/base/a.c", "")
        self.assertIn("the same file name twice: a.c", self.check(1))


class Test(Scripts):
    def test_arguments(self):
        for args, words in ((["conformance"], "unknown arguments: conformance"),
                            (["--shared"], "--shared wants one folder"),
                            (["--shared", self.folder + "/no"],
                             "/no: not a folder")):
            out = self.run_script("scripts/test", *args, code=2)
            self.assertIn(words, out)
            self.assertIn("usage:", out)


class Plot(Scripts):
    def test_help_without_matplotlib(self):
        self.write("without/matplotlib.py",
                   'raise ImportError("none", name="matplotlib")\n')
        without = os.path.join(self.folder, "without")
        said = self.run_script("scripts/plot", "--help", PYTHONPATH=without)
        self.assertIn("usage: plot", said)
        said = self.run_script("scripts/plot", "x.csv", PYTHONPATH=without,
                               code=2)
        self.assertIn("has no matplotlib", said)


if __name__ == "__main__":
    unittest.main(verbosity=1)
