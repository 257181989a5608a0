#!/usr/bin/env python3
"""Runs a test program of the GPU's host twin; fails, too, when one of the
kernels that it is to test was compiled but never launched.

    run_every_kernel.py PROGRAM [NAME...]
    run_every_kernel.py --unlisted PROGRAM NAME...

NAME: of kv_NAME_kernel, every instance of which is meant; NAME<FIRST: those
whose first template argument is FIRST.  The second runs nothing, and fails when
the program has a kernel that no NAME means.
"""
import os
import re
import subprocess
import sys
import tempfile


def compiled(program):
    """Names of kernels by their address: bytes after twin_launched()."""
    nm = subprocess.run(["nm", "-C", program], stdout=subprocess.PIPE,
                        text=True, check=True).stdout
    place = {}
    for line in nm.splitlines():
        at, _, name = line[:16], line[17:18], line[19:]
        if at.strip() and "[clone" not in name:
            place[re.sub(r"^void ", "", name)] = int(at, 16)
    zero = place["twin_launched(void*)"]
    kernel = re.compile(r"kv_\w+_kernel\b[^:]*\(")
    return {place[k] - zero: k for k in place if kernel.match(k)}


def is_meant(kernel, names):
    return any(re.match(r"kv_%s_kernel%s\b" % (name, less + first), kernel)
               for name, less, first in (n.partition("<") for n in names))


def tell(what, kernels):
    for name in sorted(kernels):
        print(what, name[:name.rfind("(")])
    return int(bool(kernels))


def run(program, *names):
    kernels = {at: k for at, k in compiled(program).items()
               if is_meant(k, names)}
    with tempfile.NamedTemporaryFile("r") as f:
        rc = subprocess.run([program],
                            env=dict(os.environ, KV_TWIN_LAUNCHED=f.name)
                            ).returncode
        launched = {int(line) for line in f}
    left = [kernels[k] for k in kernels if k not in launched]
    print("%d kernels, %d never launched" % (len(kernels), len(left)))
    return rc or tell("never launched:", left) or int(bool(names) and not kernels)


def unlisted(program, *names):
    return tell("no test is to launch:", [
        k for k in compiled(program).values() if not is_meant(k, names)])


if __name__ == "__main__":
    if sys.argv[1] == "--unlisted":
        sys.exit(unlisted(*sys.argv[2:]))
    sys.exit(run(*sys.argv[1:]))
