"""The tools' outputs: never over what they read, whole or not at
all, through links and descriptors, whatever ends the run."""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest

import tiny_model
from run_tools import TOOLS, must, read, run, write

PROGRAMS = ["kvattn", "kvcalib", "kvdump", "kvgen", "kvppl", "kvquant",
            "kvsim"]
CTX = 64


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"))
    for name, words in ("some.txt", 800), ("long.txt", 60000):
        with open(at(name), "w") as f:
            f.write(tiny_model.text(words))
    must("kvdump", "-m", at("m"), "-f", at("some.txt"), "-n", 2, "-o",
         at("dump.h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def opened(pid):
    """The files that a running process has open; it may close one meanwhile."""
    found, fds = [], f"/proc/{pid}/fd"
    for n in os.listdir(fds):
        try:
            found.append(os.readlink(os.path.join(fds, n)))
        except FileNotFoundError:
            pass
    return found


class Outputs(unittest.TestCase):
    """An empty folder for each test."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=folder)

    def path(self, name):
        return os.path.join(self.dir, name)

    def refused(self, words, tool, *args, **more):
        done = run(tool, *args, **more)
        self.assertEqual(done.returncode, 2, (args, done.stderr))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words if isinstance(words, list) else [words]:
            self.assertIn(word, done.stderr)

    def quant(self, *args, **more):
        return run("kvquant", "-s", "kivi:b2", at("dump.h5"), *args, **more)


# ---- nothing that is read is replaced ---------------------------------------


def table(tool):
    """Files in --help: (option, note) that are read, and written."""
    shown = must(tool, "--help")
    found = {}
    for word in "Reads", "Writes":
        line = re.search(rf"^{word}: ((?:[^;\n]|\n  )*)", shown, re.M).group(1)
        found[word] = [re.match(r"(\S+)(?: \((.*)\))?$", item).groups()
                       for item in re.split(r",\s+", line)]
    return found["Reads"], found["Writes"], shown


# {the note of an option that reads a folder: a file in that folder}
FOLDERS = {"model files": "x.json", "from files": "x.npz"}


def reading(option, note, path):
    """The arguments that have a tool read this file."""
    if not option.startswith("-"):
        return [path]
    if note in FOLDERS:
        return [option, os.path.dirname(path)]
    if note and note.startswith("--"):
        return [option, path, note]
    if note:
        return [option, note.replace("FILE", path)]
    return [option, path]


def writing(option, note, path):
    if not note:
        return [option, path]
    return ["-o", path[:-len(note[4:])], option]  # beside FILE


def ways(path, top):
    """Other names of a file."""
    hard, soft = os.path.join(top, "hard.partial"), os.path.join(
        top, "soft.partial")
    os.link(path, hard)
    os.symlink(path, soft)
    parent, name = os.path.split(path)
    return [path, hard, soft,
            os.path.join(parent, "..", os.path.basename(parent), ".", name)]


class NeverOverInputs(Outputs):
    def test_every_option_that_names_a_file_says_what_it_does(self):
        for tool in PROGRAMS:
            reads, writes, shown = table(tool)
            known = {option for option, _ in reads + writes}
            for letter, name, arg in re.findall(
                    r"^  (?:-(\w),|   ) --(\S+) ([A-Z]+)\b", shown, re.M):
                if arg in ("FILE", "DIR", "TEXT", "MODEL", "SPEC"):
                    option = "-" + letter if letter else "--" + name
                    self.assertIn(option, known, tool)

    def test_every_input_of_every_tool(self):
        for tool in PROGRAMS:
            reads, writes, _ = table(tool)
            self.assertTrue(reads and writes)
            for i, (option, note) in enumerate(reads):
                top = self.path(f"{tool}{i}")
                os.makedirs(os.path.join(top, "in"))
                path = write(os.path.join(
                    top, "in", FOLDERS.get(note, "x.partial")), b"as it was")
                names = ways(path, top)
                before = sorted(os.listdir(top))
                for target in writes:
                    if target[0] == option:
                        continue
                    end = target[1][4:] if target[1] else ""
                    for name in filter(lambda s: s.endswith(end), names):
                        args = reading(option, note, path) + writing(
                            *target, name)
                        with self.subTest(tool=tool, args=args):
                            self.refused([f"the output {name} would replace "
                                          f"the input {path}"], tool, *args)
                            self.assertEqual(read(path), b"as it was")
                            self.assertEqual(sorted(os.listdir(top)), before)

    def test_every_file_of_a_model(self):
        for name in os.listdir(at("m")):
            with self.subTest(name):
                before = read(at("m/" + name))
                self.refused("would replace the input", "kvdump", "-m",
                             at("m"), "-f", at("some.txt"), "-o",
                             at("m/" + name))
                self.assertEqual(read(at("m/" + name)), before)

    def test_what_would_become_a_file_of_the_model(self):
        """Each name that is looked for there, absent; and others' names."""
        os.mkdir(self.path("m"))
        os.symlink("m", self.path("same"))
        os.symlink("m/linked.json", self.path("link.csv"))
        names = ["m/" + name for name in (
            "config.json", "model.safetensors", "model.safetensors.index.json",
            "tokenizer.json", "tokenizer_config.json", "added_tokens.json",
            "special_tokens_map.json", "adapter_config.json",
            "pytorch_model.bin", "tokenizer.model", "merges.txt", "vocab.txt",
            "chat_template.jinja")]
        for tool in PROGRAMS:
            reads, writes, _ = table(tool)
            if ("-m", "model files") not in reads:
                continue
            for option, note in writes:
                if note:  # beside FILE: its name ends as no model's does
                    continue
                for name in names + ["same/config.json", "link.csv"]:
                    self.refused(f"{self.path(name)} would become a file of "
                                 f"the model {self.path('m')}", tool, "-m",
                                 self.path("m"), option, self.path(name))
        self.assertEqual(os.listdir(self.path("m")), [])

    def test_a_model_where_the_work_is(self):
        """Files that are not the model's are written into its folder, twice."""
        shutil.copytree(at("m"), self.path("m"))
        here = {"cwd": self.path("m")}
        shutil.copy(at("some.txt"), self.path("m/t.txt"))
        base = ["-q", "-m", ".", "-f", "t.txt", "-n", "2"]
        ppl = ["kvppl", *base, "-s", "kivi:b{2,3}", "-p", "llama.cpp"]
        for argv in (
                [*ppl, "--resume", "--kl-divergence-base", "b.kld", "-o",
                 "r.csv"],
                [*ppl, "--format", "md", "-o", "r.md"],
                [*ppl, "--format", "jsonl", "-o", "r.jsonl"],
                ["kvdump", *base, "-o", "d.h5"],
                ["kvcalib", *base, "--allocate", "4", "-s", "kivi:b{2,3}",
                 "-o", "layers.txt"]):
            for _ in range(2):
                done = run(*argv, **here)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
        for _ in range(2):
            with open(self.path("m/out.csv"), "w") as f:
                done = run(*ppl, stdout=f, **here)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        write(self.path("m/r.csv.partial"), b"")  # a run that was stopped
        done = run(*ppl, "--resume", "-o", "r.csv", **here)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertFalse(os.path.exists(self.path("m/r.csv.partial")))
        with open(self.path("m/new.json"), "w") as f:
            self.refused("standard output would replace the input ./new.json",
                         *ppl, stdout=f, **here)
        with open(self.path("m/config.json")) as f:
            config = json.load(f)
        self.assertEqual(config["model_type"], "llama")

    def test_a_shard_of_any_name(self):
        """The names of shards are known when the output is opened."""
        shutil.copytree(at("m"), self.path("m"))
        os.rename(self.path("m/model.safetensors"), self.path("m/w.dat"))
        with open(at("m/model.safetensors"), "rb") as f:
            tensors = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        with open(self.path("m/model.safetensors.index.json"), "w") as f:
            json.dump({"weight_map": {t: "w.dat" for t in tensors}}, f)
        self.refused("w.dat would replace the input", "kvdump", "-q", "-m",
                     self.path("m"), "-f", at("some.txt"), "-n", 2, "-o",
                     self.path("m/w.dat"))

    def test_two_outputs(self):
        for tool in PROGRAMS:
            _, writes, _ = table(tool)
            for i, a in enumerate(writes):
                for b in writes[:i]:
                    if "-o" in (a[0], b[0]) and (a[1] or b[1]):
                        continue  # FILE and the words beside it
                    if a[1] and a[1] == b[1]:
                        continue  # --resume --append
                    one, two = self.path("x.partial"), self.path("y.partial")
                    args = writing(*a, one) + writing(*b, one)
                    self.refused("two outputs are one file", tool, *args)
                    os.symlink(one, two)  # neither exists yet
                    args = writing(*a, one) + writing(*b, two)
                    self.refused("two outputs are one file", tool, *args)
                    os.unlink(two)
        self.assertEqual(os.listdir(self.dir), [])

    def test_files_that_only_reading_finds(self):
        """Known by device and inode when the output is opened."""
        layers = write(self.path("a.txt"), b"0-1 KV kivi:b2g8\n")
        os.link(layers, self.path("b.txt"))
        self.refused([self.path("b.txt"), layers], "kvquant", "-q", "-s",
                     "mixed,file=" + self.path("{a,a}.txt"), at("dump.h5"),
                     "-o", self.path("b.txt"))
        self.assertEqual(read(layers), b"0-1 KV kivi:b2g8\n")

    def test_standard_input_and_output(self):
        text = write(self.path("t.txt"), tiny_model.text(99).encode())
        before = read(text)
        with open(text) as f:
            self.refused("would replace the input standard input\n", "kvdump",
                         "-m", at("m"), "-f", "-", "--tokens", "-o", text,
                         stdin=f)
        with open(text, "r+") as f:
            self.refused("standard output would replace the input " + text,
                         "kvdump", "-m", at("m"), "-f", text, "--tokens",
                         stdout=f)
        self.assertEqual(read(text), before)
        for said, words in (b"", " is empty"), (b"a", " has 1 token,"), (
                b"\0", ": byte 0 is zero"):
            with open(write(self.path("in"), said)) as f:
                self.refused("standard input" + words, "kvppl", "-q", "-m",
                             at("m"), "-f", "-", stdin=f)


# ---- where outputs go -------------------------------------------------------


class Places(Outputs):
    def test_through_links(self):
        os.mkdir(self.path("sub"))
        write(self.path("sub/real.csv"), b"OLD")
        os.symlink("sub/real.csv", self.path("link.csv"))
        os.symlink("link.csv", self.path("twice.csv"))
        os.symlink("sub/new.csv", self.path("dangling.csv"))
        for link, real in ("twice.csv", "real.csv"), ("dangling.csv",
                                                      "new.csv"):
            self.assertEqual(self.quant("-o", self.path(link)).returncode, 0)
            self.assertTrue(os.path.islink(self.path(link)))
            self.assertTrue(read(self.path("sub/" + real)).startswith(b"tool,"))
        self.assertEqual(sorted(os.listdir(self.path("sub"))),
                         ["new.csv", "real.csv"])
        os.symlink("circle", self.path("circle"))
        self.refused("symbolic links", "kvquant", "-s", "kivi", at("dump.h5"),
                     "-o", self.path("circle"))

    def test_descriptors(self):
        """Writing continues where others stopped, or into a pipe.  Links
        of our own: a program that replaces them is not to have the system's,
        /dev/stdout, for that."""
        want = self.quant().stdout
        for name, number in ("in", 0), ("out", 1):
            os.symlink(f"/proc/self/fd/{number}", self.path(name))
        os.symlink("out", self.path("twice"))
        for name in "/dev/fd/1", self.path("out"), self.path("twice"):
            self.assertEqual(self.quant("-o", name).stdout, want)
            with open(self.path("x"), "w+") as f:
                f.write("head\n")
                f.flush()
                self.assertEqual(self.quant("-o", name, stdout=f).returncode, 0)
            self.assertEqual(read(self.path("x")).decode(), "head\n" + want)
            self.assertTrue(os.path.islink(self.path("out")))
        with open(self.path("x"), "rb") as f:
            self.refused("is open for reading alone", "kvquant", "-s", "kivi",
                         at("dump.h5"), "-o", self.path("in"), stdin=f)
        self.refused("/dev/fd/77", "kvquant", "-s", "kivi", at("dump.h5"),
                     "-o", "/dev/fd/77")
        self.refused("is not a regular file", "kvquant", "-s", "kivi",
                     at("dump.h5"), "--codes", self.path("out"))

    def test_mode_of_what_is_replaced(self):
        for mode in 0o600, 0o640, 0o666, 0o751:
            out = write(self.path("x.csv"), b"OLD")
            os.chmod(out, mode)
            self.assertEqual(self.quant("-o", out).returncode, 0)
            self.assertEqual(stat.S_IMODE(os.stat(out).st_mode), mode)
        old = os.umask(0o027)
        self.quant("-o", self.path("new.csv"))
        os.umask(old)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("new.csv")).st_mode),
                         0o640)

    def test_owner_of_what_is_replaced(self):
        if os.geteuid():
            self.skipTest("only root may give files away")
        out = write(self.path("x.csv"), b"OLD")
        os.chown(out, 12, 34)
        self.assertEqual(self.quant("-o", out).returncode, 0)
        self.assertEqual(os.stat(out)[4:6], (12, 34))

    def test_what_may_not_be_written_is_not_replaced(self):
        out = write(self.path("x.csv"), b"OLD")
        os.chmod(out, 0o444)
        more = {}
        if not os.geteuid():  # whom nothing stops
            os.chmod(folder, 0o755)
            os.chmod(self.dir, 0o777)
            more["user"] = 65534
        self.refused("Permission denied", "kvquant", "-s", "kivi",
                     at("dump.h5"), "-o", out, **more)
        self.assertEqual(read(out), b"OLD")

    def test_what_is_replaced_is_said(self):
        out = self.path("x.csv")
        self.assertNotIn("replaced", self.quant("-o", out).stderr)
        size = os.path.getsize(out)
        self.assertIn(f"{out}: replaced, it held {size} bytes of 2",
                      self.quant("-o", out).stderr)
        self.assertEqual(self.quant("-q", "-o", out).stderr, "")


class Descriptors(Outputs):
    def closed(self, *which):
        return {"preexec_fn": lambda: [os.close(n) for n in which],
                "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def test_words_land_in_no_file(self):
        base = ["-m", at("m"), "-f", at("some.txt"), "-n", 1, "-p",
                "llama.cpp", "-s", "kivi:b2", "--kl-divergence-base"]
        must("kvppl", *base, self.path("ref.kl"), "-o", self.path("ref.csv"))
        for which in (2,), (1, 2), (0, 1, 2), (0,):
            done = run("kvppl", *base, self.path("x.kl"), "-o",
                       self.path("x.csv"), **self.closed(*which))
            self.assertEqual(done.returncode, 0)
            self.assertEqual(read(self.path("x.kl")), read(self.path("ref.kl")))
            self.assertNotIn(b"PPL", read(self.path("x.csv")))

    def test_closed_stdout_is_an_error(self):
        more = {**self.closed(1), "stderr": subprocess.PIPE}
        self.refused("cannot write the results to standard output", "kvquant",
                     "-q", "-s", "kivi", at("dump.h5"), "--codes",
                     self.path("c.h5"), **more)
        self.refused("standard output", "kvdump", "--version", **more)
        more = {**self.closed(0), "stderr": subprocess.PIPE}
        self.refused("cannot read standard input: ", "kvdump", "-m", at("m"),
                     "-f", "-", "--tokens", **more)


# ---- ends of a run --------------------------------------------------------

KEPT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN,
        signal.SIGTTOU, signal.SIGCONT, signal.SIGCHLD, signal.SIGURG,
        signal.SIGWINCH, signal.SIGXFSZ}  # end nothing, or cannot be caught
STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def as_they_were():
    """The tests themselves may run under nohup, or in the background."""
    for number in signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE:
        signal.signal(number, signal.SIG_DFL)


class Ends(Outputs):
    def start(self, *more, out="d.h5"):
        """A run that takes long, and has its output open."""
        place = os.path.dirname(self.path(out))
        before = set(os.listdir(place))
        running = subprocess.Popen(
            [os.path.join(TOOLS, "kvdump"), "-q", "-m", at("m"), "-f",
             at("long.txt"), "--memory", "1K", "-o", self.path(out), *more],
            stderr=subprocess.PIPE, text=True, preexec_fn=as_they_were)
        while running.poll() is None and not set(os.listdir(place)) - before:
            time.sleep(0.002)
        self.assertIsNone(running.poll())
        return running

    def end(self, running):
        _, words = running.communicate(timeout=60)
        self.assertEqual(os.listdir(self.dir), [])
        return running.returncode, words

    def test_every_signal(self):
        for number in sorted(signal.valid_signals() - KEPT):
            running = self.start()
            running.send_signal(number)
            ended, words = self.end(running)
            with self.subTest(number=number):
                if number in STOPS:
                    self.assertEqual((ended, words),
                                     (2, "kvdump: interrupted\n"))
                elif "Sanitizer" not in words:
                    self.assertEqual((ended, words), (-number, ""))

    def test_folders_of_random_tensors(self):
        """kvattn trains on a dump of its own, in $TMPDIR."""
        with subprocess.Popen(
                [os.path.join(TOOLS, "kvattn"), "-q", "-s", "klt:b3", "--shape",
                 "1,16,16,128,64"], stdout=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": self.dir}) as running:
            while running.poll() is None and not os.listdir(self.dir):
                time.sleep(0.001)
            self.assertIsNone(running.poll())
            running.send_signal(signal.SIGALRM)
        self.assertEqual(running.returncode, -signal.SIGALRM)
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_second_one_ends_at_once(self):
        """Both signals come before the computing thread may notice the
        first."""
        running = self.start()
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT,
                       signal.SIGCONT):
            running.send_signal(number)
        ended, words = self.end(running)
        self.assertIn(-ended, STOPS)
        self.assertEqual(words, "")

    def killed(self, out):
        """The files that a killed run leaves under the output's name."""
        running = self.start(out=out)
        running.kill()
        running.communicate()
        name, = os.listdir(os.path.dirname(self.path(out)))
        self.assertRegex(name, r"^d\.h5\.kvtools-\w{6}$")
        return name

    def test_what_a_killed_run_left(self):
        """The next run with the same name removes it, but never a running one's
        file."""
        os.mkdir(self.path("in"))
        left = self.path("in/" + self.killed("in/d.h5"))
        alive = self.start(out="in/d.h5")
        held, = os.listdir(self.path("in"))
        self.assertNotEqual(self.path("in/" + held), left)
        write(left, b"")
        done = run("kvdump", "-m", at("m"), "-f", at("some.txt"), "-n", 1,
                   "-o", self.path("in/d.h5"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{left}: removed, a killed run left it\n", done.stderr)
        self.assertEqual(set(os.listdir(self.path("in"))), {"d.h5", held})
        alive.terminate()
        alive.communicate()
        self.assertEqual(os.listdir(self.path("in")), ["d.h5"])

    def test_what_no_run_left(self):
        """Files of another name, kind or owner stay."""
        stay = ["t.csv.kvtools-12345", "t.csv.kvtools-1234567", "t.csv.backup",
                "t.csv.kvtools-12345_", "x.csv.kvtools-a1B2c3"]
        gone = ["t.csv.kvtools-a1B2c3", "t.csv.kvtools-others"]
        for name in stay + gone:
            write(self.path(name), b"")
        os.mkdir(self.path("t.csv.kvtools-folder"))
        os.mkfifo(self.path("t.csv.kvtools-a1fifo"))
        os.symlink("t.csv.backup", self.path("t.csv.kvtools-a1link"))
        stay += ["t.csv.kvtools-" + s for s in ("folder", "a1fifo", "a1link")]
        if not os.geteuid():
            os.chown(self.path(gone[1]), 12, 34)
            stay.append(gone[1])
        self.assertEqual(self.quant("-o", self.path("t.csv")).returncode, 0)
        self.assertEqual(sorted(os.listdir(self.dir)),
                         sorted(["t.csv", *stay]))

    def test_a_pipe_that_nobody_reads(self):
        ours, theirs = os.pipe()
        with subprocess.Popen(
                [os.path.join(TOOLS, "kvppl"), "-q", "-m", at("m"), "-f",
                 at("some.txt"), "-n", "1", "-s", "kivi:b{1,2}", "-p",
                 "llama.cpp", "--kl-divergence-base", self.path("x.kl")],
                stdout=theirs, stderr=subprocess.PIPE, text=True,
                preexec_fn=as_they_were) as running:
            os.close(theirs)
            os.close(ours)
            ended, words = self.end(running)
        self.assertEqual((ended, words), (-signal.SIGPIPE, ""))

    def changing(self, change, *more):
        """A run whose weights are changed while it reads them."""
        shutil.rmtree(self.path("m"), ignore_errors=True)
        shutil.copytree(at("m"), self.path("m"))
        weights = self.path("m/model.safetensors")
        os.mkdir(self.path("out"))
        running = subprocess.Popen(
            [os.path.join(TOOLS, "kvdump"), "-q", "-m", self.path("m"), "-f",
             at("long.txt"), "--memory", "1K", "-o", self.path("out/d.h5"),
             *more], stderr=subprocess.PIPE, text=True)
        while running.poll() is None and not os.listdir(self.path("out")):
            time.sleep(0.002)
        change(weights)
        _, words = running.communicate(timeout=60)
        left = os.listdir(self.path("out"))
        shutil.rmtree(self.path("out"))
        return running.returncode, words, left

    def test_an_input_that_changes(self):
        def shorten(path):
            os.truncate(path, 1000)

        def empty(path):
            os.truncate(path, 0)

        def touch(path):
            with open(path, "r+b") as f:
                f.seek(5000)
                f.write(b"\0\0\0\0")

        def replace(path):
            shutil.copy(path, path + ".new")
            os.rename(path + ".new", path)

        for change in shorten, empty, touch:
            for threads in 1, 2:
                ended, words, left = self.changing(change, "-n", "300", "-t",
                                                   str(threads))
                with self.subTest(change=change.__name__, threads=threads):
                    self.assertEqual((ended, left), (2, []), words)
                    self.assertRegex(words, r"^kvdump: \S*/model\.safetensors "
                                     r"was (changed|shortened) while it was "
                                     r"read\n$")
        # the input is unchanged under its other name
        ended, words, left = self.changing(replace, "-n", "300")
        self.assertEqual((ended, words, left), (0, "", ["d.h5"]))

    def test_a_dump_that_changes(self):
        dump = shutil.copy(at("dump.h5"), self.path("d.h5"))
        with subprocess.Popen(
                [os.path.join(TOOLS, "kvcalib"), "-q", "-s",
                 "klt,rope=post,metric=none", "-s",
                 "pq:d{1,2,4,8}b{4,5,6,7,8}", dump, "-o", self.path("c.h5")],
                stderr=subprocess.PIPE, text=True) as running:
            while running.poll() is None and dump not in opened(running.pid):
                time.sleep(0.002)
            os.utime(dump)
            _, words = running.communicate(timeout=240)
        self.assertEqual((running.returncode, words),
                         (2, f"kvcalib: {dump} was changed while it was "
                          "read\n"))
        self.assertEqual(os.listdir(self.dir), ["d.h5"])


if __name__ == "__main__":
    unittest.main(verbosity=0)
