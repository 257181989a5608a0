"""Completion in bash; manual pages, where help2man made them."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from run_scripts import ROOT

BUILD = os.environ.get("KV_BUILD_ROOT") or os.path.join(ROOT, "build")
TOOLS = os.path.join(BUILD, "tools")
NAMES = "kvattn kvcalib kvdump kvgen kvppl kvquant kvsim".split()


def complete(tool, *words):
    """The completions that bash offers for the last word."""
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


@unittest.skipUnless(shutil.which("meson"), "no meson")
class Installed(unittest.TestCase):
    def test_every_file_has_a_tag(self):
        """So `meson install --tags runtime` brings completion too."""
        plan = json.loads(subprocess.run(
            ["meson", "introspect", "--install-plan", BUILD], check=True,
            text=True, stdout=subprocess.PIPE).stdout)
        tags = {path: file["tag"] for files in plan.values()
                for path, file in files.items()}
        self.assertEqual([p for p, tag in tags.items() if not tag], [])

    def test_documents_and_kvplot(self):
        with tempfile.TemporaryDirectory() as top:
            subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild",
                            "--quiet", "--tags", "doc,plot", "--destdir", top],
                           check=True)
            at = {name: os.path.join(folder, name)
                  for folder, _, names in os.walk(top) for name in names}
            doc = os.path.dirname(at["README.md"])
            for name in "docs/tutorial.md", "docs/pareto.png", \
                    "examples/kivi.py", "python/kvtools_codec.py":
                self.assertTrue(os.path.exists(os.path.join(doc, name)), name)
            done = subprocess.run([sys.executable, at["kvplot"], "--help"],
                                  text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("usage: kvplot", done.stdout)
            if importlib.util.find_spec("matplotlib"):
                page = os.path.join(top, "r.csv")
                with open(page, "w", encoding="utf-8") as f:
                    f.write("spec,model,text,ctx,windows,protocol,bits,ppl,"
                            "kl_mean,kl_se\nkivi:b2,m,t,9,2,all,3,9,0.1,0.01\n")
                subprocess.run([sys.executable, at["kvplot"], page, "-o",
                                os.path.join(top, "r.png")], check=True,
                               stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    unittest.main()
