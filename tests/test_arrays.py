"""Tensors in and out: npz, safetensors and HDF5 of other programs' kinds."""
import csv
import io
import json
import os
import shutil
import struct
import tempfile
import unittest

import numpy as np

import tiny_model
from run_tools import must, read, run, write

try:
    import h5py
except ImportError:
    h5py = None

CTX, WINDOWS, LAYERS, HEADS, DIM = 32, 3, 2, 2, 16


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"))
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w", encoding="utf-8") as f:
            f.write(tiny_model.text(600, seed))
        must("kvdump", "-m", at("m"), "-f", at(text + ".txt"), "-c", CTX,
             "-n", WINDOWS, "-o", at(text + ".h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def read_safetensors(path):
    data = read(path)
    n, = struct.unpack_from("<Q", data)
    head = json.loads(data[8:8 + n])
    about = head.pop("__metadata__", {})
    return about, {name: np.frombuffer(
        data[8 + n:][slice(*t["data_offsets"])], np.float32).reshape(
            t["shape"]) for name, t in head.items()}


def write_safetensors(path, arrays):
    head, at_byte = {}, 0
    for name, x in arrays.items():
        kind = {"f": "F", "i": "I"}[x.dtype.kind] + str(8 * x.itemsize)
        head[name] = {"dtype": kind, "shape": x.shape,
                      "data_offsets": [at_byte, at_byte + x.nbytes]}
        at_byte += x.nbytes
    text = json.dumps(head).encode()
    return write(path, struct.pack("<Q", len(text)) + text + b"".join(
        np.ascontiguousarray(x).tobytes() for x in arrays.values()))


class Case(unittest.TestCase):
    def refused(self, words, tool, *args):
        done = run(tool, *args)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, done.stderr)


@unittest.skipIf(h5py is None, "no h5py")
class Decoded(Case):
    def check(self, spec, *more):
        """The three files have the same tensors, with the errors of the
        rows."""
        args = ["-s", spec, *more, at("eval.h5"), "--decoded"]
        table = rows(must("kvquant", *args, at("x.h5")))[9:]
        for name in "x.npz", "x.safetensors":
            must("kvquant", *args, at(name))
        about, tensors = read_safetensors(at("x.safetensors"))
        self.assertEqual(about["spec"], table[0]["spec"])
        z = np.load(at("x.npz"))
        self.assertEqual(sorted(z), sorted(tensors))
        with h5py.File(at("x.h5")) as f, h5py.File(at("eval.h5")) as was:
            self.assertEqual(f["tokens"][:].tolist(), was["tokens"][:].tolist())
            for layer in range(LAYERS):
                group, old = f["layer_%03d" % layer], was["layer_%03d" % layer]
                self.assertTrue((group["q"][:] == old["q"][:]).all())
                for side, name in ("k", "keys"), ("v", "values"):
                    x = z["layers.%d.%s" % (layer, name)]
                    self.assertEqual(x.shape, (WINDOWS, HEADS, CTX, DIM))
                    self.assertTrue((x == group[side][:].swapaxes(1, 2)).all())
                    self.assertTrue(
                        (x == tensors["layers.%d.%s" % (layer, name)]).all())
                for row in table:
                    if row["layer"] != str(layer) or row["side"] == "KV":
                        continue
                    for name in ("k", "k_pre") if row["side"] == "K" else "v":
                        error = group[name][:] - old[name][:]
                        self.assertAlmostEqual(
                            np.square(error, dtype=float).mean() /
                            float(row["mse"]), 1, 4)

    def test_after_rope(self):
        self.check("kivi:b2g8")

    def test_before_rope(self):
        must("kvcalib", "-s", "cq:c4b2,w=none", at("calib.h5"), "-o",
             at("c.h5"))
        self.check("cq:c4b2,w=none", "-C", at("c.h5"))

    def test_of_codes(self):
        """What was read back is what was encoded."""
        args = ["--keep-window", "-s", "kivi:b2g8r8s2", at("eval.h5")]
        must("kvquant", *args, "--codes", at("codes.h5"), "--decoded",
             at("a.npz"))
        must("kvquant", "--codes-in", at("codes.h5"), at("eval.h5"),
             "--decoded", at("b.npz"))
        self.assertEqual(read(at("a.npz")), read(at("b.npz")))

    def test_refused(self):
        quant = ["kvquant", at("eval.h5"), "--decoded"]
        self.refused("expected a name in .npz, .safetensors or .h5", *quant,
                     at("x.pt"), "-s", "kivi")
        self.refused("expected one spec, not 2", *quant, at("y.npz"), "-s",
                     "kivi:b{2,4}")
        self.refused("without a policy", *quant, at("y.npz"), "-s", "h2o+f16")
        self.refused("no-such", *quant, at("no-such/y.npz"), "-s", "kivi")
        self.refused("would replace the input", "kvquant", "-s", "kivi",
                     at("eval.h5"), "--decoded", at("eval.h5"))
        self.assertFalse([x for x in os.listdir(folder) if x[0] == "y"])


if __name__ == "__main__":
    unittest.main()
