#!/usr/bin/env python3
"""The definitions of some schemes in numpy, beside what kvquant measures: where
a scheme breaks on a model, is it the scheme or this implementation?

    definitions.py --specs                  options for kvquant
    definitions.py dump.h5 kvquant.csv      Markdown: SQNR of keys and values (dB)

Written from the papers and their code, with nothing of kvtools in them; a dump
in f16, since schemes take K and V rounded to fp16.  HACK's random roundings and
TurboQuant's random matrix are others than kvtools'.  Ends with 1 where the two
differ by more than 0.1 dB, of these two schemes 0.5.

"over what varies": the signal is what a channel has beside its mean over the
window; a constant needs no bits, but owns the range of whatever it is quantized
with."""
import csv
import os
import sys

import h5py
import numpy as np

rng = np.random.default_rng(1)
NF4 = np.array([  # QLoRA, appendix E
    -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
    0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1])


def half(x):
    return np.float64(np.float16(x))


def groups(x, n, axis):
    """x [tokens][heads][d] as rows of n values along tokens (0) or d (2)."""
    x = np.moveaxis(x, axis, -1)
    return x.reshape(*x.shape[:-1], -1, n)


def back(g, like, axis):
    moved = np.moveaxis(like, axis, -1).shape
    return np.moveaxis(g.reshape(moved), -1, axis)


def minimum_maximum(g, bits, nearest=True):
    """KIVI's and HACK's integers: a scale and a minimum in fp16."""
    low = half(g.min(-1, keepdims=True))
    scale = half((g.max(-1, keepdims=True) - g.min(-1, keepdims=True)) /
                 (2 ** bits - 1))
    code = (g - low) / np.where(scale > 0, scale, 1)
    code = np.rint(code) if nearest else np.floor(code + rng.random(g.shape))
    return np.clip(code, 0, 2 ** bits - 1) * scale + low


def kivi(bits):
    def stored(x, side):  # keys along tokens, values along channels
        axis = 0 if side == "K" else 2
        return back(minimum_maximum(groups(x, 32, axis), bits), x, axis)
    return stored


def hack(bits):
    def stored(x, side):  # keys along channels, values along tokens
        axis = 2 if side == "K" else 0
        return back(minimum_maximum(groups(x, 64, axis), bits, False), x, axis)
    return stored


def q4_0(x, side):
    g = groups(x, 32, 2)
    at = np.abs(g).argmax(-1)[..., None]
    scale = np.take_along_axis(g, at, -1) / -8
    code = np.floor(g / np.where(scale != 0, scale, 1) + 8.5)
    return back((np.minimum(code, 15) - 8) * half(scale), x, 2)


def nf4(x, side):
    g = groups(x, 64, 2)
    scale = half(np.abs(g).max(-1, keepdims=True))
    unit = g / np.where(scale > 0, scale, 1)
    code = np.abs(unit[..., None] - NF4).argmin(-1)
    return back(NF4[code] * scale, x, 2)


def hadamard(d):
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(d)


def quarot(x, side):
    """A rotated head in groups of 128 channels at most, clipped to 0.95 of
    its range, with an integer zero point."""
    h = hadamard(x.shape[2])
    g = groups(x @ h, min(128, x.shape[2]), 2)
    low = np.minimum(g.min(-1, keepdims=True), 0) * 0.95
    high = np.maximum(g.max(-1, keepdims=True), 0) * 0.95
    scale = half((high - low) / 15)
    zero = np.rint(-low / scale)
    code = np.clip(np.rint(g / scale) + zero, 0, 15)
    return back((code - zero) * scale, x, 2) @ h.T


def lloyd_max(n):
    """Levels of a normal distribution."""
    x = np.sort(np.random.default_rng(2).normal(size=400000))
    levels = np.quantile(x, (np.arange(n) + 0.5) / n)
    for _ in range(300):
        edges = np.searchsorted(x, (levels[1:] + levels[:-1]) / 2)
        levels = np.array([part.mean() for part in np.split(x, edges)])
    return levels


def turboquant(x, side):
    d = x.shape[2]
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    levels = lloyd_max(16) / np.sqrt(d)
    norm = np.linalg.norm(x, axis=2, keepdims=True)
    unit = x @ q / np.where(norm > 0, norm, 1)
    code = np.searchsorted((levels[1:] + levels[:-1]) / 2, unit)
    return levels[code] * half(norm) @ q.T


SCHEMES = [("kivi:b4g32", kivi(4), 0.1), ("kivi:b2g32", kivi(2), 0.1),
           ("hack:b4p64", hack(4), 0.5), ("hack:b2p64", hack(2), 0.5),
           ("q4_0", q4_0, 0.1), ("nf4", nf4, 0.1),
           ("quarot:b4", quarot, 0.1), ("turboquant:b4", turboquant, 0.5)]


def db(dump, stored, side):
    """Returns SQNR, and SQNR over the part of x that varies."""
    signal = varying = noise = 0
    with h5py.File(dump) as f:
        for layer in range(int(f.attrs["n_layers"])):
            for x in f["layer_%03d/%s" % (layer, side.lower())]:
                x = x.astype(np.float64)
                signal += (x * x).sum()
                varying += ((x - x.mean(0)) ** 2).sum()
                noise += ((stored(x, side) - x) ** 2).sum()
    return 10 * np.log10(np.array([signal, varying]) / noise)


def measured(path):
    """{(scheme's name and letters, side): dB} over all layers."""
    with open(path, newline="", encoding="utf-8") as f:
        return [(r["spec"], r["side"], float(r["sqnr_db"]), r)
                for r in csv.DictReader(f)
                if r["layer"] == "all" and r["side"] in ("K", "V")]


def main(dump, path):
    rows = [m for m in measured(path) if not m[0].startswith("f32")]
    if len(rows) != 2 * len(SCHEMES):
        sys.exit("%s has %d rows of keys and values over all layers, expected "
                 "%d: those of --specs" % (path, len(rows), 2 * len(SCHEMES)))
    r = rows[0][3]
    print("# Definitions in numpy: %s on %s, %s windows of %s\n" % (
        r["model"], r["text"], r["windows"], r["ctx"]))
    print("kvtools %s; model %s, text %s; SQNR over all layers, dB.\n" % (
        r["version"], r["model_hash"], r["text_hash"]))
    print("| scheme | side | kvtools | numpy | difference | numpy, over what "
          "varies |")
    print("| --- | --- | --: | --: | --: | --: |")
    wrong = 0
    for i, (spec, stored, within) in enumerate(SCHEMES):
        for _, side, ours, _ in rows[2 * i:2 * i + 2]:
            its, varying = db(dump, stored, side)
            wrong += abs(ours - its) > within
            print("| `%s` | %s | %.3f | %.3f | %+.3f | %.3f |" % (
                spec, side, ours, its, ours - its, varying), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["--specs"]:
        print(" ".join("-s " + spec for spec, _, _ in SCHEMES))
    elif len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
