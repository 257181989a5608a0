"""kvdump --ranks: a file per rank, read as the one dump of one process, and
what becomes of ranks that differ and of parts that are missing."""
import os
import shutil
import tempfile
import unittest

import h5py
import run_ranks
import tiny_model
from run_tools import MPI_ENV, TOOLS, must, read, run, write

KVDUMP = os.path.join(TOOLS, "kvdump")
SPECS = ["-s", "kivi:b2g16r16", "-s", "absmax:b4g16"]


def setUpModule():
    global folder
    run_ranks.need_mpi()
    folder = tempfile.mkdtemp(prefix="kvtools-")
    for name, seed in ("m", 1), ("other", 2):
        tiny_model.make(at(name), seed=seed, layers=3)
        write(at(name + ".txt"), tiny_model.text(800, seed).encode())


def tearDownModule():
    if "folder" in globals():
        shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def args(*more, model="m", text="m.txt", n=5):
    return ["-m", at(model), "-f", at(text), "-c", "64", "-n", str(n), "-t",
            "1", *more]


def mpirun(*ranks):
    return run_ranks.mpirun("kvdump", *ranks)


def content(path):
    """All values and attributes, by name."""
    found = {}
    with h5py.File(path) as f:
        def see(name, o):
            found[name] = {k: str(v) for k, v in o.attrs.items()}
            if isinstance(o, h5py.Dataset):
                found[name]["="] = o.dtype, o.shape, o[()].tobytes()
        see("/", f)
        f.visititems(see)
    return found


class Ranks(unittest.TestCase):
    def make(self, name, n, *more):
        done = mpirun(*[args(*more, "-o", at(name))] * n)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("5 windows of 64 tokens"), 1)

    def refused(self, words, name):
        done = run("kvquant", *SPECS, at(name))
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(done.stderr.count("kvquant: "), 1, done.stderr)

    def test_any_number_of_ranks(self):
        for ranks, more in (((1, 2), ["--memory", "1"]),
                            ((3,), ["--fisher", "--dtype", "f16"])):
            must("kvdump", *args(*more, "-o", at("one.h5")))
            rows = must("kvquant", *SPECS, at("one.h5"))
            for n in ranks:
                name = at("more%d.h5" % n)
                self.make(name, n, *more)
                self.assertEqual(content(name), content(at("one.h5")))
                self.assertEqual(must("kvquant", *SPECS, name), rows)
                if n == 1:
                    self.assertEqual(read(name), read(at("one.h5")))
        for name in "one", "more3":
            must("kvcalib", "-s", "kvquant:b2o1", at(name + ".h5"), "-o",
                 at(name + ".calib"))
        self.assertEqual(read(at("more3.calib")), read(at("one.calib")))
        part = content(at("more3-2-of-3.h5"))  # a dump by itself
        self.assertEqual(part["layer_000/k"]["="][1][0], 2)
        must("kvquant", *SPECS, at("more3-2-of-3.h5"))

    def test_layers(self):
        must("kvdump", *args("-o", at("one.h5")))
        for n, more in (2, ["--memory", "1"]), (3, []):
            name = at("layers%d.h5" % n)
            done = mpirun(*[args("--split", "layers", *more, "-o", name)] * n)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(content(name), content(at("one.h5")))
        self.assertEqual(must("kvquant", *SPECS, name),
                         must("kvquant", *SPECS, at("one.h5")))
        write(at("layers3-1-of-3.h5"), read(at("layers3-2-of-3.h5")))
        self.refused("layers3-1-of-3.h5 has no /layer_000/q", "layers3.h5")

    def test_parts_that_are_not_there(self):
        """Never HDF5's fill values."""
        for name, n, more in (("d", 5, []), ("e", 5, ["--dtype", "f16"]),
                              ("g", 4, [])):
            options = args(*more, "-o", at(name + ".h5"), n=n)
            done = mpirun(options, options)
            self.assertEqual(done.returncode, 0, done.stderr)
        part = at("d-1-of-2.h5")
        first = read(part)
        for words, data in (
                ("q has another shape or type", read(at("d-2-of-2.h5"))),
                ("q has another shape or type", read(at("e-1-of-2.h5"))),
                ("q is a virtual dataset in a part", read(at("d.h5"))),
                ("d-1-of-2.h5 is not an HDF5 file", b"no" * 4000),
                ("d-1-of-2.h5 is cut short", first[:9000])):
            write(part, data)
            self.refused(words, "d.h5")
        os.unlink(part)
        self.refused("d.h5 wants its parts: cannot open", "d.h5")
        write(at("g-1-of-2.h5"), read(at("g-2-of-2.h5")))
        self.refused("has other tokens than windows 0 to 1", "g.h5")

    def test_ranks_that_differ(self):
        options = args("-o", at("no.h5"))
        for words, other in (
                ("rank 1 has the model's hash",
                 args("-o", at("no.h5"), model="other")),
                ("rank 1 has the --dtype f16, expected the --dtype f32",
                 options + ["--dtype", "f16"]),
                ("rank 1 has the -o ", args("-o", at("not.h5"))),
                ("rank 1: cannot open", args("-o", at("no.h5"), text="no"))):
            done = mpirun(options, other)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("kvdump: "), 1, done.stderr)
            self.assertNotEqual(done.returncode, 0)
        self.assertEqual([f for f in os.listdir(folder)
                          if f.startswith("no")], [])

    def test_refused(self):
        for words, options in (
                ("rank 0 has none of layers 2 to 2",
                 args("--split", "layers", "--layers", "2-2", "-o",
                      at("no.h5"))),
                ("3 ranks for 2 windows", args("-o", at("no.h5"), n=2)),
                ("expected a name without %", args("-o", at("no%s.h5")))):
            done = mpirun(*[options] * 3)
            self.assertIn(words, done.stderr)
        done = run("kvdump", "--ranks", "--tokens", *args()[:4], env=MPI_ENV)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--ranks goes into a dump", done.stderr)
        for words, more in (
                ("--split goes with --ranks", ["--split", "layers"]),
                ("--split rows: expected", ["--ranks", "--split", "rows"]),
                ("does not go with --fisher",
                 ["--ranks", "--split", "layers", "--fisher"])):
            done = run("kvdump", *args(*more, "-o", at("no.h5")), env=MPI_ENV)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=0)
