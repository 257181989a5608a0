#!/usr/bin/env python3
"""Runs a test program of the GPU's host twin; fails, too, when one of the
kernels that it is to test was compiled but never launched.

    run_every_kernel.py PROGRAM NAME...

NAME: of kv_NAME_kernel, every instance of which is meant.
"""
import os
import re
import subprocess
import sys
import tempfile


def compiled(program, names):
    """Names of kernels by their place: bytes behind twin_launched()."""
    nm = subprocess.run(["nm", "-C", program], stdout=subprocess.PIPE,
                        text=True, check=True).stdout
    place = {}
    for line in nm.splitlines():
        at, _, name = line[:16], line[17:18], line[19:]
        if at.strip() and "[clone" not in name:
            place[re.sub(r"^void ", "", name)] = int(at, 16)
    zero = place["twin_launched(void*)"]
    wanted = re.compile(r"kv_(%s)_kernel\b[^:]*\(" % "|".join(names))
    return {place[k] - zero: k for k in place if wanted.match(k)}


def main(program, *names):
    kernels = compiled(program, names)
    with tempfile.NamedTemporaryFile("r") as f:
        rc = subprocess.run([program],
                            env=dict(os.environ, KV_TWIN_LAUNCHED=f.name)
                            ).returncode
        launched = {int(line) for line in f}
    left = sorted(kernels[k] for k in kernels if k not in launched)
    print("%d kernels, %d never launched" % (len(kernels), len(left)))
    for name in left:
        print("never launched:", name[:name.rfind("(")])
    return rc or int(bool(left) or not kernels)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
