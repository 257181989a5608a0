"""Real models on real texts: perplexities computed independently
(models/reference.csv of the shared inputs) and a known greedy text.  Skipped
where the shared inputs are absent."""
import csv
import io
import json
import os
import subprocess
import tempfile
import unittest

from run_tools import must, prompt

TOP = os.environ["KV_SOURCE_ROOT"]
TOOLS = os.path.join(os.environ["KV_BUILD_ROOT"], "tools")
SHARED = os.environ.get("KVTOOLS_SHARED", os.path.join(TOP, "..", "shared"))


def kvppl(*args):
    run = subprocess.run([os.path.join(TOOLS, "kvppl"), "-q", *args],
                         capture_output=True, check=True)
    return run.stdout


@unittest.skipUnless(os.path.isdir(SHARED), "no shared inputs")
class Reference(unittest.TestCase):
    def check(self, want):
        out = kvppl("-m", os.path.join(SHARED, "models", want["model"]),
                    "-f", os.path.join(SHARED, "text", want["text"]),
                    "-c", want["ctx"], "-n", want["windows"], "-s", "f32")
        row = next(csv.DictReader(io.StringIO(out.decode())))
        ppl = float(row["ppl"])
        self.assertLess(abs(ppl / float(want["ppl"]) - 1), 1e-4, want)

    def test_greedy(self):
        """Its first word is the prompt: a BOS and one token."""
        model = os.path.join(SHARED, "models", "stories260K")
        with open(os.path.join(model, "greedy-200.txt")) as f:
            first, rest = f.read().split(" ", 1)
        with tempfile.TemporaryDirectory(prefix="kvtools-") as folder:
            out = os.path.join(folder, "a.jsonl")
            must("kvgen", "-m", model, "-f",
                 prompt(os.path.join(folder, "p.jsonl"), first), "-n", "199",
                 "-o", out)
            with open(out) as f:
                self.assertEqual(json.load(f)["text"], " " + rest)


def add_row(want):
    name = "test_%(model)s_%(text)s_%(ctx)s_%(windows)s" % want
    setattr(Reference, name, lambda self: self.check(want))


path = os.path.join(SHARED, "models", "reference.csv")
if os.path.exists(path):
    with open(path) as f:
        for line in csv.DictReader(f):
            add_row(line)

if __name__ == "__main__":
    unittest.main()
