"""The built tools, run as a user would."""
import csv
import io
import json
import os
import subprocess
import unittest

TOOLS = os.path.join(os.environ["KV_BUILD_ROOT"], "tools")
# Allows more ranks than cores, and any user, root too.
MPI_ENV = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "OMPI_MCA_hwloc_base_binding_policy": "none"}


def run(tool, *args, **more):
    """The finished process, its output as text."""
    return subprocess.run([os.path.join(TOOLS, tool), *map(str, args)],
                          text=True, **{"stdout": subprocess.PIPE,
                                        "stderr": subprocess.PIPE, **more})


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


def prompt(path, text):
    """A file with one prompt, for kvgen."""
    return write(path, json.dumps({"prompt": text}).encode() + b"\n")


def with_defaults(given, **defaults):
    """Options, before them those one-letter ones that they lack."""
    return [w for letter, value in defaults.items() if "-" + letter not in given
            for w in ("-" + letter, str(value))] + list(map(str, given))


def must(tool, *args):
    """Its stdout; fails when it says anything else or does not exit 0."""
    done = run(tool, "-q", *args)
    if done.returncode or done.stderr:
        raise AssertionError(f"{tool} {args}: {done.stderr}")
    return done.stdout


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


class Case(unittest.TestCase):
    maxDiff = None

    def refused(self, words, tool, *args, **more):
        """Checks exit code 2, no stdout, and one sentence on stderr."""
        done = run(tool, "-q", *args, **more)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(done.stdout)
        self.assertTrue(done.stderr.startswith(tool + ": "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)
