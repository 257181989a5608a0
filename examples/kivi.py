"""KIVI (arXiv 2402.02750), from the paper's formulas, for -s exec:

    kvppl ... -s kivi:b2g32r128 -s "exec:b2g32r128,cmd=python3 examples/kivi.py"

Both rows are equal: the same codes, and the same number of bytes."""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
from kvtools_codec import Codec, run # noqa: E402


class Kivi(Codec):
    def open(self):
        self.bits, self.g = None, int(self.param["g"])
        self.top = 2 ** int(self.param["b"]) - 1
        self.of_tokens = self.side == "K" # else of channels
        self.block = self.g if self.of_tokens else 1
        self.batched = self.of_tokens

    def grouped(self, x):
        """The last axis becomes a group."""
        if self.of_tokens:
            return np.moveaxis(x, 0, -1)
        return x.reshape(*self.shape[:2], -1, self.g)

    def encode(self, x):
        x = self.grouped(x)
        low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
        scale = ((high - low) / np.float32(self.top)).astype("f2")
        low = low.astype("f2")
        step = np.where(scale > 0, scale, 1).astype("f4")
        code = np.rint((x - low.astype("f4")) / step).clip(0, self.top)
        code = np.where(scale > 0, code, 0).astype("u1").reshape(-1, 1)
        b = int(self.param["b"]) # codes without gaps, low bits first
        packed = np.packbits(np.unpackbits(code, axis=1, bitorder="little")
                             [:, :b].reshape(-1), bitorder="little")
        return np.concatenate([scale, low], -1).tobytes() + packed.tobytes()

    def decode(self, data):
        n = self.values // self.g
        ends = np.frombuffer(data[:4 * n], "f2").astype("f4").reshape(n, 2, 1)
        b = int(self.param["b"])
        code = np.unpackbits(np.frombuffer(data[4 * n:], "u1"),
                             bitorder="little")[:self.values * b]
        code = np.packbits(code.reshape(-1, b), axis=1, bitorder="little")
        x = code.reshape(n, self.g) * ends[:, 0] + ends[:, 1]
        if self.of_tokens:
            return np.moveaxis(x.reshape(*self.shape[1:], self.g), -1, 0)
        return x.reshape(self.shape)


run(Kivi)
