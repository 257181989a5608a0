"""kvppl over several models, texts, contexts, windows and protocols; base lines
in a file; options that are given twice."""
import csv
import io
import os
import re
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import must, read, run

SPECS = "-s", "kivi:b2g32r0"


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    for name, seed in ("m", 1), ("other", 2):
        tiny_model.make(at(name), seed=seed)
    for name, seed in ("a.txt", 1), ("b,c.txt", 2):
        with open(at(name), "w", encoding="utf-8") as f:
            f.write(tiny_model.text(200, seed))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def rows(*args):
    return [{k: v for k, v in r.items()
             if k not in ("seconds", "attn_seconds")} for r in
            csv.DictReader(io.StringIO(must("kvppl", "--kl", *SPECS, *args)))]


class Case(unittest.TestCase):
    maxDiff = None

    def refused(self, words, tool, *args):
        done = run(tool, "-q", *args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)


class Lists(Case):
    def test_product(self):
        texts = at("a.txt"), at("b,c.txt")
        models = at("m"), at("other")
        protocols = "all", "prefill:8"
        # commas and repeated options; a file whose name has a comma is one
        all_rows = rows("-m", ",".join(models), "-f", texts[0], "-f", texts[1],
                        "-c", "32,16", "-n", "2", "-p", ",".join(protocols))
        keys = "model", "text", "ctx", "protocol", "scheme"
        self.assertEqual([tuple(r[k] for k in keys) for r in all_rows], [
            (m, t, c, p, s) for m in ("m", "other")
            for t in ("a.txt", "b,c.txt") for c in ("32", "16")
            for p in protocols for s in ("f32", "kivi")])
        # as in separate runs: the first, one in the middle, the last
        for i, m, f, c, p in ((0, 0, 0, "32", 0), (14, 0, 1, "16", 1),
                              (30, 1, 1, "16", 1)):
            self.assertEqual(all_rows[i:i + 2], rows(
                "-m", models[m], "-f", texts[f], "-c", c, "-n", "2", "-p",
                protocols[p]))

    def test_windows_and_append(self):
        out = at("rows.csv")
        first = ["-f", at("a.txt"), "-c", "16", "-o", out, "--append"]
        must("kvppl", "--kl", *SPECS, "-m", at("m"), "-n", "1", *first)
        must("kvppl", "--kl", *SPECS, "-m", at("m"), "-m", at("other"), "-n",
             "1,2", *first)
        with open(out, encoding="utf-8") as f:
            found = list(csv.DictReader(f))
        self.assertEqual([(r["model"], r["windows"]) for r in found[::2]],
                         [("m", "1"), ("m", "2"), ("other", "1"),
                          ("other", "2")])

    def test_calibrations(self):
        """One for each model, in any order."""
        files = []
        for model in "m", "other":
            must("kvdump", "-m", at(model), "-f", at("b,c.txt"), "-c", "32",
                 "-o", at("dump.h5"))
            files.append(at(model + ".h5"))
            must("kvcalib", "-s", "vecinfer:d4b4", at("dump.h5"), "-o",
                 files[-1])
        text = ["-f", at("a.txt"), "-c", "32", "-n", "4", "-s", "vecinfer:d4b4"]
        both = rows("-m", at("m"), "-m", at("other"), "-C", files[1], "-C",
                    files[0], *text)
        self.assertEqual(both, rows("-m", at("m"), "-C", files[0], *text) +
                         rows("-m", at("other"), "-C", files[1], *text))
        self.refused("was made for another model", "kvppl", "-m", at("m"), "-m",
                     at("other"), "-C", files[0], *text)

    def test_base_line_leads(self):
        """Whichever shard comes last to the file."""
        args = ["-m", at("m"), "-f", at("a.txt"), "-c", "16", "-n", "1", "-s",
                "absmax:b{2,3,4}", "-p", "all,stream", "-o", at("lead.csv"),
                "--append"]
        for part in "2/2", "1/2":
            must("kvppl", *args, "--shard", part)
        with open(at("lead.csv"), encoding="utf-8") as f:
            found = list(csv.DictReader(f))
        self.assertEqual(len(found), 8)
        first = {}
        for row in found:
            first.setdefault(row["protocol"], row["scheme"])
        self.assertEqual(first, {"all": "f32", "stream": "f32"})

    def test_refused(self):
        text = ["-f", at("a.txt"), "-c", "16"]
        for words, *args in (
                ("--ctx 16 is given twice", "-m", at("m"), *text, "-c", "16"),
                ("--windows : expected a whole", "-m", at("m"), *text, "-n",
                 "1,"),
                ("unknown protocol 'x'", "-m", at("m"), *text, "-p", "all,x"),
                ("would replace the input", "-m", at("m"), "-m", at("other"),
                 *text, "-o", at("other/config.json")),
                ("of one model, text", "-m", at("m"), *text, "-p",
                 "llama.cpp,all", "--kl-divergence-base", at("x"))):
            self.refused(words, "kvppl", *args)

    def test_shapes(self):
        args = ["-s", "kivi:b4g32r0", "--reps", "1", "--warmup", "0"]
        shapes = "1,2,1,32,64", "2,4,2,64,96"
        found = [list(csv.DictReader(io.StringIO(must(
            "kvattn", *args, *(w for s in some for w in ("--shape", s))))))
            for some in (shapes, shapes[:1], shapes[1:])]
        untimed = [[{k: r.get(k) for k in ("spec", "model", "ctx", "windows",
                                           "bits", "attn_rel_err")}
                    for r in rows] for rows in found]
        self.assertEqual(untimed[0], untimed[1] + untimed[2])
        self.assertEqual(len(untimed[0]), 4)
        self.refused("--shape 1,2: expected B,HQ", "kvattn", *args, "--shape",
                     shapes[0], "--shape", "1,2")

    def test_notes_are_said_once(self):
        """A study of several settings prints a note only once."""
        done = run("kvppl", "-m", at("m"), "-f", at("a.txt"), "-c", "8,16",
                   "-n", "1", "-p", "all,stream", "-s", "f32")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("f32 is the base line"), 1,
                         done.stderr)

    def test_other_tools_take_one(self):
        for words, tool, *args in (
                ("--model is given twice, a and b: expected one value",
                 "kvdump", "-m", "a", "-m", "b"),
                ("--file is given twice", "kvgen", "-f", "a", "-f", "b"),
                ("--layer is given twice, 1 and 2", "kvattn", "--layer", "1", "--layer",
                 "2"),
                ("--calib is given twice", "kvquant", "-C", "a", "-C", "b")):
            self.refused(words, tool, *args)


class Names(Case):
    """The meaning of an option's value."""

    def test_tables_are_what_their_names_say(self):
        args = ["-m", at("m"), "-f", at("a.txt"), "-c", "16", "-n", "1"]
        for name, start in ("t.csv", "tool,version"), ("t.tsv", "tool\tver"), \
                ("t.jsonl", '{"tool": '), ("t.md", "| tool | "), \
                ("t.txt", "tool,version"):
            must("kvppl", *args, "-o", at(name))
            self.assertTrue(read(at(name)).decode().startswith(start), name)
        for words, *more in (
                ("t.json would not be json", "-o", at("t.json")),
                ("t.h5 would not be h5", "-o", at("t.h5")),
                ("--format tsv: the table's name", "-o", at("t.csv"),
                 "--format", "tsv")):
            self.refused(words, "kvppl", *args, *more)
        self.assertFalse(os.path.exists(at("t.json")))

    def test_columns_help(self):
        for tool, *more in ("kvppl",), ("kvattn",), ("kvcalib",), ("kvdump",), \
                ("kvgen",), ("kvquant",), ("kvsim",), ("kvsim", "economics"):
            lines = must(tool, *more, "--columns", "help").splitlines()
            about = [re.match(r"  (\S+)(?:  +(\S+))?  +(\S.*)", line)
                     for line in lines if not line.endswith(":")]
            self.assertTrue(all(about), (tool, lines))
            self.assertTrue(all(len(line) <= 80 for line in lines), tool)
            if tool == "kvppl":
                names = [m.group(1) for m in about]
        header = must("kvppl", "-m", at("m"), "-f", at("a.txt"), "-c", "16",
                      "-n", "1").splitlines()[0].split(",")
        own = [n for n in header if not n.startswith("params.")]
        self.assertEqual(names[:len(own)], own)

    def test_models(self):
        os.mkdir(at("ggufs"))
        for name in "b.gguf", "a.gguf":
            with open(at("ggufs/" + name), "wb") as f:
                f.write(b"GGUF")
        for words, model in (
                ("has no config.json but 2 GGUF files: name one, " +
                 at("ggufs/a.gguf"), at("ggufs")),
                ("is a file of a model's folder: expected the folder, " +
                 at("m"), at("m/model.safetensors")),
                ("no such file or folder", at("none"))):
            self.refused(words, "kvppl", "-m", model, "-f", at("a.txt"))
            self.refused(words, "kvdump", "--tokens", "-m", model, "-f",
                         at("a.txt"))

    def test_a_vocabulary_has_tokens(self):
        os.mkdir(at("vocabulary"))
        shutil.copy(at("m/tokenizer.json"), at("vocabulary"))
        self.assertEqual(*(must("kvdump", "--tokens", "-m", at(m), "-f",
                                at("a.txt")) for m in ("m", "vocabulary")))


class Base(Case):
    def setUp(self):
        self.args = ["-m", at("m"), "-f", at("a.txt"), "-c", "16", "-n", "3",
                     "-p", "all,stream:4"]
        self.base = at(self.id() + ".h5")

    def test_rows_are_the_same(self):
        rows("--base", self.base, *self.args)
        before = read(self.base)
        found = rows("--base", self.base, *self.args)
        self.assertEqual(found, rows(*self.args))
        self.assertEqual(read(self.base), before)
        # more specs, and a part of the settings
        must("kvppl", "--kl", "-s", "nf4", "--base", self.base, *self.args[:-1],
             "stream:4")

    def test_shards_share_it(self):
        """One that a launcher names, too."""
        must("kvppl", "--base", self.base, *self.args)
        task = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2",
                "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "2",
                "SLURM_ARRAY_TASK_STEP": "1"}
        before = set(os.listdir(folder))
        done = run("kvppl", "-q", *SPECS, "--base", self.base, *self.args,
                   "--shard", "-o", at("part.csv"), env={**os.environ, **task})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(os.listdir(folder)) - before, {"part-1-of-2.csv"})

    def test_refused(self):
        rows("--base", self.base, *self.args)
        args = self.args[:-1]
        for words, *more in (
                ("has protocol all, and here it is stream:2", *args,
                 "stream:2"),
                ("has model_hash", "-m", at("other"), *args[2:], "all"),
                ("text b,c.txt (%s)" % at("b,c.txt"), *args[:2], "-f",
                 at("b,c.txt"), *args[4:], "all"),
                ("text a.txt, 3 x 16 tokens, has tokens_hash", *args[:2], "-f",
                 at("b,c.txt"), *args[4:], "all"),
                ("--base does not go with --no-base", *self.args, "--no-base")):
            self.refused(words, "kvppl", *SPECS, "--base", self.base, *more)
        self.refused("expected a kvtools-base", "kvppl", *self.args, "--base",
                     self.records())

    def records(self):
        must("kvppl", *self.args, "--records", at("r.h5"))
        return at("r.h5")


if __name__ == "__main__":
    unittest.main()
