"""Completion in bash; manual pages, where help2man made them."""
import os
import shutil
import subprocess
import unittest

from run_scripts import ROOT

BUILD = os.environ.get("KV_BUILD_ROOT") or os.path.join(ROOT, "build")
TOOLS = os.path.join(BUILD, "tools")
NAMES = "kvattn kvcalib kvdump kvgen kvppl kvquant kvsim".split()


def complete(tool, *words):
    """What bash offers for the last word."""
    script = ('. "$1"; _kvtools "$2" "$3" "$4"; printf "%s\\n" '
              '"${COMPREPLY[@]}"')
    return subprocess.run(
        ["bash", "-c", script, "bash",
         os.path.join(ROOT, "scripts/completion/kvtools.bash"),
         os.path.join(TOOLS, tool), words[-1], words[-2] if words[1:] else
         tool], text=True, capture_output=True, check=True).stdout.split()


@unittest.skipUnless(shutil.which("bash"), "no bash")
class Completion(unittest.TestCase):
    def test_options(self):
        for tool in NAMES:
            self.assertIn("--help", complete(tool, "--he"), tool)
        self.assertEqual(complete("kvppl", "--own"),
                         ["--own", "--own-temperature"])

    def test_schemes(self):
        self.assertEqual(complete("kvquant", "-s", "kiv"), ["kivi"])
        self.assertIn("h2o", complete("kvppl", "--spec", "h"))

    def test_values(self):
        self.assertEqual(complete("kvppl", "-p", "st"), ["stream"])


@unittest.skipUnless(os.path.exists(os.path.join(TOOLS, "kvppl.1")),
                     "no help2man")
class Pages(unittest.TestCase):
    def test_every_option_is_there(self):
        for tool in NAMES:
            with open(os.path.join(TOOLS, tool + ".1"), encoding="utf-8") as f:
                page = f.read().replace("\\-", "-")
            options = complete(tool, "--")
            self.assertGreater(len(options), 5, tool)
            for option in options:
                self.assertIn(option, page, tool)
            self.assertIn(tool + " \\- ", page.replace("-", "\\-"), tool)


if __name__ == "__main__":
    unittest.main()
