"""libkvtools by ctypes: the functions of kvtools/binding.h and kvtools/seq.h."""
import ctypes as C
import importlib
import os
from pathlib import Path

import numpy as np

SIDES = {"k": 0, "v": 1}

_float_p = C.POINTER(C.c_float)
_bytes_p = C.POINTER(C.c_uint8)
_size_p = C.POINTER(C.c_size_t)


class KvtoolsError(ValueError):
    """A failure of libkvtools, with its error message."""


class Model(C.Structure):
    """struct kv_binding_model"""
    _fields_ = [("n_layers", C.c_size_t), ("n_heads", C.c_size_t),
                ("n_kv_heads", C.c_size_t), ("head_dim", C.c_size_t),
                ("attn_scale", C.c_float), ("cap", C.c_float),
                ("n_rot", C.c_size_t), ("inv_freq", _float_p),
                ("slides", _bytes_p), ("slide_window", C.c_size_t),
                ("slide_freq", _float_p), ("still", _bytes_p),
                ("k_bias", _float_p), ("neighbours", C.c_bool),
                ("ggml_neighbours", C.c_bool)]


class Tokens(C.Structure):
    """struct kv_tokens"""
    _fields_ = [("n", C.c_size_t), ("q", C.c_void_p), ("k", C.c_void_p),
                ("k_pre", C.c_void_p), ("v", C.c_void_p)]


class SideBytes(C.Structure):
    """struct kv_side_bytes"""
    _fields_ = [("bytes", C.c_char_p), ("n", C.c_size_t),
                ("n_tokens", C.c_size_t), ("clipped", C.c_uint64)]


class Dump(C.Structure):
    """struct kv_binding_dump; tensors are q, k, v, k_pre."""
    _fields_ = [("model", C.c_char_p), ("text", C.c_char_p),
                ("n_windows", C.c_size_t), ("ctx", C.c_size_t),
                ("tokens", C.c_void_p), ("tensor", C.c_void_p * 4)]


class Bits(C.Structure):
    """struct kv_bits"""
    _fields_ = [(name, C.c_double) for name in
                ("bytes", "values", "kept_values", "quantized_bytes",
                 "quantized_values", "shared_bytes", "nominal")]
    _fields_ += [("coded", C.c_double * 2), ("clipped", C.c_double),
                 ("declared", C.c_bool)]


def wanted(module, by):
    """Imports the module, or fails saying how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name != module:
            raise
        raise ImportError(
            "%s wants the package %s: pip install %s (on Debian and Ubuntu "
            "also apt install python3-%s)" % (by, module, module, module),
            name=module) from None


def _open():
    """Loads the library that $KVTOOLS_LIBRARY names, or else the package's."""
    path = os.environ.get("KVTOOLS_LIBRARY")
    if not path:
        path = Path(__file__).with_name("_kvtools.so")
        if not path.exists():
            raise ImportError(
                "%s is missing: install the package (pip install .), or set "
                "KVTOOLS_LIBRARY to a built libkvtools.so" % path)
    return C.CDLL(str(path))


_lib = _open()
_free = C.CDLL(None).free
_free.argtypes = [C.c_void_p]


def _declare(name, result, *args):
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, args
    return function


_p, _n = C.c_void_p, C.c_size_t
_version = _declare("kv_version", C.c_char_p)
_new = _declare("kv_binding_new", C.c_int, C.POINTER(_p), C.c_char_p,
                C.POINTER(Model), C.c_char_p, _p)
_binding_free = _declare("kv_binding_free", None, _p)
_spec = _declare("kv_binding_spec", C.c_char_p, _p)
_sizes = _declare("kv_binding_sizes", None, _p, _size_p)
_pre_rope = _declare("kv_binding_pre_rope", C.c_bool, _p, _n)
_attends = _declare("kv_binding_attends", C.c_bool, _p)
_on_codes = _declare("kv_binding_prompt_on_codes", C.c_bool, _p)
_seq = _declare("kv_binding_seq", C.c_int, _p, C.c_bool, _n, C.c_uint64,
                C.POINTER(_p), _p)
_settled = _declare("kv_binding_settled", _n, _p, _n, C.c_int)
_read = _declare("kv_binding_read", None, _p, _n, C.c_int, _n, _n, _p)
_bits = _declare("kv_binding_bits", None, _p, _p, C.POINTER(Bits))
_encode = _declare("kv_binding_encode", C.c_int, _p, _n, C.c_int, _p, _n,
                   C.POINTER(_p), _size_p, _p)
_decode = _declare("kv_binding_decode", C.c_int, _p, _n, C.c_int, C.c_char_p,
                   _n, _n, _p, _p)
_dump = _declare("kv_binding_dump", C.c_int, C.c_char_p, C.POINTER(Model),
                 C.POINTER(Dump), _p)
_append = _declare("kv_seq_append", C.c_int, _p, _n, C.POINTER(Tokens), _p)
_step = _declare("kv_seq_step", C.c_int, _p, _n, C.POINTER(Tokens), _p, _p)
_load = _declare("kv_seq_load_sides", C.c_int, _p, _n, SideBytes * 2, _p)
_seq_free = _declare("kv_seq_free", None, _p)


def version():
    """libkvtools' version."""
    return _version().decode()


def _call(function, *args):
    """Calls a function that returns 0, or on failure writes an error message to
    its last argument."""
    sentence = C.create_string_buffer(1024)  # struct kv_err
    if function(*args, sentence):
        raise KvtoolsError(sentence.value.decode(errors="replace"))


def f32(x):
    """x as the library reads arrays: contiguous float32."""
    return np.ascontiguousarray(x, dtype=np.float32)


def _at(x):
    return None if x is None else x.ctypes.data


def _model(model):
    """The struct Model of keywords, whose arrays are numpy's."""
    struct = Model()
    struct.arrays = []  # keeps the memory that the struct points to
    for name, kind in Model._fields_:
        x = model.get(name)
        if x is None:
            continue
        if kind in (_float_p, _bytes_p):
            struct.arrays.append(np.ascontiguousarray(
                x, np.float32 if kind is _float_p else np.uint8))
            x = struct.arrays[-1].ctypes.data_as(kind)
        setattr(struct, name, x)
    return struct


def write_dump(path, model, name, text, tokens, tensors):
    """Writes a dump.  tensors: q, k, v, k_pre, each f32
    [layer][window][token][head][channel] or None; tokens: [window][token]
    int32."""
    windows, ctx = tokens.shape
    model = _model(model)
    _call(_dump, os.fsencode(path), C.byref(model),
          C.byref(Dump(name.encode(), text.encode(), windows, ctx, _at(tokens),
                       (C.c_void_p * 4)(*map(_at, tensors)))))


class Binding:
    """A spec on a model (struct kv_binding).

    model: the members of Model as keywords, with numpy arrays; None: the
    calibration's model.
    """

    def __init__(self, spec, model=None, calib=None):
        self.handle = None
        struct = None if model is None else _model(model)
        handle = _p()
        _call(_new, C.byref(handle), os.fsencode(spec),
              None if struct is None else C.byref(struct),
              os.fsencode(calib) if calib is not None else None)
        self.handle = handle
        sizes = (_n * 4)()
        _sizes(handle, sizes)
        self.n_layers, self.n_heads, self.n_kv_heads, self.head_dim = sizes
        self.spec = _spec(handle).decode()
        self.attends = _attends(handle)
        self.prompt_on_codes = _on_codes(handle)
        self.pre_rope = [_pre_rope(handle, i) for i in range(self.n_layers)]

    def __del__(self, free=_binding_free):  # at exit globals are deleted first
        if self.handle:
            free(self.handle)

    def encode(self, layer, side, x):
        """x [tokens][kv heads][channels] f32 -> bytes."""
        at, n = _p(), _n()
        _call(_encode, self.handle, layer, SIDES[side], _at(x), len(x),
              C.byref(at), C.byref(n))
        try:
            return C.string_at(at, n.value)
        finally:
            _free(at)

    def decode(self, layer, side, data, tokens):
        """bytes -> [tokens][kv heads][channels] f32"""
        x = np.empty((tokens, self.n_kv_heads, self.head_dim), np.float32)
        _call(_decode, self.handle, layer, SIDES[side], data, len(data),
              tokens, _at(x))
        return x


class Sequence:
    """One sequence of a binding (struct kv_seq), all layers open."""

    def __init__(self, binding, prompt, share_of, seed=0):
        self.handle = None
        handle = _p()
        _call(_seq, binding.handle, prompt, share_of, seed, C.byref(handle))
        self.handle, self.binding = handle, binding

    def __del__(self, free=_seq_free):
        if self.handle:
            free(self.handle)

    def append(self, layer, k, v, q=None, k_pre=None):
        """Tokens [n][heads][channels] f32 enter a layer."""
        _call(_append, self.handle, layer,
              C.byref(Tokens(len(v), _at(q), _at(k), _at(k_pre), _at(v))))

    def step(self, layer, k, v, q, k_pre=None):
        """Tokens enter a layer; returns their attention outputs, shaped like
        q."""
        out = np.empty_like(q)
        _call(_step, self.handle, layer,
              C.byref(Tokens(len(v), _at(q), _at(k), _at(k_pre), _at(v))),
              _at(out))
        return out

    def load(self, layer, tokens, k, v):
        """Loads the bytes of both sides, as codes.h5 has them, into a layer."""
        _call(_load, self.handle, layer,
              (SideBytes * 2)(*(SideBytes(x, len(x), tokens) for x in (k, v))))

    def settled(self, layer, side):
        """The number of tokens whose stored form no longer changes."""
        return _settled(self.handle, layer, SIDES[side])

    def read(self, layer, side, first, end):
        """Tokens [first, end) in their stored form."""
        b = self.binding
        x = np.empty((end - first, b.n_kv_heads, b.head_dim), np.float32)
        _read(self.handle, layer, SIDES[side], first, end, _at(x))
        return x

    def add_bits(self, bits):
        _bits(self.binding.handle, self.handle, C.byref(bits))
