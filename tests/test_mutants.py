"""A short run of tests/mutate/run.py: files of every kind changed by their
structure, through the tools.  KV_MUTANTS: how many.  And that it would tell a
tool that does not end as it should."""
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "mutate"))

import run  # noqa: E402

ENDINGS = [  # of a shell script that stands for a tool
    ("exit 0", None),
    ("echo 'kvx: a: expected b' >&2; exit 2", None),
    ("echo 'kvx: a: expected b' >&2", "words though done"),
    ("exit 2", "not one sentence"),
    ("echo 'a: expected b' >&2; exit 2", "not one sentence"),
    ("printf 'kvx: a\\nkvx: b\\n' >&2; exit 2", "not one sentence"),
    ("printf 'kvx: %2000d\\n' 1 >&2; exit 2", "a sentence of 2006 characters"),
    ("echo 'kvx: out of memory: 1 x 1 bytes' >&2; exit 2", "out of memory"),
    ("echo 'kvx: runtime error: x' >&2; exit 2", "a sanitizer's report"),
    ("exit 1", "exit 1"),
    ("kill -SEGV $$", "exit -11"),
    ("kill -ABRT $$", "exit -6"),
    ("sleep 9", "hangs for 1 s"),
    ("i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done", " s, intact"),
    ("exec python3 -c 'b\"a\" * (300 << 20)'", "KiB, intact"),
]


class Mutants(unittest.TestCase):
    def test_files(self):
        keep = os.path.join(os.environ["KV_BUILD_ROOT"], "mutants")
        runs = os.environ.get("KV_MUTANTS", "100")
        self.assertEqual(run.main(["--runs", runs, "--keep", keep]), 0)

    def test_endings(self):
        with tempfile.TemporaryDirectory(prefix="kvtools-") as folder, \
                mock.patch.object(run, "TOOLS", folder):
            path = os.path.join(folder, "kvx")
            bounds = run.Bounds(False)
            for script, wrong in ENDINGS:
                with self.subTest(script), mock.patch.object(
                        run, "WAIT", 1 if "sleep" in script else 60):
                    with open(path, "w") as f:
                        f.write("#!/bin/sh\n" + script + "\n")
                    os.chmod(path, 0o755)
                    intact = mock.Mock(seconds=60 if "python" in script else -.45,
                                       kib=20000)
                    done = run.Run(["kvx"], bounds, folder)
                    if wrong is None:
                        self.assertIsNone(done.wrong("kvx", bounds, intact))
                    else:
                        self.assertIn(wrong, str(done.wrong("kvx", bounds,
                                                            intact)))


if __name__ == "__main__":
    unittest.main()
