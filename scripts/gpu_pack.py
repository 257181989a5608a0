"""Packs a build's programs into one archive for a machine that has the GPU but
lacks their libraries, and finds the libraries of such a machine."""
import ctypes
import glob
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile

TOOLS = ("tools/kvattn", "tools/kvcalib", "tools/kvdump", "tools/kvgen",
         "tools/kvppl", "tools/kvquant")
LISTED = "meson-info/intro-tests.json"  # meson's list of a build's tests
# libc's own libraries come from the machine: with another version than its
# loader's, programs crash.
LIBC = re.compile(
    r"(lib(c|m|mvec|dl|rt|pthread|resolv|nsl|util|anl)|ld-linux.*)\.so")
# Each program holds the kernels: a window as large as two programs compresses
# the second one's kernels away.
WINDOW = 64 << 20
# The limit shows when an archive holds libraries that it does not need.
MAX_BYTES = 40 << 20
# Libraries that kvattn opens, and folders that may hold them beside the
# loader's own.
PLACES = {
    "libcuda.so.1": ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
                     "/usr/lib/wsl/lib", "/usr/lib64"],
    "libcublas.so.13": ["/usr/local/cuda/lib64", "/usr/local/cuda*/lib64",
                        "/usr/local/cuda*/targets/*/lib", "/opt/cuda/lib64"],
}


def tests(build):
    """The programs that test a device, from the build's own list."""
    path = os.path.join(build, LISTED)
    try:
        with open(path, encoding="utf-8") as f:
            found = ["tests/test_" + t["name"] for t in json.load(f)
                     if t["name"].endswith("_device")]
    except OSError as e:
        sys.exit("%s: %s; expected a build's list of its tests"
                 % (path, e.strerror))
    return found or sys.exit("%s: lists no test for a device" % path)


def libraries(program):
    """The libraries that ldd names, except libc's own: {name: path}."""
    listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE,
                            text=True, check=True).stdout
    return {name: path for name, path in
            re.findall(r"(\S+) => (/\S+)", listed) if not LIBC.match(name)}


def pack(build, to):
    """Packs stripped programs, the list of tests and the libraries as .tar.xz;
    returns the exit status."""
    programs = [*TOOLS, *tests(build)]
    libs = {}
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": WINDOW}]
    with tempfile.TemporaryDirectory() as folder, \
            lzma.open(to + ".partial", "wb", filters=filters) as x, \
            tarfile.open(fileobj=x, mode="w|") as archive:
        archive.add(os.path.join(build, LISTED), LISTED)
        # Sorted by size, so that programs with all kernels are adjacent.
        for program in sorted(programs, key=lambda p: os.path.getsize(
                os.path.join(build, p))):
            path = os.path.join(build, program)
            stripped = os.path.join(folder, "program")
            subprocess.run(["strip", "-o", stripped, path], check=True)
            archive.add(stripped, program)
            libs.update(libraries(path))
        for name, path in sorted(libs.items()):
            archive.add(os.path.realpath(path), "lib/" + name)
    size = os.path.getsize(to + ".partial")
    if size > MAX_BYTES:
        os.remove(to + ".partial")
        large = sorted(libs, key=lambda n: -os.path.getsize(libs[n]))[:3]
        print("gpu-check: %s: %.1f MiB, expected at most %.0f; the largest "
              "libraries of %s are %s (a build without oneDNN and MPI and with "
              "one of -Dgpu_archs is smaller)" % (
                  to, size / 2**20, MAX_BYTES / 2**20, build,
                  ", ".join(large) or "none"), file=sys.stderr)
        return 2
    os.replace(to + ".partial", to)
    print("%s: %.1f MiB, %d programs, %d libraries"
          % (to, size / 2**20, len(programs), len(libs)))
    return 0


def unpack(path):
    """Unpacks into a folder that serves as a build; the caller removes it."""
    folder = tempfile.mkdtemp(prefix="gpu-check-")
    # Python 3.11.2 (Debian 12) cannot filter unsafe members of an archive.
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(path) as archive:
        archive.extractall(folder, **safe)
    return folder


def folder_of(name):
    """The folder of a library that the loader does not know: NVIDIA's packages
    of the first python3 on the path may hold it."""
    try:
        ctypes.CDLL(name)
        return None
    except OSError:
        pass
    site = subprocess.run(
        ["python3", "-c", "import sys; print(*sys.path, sep='\\n')"],
        stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
    for place in PLACES[name] + [p + "/nvidia/*/lib" for p in
                                 dict.fromkeys(site + sys.path) if p]:
        for found in sorted(glob.glob(os.path.join(place, name))):
            return os.path.dirname(found)
    return None


def library_path(build):
    """LD_LIBRARY_PATH: the pack's libraries, then the value that was set, then
    folders of libraries that the loader lacks."""
    own = os.path.join(build, "lib")
    packed = glob.glob(own + "/*.so*")  # a build's lib/ has only archives
    return ":".join(filter(None, [
        own if packed else "", os.environ.get("LD_LIBRARY_PATH"),
        *map(folder_of, PLACES)]))
