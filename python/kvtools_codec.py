"""A quantizer of your own, as a scheme of kvtools: -s "exec:b2,cmd=python3 my.py".

my.py is a subclass of Codec and a call of run():

    import numpy as np
    from kvtools_codec import Codec, run

    class Signs(Codec):
        def encode(self, x):                # [block][kv_heads][head_dim] f32
            scale = np.abs(x).mean(-1).astype("f2")
            return scale.tobytes() + np.packbits(x < 0).tobytes()

        def decode(self, data):
            n = 2 * self.block * self.kv_heads
            scale = np.frombuffer(data[:n], "f2").astype("f4")
            bits = np.unpackbits(np.frombuffer(data[n:], "u1"))
            x = 1 - 2 * bits[:self.values].astype("f4").reshape(self.shape)
            return x * scale.reshape(self.shape[:2])[..., None]

    run(Signs)

Bits are those of the bytes that encode() returns.  A quantizer that only
simulates (x in, rounded x out) is a subclass of Simulated: it declares its bits,
and the rows of the tools say so in the column bits_declared.

kvtools starts the command, as often as its threads need it, and speaks the
protocol of docs/exec.md with it.  stdout is the protocol's: print() goes to
stderr here.  Standard library and numpy only.
"""
import os
import struct
import sys
import traceback

import numpy as np

__all__ = ["Codec", "Simulated", "run"]

ERROR, HELLO, OPEN, TRAIN, ENCODE, DECODE, CLOSE = range(7)
HEAD = struct.Struct("<IIQ")


class Codec:
    """Keys or values of one layer, to bytes and back.

    A codec is made for each layer and side (K, V) of each spec.  What it may
    read:

        side                        "K" or "V"
        layer, layers               which of how many
        heads, kv_heads, head_dim   of the model
        param                       letters and words of the spec: {"b": 2.0,
                                    "round": "nearest", "fast": True}
        tables                      f32 [n], as train() returned it, or None
        values, shape               of a block: block x kv_heads x head_dim

    The law of kvtools, which `kvquant --check` tests: the same block, at the
    same place, gives the same bytes, in whatever order and process blocks come.
    So a codec keeps nothing from one encode() to the next.
    """

    block = 1          # tokens that are encoded together
    pre_rope = False   # keys come, and are returned, before RoPE
    batched = False    # r tokens leave the fp16 residual together, as in KIVI
    trains = False     # needs train(): kvcalib, then -C
    max_bytes = None   # of a block, where blocks differ in size
    bits = None        # of a value by its own account: bits_declared
    where = (0, 0)     # during encode(): the block's first token, the seed

    def open(self):
        """Once, when all of the above is set: reads self.param, and may set
        the class's fields for this codec, as block."""

    def encode(self, x):
        """f32 [block][kv_heads][head_dim], values of fp16, to bytes: always as
        many, or at most max_bytes where that is set."""
        raise NotImplementedError

    def decode(self, data):
        """The bytes of a block to finite values [block][kv_heads][head_dim]."""
        raise NotImplementedError

    def train(self, x, seed):
        """All tokens of a text, [n][kv_heads][head_dim] f32, to a numpy array
        of finite values; codecs find it, flat, in self.tables."""
        raise NotImplementedError

    def encode_blocks(self, x, first, seed):
        """[n][block][kv_heads][head_dim] to a list of n bytes; override it to
        encode many blocks by one call of numpy."""
        out = []
        for i, block in enumerate(x):
            self.where = (first + i * self.block, seed)
            out.append(bytes(self.encode(block)))
        return out

    def decode_blocks(self, data):
        """A list of n bytes to [n][block][kv_heads][head_dim]; as above."""
        return np.stack([np.reshape(self.decode(d), self.shape) for d in data])

    @property
    def shape(self):
        return (self.block, self.kv_heads, self.head_dim)

    @property
    def values(self):
        return self.block * self.kv_heads * self.head_dim

    def block_bytes(self):
        """Bytes of every block: as many as zeros take."""
        return len(self.encode_blocks(np.zeros((1, *self.shape), "f4"), 0, 0)[0])


class Simulated(Codec):
    """A quantizer that returns rounded values in place of codes, as papers'
    code often does.  Set bits: what a value would take, scales counted in."""

    def quantize(self, x):
        """f32 [block][kv_heads][head_dim] to what the cache would give back."""
        raise NotImplementedError

    def encode(self, x):
        return np.asarray(self.quantize(x)).astype("<f4").tobytes()

    def decode(self, data):
        return np.frombuffer(data, "<f4")

    def block_bytes(self):
        return 4 * self.values


def _parameter(text):
    if text in ("yes", "no"):
        return text == "yes"
    try:
        return float(text)
    except ValueError:
        return text


def _opened(make, payload):
    """The codec that an OPEN asks for."""
    text, _, tables = payload.partition(b"\n\n")
    lines = [line.split(" ", 2) for line in text.decode().split("\n")]
    codec = make()
    codec.param = {line[1]: _parameter(line[2]) for line in lines
                   if line[0] == "param"}
    for name, value in (line for line in lines if line[0] != "param"):
        setattr(codec, name, value if name == "side" else int(value))
    codec.tables = np.frombuffer(tables, "<f4") if codec.tables else None
    codec.open()
    if isinstance(codec, Simulated) and codec.bits is None:
        raise ValueError("a Simulated codec sets bits, a value's")
    return codec


def _layout(codec):
    lines = ["block %d" % codec.block]
    waits = codec.trains and codec.tables is None
    if codec.max_bytes is not None:
        lines.append("at-most %d" % codec.max_bytes)
    else: # untrained, it cannot encode yet
        lines.append("bytes %d" % (1 if waits else codec.block_bytes()))
    if codec.bits is not None:
        lines.append("declared %.9g" % codec.bits)
    if codec.pre_rope and codec.side == "K":
        lines.append("keys pre-rope")
    if codec.batched:
        lines.append("rule batched")
    if codec.trains:
        lines.append("trains")
    return ("\n".join(lines) + "\n").encode()


def _train(codec, payload):
    n, seed = struct.unpack_from("<QQ", payload)
    x = np.frombuffer(payload, "<f4", offset=16)
    x = x.reshape(n, codec.kv_heads, codec.head_dim)
    return np.asarray(codec.train(x, seed)).astype("<f4").tobytes()


def _encode(codec, payload):
    first, seed, n = struct.unpack_from("<QQQ", payload)
    x = np.frombuffer(payload, "<f4", offset=24).reshape(n, *codec.shape)
    blocks = codec.encode_blocks(x, first, seed)
    if len(blocks) != n or codec.max_bytes is None and len(
            set(map(len, blocks))) > 1:
        raise ValueError("%d blocks of %s bytes for %d: expected one for each, "
                         "all of one size" % (
                             len(blocks), sorted(set(map(len, blocks))), n))
    return b"".join(blocks)


def _decode(codec, payload):
    n, = struct.unpack_from("<Q", payload)
    data = payload[8:]
    size = len(data) // n
    x = codec.decode_blocks([data[i * size:(i + 1) * size] for i in range(n)])
    return np.asarray(x).astype("<f4").tobytes()


def _answer(make, places, kind, place, payload):
    if kind == HELLO:
        return b"codec 1\n"
    if kind == OPEN:
        places[place] = _opened(make, payload)
        return _layout(places[place])
    return {TRAIN: _train, ENCODE: _encode,
            DECODE: _decode}[kind](places[place], payload)


def _exactly(stream, n):
    data = stream.read(n)
    if len(data) < n:
        raise EOFError
    return data


def run(make):
    """Serves codecs of a class (or anything that makes one without arguments)
    until kvtools closes stdin."""
    ours = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    places = {}
    try:
        while True:
            head = _exactly(sys.stdin.buffer, HEAD.size)
            kind, place, n = HEAD.unpack(head)
            payload = _exactly(sys.stdin.buffer, n)
            if kind == CLOSE:
                places.pop(place, None)
                continue
            try:
                answer = _answer(make, places, kind, place, payload)
            except Exception as error: # a sentence for the tool's user
                traceback.print_exc()
                kind = ERROR
                answer = ("%s: %s" % (type(error).__name__, error)).encode()[:500]
            ours.write(HEAD.pack(kind, place, len(answer)) + answer)
            ours.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
