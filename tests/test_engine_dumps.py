"""kvdump --from: caches as engines and their users write them, in chunks of the
tokens, a file a layer, keys and values in one array; ids of tokens."""
import glob
import hashlib
import json
import os
import re
import shutil
import struct
import tempfile
import unittest

import numpy as np

import tiny_model
from run_tools import Case, must, write
from test_arrays import write_safetensors

try:
    import h5py
except ImportError:
    h5py = None

CTX, LAYERS, HEADS, DIM = 32, 2, 2, 16
CUTS = (0, 12, 20, CTX)
VLLM = "model.layers.%d.self_attn.attn.safetensors"


@unittest.skipIf(h5py is None, "no h5py")
class Dumps(Case):
    @classmethod
    def setUpClass(cls):
        """cls.k, cls.v: [layer][window][heads][tokens][channels]"""
        cls.folder = tempfile.mkdtemp(prefix="kvtools-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        tiny_model.make(cls.at("m"))
        with open(cls.at("t.txt"), "w", encoding="utf-8") as f:
            f.write(tiny_model.text(600, 1))
        must("kvdump", "-m", cls.at("m"), "-f", cls.at("t.txt"), "-c", CTX,
             "-n", 3, "-o", cls.at("t.h5"))
        with h5py.File(cls.at("t.h5")) as f:
            cls.k, cls.v = (np.stack([f["layer_%03d/%s" % (i, name)][:]
                                      for i in range(LAYERS)]).swapaxes(2, 3)
                            for name in "kv")
            cls.ids = f["tokens"][:]
        cls.config = cls.at("m/config.json")

    @classmethod
    def at(cls, name):
        return os.path.join(cls.folder, name)

    def made(self, path, windows=1, ids=None, about=()):
        """The dump of the path has the first windows of the model's."""
        must("kvdump", "--from", path, "--config", self.config, "-o",
             self.at("x.h5"), *about)
        with h5py.File(self.at("x.h5")) as f:
            for i in range(LAYERS):
                for name, x in ("k", self.k), ("v", self.v):
                    np.testing.assert_array_equal(
                        f["layer_%03d/%s" % (i, name)][:],
                        x[i, :windows].swapaxes(1, 2))
            if ids is not None:
                np.testing.assert_array_equal(f["tokens"][:], ids)

    def npz(self, arrays, name="x.npz"):
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        np.savez(self.at(name), **arrays)
        return self.at(name)

    def new(self, name):
        shutil.rmtree(self.at(name), ignore_errors=True)
        os.mkdir(self.at(name))
        return self.at(name)

    def chunks(self, names, k=None):
        """Arrays of one window, named by layer, number and first token."""
        return {names % {"i": i, "n": n, "first": first, "kv": name}:
                x[i, 0, :, first:end]
                for i in range(LAYERS) for name, x in
                (("k", self.k if k is None else k), ("v", self.v))
                for n, (first, end) in enumerate(zip(CUTS, CUTS[1:]))}

    def test_chunks(self):
        for names in ("layer_%(i)d_chunk_%(n)d_%(kv)s",
                      "chunk.%(first)03d.layer.%(i)d.%(kv)s",
                      "layers.%(i)d.page%(n)d.%(kv)s"):
            self.made(self.npz(self.chunks(names)))
        windows = {"layer_%d_chunk_%d_%s" % (i, n, name):
                   x[i, :, :, CUTS[n]:CUTS[n + 1]]
                   for i in range(LAYERS) for n in range(3)
                   for name, x in (("k", self.k), ("v", self.v))}
        self.made(self.npz(windows), windows=3)

    def test_folders(self):
        folder = self.new("by-chunk")
        for n, (first, end) in enumerate(zip(CUTS, CUTS[1:])):
            self.npz({"k": self.k[:, 0, :, first:end],
                      "v": self.v[:, 0, :, first:end],
                      "tokens": self.ids[0, first:end]},
                     "by-chunk/chunk_%d.npz" % n)
        self.made(folder, ids=self.ids[:1])
        folder = self.new("deep")
        for n, (first, end) in enumerate(zip(CUTS, CUTS[1:])):
            for i in range(LAYERS):
                os.makedirs(self.at("deep/chunk_%d" % n), exist_ok=True)
                write_safetensors(self.at("deep/chunk_%d/layer_%d.safetensors"
                                          % (n, i)),
                                  {"keys": self.k[i, 0, :, first:end],
                                   "values": self.v[i, 0, :, first:end]})
        self.made(folder + "/")
        self.refused("would become a file of", "kvdump", "--from", folder,
                     "--config", self.config, "-o",
                     os.path.join(folder, "y.h5"))
        self.refused("no file in .npz, .safetensors or .h5", "kvdump", "--from",
                     self.new("none"), "-o", self.at("y.h5"))

    def test_vllm(self):
        """A file a layer: [2][tokens][heads x channels]; later versions
        [tokens][2][heads][channels]."""
        both = np.stack([self.k, self.v])[:, :, 0].transpose(1, 0, 3, 2, 4)
        folder = self.new("vllm")
        for i, x in enumerate(both): # [2][tokens][heads][channels]
            write_safetensors(os.path.join(folder, VLLM % i), {
                "kv_cache": x.reshape(2, CTX, HEADS * DIM)})
        self.made(folder)
        self.refused("still wanted: the KV heads of [2][32][32] (--config",
                     "kvdump", "--from", folder, "--rope-theta", "1e4", "-o",
                     self.at("y.h5"))
        for i, x in enumerate(both):
            write_safetensors(os.path.join(folder, VLLM % i), {
                "kv_cache": x.swapaxes(0, 1)})
        self.made(folder)

    def lmcache(self, name, x):
        """A chunk as LMCache's GDS backend lays it out: a header of 4096 bytes
        with a field of its own, metadata inside the tensor's."""
        head = json.dumps({"kvcache": {
            "dtype": "F32", "shape": x.shape, "data_offsets": [0, x.nbytes],
            "fmt": 1, "__metadata__": {"lmcache_version": "1"}}}).encode()
        return write(self.at(name), struct.pack("<Q", 4088) +
                     head.ljust(4088) + np.ascontiguousarray(x).tobytes())

    def test_lmcache(self):
        """[2][layers][tokens][heads x channels], or [tokens][2][...] a layer."""
        both = np.stack([self.k, self.v])[:, :, 0].swapaxes(2, 3).reshape(
            2, LAYERS, CTX, HEADS * DIM)
        self.made(self.lmcache("a%2Fb@1@0@9f3c@float.kvcache.safetensors",
                               both))
        folder, layered = self.new("lmcache"), self.new("layerwise")
        for n, (first, end) in enumerate(zip(CUTS, CUTS[1:])):
            self.lmcache("lmcache/chunk_%d.safetensors" % n,
                         both[:, :, first:end])
            for i in range(LAYERS):
                self.lmcache("layerwise/chunk_%d_layer_%d.safetensors" % (n, i),
                             both[:, i, first:end].swapaxes(0, 1))
        self.made(folder)
        self.made(layered)
        self.refused("expected [2, keys and values][layers]", "kvdump",
                     "--from", self.lmcache("x.safetensors", both[0]),
                     "--config", self.config, "-o", self.at("y.h5"))

    def test_sglang(self):
        """A page a file, bytes alone: [2][layers][tokens][heads][channels] of
        bf16, named by the ids; the lines of docs/measuring.md convert them."""
        page, folder, digest = 8, self.new("hicache"), b""
        ids = self.ids[0].tolist()
        half = (np.stack([self.k, self.v])[:, :, 0].swapaxes(2, 3).view("<u4")
                >> 16).astype("<u2")
        for i in range(0, CTX, page):
            digest = hashlib.sha256(digest + struct.pack("<%dI" % page,
                                                         *ids[i:i + page])).digest()
            half[:, :, i:i + page].tofile(os.path.join(
                folder, digest.hex() + "_a-b_0_1.bin"))
        words = "_0_1.bin is no pickle: bytes alone"
        for path in folder, os.path.join(folder, digest.hex() + "_a-b_0_1.bin"):
            self.refused(words, "kvdump", "--from", path, "--config",
                         self.config, "-o", self.at("y.h5"))
        with open(os.path.join(os.environ["KV_SOURCE_ROOT"], "docs/measuring.md"),
                  encoding="utf-8") as f:
            (lines,) = [b for b in re.findall("```python\n(.*?)```", f.read(),
                                              re.S) if "sha256" in b]
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            exec(lines, {"glob": glob, "hashlib": hashlib, "numpy": np,
                         "os": os, "folder": folder, "ids": ids, "page": page,
                         "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM})
        finally:
            os.chdir(before)
        must("kvdump", "--from", self.at("own.npz"), "--config", self.config,
             "--layout", "thd", "-o", self.at("x.h5"))
        with h5py.File(self.at("x.h5")) as f:
            np.testing.assert_array_equal(f["tokens"][:], self.ids[:1])
            for i in range(LAYERS):
                for side, name in enumerate("kv"):
                    np.testing.assert_array_equal(
                        f["layer_%03d/%s" % (i, name)][0],
                        (half[side, i].astype("<u4") << 16).view("<f4"))

    def test_both_in_one(self):
        both = np.stack([self.k, self.v], 1)
        for names in "past_key_values.%d", "kv.%d":
            self.made(self.npz({names % i: x for i, x in enumerate(both)}),
                      windows=3)
        self.made(self.npz({"kv": both[:, :, 0]}))

    def test_ids(self):
        arrays = {"k": self.k, "v": self.v}
        for kind in "<i4", "<i8", "<u4", "<u8":
            self.made(self.npz({**arrays, "input_ids": self.ids.astype(kind)}),
                      3, self.ids)
        self.made(write_safetensors(self.at("x.safetensors"), {
            **arrays, "tokens": self.ids.astype("<i8")}), 3, self.ids)
        for kind in "<i4", "<i8":
            with h5py.File(self.at("a.h5"), "w") as f:
                for i in range(LAYERS):
                    f["layers/%d/k" % i], f["layers/%d/v" % i] = \
                        self.k[i], self.v[i]
                f["token_ids"] = self.ids.astype(kind)
            self.made(self.at("a.h5"), 3, self.ids)

    def test_ids_are_known_again(self):
        """The text is the same, whatever the values are."""
        for name, x in ("a", self.v), ("b", self.v + 1):
            must("kvdump", "--from", self.npz({"k": self.k, "v": x,
                                               "ids": self.ids}),
                 "--config", self.config, "-o", self.at(name + ".h5"))
        must("kvcalib", "-s", "pq:d4b2,iters=1", self.at("a.h5"), "-o",
             self.at("c.h5"))
        self.refused("was calibrated on text that holds", "kvquant", "-s",
                     "pq:d4b2,iters=1", "-C", self.at("c.h5"), self.at("b.h5"))

    def refused_arrays(self, words, arrays):
        self.refused(words, "kvdump", "--from", self.npz(arrays), "--config",
                     self.config, "-o", self.at("y.h5"))
        self.assertFalse(os.path.exists(self.at("y.h5")))

    def test_refused_ids(self):
        good = {"k": self.k, "v": self.v}
        bad = self.ids.astype("<i8")
        bad[1, 3] = -1
        far = bad.copy()
        far[1, 3] = 1 << 31
        out = self.ids.copy()
        out[2, 5] = 1 << 20
        for words, ids in (
                ("x.npz: ids[1][3] is -1: expected the id of a token", bad),
                ("ids[1][3] is 2147483648", far),
                ("token 5 of window 2 has id 1048576", out),
                ("ids is of type <f4: expected ids", self.ids.astype("<f4")),
                ("ids is [2][32]: expected ids of 3 windows", self.ids[:2]),
                ("ids of 31 tokens, keys of 32", self.ids[:, 1:])):
            self.refused_arrays(words, {**good, "ids": ids})

    def test_refused_chunks(self):
        names = "layer_%(i)d_chunk_%(n)d_%(kv)s"
        good = self.chunks(names)

        def without(name):
            return {n: x for n, x in good.items() if n != name}

        for words, arrays in (
                ("keys of layer 1 have other chunks than layer 0",
                 without("layer_1_chunk_1_k")),
                ("values are in 2 chunks, keys in 3", {
                    n: x for n, x in good.items() if "chunk_2_v" not in n}),
                ("the chunks of keys are 0, 2, ... 2: expected 0, 1, 2", {
                    n: x for n, x in good.items() if "chunk_1" not in n}),
                ("which does not go with layer_0_chunk_1_k", {
                    n: x[:, 1:] if n.endswith("_1_v") else x
                    for n, x in good.items()}),
                ("there are other keys of the same layers",
                 {**good, "layer_0_k": good["layer_0_chunk_0_k"]}),
                ("expected [2, keys and values]", {
                    "kv.0": np.zeros((3, 2, HEADS, CTX, DIM), "f4")})):
            self.refused_arrays(words, arrays)


if __name__ == "__main__":
    unittest.main()
