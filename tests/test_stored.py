"""What a row's cache stores is what its name says, or it is said: values that
are clipped to fp16, and rows that quantize nothing, in every tool."""
import csv
import io
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import prompt, run

CTX, WINDOWS = 32, 3
CLIPPED = "beyond fp16's range"
NOTHING = " quantizes nothing: "


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")

    def large(name, x):
        """Keys beyond fp16, queries as much smaller."""
        by = 5e4 if ".k_proj." in name else 1 / 5e4 if ".q_proj." in name else 1
        for i in range(len(x)):
            x[i] *= by

    tiny_model.make(at("m"), seed=1)
    tiny_model.make(at("large"), seed=1, edit=large)
    with open(at("text.txt"), "w") as f:
        f.write(tiny_model.text(400, 1))
    for model in "m", "large":
        say("kvdump", "-m", at(model), *on_text(), "-o", at(model + ".h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def on_text(*more):
    return ["-f", at("text.txt"), "-c", str(CTX), "-n", str(WINDOWS), *more]


def say(tool, *args):
    """Rows by the name of their specs' schemes, and stderr."""
    done = run(tool, *args)
    if done.returncode:
        raise AssertionError(f"{tool} {args}: {done.stderr}")
    rows = csv.DictReader(io.StringIO(done.stdout, newline=""))
    return {r["spec"].split(":r0s0")[0]: r for r in rows}, done.stderr


def runs(model, *specs):
    """The rows for all layers and sides, from every tool and protocol."""
    given = [a for s in specs for a in ("-s", s)]
    kvppl = ["kvppl", "-m", at(model), *on_text(*given)]
    for protocol in "all", "llama.cpp", "stream:5", "prefill:20":
        keep = ["--keep-window"] if protocol in ("all", "llama.cpp") else []
        yield [*kvppl, "-p", protocol, *keep]
    yield ["kvgen", "-m", at(model), "-f",
           prompt(at("p.jsonl"), "the quick brown fox"), "-n", "4", "-o",
           os.devnull, *given]
    yield ["kvquant", at(model + ".h5"), "--keep-window", *given]
    yield ["kvattn", "--dump", at(model + ".h5"), "--reps", "1", *given]


class Clipped(unittest.TestCase):
    def test_counted_and_said(self):
        for args in runs("large", "f16", "bf16", "absmax:b8g16",
                         "K-bf16/V-f16"):
            with self.subTest(args[0] + " " + " ".join(args[5:])):
                rows, said = say(*args)
                f16 = int(rows["f16"]["clipped"])
                self.assertGreater(f16, 100)
                self.assertIn(f"f16:r0s0: {f16} values are {CLIPPED}", said)
                self.assertEqual(said.count(CLIPPED), 2, said)
                for spec in "bf16", "K-bf16", "f32":
                    if spec in rows:
                        self.assertEqual(rows[spec]["clipped"], "0", spec)
                self.assertNotIn(CLIPPED, run(*args, "-q").stderr)

    def test_the_dump_has_as_many(self):
        """Counts of the exact keys and values, read without our tools."""
        try:
            import h5py
            import numpy
        except ImportError:
            self.skipTest("h5py is not there")
        with h5py.File(at("large.h5")) as f:
            beyond = sum(int((abs(f[f"layer_00{i}/{t}"][...]) >= 65520).sum())
                         for i in range(2) for t in "kv")
        rows, _ = say("kvquant", at("large.h5"), "-s", "f16", "-s", "kivi:b4g16",
                      "--columns", "spec,side,layer,clipped")
        self.assertEqual({r["clipped"] for r in rows.values()},
                         {"0", str(beyond)})

    def test_any_threads_and_policies(self):
        one, two = (say("kvppl", "-m", at("large"), *on_text(
            "-t", t, "-p", "prefill:20", "-s", "snapkv:b12w4+f16", "-s",
            "h2o:b0.5+kivi:b4g16r0", "--columns", "spec,clipped"))[0]
            for t in "12")
        self.assertEqual(one, two)
        for spec, row in one.items():
            self.assertEqual(int(row["clipped"]) > 100, spec != "f32", row)

    def test_channels(self):
        _, said = say("kvquant", at("large.h5"), "--channels", "-s", "f16")
        self.assertIn(CLIPPED, said)

    def test_an_ordinary_model(self):
        for args in runs("m", "f16", "absmax:b8g16"):
            rows, said = say(*args)
            self.assertEqual({r["clipped"] for r in rows.values()}, {"0"})
            self.assertNotIn(CLIPPED, said)


class Nothing(unittest.TestCase):
    def test_said_everywhere(self):
        for args in runs("m", "kivi:b2g16r128", "gear", "zipcache", "f16"):
            with self.subTest(args[0] + " " + " ".join(args[5:])):
                said = say(*args)[1]
                self.assertEqual(said.count(NOTHING), 3, said)
                for scheme in "kivi:", "gear:", "zipcache:":
                    self.assertRegex(said, scheme + ".*" + NOTHING)

    def test_what_quantizes_says_nothing(self):
        for args in runs("m", "kivi:b2g8r8", "absmax:b4", "hack:b2p16", "f16"):
            self.assertNotIn(" quantizes ", say(*args)[1])
        self.assertNotIn(" quantizes ", say(
            "kvppl", "-m", at("m"), *on_text(
                "-p", "stream", "-s", "streamingllm:s2w20+absmax:b4"))[1])

    def test_one_side(self):
        """A block of keys never fills, while values are coded token by
        token."""
        said = say("kvppl", "-m", at("m"), *on_text("-s", "kivi:b2g128r0"))[1]
        self.assertRegex(said, "kivi:K-b2g128r0s0/.* quantizes no keys: ")
        said = say("kvppl", "-m", at("m"), *on_text(
            "-p", "stream", "-s", "K-absmax:b4/V-absmax:b4r64"))[1]
        self.assertRegex(said, "absmax:K-.* quantizes no values: ")

    def test_residual_that_the_protocol_takes(self):
        """Asked for as the scheme has it by itself, too."""
        dropped = "protocol all sets r and s to 0"
        for spec, is_said in (("kivi:b2g32r128", True), ("kivi:b2g32", False),
                              ("K-kivi:b2r128/V-kivi:b4", True),
                              ("K-kivi:b2r128/V-nf4", True),
                              ("kivi:b2g32r0", False), ("nf4:s0", False)):
            said = say("kvppl", "-m", at("m"), *on_text("-s", spec))[1]
            self.assertEqual(dropped in said, is_said, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
