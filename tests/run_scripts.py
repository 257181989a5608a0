"""The scripts, run as a user would, in a folder of their own."""
import csv
import os
import subprocess
import tempfile
import unittest

ROOT = os.environ.get("KV_SOURCE_ROOT") or os.path.dirname(
    os.path.dirname(os.path.abspath(__file__)))


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="scripts ")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def csv(self, name, rows):
        path = self.write(name, "")
        with open(path, "w", newline="", encoding="utf-8") as f:
            out = csv.DictWriter(f, rows[0])
            out.writeheader()
            out.writerows(rows)
        return path

    def run_script(self, name, *args, root=ROOT, code=0, **env):
        done = subprocess.run([os.path.join(root, name), *args], text=True,
                              encoding="utf-8", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              env=dict(os.environ, **env))
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout


def cells(output):
    """The body of a Markdown table."""
    lines = [line for line in output.splitlines() if line.startswith("|")]
    return [[c.strip() for c in line.strip("|").split("|")]
            for line in lines[2:]]
