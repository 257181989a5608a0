"""--memory against what the processes take at their peak (getrusage)."""
import os
import re
import subprocess
import tempfile
import unittest

import tiny_model
from run_tools import TOOLS, must, run

MIB = 1 << 20
# Run by grep, since a child's peak is at least this process's memory at its
# start.
SANITIZED = not subprocess.run(
    ["grep", "-q", "__asan_init", os.path.join(TOOLS, "kvattn")]).returncode

# Pages of the program itself count as they are read: 48 MB with CUDA linked in.
PROGRAM = os.path.getsize(os.path.join(TOOLS, "kvattn"))
# Code that oneDNN writes for each shape of a product: 0.6 MiB for kvdump on
# AVX-512; and what a peak varies by on a machine that is full, 3.5 % of all.
NOISE = .05

# Each would be several times over a limit that counted tensors alone, or that
# forgot the base line, tiles, sequences that are decoded at a time, rows that a
# policy holds: spec, shape, threads, path.
ATTENTION = [
    ("f16", "2,4,2,64,32768", 1, "auto"),
    ("f32", "4,4,4,64,8192", 2, "auto"),
    ("kivi:b2g32", "2,4,2,64,32768", 2, "auto"),
    ("kivi:b8g32", "8,4,2,64,8192", 2, "generic"),
    ("kivi:b2g32r16384", "1,8,2,64,32768", 1, "exact"),
    ("turboquant:b4", "1,4,4,64,16384", 1, "auto"),
    ("cachegen", "1,4,4,64,16384", 2, "auto"),
    ("hack:b2p64", "1,4,4,64,16384", 2, "auto"),
    ("hack:b2p64,no-se", "2,4,2,64,8192", 1, "generic"),
    ("zipcache", "1,8,2,64,16384", 1, "auto"),
    ("antkv:d8b8n4096", "1,8,2,64,16384", 1, "auto"),
    ("kvquant:b4", "1,4,4,64,16384", 1, "auto"),
    ("streamingllm+kivi:b4g32", "1,4,4,64,16384", 2, "auto"),
    ("h2o+f16", "1,4,2,64,2048", 1, "auto"),
    ("snapkv+f16", "1,4,4,64,16384", 2, "auto"),
]

CTX = 1024
LIMIT = 32  # MiB; all windows together take over 100
OTHERS = [["kvdump", "-o", "OUT"], ["kvdump", "--fisher", "-o", "OUT"],
          ["kvppl", "--kl", "-s", "kivi:b2g32"],
          ["kvppl", "-p", "stream:512", "-s", "turboquant:b4"],
          ["kvquant", "-s", "f32", "-s", "kivi:b2g32", "--attention", "DUMP"],
          ["kvquant", "-s", "hack:b2p64", "--queries", "8", "DUMP"]]


def peak(*args):
    """Bytes of the finished process, which must do its work."""
    with tempfile.TemporaryFile() as err:
        p = subprocess.Popen([os.path.join(TOOLS, args[0]), "-q", *args[1:]],
                             stdout=subprocess.DEVNULL, stderr=err)
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        if p.returncode:
            raise AssertionError((args, err.read()))
    return used.ru_maxrss * 1024


@unittest.skipIf(SANITIZED, "a sanitizer's own memory is not counted")
class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A process that did the same on almost no data, except for the memory
        that kvattn reads between runs: 256 MiB, or more for large caches."""
        few = ["kvattn", "-s", "kivi:b2g32", "--shape", "1,2,2,64,64",
               "--reps", "1"]
        cls.read = cls().need(*few, "--memory", "1M")
        cls.rest = {n: peak(*few, "-t", str(n)) - cls.read for n in (1, 2)}

    def need(self, *args):
        """The bytes that a refusal names."""
        done = run(args[0], "-q", *args[1:])
        self.assertEqual(done.returncode, 2, (args, done.stderr))
        found = re.fullmatch(r"kvattn: .* take (\d+) bytes as [a-z ]+, more "
                             r"than --memory, \d+ bytes\n", done.stderr)
        self.assertTrue(found, done.stderr)
        return int(found[1])

    def test_kvattn(self):
        for spec, shape, threads, path in ATTENTION:
            with self.subTest(spec=spec, shape=shape):
                args = ["kvattn", "-s", spec, "--shape", shape, "-t",
                        str(threads), "--path", path, "--reps", "1",
                        "--warmup", "1"]
                tensors = self.need(*args, "--memory", "1M")
                all_ = self.need(*args, "--memory", str(tensors))
                self.assertGreater(all_, tensors + 256 * MIB)
                self.assertEqual(
                    self.need(*args, "--memory", str(all_ - 1)), all_)
                took = peak(*args, "--memory", str(all_)) - self.rest[threads]
                print(f"{spec:28} {shape:18} {path:8} tensors "
                      f"{tensors / MIB:6.1f} MiB, counted {all_ / MIB:6.1f}, "
                      f"took {took / MIB:6.1f}")
                self.assertLess(took, (1 + NOISE) * all_ + PROGRAM)
                self.assertLess(all_ - self.read, 2.5 * (took - self.read))

    def test_other_tools(self):
        with tempfile.TemporaryDirectory(prefix="kvtools-") as folder:
            def at(name):
                return os.path.join(folder, name)

            tiny_model.make(at("m"), heads=8, kv_heads=8, head_dim=64,
                            hidden=64, layers=2, ctx=CTX)
            with open(at("t.txt"), "w") as f:
                f.write(tiny_model.text(8000))
            text = ["-m", at("m"), "-f", at("t.txt")]
            for name, sizes in ("all.h5", [CTX, 16]), ("few.h5", [64, 1]):
                must("kvdump", *text, "-c", sizes[0], "-n", sizes[1], "-o",
                     at(name))
            for args in OTHERS:
                with self.subTest(args):
                    self.check(args, text, at)

    def check(self, args, text, at):
        """Beyond what almost nothing takes it is the limit."""
        def of(ctx, n, dump):
            more = [] if "DUMP" in args else [*text, "-c", str(ctx), "-n", n]
            return [{"DUMP": at(dump), "OUT": at("out.h5")}.get(a, a)
                    for a in args] + more + ["-t", "2"]

        rest = peak(*of(64, "1", "few.h5"))
        took = peak(*of(CTX, "16", "all.h5"), "--memory", f"{LIMIT}M") - rest
        print(f"{' '.join(args):50} took {took / MIB:6.1f} MiB")
        self.assertLess(took, (1 + NOISE) * LIMIT * MIB + PROGRAM)
        self.assertGreater(took, LIMIT / 4 * MIB)


if __name__ == "__main__":
    unittest.main()
