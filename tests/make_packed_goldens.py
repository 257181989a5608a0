#!/usr/bin/env python3
"""What matrices of kernels/weights/packed.h are, unpacked by numpy.  Run by hand:

    tests/make_packed_goldens.py > tests/packed_goldens.h
"""
import hashlib

import numpy as np
from make_ggml_goldens import random

# packing, rows, columns, block (rows, columns), type of scales, then type of
# codes or bits, zero_less, whether column c is of the group of column 37 c.
PACKED = [
    ("scaled", 5, 300, 2, 128, "f32", "f8_e4m3", 0, 0),
    ("scaled", 256, 130, 128, 128, "bf16", "f8_e4m3", 0, 0),
    ("scaled", 3, 65, 3, 65, "f16", "f8_e5m2", 0, 0),
    ("scaled", 4, 33, 1, 33, "f32", "f8_e4m3", 0, 0),
    ("gptq", 24, 96, 0, 32, "f16", 4, 1, 0),
    ("gptq", 24, 96, 0, 32, "f16", 4, 0, 1),
    ("gptq", 8, 200, 0, 128, "f16", 8, 1, 1),
    ("gptq", 32, 64, 0, 64, "bf16", 2, 1, 1),
    ("awq", 40, 129, 0, 43, "f16", 4, 0, 0),
    ("gptq", 64, 96, 0, 32, "f16", 3, 0, 1),
]
FLOATS = {"f32": np.float32, "f16": np.float16}
SMALL = {"f8_e4m3": (4, 3), "f8_e5m2": (5, 2)}  # bits of exponent, mantissa


def random_bytes(key, n):
    r = random(key, np.arange(n, dtype=np.uint64))
    return (r >> np.uint64(56)).astype(np.uint8)


def random_scales(key, n, kind):
    """fill_scales() of tests/test_packed.c: finite."""
    size, top = (4, 0x7F) if kind == "f32" else (2, 0x7C)
    b = random_bytes(key, n * size).reshape(n, size)
    high = b[:, size - 1]
    high[(high & top) == top] &= 0xBF
    if kind == "bf16":
        return (b.view(np.uint16).astype(np.uint32) << 16).view(np.float32).ravel()
    return b.view(FLOATS[kind]).ravel().astype(np.float32)


def small_float(b, exponent, mantissa):
    bias = (1 << (exponent - 1)) - 1
    code = b.astype(np.int64)
    e = code >> mantissa & ((1 << exponent) - 1)
    m = code & ((1 << mantissa) - 1)
    value = np.where(e == 0, m * 2.0**(1 - bias - mantissa),
                     (m + (1 << mantissa)) * 2.0**(e - bias - mantissa))
    if exponent == 5:
        value[e == 31] = np.where(m[e == 31] == 0, np.inf, np.nan)
    else:
        value[code & 127 == 127] = np.nan
    return np.where(code >> 7, -value, value).astype(np.float32)


def codes(words, bits, axis, order=None):
    """Returns the codes of words [..] along this axis: `32 / bits` codes from
    each word, or 32 codes from every three words."""
    if bits == 3:
        words = np.ascontiguousarray(np.moveaxis(words, axis, -1))
        bit = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
        bit = bit.reshape(*words.shape[:-1], -1, 3)
        return np.moveaxis(bit @ np.array([1, 2, 4]), -1, axis).astype(
            np.float32)
    per = 32 // bits
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    out = words[..., None] >> shifts & np.uint32((1 << bits) - 1)
    if order is not None:
        ordered = np.empty_like(out)
        ordered[..., order] = out
        out = ordered
    out = np.moveaxis(out, -1, axis + 1)
    shape = list(words.shape)
    shape[axis] *= per
    return out.reshape(shape).astype(np.float32)


def unpack(i, packing, rows, columns, block_rows, block_columns, scale, how,
           zero_less, grouped):
    across = -(-columns // block_columns)
    if packing == "scaled":
        down = -(-rows // block_rows)
        s = random_scales(10 * i + 1, down * across, scale)
        s = s.reshape(down, across)
        s = s.repeat(block_rows, 0)[:rows].repeat(block_columns, 1)[:, :columns]
        code = random_bytes(10 * i, rows * columns).reshape(rows, columns)
        return small_float(code, *SMALL[how]) * s
    words = random_bytes(10 * i, rows * columns * how // 8).view(np.uint32)
    zeros = random_bytes(10 * i + 2, across * rows * how // 8).view(np.uint32)
    s = random_scales(10 * i + 1, across * rows, scale).reshape(across, rows)
    order = [0, 2, 4, 6, 1, 3, 5, 7] if packing == "awq" else None
    if zero_less:  # as one number, by GPTQModel: the code above may have lent 1
        zeros = zeros + np.uint32(0xFFFFFFFF // ((1 << how) - 1))
    zero = codes(zeros.reshape(across, -1), how, 1, order)
    if packing == "awq":
        q = codes(words.reshape(columns, rows // 8), 4, 1, order)
    else:
        q = codes(words.reshape(-1, rows), how, 0)
    group = np.arange(columns) // block_columns
    if grouped:
        group = np.arange(columns) * 37 % columns // block_columns
    return (s[group] * (q - zero[group])).T


def main():
    print("/* Made by tests/make_packed_goldens.py: SHA-256 (16 digits) of "
          "what matrices\n * of random codes and scales are, 0 in place of a NaN. */")
    print("static const struct golden {\n    struct kv_packed p;\n"
          "    bool grouped;\n    const char *values;\n} goldens[] = {")
    for i, case in enumerate(PACKED):
        (packing, rows, columns, block_rows, block_columns, scale, how,
         zero_less, grouped) = case
        with np.errstate(over="ignore", invalid="ignore"):
            x = np.ascontiguousarray(unpack(i, *case), dtype=np.float32)
        x[np.isnan(x)] = 0
        fields = [".packing = KV_PACKED_" + packing.upper(),
                  ".rows = %d, .columns = %d" % (rows, columns),
                  ".block_columns = %d" % block_columns,
                  ".scale_type = KV_TYPE_" + scale.upper()]
        if packing == "scaled":
            fields += [".block_rows = %d" % block_rows,
                       ".code_type = KV_STORED_" + how.upper()]
        else:
            fields += [".bits = %d" % how,
                       ".n_groups = %d" % -(-columns // block_columns),
                       ".zero_less = %s" % str(bool(zero_less)).lower()]
        print('    {{%s}, %s, "%s"},' % (
            ", ".join(fields), str(bool(grouped)).lower(),
            hashlib.sha256(x.tobytes()).hexdigest()[:16]))
    print("};")


main()
