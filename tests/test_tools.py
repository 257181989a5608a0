"""kvdump as its users run it, and the messages of all tools: outputs and
refusals; no partial file is left behind."""

import csv
import io
import os
import resource
import signal
import subprocess
import time
import unittest

import tiny_model
from run_tools import TOOLS, read, write

from tool_test import (CTX, DIM, HEADS, KV_HEADS, LAYERS, ToolTest,
                       not_ignored)


class Dump(ToolTest):
    def kvdump(self, *args):
        return ["kvdump", "-m", self.model, "-f", self.text, *args]

    def refuse(self, words, *args, **more):
        self.refused(words, *self.kvdump("-o", self.path("d.h5"), *args),
                     **more)

    def test_says_what_it_wrote_on_stderr_alone(self):
        out = self.path("d.h5")
        done = self.good(*self.kvdump("-c", 32, "-n", 3, "-o", out))
        self.assertEqual(done.stdout, "")
        self.assertIn("3 windows of 32 tokens, layers 0 to 1, f32", done.stderr)
        self.assertEqual(os.listdir(self.dir), ["d.h5"])
        done = self.good(*self.kvdump("-q", "-n", 1, "-o", out))
        self.assertEqual(done.stderr, "")

    def test_pooled_heads(self):
        out = self.path("d.h5")
        self.good(*self.kvdump("-n", 1, "--pool-heads", 2, "-o", out))
        rows = list(csv.DictReader(io.StringIO(self.good(
            "kvquant", "-s", "f32", out).stdout)))
        self.assertEqual({r["model"] for r in rows}, {"tiny+pool-heads=2"})
        ppl = list(csv.DictReader(io.StringIO(self.good(
            "kvppl", "-m", self.model, "-f", self.text, "-c", 32, "-n", 1,
            "--pool-heads", 2).stdout)))
        for column in "model", "model_hash":
            self.assertEqual(ppl[0][column], rows[0][column])
        os.remove(out)
        self.refuse("--pool-heads 3 does not divide the model's 2 KV heads",
                    "--pool-heads", 3)
        self.refuse("--pool-heads goes into a dump, --about makes none",
                    "--pool-heads", 2, "--about")

    def test_h5py_reads_it(self):
        try:
            import h5py
            import numpy
        except ImportError:
            self.skipTest("no h5py")
        out = self.path("d.h5")
        for dtype, numpy_dtype, tolerance in (("f32", "float32", 0),
                                              ("f16", "float16", 2**-11),
                                              ("bf16", "float32", 2**-8)):
            self.good(*self.kvdump("-n", 16, "--dtype", dtype, "-o", out))
            with h5py.File(out) as f, h5py.File(self.dump) as ref:
                for layer in range(LAYERS):
                    for t, heads in (("q", HEADS), ("k", KV_HEADS),
                                     ("v", KV_HEADS), ("k_pre", KV_HEADS)):
                        x = f[f"layer_{layer:03}/{t}"]
                        y = ref[x.name][:]
                        self.assertEqual(x.shape, (16, CTX, heads, DIM))
                        self.assertEqual(x.dtype, numpy_dtype)
                        far = numpy.abs(x[:].astype("f8") - y)
                        bound = tolerance * numpy.abs(y) + (tolerance > 0) * 1e-7
                        self.assertTrue((far <= bound).all())
                    gram = f[f"layer_{layer:03}/wo_gram"][:]
                    self.assertEqual(gram.shape, (KV_HEADS, DIM, DIM))
                ids = "".join(f"{i}\n" for i in f["tokens"][:].ravel())
                self.assertEqual(f.attrs["model"].decode(), "tiny")
                self.assertEqual(f.attrs["text"].decode(), "some.txt")
                self.assertEqual(list(f["positions"][3]), list(range(CTX)))
        listed = self.good(*self.kvdump("--tokens")).stdout
        self.assertTrue(listed.startswith(ids))
        self.rotation_is_right(numpy, h5py)

    def rotation_is_right(self, numpy, h5py):
        with h5py.File(self.dump) as f:
            k, pre = f["layer_001/k"][2], f["layer_001/k_pre"][2]
            angle = f["positions"][2][:, None] * f["inv_freq"][:].astype("f8")
        c, s = numpy.cos(angle)[:, None], numpy.sin(angle)[:, None]
        a, b = pre[..., :DIM // 2], pre[..., DIM // 2:]
        turned = numpy.concatenate([a * c - b * s, b * c + a * s], -1)
        self.assertLess(numpy.abs(turned - k).max(), 1e-5)

    def test_threads_change_no_byte(self):
        for n in (1, 2, 3):
            self.good(*self.kvdump("-t", n, "-n", 5, "-o", self.path(f"{n}")))
        self.assertEqual(read(self.path("1")), read(self.path("2")))
        self.assertEqual(read(self.path("1")), read(self.path("3")))

    def test_groups_of_windows_change_no_value(self):
        """A calibration depends on every value of a dump."""
        calibs = []
        for memory in ("1K", "64M"):
            dump, calib = self.path("d.h5"), self.path("c.h5")
            self.good(*self.kvdump("--memory", memory, "-n", 7, "-o", dump))
            self.good("kvcalib", "-s", "pq:d4b4", dump, "-o", calib)
            calibs.append(read(calib))
        self.assertEqual(*calibs)

    def test_what_was_not_asked_for_is_left_out(self):
        out = self.path("d.h5")
        self.good(*self.kvdump("-n", 2, "--layers", 1, "--what", "k,q",
                               "--rope", "post", "-o", out))
        self.assertLess(os.path.getsize(out),
                        2 * CTX * (HEADS + KV_HEADS) * DIM * 4 + 20000)
        self.refused("d.h5 has no v", "kvcalib", "-s", "pq", out, "-o",
                     self.path("c.h5"))

    def test_fisher_changes_no_byte_by_threads_or_level(self):
        ways = (["-t", 1], ["-t", 2], ["-t", 3, "--level", "c"])
        for i, way in enumerate(ways):
            self.good(*self.kvdump(*way, "-n", 3, "--fisher", "-o",
                                   self.path(f"{i}")))
        for i in range(1, len(ways)):
            self.assertEqual(read(self.path("0")), read(self.path(f"{i}")))

    def test_fisher(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        out, small = self.path("d.h5"), self.path("s.h5")
        self.good(*self.kvdump("-n", 5, "--fisher", "--dtype", "f16", "-o",
                               out))
        self.good(*self.kvdump("-n", 5, "--fisher", "--layers", 1, "--what",
                               "v", "--memory", "1K", "-o", small))
        with h5py.File(out) as f, h5py.File(self.dump) as ref:
            for layer in range(LAYERS):
                q = f[f"layer_{layer:03}/q"]
                self.assertTrue((q[:] == ref[q.name][:5].astype("f2")).all())
                for side in ("k_gradient", "v_gradient"):
                    x = f[f"layer_{layer:03}/{side}"]
                    self.assertEqual(x.shape, (5, CTX, KV_HEADS, DIM))
                    self.assertEqual(x.dtype, "float32")
                    self.assertTrue((x[:, -1] == 0).all())
                    self.assertGreater((x[:, :-1] > 0).mean(), 0.2)
                    self.assertGreater((x[:, :-1] < 0).mean(), 0.2)
            v = f["layer_001/v_gradient"][:]
        with h5py.File(small) as f:
            self.assertEqual(sorted(f), ["inv_freq", "layer_001", "positions",
                                         "tokens"])
            self.assertEqual(sorted(f["layer_001"]), ["v", "v_gradient",
                                                      "wo_gram"])
            self.assertTrue((f["layer_001/v_gradient"][:] == v).all())

    def test_fisher_of_the_layers_that_are_wanted(self):
        try:
            import h5py
        except ImportError:
            self.skipTest("no h5py")
        self.good(*self.kvdump("-n", 2, "--fisher", "--layers", "0-0", "-o",
                               self.path("low")))
        self.good(*self.kvdump("-n", 2, "--fisher", "-o", self.path("all")))
        with h5py.File(self.path("low")) as f, \
                h5py.File(self.path("all")) as g:
            self.assertNotIn("layer_001", f)
            for x in f["layer_000"].values():
                self.assertTrue((x[:] == g[x.name][:]).all())

    def test_fisher_of_what(self):
        self.refuse("--fisher: --what q has neither k nor v", "--fisher",
                    "--what", "q")
        self.refuse("--fisher: a window of 1 token has no next token",
                    "--fisher", "--ctx", 1)
        self.refuse("--fisher goes into a dump, --tokens makes none",
                    "--fisher", "--tokens")
        self.refuse("--fisher goes into a dump, --about makes none",
                    "--fisher", "--about")

    def test_tokens(self):
        text = write(self.path("t.txt"), b"the \xff<|endoftext|>")
        done = self.good("kvdump", "-m", self.model, "-f", text, "--tokens")
        ids = [int(i) for i in done.stdout.split()]
        vocab = tiny_model.vocabulary()
        self.assertEqual(ids[:2], [vocab["the"], vocab["Ġ"]])
        self.assertNotIn(tiny_model.VOCAB - 1, ids)  # text like any other
        self.assertIn("t.txt: not UTF-8 at byte 4", done.stderr)
        self.good("kvdump", "-m", self.model, "-f", text, "--tokens", "-o",
                  self.path("ids"))
        self.assertEqual(read(self.path("ids")).decode(), done.stdout)

        bos = tiny_model.make(self.path("bos"), bos=True)
        done = self.good("kvdump", "-m", bos, "-f", text, "--tokens")
        self.assertEqual([int(i) for i in done.stdout.split()],
                         [tiny_model.VOCAB - 1] + ids)

    def test_about(self):
        done = self.good("kvdump", "-m", self.model, "--about", "-c", 48,
                         "--batch", 3)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        per_token = 2 * 2 * LAYERS * KV_HEADS * DIM
        weights = os.path.getsize(os.path.join(self.model,
                                               "model.safetensors"))
        self.assertEqual([r["batch"] for r in rows], ["1", "3"])
        self.refused("--batch goes with --about",
                     *self.kvdump("--batch", 3, "-o", self.path("d.h5")))
        self.refused("--batch 0: expected at least 1 sequence",
                     *self.kvdump("--about", "--batch", 0))
        self.assertEqual(int(rows[0]["kv_bytes_per_token"]), per_token)
        self.assertEqual(int(rows[1]["kv_bytes"]), 3 * 48 * per_token)
        self.assertLess(int(rows[0]["weight_bytes"]), weights)
        self.assertGreater(int(rows[0]["weight_bytes"]), weights - 4000)

    def test_longer_than_trained(self):
        done = self.good(*self.kvdump("-c", 65, "-n", 1, "-o",
                                      self.path("65.h5")))
        self.assertEqual(done.stderr.count(
            "tiny was trained for windows of 64 tokens, not 65"), 1)

    def test_bad_options(self):
        out = self.path("d.h5")
        for words, args in (
                ("--layers 0-2: the model has layers 0 to 1",
                 ["--layers", "0-2"]),
                ("--layers 1-0: the first is behind", ["--layers", "1-0"]),
                ("--layers x: expected", ["--layers", "x"]),
                ("--what q,w: 'w' is not one of q, k, v", ["--what", "q,w"]),
                ("--rope '", ["--rope", ""]),
                ("--dtype f8: expected", ["--dtype", "f8"]),
                ("--device cuda:99: ", ["--device", "cuda:99"]),
                ("--device tpu: expected", ["--device", "tpu"]),
                ("--device cuda:1abc: expected", ["--device", "cuda:1abc"]),
                ("--device cuda:-1: expected", ["--device", "cuda:-1"]),
                ("--device cuda:: expected", ["--device", "cuda:"]),
                ("--level sse", ["--level", "sse"]),
                ("--format xml: expected", ["--format", "xml"]),
                ("--memory 1X: expected a size", ["--memory", "1X"]),
                ("--threads 5000: expected", ["-t", 5000]),
                ("--bogus is not an option", ["--bogus"]),
                ("-Z is not an option", ["-Z"]),
                ("-Z is not an option", ["-qZn"]),
                ("--fisher=3 is not an option", ["--fisher=3"]),
                ("takes no operands, but found 'extra'", ["extra"])):
            with self.subTest(words):
                if words == "--rope '":
                    words = "--rope : '' is not"
                self.refuse(words, *args)
        self.refused("-m MODEL", "kvdump", "-f", self.text, "-o", out)
        self.refused("-f TEXT", "kvdump", "-m", self.model, "-o", out)
        self.refused("-o dump.h5", *self.kvdump())

    def test_bad_texts(self):
        short = write(self.path("short.txt"), b"abc")
        empty = write(self.path("empty.txt"), b"")
        out = ["-o", self.path("d.h5")]
        few = len(self.good(*self.kvdump("--tokens")).stdout.split()) // CTX
        self.refuse(f"some.txt has {few} windows of 64 tokens, 9999 were asked",
                    "-n", 9999)
        for text, words in (
                (short, "short.txt has 3 tokens, less than one window of 64"),
                (empty, "empty.txt is empty"),
                (self.path("no.txt"), "no.txt: No such file"),
                (self.dir, "Is a directory")):
            self.refused(words, "kvdump", "-m", self.model, "-f", text, *out)
        kept = write(self.path("kept.txt"), b"abc" * 99)
        self.refused("would replace the input", "kvdump", "-m", self.model,
                     "-f", kept, "-o", kept)

    def test_bad_models(self):
        small = tiny_model.make(self.path("small"), vocab=100)
        out = ["-f", self.text, "-o", self.path("d.h5")]
        self.refused("past the model's vocabulary of 100", "kvdump", "-m",
                     small, *out)
        self.refused("no-model", "kvdump", "-m", self.path("no-model"), *out)

    def test_values_that_do_not_fit(self):
        def large(name, x):
            if name == "model.layers.1.self_attn.k_proj.weight":
                for i in range(len(x)):
                    x[i] *= 1e6

        def overflow(name, x):
            if name == "model.layers.0.self_attn.v_proj.weight":
                for i in range(len(x)):
                    x[i] = 3e38

        huge = tiny_model.make(self.path("huge"), edit=large)
        sick = tiny_model.make(self.path("sick"), edit=overflow)
        out = ["-f", self.text, "-o", self.path("d.h5")]
        self.refused("layer 1, k, token ", "kvdump", "-m", huge, "--dtype",
                     "f16", *out)
        self.refused("does not fit in f16 (try --dtype f32)", "kvdump", "-m",
                     huge, "--dtype", "f16", *out)
        self.refused("layer 0, v, token 0, head 0, channel 0: ", "kvdump",
                     "-m", sick, *out)
        self.good("kvdump", "-m", huge, *out)

    def test_full_disk(self):
        size = os.path.getsize(self.dump)
        for room in (1000, size // 2, size - 100):
            self.refuse("File too large", "-n", 16, preexec=lambda: (
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))))
        with open("/dev/full", "w") as full:
            self.refused("cannot write the results to standard output",
                         *self.kvdump("--tokens"), stdout=full)
            self.refused("standard output", *self.kvdump("--about"),
                         stdout=full)

    def test_unwritable_places(self):
        self.refused("it is a folder", *self.kvdump("-o", self.dir))
        self.refused("No such file", *self.kvdump(
            "-o", self.path("no/folder/d.h5")))
        self.refused("not a regular file", *self.kvdump("-o", "/dev/null"))
        under = write(self.path("file"), b"")  # refused even to root
        self.refused("Not a directory", *self.kvdump("-o", under + "/d.h5"))

    def test_unwritable_folder(self):
        if not os.geteuid():
            self.skipTest("root may write everywhere")
        os.chmod(self.dir, 0o500)
        self.refuse("Permission denied")
        os.chmod(self.dir, 0o700)

    def test_interrupted(self):
        text = write(self.path("long.txt"), tiny_model.text(60000).encode())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            running = subprocess.Popen(
                [os.path.join(TOOLS, "kvdump"), "-m", self.model, "-f", text,
                 "--memory", "64K", "-o", self.path("d.h5")],
                stderr=subprocess.PIPE, text=True, preexec_fn=not_ignored)
            while running.poll() is None and len(os.listdir(self.dir)) < 2:
                time.sleep(0.005)
            running.send_signal(number)
            _, words = running.communicate(timeout=240)
            self.assertEqual(running.returncode, 2, words)
            self.assertEqual(words,
                             "kvdump: interrupted\n")
            self.assertEqual(os.listdir(self.dir), ["long.txt"])

    def test_no_signal_on_a_computing_thread(self):
        """Matrix products may keep their stack pointer amid other data."""
        text = write(self.path("long.txt"), tiny_model.text(60000).encode())
        running = subprocess.Popen(
            [os.path.join(TOOLS, "kvdump"), "-m", self.model, "-f", text,
             "--memory", "1K", "-o", self.path("d.h5")],
            stderr=subprocess.DEVNULL, preexec_fn=not_ignored)
        while running.poll() is None and len(os.listdir(self.dir)) < 2:
            time.sleep(0.005)
        status = read("/proc/%d/status" % running.pid).decode()
        running.send_signal(signal.SIGINT)
        self.assertEqual(running.wait(timeout=240), 2)
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.assertTrue(blocked >> (number - 1) & 1, number)


class Every(ToolTest):
    def test_blocks_of_the_hadamard_transform_are_said(self):
        """A head of 24 is turned in blocks of 8: every tool says so, once."""
        model = tiny_model.make(self.path("odd"), head_dim=24)
        dump, calib = self.path("odd.h5"), self.path("odd-calib.h5")
        on_text = ["-m", model, "-f", self.text, "-n", 2]
        turned = ["-s", "vecinfer:d4b2,H", "-s", "vecinfer:d4b3,H",
                  "-s", "quarot:g24", "-s", "rotatekv:g24h2"]
        self.good("kvdump", *on_text, "-o", dump)
        runs = [["kvcalib", *turned, dump, "-o", calib],
                ["kvquant", *turned, "-C", calib, "--allow-leakage", dump],
                ["kvppl", *on_text, *turned, "-C", calib, "--allow-leakage"],
                ["kvattn", *turned, "--shape", "1,4,2,24,64"]]
        said = "%d values are no power of two: their Hadamard transform is " \
               "3 blocks of %d"
        for run_ in runs:
            with self.subTest(run_[0]):
                shown = self.good(*run_).stderr
                self.assertEqual(shown.count(said % (24, 8)), 1)
                self.assertEqual(shown.count(said % (48, 16)), 1)
        for spec in "quarot", "turboquant,hadamard":
            done = self.good("kvquant", "-s", spec, dump)
            self.assertEqual(done.stderr.count(said % (24, 8)), 1)
        done = self.good("kvquant", "-s", "kivi", "-s", "turboquant", dump)
        self.assertNotIn("Hadamard", done.stderr)

    def test_codes_of_layers_upon_layers(self):
        """Tools that read a single layer refuse it."""
        for pred in "pred=2", "pair":
            self.refused("decodes layers from those below", "kvattn", "-s",
                         "klt," + pred, "--shape", "1,4,2,16,64")
        self.refused("s is one for K and V", "kvppl", "-m", self.model, "-f",
                     self.text, "-s", "klt:K-s1/V-s2,metric=fisher,pred=2",
                     "--keep-window")

    def test_help_and_list(self):
        for tool in ("kvdump", "kvcalib"):
            shown = self.good(tool, "--help").stdout
            for option in ("--threads", "--device", "--level", "--seed",
                           "--memory", "--output", "--format", "--list",
                           "--version", "--verbose", "--quiet"):
                self.assertIn(option, shown)
            lines = self.good(tool, "--list").stdout.split("\n")
            policies = [line.split()[0] for line in lines
                        if line.endswith("+SPEC")]
            names = [line.split()[0] for line in lines
                     if line and not line.endswith("SPEC")]
            self.assertIn("kivi", names)
            self.assertIn("h2o", policies)
            self.assertEqual(len(set(names)), len(names))
            specs = {len(line) - len(line.split()[-1]) for line in lines
                     if line}
            self.assertEqual(len(specs), 1, "columns out of line")
            shown = self.good(tool, "-v", "--list").stdout
            lines = shown[:shown.index(policies[0])].split("\n")
            words = [line.split()[0] for line in lines if line]
            for letter in "r", "s":
                self.assertEqual(words.count(letter), len(names))
            self.assertIn("kvtools", self.good(tool, "--version").stdout)


if __name__ == "__main__":
    unittest.main(verbosity=0)
