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
        done = run(tool, "-q", *args, timeout=30)
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

    def test_latents(self):
        """Only keys: values are the keys' first channels."""
        shutil.copytree(os.path.join(os.environ["KV_SOURCE_ROOT"],
                                     "tests/golden/deepseek_v2"), at("ds"))
        tiny_model.write_tokenizer(at("ds"), False)
        write(at("bytes.txt"), b"0123401234" * 10) # ids that the model has
        must("kvdump", "-m", at("ds"), "-f", at("bytes.txt"), "-c", CTX, "-n",
             2, "-o", at("latent.h5"))
        for name in "x.h5", "x.npz":
            table = must("kvquant", "-s", "absmax:b4g4", at("latent.h5"),
                         "--codes", at("latent-codes.h5"), "--decoded",
                         at(name))
        self.assertEqual(table, must("kvquant", "--codes-in", at(
            "latent-codes.h5"), at("latent.h5")))
        z = np.load(at("x.npz"))
        self.assertEqual(sorted(z), ["layers.%d.keys" % i
                                     for i in range(LAYERS)])
        with h5py.File(at("x.h5")) as f:
            self.assertEqual(list(f["layer_000"]), ["k", "k_pre", "q"])

    def test_of_codes(self):
        """The arrays read back equal the encoded ones."""
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


@unittest.skipIf(h5py is None, "no h5py")
class From(Case):
    def setUp(self):
        """[layer][window][heads][tokens][channels]"""
        with h5py.File(at("eval.h5")) as f:
            self.x = {name: np.stack([f["layer_%03d/%s" % (i, name)][:]
                                      for i in range(LAYERS)]).swapaxes(2, 3)
                      for name in ("q", "k", "v", "k_pre")}

    def arrays(self, k="layers.%d.keys", v="layers.%d.values", **more):
        return {**{k % i: self.x["k"][i] for i in range(LAYERS)},
                **{v % i: self.x["v"][i] for i in range(LAYERS)}, **more}

    def check(self, path, tensors=("k", "v", "k_pre"), windows=WINDOWS,
              about=("--config",), rounded=0.):
        """The dump that is made of the file has the first one's tensors."""
        about = [*about, at("m/config.json")] if about == ("--config",) else about
        must("kvdump", "--from", path, *about, "-o", at("from.h5"))
        with h5py.File(at("from.h5")) as f:
            self.assertEqual(list(f["layer_000"]), sorted(tensors))
            self.assertEqual(f.attrs["last_layer"], LAYERS - 1)
            for name in tensors:
                for i in range(LAYERS):
                    got = f["layer_%03d/%s" % (i, name)][:]
                    want = self.x[name][i][:windows].swapaxes(1, 2)
                    np.testing.assert_allclose(
                        got, want, rounded, rounded or
                        (1e-6 if name == "k_pre" else 0))

    def test_kinds(self):
        arrays = self.arrays()
        np.savez(at("a.npz"), **arrays)
        self.check(at("a.npz"))
        np.savez_compressed(at("a.npz"), **arrays)
        self.check(at("a.npz"))
        self.check(write_safetensors(at("a.safetensors"), arrays))
        with h5py.File(at("a.h5"), "w") as f:
            for name, x in arrays.items():
                f[name.replace(".", "/")] = x
        self.check(at("a.h5"))
        np.savez(at("a.npz"), **{n: x.astype(float) for n, x in arrays.items()})
        self.check(at("a.npz"))
        halves = {n: x.astype(np.float16) for n, x in arrays.items()}
        self.check(write_safetensors(at("a.safetensors"), halves),
                   rounded=2e-3)

    def test_names_and_layouts(self):
        first = {n: x[:, 0] for n, x in self.x.items()}
        for arrays, more in (
                (self.arrays("key_cache.%d", "value_cache.%d"), {}),
                (self.arrays("past_key_values.%d.key",
                             "past_key_values.%d.value"), {}),
                ({"k": self.x["k"], "v": self.x["v"]}, {}),
                ({"k": first["k"], "v": first["v"]}, {"windows": 1}),
                ({"k": first["k"].swapaxes(1, 2),
                  "v": first["v"].swapaxes(1, 2)}, {"windows": 1}),
                (self.arrays(**{"k_pre.%d" % i: self.x["k_pre"][i]
                                for i in range(LAYERS)},
                             **{"q.%d" % i: self.x["q"][i]
                                for i in range(LAYERS)}),
                 {"tensors": ("q", "k", "v", "k_pre")}),
                (self.arrays(logits=np.zeros(3)), {})):
            np.savez(at("a.npz"), **arrays)
            self.check(at("a.npz"), **more)
        only_pre = {"k_pre": self.x["k_pre"], "v": self.x["v"]}
        np.savez(at("a.npz"), **only_pre)
        must("kvdump", "--from", at("a.npz"), "--config", at("m/config.json"),
             "-o", at("from.h5"))
        with h5py.File(at("from.h5")) as f:
            np.testing.assert_allclose(f["layer_001/k"][:], self.x["k"][
                1].swapaxes(1, 2), 1e-6, 1e-6)

    def test_without_config(self):
        """RoPE with one base; the model's own is 10000."""
        np.savez(at("a.npz"), **self.arrays())
        self.check(at("a.npz"), about=["--rope-theta", "10000"])
        self.check(at("a.npz"), about=["--rope-theta", "0", "--rope", "post"],
                   tensors=("k", "v"))

    def test_for_every_tool(self):
        """Names show which calibration belongs to which model."""
        for name in "eval", "calib":
            must("kvquant", "-s", "f32", at(name + ".h5"), "--decoded",
                 at(name + ".npz"))
            must("kvdump", "--from", at(name + ".npz"), "--config",
                 at("m/config.json"), "-o", at("own-%s.h5" % name))
        must("kvcalib", "-s", "vecinfer:d4b4", at("own-calib.h5"), "-o",
             at("own.h5"))
        table = rows(must("kvquant", "-s", "vecinfer:d4b4", "-C", at("own.h5"),
                          at("own-eval.h5")))
        self.assertEqual(table[-1]["model"], "m")
        self.refused("was calibrated on text that holds", "kvquant", "-s",
                     "vecinfer:d4b4", "-C", at("own.h5"), at("own-calib.h5"))
        must("kvdump", "--from", at("eval.npz"), "--rope-theta", "10000",
             "--name", "other", "-o", at("other.h5"))
        self.refused("made for another model", "kvquant", "-s",
                     "vecinfer:d4b4", "-C", at("own.h5"), at("other.h5"))

    def test_all_that_is_missing(self):
        np.savez(at("a.npz"), k=self.x["k"][:, 0])
        self.refused(["values (arrays layers.0.values, ...)", "RoPE (",
                      "(-o dump.h5)"], "kvdump", "--from", at("a.npz"))
        np.savez(at("a.npz"), k=self.x["k"][:, 0], v=self.x["v"][:, 0])
        self.refused(["order of [2][2][32][16] (--layout htd or thd", "RoPE (",
                      "(-o dump.h5)"], "kvdump", "--from", at("a.npz"))

    def refused_arrays(self, words, arrays, *args):
        np.savez(at("b.npz"), **arrays)
        self.refused(words, "kvdump", "--from", at("b.npz"), "--rope-theta",
                     "10000", "-o", at("y.h5"), *args)
        self.assertFalse(os.path.exists(at("y.h5")))

    def test_refused(self):
        good = self.arrays()
        k1 = good["layers.1.keys"]
        bad = k1.copy()
        bad[1, 0, 3, 2] = np.nan
        for words, arrays in (
                (["layers.1.keys[1][0][3][2] is NaN"], {**good, "layers.1.keys": bad}),
                ("beyond f32", {**good, "layers.1.keys": k1 * 1e300}),
                (["layers.0.keys is of type <i4", "expected floats"],
                 {**good, "layers.0.keys": k1.astype(np.int32)}),
                ("keys of layers 0 to 0, and values of 0 to 1",
                 {n: x for n, x in good.items() if n != "layers.1.keys"}),
                ("no keys of layer 1, between 0 and 2",
                 {n.replace("1.keys", "2.keys"): x for n, x in good.items()}),
                ("layers.1.keys is [3][2][31][16], and layers.0.keys is "
                 "[3][2][32][16]", {**good, "layers.1.keys": k1[:, :, 1:]}),
                ("which does not go with layers.0.keys of [3][2][32][16]",
                 {n: x[:, :1] if "values" in n else x
                  for n, x in good.items()}),
                ("there are other keys of the same layers",
                 {**good, "k_1": k1}),
                ("expected [windows, if several]", {
                    n: x[0, 0, 0] for n, x in good.items()}),
                ("the KV heads of [32][16] (--config config.json)", {
                    n: x[0, 0] for n, x in good.items()}),
                ("is in Fortran's order", {
                    n: np.asfortranarray(x) for n, x in good.items()})):
            self.refused_arrays(words, arrays)
        self.refused_arrays("--layout tdh: expected htd or thd", good,
                            "--layout", "tdh")
        self.refused_arrays("one is expected", good, "--config",
                            at("m/config.json"))
        self.refused_arrays("goes without --from", good, "-n", "3")
        self.refused("goes with --from", "kvdump", "--name", "x", "-m", at("m"),
                     "-f", at("eval.txt"), "-o", at("y.h5"))
        wide = {n: np.concatenate([x, x], -1) for n, x in good.items()}
        np.savez(at("b.npz"), **wide)
        self.refused("b.npz has 2 KV heads of 32 channels", "kvdump", "--from",
                     at("b.npz"), "--config", at("m/config.json"), "-o",
                     at("y.h5"))
        write(at("b.pt"), b"PK")
        self.refused(["is a pickle", "weights_only=True"], "kvdump", "--from",
                     at("b.pt"), "-o", at("y.h5"))
        self.refused("would replace the input", "kvdump", "--from",
                     at("b.npz"), "--rope-theta", "1e4", "-o", at("b.npz"))

    def test_damaged(self):
        """Cut anywhere, or with a byte changed in the data."""
        np.savez(at("b.npz"), **self.arrays())
        write_safetensors(at("b.safetensors"), self.arrays())
        for name in "b.npz", "b.safetensors":
            data = read(at(name))
            for cut in 7, len(data) // 2, len(data) - 50:
                write(at(name), data[:cut])
                self.refused(name, "kvdump", "--from", at(name),
                             "--rope-theta", "1e4", "-o", at("y.h5"))
        np.savez_compressed(at("b.npz"), **self.arrays())
        data = bytearray(read(at("b.npz")))
        data[len(data) // 2] ^= 0x40
        write(at("b.npz"), bytes(data))
        self.refused("b.npz", "kvdump", "--from", at("b.npz"), "--rope-theta",
                     "1e4", "-o", at("y.h5"))


@unittest.skipIf(h5py is None, "no h5py")
class Tables(Case):
    def trained(self, spec):
        """kvcalib's own tables as another program would have them."""
        must("kvcalib", "-s", spec, at("calib.h5"), "-o", at("own.h5"))
        arrays = {}
        with h5py.File(at("own.h5")) as f:
            for name, x in f["set_000"].items():
                table, side, layer, *head = name.split("_")
                arrays["layers.%d.%s%s.%s" % (
                    int(layer[1:]), "heads.%d." % int(head[0][1:]) if head
                    else "", side.lower(), table)] = x[:].astype(np.float32)
        return arrays

    def take(self, spec, arrays):
        np.savez(at("t.npz"), **arrays)
        must("kvcalib", "--tables", at("t.npz"), "-s", spec, at("calib.h5"),
             "-o", at("taken.h5"))

    def test_the_same_calibration(self):
        for spec in ("vecinfer:d4b4,iters=2", "cq:c4b3,w=none,iters=2",
                     "kvquant:b2,w=none"):
            arrays = self.trained(spec)
            self.take(spec, arrays)
            table = [[{k: v for k, v in r.items() if "calib" not in k}
                      for r in rows(must("kvquant", "-s", spec, "-C", at(c),
                                         at("eval.h5")))]
                     for c in ("own.h5", "taken.h5")]
            self.assertEqual(*table)

    def test_heads_in_one_array(self):
        spec = "cq:c4b3,w=none,iters=2"
        arrays = self.trained(spec)
        joined = {"%s.%d.codebook" % (side, i): np.stack(
            [arrays["layers.%d.heads.%d.%s.codebook" % (i, h, side)]
             for h in range(HEADS)]) for side in "kv" for i in range(LAYERS)}
        table = []
        for names in arrays, joined:
            self.take(spec, names)
            table.append(must("kvquant", "-s", spec, "-C", at("taken.h5"),
                              at("eval.h5"), "--columns", "layer,side,mse,bits"))
        self.assertEqual(*table)

    def test_the_text_is_known(self):
        self.take("pq:d4b4,iters=2", self.trained("pq:d4b4,iters=2"))
        self.refused("was calibrated on text that holds", "kvquant", "-s",
                     "pq:d4b4,iters=2", "-C", at("taken.h5"), at("calib.h5"))

    def test_refused(self):
        spec = "vecinfer:d4b4"
        good = self.trained(spec + ",iters=2")
        book = "layers.1.v.codebook"
        bad = good[book].copy()
        bad[0, 3, 2] = np.inf
        for words, arrays in (
                ("layers.1.v.codebook[0][3][2] is beyond f32",
                 {**good, book: bad}),
                ("is of type <i4: expected floats",
                 {**good, book: good[book].astype(np.int32)}),
                ("'codebook' for layer 1, V, head 0 is missing",
                 {n: x for n, x in good.items() if n != book}),
                ("layers.1.v.codebook: ", {**good, book: good[book][:, 1:]}),
                ("is 1 x 15 x 4, expected 1 x 16 x 4\n",
                 {**good, book: good[book][:, 1:]}),
                ("layers.0.k.smoth: vecinfer",
                 {**good, "layers.0.k.smoth": good["layers.0.k.smooth"]}),
                ("a table 'smooth' of layer 0, V",
                 {**good, "layers.0.v.smooth": good["layers.0.k.smooth"]}),
                ("of layer 2: the dump has layers 0 to 1", {
                    **good, "layers.2.v.codebook": good[book]}),
                ("layer 1, V, head 1", {
                    **good, "layers.1.heads.1.v.codebook": good[book]}),
                ("does not read a table 'codebook'", {**good, "codebook.v.1": good[book]}),
                ("expected the name of a table", {**good, "a.b.c": good[book]}),
                ("layers.0.k.smooth: ", {
                    **good, "layers.0.k.smooth": -good["layers.0.k.smooth"]})):
            np.savez(at("t.npz"), **arrays)
            self.refused(["t.npz", words], "kvcalib", "--tables", at("t.npz"),
                         "-s", spec, at("calib.h5"), "-o", at("y.h5"))
        np.savez(at("t.npz"), **good)
        for words, *args in (
                ("expected one spec, not 2", "-s", "vecinfer:d{2,4}b4"),
                ("--tables is for vecinfer", "-s", "klt:b2,metric=none"),
                ("--tables is for vecinfer", "-s", "kivi"),
                ("trains nothing", "-s", spec, "--factors", at("own.h5")),
                ("two jobs", "-s", spec, "--allocate", "2")):
            self.refused(words, "kvcalib", "--tables", at("t.npz"), *args,
                         at("calib.h5"), "-o", at("y.h5"))
        self.assertFalse(os.path.exists(at("y.h5")))


@unittest.skipIf(h5py is None, "no h5py")
class Export(Case):
    NAME = "model.layers.%d.self_attn.%s_proj.%s_scale"

    @classmethod
    def setUpClass(cls):
        must("kvcalib", "-s", "modelopt:fp8", "-s", "pq:d4b2,iters=2",
             at("calib.h5"), "-o", at("fp8.h5"))

    def layers(self, *specs):
        with open(at("layers.txt"), "w", encoding="utf-8") as f:
            for i, spec in enumerate(specs):
                f.write("%d %s %s\n" % (i // 2, "KV"[i % 2], spec))
        return "mixed,file=" + at("layers.txt")

    def test_scales(self):
        """The largest magnitude over the largest code, 448."""
        said = must("kvcalib", "--export", at("s.safetensors"), "-C",
                    at("fp8.h5"))
        self.assertEqual(said, "--kv-cache-dtype fp8\n")
        about, scales = read_safetensors(at("s.safetensors"))
        self.assertEqual(about["kv_cache_dtype_skip_layers"], "")
        self.assertEqual(len(scales), 2 * LAYERS)
        with h5py.File(at("calib.h5")) as f:
            for i in range(LAYERS):
                for side in "kv":
                    scale = scales[self.NAME % (i, side, side)]
                    self.assertEqual(scale.shape, ())
                    self.assertAlmostEqual(
                        scale * 448 / np.abs(
                            f["layer_%03d/%s" % (i, side)][:]).max(), 1, 5)

    def test_skipped_layers(self):
        fp8 = "modelopt:fp8"
        for specs, skipped in (([fp8, fp8, "f16", "f16"], "1"),
                               (["bf16", fp8, fp8, fp8], "0")):
            said = must("kvcalib", "--export", at("s.safetensors"), "-C",
                        at("fp8.h5"), "-s", self.layers(*specs))
            self.assertEqual(said, "--kv-cache-dtype fp8 "
                             "--kv-cache-dtype-skip-layers %s\n" % skipped)
            about, scales = read_safetensors(at("s.safetensors"))
            self.assertEqual(about["kv_cache_dtype_skip_layers"], skipped)
            self.assertEqual(sorted(scales), sorted(
                self.NAME % (1 - int(skipped), side, side) for side in "kv"))

    def test_tables(self):
        """Rotations and codebooks come back as --tables."""
        for spec, names in (
                ("oscar:b2g8", ["layers.%d.%s.rotation" % (i, side)
                                for i in range(LAYERS) for side in "kv"]),
                ("cq:c4b3,w=none,iters=2", [
                    "layers.%d.heads.%d.%s.codebook" % (i, h, side)
                    for i in range(LAYERS) for h in range(HEADS)
                    for side in "kv"])):
            must("kvcalib", "-s", spec, at("calib.h5"), "-o", at("own.h5"))
            self.assertEqual(must(
                "kvcalib", "--export", at("s.safetensors"), "-C", at("own.h5"),
                "-s", spec), "")
            about, tables = read_safetensors(at("s.safetensors"))
            self.assertTrue(about["spec"].startswith(spec[:4]))
            self.assertEqual(sorted(tables), sorted(names))
            must("kvcalib", "--tables", at("s.safetensors"), "-s", spec,
                 at("calib.h5"), "-o", at("back.h5"))
            table = [[{k: v for k, v in r.items() if "calib" not in k}
                      for r in rows(must("kvquant", "-s", spec, "-C", at(c),
                                         at("eval.h5")))]
                     for c in ("own.h5", "back.h5")]
            self.assertEqual(*table)
        rotation = "klt:b2,metric=none"
        must("kvcalib", "-s", rotation, at("calib.h5"), "-o", at("own.h5"))
        must("kvcalib", "--export", at("s.safetensors"), "-C", at("own.h5"),
             "-s", rotation)
        self.assertEqual(read_safetensors(at("s.safetensors"))[1][
            "layers.1.v.forward"].shape[-1], HEADS * DIM)
        self.refused("own.h5", "kvcalib", "--export", at("y.safetensors"),
                     "-C", at("own.h5"), "-s", "oscar:b2g8")

    def test_llama_cpp(self):
        """Names that llama.cpp has come back as the spec of -ctk and -ctv."""
        for spec, want, rotates in (
                ("q4_0", "-ctk q4_0 -ctv q4_0", True),
                ("K-q8_0/V-f16", "-ctk q8_0 -ctv f16", True),
                ("llama.cpp:iq4_nl,rot", "-ctk iq4_nl -ctv iq4_nl", False),
                ("K-bf16/V-q5_1:rot", "-ctk bf16 -ctv q5_1", False),
                ("f16", "-ctk f16 -ctv f16", False),
                (self.layers("q8_0", "f32", "q8_0", "f32"),
                 "-ctk q8_0 -ctv f32", True)):
            args = "kvcalib", "--export", "llama.cpp", "-s", spec
            self.assertEqual(must(*args), want + "\n")
            self.assertEqual("LLAMA_ATTN_ROT_DISABLE=1" in run(*args).stderr,
                             rotates, spec)
        self.refused("expected r0s0", *args[:-1], "mixed:s4,file=" +
                     at("layers.txt"))
        self.refused("layer 0 has keys in q8_0, layer 1 in q4_0: llama.cpp has",
                     *args[:-1], self.layers("q8_0", "f16", "q4_0", "f16"))
        for words, *args in (
                ("llama.cpp has no cache type for kivi:", "-s", "kivi"),
                ("iq4_nl", "-s", "K-q4_0/V-q6_0"),
                ("has no cache type for q4_0:r32s0", "-s", "q4_0:r32"),
                ("expected one spec", "-s", "q{4,8}_0"),
                ("without a policy", "-s", "h2o:b0.2+q4_0"),
                ("expected -s SPEC",),
                ("expected -s SPEC without -C", "-s", "q4_0", "-C",
                 at("fp8.h5"))):
            self.refused(words, "kvcalib", "--export", "llama.cpp", *args)

    def test_of_allocate(self):
        must("kvcalib", "--allocate", "10", "-C", at("fp8.h5"), "-s",
             "modelopt:fp8", "-s", "f16", at("eval.h5"), "-o",
             at("chosen.txt"))
        must("kvcalib", "--export", at("s.safetensors"), "-C", at("fp8.h5"),
             "-s", "mixed,file=" + at("chosen.txt"))

    def test_refused(self):
        export = ["kvcalib", "--export", at("y.safetensors")]
        mixed = self.layers("modelopt:fp8", "modelopt:fp8", "absmax:b8",
                            "f16")
        for words, *args in (
                ("-C calib.h5",),
                ("layer 1: keys are absmax", "-C", at("fp8.h5"), "-s", mixed),
                ("layer 0: keys are kivi", "-C", at("fp8.h5"), "-s", "kivi"),
                ("nothing to export", "-C", at("fp8.h5"), "-s", "f16"),
                ("expected one spec", "-C", at("fp8.h5"), "-s", "{f16,bf16}"),
                ("goes with -C and -s alone", "-C", at("fp8.h5"), "-o",
                 at("y.h5")),
                ("layer 0: keys are modelopt", "-C", at("fp8.h5"), "-s",
                 "modelopt:nvfp4"),
                ("is a kvtools-dump", "-C", at("eval.h5"))):
            self.refused(words, *export, *args)
        must("kvcalib", "-s", "pq:d4b2,iters=2", at("calib.h5"), "-o",
             at("no.h5"))
        self.refused("no.h5", *export, "-C", at("no.h5"))
        self.refused("expected a name in .safetensors", "kvcalib", "--export",
                     at("y.npz"), "-C", at("fp8.h5"))
        self.refused("would replace the input", "kvcalib", "--export",
                     at("fp8.h5"), "-C", at("fp8.h5"))
        self.assertFalse([x for x in os.listdir(folder) if x[0] == "y"])


if __name__ == "__main__":
    unittest.main()
