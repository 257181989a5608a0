"""kvattn --device cuda as its users run it, on the host twin of a GPU: rows,
what is left out, how it ends.  No figure of time means anything here."""

import csv
import io
import os
import subprocess
import unittest

TOOL = os.path.join(os.environ["KV_BUILD_ROOT"], "tests", "kvattn_twin")


def attend(*args):
    return subprocess.run([TOOL, *args, "--device", "cuda", "--reps", "2",
                           "--warmup", "0"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=240)


class GpuToolTest(unittest.TestCase):
    def rows(self, done):
        return list(csv.DictReader(io.StringIO(done.stdout)))

    def test_row(self):
        done = attend("-s", "f16:s4r8", "--shape", "1,4,2,64,300,2")
        rows = self.rows(done)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([r["spec"] for r in rows],
                         ["f16:r0s0", "f16:r8s4"])
        for r in rows:
            self.assertEqual((r["device"], r["level"], r["path"]),
                             ("host twin 0", "cuda", "exact"))
            self.assertLess(float(r["attn_rel_err"]), 1e-3)
            self.assertGreater(float(r["attn_rel_err"]), 1e-5)

    def test_batch(self):
        one, three = (self.rows(attend("-s", "f16", "--shape",
                                       "%d,4,2,64,300" % n))[0]
                      for n in (1, 3))
        self.assertEqual(one["attn_rel_err"], three["attn_rel_err"])
        for column in "bytes_moved", "device_bytes":
            self.assertEqual(3 * int(one[column]), int(three[column]))
        self.assertEqual(three["windows"], "3")

    def test_left_out(self):
        done = attend("-s", "gear", "-s", "f16:s2r3", "--shape",
                      "1,4,2,64,300")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([r["spec"] for r in self.rows(done)],
                         ["f16:r0s0", "f16:r3s2"])
        self.assertIn("no CUDA kernel", done.stderr)
        self.assertIn("gear", done.stderr)

    def test_no_head_dim(self):
        done = attend("-s", "f16", "--shape", "1,4,2,72,300")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no CUDA kernel", done.stderr)
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
