"""Reads and writes the tools' files as tables and arrays."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from . import _library

if TYPE_CHECKING:
    import pandas
    import xarray

    from ._codec import Tensor


def results(*paths: str | os.PathLike) -> pandas.DataFrame:
    """Rows of the tools' results (csv, tsv, jsonl) as one pandas.DataFrame.

    Blank cells are missing values.  The frame has every column of any of the
    files (results/README.md says what they mean).
    """
    pd = _library.wanted("pandas", "kvtools.results()")

    frames = []
    for path in paths:
        name = str(path)
        if name.endswith(".jsonl"):
            frames.append(pd.read_json(path, lines=True))
        elif name.endswith((".csv", ".tsv")):
            frames.append(pd.read_csv(
                path, sep="\t" if name.endswith(".tsv") else ","))
        else:
            raise ValueError("%s: expected a name in .csv, .tsv or .jsonl"
                             % name)
    if not frames:
        raise ValueError("expected the path of a file of results")
    return pd.concat(frames, ignore_index=True)


def _check_parts(f, path):
    """Fails if a part is missing, since HDF5 would give NaN for its tensors."""
    group = f["layer_%03d" % f.attrs["first_layer"]]
    sets = [x for x in group.values() if x.is_virtual]
    for source in sets[0].virtual_sources() if sets else []:
        part = os.path.join(os.path.dirname(path), source.file_name)
        if not os.path.exists(part):
            raise ValueError("%s: its part %s is not there" % (path, part))


def dump(path: str | os.PathLike) -> xarray.Dataset:
    """Reads kvdump's tensors as an xarray.Dataset in memory.

    The variables are q, k, v, k_pre, k_gradient and v_gradient, if the dump has
    them: [layer][window][token][head][channel], where q's head dimension is
    named query_head; and tokens: [window][token].  Attributes are the file's.
    """
    h5py = _library.wanted("h5py", "kvtools.dump()")
    xr = _library.wanted("xarray", "kvtools.dump()")

    with h5py.File(path, "r") as f:
        attrs = {k: v.decode() if isinstance(v, bytes) else
                 v.item() if isinstance(v, np.generic) else v
                 for k, v in f.attrs.items()}
        if attrs.get("kind") != "kvtools-dump":
            raise ValueError("%s: kind %r, expected a dump of kvdump"
                             % (path, attrs.get("kind")))
        _check_parts(f, path)
        layers = range(attrs["first_layer"], attrs["last_layer"] + 1)
        groups = [f["layer_%03d" % i] for i in layers]
        data = {}
        for name in ("q", "k", "v", "k_pre", "k_gradient", "v_gradient"):
            if name not in groups[0]:
                continue
            head = "query_head" if name == "q" else "head"
            data[name] = (("layer", "window", "token", head, "channel"),
                          np.stack([np.asarray(g[name], np.float32)
                                    for g in groups]))
        data["tokens"] = (("window", "token"), f["tokens"][:])
        return xr.Dataset(data, {"layer": list(layers)}, attrs)


def _tensor(name, x, shape):
    """x as f32; fails if its shape is not this one, where -1 is any size."""
    if x is None:
        return None
    if hasattr(x, "detach"):
        import torch

        x = x.detach().to("cpu", torch.float32).numpy()
    x = _library.f32(x)
    if x.ndim != 5 or any(w not in (-1, n) for n, w in zip(x.shape, shape)):
        raise ValueError(
            "%s has shape %s: expected [layer][window][token][head][channel], "
            "%s" % (name, x.shape, ["any" if n == -1 else n for n in shape]))
    return x


def write_dump(path: str | os.PathLike, k: Tensor, v: Tensor, *,
               q: Tensor | None = None, k_pre: Tensor | None = None,
               tokens: np.ndarray | None = None,
               inv_freq: np.ndarray | None = None,
               attn_scale: float | None = None, model: str = "",
               text: str = "") -> None:
    """Writes your own tensors as a dump, for kvquant, kvcalib and kvattn.

    k, v: [layer][window][token][head][channel], numpy or torch; q (after RoPE)
    and k_pre (keys before RoPE) likewise, for specs and tools that need them.
    inv_freq: RoPE turns channels i and i + len(inv_freq) of a head by
    position * inv_freq[i]; None: no RoPE.  attn_scale: by default
    1 / sqrt(channels).  model, text: names; a calibration fits dumps of the
    same model.  tokens: ids, [window][token]; by default ids are hashes of each
    token's keys, so that tools still notice a calibration that was made from
    the same tensors.
    """
    k = _tensor("k", k, [-1] * 5)
    layers, windows, ctx, heads, dim = k.shape
    v = _tensor("v", v, k.shape)
    k_pre = _tensor("k_pre", k_pre, k.shape)
    q = _tensor("q", q, [layers, windows, ctx, -1, dim])
    if tokens is None:
        row = k[0].reshape(windows, ctx, -1).view(np.uint32).astype(np.uint64)
        odd = 2 * np.arange(row.shape[-1], dtype=np.uint64) + np.uint64(1)
        mixed = (row * np.uint64(0x9E3779B97F4A7C15) * odd).sum(
            -1, dtype=np.uint64)
        tokens = mixed >> np.uint64(33)
    tokens = np.ascontiguousarray(tokens, np.int32)
    if tokens.shape != (windows, ctx):
        raise ValueError("tokens has shape %s: expected %s"
                         % (tokens.shape, (windows, ctx)))
    size = dict(n_layers=layers, n_heads=heads if q is None else q.shape[3],
                n_kv_heads=heads, head_dim=dim,
                attn_scale=attn_scale or dim ** -.5)
    if inv_freq is not None:
        size.update(n_rot=len(inv_freq), inv_freq=inv_freq)
    _library.write_dump(path, size, model, text, tokens, (q, k, v, k_pre))
