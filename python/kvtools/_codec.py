"""Encodes tensors to the bytes that a spec stores, and decodes them."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

import numpy as np

from ._library import Binding, f32

if TYPE_CHECKING:
    import torch

Tensor = Union[np.ndarray, "torch.Tensor"]
Path = Union[str, os.PathLike]


@dataclass(frozen=True)
class Codes:
    """One tensor as a spec stores it.

    data: the bytes that are counted, with the sizes of blocks if they vary
    (kvtools/binding.h): | sinks: fp16 | blocks of codes | tail: fp16 |
    """
    spec: str                # canonical
    side: str                # "k" or "v"
    layer: int
    shape: tuple[int, ...]   # of the tensor: [tokens][kv heads][channels]
    data: bytes
    given: str = field(repr=False)     # the spec as it was asked for
    binding: Binding = field(repr=False, compare=False)

    @property
    def bits(self) -> float:
        """Bits per value, including scales, sinks, tail and padding."""
        values = int(np.prod(self.shape))
        return 8 * len(self.data) / values if values else float("nan")


def _numpy(x):
    """x as a numpy array of float32, and a function that converts such an array
    to the kind and type of x."""
    if hasattr(x, "detach"):  # a torch tensor
        import torch

        return (f32(x.detach().to("cpu", torch.float32).numpy()),
                lambda y: torch.from_numpy(y).to(x.device, x.dtype))
    x = np.asarray(x)
    if not np.issubdtype(x.dtype, np.floating):
        raise TypeError("a tensor of %s: expected floats" % x.dtype)
    return f32(x), lambda y: y.astype(x.dtype)


def _bind(spec, shape, calib):
    if len(shape) != 3:
        raise ValueError("a tensor of shape %s: expected [tokens][kv heads]"
                         "[channels]" % (tuple(shape),))
    if calib is not None:
        b = Binding(spec, None, calib)
        if (b.n_kv_heads, b.head_dim) != tuple(shape[1:]):
            raise ValueError(
                "a tensor of shape %s: expected [tokens][%d][%d] of the "
                "calibration" % (tuple(shape), b.n_kv_heads, b.head_dim))
        return b
    return Binding(spec, dict(n_layers=1, n_heads=shape[1],
                              n_kv_heads=shape[1], head_dim=shape[2],
                              attn_scale=shape[2] ** -.5))


def encode(spec: str, x: Tensor, calib: Path | None = None, *,
           side: str = "k", layer: int = 0) -> Codes:
    """Stores x, [tokens][kv heads][channels], as a cache under spec would.

    x: keys (side "k") or values ("v") of one layer, a numpy array or a torch
    tensor of any float type.  Pass keys before RoPE to schemes that store them
    so.  calib: path of a calibration (kvcalib), whose model then gives the
    number of layers.  Raises ValueError with libkvtools' error message on a bad
    spec, a missing table, or NaN.
    """
    if side not in ("k", "v"):
        raise ValueError("side %r: expected 'k' or 'v'" % (side,))
    tokens, _ = _numpy(x)
    b = _bind(spec, tokens.shape, calib)
    return Codes(b.spec, side, layer, tokens.shape,
                 b.encode(layer, side, tokens), spec, b)


def decode(spec: str, x: Tensor | Codes, calib: Path | None = None, *,
           side: str = "k", layer: int = 0) -> Tensor:
    """Returns x as attention reads it.

    x: Codes that this spec made (their own calib, side and layer are used), or
    a tensor, which is encoded and decoded.  Codes give a numpy array of
    float32; a tensor gives a tensor of its own kind and type.
    """
    if isinstance(x, Codes):
        if spec not in (x.given, x.spec):
            raise ValueError("codes of %s, to be read as %s" % (x.spec, spec))
        return x.binding.decode(x.layer, x.side, x.data, x.shape[0])
    _, like = _numpy(x)
    return like(decode(spec, encode(spec, x, calib, side=side, layer=layer)))


def bits(spec: str, x: Tensor, calib: Path | None = None, *,
         side: str = "k", layer: int = 0) -> float:
    """Bits per value of x under spec, counted from the stored bytes."""
    return encode(spec, x, calib, side=side, layer=layer).bits
