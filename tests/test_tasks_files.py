"""What scripts/task-prompts, task-score and ruler write, and what they refuse
to: bad values, files of others."""
import json
import os
import stat
import subprocess
import sys
import unittest

from run_scripts import ROOT
from run_tasks import TaskScripts

sys.path.insert(0, os.path.join(ROOT, "scripts"))
from task_checks import ANSWER, wrong_description, wrong_value  # noqa: E402
from task_items import describe  # noqa: E402

CALIB = os.path.join(ROOT, "data", "calib.txt")
MODEL = os.path.join(ROOT, "data", "model")


class Outputs(TaskScripts):
    def setUp(self):
        super().setUp()
        self.items = self.jsonl("items.jsonl", [{"input": "?", "target": "1"}])
        self.own = self.answers("a.jsonl", "passkey", {"target": "1"},
                                {"f16": ["1"]})

    def at(self, name):
        return os.path.join(self.folder, name)

    def text(self, path):
        with open(path, encoding="utf-8") as f:
            return f.read()

    def make(self, out, code=0):
        return self.run_script("scripts/task-prompts", "passkey", self.items,
                               "-o", out, code=code)

    def test_inputs_stay(self):
        for name in "link", "hard":
            (os.symlink if name == "link" else os.link)(self.items,
                                                        self.at(name))
        before = self.text(self.items), self.text(self.own)
        for out in self.items, self.at("link"), self.at("hard"):
            self.assertIn(f"{out}: the same file as {self.items}, expected "
                          "another one", self.make(out, 2))
        for option in "-o", "--per-item":
            self.assertIn("the same file as", self.score(
                "passkey", self.own, option, self.own, code=2))
        new = self.at("new.csv")
        self.assertIn("the same file as", self.score(
            "passkey", self.own, "-o", new, "--per-item",
            self.folder + "/./new.csv", code=2))
        text = self.write("text", self.text(CALIB))
        self.assertIn("the same file as", self.run_script(
            "scripts/ruler", "vt", text, "-m", MODEL, "--tokens", "512",
            "-o", text, code=2))
        self.assertEqual(before, (self.text(self.items), self.text(self.own)))
        self.assertEqual(sorted(os.listdir(self.folder)), [
            "a.jsonl", "hard", "items.jsonl", "link", "text"])

    def test_links_and_devices(self):
        target = self.write("target", "old")
        os.symlink(target, self.at("link"))
        os.symlink("later", self.at("dangling"))
        for name in "link", "dangling":
            self.make(self.at(name))
            self.assertTrue(os.path.islink(self.at(name)))
        self.assertEqual(self.text(target), self.text(self.at("later")))
        os.mkfifo(self.at("fifo"))
        reader = subprocess.Popen(["cat", self.at("fifo")],
                                  stdout=subprocess.PIPE, text=True)
        self.make(self.at("fifo"))
        self.assertEqual(reader.communicate()[0], self.text(target))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.at("fifo")).st_mode))
        self.assertEqual(self.make("/dev/stdout"), self.text(target))
        self.score("passkey", self.own, "-o", self.at("link"))
        self.assertTrue(self.text(target).startswith("task,metric,spec"))

    def test_no_place(self):
        self.assertIn("a folder, expected a file", self.make(self.folder, 2))
        self.assertIn("no folder", self.make(self.at("no/x"), 2))
        self.assertIn("a.jsonl/x: Not a directory",
                      self.make(self.own + "/x", 2))
        self.assertIn("/dev/full: No space left", self.make("/dev/full", 2))
        self.assertIn("--lm-eval", self.score("passkey", self.own,
                                              "--lm-eval", self.own, code=2))
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["a.jsonl", "items.jsonl"])
        self.assertFalse(os.path.exists(self.folder + ".tmp"))


class Values(TaskScripts):
    """One sentence, and no file."""

    def refused(self, words, said):
        self.assertIn(words, said)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertFalse(os.path.exists(self.folder + "/prompts.jsonl"))

    def test_prompts(self):
        items = self.jsonl("items.jsonl", [{"input": "?", "target": "1"}])
        for value, words in (
                ("max_tokens=-4", "max_tokens is -4, expected a whole number"),
                ('max_tokens="a"', 'max_tokens is "a", expected a whole'),
                ("max_tokens=true", "max_tokens is true, expected"),
                ("max_tokens=null", "no max_tokens, which a description"),
                ('prepare="mbbp"', 'prepare is "mbbp", expected one of bfcl,'),
                ('prepare="_numbered"', "prepare is"),
                ("prompt=5", "prompt is 5, expected a text or a list"),
                ("shots=3", "shots is 3, expected an object of count"),
                ('shots={"file": "a", "text": "b", "count": -1}',
                 "expected an object of count"),
                ('stop="x"', 'stop is "x", expected a list of texts'),
                ('stop=[""]', 'stop is [""], expected a list of texts'),
                ('chat="no"', 'chat is "no", expected true or false'),
                ('answer=["trim"]', "expected a list of strip, "),
                ("pairs={}", "expected either prompt or pairs")):
            key, text = value.split("=", 1)
            changed = dict(describe("passkey"), **{key: json.loads(text)})
            changed = {k: v for k, v in changed.items() if v is not None}
            self.assertIn(words, wrong_description(changed))
        self.refused("--set max_tokens=-4: max_tokens is -4, expected",
                     self.prompts("passkey", items, "--set", "max_tokens=-4",
                                  code=2))
        self.refused("no max_tokens, which", self.prompts(
            "passkey", items, "--set", "max_tokens=null", code=2))
        for option, words in (("--shots", "0"), ("--limit", "1"),
                              ("--max-prompt", "1")):
            self.refused(f"{option} -3: expected {words} or more",
                         self.prompts("passkey", items, option, "-3", "-m",
                                      MODEL, code=2))
        self.refused("--limit 0: expected 1", self.prompts(
            "passkey", items, "--limit", "0", code=2))
        self.refused("not a JSON object", self.prompts(
            self.write("own.json", "[1]"), items, code=2))
        line, = self.prompts("passkey", items, "--set", "chat=null")
        self.assertIn("prompt", line)

    def test_worked_examples(self):
        items = self.jsonl("items.jsonl", [{"question": "?", "answer": "1"}])
        self.refused(
            f"worked examples of gsm8k_cot: {self.folder}/gsm8k-cot-8shot"
            ".jsonl is missing: expected 8 or more lines with fields "
            "question, target (--shots-file", self.prompts(
                "gsm8k_cot", items, code=2))
        self.refused("x.jsonl is missing: expected 2 or more lines", (
            self.prompts("gsm8k_cot", items, "--shots", "2", "--shots-file",
                         "x.jsonl", code=2)))
        self.refused("3 or more lines like the items, task_id one of [2, 3, "
                     "4]", self.prompts("mbpp", items, code=2))
        self.refused("takes no worked examples, --shots-file is x.jsonl", (
            self.prompts("passkey", items, "--shots-file", "x.jsonl",
                         code=2)))
        line, = self.prompts("gsm8k_cot", items, "--shots", "0")
        self.assertEqual(line["prompt"], "Q: ?\nA:")

    def test_ruler(self):
        for option, value in (("--items", "0"), ("--items", "-3"),
                              ("--tokens", "-1"), ("--reserve", "-1")):
            self.refused(f"{option} {value}: expected", self.run_script(
                "scripts/ruler", "vt", CALIB, "-m", MODEL, "--tokens", "512",
                "-o", self.folder + "/prompts.jsonl", option, value, code=2))

    def test_answers(self):
        pair = {"id": 1, "spec": "f16", "task": "piqa", "item": {"gold": 0},
                "context": "?", "continuation": " a", "choice": 0,
                "choices": 1, "log_likelihood": -1.0, "is_greedy": True}
        for key, value, words in (
                ("log_likelihood", None, "is null, expected a number"),
                ("log_likelihood", float("nan"), "is NaN, expected a number"),
                ("id", [1], "expected a text or whole number"),
                ("item", 3, "expected an object"),
                ("choice", "0", "expected a whole number from 0 on"),
                ("continuation", " ", "expected a text of more than a space"),
                ("bits", "4", "expected a number or null")):
            said = wrong_value(dict(pair, **{key: value}), ANSWER)
            self.assertTrue(said.startswith(key + " is "), said)
            self.assertIn(words, said)
        path = self.jsonl("a.jsonl", [dict(pair, log_likelihood=None)])
        self.refused("a.jsonl:1: log_likelihood is null, expected a number",
                     self.score("piqa", path, code=2))
        self.jsonl("a.jsonl", [pair])
        self.assertEqual(self.score("piqa", path)[0]["score"], "100")


if __name__ == "__main__":
    unittest.main()
