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

The tools count the bytes that encode() returns.  A quantizer that only
simulates (x in, rounded x out) is a subclass of Simulated: it declares its
bits, and the column bits_declared in the tools' rows shows this.

kvtools starts the command as many times as its threads need, and speaks the
protocol of docs/exec.md with it.  The protocol uses stdout, so print() writes
to stderr here.  Requires only the standard library and numpy.
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
    """Encodes the keys or values of one layer, and decodes them.

    A codec is made for each layer and side (K, V) of each spec.  It may read
    these attributes:

        side                        "K" or "V"
        layer, layers               the layer's index, the number of layers
        heads, kv_heads, head_dim   of the model
        param                       letters and words of the spec: {"b": 2.0,
                                    "round": "nearest", "fast": True}
        tables                      f32 [n], as train() returned it, or None
        values, shape               of a block: block x kv_heads x head_dim

    kvtools requires, and `kvquant --check` tests, that the same block at the
    same position gives the same bytes, in any order of blocks and in any
    process.  So a codec keeps no state from one encode() to the next.
    """

    block = 1          # tokens that are encoded together
    pre_rope = False   # keys are encoded and decoded before RoPE
    batched = False    # r tokens leave the fp16 residual together, as in KIVI
    trains = False     # needs train(): kvcalib, then -C
    max_bytes = None   # largest block, if blocks differ in size
    bits = None        # bits per value that the codec declares: bits_declared
    where = (0, 0)     # during encode(): the block's first token, the seed

    def open(self):
        """Called once, when all attributes above are set.  May read self.param
        and set the class's fields, such as block, for this codec."""

    def encode(self, x):
        """Encodes x, f32 [block][kv_heads][head_dim] with fp16 values, to
        bytes: always the same number, or at most max_bytes if that is set."""
        raise NotImplementedError

    def decode(self, data):
        """Decodes a block's bytes to finite values,
        [block][kv_heads][head_dim]."""
        raise NotImplementedError

    def train(self, x, seed):
        """Trains on x, all tokens of a text, [n][kv_heads][head_dim] f32.
        Returns a numpy array of finite values, which codecs find, flat, in
        self.tables."""
        raise NotImplementedError

    def encode_blocks(self, x, first, seed):
        """Encodes x [n][block][kv_heads][head_dim] to a list of n bytes
        objects.  Override it to encode many blocks by one call of numpy."""
        out = []
        for i, block in enumerate(x):
            self.where = (first + i * self.block, seed)
            out.append(bytes(self.encode(block)))
        return out

    def decode_blocks(self, data):
        """Decodes a list of n bytes objects to [n][block][kv_heads][head_dim].
        Override it to decode many blocks by one call of numpy."""
        return np.stack([np.reshape(self.decode(d), self.shape) for d in data])

    @property
    def shape(self):
        return (self.block, self.kv_heads, self.head_dim)

    @property
    def values(self):
        return self.block * self.kv_heads * self.head_dim

    def block_bytes(self):
        """The bytes of every block, found by encoding a block of zeros."""
        return len(self.encode_blocks(np.zeros((1, *self.shape), "f4"), 0, 0)[0])


class Simulated(Codec):
    """A quantizer that returns rounded values instead of codes, as the code of
    papers often does.  Set bits: the bits that a value would take, including
    scales."""

    def quantize(self, x):
        """Maps x, f32 [block][kv_heads][head_dim], to the values that a cache
        would return."""
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
    """Makes and opens the codec that an OPEN request describes."""
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
    else: # an untrained codec cannot encode yet
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
    """Serves codecs until kvtools closes stdin.  make: a subclass of Codec, or
    any function that returns a codec and takes no arguments."""
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
            except Exception as error: # the error message for the tool's user
                traceback.print_exc()
                kind = ERROR
                answer = ("%s: %s" % (type(error).__name__, error)).encode()[:500]
            ours.write(HEAD.pack(kind, place, len(answer)) + answer)
            ours.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
