"""Rows, dumps, calibrations and finished rows are of one model: its hash, and
what refuses another one."""
import csv
import io
import json
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import must, prompt, read, run, write

SPEC = ["-s", "kivi:b4g16", "-s", "vecinfer:d4b4"]
TRAIN = ["-s", "vecinfer:d4b4"]


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("was"))
    write(at("t.txt"), tiny_model.text(300, 1).encode())
    must("kvdump", "-m", at("was"), "-f",
         write(at("c.txt"), tiny_model.text(400, 2).encode()), "-c", "64",
         "--what", "q,k,v", "-o", at("dump.h5"))
    must("kvcalib", *TRAIN, at("dump.h5"), "-o", at("c.h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def put_json(name, data):
    write(at("m/" + name), json.dumps(data).encode())


def add_token():
    """Then no merge has it: the text is of other tokens."""
    put_json("added_tokens.json", {"e": ord("e")})


def list_token():
    put_json("tokenizer_config.json", {"added_tokens_decoder": {
        str(tiny_model.VOCAB - 1): {"content": tiny_model.SPECIAL,
                                    "special": True, "normalized": False}}})


def name_token():
    put_json("special_tokens_map.json", {"unk_token": tiny_model.SPECIAL})


def new_template():
    write(at("m/chat_template.jinja"), b"{{ messages[0].content }}")


def new_end():
    put_json("generation_config.json", {"eos_token_id": 1})


def merge_less():
    path = at("m/tokenizer.json")
    t = json.loads(read(path))
    t["model"]["merges"].pop()
    write(path, json.dumps(t).encode())


def flip_weight():
    path = at("m/model.safetensors")
    data = bytearray(read(path))
    data[len(data) // 2 // 4 * 4] ^= 1  # the last bit of a mantissa
    write(path, data)


CHANGES = (add_token, list_token, name_token, new_template, new_end, merge_less,
           flip_weight)


class SameModel(unittest.TestCase):
    def setUp(self):
        shutil.copytree(at("was"), at("m"))
        shutil.copy(at("t.txt"), at("e.txt"))
        self.args = ["-m", at("m"), "-f", at("e.txt"), "-c", "64", "-n", "2"]

    def tearDown(self):
        shutil.rmtree(at("m"))
        for name in "r.csv", "j.csv", "j.csv.partial":
            if os.path.exists(at(name)):
                os.remove(at(name))

    def refused(self, words, *argv):
        done = run(*argv)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)

    def hash(self, *argv):
        rows = csv.DictReader(io.StringIO(must(*argv)))
        return {r["model_hash"] for r in rows}.pop()

    def test_every_tool_has_the_same(self):
        rows = self.hash("kvppl", *self.args, *SPEC, "-C", at("c.h5"))
        for argv in (["kvdump", "--about", "-m", at("m")],
                     ["kvquant", at("dump.h5"), *SPEC, "-C", at("c.h5"),
                      "--allow-leakage"],
                     ["kvcalib", "--table", *TRAIN, at("dump.h5"), "-o",
                      at("again.h5")],
                     ["kvgen", "-m", at("m"), "-f",
                      prompt(at("p.jsonl"), "a"), "-n", "2", "-o", os.devnull,
                      "-s", "kivi:b4g16"]):
            self.assertEqual(self.hash(*argv), rows, argv)

    def hashes(self, name):
        with open(at(name), encoding="utf-8") as f:
            return [r["model_hash"] for r in csv.DictReader(f)]

    def test_another_model_has_rows_of_its_own(self):
        ppl = ["kvppl", *self.args]
        was = self.hash(*ppl, "-s", "kivi:b4g16")
        for change in CHANGES:
            with self.subTest(change.__name__):
                self.tearDown()
                self.setUp()
                must(*ppl, "--append", "-o", at("r.csv"), "-s", "kivi:b4g16")
                write(at("j.csv.partial"),
                      must(*ppl, "-s", "kivi:b{2,4}g16").encode())
                table = read(at("r.csv"))
                change()
                now = self.hash(*ppl, "-s", "kivi:b4g16")
                self.assertNotEqual(now, was)
                must(*ppl, "--append", "-o", at("r.csv"), "-s", "kivi:b4g16")
                self.assertTrue(read(at("r.csv")).startswith(table))
                self.assertEqual(self.hashes("r.csv"), [was, was, now, now])
                must(*ppl, "--resume", "-o", at("j.csv"), "-s",
                     "kivi:b{2,4}g16")
                self.assertEqual(self.hashes("j.csv"), [now] * 3)
                self.refused("c.h5 was made for another model", *ppl, "-C",
                             at("c.h5"), *SPEC)

    def test_another_text_is_measured(self):
        ppl = ["kvppl", *self.args, "-s", "kivi:b4g16"]
        must(*ppl, "--append", "-o", at("r.csv"))
        must(*ppl, "--resume", "-o", at("j.csv"))
        text = bytearray(read(at("e.txt")))
        for place in 0, len(text) // 2, len(text) - 1:
            text[place] ^= 1
            write(at("e.txt"), text)
            must(*ppl, "--append", "-o", at("r.csv"))
            must(*ppl, "--resume", "-o", at("j.csv"))
            one, all_rows = (list(csv.DictReader(io.StringIO(
                read(at(name)).decode()))) for name in ("j.csv", "r.csv"))
            self.assertEqual([(r["text_hash"], r["ppl"]) for r in one],
                             [(r["text_hash"], r["ppl"])
                              for r in all_rows[-2:]])
        rows = list(csv.DictReader(io.StringIO(read(at("r.csv")).decode())))
        self.assertEqual(len({r["text_hash"] for r in rows}), 4)
        self.assertEqual(len(rows), 8)


if __name__ == "__main__":
    unittest.main()
