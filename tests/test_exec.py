"""exec: a scheme in another process (docs/exec.md), its faults, and who may
name it."""
import csv
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import run_server
import tiny_model
from run_tools import TOOLS, must, run, write

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = shlex.quote(sys.executable)
HEADS, DIM, CTX, WINDOWS = 2, 16, 64, 2


def setUpModule():
    global folder, codec
    folder = run_server.folder = tempfile.mkdtemp(prefix="kvtools-")
    # short names: a command has 200 characters
    for name in "exec_codec.py", "exec_fault.py":
        os.symlink(os.path.join(HERE, name), at(name))
    codec = f"{PYTHON} {at('exec_codec.py')}"
    tiny_model.make(at("m"), seed=1)
    for text, seed in ("eval", 1), ("calib", 2):
        write(at(text + ".txt"), tiny_model.text(800, seed).encode())
        must("kvdump", "-m", at("m"), "-f", at(text + ".txt"), "-c", str(CTX),
             "-n", str(WINDOWS), "-o", at(text + ".h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def ours():
    """Processes whose command line contains the folder's name."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if folder.encode() in f.read() and int(pid) != os.getpid():
                    found.append(pid)
        except OSError:
            pass
    return found


class Case(unittest.TestCase):
    def refused(self, words, tool, *args):
        """Exit code 2, nothing on stdout, one sentence on stderr, and no
        process left."""
        done = run(tool, "-q", *args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(done.stdout)
        self.assertTrue(done.stderr.startswith(tool + ": "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for one in [words] if isinstance(words, str) else words:
            self.assertIn(one, done.stderr)
        for _ in range(100):  # killed, and not yet gone
            if not ours():
                break
            time.sleep(0.05)
        self.assertEqual(ours(), [])


class Rows(Case):
    def test_bits_and_sweeps(self):
        table = rows(must("kvquant", "-t", "1", "-s", f"exec:b{{2,4}},note=a,cmd={codec}",
                          at("eval.h5")))
        whole = [r for r in table if r["layer"] == "all" and r["side"] == "KV"]
        base, two, four = whole
        self.assertEqual(two["spec"], f"exec:b2r0s0,note=a,cmd={codec}")
        self.assertEqual([r["params.b"] for r in whole], ["", "2", "4"])
        self.assertEqual([r["params.note"] for r in whole], ["", "a", "a"])
        self.assertEqual({r["scheme"] for r in whole[1:]}, {"exec"})
        for row in two, four: # a byte a value, two halves a head
            self.assertEqual(float(row["bits"]), 8 + 32 / DIM)
            self.assertEqual(row["bits_declared"], "")
        keys = [float(r["mse"]) for r in table
                if r["layer"] == "all" and r["side"] == "K"]
        self.assertLess(keys[2], keys[1] / 8)
        self.assertLess(0, keys[2])

    def test_every_protocol(self):
        specs = (f"exec:b4,cmd={codec}", f"exec:b4n4s2r8,cmd={codec}",
                 f"h2o:b0.5+exec:b4,cmd={codec}",
                 f"K-exec:b4,cmd={codec}/V-absmax:b8",
                 f"K-exec:b4,cmd={codec}/V-exec:b2n8,cmd={codec}")
        seen = {}
        for protocol in "all", "stream", "prefill:16":
            argv = [word for spec in specs for word in ("-s", spec)
                    if protocol != "all" or not spec.startswith("h2o")]
            table = rows(must(
                "kvppl", *argv, "-p", protocol, "-m", at("m"), "-f",
                at("eval.txt"), "-c", str(CTX // 2), "-n", "1", "-t", "1",
                "--columns", "spec,ppl,bits"))
            self.assertEqual(len(table), 1 + len(argv) / 2, table)
            for row in table[1:]:
                self.assertNotEqual(row["ppl"], table[0]["ppl"])
            seen[protocol] = table
        self.assertEqual(seen["all"][1]["ppl"], seen["stream"][1]["ppl"])

    def test_threads(self):
        """One process a thread, and the same rows."""
        one, four = (
            must("kvquant", "-s", f"exec:b3,cmd={codec}", "-t", t, "--columns",
                 "spec,side,layer,bits,mse", at("eval.h5")) for t in "14")
        self.assertEqual(one, four)

    def test_trained(self):
        spec = f"exec:b4,trains,cmd={codec}"
        self.refused("needs a calibration", "kvquant", "-s", spec,
                     at("eval.h5"))
        must("kvcalib", "-s", spec, at("calib.h5"), "-o", at("c.h5"))
        table = rows(must("kvquant", "-t", "1", "-s", spec, "-C", at("c.h5"),
                          at("eval.h5")))
        self.assertEqual(table[-1]["shared_bytes"],
                         str(2 * 2 * 4 * 2)) # layers, sides, floats of 4
        self.refused("has no tables for exec:b5", "kvquant", "-C", at("c.h5"),
                     "-s", f"exec:b5,trains,cmd={codec}", at("eval.h5"))
        done = run("kvcalib", "-s", f"exec:b4,cmd={codec}", at("calib.h5"),
                   "-o", at("none.h5"))
        self.assertIn("asks for no training", done.stderr)

    def test_varies(self):
        fixed, varies = (
            rows(must("kvquant", "-t", "1", "-s",
                      f"exec:b1n4{word},cmd={codec}",
                      at("eval.h5")))[-2] for word in ("", ",varies"))
        self.assertLess(0, float(fixed["mse"]))
        self.assertEqual(fixed["mse"], varies["mse"])
        self.assertNotEqual(fixed["bits"], varies["bits"])

    def test_words_are_passed_on(self):
        done = run("kvquant", "-t", "1", "-s", f"exec:b2,no-x,y=1.5,cmd={codec}",
                   at("eval.h5"))
        self.assertIn("open K {'b': 2.0, 'x': False, 'y': 1.5} on stderr",
                      done.stderr)

    def test_command_as_it_stands(self):
        """Quotes, commas, braces, slashes and a semicolon."""
        spec = f"exec:b2,cmd=test 'a,{{b}}' != \"c+d\" && {codec}; true"
        table = rows(must("kvquant", "-t", "1", "-s", spec, at("eval.h5")))
        self.assertTrue(table[-1]["spec"].endswith(spec[len("exec:b2"):]))
        both = f"K-exec:b2,cmd={codec}/V-absmax:b{{2,4}}"
        table = rows(must("kvquant", "-t", "1", "-s", both, at("eval.h5")))
        self.assertEqual(len({r["spec"] for r in table}), 3)

    def test_attention(self):
        row = rows(must("kvattn", "-s", f"exec:b4,cmd={codec}", "-t", "1",
                        "--shape", "1,2,1,16,33", "--reps", "1",
                        "--warmup", "0"))[-1]
        self.assertEqual(row["path"], "generic")


class Check(Case):
    def test_holds(self):
        table = rows(must("kvquant", "--check", "-s", "kivi:b2g32", "-s",
                          f"exec:b4,cmd={codec}", "-s",
                          f"exec:b4n4,trains,cmd={codec}", "-s",
                          f"exec:b4n9,varies,cmd={codec}", at("eval.h5")))
        self.assertEqual(len(table), 4 * 10)
        self.assertEqual({r["holds"] for r in table}, {"yes"}, table)
        table = rows(must("kvquant", "--check", "-s", "kivi:b2g32"))
        self.assertEqual(len(table), 10)

    def test_broken(self):
        done = run("kvquant", "-q", "--check", "-s",
                   f"exec:b1,law=broken,cmd={codec}", at("eval.h5"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertLessEqual({"repeated", "apart"},
                             {r["check"] for r in rows(done.stdout)
                              if r["holds"] == "no"})


class Declared(Case):
    def test_row_says_so(self):
        write(at("simulated.py"), b"""
import sys
sys.path.insert(0, %r)
from kvtools_codec import Simulated, run
class Half(Simulated):
    bits = 2.25
    def quantize(self, x):
        return x / 2
run(Half)
""" % os.path.join(HERE, "..", "python"))
        spec = f"exec:cmd={PYTHON} {at('simulated.py')}"
        for more in [], ["--keep-window"]:
            row = rows(must("kvquant", "-t", "1", "-s", spec, *more, at("eval.h5")))[-2]
            self.assertEqual(row["bits_declared"], "yes")
            self.assertEqual(float(row["bits"]), 2.25)
            self.assertAlmostEqual(float(row["rel_err"]), 0.5, 3)
        row = rows(must("kvquant", "-t", "1", "-s", f"h2o:b0.5+{spec}",
                        at("eval.h5")))[-1]
        self.assertEqual(row["bits_declared"], "yes")


class Faults(Case):
    def fault(self, words, *args, spec=""):
        command = f"{PYTHON} {at('exec_fault.py')} {' '.join(args)}"
        self.refused(words, "kvquant", "-s", f"exec{spec},cmd={command}",
                     at("eval.h5"))

    def test_no_fault(self):
        must("kvquant", "-t", "1", "-s",
             f"exec,cmd={PYTHON} {at('exec_fault.py')} none never",
             at("eval.h5"))

    def test_death(self):
        for when in "hello", "open", "encode", "decode":
            self.fault([f"layer 0, K, {when}: it ended with exit code 3; the "
                        "last line of its stderr: the last"],
                       "die", when, "'the last'")
        self.fault("its stderr is empty", "die", "open")
        self.fault("ended with exit code 3", "orphan", "encode")

    def test_death_in_training(self):
        command = f"{PYTHON} {at('exec_fault.py')} die train oops"
        self.refused("K, train: it ended with exit code 3; the last line of "
                     "its stderr: oops", "kvcalib", "-s",
                     f"exec,cmd={command}", at("calib.h5"), "-o", at("no.h5"))
        self.assertFalse(os.path.exists(at("no.h5")))

    def test_no_such_command(self):
        self.refused(["ended with exit code 127", "kv-none: "], "kvquant",
                     "-s", "exec:b2,cmd=kv-none --fast", at("eval.h5"))
        self.refused("ended with exit code 0", "kvquant", "-s",
                     "exec:b2,cmd=true", at("eval.h5"))

    def test_silence(self):
        start = time.monotonic()
        self.refused("hello: it was silent for 1 s; the last line of its "
                     "stderr: zzz", "kvquant", "-s", "exec,timeout=1,cmd="
                     f"echo zzz >&2; sleep 1000; : {folder}", at("eval.h5"))
        self.fault("encode: it was silent for 2 s", "sleep", "encode",
                   spec=",timeout=2")
        self.assertLess(time.monotonic() - start, 30)

    def test_words_are_no_silence(self):
        must("kvquant", "-t", "1", "-s", f"exec,timeout=1,cmd={PYTHON} "
             f"{at('exec_fault.py')} noisy hello", at("eval.h5"))

    def test_sizes(self):
        self.fault("encode: it answers", "size", "encode")
        self.fault("decode: it answers", "size", "decode")
        self.fault("expected at most", "long", "encode")
        self.fault("expected at most", "long", "decode")

    def test_not_finite(self):
        self.fault("decode: it answers a NaN: token 0 of the message, head 0, "
                   "channel 0", "nan", "decode")

    def test_no_protocol(self):
        self.fault(["its answer begins with 'loading the mod", "stdout"],
                   "garbage", "hello")
        self.fault("its answer begins with 'loading", "garbage", "encode")
        self.fault("it greets with 'codec 2.'", "version", "hello")
        self.refused("which is no message", "kvquant", "-s",
                     "exec:b2,cmd=yes", at("eval.h5"))
        self.refused("it greets with 'kvtools 1.'", "kvquant", "-s",
                     "exec:b2,cmd=cat", at("eval.h5"))

    def test_its_own_sentence(self):
        for when in "open", "encode", "decode":
            self.fault(f"{when}: a sentence of its own", "error", when)
        self.refused("KeyError: 'b'", "kvquant", "-s",
                     f"exec:c2,cmd={codec}", at("eval.h5"))

    def test_nothing_half_written(self):
        command = f"{PYTHON} {at('exec_fault.py')} nan decode"
        self.refused("a NaN", "kvquant", "-s", f"exec,cmd={command}", "-o",
                     at("rows.csv"), at("eval.h5"))
        self.assertFalse([f for f in os.listdir(folder) if "rows" in f])


class Ends(Case):
    """No process is left when a signal ends the tool, or a server ends."""

    def test_signal(self):
        tool = subprocess.Popen(
            [os.path.join(TOOLS, "kvquant"), "-s", "exec,timeout=0,cmd="
             f"{PYTHON} {at('exec_fault.py')} sleep encode", at("eval.h5")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while len(ours()) < 2: # the tool itself is one
            time.sleep(0.02)
        tool.send_signal(signal.SIGTERM)
        words = tool.communicate(timeout=30)[1]
        if tool.returncode == 2: # between two requests
            self.assertIn(b"interrupted", words)
        else:
            self.assertEqual(tool.returncode, -signal.SIGTERM)
        end = time.monotonic() + 10 # killed, and nobody waited for them
        while ours() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(ours(), [])

    def test_server(self):
        """It serves the spec that it was started with, by its name."""
        spec = f"exec:b4,cmd={codec}"
        with run_server.Server("-t", "1", specs=["f16", spec]) as s:
            asked = {"prompt": "the", "max_tokens": 4, "temperature": 0}
            self.assertTrue(s.text(model="t," + spec, **asked))
            status, text, _ = s.ask(run_server.TEXT, {
                "model": f"t,exec:b2,cmd={codec}", **asked})
            self.assertEqual(status, 404)
            self.assertIn("served where -s gives it", text)
        self.assertEqual(ours(), [])


class Named(Case):
    """Only the command line names a command."""

    def test_spec(self):
        long = "x" * 201
        for spec, words in (
                ("exec", "expected a command"),
                ("exec:b2", "expected a command"),
                ("exec:b2,cmd=", "names no command"),
                (f"exec:b2,cmd={long}", "at most 200"),
                ("exec:b2,cmd=a\tb", "control character"),
                ("exec:K-b2/V-c2,cmd=true", "is missing for"),
                ("exec:b2b3,cmd=true", "'b' is given twice"),
                ("exec:b,cmd=true", "true"),
                ("exec:b2,x=a|b,cmd=true", "without '|'"),
                ("exec:b2,x=,cmd=true", "without '|'"),
                ("exec:b2,K-x=1,V-x=a,cmd=true", "a number and a text"),
                ("exec:b2,?=1,cmd=true", "is no name"),
                ("exec:" + "".join(f"{c}1" for c in "abcdefghijklm") +
                 ",cmd=true", "more than 12"),
                ("exec:b2,massive,cmd=cat", "greets with")):
            self.refused(words, "kvquant", "-s", spec, at("eval.h5"))

    def test_layer_file(self):
        write(at("layers.txt"), f"0-1 KV exec:b2,cmd={codec}\n".encode())
        self.refused("only -s on the command line may name it", "kvquant",
                     "-s", f"mixed,file={at('layers.txt')}", at("eval.h5"))
        must("kvquant", "-t", "1", "-s", f"exec:b4,cmd={codec}", "-s",
             f"mixed,file={at('layers.txt')}", at("eval.h5"))

    def test_calibration(self):
        """A spec in a calibration is only text."""
        mark = at("it-ran")
        spec = f"exec:b4,trains,cmd=touch {mark}; {codec}"
        must("kvcalib", "-s", spec, at("calib.h5"), "-o", at("c2.h5"))
        os.remove(mark)
        must("kvquant", "-t", "1", "-s", "kivi:b2g16", "-C", at("c2.h5"), at("eval.h5"))
        self.assertFalse(os.path.exists(mark))


if __name__ == "__main__":
    unittest.main()
