"""A process of test_exec.py that speaks the protocol of docs/exec.md by itself,
f32 in and out, and fails as its arguments say: WHAT WHEN [WORDS].

WHAT: die, sleep, size, nan, garbage, error, sleep-noisy, orphan; WHEN: hello,
open, train, encode, decode."""
import os
import struct
import subprocess
import sys
import time

KINDS = ["error", "hello", "open", "train", "encode", "decode", "close"]
what, when, words = (sys.argv[1:] + [""])[:3]


def say(kind, place, data):
    sys.stdout.buffer.write(struct.pack("<IIQ", kind, place, len(data)) + data)
    sys.stdout.buffer.flush()


def answer(kind, data):
    if kind == "hello":
        return b"codec 1\n"
    if kind == "open":
        lines = dict(line.split(" ", 1) for line in
                     data.partition(b"\n\n")[0].decode().split("\n"))
        values = int(lines["kv_heads"]) * int(lines["head_dim"])
        return b"block 1\nbytes %d\n%s" % (
            4 * values, b"trains\n" if when == "train" else b"")
    if kind == "train":
        return struct.pack("<f", 1)
    return data[24:] if kind == "encode" else data[8:]


def fail(kind, place, data):
    if words:
        print("first line\n" + words, file=sys.stderr, flush=True)
    if what == "die":
        os._exit(3)
    if what == "orphan":
        subprocess.Popen(["sleep", "1000"])
        os._exit(3)
    if what == "sleep":
        time.sleep(1000)
    if what == "noisy":
        for i in range(8):
            time.sleep(0.25)
            print("still here", file=sys.stderr, flush=True)
        return data
    if what == "garbage":
        sys.stdout.write("loading the model, please wait\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
    if what == "error":
        say(0, place, b"a sentence of its own\n")
        return None
    if what == "size":
        return data[:-1]
    if what == "long":
        return data + b"1234"
    if what == "nan":
        return b"\0\0\xc0\x7f" + data[4:]
    return b"codec 2\n"


while len(head := sys.stdin.buffer.read(16)) == 16:
    kind, place, n = struct.unpack("<IIQ", head)
    data = sys.stdin.buffer.read(n)
    if KINDS[kind] == "close":
        continue
    out = answer(KINDS[kind], data)
    if KINDS[kind] == when and what != "none":
        out = fail(kind, place, out)
    if out is not None:
        say(kind, place, out)
