"""Formats of packed weights, a packer in numpy for each: of a matrix the values
that its codes stand for, and the tensors of the file."""
import json

import numpy as np


# ---- tensors as files have them: name -> (dtype, shape, bytes) --------------


def f32(x):
    return "F32", list(x.shape), np.ascontiguousarray(x, "<f4").tobytes()


def f16(x):
    return "F16", list(x.shape), np.ascontiguousarray(x, "<f2").tobytes()


def i32(x):
    return "I32", list(x.shape), np.ascontiguousarray(x).astype("<u4").tobytes()


# ---- formats -----------------------------------------------------------------


def thirds(codes):
    """Codes of 3 bits [..][32 n], as AutoGPTQ's loop writes them to 3 n words."""
    out = []
    for i in range(0, codes.shape[-1], 32):
        c = [codes[..., i + j].astype(np.uint64) for j in range(32)]
        out += [sum(c[j] << np.uint64(3 * j) for j in range(11)),
                (c[10] >> np.uint64(2)) + (c[21] << np.uint64(31)) + sum(
                    c[11 + j] << np.uint64(3 * j + 1) for j in range(10)),
                (c[21] >> np.uint64(1)) + sum(
                    c[22 + j] << np.uint64(3 * j + 2) for j in range(10))]
    return np.stack(out, -1).astype(np.uint32)


def words(codes, bits):
    """Codes [n][32 / bits], the first lowest, as words."""
    shifts = np.arange(0, 32, bits, dtype=np.uint64)
    return (codes.astype(np.uint64) << shifts).sum(-1).astype(np.uint32)


def gptq(bits=4, group=16, sym=False, v2=False, order=None, **header):
    """order: "g_idx", with act order; "plain", g_idx in order; None: no g_idx."""

    def pack(rng, rows, columns):
        size = group if group > 0 else columns
        top, per = 1 << bits, 32 // bits
        q = rng.integers(0, top, (rows, columns))
        scale = rng.uniform(.01, .03, (columns // size, rows)).astype(np.float16)
        zero = rng.integers(0, top, scale.shape)
        zero[:, ::5] = 0  # their 1 is borrowed from the zero above
        if sym:
            zero[:] = top // 2
        g = np.arange(columns) // size
        if order == "g_idx":
            g = rng.permutation(g)
        x = scale[g].T.astype(np.float32) * (q - zero[g].T).astype(np.float32)
        stored = words(zero.reshape(len(zero), -1, per), bits)
        if not v2:
            stored = stored - np.uint32(0xffffffff // (top - 1))
        parts = {"qweight": i32(words(q.T.reshape(-1, per, rows)
                                      .transpose(0, 2, 1), bits)),
                 "qzeros": i32(stored), "scales": f16(scale)}
        if order:
            parts["g_idx"] = i32(g)
        return x, parts

    said = {"quant_method": "gptq", "bits": bits, "group_size": group,
            "sym": sym, "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    if order:
        said["desc_act"] = order == "g_idx"
    return pack, {**said, **header}, "config.json"


def gptq3(less=None, sym=False, **header):
    """less: how zeros of 4 are stored minus 1: in each code, or by GPTQModel's
    constants for the word as a number; None: unchanged."""

    def pack(rng, rows, columns):
        q = rng.integers(0, 8, (rows, columns))
        scale = rng.uniform(.01, .03, (columns // 32, rows)).astype(np.float16)
        zero = np.full(scale.shape, 4) if sym else rng.integers(0, 8, scale.shape)
        g = np.arange(columns) // 32
        x = scale[g].T.astype(np.float32) * (q - zero[g].T).astype(np.float32)
        stored = thirds(zero - (less == "code"))
        if less == "words":
            stored -= np.tile(np.array([0x24924924, 0x92492492, 0x49249249],
                                       np.uint32), rows // 32)
        return x, {"qweight": i32(thirds(q).T), "qzeros": i32(stored),
                   "scales": f16(scale)}

    return pack, {"quant_method": "gptq", "bits": 3, "group_size": 32,
                  "sym": sym,
                  "checkpoint_format": "gptq" if less else "gptq_v2",
                  **header}, "config.json"


LEVELS = np.array([-1, -.6961928009986877, -.5250730514526367,
                   -.39491748809814453, -.28444138169288635,
                   -.18477343022823334, -.09105003625154495, 0,
                   .07958029955625534, .16093020141124725, .24611230194568634,
                   .33791524171829224, .44070982933044434, .5626170039176941,
                   .7229568362236023, 1], np.float32)


def bitsandbytes(kind, nested, block=64):
    """Weights in turn, two codes a byte, the first at the high half; scales as
    floats, or as bytes that have scales."""

    def pack(rng, rows, columns):
        n = rows * columns
        level = LEVELS
        if kind == "fp4":
            level = np.array([0, .005208333, .6666667, 1, .33333334, .5,
                              .16666667, .25], np.float32)
            level = np.concatenate([level, -level])
        q = rng.integers(0, 16, n).astype(np.uint8)
        blocks = -(-n // block)
        state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16",
                 "shape": [rows, columns]}
        name = "weight."
        parts = {"weight": ("U8", [n // 2, 1],
                            (q[::2] << 4 | q[1::2]).tobytes()),
                 name + "quant_map": f32(level)}
        if nested:
            code = rng.integers(0, 256, blocks).astype(np.uint8)
            table = np.sort(rng.uniform(-1, 1, 256).astype(np.float32))
            of = rng.uniform(.01, .02, -(-blocks // 16)).astype(np.float32)
            offset = np.float32(.03)
            scale = table[code] * of.repeat(16)[:blocks] + offset
            parts |= {name + "absmax": ("U8", [blocks], code.tobytes()),
                      name + "nested_quant_map": f32(table),
                      name + "nested_absmax": f32(of)}
            state |= {"nested_blocksize": 16, "nested_dtype": "float32",
                      "nested_offset": float(offset)}
        else:
            scale = rng.uniform(.01, .02, blocks).astype(np.float32)
            parts[name + "absmax"] = f32(scale)
        text = json.dumps(state).encode()
        parts[name + "quant_state.bitsandbytes__" + kind] = (
            "U8", [len(text)], text)
        x = level[q] * scale.repeat(block)[:n]
        return x.reshape(rows, columns), parts

    return pack, {"quant_method": "bitsandbytes", "load_in_4bit": True,
                  "load_in_8bit": False, "bnb_4bit_quant_type": kind,
                  "bnb_4bit_use_double_quant": nested,
                  "bnb_4bit_compute_dtype": "bfloat16",
                  "bnb_4bit_quant_storage": "uint8"}, "config.json"


def scb(rng, rows, columns):
    """bitsandbytes' int8."""
    q = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    scale = rng.uniform(.1, .2, rows).astype(np.float32)
    x = q.astype(np.float32) * scale[:, None] * np.float32(
        7.874015718698502e-3)
    return x, {"weight": ("I8", [rows, columns], q.tobytes()),
               "SCB": f32(scale), "weight_format": ("U8", [], b"\0")}


def awq(old=False):
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(rng, rows, columns):
        q = rng.integers(0, 16, (columns, rows))
        scale = rng.uniform(.01, .03, (columns // 16, rows)).astype(np.float16)
        zero = rng.integers(0, 16, scale.shape)
        x = scale.repeat(16, 0).astype(np.float32) * (
            q - zero.repeat(16, 0)).astype(np.float32)
        stored = [words(c.reshape(len(c), -1, 8)[..., order], 4)
                  for c in (q, zero)]
        return x.T, {"qweight": i32(stored[0]), "qzeros": i32(stored[1]),
                     "scales": f16(scale)}

    if old:
        return pack, {"zero_point": True, "q_group_size": 16, "w_bit": 4,
                      "version": "GEMM"}, "quant_config.json"
    return pack, {"quant_method": "awq", "bits": 4, "group_size": 16,
                  "zero_point": True, "version": "gemm"}, "config.json"


def gemv(group, width):
    """AutoAWQ's WQLinear_GEMV: words along the inputs; zeros and scales of a row
    padded to width(groups) words."""

    def pack(rng, rows, columns):
        n = columns // group
        q = rng.integers(0, 16, (rows, columns))
        scale = rng.uniform(.01, .03, (rows, n)).astype(np.float16)
        zero = rng.integers(0, 16, scale.shape)
        x = scale.repeat(group, 1).astype(np.float32) * (
            q - zero.repeat(group, 1)).astype(np.float32)
        pad = ((0, 0), (0, 8 * width(n) - n))
        return x, {
            "qweight": i32(words(q.reshape(rows, -1, 8), 4)),
            "qzeros": i32(words(np.pad(zero, pad).reshape(rows, -1, 8), 4)),
            "scales": f16(np.pad(scale, pad))}

    return pack, {"quant_method": "awq", "bits": 4, "group_size": group,
                  "zero_point": True, "version": "gemv"}, "config.json"


def fp8(shape, name="weight_scale", place="config.json", **header):
    """shape(rows, columns) of the scales."""

    def pack(rng, rows, columns):
        code = rng.integers(0, 0x78, (rows, columns)).astype(np.uint8)
        code |= rng.integers(0, 2, code.shape).astype(np.uint8) << 7
        value = e4m3(code)
        dims = shape(rows, columns)
        scale = rng.uniform(.001, .002, dims).astype(np.float32)
        s = scale.reshape(dims if len(dims) == 2 else (-1, 1))
        down, across = -(-rows // s.shape[0]), -(-columns // s.shape[1])
        x = value * s.repeat(down, 0)[:rows].repeat(across, 1)[:, :columns]
        return x, {"weight": ("F8_E4M3", [rows, columns], code.tobytes()),
                   name: f32(scale)}

    return pack, header, place


def said(**weights):
    """A header of compressed-tensors, flat: format beside those of weights."""
    return {"symmetric": True, "dynamic": False, **weights}


def dense(bits, group=0, sym=True, order=False):
    """pack-quantized; group 0: a scale for each row."""

    def pack(rng, rows, columns):
        size, per = group or columns, 32 // bits
        q = rng.integers(0, 1 << bits, (rows, columns))
        n = columns // size
        scale = rng.uniform(.01, .03, (rows, n)).astype(np.float16)
        zero = np.full((rows, n), 1 << (bits - 1))
        if not sym:
            zero = rng.integers(0, 1 << bits, zero.shape)
        g = np.arange(columns) // size
        if order:
            g = rng.permutation(g)
        x = scale[:, g].astype(np.float32) * (q - zero[:, g]).astype(np.float32)
        parts = {"weight_packed": i32(words(q.reshape(rows, -1, per), bits)),
                 "weight_scale": f16(scale),
                 "weight_shape": ("I64", [2], np.array(
                     [rows, columns], "<i8").tobytes())}
        if not sym:
            parts["weight_zero_point"] = i32(words(
                zero.reshape(-1, per, n).transpose(0, 2, 1), bits))
        if order:
            parts["weight_g_idx"] = i32(g)
        return x, parts

    more = {"actorder": "group"} if order else {}
    more |= {"group_size": group} if group else {}
    return pack, said(format="pack-quantized", type="int", num_bits=bits,
                      strategy="group" if group else "channel",
                      **{**more, "symmetric": sym}), "compressed"


def int8(rng, rows, columns):
    q = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    scale = rng.uniform(.001, .002, (rows, 1)).astype(np.float32)
    return q.astype(np.float32) * scale, {
        "weight": ("I8", [rows, columns], q.tobytes()),
        "weight_scale": f32(scale)}


def fp4(block, names=("weight_packed", "weight_global_scale")):
    """nvfp4 of 16, mxfp4 of 32 values."""

    def pack(rng, rows, columns):
        code = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
        level = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
        level = np.concatenate([level, -level])
        shape = rows, columns // block
        parts = {names[0]: ("U8", [rows, columns // 2],
                            (code[:, ::2] | code[:, 1::2] << 4).tobytes())}
        if block == 32:
            s = rng.integers(118, 122, shape).astype(np.uint8)
            parts["weight_scale"] = "U8", list(shape), s.tobytes()
            scale = np.ldexp(np.float32(1), s.astype(np.int32) - 127)
        else:
            s = rng.integers(0x30, 0x48, shape).astype(np.uint8)
            parts["weight_scale"] = "F8_E4M3", list(shape), s.tobytes()
            over = np.float32(rng.uniform(50, 60))
            if names[1] == "weight_scale_2":
                over = np.float32(1) / over
            parts[names[1]] = f32(np.array([over]))
            scale = e4m3(s)
            scale = scale * over if over < 1 else scale / over
        return level[code] * scale.repeat(block, 1), parts

    return pack


def e4m3(code):
    e, m = (code >> 3 & 15).astype(np.int32), (code & 7).astype(np.float32)
    value = np.where(e > 0, np.ldexp(1 + m / 8, e - 7), np.ldexp(m / 8, -6))
    return np.where(code >> 7, -value, value).astype(np.float32)


def to_e4m3(x):
    """The nearest value, of two as near the even code's; 448 at most."""
    values = e4m3(np.arange(0x7f, dtype=np.uint8)).astype(np.float64)
    middle = (values[1:] + values[:-1]) / 2
    size = np.abs(x.astype(np.float64))
    code = np.searchsorted(middle, size)  # the lower of two as near
    even = (code < len(middle)) & (size == middle[np.minimum(
        code, len(middle) - 1)]) & (code % 2 == 1)
    return np.copysign(values[code + even], x).astype(np.float32)


FP8 = dict(quant_method="fp8")
BLOCKS = dict(quant_method="fp8", weight_block_size=[16, 32])
FORMATS = {
    "gptq 2": gptq(bits=2), "gptq 4": gptq(), "gptq 8": gptq(bits=8),
    "gptq 4 v2": gptq(v2=True), "gptq 2 v2": gptq(bits=2, v2=True, sym=True),
    "gptq 4 sym": gptq(sym=True), "gptq 8 sym v2": gptq(8, 32, True, True),
    "gptq one group": gptq(group=-1), "gptq in order": gptq(order="plain"),
    "gptq act order": gptq(order="g_idx"),
    "gptq act order 8": gptq(bits=8, order="g_idx", sym=True),
    "gptq static": gptq(desc_act=True, static_groups=True),
    "gptq old": (*gptq()[:2], "quantize_config.json"),
    "gptq 3": gptq3("code", True), "gptq 3 v2": gptq3(),
    "gptq 3 of GPTQModel": gptq3("words", True),
    "nf4": bitsandbytes("nf4", False), "nf4 double": bitsandbytes("nf4", True),
    "nf4 across rows": bitsandbytes("nf4", True, 128),
    "fp4": bitsandbytes("fp4", False),
    "bitsandbytes int8": (scb, {
        "quant_method": "bitsandbytes", "load_in_4bit": False,
        "load_in_8bit": True, "llm_int8_threshold": 6.0}, "config.json"),
    "awq": awq(), "awq old": awq(old=True), "awq gemv": gemv(32, lambda n: 4),
    "fp8 []": fp8(lambda r, c: (), **FP8),
    "fp8 [1]": fp8(lambda r, c: (1,), **FP8, fmt="e4m3"),
    "fp8 rows": fp8(lambda r, c: (r, 1), **FP8),
    "fp8 rows flat": fp8(lambda r, c: (r,), **FP8),
    "fp8 blocks": fp8(lambda r, c: (-(-r // 16), -(-c // 32)),
                      "weight_scale_inv", **BLOCKS),
    "fp8 modelopt": fp8(lambda r, c: (), place="hf_quant_config.json",
                        quant_algo="FP8"),
    "w4a16": dense(4, 16), "w4a16 zeros": dense(4, 16, sym=False),
    "w4a16 act order": dense(4, 16, order=True), "w8a16": dense(8),
    "w2a16": dense(2, 32, sym=False),
    "fp8 channel": (*fp8(lambda r, c: (r, 1))[:1], said(
        format="float-quantized", type="float", num_bits=8,
        strategy="channel"), "compressed"),
    "fp8 tensor": (*fp8(lambda r, c: (1,))[:1], said(
        format="naive-quantized", type="float", num_bits=8,
        strategy="tensor"), "compressed"),
    "fp8 block": (*fp8(lambda r, c: (-(-r // 16), -(-c // 32)))[:1], said(
        format="float-quantized", type="float", num_bits=8, strategy="block",
        block_structure=[16, 32]), "compressed"),
    "w8a8": (int8, said(format="int-quantized", type="int", num_bits=8,
                        strategy="channel"), "compressed"),
    "nvfp4": (fp4(16), said(
        format="nvfp4-pack-quantized", type="float", num_bits=4,
        strategy="tensor_group", group_size=16), "compressed"),
    "mxfp4": (fp4(32), said(
        format="mxfp4-pack-quantized", type="float", num_bits=4,
        strategy="group", group_size=32), "compressed"),
    "nvfp4 modelopt": (fp4(16, ("weight", "weight_scale_2")), dict(
        quant_algo="NVFP4", group_size=16), "hf_quant_config.json"),
}
