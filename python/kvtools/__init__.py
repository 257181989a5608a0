"""Quantized KV caches: kvtools' schemes in Python.

    kvtools.encode("kivi:b2g32", k).bits      # numpy and torch tensors
    kvtools.decode("kivi:b2g32", k)           # stored and read back
    kvtools.cache("kivi:b2g32", model)        # a transformers cache
    kvtools.results("ppl.csv")                # pandas
    kvtools.dump("dump.h5")                   # xarray
    kvtools.read_codes("codes.h5")            # what kvquant --codes wrote
    kvtools.write_dump("own.h5", k, v)        # tensors of your own, for kvquant

A spec is any spec that the tools' -s accepts, except exec.  torch,
transformers, pandas and xarray are imported only where they are used.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ._codec import Codes, bits, decode, encode
from ._codes_file import FileCodes, read_codes
from ._frames import dump, results, write_dump
from ._library import KvtoolsError, version

if TYPE_CHECKING:
    import transformers

    from ._cache import KvCache

__all__ = ["Codes", "FileCodes", "KvtoolsError", "bits", "cache", "decode",
           "dump", "encode", "read_codes", "results", "version", "write_dump"]


def cache(spec: str, model: transformers.PreTrainedModel,
          calib: str | os.PathLike | None = None, *, prompt: str = "exact",
          tokens: int | None = None, seed: int = 0) -> KvCache:
    """A transformers cache that holds keys and values under spec.

        past = kvtools.cache("kivi:b2g32", model)
        model.generate(**inputs, past_key_values=past)
        past.bits()

    calib: path of a calibration (kvcalib) of this model.  prompt: with "exact",
    the first call's tokens, if there are several, attend at full precision and
    are then stored (kvppl's prefill:P); with "codes", every query sees the
    cache after all tokens of its call have entered (kvppl's stream if calls
    have one token each).  tokens: the number of tokens that a policy's budget
    is a share of; by default the first call's tokens.  seed: the seed of
    stochastic rounding.  Raises ValueError, with the reason, if the spec, the
    calibration or the model does not fit.
    """
    from ._cache import KvCache

    return KvCache(spec, model, calib, prompt=prompt, tokens=tokens,
                   seed=seed)
