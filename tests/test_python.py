"""The Python package with numpy alone, over the built libkvtools."""
import csv
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

try:
    import h5py
except ImportError:
    h5py = None

sys.path.insert(0, os.path.join(os.environ["KV_SOURCE_ROOT"], "python"))
import kvtools  # noqa: E402
from kvtools._library import Binding, Bits, Sequence  # noqa: E402


KVQUANT = os.path.join(os.environ["KV_BUILD_ROOT"], "tools", "kvquant")


def tensor(n, heads=2, dim=64, seed=0):
    return np.random.default_rng(seed).standard_normal(
        (n, heads, dim)).astype(np.float32)


def kivi_values(x, bits, group):
    """KIVI's values by the formula: groups of a token, scale and minimum in
    fp16."""
    g = x.astype(np.float16).astype(np.float32).reshape(len(x), -1, group)
    low, high = g.min(-1, keepdims=True), g.max(-1, keepdims=True)
    top = np.float32(2 ** bits - 1)
    scale = ((high - low) / top).astype(np.float16).astype(np.float32)
    low = low.astype(np.float16).astype(np.float32)
    return (np.rint((g - low) / scale).clip(0, top) * scale
            + low).reshape(x.shape)


class Structures(unittest.TestCase):
    def test_members_are_those_of_the_header(self):
        """ctypes knows nothing of a struct that has grown."""
        with open(os.path.join(os.environ["KV_SOURCE_ROOT"],
                               "lib/seq/bits.h"), encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
        body = re.search(r"struct kv_bits \{(.*?)\};", text, re.S)[1]
        names = re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", body)
        self.assertEqual(names, [name for name, _ in Bits._fields_])


class Tensors(unittest.TestCase):
    def test_massive_is_refused(self):
        with self.assertRaisesRegex(ValueError, "massive"):
            kvtools.encode("q4_0:r0s0,massive", tensor(8))

    def test_formula(self):
        x = tensor(40)
        codes = kvtools.encode("kivi:b2g32r0", x, side="v")
        self.assertEqual(codes.bits, 3)
        self.assertEqual(len(codes.data), x.size * 3 // 8)
        back = kvtools.decode("kivi:b2g32r0", codes)
        np.testing.assert_array_equal(back, kivi_values(x, 2, 32))
        np.testing.assert_array_equal(
            kvtools.decode("kivi:b2g32r0", x, side="v"), back)

    def test_parts(self):
        """Sinks, blocks of 32 tokens, tail: only the blocks are codes."""
        x = tensor(99)
        back = kvtools.decode("kivi:b2g32s4r32", x)
        half = x.astype(np.float16).astype(np.float32)
        changed = (back != half).any((1, 2))
        np.testing.assert_array_equal(changed,
                                      [4 <= i < 68 for i in range(99)])

    def test_types(self):
        x = tensor(8).astype(np.float16)
        np.testing.assert_array_equal(kvtools.decode("f16", x), x)
        self.assertEqual(kvtools.decode("f16", x).dtype, np.float16)
        x = tensor(8)
        np.testing.assert_array_equal(kvtools.decode("f32", x), x)
        self.assertEqual(kvtools.bits("q4_0", x), 4.5)
        self.assertEqual(kvtools.decode("q4_0", x[:0]).shape, (0, 2, 64))

    def test_refused(self):
        x = tensor(8)
        for wrong, sentence in [
                (("nope", x), "unknown scheme 'nope'"),
                (("kivi:b99", x), "99"),
                (("h2o:b0.2+kivi:b2g32", x), "h2o drops tokens"),
                (("zipcache:l2n32", x), "by its queries"),
                (("vecinfer:d4b8", x), "needs a calibration"),
                (("q4_0", x[0]), r"expected \[tokens\]"),
                (("q4_0", np.full_like(x, np.nan)), "NaN"),
                (("q4_0", x, "missing.h5"), "missing.h5")]:
            with self.assertRaisesRegex(ValueError, sentence):
                kvtools.encode(*wrong)
        with self.assertRaisesRegex(TypeError, "floats"):
            kvtools.encode("q4_0", x.astype(int))
        with self.assertRaisesRegex(ValueError, "side"):
            kvtools.encode("q4_0", x, side="q")
        with self.assertRaisesRegex(ValueError, "codes of q4_0"):
            kvtools.decode("q8_0", kvtools.encode("q4_0", x))

    def test_damaged(self):
        codes = kvtools.encode("q4_0", tensor(8))
        with self.assertRaisesRegex(ValueError, "are not 8 tokens"):
            codes.binding.decode(0, "k", codes.data[:-1], 8)


class Sequences(unittest.TestCase):
    MODEL = dict(n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64,
                 attn_scale=.125)

    def test_reads_what_tensors_decode_to(self):
        """Read in pieces: only tokens that may have changed are read again."""
        b = Binding("kivi:b4g32r32", self.MODEL)
        s, have = Sequence(b, False, 0), {"k": [], "v": []}
        x = {"k": tensor(150, seed=1), "v": tensor(150, seed=2)}
        first, at = 0, {"k": 0, "v": 0}
        for n in (1, 70, 1, 1, 40, 37):
            s.append(1, x["k"][first:first + n], x["v"][first:first + n])
            first += n
            for side in "kv":
                have[side] = np.concatenate(
                    [*have[side][:at[side]][None], s.read(
                        1, side, at[side], first)]) if at[side] else \
                    s.read(1, side, 0, first)
                at[side] = s.settled(1, side)
                np.testing.assert_array_equal(
                    have[side],
                    kvtools.decode(b.spec, x[side][:first], side=side))
        self.assertEqual(at, {"k": 128, "v": 118})

    def test_attends(self):
        b = Binding("f32", self.MODEL)
        s, k, v = Sequence(b, False, 0), tensor(9), tensor(9, seed=1)
        q = tensor(9, heads=4, seed=2)
        out = np.concatenate([s.step(0, k[:5], v[:5], q[:5]),
                              s.step(0, k[5:], v[5:], q[5:])])
        for h in range(4):
            score = q[:, h] @ k[:, h // 2].T * .125
            score[np.triu_indices(9, 1)] = -np.inf
            w = np.exp(score - score.max(-1, keepdims=True))
            w /= w.sum(-1, keepdims=True)
            np.testing.assert_allclose(out[:, h], w @ v[:, h // 2], atol=1e-5)
        bits = Bits()
        s.add_bits(bits)
        self.assertEqual(8 * bits.bytes / bits.values, 32)

    def test_policy(self):
        b = Binding("h2o:b8+kivi:b4g32r0", self.MODEL)
        self.assertTrue(b.attends)
        self.assertFalse(Binding("kivi:b4g32", self.MODEL).attends)
        s, k, v = Sequence(b, False, 64), tensor(64), tensor(64, seed=1)
        q = tensor(64, heads=4, seed=2)
        for layer in range(2):
            for i in range(64):
                s.step(layer, k[i:i + 1], v[i:i + 1], q[i:i + 1])
        bits = Bits()
        s.add_bits(bits)
        self.assertEqual(bits.kept_values / bits.values, 8 / 64)
        with self.assertRaisesRegex(ValueError, "drops tokens of a prompt"):
            Sequence(Binding("snapkv+kivi:b4g32", self.MODEL), False, 64)
        with self.assertRaisesRegex(ValueError, "prunes the attention"):
            Sequence(Binding("minference:b0.25+f16", self.MODEL), True, 64)

    def test_exit(self):
        """What outlives its module is freed in silence."""
        done = subprocess.run([sys.executable, "-c", (
            "import sys; sys.path.insert(0, %r); import kvtools, numpy as np\n"
            "c = kvtools.encode('q4_0', np.zeros((1, 1, 64), 'f4'))\n"
            "sys.keeps = m = sys.modules['kvtools._library']; m.keeps = c; del c"
            % sys.path[0])],
            text=True, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_layer(self):
        x = np.zeros((1, 1, 64), np.float32)
        with self.assertRaisesRegex(ValueError, "layer 3 of a model of 1 layer$"):
            kvtools.encode("q4_0", x, layer=3)

    def test_sizes(self):
        for wrong, sentence in [(dict(n_layers=0), "0 layers"),
                                (dict(head_dim=63), "63 channels"),
                                (dict(n_heads=3), "3 query heads"),
                                (dict(n_rot=99), "99 pairs")]:
            with self.assertRaisesRegex(ValueError, sentence):
                Binding("f16", {**self.MODEL, **wrong})


class Dumps(unittest.TestCase):
    def test_own_tensors(self):
        """kvquant's bits and error for them equal decode()'s."""
        rng = np.random.default_rng(0)
        k, v = rng.standard_normal((2, 2, 1, 32, 2, 64)).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "own.h5")
            kvtools.write_dump(path, k, v, model="mine", text="noise")
            table = subprocess.run(
                [KVQUANT, "-s", "q4_0", path], text=True, check=True,
                stdout=subprocess.PIPE).stdout
            for wrong, sentence in [((k[0], v), "expected .layer."),
                                    ((k, v[:1]), "v has shape"),
                                    ((k * np.nan, v), "layer 0")]:
                with self.assertRaisesRegex(ValueError, sentence):
                    kvtools.write_dump(path, *wrong)
        rows = {(r["side"], r["layer"]): r
                for r in csv.DictReader(table.splitlines())
                if r["spec"].startswith("q4_0")}
        for side, x in (("K", k), ("V", v)):
            for layer in range(2):
                row, y = rows[side, str(layer)], x[layer, 0]
                error = y - kvtools.decode("q4_0", y)
                self.assertEqual(float(row["bits"]), 4.5)
                self.assertAlmostEqual(
                    float(row["sqnr_db"]),
                    10 * np.log10((y ** 2).sum() / (error ** 2).sum()),
                    places=3)


@unittest.skipIf(h5py is None, "no h5py")
class CodesFile(unittest.TestCase):
    SPECS = ["kivi:b2g32s4r32", "hack:b2p64,nearest,rqe=no", "gear:n32",
             "q8_0", "K-q4_0/V-kivi:b2g32r0"]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        rng = np.random.default_rng(0)
        self.k, self.v = rng.standard_normal((2, 2, 3, 99, 2, 64)).astype(
            np.float32)
        kvtools.write_dump(self.at("own.h5"), self.k, self.v, model="mine",
                           k_pre=self.k)
        self.table = self.kvquant("--keep-window", "--codes",
                                  self.at("codes.h5"), *[
            x for s in self.SPECS for x in ("-s", s)], self.at("own.h5"))

    def at(self, name):
        return os.path.join(self.folder.name, name)

    def kvquant(self, *args):
        return list(csv.DictReader(subprocess.run(
            [KVQUANT, "-q", *args], text=True, check=True,
            stdout=subprocess.PIPE).stdout.splitlines()))

    def test_decoded(self):
        """Equal to decode()'s values, with kvquant's bits."""
        bits = {r["spec"]: float(r["bits"]) for r in self.table
                if (r["layer"], r["side"]) == ("all", "KV")}
        read = kvtools.read_codes(self.at("codes.h5"))
        self.assertEqual([c.spec for c in read], list(bits))
        for codes in read:
            self.assertAlmostEqual(codes.bits, bits[codes.spec], 6)
            self.assertEqual(codes.layers, [0, 1])
            for layer in codes.layers:
                for side, x, y in (("k", self.k, codes.k),
                                   ("v", self.v, codes.v)):
                    for w in range(3):
                        np.testing.assert_array_equal(
                            y[layer][w], kvtools.decode(
                                codes.spec, x[layer, w], side=side))
        self.assertEqual(read[1].layout[0, "k"],
                         "sinks f16[4][2][64] | blocks u8[2][1536] | "
                         "tail f16[31][2][64]")

    def test_without_a_package(self):
        """One sentence, with the package's name."""
        for module, call, at in (("h5py", kvtools.read_codes, "codes.h5"),
                                 ("h5py", kvtools.dump, "own.h5"),
                                 ("pandas", kvtools.results, "r.csv")):
            with mock.patch.dict(sys.modules, {module: None}):
                with self.assertRaisesRegex(
                        ImportError, "kvtools.*wants the package %s: pip "
                        "install %s" % (module, module)):
                    call(self.at(at))

    def test_read_back(self):
        """Rows of the codes are the rows of what was encoded."""
        self.assertEqual(self.kvquant("--codes-in", self.at("codes.h5"),
                                      self.at("own.h5")), self.table)

    def test_refused(self):
        codes = self.at("codes.h5")
        with self.assertRaisesRegex(ValueError, "expected codes of format"):
            kvtools.read_codes(self.at("own.h5"))
        with h5py.File(codes, "a") as f:
            plane = f["spec_000/layer_001/v"][:]
            del f["spec_000/layer_001/v"]
            f["spec_000/layer_001/v"] = plane[:, :-1]
            f["spec_000/layer_001/v"].attrs["layout"] = ""
        with self.assertRaisesRegex(
                ValueError, "codes.h5: /spec_000/layer_001/v, window 0: .* are "
                "not 99 tokens"):
            kvtools.read_codes(codes)
        self.refused("are not 99 tokens", "own.h5")
        with h5py.File(codes, "a") as f:
            f.attrs["calibration"] = "0123"
        with self.assertRaisesRegex(ValueError, "coded with calibration 0123"):
            kvtools.read_codes(codes)
        self.refused("coded with calibration 0123: give it by -C", "own.h5")
        self.refused("goes without -s", "own.h5", "-s", "f16")
        self.refused("was coded with seed 0", "own.h5", "--seed", "3")
        self.refused("goes without", "own.h5", "--codes", self.at("x.h5"))
        self.refused("would replace the input", "own.h5", "-o", codes)
        kvtools.write_dump(self.at("other.h5"), self.k + 1, self.v,
                           model="mine", k_pre=self.k)
        self.refused("holds codes of mine on", "other.h5")
        for name, value, words in (
                ("ctx", 0, "ctx"), ("seed", -1, "seed"),
                ("format", 1, "does not say what its bytes are")):
            with h5py.File(codes, "a") as f:
                f.attrs[name] = value
            self.refused(words, "own.h5")
        with open(codes, "r+b") as f:
            f.truncate(2000)
        self.refused("codes.h5", "own.h5")

    def refused(self, words, dump, *args):
        done = subprocess.run(
            [KVQUANT, "--codes-in", self.at("codes.h5"), *args, self.at(dump)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)


class Package(unittest.TestCase):
    def test_without_the_library(self):
        run = subprocess.run(
            [sys.executable, "-c", "import kvtools"], text=True,
            stderr=subprocess.PIPE,
            env={**os.environ, "KVTOOLS_LIBRARY": "",
                 "PYTHONPATH": sys.path[0]})
        self.assertIn("pip install .", run.stderr)

    def test_every_file_is_installed(self):
        folder = os.path.join(os.environ["KV_SOURCE_ROOT"], "python")
        with open(os.path.join(folder, "meson.build"), encoding="utf-8") as f:
            listed = f.read()
        for name in os.listdir(os.path.join(folder, "kvtools")):
            if not name.startswith("__pycache__"):
                self.assertIn("'kvtools/%s'" % name, listed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
