"""Unreasonable sizes are refused at once, omissions are reported, and no byte
of a name or a text harms a reader of the output."""
import csv
import io
import json
import os
import pty
import re
import resource
import shutil
import subprocess
import tempfile
import time
import unittest

import tiny_model
from run_tools import TOOLS, must, prompt, run

ODD = b"n\xff\x1b[31m|\"\r\n\xe2\x82.txt"  # a file name


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), layers=1)
    for name in "eval.txt", ODD:
        with open(at(name), "w") as f:
            f.write(tiny_model.text(400))
    must("kvdump", "-m", at("m"), "-f", at("eval.txt"), "-c", "64", "-n", "2",
         "-o", at("dump.h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    top = folder if isinstance(name, str) else os.fsencode(folder)
    return os.path.join(top, name)


def on_text(*more):
    return ["-m", at("m"), "-f", at("eval.txt"), "-c", "64", "-n", "1", *more]


def on_terminal(*args):
    """A terminal's view of both streams."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([os.path.join(TOOLS, args[0]), *args[1:]],
                          stdout=theirs, stderr=theirs) as p:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 1 << 16):
                shown += more
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    return p.returncode, shown


class Bounds(unittest.TestCase):
    def refused(self, words, *args, **more):
        done = run(*args, **more)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"\A%s: .*%s.*\n\Z" % (args[0], words))
        self.assertEqual(done.stdout, "")

    def test_a_sweep_without_end(self):
        """Before a model or a dump is even looked for."""
        endless = ["-s", "kivi:b2g{%s}" % ",".join(["32"] * 9999), "-s",
                   "kivi:b{2,4}"]
        for args in (["kvquant", "no.h5"], ["kvppl", "-m", "no", "-f", "no"],
                     ["kvattn", "--shape", "1,1,1,64,64"],
                     ["kvcalib", "no.h5", "-o", at("no-out.h5")],
                     ["kvcalib", "--allocate", "3", "no.h5", "-o",
                      at("no-out.h5")]):
            with self.subTest(args):
                self.refused("the specs expand to 10001 rows: at most 10000",
                             *args, *endless)
                self.refused("expand to more than 18446744073709551615 rows",
                             *args, "-s", "kivi" + "{1,2}" * 100)

    def rows(self, done, n, *words):
        self.assertEqual(done.returncode, 0, done.stderr)
        specs = [row["spec"] for row in csv.DictReader(io.StringIO(done.stdout))
                 if row.get("side", "KV") in ("", "KV")
                 and row.get("layer", "all") == "all"]
        self.assertEqual(len(specs), n, specs)
        self.assertEqual(done.stderr.count(": one row"), len(words))
        for word in words:
            self.assertIn(word, done.stderr)

    def test_specs_that_are_one(self):
        """Rows asked for are rows given and rows said to be others."""
        window = "(protocol %s sets r and s to 0; --keep-window keeps them)"
        specs = ["-s", "kivi:b2g16r{0,32}", "-s", "kivi:b2g16r0s4"]
        said = ["kivi:b2g16r%s is kivi:b2g16r0s0,axis=paper here " % rs + window
                for rs in ("32", "0s4")]
        self.rows(run("kvquant", *specs, at("dump.h5")), 2,
                  *[s % "all" for s in said])
        for protocol in "all", "llama.cpp":
            self.rows(run("kvppl", *on_text(*specs, "-p", protocol)), 2,
                      *[s % protocol for s in said])
        self.rows(run("kvquant", "--keep-window", *specs, at("dump.h5")), 4)
        self.rows(run("kvppl", *on_text(*specs, "-p", "stream:16")), 4)
        # the shape: a head has 16 values; the base line; the same again
        self.rows(run("kvquant", "-s", "absmax:b4g{16,64}", "-s", "f32", "-s",
                      "absmax:b4g16", "--keep-window", at("dump.h5")), 2,
                  "absmax:b4g64 is absmax:b4g16r0s0,axis=token,heads=one here, "
                  "as absmax:b4g16 is: one row",
                  "f32 is the base line, f32:r0s0: one row",
                  "absmax:b4g16 is asked for again: one row")
        self.assertIn("pq:d4b3s4 has the tables of pq:d4b3\n",
                      run("kvcalib", "-s", "pq:d4b3", "-s", "pq:d4b3s4",
                          at("dump.h5"), "-o", at("calib.h5")).stderr)

    def test_limits_of_memory(self):
        """With any limit of the address space the tool finishes, or ends with a
        sentence and exit code 2; no library crashes, hangs or ends the program
        itself.  Sanitizers need terabytes."""
        args = on_text("-q", "-s", "kivi:b2g16", "-o", at("limited.csv"))
        runs = (["kvppl", *args],
                ["kvdump", *on_text("-q", "-o", at("limited.h5"))],
                ["kvquant", "-q", "-s", "turboquant:b3", at("dump.h5")],
                ["kvcalib", "-q", "-s", "klt:b2,code=scalar,metric=none",
                 at("dump.h5"), "-o", at("limited-calib.h5")])

        def limited(args, mb, threads="2"):
            def limit():
                resource.setrlimit(resource.RLIMIT_AS, (mb << 20, mb << 20))

            return run(*args, preexec_fn=limit, timeout=60, env={
                **os.environ, "OMP_NUM_THREADS": threads})

        def least(tool):
            """The least megabytes in which it starts, and 4 more, since at the
            edge a library complains at its own start."""
            return next((mb + 4 for mb in range(40, 1000, 4) if limited(
                [tool, "--version"], mb).returncode == 0), None)

        if least("kvppl") is None:
            self.skipTest("not even --version runs in a gigabyte")
        for args in runs:
            codes, start = set(), least(args[0])
            for mb in [*range(start, start + 60, 3), start + 200, start + 2000]:
                with self.subTest(args[0], mb=mb):
                    done = limited(args, mb)
                    codes.add(done.returncode)
                    self.assertIn(done.returncode, (0, 2), done.stderr)
                    if done.returncode:
                        self.assertRegex(done.stderr,
                                         "\\A%s: .+\n\\Z" % args[0])
                    if "out of memory: " in done.stderr:
                        self.assertIn("(ulimit -v?)", done.stderr)
            self.assertEqual(codes, {0, 2})
        for threads, stack in ("100", "8M"), ("2", "100G"):
            done = run(*runs[0], env={**os.environ, "OMP_STACKSIZE": stack,
                                      "OMP_NUM_THREADS": threads},
                       preexec_fn=lambda: resource.setrlimit(
                           resource.RLIMIT_AS, (700 << 20, 700 << 20)))
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"only \d+ of %s threads can be "
                             r"started, with a stack of \d+ bytes" % threads)

        with open(at("large.txt"), "wb") as f:  # a hole
            f.truncate(400 << 20)
        for limit, name in (resource.RLIMIT_AS, "v"), (resource.RLIMIT_DATA,
                                                       "d"):
            done = run("kvdump", "-m", at("m"), "-f", at("large.txt"),
                       "--tokens", env={**os.environ, "OMP_NUM_THREADS": "2"},
                       preexec_fn=lambda: resource.setrlimit(
                           limit, (400 << 20, 400 << 20)))
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"\Akvdump: out of memory: \d+ x 1 "
                             r"bytes \(ulimit -%s\?\)\n\Z" % name)

    def test_threads_of_the_environment(self):
        """One number of at most 4096, as for -t, which comes before it."""
        args = ["kvppl", *on_text("-q", "--columns", "threads")]

        def under(more=(), **env):
            start = time.monotonic()
            done = run(*args, *more, env={**os.environ, **env})
            self.assertLess(time.monotonic() - start, 20)  # seconds, loaded
            return done

        for value, words in (
                ("4097", "is 4097: expected at most 4096"),
                ("99999999999", "is 99999999999: expected at most 4096"),
                ("9" * 30, "is %s: expected at most 4096" % ("9" * 30)),
                *((x, "is '%s': expected one number, 1 to 4096" % x) for x in (
                    "", "0", "-1", "+2", "1.5", "abc", "2x", "4,2"))):
            with self.subTest(value):
                done = under(OMP_NUM_THREADS=value)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(  # before it, libgomp may have its say
                    done.stderr.splitlines()[-1],
                    "kvppl: OMP_NUM_THREADS " + words)
        for value, more, n in (" 2 ", [], 2), ("4,2", ["-t", "3"], 3):
            done = under(more, OMP_NUM_THREADS=value)
            self.assertEqual(done.stdout, "threads\n%d\n" % n, done.stderr)
        done = under(["-t", "3"], OMP_THREAD_LIMIT="2")
        self.assertEqual((done.returncode, done.stderr), (
            2, "kvppl: 3 threads: OMP_THREAD_LIMIT is 2\n"))

    def test_small_stacks(self):
        """Stacks of the first thread, and of the others."""
        args = ["kvppl", *on_text("-q", "-t", "2")]

        def under(kb, **env):
            def limit():
                resource.setrlimit(resource.RLIMIT_STACK, (kb << 10, kb << 10))

            return run(*args, preexec_fn=limit, env={**os.environ, **env})

        for kb in 64, 1020:
            done = under(kb)
            self.assertEqual((done.returncode, done.stderr), (
                2, "kvppl: the stack has %d bytes (ulimit -s): expected at "
                "least 1048576\n" % (kb << 10)))
        for size, n in ("64K", 1 << 16), ("16", 1 << 14):
            done = under(1024, OMP_STACKSIZE=size)
            self.assertEqual((done.returncode, done.stderr), (
                2, "kvppl: a thread's stack has %d bytes (OMP_STACKSIZE): "
                "expected at least 1048576\n" % n))
        done = under(1024)
        if "Sanitizer" not in done.stderr:  # whose frames are larger
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_what_is_no_file(self):
        """A pipe as a model or a layer file is refused at once, never waited
        for."""
        model = at("special")
        os.mkfifo(at("fifo"))
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json",
                     "special_tokens_map.json", "added_tokens.json",
                     "generation_config.json", "chat_template.jinja",
                     "model.safetensors"):
            args = ["kvppl", "-q", "-m", model, "-f", at("eval.txt"), "-c", "16"]
            if name in ("generation_config.json", "chat_template.jinja"):
                args = ["kvgen", "-q", "-m", model, "-f",
                        prompt(at("p.jsonl"), "a"), "-n", "1", "-o", os.devnull]
            for target, words in (
                    (at("fifo"), "is not a regular file"),
                    ("/dev/zero", "is not a regular file"),
                    (folder, "is not a regular file"),
                    (name, "Too many levels of symbolic links"),
                    ("nowhere", "No such file or directory")):
                with self.subTest(name, target=target):
                    shutil.rmtree(model, ignore_errors=True)
                    shutil.copytree(at("m"), model)
                    path = os.path.join(model, name)
                    if os.path.exists(path):
                        os.remove(path)
                    os.symlink(target, path)
                    self.refused(name + ".*" + words, *args, timeout=60)
        for path in at("fifo"), "/dev/zero", folder:
            self.refused(path + " is not a regular file", "kvattn", "-q",
                         "-s", "mixed,file=" + path, "--shape", "1,1,1,64,64",
                         timeout=60)
        os.remove(at("fifo"))

    def test_lengths_of_inputs(self):
        """They are refused before memory is allocated for them."""
        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (900 << 20, 900 << 20))

        for name, most, args in (
                ("layers.long", 1 << 20, [
                    "kvattn", "-q", "-s", "mixed,file=" + at("layers.long"),
                    "--shape", "1,1,1,64,64"]),
                ("text.long", 1 << 30, ["kvdump", "-q", "-m", at("m"), "-f",
                                        at("text.long"), "--tokens"]),
                ("long-config/config.json", 128 << 20, [
                    "kvdump", "--about", "-m", at("long-config")])):
            os.makedirs(os.path.dirname(at(name)), exist_ok=True)
            with open(at(name), "w") as f:
                f.truncate(most + 1)
            self.refused("%s is too long: expected at most %d bytes" % (
                name, most), *args, preexec_fn=limit)
            os.remove(at(name))
        shutil.copytree(at("m"), at("long-tokenizer"))
        os.truncate(at("long-tokenizer/tokenizer.json"), 1 << 40)
        self.refused("tokenizer.json is too long", "kvdump", "-q", "-m",
                     at("long-tokenizer"), "-f", at("eval.txt"), "--tokens",
                     preexec_fn=limit, timeout=60)
        with open(at("layers.long"), "w") as f:
            f.write("0 KV f16 #" + "-" * ((1 << 20) - 11) + "\n")
        must("kvattn", "--reps", "1", "-s", "mixed,file=" + at("layers.long"),
             "--shape", "1,1,1,64,64")

    def test_texts_of_all_kinds(self):
        """Files, pipes and FIFOs are one text; devices are refused, and what
        is no text is not read to its end."""
        args = ["kvdump", "-q", "-m", at("m"), "--tokens", "-f"]
        want = run(*args, at("eval.txt")).stdout
        self.assertGreater(len(want), 100)
        with open(at("eval.txt")) as text:
            self.assertEqual(run(*args, "-", stdin=text).stdout, want)
        with subprocess.Popen(["cat", at("eval.txt")],
                              stdout=subprocess.PIPE) as cat:
            self.assertEqual(run(*args, "-", stdin=cat.stdout).stdout, want)
        os.mkfifo(at("text"))
        with subprocess.Popen(["cp", at("eval.txt"), at("text")]):
            self.assertEqual(run(*args, at("text")).stdout, want)
        os.remove(at("text"))
        for path in "/dev/zero", "/dev/null", "/dev/urandom":
            self.refused("cannot read %s: it is not a regular file, a pipe or a"
                         " terminal" % path, *args, path)
        self.refused("Is a directory", *args, folder)
        with subprocess.Popen(["cat", "/dev/zero"],
                              stdout=subprocess.PIPE) as cat:
            self.refused("standard input: byte 0 is zero", *args, "-",
                         stdin=cat.stdout)
            cat.stdout.close()

    def test_memory_follows_the_need(self):
        """--memory is a limit, and one window the least."""
        def peak(*args):
            done = subprocess.run(
                [os.path.join(TOOLS, args[0]), *args[1:]], capture_output=True,
                preexec_fn=lambda: resource.setrlimit(
                    resource.RLIMIT_AS, (2 << 30, 2 << 30)))
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout, done.stderr.decode()

        for args in (["kvppl", *on_text("-s", "f16", "--kl")],
                     ["kvdump", *on_text("-o", at("again.h5"))],
                     ["kvquant", "-s", "f16", at("dump.h5")]):
            with self.subTest(args[0]):
                _, words = peak(*args, "--memory", "900G")
                self.assertNotIn("--memory", words)
                _, words = peak(*args, "--memory", "1K")
                self.assertEqual(
                    len(re.findall(r"--memory 1K is less than a window takes, "
                                   r"[1-9]\d*[KM]:", words)), 1)

    def test_no_training_before_all_specs_are_known_to_train(self):
        """The first of them would say how many points a centroid has."""
        with open(at("layers.txt"), "w") as f:
            f.write("0 KV pq:d4b12\n")
        must("kvdump", "-m", at("m"), "-f", at("eval.txt"), "-c", "64", "-n",
             "2", "--what", "k,v", "-o", at("few.h5"))
        points = "the dump has [0-9]+ points for the 4096 centroids"
        for spec, dump, words in (
                ("evasion:d4b12", "dump.h5", points),
                ("mixed,file=" + at("layers.txt"), "dump.h5", points),
                ("klt,metric=attention,rope=post", "few.h5",
                 "few.h5 has no q"),
                ("klt", "dump.h5", "no k_gradient .kvdump --fisher writes it"),
                ("kvquant", "dump.h5", "dump.h5 has no")):
            with self.subTest(spec):
                self.refused(words, "kvcalib", "-s", "pq:d4b8", "-s", spec,
                             at(dump), "-o", at("none.h5"))
        # --allocate measures nothing either
        for inputs in [at("dump.h5")], on_text():
            self.refused("pq", "kvcalib", "--allocate", "4", "-s", "kivi:b2g16",
                         "-s", "pq:d4b8", *inputs, "-o", at("none.txt"))

    def test_small_words(self):
        for tool in ("kvattn", "kvcalib", "kvdump", "kvgen", "kvppl", "kvquant",
                     "kvsim"):
            for line in must(tool, "--help").split("\n"):
                self.assertLessEqual(len(line), 80, line)
            for flags in ["-q", "-v"], ["--verbose", "-q"]:
                self.refused("-q and -v contradict each other", tool, *flags)
        self.refused("more bytes than can be counted", "kvdump", "--about",
                     "-m", tiny_model.make(at("long"), ctx=1 << 20),
                     "--batch", "9" * 12)
        args = ["kvquant", "-s", "f16", at("dump.h5")]
        for words, more in ((1, ["--queries", "65"]), (0, ["--queries", "64"]),
                            (0, ["--queries", "3"])):
            self.assertEqual(run(*args, *more).stderr.count(
                "a window has 64 positions, all are taken"), words)

    def test_names_of_any_bytes(self):
        args = ["kvppl", "-q", "-m", at("m"), "-f", at(ODD), "-c", "64", "-n",
                "1", "--format"]

        def table(form):
            done = subprocess.run([os.path.join(TOOLS, args[0]), *args[1:],
                                   form], capture_output=True)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            return done.stdout.decode()  # fails where it is no UTF-8

        name = "n\ufffd\x1b[31m|\"\r\n\ufffd.txt"
        row, = table("jsonl").splitlines()
        self.assertEqual(json.loads(row)["text"], name)
        row, = csv.DictReader(io.StringIO(table("csv"), newline=""))
        self.assertEqual(row["text"], name)
        lines = table("md").split("\n")
        self.assertEqual(len(lines), 4)  # header, rule, row, end
        self.assertEqual(lines[2].replace("\\|", "").count("|"),
                         lines[0].count("|"))
        for form in "csv", "md", "jsonl":
            rc, shown = on_terminal(*args, form)
            self.assertEqual(rc, 0, shown)
            self.assertNotIn(b"\x1b", shown)
            self.assertIn("\\x1b[31m".encode() if form != "jsonl" else
                          b"\\u001b", shown)

    def test_formulas(self):
        """A text has a name that a spreadsheet would run, in two lines of
        --append."""
        with open(at("=1+1"), "w") as f:
            f.write(tiny_model.text(100))
        args = ["kvppl", "-q", "-m", at("m"), "-f", at("=1+1"), "-c", "64",
                "-n", "1"]
        for more, name in ([], "=1+1"), (["--safe-csv"], "'=1+1"):
            row, = csv.DictReader(io.StringIO(must(*args, *more)))
            self.assertEqual(row["text"], name)
            for _ in range(2):
                must(*args, "--append", "-o", at("safe.csv"), *more)
            with open(at("safe.csv"), newline="") as f:
                row, = csv.DictReader(f)
            self.assertEqual(row["text"], name)
            os.remove(at("safe.csv"))
        self.refused("--safe-csv goes with --format csv or tsv", *args,
                     "--safe-csv", "--format", "md")

    def test_sentences_show_control_characters(self):
        for args, words in (
                (["kvquant", "-s", "f16", "a\x1b[2J\n\x07é\udcff.h5"],
                 r"cannot open a\\x1b\[2J\\x0a\\x07é\\xff.h5"),
                (["kvquant", "-s", "kivi:\x1b[2J", at("dump.h5")],
                 r"kivi has no '\\x1b'"),
                (["kvquant", "--level", "\x1b[2J", "-s", "f16",
                  at("dump.h5")], r"\\x1b\[2J"),
                (["kvquant", "--\x1b[2J"], r"--\\x1b\[2J is not an option")):
            with self.subTest(args):
                self.refused(words, *args, errors="surrogateescape")
                rc, shown = on_terminal(*args)
                self.assertEqual(rc, 2)
                self.assertNotIn(b"\x1b[2J", shown)

    def test_a_text_on_a_terminal(self):
        """Random weights say anything; what they say is the file's."""
        text = "\x1b[31m\x07 a\n\tb \x9b31m \x7f"
        args = ["kvgen", "-q", "-m", at("m"), "-n", "40", "-f",
                prompt(at("esc.jsonl"), text), "-o", "/dev/stdout"]
        rc, shown = on_terminal(*args)
        self.assertEqual(rc, 0)
        self.assertNotIn(b"\x1b", shown)
        self.assertTrue(shown.isascii())
        self.assertEqual(json.loads(shown.splitlines()[0])["prompt"], text)


if __name__ == "__main__":
    unittest.main()
