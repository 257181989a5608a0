"""Runs the tools on changed files of every kind: each run ends with exit 0, or
with exit 2 and one sentence, within bounds of time and memory.

  run.py [--seed S] [--runs N] [--kind NAME]... [--keep FOLDER]

KV_BUILD_ROOT: the build whose tools are run, with sanitizers or without.  Run I
of a seed is the same whatever ran before it: --seed S --first I --runs 1.  A
run that ends otherwise is a line on stdout, its file stays as FOLDER/S-I, and
the exit status is 1."""
import argparse
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import hdf5_edits  # noqa: E402
import kinds  # noqa: E402
from run_tools import TOOLS, read  # noqa: E402

SEAL = re.compile(r"\((hash|seal) ([0-9a-f]+), it says")
LONGEST = 1500  # a sentence
WAIT = 120      # seconds until a run counts as hanging
ROOM = 4 << 30  # address space, without sanitizers


class Bounds:
    """The limits of a run beyond the same command on the intact file: processor
    seconds, and KiB of memory."""

    def __init__(self, sanitized):
        self.sanitized = sanitized
        self.seconds = 20 if sanitized else .5
        self.kib = (1024 if sanitized else 100) << 10

    def limit(self):
        if not self.sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "ASAN_OPTIONS": "allocator_may_return_null=1:"
            "max_allocation_size_mb=4096:detect_leaks=0:exitcode=99",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=99"}


class Run:
    """A finished run.  Time and memory include the processes that the tool
    started and waited for."""

    def __init__(self, args, bounds, folder):
        out = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        with open(out[0], "wb") as o, open(out[1], "wb") as e:
            p = subprocess.Popen(
                [os.path.join(TOOLS, args[0]), "-q", *args[1:]], stdout=o,
                stderr=e, stdin=subprocess.DEVNULL, env=environment(),
                preexec_fn=bounds.limit, start_new_session=True)
            signal.signal(signal.SIGALRM, lambda *_: os.killpg(p.pid, 9))
            signal.alarm(WAIT)
            _, status, used = os.wait4(p.pid, 0)
            signal.alarm(0)
            p.returncode = os.waitstatus_to_exitcode(status)
        self.rc = p.returncode
        self.seconds = used.ru_utime + used.ru_stime
        self.kib = used.ru_maxrss
        with open(out[1], errors="replace") as f:
            self.words = f.read(1 << 20)

    def wrong(self, tool, bounds, intact=None):
        """What is, in words; or None.  intact: the run to compare with."""
        if self.rc == -9:
            return f"hangs for {WAIT} s"
        if self.rc not in (0, 2):
            return f"exit {self.rc}"
        if "Sanitizer" in self.words or "runtime error" in self.words:
            return "a sanitizer's report"
        if self.rc == 2 and not re.fullmatch(tool + ": [^\n]+\n", self.words):
            return "not one sentence"
        if self.rc == 2 and len(self.words) > LONGEST:
            return f"a sentence of {len(self.words)} characters"
        if "out of memory" in self.words:
            return "out of memory"
        if self.rc == 0 and self.words:
            return "words though done"
        if intact and self.seconds > intact.seconds + bounds.seconds:
            return f"{self.seconds:.2f} s, intact {intact.seconds:.2f} s"
        if intact and self.kib > intact.kib + bounds.kib:
            return f"{self.kib} KiB, intact {intact.kib} KiB"
        return None


def mutate(rng, kind, case):
    """Makes the case and returns the files' names and the command."""
    source, files, commands = kind
    kinds.copy(source, case)
    name, change = rng.choice(files)
    change(rng, os.path.join(case, name) if name else case)
    return rng.choice(commands)


def placed(command, case, folder):
    """CASE-.partial: the name without that."""
    out = os.path.join(folder, "out")
    return [a.replace("CASE-.partial", case[:-len(".partial")])
            .replace("CASE", case).replace("OUT", out) for a in command]


def run_sealed(args, case, bounds, folder):
    """With the calibration's hash and seal as its content gives them: the tool
    says which."""
    for _ in range(3):
        done = Run(args, bounds, folder)
        found = SEAL.search(done.words)
        if not found:
            break
        hdf5_edits.set_text(case, *found.groups())
    return done


def case_of(name, folder):
    """The name for the copy of a kind's file, since some names determine the
    file's kind."""
    end = {"arrays": ".safetensors", "journal": ".csv.partial",
           "gguf": ".gguf"}.get(name, "")
    return os.path.join(folder, "case" + end)


def one(i, args, table, intact, bounds, folder):
    """Run i: (Run, what is wrong or None)."""
    rng = random.Random(f"{args.seed}/{i}")
    name = rng.choice(args.kind or sorted(table))
    case = case_of(name, folder)
    command = mutate(rng, table[name], case)
    argv = placed(command, case, folder)
    done = run_sealed(argv, case, bounds, folder)
    wrong = done.wrong(argv[0], bounds, intact[name, tuple(command)])
    if wrong:
        kept = os.path.join(args.keep, f"{args.seed}-{i}")
        kinds.copy(case, kept)
        print(f"{i} {name}: {wrong}: {' '.join(argv)}\n    {kept}: "
              f"{done.words[:3000].strip()}", flush=True)
    return done, wrong


def run_intact(table, bounds, folder):
    """(kind, command) -> Run: each does its work on the file as it was."""
    found = {}
    for name, (source, _, commands) in table.items():
        for command in commands:
            case = case_of(name, folder)
            kinds.copy(source, case)
            argv = placed(command, case, folder)
            done = Run(argv, bounds, folder)
            wrong = done.wrong(argv[0], bounds)
            if wrong or done.rc:
                raise SystemExit(f"{name}, intact: {wrong}: {' '.join(argv)}: "
                                 f"{done.words}")
            found[name, tuple(command)] = done
    return found


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--runs", type=int, default=100)
    p.add_argument("--kind", action="append")
    p.add_argument("--keep", default=tempfile.gettempdir())
    args = p.parse_args(argv)
    folder = tempfile.mkdtemp(prefix="kvtools-")
    bounds = Bounds(b"__asan_init" in read(os.path.join(TOOLS, "kvppl")))
    os.makedirs(args.keep, exist_ok=True)
    ended = {0: 0, 2: 0}
    failed = 0
    try:
        kinds.make(folder)
        table = kinds.kinds(folder)
        intact = run_intact({k: table[k] for k in args.kind or table}, bounds,
                            folder)
        for i in range(args.first, args.first + args.runs):
            done, wrong = one(i, args, table, intact, bounds, folder)
            failed += bool(wrong)
            if (i + 1) % 250 == 0:
                print(f"{i + 1}: {failed} wrong", file=sys.stderr, flush=True)
            ended[done.rc] = ended.get(done.rc, 0) + 1
    finally:
        shutil.rmtree(folder)
    print(f"seed {args.seed}: {args.runs} runs, " + ", ".join(
        f"{n} of exit {rc}" for rc, n in ended.items()) + f"; {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
