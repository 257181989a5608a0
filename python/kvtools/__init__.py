"""Quantized KV caches: kvtools' schemes in Python.

    kvtools.encode("kivi:b2g32", k).bits      # numpy and torch tensors
    kvtools.decode("kivi:b2g32", k)           # stored and read back
    kvtools.cache("kivi:b2g32", model)        # a transformers cache
    kvtools.results("ppl.csv")                # pandas
    kvtools.dump("dump.h5")                   # xarray
    kvtools.write_dump("own.h5", k, v)        # tensors of your own, for kvquant

A spec is what the tools' -s takes.  torch, transformers, pandas and xarray are
imported where they are used.
"""
from ._codec import Codes, bits, decode, encode
from ._frames import dump, results, write_dump
from ._library import KvtoolsError, version

__all__ = ["Codes", "KvtoolsError", "bits", "cache", "decode", "dump",
           "encode", "results", "version", "write_dump"]


def cache(spec, model, calib=None, **options):
    """A transformers cache that holds keys and values under spec.

        past = kvtools.cache("kivi:b2g32", model)
        model.generate(**inputs, past_key_values=past)
        past.bits()

    Options and limits: help(kvtools._cache.KvCache).
    """
    from ._cache import KvCache

    return KvCache(spec, model, calib, **options)
