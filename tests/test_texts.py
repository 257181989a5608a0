"""Texts as the tools read them: byte order marks, files that are no text,
special tokens named in a text, and the columns about these."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import h5py

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_model
from run_tools import prompt

TOOLS = os.path.join(os.environ["KV_BUILD_ROOT"], "tools")
MARK = b"\xef\xbb\xbf"
END = tiny_model.VOCAB - 1  # the id of tiny_model.SPECIAL


def run(tool, *args, stdin=None):
    return subprocess.run([os.path.join(TOOLS, tool), *map(str, args)],
                          stdin=stdin, capture_output=True, text=True,
                          timeout=120)


def rows(done):
    return list(csv.DictReader(io.StringIO(done.stdout)))


class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keep = tempfile.TemporaryDirectory()
        cls.model = tiny_model.make(os.path.join(cls.keep.name, "tiny"))
        cls.bos = tiny_model.make(os.path.join(cls.keep.name, "bos"),
                                  bos=True)

    @classmethod
    def tearDownClass(cls):
        cls.keep.cleanup()

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.scratch.cleanup()

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def good(self, tool, *args, **more):
        done = run(tool, *args, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, words, tool, *args):
        done = run(tool, *args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def ids(self, text, *args, model=None):
        done = self.good("kvdump", "-m", model or self.model, "-f", text,
                         "--tokens", *args)
        return [int(i) for i in done.stdout.split()], done.stderr

    def test_marks_of_utf8(self):
        plain = tiny_model.text(200).encode()
        bare = self.write("bare.txt", plain)
        marked = self.write("marked.txt", MARK + plain)
        self.assertEqual(self.ids(bare), self.ids(marked))
        with open(marked) as f:  # from a pipe or a redirection too
            done = self.good("kvdump", "-m", self.model, "-f", "-",
                             "--tokens", stdin=f)
        self.assertEqual([int(i) for i in done.stdout.split()],
                         self.ids(bare)[0])
        both = [self.good("kvppl", "-q", "-m", self.model, "-f", text, "-c",
                          32, "-n", 2) for text in (bare, marked)]
        a, b = rows(both[0])[0], rows(both[1])[0]
        self.assertEqual(a["nll"], b["nll"])
        self.assertNotEqual(a["text_hash"], b["text_hash"])
        self.refused(["empty.txt is empty"], "kvdump", "-m", self.model, "-f",
                     self.write("empty.txt", MARK), "--tokens")
        # one mark is skipped, a second is a character
        self.assertGreater(len(self.ids(self.write("two", MARK * 2 + plain))
                               [0]), len(self.ids(bare)[0]))

    def test_marks_in_other_files(self):
        text = self.write("t.txt", tiny_model.text(200))
        layers = "# layers sides spec\n0-1 KV absmax:b4\n"
        spec = [self.good("kvppl", "-q", "-m", self.model, "-f", text, "-c",
                          32, "-n", 2, "-s", "mixed,file=" +
                          self.write(name, data))
                for name, data in (("a", layers), ("b", MARK +
                                                   layers.encode()))]
        self.assertEqual(rows(spec[0])[1]["nll"], rows(spec[1])[1]["nll"])
        self.refused(["zero.txt: byte 2 is zero"], "kvppl", "-m", self.model,
                     "-f", text, "-c", 32, "-n", 1, "-s", "mixed,file=" +
                     self.write("zero.txt", "# \0\n"))
        for name in ("tokenizer.json", "config.json"):
            path = os.path.join(self.model, name)
            with open(path, "rb") as f:
                before = f.read()
            try:
                with open(path, "wb") as f:
                    f.write(MARK + before)
                self.ids(text)
                for code in "utf-32", "utf-16":
                    with open(path, "wb") as f:
                        f.write(before.decode().encode(code))
                    self.refused([name, "byte 0", code.upper()], "kvppl",
                                 "-m", self.model, "-f", text)
            finally:
                with open(path, "wb") as f:
                    f.write(before)

    def test_no_texts(self):
        plain = tiny_model.text(50)
        for words, data in (
                (["byte 3 is zero"], b"abc\0def"),
                (["byte 1 is zero", "UTF-16"], plain.encode("utf-16-le")),
                (["byte 0", "UTF-16", "UTF-8"], plain.encode("utf-16")),
                (["byte 0", "UTF-16"], b"\xfe\xff" +
                 plain.encode("utf-16-be")),
                (["byte 0", "UTF-32"], plain.encode("utf-32")),
                (["byte 0", "UTF-32"], b"\0\0\xfe\xff" +
                 plain.encode("utf-32-be")),
                (["Git LFS pointer"],
                 b"version https://git-lfs.github.com/spec/v1\noid sha256:0")):
            text = self.write("no.txt", data)
            self.refused(["no.txt", *words], "kvdump", "-m", self.model, "-f",
                         text, "--tokens")
            self.refused(["no.txt", *words], "kvppl", "-m", self.model, "-f",
                         text, "-c", 16)
            self.refused(["no.txt", *words], "kvgen", "-m", self.model, "-f",
                         text, "-o", self.path("o"))

    def test_special_tokens(self):
        named = self.write("named.txt", "the %s the %s\n" %
                           ((tiny_model.SPECIAL,) * 2))
        plain, said = self.ids(named)
        self.assertNotIn(END, plain)
        self.assertIn("2 places of %s name special tokens (such as %s)" %
                      (named, tiny_model.SPECIAL), said)
        self.assertIn("--parse-special", said)
        self.assertEqual(said.count("\n"), 1)
        parsed, said = self.ids(named, "--parse-special")
        self.assertEqual(parsed.count(END), 2)
        self.assertEqual(said, "")
        one = self.write("one.txt", "a" + tiny_model.SPECIAL)
        self.assertIn("1 place of %s names special" % one, self.ids(one)[1])
        self.assertEqual(self.ids(self.write("none", "the <|endof"))[1], "")

    def test_special_tokens_without_a_text(self):
        option = "--parse-special"
        self.refused([option], "kvdump", "-m", self.model, "--about", option)
        self.refused([option], "kvcalib", "-s", "pq:d2b8", option, "d.h5",
                     "-o", self.path("c.h5"))
        self.refused([option], "kvcalib", "--allocate", 3, "-s", "kivi:b{2,4}",
                     option, "d.h5", "-o", self.path("l.txt"))

    def test_special_tokens_that_stay_text(self):
        folder = tiny_model.make(self.path("split"))
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"split_special_tokens": True}, f)
        text = self.write("t.txt", "the")
        self.ids(text, model=folder)
        self.refused(["t.txt", "split_special_tokens"], "kvdump", "-m",
                     folder, "-f", text, "--tokens", "--parse-special")

    def test_what_rows_say(self):
        text = self.write("t.txt", (tiny_model.text(100) +
                                    tiny_model.SPECIAL) * 3)
        short = prompt(self.path("short.jsonl"), "the " + tiny_model.SPECIAL)
        dump = self.path("d.h5")
        for model, bos in ((self.model, "0"), (self.bos, "1")):
            for more, special in ((["-q"], "0"), (["--parse-special"], "1")):
                args = ["-m", model, "-f", text, "-c", 32, "-n", 2, *more]
                said = (bos, special)
                self.good("kvdump", *args, "-o", dump)
                with h5py.File(dump) as f:
                    self.assertEqual((str(f.attrs["bos"]),
                                      str(f.attrs["special"])), said)
                tables = [self.good("kvppl", *args, "-s", "absmax:b4"),
                          self.good("kvgen", "-m", model, "-f", short, "-n", 2,
                                    "-o", os.devnull, "-s", "absmax:b4", *more),
                          self.good("kvquant", "-s", "absmax:b4", dump),
                          self.good("kvattn", "-s", "absmax:b4", "--dump",
                                    dump, "--reps", 1)]
                for table in map(rows, tables):
                    self.assertGreater(len(table), 0)
                    for row in table:
                        self.assertEqual((row["bos"], row["special"]), said)
        with h5py.File(dump, "a") as f:
            del f.attrs["bos"], f.attrs["special"]
        row = rows(self.good("kvquant", "-s", "absmax:b4", dump))[0]
        self.assertEqual((row["bos"], row["special"]), ("", ""))

    def test_bos_at_windows(self):
        ctx, n = 16, 3
        text = self.write("t.txt", tiny_model.text(200))
        ids = self.ids(text, model=self.bos)[0]
        whole = (len(ids) - 1) // (ctx - 1)
        dump = self.path("d.h5")
        args = ["-m", self.bos, "-f", text, "-c", ctx, "--bos"]
        for windows in n, 0:
            self.good("kvdump", *args, "-n", windows, "-o", dump)
            with h5py.File(dump) as f:
                self.assertEqual(f.attrs["bos"], 2)
                tokens = f["tokens"][:]
            self.assertEqual(len(tokens), windows or whole)
            for i, window in enumerate(tokens):
                at = 1 + i * (ctx - 1)
                self.assertEqual(window.tolist(),
                                 [ids[0], *ids[at:at + ctx - 1]])
        layers = self.path("l.txt")
        for table in (self.good("kvppl", *args, "-n", n, "-s", "absmax:b4"),
                      self.good("kvquant", "-s", "absmax:b4", dump),
                      self.good("kvattn", "-s", "absmax:b4", "--dump", dump,
                                "--reps", 1),
                      self.good("kvcalib", "--allocate", 4, *args, "-n", n,
                                "-s", "absmax:b{2,4}", "--table", "-o",
                                layers)):
            self.assertEqual({row["bos"] for row in rows(table)}, {"2"})
        with open(layers) as f:
            self.assertIn("%d windows of %d, a BOS at each\n" % (n, ctx),
                          f.read())
        self.refused(["%d windows" % whole, "%d were" % (whole + 1)],
                     "kvdump", *args, "-n", whole + 1, "-o", dump)

    def test_bos_counts(self):
        """A window scores each token of its text, the first one included."""
        ctx = 16
        text = self.write("t.txt", tiny_model.text(60))
        one = ["kvppl", "-m", self.bos, "-f", text, "-c", ctx, "-n", 1,
               "--columns", "ppl,tokens"]
        two = [*one[:-3], 2, *one[-2:]]
        self.assertEqual(self.good(*one).stdout,
                         self.good(*one, "--bos").stdout)
        self.assertNotEqual(self.good(*two).stdout,
                            self.good(*two, "--bos").stdout)
        self.assertEqual(rows(self.good(*two, "--bos"))[0]["tokens"],
                         str(2 * (ctx - 1)))

    def test_bos_is_another_run(self):
        """One window has the same tokens with and without --bos."""
        text = self.write("t.txt", tiny_model.text(60))
        args = ["-m", self.bos, "-f", text, "-c", "16", "-n", "1", "--resume",
                "-o", self.path("r.csv")]
        for more, measured in ([], True), ([], False), (["--bos"], True):
            done = self.good("kvppl", *args, *more)
            self.assertEqual("PPL" in done.stderr, measured)

    def test_bos_that_windows_lack(self):
        text = self.write("t.txt", tiny_model.text(200))
        for model, n, more, noted in (
                (self.bos, 3, [], True), (self.bos, 1, [], False),
                (self.bos, 3, ["--bos"], False), (self.model, 3, [], False),
                (self.bos, 3, ["-p", "llama.cpp"], False)):
            args = ["-m", model, "-f", text, "-c", 16, "-n", n, *more]
            said = [self.good("kvppl", *args).stderr]
            if "-p" not in more:
                said += [self.good("kvdump", *args, "-o",
                                   self.path("d.h5")).stderr,
                         self.good("kvcalib", "--allocate", 4, *args, "-s",
                                   "absmax:b{2,4}", "-o",
                                   self.path("l.txt")).stderr]
            for words in said:
                self.assertEqual("the text's first window alone" in words,
                                 noted, words)

    def drawn(self, text, n, seed, *more):
        """The places of the windows of 16 tokens that kvppl drew."""
        ids = self.ids(text)[0]
        whole = [ids[i * 16 + 1:i * 16 + 16] for i in range(len(ids) // 16)]
        self.assertEqual(len(set(map(tuple, whole))), len(whole))
        out = self.path("r.h5")
        self.good("kvppl", "-m", self.model, "-f", text, "-c", 16, "-n", n,
                  "--seed", seed, "--records", out, *more)
        with h5py.File(out) as f:
            run = f["set_000"]
            self.assertEqual(run.attrs["places"].decode(),
                             more[1] if more else "first")
            return len(whole), [whole.index(w.tolist())
                                for w in run["tokens"][:]]

    def test_places(self):
        text = self.write("t.txt", tiny_model.text(600))
        self.assertEqual(self.drawn(text, 3, 5)[1], [0, 1, 2])
        random, sets, seen = ("--places", "random"), set(), set()
        for seed in range(12):
            n, at = self.drawn(text, 3, seed, *random)
            self.assertEqual((len(at), sorted(set(at))), (3, at))
            sets.add(tuple(at))
            seen |= set(at)
        self.assertEqual(self.drawn(text, 3, seed, *random)[1], at)
        self.assertGreater(len(sets), 6)
        self.assertTrue(min(seen) < n / 4 < 3 * n / 4 < max(seen))
        self.assertEqual(self.drawn(text, n, 0, *random)[1], list(range(n)))

    def test_drawn_windows_begin_with_bos(self):
        text = self.write("t.txt", tiny_model.text(600))
        ids = self.ids(text, model=self.bos)[0]
        whole = [ids[i:i + 15] for i in range(1, len(ids) - 15, 15)]
        out = self.path("r.h5")
        self.good("kvppl", "-m", self.bos, "-f", text, "-c", 16, "-n", 3,
                  "--bos", "--places", "random", "--records", out)
        with h5py.File(out) as f:
            at = [whole.index(w.tolist()) for w in f["set_000/tokens"][:]]
        self.assertEqual(at, sorted(set(at)))
        self.assertNotEqual(at, [0, 1, 2])

    def test_places_are_another_run(self):
        text = self.write("t.txt", tiny_model.text(200))
        args = ["-m", self.bos, "-f", text, "-c", 16, "-n", 1, "--resume",
                "-o", self.path("r.csv")]
        random = ["--places", "random"]
        for more, measured in ([], True), (random, True), (random, False):
            done = self.good("kvppl", *args, *more)
            self.assertEqual("PPL" in done.stderr, measured)
            self.assertEqual("the text's first window alone" in done.stderr,
                             more == random)
        row = rows(self.good("kvppl", *args[:-3], *random))[0]
        self.assertEqual(row["places"], "random")
        for n in [], ["-n", "4,0"]:
            self.refused(["--places random wants -n"], "kvppl", *args[:6], *n,
                         *random)
        self.refused(["--places last", "first or random"], "kvppl", *args,
                     "--places", "last")

    def test_bos_hides_no_leak(self):
        """Windows of other sizes share 32 tokens only if the text does."""
        text = self.write("t.txt", tiny_model.text(3000))
        dump, calib = self.path("d.h5"), self.path("c.h5")
        for bos, ctx in ([], 16), (["--bos"], 17):
            self.good("kvdump", "-m", self.bos, "-f", text, *bos, "-c", ctx,
                      "-o", dump)
            self.good("kvcalib", "-s", "pq:d2b2", dump, "-o", calib)
            self.refused(["c.h5", "% of"], "kvppl", "-m", self.bos, "-f", text,
                         "--bos", "-c", 16, "-s", "pq:d2b2", "-C", calib)
            self.refused(["c.h5", "% of"], "kvppl", "-q", "-m", self.bos, "-f",
                         text, "-c", 16, "-s", "pq:d2b2", "-C", calib)
            random = ["--places", "random", "-s", "pq:d2b2", "-C", calib]
            self.refused(["holds 100.0 % of the evaluated"], "kvppl", "-q", "-m",
                         self.bos, "-f", text, "-c", 64, "-n", 8, *random)
            self.refused(["too short to tell"], "kvppl", "-q", "-m", self.bos,
                         "-f", text, "-c", 16, "-n", 8, *random)

    def test_bos_refused(self):
        text = self.write("t.txt", tiny_model.text(200))
        dump, out = self.path("d.h5"), self.path("o")
        some = ["-m", self.bos, "-f", text, "--bos"]
        self.good("kvdump", *some[:-1], "-c", 16, "-n", 1, "-o", dump)
        for words, *args in (
                (["--bos", "no BOS"], "kvppl", "-m", self.model, *some[2:],
                 "-c", 16),
                (["--bos", "1 token"], "kvdump", *some, "-c", 1, "-o", out),
                (["--bos", "--tokens"], "kvdump", *some, "--tokens"),
                (["--bos", "--about"], "kvdump", "-m", self.bos, "--bos",
                 "--about"),
                (["--bos", "llama.cpp"], "kvppl", *some, "-c", 16, "-p",
                 "llama.cpp"),
                (["--bos", "--allocate"], "kvcalib", "-s", "pq:d2b8", "--bos",
                 dump, "-o", out),
                (["--bos", "-m"], "kvcalib", "--allocate", 3, "-s",
                 "kivi:b{2,4}", "--bos", dump, "-o", out)):
            self.refused(words, *args)

    def test_interrupt(self):
        """Lines on which the expression looks far back, again and again."""
        folder = tiny_model.make(self.path("slow"))
        path = os.path.join(folder, "tokenizer.json")
        with open(path) as f:
            tokenizer = json.load(f)
        tokenizer["pre_tokenizer"] = {
            "type": "Split", "behavior": "Isolated", "invert": False,
            "pattern": {"Regex": "(?:a|b)+(?=c)"}}
        with open(path, "w") as f:
            json.dump(tokenizer, f)
        text = self.write("long.txt", ("a" * 20000 + "\n") * 200)
        made = subprocess.Popen(
            [os.path.join(TOOLS, "kvdump"), "-m", folder, "-f", text,
             "--tokens"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True)
        time.sleep(1)
        made.send_signal(signal.SIGINT)
        start = time.monotonic()
        said = made.communicate(timeout=60)[1]
        self.assertLess(time.monotonic() - start, 10)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("interrupted", said)
        self.assertEqual(said.count("\n"), 1)

    def test_greedy_reads_special_tokens(self):
        text = prompt(self.path("p.jsonl"), "the" + tiny_model.SPECIAL)
        made = []
        for more, said in ([], 1), (["--parse-special"], 0):
            done = self.good("kvgen", "-m", self.model, "-f", text, "-n", 8, "-o",
                             self.path("a.jsonl"), *more)
            self.assertEqual(done.stderr.count("1 name of special tokens in "
                                               "prompts"), said, done.stderr)
            with open(self.path("a.jsonl")) as f:
                made.append(json.load(f)["prompt_tokens"])
        self.assertGreater(*made)


if __name__ == "__main__":
    unittest.main()
