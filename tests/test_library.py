"""libkvtools as another program uses it: an installed copy alone.

    test_library.py MESON CC [ARG]..."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ["KV_SOURCE_ROOT"]
BUILD = os.environ["KV_BUILD_ROOT"]
EXAMPLE = os.path.join(ROOT, "docs", "example.c")
MESON, *CC = sys.argv[1:]


def run(*args, **env):
    return subprocess.run(args, text=True, check=True, stdout=subprocess.PIPE,
                          env=dict(os.environ, **env)).stdout


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="library ")
        cls.addClassCleanup(folder.cleanup)
        cls.at = folder.name
        run(MESON, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--tags",
            "devel,runtime", "--destdir", cls.at)
        (pc,) = [os.path.join(d, "kvtools.pc")
                 for d, _, files in os.walk(cls.at) if "kvtools.pc" in files]
        with open(pc, encoding="utf-8") as f:
            text = f.read()
        prefix = re.search("^prefix=/(.*)$", text, re.M)[1]
        cls.include = os.path.join(cls.at, prefix, "include")
        cls.libraries = os.path.dirname(os.path.dirname(pc))
        # Moves the copy to a folder whose name may have spaces.
        with open(pc, "w", encoding="utf-8") as f:
            f.write(text.replace("prefix=/", "prefix=%s/"
                                 % cls.at.replace(" ", "\\ "), 1))

    def headers(self):
        folder = pathlib.Path(self.include, "kvtools")
        return {p.name: p.read_text() for p in sorted(folder.iterdir())}

    def flags(self, *args):
        return shlex.split(run("pkg-config", *args, "kvtools",
                               PKG_CONFIG_PATH=os.path.join(self.libraries,
                                                            "pkgconfig")))

    def build(self, *args):
        """The example, compiled."""
        program = os.path.join(self.at, "example")
        run(*CC, "-Wall", "-Wextra", "-Werror", EXAMPLE, "-o", program,
            *self.flags("--cflags", "--libs", *args), "-lm")
        return program

    def test_headers_compile_alone(self):
        languages = {"c": CC + ["-std=c17"]}
        if shutil.which("g++"):
            languages["c++"] = ["g++", "-std=c++17"]
        self.assertIn("seq.h", self.headers())
        for name in self.headers():
            for language, compiler in languages.items():
                with self.subTest(name, language=language):
                    subprocess.run(
                        compiler + ["-Wall", "-Werror", "-fsyntax-only", "-I",
                                    self.include, "-x", language, "-"],
                        text=True, check=True,
                        input="#include <kvtools/%s>\n" % name)

    def test_example(self):
        shared = run(self.build(), LD_LIBRARY_PATH=self.libraries)
        self.assertRegex(shared, r"\Akivi:b2g32r0\S*: 3\.000 bits a value, "
                         r"attention off by 0\.\d+ of its norm\n\Z")
        hidden = os.path.join(self.at, "hidden")
        os.mkdir(hidden)
        try:
            for name in os.listdir(self.libraries):
                if ".so" in name:
                    os.rename(os.path.join(self.libraries, name),
                              os.path.join(hidden, name))
            self.assertEqual(run(self.build("--static")), shared)
        finally:
            for name in os.listdir(hidden):
                os.rename(os.path.join(hidden, name),
                          os.path.join(self.libraries, name))

    def test_shows_what_headers_declare(self):
        shared = os.path.join(self.libraries, "libkvtools.so.0")
        text = re.sub(r"/\*.*?\*/", "", "".join(self.headers().values()),
                      flags=re.S)
        declared = set(re.findall(r"\bkv_\w+(?=[(\[])", text))
        shown = {line.split()[-1] for line in
                 run("nm", "-D", "--defined-only", shared).splitlines()
                 if " A " not in line}
        self.assertIn("kv_seq_step@@KVTOOLS_0", shown)
        for symbol in shown:
            name, _, version = symbol.partition("@@")
            self.assertIn(name, declared)
            self.assertEqual(version, "KVTOOLS_0")

    def test_does_not_exit(self):
        """But a trial's copy of the process does, by _exit()."""
        shared = os.path.join(self.libraries, "libkvtools.so.0")
        wants = {line.split()[-1].partition("@")[0] for line in
                 run("nm", "-D", "--undefined-only", shared).splitlines()}
        self.assertIn("abort", wants)
        self.assertFalse(wants & {"exit", "quick_exit", "getopt_long"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
