"""The published code's own figures for the embedded model's keys and values
(data/model on data/sample.txt, 4 windows of 512): results of its quantizers on
the tensors of kvdump, against the schemes here."""
import csv
import io
import os
import shutil
import tempfile
import unittest

from run_tools import must

DATA = os.path.join(os.environ["KV_SOURCE_ROOT"], "data")
LAYERS = "01234"


def setUpModule():
    global folder, dump
    folder = tempfile.mkdtemp(prefix="kvtools-")
    dump = os.path.join(folder, "dump.h5")
    must("kvdump", "-m", os.path.join(DATA, "model"), "-f",
         os.path.join(DATA, "sample.txt"), "-c", "512", "-n", "4", "-o", dump)


def tearDownModule():
    shutil.rmtree(folder)


def measured(spec, column, side):
    """The column's mean over all rows of each layer."""
    rows = csv.DictReader(io.StringIO(must("kvquant", "-s", spec, dump)))
    found = [(row["layer"], float(row[column])) for row in rows
             if not row["spec"].startswith("f32") and row["side"] == side]
    layers = [[x for at, x in found if at == layer] for layer in LAYERS]
    return [sum(x) / len(x) for x in layers]


class Published(unittest.TestCase):
    def near(self, is_, published, within):
        self.assertLess(abs(is_ / published - 1), within, (is_, published))

    def mse(self, spec, keys, values, within):
        """Means over layers."""
        for side, published in ("K", keys), ("V", values):
            mse = measured(spec, "mse", side)
            self.near(sum(mse) / len(mse), published, within)

    def test_qjl(self):
        """The mean of four sketches; independent rows have 0.97."""
        published = [0.1826, 0.2226, 0.3271, 0.4864, 0.5371]
        errors = measured("qjl:m256o8r0,seed={0,1,2,3}", "logit_err", "K")
        for error, its in zip(errors, published):
            self.near(error, its, 0.01)

    def test_zipcache(self):
        """Has the number of salient tokens, and the single mask, of the
        published run."""
        self.mse("zipcache:b4l2n512r0,salient=40,layer", 0.17601, 0.14352,
                 0.002)

    def test_gear(self):
        """Another start of the power iteration."""
        self.mse("gear:b2g64k4o2n256r0", 0.11892, 0.10936, 0.003)


if __name__ == "__main__":
    unittest.main()
