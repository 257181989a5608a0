"""Dumps as h5py and h5repack make them of what kvdump wrote: equivalent copies
give the same rows; links elsewhere and impossible values are refused by name,
fast and in little memory."""
import os
import resource
import shutil
import tempfile
import unittest

import h5py
import numpy as np

import tiny_model
from run_tools import must, run

SPECS = ["-s", "f16", "-s", "kivi:b2g16r16", "-s", "vecinfer:d4b4"]
K = "layer_000/k"


def setUpModule():
    global folder, rows, before
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)
    for text, seed in ("eval", 1), ("calib", 2):
        with open(at(text + ".txt"), "w") as f:
            f.write(tiny_model.text(800, seed))
        must("kvdump", "-m", at("m"), "-f", at(text + ".txt"), "-c", "64",
             "--what", "q,k,v", "-o", at(text + ".h5"))
    must("kvcalib", *SPECS[4:], at("calib.h5"), "-o", at("c.h5"))
    rows = must("kvquant", *SPECS, "-C", at("c.h5"), at("eval.h5"))


    before = most_memory()


def most_memory():
    """The peak memory of any child so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def cpu_seconds():
    """The time of all children so far."""
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


class Storage(unittest.TestCase):
    def changed(self, change, name="x.h5", of="eval.h5"):
        shutil.copy(at(of), at(name))
        with h5py.File(at(name), "r+") as f:
            change(f)
        return at(name)

    def same(self, change):
        self.assertEqual(must("kvquant", *SPECS, "-C", at("c.h5"),
                              self.changed(change)), rows)
        self.assertEqual(must("kvquant", *SPECS, "-C",
                              self.changed(change, "y.h5", "c.h5"),
                              at("eval.h5")), rows)

    def refused(self, words, path):
        """Refuses with a sentence, at once and within 100 MB more than intact
        files."""
        used = cpu_seconds()
        done = run("kvquant", "-q", *SPECS, "-C", at("c.h5"), path)
        self.assertEqual(done.returncode, 2, done.stderr or done.stdout)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertIn(os.path.basename(path), done.stderr)
        self.assertLess(cpu_seconds() - used, 0.5)
        self.assertLess(most_memory(), before + 100 * 1024)

    def replaced(self, make, name=K):
        def change(f):
            x = f[name][()]
            del f[name]
            make(f, x)
        return self.changed(change)

    def test_text_of_any_kind(self):
        def change(kind):
            def every(f):
                def visit(name, o):
                    for a, v in list(o.attrs.items()):
                        if isinstance(v, (bytes, np.bytes_)):
                            del o.attrs[a]
                            kind(o.attrs, a, v.decode())
                visit("/", f)
                f.visititems(visit)
            return every

        def variable(attrs, a, text):
            attrs[a] = text

        def variable_ascii(attrs, a, text):
            attrs.create(a, text.encode(), dtype=h5py.string_dtype("ascii"))

        def fixed_ascii(attrs, a, text):
            attrs[a] = np.bytes_(text.encode()) if text else np.array(
                [b""], dtype="S1")

        def spaces(attrs, a, text):
            t = h5py.h5t.C_S1.copy()
            t.set_size(200)
            t.set_strpad(h5py.h5t.STR_SPACEPAD)
            space = h5py.h5s.create(h5py.h5s.SCALAR)
            h5py.h5a.create(attrs._id, a.encode(), t, space).write(
                np.array(text.encode().ljust(200), dtype="S200"), t)

        for kind in variable, variable_ascii, fixed_ascii, spaces:
            with self.subTest(kind.__name__):
                self.same(change(kind))

    def test_numbers_of_any_width(self):
        for whole in "i1", "u2", ">i8", "f4", ">f8":
            def change(f):
                def visit(name, o):
                    for a, v in list(o.attrs.items()):
                        if isinstance(v, np.integer) and (
                                0 <= v < 127 or whole[-2] in "if"):
                            del o.attrs[a]
                            o.attrs.create(a, v, dtype=whole)
                visit("/", f)
                f.visititems(visit)
            with self.subTest(whole):
                self.same(change)
        self.same(lambda f: f.attrs.create(
            "attn_scale", [f.attrs["attn_scale"]], dtype="f4"))

    def test_filters(self):
        for how in ({"compression": "gzip", "shuffle": True},
                    {"compression": "gzip", "fletcher32": True},
                    {"chunks": True}, {}):
            def change(f):
                sets = []
                f.visititems(lambda n, o: sets.append(n) if isinstance(
                    o, h5py.Dataset) and o.size else None)
                for n in sets:
                    x, attrs = f[n][()], dict(f[n].attrs)
                    dtype = f[n].dtype
                    del f[n]
                    f.create_dataset(n, data=x, dtype=dtype, **how)
                    f[n].attrs.update(attrs)
            with self.subTest(how):
                self.same(change)
        self.refused("/layer_000/k is stored by filter 32000 (lzf), which "
                     "kvtools does not read", self.replaced(
                         lambda f, x: f.create_dataset(
                             K, data=x, compression="lzf")))
        self.refused("filter 6 (scaleoffset)", self.replaced(
            lambda f, x: f.create_dataset(K, data=x, scaleoffset=4)))

    def test_values_elsewhere(self):
        def virtual(f, x):
            layout = h5py.VirtualLayout(x.shape, x.dtype)
            layout[:] = h5py.VirtualSource(at("eval.h5"), K, x.shape, x.dtype)
            f.create_virtual_dataset(K, layout)

        def compact(f, x):
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.COMPACT)
            h5py.h5d.create(f.id, b"inv_freq", h5py.h5t.IEEE_F32LE,
                            h5py.h5s.create_simple(x.shape), plist)
            f["inv_freq"][...] = x

        self.refused("k is a virtual dataset", self.replaced(virtual))
        self.refused("k is stored in other files", self.replaced(
            lambda f, x: f.create_dataset(
                K, x.shape, x.dtype,
                external=[(at("eval.h5"), 0, x.nbytes)])))
        self.refused("inv_freq is compact", self.replaced(compact, "inv_freq"))
        self.refused("k is a soft link", self.replaced(
            lambda f, x: f.__setitem__(K, h5py.SoftLink("/layer_000/v"))))
        self.refused("k is an external link", self.replaced(
            lambda f, x: f.__setitem__(K, h5py.ExternalLink(at("eval.h5"),
                                                            K))))
        for group, words in ((lambda f: h5py.SoftLink("/layer_000"),
                              "/layer_001 is a soft link"),
                             (lambda f: f["/"], "but no /layer_001/")):
            def change(f):
                del f["layer_001"]
                f["layer_001"] = group(f)
            self.refused(words, self.changed(change))

    def test_values_missing(self):
        self.refused("k is not allocated", self.replaced(
            lambda f, x: f.create_dataset(K, x.shape, x.dtype)))
        self.refused("k has 0 of its", self.replaced(
            lambda f, x: f.create_dataset(K, x.shape, x.dtype, chunks=True)))

        def partly(f, x):
            f.create_dataset(K, x.shape, x.dtype, chunks=(1, *x.shape[1:]),
                             fletcher32=True)
            f[K][:-1] = x[:-1]
        n = h5py.File(at("eval.h5"), "r")[K].shape[0]
        self.refused(f"k has {n - 1} of its {n} chunks", self.replaced(partly))

    def test_more_than_a_file_holds(self):
        def large(f, **how):
            f.attrs["n_windows"], f.attrs["ctx"] = 1 << 20, 1 << 10
            for name in "tokens", "positions":
                del f[name]
                f.create_dataset(name, (1 << 20, 1 << 10), "i4", **how)

        self.refused("tokens would hold 4294967296 bytes",
                     self.changed(large))
        self.refused("tokens would hold 4294967296 bytes",
                     self.changed(lambda f: large(
                         f, compression="gzip", chunks=(1 << 8, 1 << 10))))

        def bomb(f):
            """Complete, in a thousandth of its bytes."""
            f.attrs["n_windows"], f.attrs["ctx"] = 1 << 6, 1 << 18
            for name in "tokens", "positions":
                del f[name]
                f.create_dataset(name, (1 << 6, 1 << 18), "i4", chunks=(
                    1, 1 << 18), compression="gzip", compression_opts=9)
                f[name][...] = 0
        self.refused("tokens would hold 67108864 bytes", self.changed(bomb))

        def chunk(f, x):
            f.create_dataset(K, x.shape, x.dtype,
                             chunks=(1 << 10, *x.shape[1:]),
                             maxshape=(None, *x.shape[1:]))
            f[K][...] = x
        self.refused("k has chunks of", self.replaced(chunk))

    def test_other_types(self):
        for dtype in ("f8", "i4", h5py.ref_dtype, h5py.vlen_dtype("f4"),
                      np.dtype([("a", "f4"), ("b", "f4")]),
                      h5py.opaque_dtype(np.dtype("V4"))):
            self.refused("k does not hold", self.replaced(
                lambda f, x: f.create_dataset(K, x.shape, dtype)))
        for value in ("text", [1, 2], np.bool_(True), h5py.Empty("i8"),
                      np.array([1, 2], "f4"), 2.5, float("nan"), -1, 2**63):
            for name in "n_layers", "ctx", "format":
                with self.subTest(f"{name} = {value}"):
                    self.refused(f"attribute {name} of /",
                                 self.changed(lambda f: f.attrs.__setitem__(
                                     name, value)))
        for value in 5, "x" * 1000, b"x" * 1000, h5py.Empty("S1"):
            self.refused("attribute model of /", self.changed(
                lambda f: f.attrs.__setitem__("model", value)))

    def test_open_elsewhere(self):
        with h5py.File(at("w.h5"), "w") as f:
            f.attrs["kind"] = "kvtools-dump"
            f.flush()
            self.refused("w.h5 is being written by another process",
                         at("w.h5"))
        with h5py.File(at("v.h5"), "w", libver="latest") as f:
            f.attrs["kind"] = "kvtools-dump"
            f.swmr_mode = True
            self.refused("v.h5 is being written by another process",
                         at("v.h5"))
        os.mkfifo(at("pipe"))
        self.refused("pipe: it is not a regular file", at("pipe"))
        self.refused("none.h5: No such file", at("none.h5"))


if __name__ == "__main__":
    unittest.main()
