"""ptxas's report of each kernel: none spills registers, none keeps an array
in memory that it should hold in registers.  Prints registers of each."""

import glob
import os
import re
import unittest

REPORTS = os.path.join(os.environ["KV_BUILD_ROOT"], "kernels",
                       "*.kernels.txt")
KERNEL = re.compile(
    r"Compiling entry function '(\S+)' for '(\S+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers", re.S)


def kernels():
    for path in sorted(glob.glob(REPORTS)):
        with open(path) as f:
            for m in KERNEL.finditer(f.read()):
                yield (os.path.basename(path).split(".")[0], m[1], m[2],
                       *map(int, m.groups()[2:]))


# Sine and cosine keep the digits of pi of large arguments in an array.
STACK = {"kv_rope_kernel": 32}


class RegisterTest(unittest.TestCase):
    def test_all(self):
        found = list(kernels())
        self.assertTrue(found, "no reports in " + REPORTS)
        for source, name, arch, stack, stores, loads, registers in found:
            print("%-10s %-7s %3d registers, %d bytes on the stack: %s" %
                  (source, arch, registers, stack, name))
        for source, name, arch, stack, stores, loads, registers in found:
            with self.subTest(name, arch=arch):
                allowed = max([0] + [STACK[k] for k in STACK if k in name])
                self.assertLessEqual(stack, allowed, source)
                self.assertEqual((stores, loads), (0, 0), source)


if __name__ == "__main__":
    unittest.main()
