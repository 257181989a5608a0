"""kvgen --score: the likelihood of given continuations."""
import csv
import io
import json
import math
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import must, read, run, write

SPECS = ("f32", "kivi:b2g8r8", "hack:b2p16")


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def lines(objects):
    return write(at("p.jsonl"),
                 "".join(json.dumps(x) + "\n" for x in objects).encode())


def specs(names=SPECS):
    return [x for name in names for x in ("-s", name)]


def score(pairs, *more, names=SPECS):
    """Lines, and rows."""
    table = must("kvgen", "-m", at("m"), "--score", lines(pairs), *specs(names),
                 "-o", at("s.jsonl"), *more)
    return ([json.loads(x) for x in read(at("s.jsonl")).splitlines()],
            list(csv.DictReader(io.StringIO(table, newline=""))))


def pair(context, continuation, **more):
    return {"context": context, "continuation": continuation, **more}


class Score(unittest.TestCase):
    def test_perplexity(self):
        """A text's likelihood, after its first token, is kvppl's."""
        text = tiny_model.text(9)
        (x,), (row,) = score([pair(text[0], text[1:])], names=("f32",))
        n = x["prompt_tokens"] + x["tokens"]
        self.assertEqual(x["prompt_tokens"], 1)
        write(at("t.txt"), text.encode())
        table = must("kvppl", "-m", at("m"), "-f", at("t.txt"), "-c", n, "-n",
                     "1", "-s", "f32", "-p", "stream")
        want, = csv.DictReader(io.StringIO(table))
        self.assertAlmostEqual(math.log(float(row["ppl"])),
                               math.log(float(want["ppl"])), 5)
        self.assertAlmostEqual(x["log_likelihood"], sum(x["log_probs"]), 4)
        self.assertAlmostEqual(float(row["log_likelihood"]),
                               x["log_likelihood"], 4)

    def test_own_text(self):
        """The text that the first spec wrote is greedy for it, and for another
        up to the token at which that one's own text leaves it."""
        model = os.path.join(os.environ["KV_SOURCE_ROOT"], "data", "model")
        start = "The house stood at the end of the road, and"
        names = "f32", "kivi:b1g8r8", "hack:b2p16"
        must("kvgen", "-m", model, "-f", lines([{"prompt": start}]),
             *specs(names), "-n", "60", "--ignore-eos", "-o", at("a.jsonl"))
        answers = [json.loads(x) for x in read(at("a.jsonl")).splitlines()]
        self.assertLess(min(x["agrees"] for x in answers), 60)
        must("kvgen", "-m", model, "--score",
             lines([pair(start, answers[0]["text"])]), *specs(names),
             "-o", at("s.jsonl"))
        scored = [json.loads(x) for x in read(at("s.jsonl")).splitlines()]
        self.assertEqual(scored[0]["ids"], answers[0]["ids"])
        for a, x in zip(answers, scored):
            self.assertEqual(x["greedy_tokens"], a["agrees"])
            self.assertEqual(x["is_greedy"], a["agrees"] == 60)

    def test_together(self):
        """Pairs that share a context have the same results as alone, for any
        batch."""
        pairs = [pair("some text", " a b"), pair("some text", " other"),
                 pair("more ", "end"), pair("more", " end")]
        all_, _ = score(pairs)
        strip = [{k: v for k, v in x.items() if "second" not in k and
                  k != "tokens_s"} for x in all_]
        for more in (["--batch", "1"], ["--batch", "5"], ["-t", "1"]):
            again, _ = score(pairs, *more)
            self.assertEqual([{k: v for k, v in x.items() if k in strip[0]}
                              for x in again], strip)
        for i, one in enumerate(pairs):
            alone, _ = score([{**one, "id": i + 1}])
            for j, x in enumerate(alone):
                self.assertEqual(x["log_probs"], all_[3 * i + j]["log_probs"])
        # the blank at a context's end belongs to the continuation
        self.assertEqual(all_[6]["ids"], all_[9]["ids"])

    def test_one_token(self):
        """Even a single token sees the cache."""
        (base, coded), _ = score([pair("a longer context, of some words", "x")],
                                 names=("f32", "kivi:b1g8r0"))
        self.assertEqual((base["tokens"], coded["tokens"]), (1, 1))
        self.assertEqual(base["ids"], coded["ids"])
        self.assertNotEqual(base["log_probs"], coded["log_probs"])

    def test_rows(self):
        pairs = [pair("t " * n, "a b c d e", gold=n) for n in (5, 9, 14)]
        all_, rows = score(pairs)
        self.assertEqual([x["spec"] for x in rows],
                         [x["spec"] for x in all_[:3]])
        self.assertEqual([x["gold"] for x in all_[::3]], [5, 9, 14])
        self.assertEqual({x["protocol"] for x in rows}, {"score"})
        self.assertEqual(rows[0]["d_log_likelihood"], "")
        for i, row in enumerate(rows[1:], 1):
            d = [x["log_likelihood"] - b["log_likelihood"]
                 for x, b in zip(all_[i::3], all_[::3])]
            mean = sum(d) / 3
            se = math.sqrt(sum((x - mean) ** 2 for x in d) / 2 / 3)
            self.assertAlmostEqual(float(row["d_log_likelihood"]), mean, 5)
            self.assertAlmostEqual(float(row["d_log_likelihood_se"]), se, 5)

    def test_bad_input(self):
        good = pair("a b", " c")
        for objects, want in (
                ([{"context": "a"}], "line 1: continuation: expected a text"),
                ([good, {"continuation": "a"}],
                 "line 2: context: expected a text"),
                ([pair("a", "")], "line 1: the continuation is empty"),
                ([pair("a", "b", log_probs=1)], "log_probs"),
                ([pair("a", "b " * 900)], "more than a context of")):
            self.refuses(objects, want)
        for more, want in ((["-n", "4"], "--max-tokens goes without --score"),
                           (["--stop", "a"], "--stop goes without --score"),
                           (["--temperature", "1"],
                            "--temperature goes without --score"),
                           (["-f", at("p.jsonl")], "without --score")):
            self.refuses([good], want, *more)

    def refuses(self, objects, want, *more):
        out = at("none.jsonl")
        done = run("kvgen", "-m", at("m"), "--score", lines(objects), "-o", out,
                   *more)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn(want, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    unittest.main()
