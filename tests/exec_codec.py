"""A codec of test_exec.py: min and max of each head, b bits a value.

Words: trains (levels from kvcalib's tokens), varies (blocks that end before
their trailing zeros), law=broken (bytes that depend on earlier blocks)."""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)),
                             "..", "python"))
from kvtools_codec import Codec, run # noqa: E402


class Ends(Codec):
    def open(self):
        self.top = 2 ** int(self.param["b"]) - 1
        self.block = int(self.param.get("n", 1))
        self.trains = self.param.get("trains", False)
        self.broken = self.param.get("law") == "broken"
        if self.param.get("varies"):
            self.max_bytes = 4 * self.block * self.kv_heads + self.values
        print("open", self.side, self.param, "on stderr")

    def train(self, x, seed):
        return np.array([np.abs(x).max(), len(x)])

    def encode(self, x):
        low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
        if self.trains:
            low, high = -0 * low - self.tables[0], 0 * high + self.tables[0]
        ends = np.concatenate([low, high], -1).astype("f2")
        low, high = np.split(ends.astype("f4"), 2, -1)
        step = np.where(high > low, (high - low) / self.top, 1)
        code = np.rint((x - low) / step).clip(0, self.top).astype("u1")
        if self.broken:
            self.top = 4 - self.top # as 1 and 3 bits would
        if self.max_bytes:
            return ends.tobytes() + code.tobytes().rstrip(b"\0")
        return ends.tobytes() + code.tobytes()

    def decode(self, data):
        n = 4 * self.block * self.kv_heads
        low, high = np.split(np.frombuffer(data[:n], "f2").astype("f4")
                             .reshape(*self.shape[:2], 2), 2, -1)
        code = np.frombuffer(data[n:].ljust(self.values, b"\0"), "u1")
        top = 2 ** int(self.param["b"]) - 1
        step = np.where(high > low, (high - low) / top, 1)
        return low + code.reshape(self.shape) * step


run(Ends)
