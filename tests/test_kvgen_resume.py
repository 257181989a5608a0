"""kvgen --resume and --append: answers that are there are not made again."""
import csv
import fcntl
import io
import json
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import must, read, run, with_defaults, write


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def args(*more, texts=("a text", "another one", "third")):
    path = write(at("p.jsonl"), "".join(json.dumps({"prompt": x}) + "\n"
                                        for x in texts).encode())
    return with_defaults(more, m=at("m"), f=path, n=12, o=at("a.jsonl")) + \
        ["--ignore-eos"]


SPECS = "-s", "f32", "-s", "kivi:b2g8r8"


def lines():
    return read(at("a.jsonl")).decode().splitlines(keepends=True)


def timeless(line):
    """The values of a line; times are rounded when they are written."""
    return {k: v for k, v in json.loads(line).items()
            if "second" not in k and k != "tokens_s"}


def seconds(lines):
    return [json.loads(x)["seconds"] for x in lines]


def cells(table):
    return [{k: v for k, v in x.items()
             if "second" not in k and not k.startswith("tokens_s")}
            for x in csv.DictReader(io.StringIO(table))]


def partial(text):
    write(at("a.jsonl.partial"), text.encode())


class Resume(unittest.TestCase):
    def setUp(self):
        self.rows = must("kvgen", *args(*SPECS))
        self.lines = lines()
        self.assertEqual(len(self.lines), 6)

    def note(self, *more, **how):
        """A run's messages and its rows."""
        done = run("kvgen", *args(*more, **how))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.exists(at("a.jsonl.partial")))
        return done.stderr, done.stdout

    def test_all_there(self):
        note, rows = self.note(*SPECS, "--resume")
        self.assertIn("6 of 6 answers are there", note)
        self.assertEqual(cells(rows), cells(self.rows))
        self.assertEqual(seconds(lines()), seconds(self.lines))

    def test_stopped(self):
        """The whole lines of a stopped run are taken, with their times."""
        os.remove(at("a.jsonl"))
        partial(self.lines[4] + self.lines[1] + self.lines[0][:40])
        note, rows = self.note(*SPECS, "--resume")
        self.assertIn("2 of 6 answers are there", note)
        now = lines()
        self.assertEqual(list(map(timeless, now)),
                         list(map(timeless, self.lines)))
        same = [a == b for a, b in zip(seconds(now), seconds(self.lines))]
        self.assertEqual(same, [i in (1, 4) for i in range(6)])

    def test_others(self):
        """Answers under other conditions do not count."""
        for more in (("-n", "11"), ("--seed", "3"), ("--stop", "zz"),
                     ("--temperature", "1")):
            os.remove(at("a.jsonl"))
            partial("".join(self.lines))
            done = run("kvgen", *args(*SPECS, *more, "--resume"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("are there", done.stderr, more)
            # which stay where they were
            self.assertIn("keeps 6 answers of other runs", done.stderr)
            self.assertEqual(read(at("a.jsonl.partial")).decode(),
                             "".join(self.lines))
            os.remove(at("a.jsonl.partial"))

    def test_append(self):
        note, rows = self.note("-s", "f32", "-s", "hack:b2p16", "--append")
        self.assertIn("3 of 6 answers are there", note)
        now = lines()
        self.assertEqual(now[:3], self.lines[1::2])
        self.assertEqual(seconds(now[3::2]), seconds(self.lines[::2]))
        self.assertEqual(len(now), 9)
        self.assertEqual(cells(rows)[0]["agree"], cells(self.rows)[0]["agree"])
        note, _ = self.note(*SPECS, "--append", texts=("more",))
        self.assertEqual(lines()[:9], now)
        self.assertEqual(len(lines()), 11)

    def test_more_prompts(self):
        """A prompt more, however long, changes no other answer."""
        note, _ = self.note(*SPECS, "--append", texts=(
            "a text", "another one", "third", "the longest one of all four"))
        self.assertIn("6 of 8 answers are there", note)
        self.assertEqual(len(lines()), 8)

    def test_kept(self):
        """Other answers of a stopped run stay, in ANSWERS with --append."""
        kivi = self.lines[1::2]
        os.remove(at("a.jsonl"))
        write(at("a.jsonl"), b'{"id": "mine"}\n{"id": "no line feed"}')
        partial("".join(kivi))
        note, _ = self.note("-s", "f32", "--append")
        now = lines()
        self.assertEqual(now[:5], ['{"id": "mine"}\n',
                                   '{"id": "no line feed"}\n', *kivi])
        self.assertEqual(len(now), 8)

    def test_in_use(self):
        partial("")
        with open(at("a.jsonl.partial"), "a", encoding="ascii") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            done = run("kvgen", *args(*SPECS, "--append"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("another run makes answers for this file", done.stderr)
        self.assertEqual(lines(), self.lines)
        os.remove(at("a.jsonl.partial"))

    def test_score(self):
        pairs = write(at("pairs.jsonl"), b"".join(
            json.dumps({"context": "a b", "continuation": x}).encode() + b"\n"
            for x in (" c d", " e", " the f")))
        score = ["-m", at("m"), "--score", pairs, *SPECS, "-o", at("a.jsonl")]
        rows, whole = must("kvgen", *score), lines()
        partial("".join(whole[2:]))
        os.remove(at("a.jsonl"))
        done = run("kvgen", *score, "--resume")
        self.assertIn("4 of 6 answers are there", done.stderr)
        self.assertEqual(seconds(lines())[2:], seconds(whole)[2:])
        partial("".join(whole))
        os.remove(at("a.jsonl"))
        self.assertEqual(cells(must("kvgen", *score, "--resume")), cells(rows))

    def test_bad_input(self):
        for text, want in (("{\n", "a.jsonl.partial: line 1"),
                           (self.lines[0] + "[1]x\n",
                            "a.jsonl.partial: line 2")):
            partial(text)
            done = run("kvgen", *args(*SPECS, "--resume"))
            self.assertEqual(done.returncode, 2)
            self.assertIn(want, done.stderr)
            self.assertEqual(read(at("a.jsonl.partial")).decode(), text)
        os.remove(at("a.jsonl.partial"))
        done = run("kvgen", *args(*SPECS, "--resume", "-o", "/dev/stdout"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("regular file", done.stderr)
        # a damaged answer is made again
        bad = json.loads(self.lines[0])
        for change in ({"ids": []}, {"ids": ["a"]}, {"cache": 1},
                       {"finish_reason": "x"}, {"ids": [1] * 13},
                       {"ids": [1]}, {"ids": [-1] * 12}, {"ids": [10**6] * 12}):
            os.remove(at("a.jsonl"))
            partial(json.dumps({**bad, **change}) + "\n" + self.lines[1])
            note, _ = self.note(*SPECS, "--resume")
            self.assertIn("1 of 6", note, change)


if __name__ == "__main__":
    unittest.main()
