"""kvcalib as its users run it: outputs and refusals, and that no partial file
is left behind."""
import csv
import io
import os
import pty
import resource
import signal
import struct
import subprocess
import unittest

from run_tools import TOOLS, read, write

from tool_test import CTX, ToolTest


class Calib(ToolTest):
    def kvcalib(self, *args):
        return ["kvcalib", self.dump, "-o", self.path("c.h5"), *args]

    def test_says_what_it_wrote(self):
        done = self.good(*self.kvcalib("-s", "pq:d{2,4}b3", "-s", "pq:d4b3",
                                       "-s", "kivi"))
        self.assertEqual(done.stdout, "")
        self.assertIn("kivi:K-b2g32r128s0/V-b2g16r128s0,axis=paper has nothing to calibrate", done.stderr)
        self.assertEqual(done.stderr.count("mean squared error K 0."), 2)
        self.assertEqual(done.stderr.count(", V 0."), 2)
        self.assertIn("2 specs on some.txt, 16 windows of 64", done.stderr)
        self.assertEqual(os.listdir(self.dir), ["c.h5"])

    def test_errors_are_those_of_a_side(self):
        """Tables of K and V alike err on values that are neither."""
        done = self.good(*self.kvcalib("-s", "klt:b2,metric=none", "--table"))
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        self.assertTrue([r for r in rows if r["side"] == "all" and r["error"]])
        self.assertNotIn("squared error", done.stderr)

    def test_table(self):
        done = self.good(*self.kvcalib("-s", "vecinfer:d4b3", "--table"))
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        names = {(r["table"], r["side"], r["layer"]) for r in rows}
        self.assertEqual(len(names), len(rows))
        self.assertIn(("codebook", "V", "1"), names)
        self.assertIn(("smooth", "K", "0"), names)
        self.assertEqual({r["calib_text"] for r in rows}, {"some.txt"})
        self.assertEqual({r["model"] for r in rows}, {"tiny"})

    def test_threads_change_no_byte(self):
        for n in (1, 2, 3):
            self.good("kvcalib", "-t", n, "-s", "pq:d4b4", "-s",
                      "vecinfer:d4b3", "-s", "kvquant:b3,w=none", self.dump,
                      "-o", self.path(f"{n}"))
        self.assertEqual(read(self.path("1")), read(self.path("2")))
        self.assertEqual(read(self.path("1")), read(self.path("3")))

    def test_seed_and_iterations_matter(self):
        hashes = set()
        for args in ([], ["--seed", 1], ["--iters", 1]):
            done = self.good(*self.kvcalib("-s", "pq:d4b4", *args))
            hashes.add(done.stderr.split("hash ")[1].split(",")[0])
        self.assertEqual(len(hashes), 3)

    def test_h5py_reads_it(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        self.good(*self.kvcalib("-s", "pq:d4b3"))
        with h5py.File(self.path("c.h5")) as f:
            book = f["set_000/codebook_K_l001"]
            self.assertEqual(book.shape[-2:], (8, 4))
            self.assertEqual(book.dtype, "<f2")
            self.assertEqual(book.attrs["name"], b"codebook")
            self.assertTrue(f["set_000"].attrs["spec"].startswith(b"pq:d4b3"))
            self.assertEqual(f.attrs["model"], b"tiny")

    def test_bad_options(self):
        self.refused("wants at least one scheme", *self.kvcalib())
        self.refused("wants one dump, 2 files", *self.kvcalib("-s", "pq",
                                                              self.dump))
        self.refused("pq:d4b3 stands without -s: quote sweeps",
                     *self.kvcalib("-s", "pq:d2b3", "pq:d4b3"))
        self.refused("kivi:b4 stands without -s: quote sweeps", "kvcalib",
                     "--allocate", 3, "-s", "kivi:b2", "kivi:b4", "-m",
                     self.model, "-f", self.text, "-o", self.path("l.txt"))
        self.refused("wants the file to write", "kvcalib", "-s", "pq",
                     self.dump)
        self.refused("pq", *self.kvcalib("-s", "pp:d4b4"))
        self.refused("d3", *self.kvcalib("-s", "pq:d3b4"))
        self.refused("none of the schemes", *self.kvcalib("-s", "kivi"))
        for words in ("dump.h5 has no k_gradient (kvdump --fisher writes it)",
                      "kvquant:b3o1"):
            self.refused(words, *self.kvcalib("-s", "kvquant:b3"))
        self.refused("--device cuda:99",
                     *self.kvcalib("-s", "pq", "--device", "cuda:99"))
        kept = write(self.path("kept.h5"), read(self.dump))
        self.refused("would replace the input", "kvcalib", "-s", "pq", kept,
                     "-o", kept)

    def tables(self, *args):
        done = self.good(*self.kvcalib("--table", *args))
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        return rows[0]["calib_hash"], rows[0]["calib_text"], [
            (r["table"], r["side"], r["layer"], r["error"]) for r in rows]

    def test_factors_of_another_text(self):
        spec = "-s", "vecinfer:d4b3"
        a, b = self.path("a.h5"), self.path("b.h5")
        text = write(self.path("other.txt"), bytes(reversed(read(self.text))))
        other = self.path("other.h5")
        self.good("kvdump", "-m", self.model, "-f", text, "-n", 8, "-o", other)
        alone = self.tables(*spec)[2]
        self.good("kvcalib", *spec, self.dump, "-o", a)
        self.good("kvcalib", "-s", "vecinfer:d4b3", other, "-o", b)
        _, words, same = self.tables(*spec, "--factors", a)
        self.assertEqual(words, "some.txt+factors:some.txt")
        self.assertEqual(same, alone)
        _, words, mixed = self.tables("-s", "vecinfer:d2b3", "--factors", b)
        self.assertEqual(words, "some.txt+factors:other.txt")
        # Both texts count as seen.
        self.refused("--allow-leakage", "kvquant", "-s", "vecinfer:d2b3", "-C",
                     self.path("c.h5"), other)
        try:
            import h5py
            with h5py.File(self.path("c.h5")) as f, h5py.File(b) as g:
                name = "set_000/smooth_K_l001"
                self.assertTrue((f[name][:] == g[name][:]).all())
        except ImportError:
            pass
        os.remove(self.path("c.h5"))
        for words, *args in (
                ["pq:d4b3r0s0", "-s", "pq:d4b3"],
                ["no set of the same t and rope", "-s", "vecinfer:d4b3,t=S"]):
            self.refused(words, *self.kvcalib(*args, "--factors", a))
        self.refused("--factors goes with training", "kvcalib", "--allocate",
                     3, "-s", "kivi:b2", self.dump, "--factors", a, "-o",
                     self.path("l.txt"))

    def test_unwritable_places(self):
        """Reported before the errors of training and measuring."""
        for job in ["-s", "kivi"], ["--allocate", 0.1, "-s", "kivi:b2"]:
            for words, out in (("it is a folder", self.dir),
                               ("No such file", self.path("no/c.h5"))):
                done = self.refused(f"cannot write {out}: {words}", "kvcalib",
                                    *job, self.dump, "-o", out)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def refuse_dump(self, words, data):
        bad = write(self.path("bad.h5"), data)
        self.refused(words, "kvcalib", "-s", "pq:d4b3", bad, "-o",
                     self.path("c.h5"))

    def test_damaged_dumps(self):
        whole = read(self.dump)
        self.refuse_dump("bad.h5 is not an HDF5 file", b"tokens\n" * 99)
        self.refuse_dump("bad.h5 is not an HDF5 file", b"")
        self.refuse_dump("bad.h5 is cut short", whole[:len(whole) // 2])
        self.refuse_dump("bad.h5 is cut short", whole[:-1])
        self.refuse_dump("bad.h5 is cut short", whole[:47])
        self.refuse_dump("bad.h5 is cut short", whole[:8])
        self.refused("no.h5: No such file", "kvcalib", "-s", "pq",
                     self.path("no.h5"), "-o", self.path("c.h5"))
        calib = self.path("calib.h5")
        self.good("kvcalib", "-s", "pq:d4b3", self.dump, "-o", calib)
        self.refused("calib.h5 is a kvtools-calib file, expected a "
                     "kvtools-dump", "kvcalib", "-s", "pq:d4b3", calib, "-o",
                     self.path("c.h5"))

    def test_flipped_value(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        with h5py.File(self.dump) as f:
            mark = struct.pack("<4f", *f["layer_001/k"][3, 5, 1, :4])
        data = bytearray(read(self.dump))
        at = data.index(mark)
        data[at + 2] ^= 1
        self.refuse_dump("bad.h5: cannot read /layer_001/k: data error "
                         "detected by Fletcher32 checksum", bytes(data))

    def test_nan_in_a_dump(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        bad = write(self.path("bad.h5"), read(self.dump))
        with h5py.File(bad, "r+") as f:
            f["layer_001/v"][2, 7, 1, 3] = float("nan")
        self.refused(f"bad.h5: layer 1, v, token {2 * CTX + 7}, head 1, "
                     "channel 3 is not finite",
                     "kvcalib", "-s", "pq:d4b3", bad, "-o", self.path("c.h5"))

    def test_other_hdf5_files(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        bad = self.path("bad.h5")

        def refuse(words):
            self.refused(words, "kvcalib", "-s", "pq:d4b3", bad, "-o",
                         self.path("c.h5"))

        with h5py.File(bad, "w") as f:
            f["x"] = [1, 2, 3]
        refuse("bad.h5 is not a file of kvtools")
        write(bad, read(self.dump))
        with h5py.File(bad, "r+") as f:
            f.attrs["format"] = 99
        refuse("bad.h5 has format 99, this version of kvtools")
        write(bad, read(self.dump))
        with h5py.File(bad, "r+") as f:
            del f.attrs["head_dim"]
        refuse("attribute head_dim of / is missing")
        write(bad, read(self.dump))
        with h5py.File(bad, "r+") as f:
            x = f["layer_000/k"][:, :, :, :8]
            del f["layer_000/k"]
            f["layer_000/k"] = x
        refuse("/layer_000/k is [16][64][2][8], expected [16][64][2][16]")

    def test_full_disk(self):
        self.good(*self.kvcalib("-s", "pq:d4b3"))
        size = os.path.getsize(self.path("c.h5"))
        os.unlink(self.path("c.h5"))
        for room in (1000, size // 2, size - 1):
            self.refused("File too large", *self.kvcalib("-s", "pq:d4b3"),
                         preexec=lambda: resource.setrlimit(
                             resource.RLIMIT_FSIZE, (room, room)))


    def test_interrupted(self):
        with subprocess.Popen(
                [os.path.join(TOOLS, "kvcalib"), self.dump, "-o",
                 self.path("c.h5"), "-s", "pq:d4b8", "-s",
                 "klt,rope=post,metric=none", "-s", "pq:d{1,2,8}b{4,5,6,7,8}"],
                stderr=subprocess.PIPE, text=True) as p:
            # a warning about the first spec; the second takes a while
            self.assertIn("points per centroid", p.stderr.readline())
            p.send_signal(signal.SIGTERM)
            _, words = p.communicate(timeout=240)
        self.assertEqual(p.returncode, 2, words)
        self.assertRegex(words, r"kvcalib: (.*: )?interrupted\n$")
        self.assertEqual(os.listdir(self.dir), [])

    def test_progress_on_a_terminal_alone(self):
        ppl = ["kvppl", "-m", self.model, "-f", self.text, "-n", "2", "-s",
               "f32", "-s", "f16", "-s", "kivi", "-o", self.path("o.csv")]
        for args, bar in ((self.kvcalib("-s", "pq:d4b3"), r"pq:d4b3\S*"),
                          (ppl, r"row 1 of 3, f32\S*")):
            self.assertNotIn("%", self.good(*args).stderr)
            ours, theirs = pty.openpty()
            done = subprocess.run([os.path.join(TOOLS, args[0]), *args[1:]],
                                  stderr=theirs, timeout=240)
            shown = os.read(ours, 1 << 16).decode()
            os.close(ours)
            os.close(theirs)
            self.assertEqual(done.returncode, 0)
            self.assertRegex(shown, bar + r": +\d+% \d+/\d+")


if __name__ == "__main__":
    unittest.main()
