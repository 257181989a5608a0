"""Every field of every file that the tools read, through NaN, 0, a negative
number, a huge one and none at all: the tool refuses it by the names of file
and field, or makes of it what it makes of the intact file, or, where the field
is data (a key, a probability's code), numbers: no crash, no hang, no row of
NaN.

The fields are found by walking the files, not listed."""
import csv
import io
import os
import re
import shutil
import struct
import tempfile
import unittest

import h5py
import numpy as np

import tiny_model
from run_tools import must, run

CTX, WINDOWS = 32, 3
MEASURED = ["-s", "f16", "-s", "kivi:b2g16r16", "-s", "vecinfer:d4b2,iters=2",
            "-s", "kvquant:b2", "-s", "klt:b2"]
TRAINED = ["-s", "vecinfer:d4b2,iters=2", "-s", "cq:c4b2,iters=2", "-s",
           "kvquant:b2", "-s", "klt:b2", "-s", "klt:b2,metric=attention"]


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1, layers=2)
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w") as f:
            f.write(tiny_model.text(600, seed))
    for name, more in ("eval", ["-n", "3"]), ("calib", ["-n", "4", "--fisher"]):
        must("kvdump", "-m", at("m"), "-f", at(name + ".txt"), "-c", str(CTX),
             *more, "-o", at(name + ".h5"))
    must("kvcalib", "-s", "vecinfer:d4b2,iters=2", "-s", "kvquant:b2", "-s",
         "klt:b2", at("calib.h5"), "-o", at("c.h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


PROVENANCE = ("seconds", "attn_seconds", "model", "model_hash", "text",
              "text_hash", "bos", "special", "weights", "calib_text",
              "calib_hash")

# Words for the meaning of a field, which a sentence may use for its name.
SAID = {"kind": "expected a kvtools-", "ctx": "/tokens is",
        "n_windows": "/tokens is", "name": "says that it is",
        "layer": "says that it is", "head": "says that it is",
        "side": "says that it is"}

# The same where the two files that belong to one model disagree in it: neither
# is known to be the changed one, and the calibration is named.
PAIR = "c.h5 was made for another model"
COMPARED = {"attn_scale": "attention scale", "model_hash": "hash",
            "inv_freq": "rotary frequencies"}

# Fields that a calibration's hash and seal cover: a wrong sum shows that some
# field was changed, not which.  Not covered: fields that decide how the file is
# read (kind, format, the shape), and a table's own indices, which are compared
# with its place.  A dump has only HDF5's checksums.
SEALED = ("model", "model_hash", "text", "text_hash", "n_windows", "ctx",
          "hash", "seal", "key", "seed", "spec", "error")
CHANGED = "not those it was written with"


def is_sealed(path, name, attr):
    return path == "c.h5" and (attr in SEALED if attr else name != "inv_freq")


def cells(text):
    """Rows without the columns of their origin."""
    return [{k: v for k, v in row.items() if k not in PROVENANCE}
            for row in csv.DictReader(io.StringIO(text))]


def fields(path):
    """(object, attribute, True) of each attribute and (dataset, None, first) of
    each dataset with values: whether it is the first of those whose names
    differ in a number or a side alone.  Only these have their attributes."""
    found, seen = [], set()

    def visit(name, o):
        like = re.sub("[0-9]+|_[KV](?=_|$)", "", name)
        first = like not in seen
        seen.add(like)
        if first or isinstance(o, h5py.Group):
            found.extend((name, a, True) for a in o.attrs)
        if isinstance(o, h5py.Dataset) and o.size:
            found.append((name, None, first))
    with h5py.File(path, "r") as f:
        visit("/", f)
        f.visititems(visit)
    return found


def others(value):
    """name -> the changed value; None: taken away."""
    huge = {"f": 3e38, "i": 2**31 - 1, "u": 2**64 - 1}
    if isinstance(value, (bytes, np.bytes_)):
        return {"NaN": b"nan", "0": b"0", "negative": b"-1",
                "huge": b"9" * 400, "empty": b"", "absent": None}
    kind = np.dtype(type(value)).kind
    out = {"0": 0, "huge": huge[kind], "absent": None}
    if kind != "u":
        out["negative"] = -1
    if kind == "f":
        out["NaN"] = float("nan")
        out["infinite"] = float("-inf")
    else:
        out["NaN"] = np.float64("nan")
    return out


class Fields(unittest.TestCase):
    def told(self, done, *names):
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertFalse(done.stdout)
        for name in names:
            self.assertTrue(any(n in done.stderr for n in name),
                            (name, done.stderr))

    def no_nan(self, rows, good):
        """The same cells are blank, and all others are numbers."""
        self.assertEqual(len(rows), len(good))
        for row, intact in zip(rows, good):
            for k, v in row.items():
                self.assertEqual(v == "", intact[k] == "", (k, v))
                if v != intact[k]:
                    self.assertNotIn(v.lower().lstrip("-"), ("nan", "inf"), k)

    def named(self, done, path, name, attr, gone):
        """A sentence about x.h5, which is `path` with this field changed."""
        self.told(done)
        said = re.sub("kvdump .*", "", done.stderr.replace(folder, ""))
        field = attr or name.split("/")[-1]
        if "/x.h5" not in said:
            self.assertIn(PAIR, said)
        if is_sealed(path, name, attr) and CHANGED in said:
            return
        if gone and not attr:
            self.assertIn(f"no /{name}\n", said)
        elif PAIR in said.replace("x.h5", "c.h5"):
            self.assertIn(COMPARED[field], said)
        elif SAID.get(field, field) not in said:
            self.assertRegex(said, rf"\b{field}\b")

    def walk(self, path, tool, argv, is_data=(), attrs=True):
        """argv: the arguments, with None in place of the file."""
        def result(of):
            return run(tool, "-q", "-t", "1",
                       *[of if a is None else a for a in argv], timeout=20)

        done = result(at(path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        good = cells(done.stdout)
        for i, (name, attr, first) in enumerate(fields(at(path))):
            if attr and not attrs:
                continue
            with h5py.File(at(path), "r") as f:
                was = f[name].attrs[attr] if attr else f[name][...].flat[0]
            for j, (what, value) in enumerate(others(was).items()):
                # half of the values, the others for the next field
                if value is not None and (not first or (i + j) % 2):
                    continue
                with self.subTest(f"{tool} {path} {name} {attr} {what}"):
                    shutil.copy(at(path), at("x.h5"))
                    with h5py.File(at("x.h5"), "r+") as f:
                        if not change(f, name, attr, value):
                            continue
                    done = result(at("x.h5"))
                    if done.returncode:
                        self.named(done, path, name, attr, value is None)
                        continue
                    self.assertTrue(attr or value is not None)
                    if not attr and name.split("/")[-1] in is_data:
                        self.no_nan(cells(done.stdout), good)
                    else:
                        self.assertEqual(cells(done.stdout), good)


def change(f, name, attr, value):
    """False if the field cannot have this value."""
    if attr:
        if value is None:
            del f[name].attrs[attr]
        elif value == b"":
            f[name].attrs[attr] = ""
        else:
            f[name].attrs[attr] = value
        return True
    if value is None:
        del f[name]
        return True
    kind = f[name].dtype.kind
    if kind != "f" and isinstance(value, float) or (
            kind == "f" and isinstance(value, int) and abs(value) > 1):
        return False
    x = f[name][...]
    x.flat[0] = value
    f[name][...] = x
    return True


class Files(Fields):
    def test_dump(self):
        self.walk("eval.h5", "kvquant",
                  [*MEASURED, "--attention", "-C", at("c.h5"), None],
                  ("q", "k", "v", "k_pre"))

    def test_dump_to_train_on(self):
        self.walk("calib.h5", "kvcalib",
                  [*TRAINED, None, "--table", "-o", at("y.h5")],
                  [n.split("/")[-1] for n, a, _ in fields(at("calib.h5"))
                   if not a and n.startswith("layer")], attrs=False)

    def test_calibration(self):
        self.walk("c.h5", "kvquant", [*MEASURED, "-C", None, at("eval.h5")])

    def test_codes(self):
        """For all options except --codes-in they are another kind of file."""
        must("kvquant", "-s", "f16", "--codes", at("codes.h5"), at("eval.h5"),
             "-o", at("rows.csv"))
        for tool, argv in (("kvquant", ["-s", "f16", at("codes.h5")]),
                           ("kvquant", [*MEASURED, "-C", at("codes.h5"),
                                        at("eval.h5")]),
                           ("kvcalib", [*TRAINED, at("codes.h5"), "-o",
                                        at("y.h5")])):
            self.told(run(tool, "-q", *argv), ("codes.h5",),
                      ("is a kvtools-codes file",))


def pieces(data):
    """(name, format, place) of the parts of a KL base: head, tokens and each
    row's head, with its first and last code and their padding."""
    n_ctx, n_vocab, n_chunks = struct.unpack_from("<3i", data, 8)
    row = 2 * ((n_vocab + 1) // 2 * 2 + 4)
    first = 20 + 4 * n_ctx * n_chunks
    yield from ((n, "i", 8 + 4 * i) for i, n in enumerate(
        ("context", "vocabulary", "chunks")))
    yield from (("tokens", "i", at) for at in range(20, first, 4 * 13))
    scored = n_ctx - 1 - n_ctx // 2
    for r, at in enumerate(range(first, len(data), row)):
        name = f"chunk {r // scored}, row {r % scored}"
        yield from ((name, "f", at + 4 * i) for i in range(2))
        if r < 2:
            yield from ((name, "H", at + 2 * i)
                        for i in (4, 3 + n_vocab, row // 2 - 1))


VALUES = {"i": (0, -1, 2**31 - 1, -2**31), "H": (0, 65535),
          "f": (float("nan"), 0, -1, 1e30, float("inf"))}


class KlBase(Fields):
    ARGV = ["-t", "1", "-c", "8", "-n", "2", "-p", "llama.cpp", "-s",
            "kivi:b2g8", "--kl-divergence-base"]

    def test_every_piece(self):
        model = ["kvppl", "-q", "-m", at("m"), "-f", at("eval.txt"), *self.ARGV]
        must(*model[:1], *model[2:], at("b.kl"))
        model += [at("x.kl"), "--kl-divergence"]
        with open(at("b.kl"), "rb") as f:
            data = f.read()
        shutil.copy(at("b.kl"), at("x.kl"))
        good = cells(run(*model).stdout)
        self.assertEqual(len(good), 2)
        for name, form, place in pieces(data):
            size = struct.calcsize(form)
            for value in *VALUES[form], None:
                with self.subTest(f"{name} at {place}: {value}"):
                    new = b"" if value is None else struct.pack(
                        "<" + form, value)
                    with open(at("x.kl"), "wb") as f:
                        f.write(data[:place] + new + data[place + size:])
                    done = run(*model, timeout=20)
                    if done.returncode == 0:
                        self.assertEqual(form, "H")  # a code, or its padding
                        self.no_nan(cells(done.stdout), good)
                    else:
                        self.told(done, ("x.kl",), (name, "truncated",
                                                    "past its end"))


if __name__ == "__main__":
    unittest.main()
