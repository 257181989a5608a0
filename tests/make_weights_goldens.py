#!/usr/bin/env python3
"""What random blocks of GGUF's types decode to, by the `gguf` package from PyPI
(0.19.0).  Run by hand:

    tests/make_weights_goldens.py > tests/weights_goldens.h
"""
import hashlib

import gguf
import numpy as np
from make_ggml_goldens import random

BLOCKS = 1000
TYPES = {  # where a block has halves, which must be finite
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
    "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
    "TQ1_0": [52], "TQ2_0": [64], "IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0],
    "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "NVFP4": []}


def blocks(name, halves):
    """test_blocks() of tests/test_weights.c."""
    qtype = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[qtype][1]
    at = np.arange(BLOCKS * size, dtype=np.uint64)
    x = random(size, at).astype(np.uint8).reshape(BLOCKS, size)
    for i in halves:
        x[:, i + 1] &= np.where((x[:, i + 1] & 0x7C) == 0x7C, 0xBF,
                                0xFF).astype(np.uint8)
    if name == "MXFP4":
        x[:, 0] %= 250
    if name == "IQ1_M":  # the exponent's highest bit
        x[:, 55] &= 0xBF
    return x, qtype


print("""/* Made by tests/make_weights_goldens.py: SHA-256 (16 digits) of what %d
 * random blocks decode to, and where a block has halves. */
enum { GOLDEN_BLOCKS = %d };
static const struct {
    const char *values;
    int halves[2];
} goldens[KV_STORED_OTHER] = {""" % (BLOCKS, BLOCKS))
for name, halves in TYPES.items():
    x, qtype = blocks(name, halves)
    y = gguf.quants.dequantize(x, qtype)
    assert y.dtype == np.float32 and np.isfinite(y).all(), name
    print('    [KV_STORED_%s] = {"%s", {%s}},' % (
        name, hashlib.sha256(y.tobytes()).hexdigest()[:16],
        ", ".join(str(i) for i in (halves + [-1, -1])[:2])))
print("};")
