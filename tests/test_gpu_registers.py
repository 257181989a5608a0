"""ptxas's report of each kernel: no timed kernel spills registers, no kernel
keeps an array in memory that it should hold in registers.  Prints registers and
spills of each."""

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
# No results report the time of these kernels, so that they may spill: attention
# over plain floats for perplexity's windows.
NOT_TIMED = ["kv_views_kernel"]


class RegisterTest(unittest.TestCase):
    def test_all(self):
        found = list(kernels())
        self.assertTrue(found, "no reports in " + REPORTS)
        for source, name, arch, stack, stores, loads, registers in found:
            print("%-10s %-7s %3d registers, %d bytes on the stack, "
                  "%d spilled: %s" % (source, arch, registers, stack,
                                      stores + loads, name))
        for source, name, arch, stack, stores, loads, registers in found:
            with self.subTest(name, arch=arch):
                if any(k in name for k in NOT_TIMED):
                    continue
                allowed = max([0] + [STACK[k] for k in STACK if k in name])
                self.assertLessEqual(stack, allowed, source)
                self.assertEqual((stores, loads), (0, 0), source)


if __name__ == "__main__":
    unittest.main()
