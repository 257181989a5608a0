"""kvppl --greedy --chat-template: what a template is told beside the message,
and what is said of it: the date, tokens that the model lacks, settings of the
model that are not applied."""
import json
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import run, write


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"))
    write(at("message.txt"), b"the quick\n")


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def greedy(*more):
    return run("kvppl", "-m", at("m"), "-f", at("message.txt"), "--greedy", "2",
               *more)


class Chat(unittest.TestCase):
    def made(self, template, *more):
        """The row, and what is said beside it."""
        write(at("m/chat_template.jinja"), template)
        done = greedy("--chat-template", "model", "--format", "jsonl", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr

    def refused(self, words, *more):
        done = greedy(*more)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn(words, done.stderr)

    def test_what_there_is_not_is_none(self):
        """As transformers renders; and line ends of Windows are line ends."""
        plain, words = self.made(b"{{ messages[0].content }}")
        self.assertIsNone(plain["chat_date"])
        self.assertNotIn("date", words)
        self.assertNotIn("asks for", words)
        same, _ = self.made(
            b"{% if tools is not none or documents is not none %}x{% endif %}"
            b"\r\n{{ messages[0].content }}\r\n")
        self.assertEqual(same["prompt_tokens"], plain["prompt_tokens"])

    def test_the_date(self):
        """Today's with a word, or what --chat-date says; the row has it."""
        dated = b"{{ strftime_now('%Y') ~ messages[0].content }}"
        row, words = self.made(dated)
        self.assertRegex(row["chat_date"], r"^\d{4}-\d\d-\d\dT[\d:]{8}$")
        self.assertIn("--chat-date " + row["chat_date"], words)
        again, words = self.made(dated, "--chat-date", "2024-02-29")
        self.assertEqual(again["chat_date"], "2024-02-29T00:00:00")
        self.assertNotIn("date", words)
        self.refused("\"2023-02-29\" is no date", "--chat-template", "model",
                     "--chat-date", "2023-02-29")
        self.refused("--chat-date without --chat-template", "--chat-date",
                     "2024-02-29")
        done = run("kvppl", "-m", at("m"), "-f", at("message.txt"),
                   "--chat-date", "2024-02-29")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--chat-date goes with --greedy", done.stderr)

    def test_settings_that_are_not_applied(self):
        path = at("m/generation_config.json")
        write(path, b'{"repetition_penalty": 1.5, "num_beams": 1}')
        for more in [], ["--chat-template", "chatml"]:
            self.assertIn("asks for repetition_penalty 1.5: --greedy",
                          greedy(*more).stderr)
        os.remove(path)
        self.assertNotIn("asks for", greedy().stderr)

    def test_another_model_s_tokens(self):
        done = greedy("--chat-template", "chatml")
        self.assertEqual(done.returncode, 0, done.stderr)
        for token in "<|im_start|>", "<|im_end|>":
            self.assertIn(token + " is no token of this model", done.stderr)
        self.assertNotIn("is no token", greedy("--chat-template",
                                               "mistral").stderr)


if __name__ == "__main__":
    unittest.main()
