"""codes.h5, the file of kvquant --codes (lib/seq/codes_file.h)."""
from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np

from ._library import Binding, KvtoolsError, Sequence, wanted


@dataclass(frozen=True)
class FileCodes:
    """The contents of a codes.h5 under one spec."""
    spec: str      # canonical
    bits: float    # measured bits per value, as in kvquant's column
    layers: list[int]
    k: dict[int, np.ndarray] = field(repr=False)  # by layer, decoded:
    v: dict[int, np.ndarray] = field(repr=False)  # [window][token][head][channel]
    pre_rope: dict[int, bool] = field(repr=False)  # whether k is before RoPE
    layout: dict[tuple[int, str], str] = field(repr=False)
    # by layer and side ("k", "v"), the parts of a window's bytes


def _text(x):
    return x.decode() if isinstance(x, bytes) else str(x)


def _model(f):
    """The file's model, as keywords for struct kv_binding_model."""
    model = {name: int(f.attrs[name]) for name in
             ("n_layers", "n_heads", "n_kv_heads", "head_dim")}
    model.update(attn_scale=float(f.attrs["attn_scale"]),
                 n_rot=len(f["inv_freq"]), inv_freq=f["inv_freq"][:])
    model.update(neighbours=_text(f.attrs.get("rope_pairs")) == "neighbours",
                 ggml_neighbours="ggml_pairs" in f.attrs)
    if "attn_cap" in f.attrs:
        model["cap"] = float(f.attrs["attn_cap"])
    if "slide_window" in f.attrs:
        model.update(slide_window=int(f.attrs["slide_window"]),
                     slides=f["slides"][:], slide_freq=f["slide_inv_freq"][:])
    for name in "still", "k_bias":
        if name in f:
            model[name] = f[name][:]
    return model


def _bytes(plane, window):
    x = plane["window_%03d" % window] if hasattr(plane, "keys") else \
        plane[window]
    return np.asarray(x[:], np.uint8).tobytes()


def _read(f, group, model, calib):
    if "latent" in f.attrs:
        raise ValueError("codes of latent attention are not read here "
                         "(kvquant --codes-in reads them)")
    first, last = int(f.attrs["first_layer"]), int(f.attrs["last_layer"])
    windows, ctx = int(f.attrs["n_windows"]), int(f.attrs["ctx"])
    b = Binding(_text(group.attrs["spec"]), model, calib)
    layers = list(range(first, last + 1))
    out = {side: {i: np.empty((windows, ctx, b.n_kv_heads, b.head_dim),
                              np.float32) for i in layers} for side in "kv"}
    held = values = 0
    for w in range(windows):
        seq = Sequence(b, False, 0, int(f.attrs["seed"]))
        for i in layers:
            at = group["layer_%03d" % i]
            try:
                seq.load(i, ctx, _bytes(at["k"], w), _bytes(at["v"], w))
            except (KvtoolsError, KeyError, OSError) as error:
                side = {"K": "/k", "V": "/v"}.get(str(error)[:1], "")
                raise KvtoolsError("%s: %s%s, window %d: %s" % (
                    f.filename, at.name, side, w, error)) from None
            for side in "kv":
                out[side][i][w] = seq.read(i, side, 0, ctx)
    for i in layers:
        slides = "slides" in model and model["slides"][i]
        seen = min(ctx, model["slide_window"]) if slides else ctx
        held += int(group["layer_%03d" % i]["held_bytes"][:].sum())
        values += 2 * windows * seen * b.n_kv_heads * b.head_dim
    return FileCodes(
        b.spec, 8 * held / values, layers, out["k"], out["v"],
        {i: b.pre_rope[i] for i in layers},
        {(i, side): _text(group["layer_%03d" % i][side].attrs["layout"])
         for i in layers for side in "kv"})


def read_codes(path: str | os.PathLike,
               calib: str | os.PathLike | None = None) -> list[FileCodes]:
    """Reads and decodes a file of kvquant --codes; returns an item per spec.

        for codes in kvtools.read_codes("codes.h5"):
            codes.spec, codes.bits, codes.k[0].shape, codes.layout[0, "k"]

    calib: path of the calibration that the codes were made with; required if a
    spec has tables.  Requires h5py.  Raises ValueError on another kind of file,
    on another calibration, and on bytes that are not the spec's.
    """
    h5py = wanted("h5py", "kvtools.read_codes()")

    with h5py.File(path, "r") as f:
        kind = _text(f.attrs.get("kind", ""))
        if kind != "kvtools-codes" or int(f.attrs["format"]) < 2:
            raise KvtoolsError(
                "%s: kind %r, format %s: expected codes of format 2 or later "
                "(kvquant --codes)" % (path, kind, f.attrs.get("format")))
        made_with = _text(f.attrs["calibration"])
        if made_with and calib is None:
            raise KvtoolsError("%s was coded with calibration %s: give it as "
                               "calib" % (path, made_with))
        if calib is not None:
            with h5py.File(calib, "r") as c:
                is_of = _text(c.attrs.get("hash", ""))
            if is_of != made_with:
                raise KvtoolsError(
                    "%s was coded with calibration %s, and %s is %s"
                    % (path, made_with or "none", calib, is_of))
        if "latent" in f.attrs:
            raise KvtoolsError("%s holds codes of latents, which are read by "
                               "kvquant --codes-in alone" % path)
        model = _model(f)
        return [_read(f, f[name], model, calib)
                for name in sorted(f) if name.startswith("spec_")]
