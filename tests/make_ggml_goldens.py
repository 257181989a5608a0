#!/usr/bin/env python3
"""Codes and values of 10,000 blocks by llama.cpp's cache types: bytes and values by the
`gguf` package from PyPI (0.19.0); iq4_nl, which it cannot write, in numpy from
the definition.  Run by hand:

    tests/make_ggml_goldens.py > tests/ggml_goldens.h
"""
import hashlib

import gguf
import numpy as np

BLOCKS, SEED = 10000, 20
f32 = np.float32


def mix64(z):
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def random(key, counter):
    """kv_random() of lib/base/rng.h."""
    with np.errstate(over="ignore"):
        step = np.uint64(0x9E3779B97F4A7C15) * (counter + np.uint64(1))
        return mix64(mix64(np.uint64(key) + step))


def inputs():
    """test_block() of tests/test_ggml.c, for every block."""
    block = np.arange(BLOCKS, dtype=np.uint64)
    r = random(SEED, (block[:, None] << np.uint64(5)) +
               np.arange(32, dtype=np.uint64))
    kind = block % np.uint64(8)
    unit = (r >> np.uint64(40)).astype(np.int64) - (1 << 23)
    unit = unit.astype(f32) * f32(2.0**-23)
    x = unit.copy()
    power = (r[:, 0] % np.uint64(81)).astype(np.int64) - 60
    x[kind == 1] *= (f32(2) ** power.astype(f32))[kind == 1][:, None]
    x[kind == 2] = unit[kind == 2][:, :1]
    x[kind == 3] = 0
    x[kind == 4] *= f32(2.0**30)
    half = (r & np.uint64(0xFFFF)).astype(np.uint16)
    half[(half & 0x7C00) == 0x7C00] &= 0xBFFF
    x[kind == 5] = half.view(np.float16).astype(f32)[kind == 5]
    ties = ((r % np.uint64(33)).astype(np.int64) - 16).astype(f32) * f32(0.5)
    x[kind == 6] = ties[kind == 6]
    levels = ((r % np.uint64(509)).astype(np.int64) - 254).astype(f32) * f32(0.5)
    levels[:, 0] = -127
    x[block % np.uint64(16) == 14] = levels[block % np.uint64(16) == 14]
    x[kind == 7, 9] *= f32(16)
    assert x.dtype == f32 and np.isfinite(x).all()
    return x


def iq4_nl(x):
    """Returns codes with the largest magnitude at -127, and the d of least
    squares with weights x^2; all is in f32, sums are in order."""
    levels = np.array(gguf.quants.IQ4_NL.kvalues, f32)
    biggest = np.take_along_axis(x, abs(x).argmax(1)[:, None], 1)[:, 0]
    small = abs(biggest) < f32(1e-15)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(small, f32(0), f32(1) / (biggest / levels[0]))
    scaled = inverse[:, None] * x
    # the nearest level; of two the upper: the last minimum of exact distances
    distance = abs(scaled[:, :, None].astype(np.float64) - levels)
    code = 15 - distance[:, :, ::-1].argmin(2)
    # ggml compares f32 differences: the same unless they round to a tie
    low = np.clip((scaled[:, :, None] >= levels).sum(2) - 1, 0, 14)
    down, up = scaled - levels[low], levels[low + 1] - scaled
    tie = (down == up) & (scaled > levels[0]) & (scaled < levels[15])
    code[tie] = low[tie] + 1
    xq, qq = np.zeros(len(x), f32), np.zeros(len(x), f32)
    for j in range(32):
        w, q = x[:, j] * x[:, j], levels[code[:, j]]
        xq += w * q * x[:, j]
        qq += w * q * q
    with np.errstate(invalid="ignore", over="ignore"):
        d = np.where(small, f32(0), xq / qq).astype(np.float16)
    nibbles = code[:, :16] | code[:, 16:] << 4
    return np.concatenate([d[:, None].view(np.uint8),
                           nibbles.astype(np.uint8)], 1)


def main():
    x = inputs()
    types = gguf.GGMLQuantizationType
    print("/* Made by tests/make_ggml_goldens.py: %d blocks by gguf, iq4_nl by "
          "its\n * definition.  The first eight blocks in hexadecimal; SHA-256 "
          "(16 digits) of\n * all inputs, all bytes, and all values that they "
          "decode to, with 0 in place of\n * what is not finite. */"
          % BLOCKS)
    print("enum { GOLDEN_BLOCKS = %d, GOLDEN_SEED = %d };" % (BLOCKS, SEED))
    print('static const char golden_input[] = "%s";'
          % hashlib.sha256(x.tobytes()).hexdigest()[:16])
    print("static const struct golden {\n"
          "    const char *type, *bytes, *values, *first[8];\n} goldens[] = {")
    for name in ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]:
        kind = types[name.upper()]
        with np.errstate(over="ignore", invalid="ignore"):
            b = iq4_nl(x) if name == "iq4_nl" else gguf.quantize(x, kind)
            values = gguf.dequantize(b, kind)
        assert values.dtype == f32 and values.shape == x.shape
        values[~np.isfinite(values)] = 0
        print('    {"%s", "%s", "%s", {%s}},' % (
            name, hashlib.sha256(b.tobytes()).hexdigest()[:16],
            hashlib.sha256(values.tobytes()).hexdigest()[:16],
            ", ".join('"%s"' % b[i].tobytes().hex() for i in range(8))))
    print("};")


if __name__ == "__main__":
    main()
