"""kvgen --disaggregate: the answers of one process, the bytes on the wire, and
what becomes of damaged layers and lost ranks."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import h5py
import tiny_model
from run_tools import MPI_ENV, TOOLS, must, read, run, write

KVGEN = os.path.join(TOOLS, "kvgen")
TIMES = ["queue_seconds", "prompt_seconds", "wait_seconds",
         "communication_seconds", "join_seconds", "seconds"]
MEASURED = {"jct", "code_bytes", "wire_bytes", "layers_again", "attempts"}
SPECS = ["f16", "kivi:b2g16r0", "hack:b2p16", "hack:b2p16,prefill=full",
         "cachegen:n16", "K-absmax:b4g16/V-kivi:b2g16r0", "zipcache",
         "kivi:b2g16r16s2"]


def setUpModule():
    global folder
    if not shutil.which("mpirun"):
        raise unittest.SkipTest("mpirun is not installed (openmpi-bin)")
    if "has no MPI" in run("kvgen", "--disaggregate", "1:1", "-m", "none",
                           "-f", "none", "-o", "none", env=MPI_ENV).stderr:
        raise unittest.SkipTest("a build without MPI")
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)
    write(at("calib.txt"), tiny_model.text(800, 2).encode())
    must("kvdump", "-m", at("m"), "-f", at("calib.txt"), "-c", "64", "-o",
         at("dump.h5"))
    must("kvcalib", "-s", "cachegen:n16", at("dump.h5"), "-o", at("calib.h5"))
    write(at("long.txt"), tiny_model.text(60, 1).encode())
    with open(at("long.txt")) as f:
        lines = [{"prompt": f.read()}, {"prompt": "the quick", "max_tokens": 1},
                 {"prompt": "a", "timestamp": 200}]
    write(at("p.jsonl"), "".join(json.dumps(x) + "\n" for x in lines).encode())


def tearDownModule():
    if "folder" in globals():
        shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def args(out, *more, specs=SPECS):
    return ["-m", at("m"), "-f", at("p.jsonl"), "-o", at(out), "-n", "6",
            "-t", "1", "-C", at("calib.h5"), "--ignore-eos", "-c", "999",
            *[x for s in specs for x in ("-s", s)], *map(str, more)]


def ranks(split, *extra, specs=SPECS, common=()):
    """Answers and what is said; extra: a list of options for each rank."""
    options = args("two.jsonl", "--disaggregate", split, *common, specs=specs)
    command = ["mpirun", "--enable-recovery"]
    for more in extra:
        command += ["-n", "1", KVGEN, *options, *map(str, more), ":"]
    if os.path.exists(at("two.jsonl")):
        os.remove(at("two.jsonl"))
    done = subprocess.run(command[:-1], env=MPI_ENV, text=True, timeout=60,
                          capture_output=True)
    lines = os.path.exists(at("two.jsonl")) and [
        json.loads(x) for x in read(at("two.jsonl")).splitlines()]
    return lines, done


def alone(*more, specs=SPECS):
    must("kvgen", *args("one.jsonl", *more, specs=specs))
    return [json.loads(x) for x in read(at("one.jsonl")).splitlines()]


def timeless(lines):
    return [{k: v for k, v in x.items() if k not in MEASURED and
             "second" not in k and not k.endswith("_s")} for x in lines]


class Ranks(unittest.TestCase):
    def test_same_answers(self):
        """Times for every kind of codes; the parts sum to the whole."""
        lines, done = ranks("1:1", ["--disaggregate-fault", "alter:2"], [],
                            common=["--disaggregate-apart"])
        self.assertTrue(lines, done.stderr)
        self.assertEqual(timeless(lines), timeless(alone()))
        for x in lines:
            self.assertAlmostEqual(sum(x[t] for t in TIMES), x["jct"], 6)
            for t in TIMES:
                self.assertGreaterEqual(x[t], 0)
            self.assertEqual((x["attempts"], x["layers_again"]),
                             (1, x is lines[0]))
        self.assertIn("damaged layers from rank 0, sent again: 1", done.stderr)
        self.check_bytes(lines)

    def check_bytes(self, lines):
        """The bytes that kvquant --codes writes for the same tokens, and
        heads."""
        n = lines[0]["prompt_tokens"]
        must("kvdump", "-m", at("m"), "-f", at("long.txt"), "-c", n, "-n", 1,
             "-o", at("long.h5"))
        must("kvquant", "-C", at("calib.h5"), "--codes", at("codes.h5"),
             *[x for s in SPECS for x in ("-s", s)], at("long.h5"))
        sizes = {}

        with h5py.File(at("codes.h5")) as f:
            for group in (f[x] for x in f if x.startswith("spec_")):
                sizes[group.attrs["spec"].decode()] = sum(
                    int(layer["held_bytes"][:].sum())
                    for layer in group.values())
                layers = len(group)
        for x in lines[:len(SPECS) - 1]: # kvquant keeps no tokens in fp16
            codes, specs = x["code_bytes"], "".join(sides(x["spec"]))
            self.assertEqual(codes, sizes[x["spec"]], x["spec"])
            if x["layers_again"]: # f16, whose layers are of one size
                codes += codes // layers
            self.assertEqual(x["wire_bytes"] - codes, 8 + 24 + (
                layers + x["layers_again"]) * (16 + 88 + 16 + len(specs)))

    def test_lost_rank(self):
        """Two of three go on: the same answers, sampled."""
        how = ["--temperature", "1.2", "--samples", "2", "--seed", "5"]
        specs = SPECS[1:3]
        lines, done = ranks("1:2", [], [],
                            ["--disaggregate-fault", "end:2"], specs=specs,
                            common=[*how, "--disaggregate-silence", "2"])
        self.assertTrue(lines, done.stderr)
        self.assertEqual(timeless(lines), timeless(alone(*how, specs=specs)))
        self.assertIn("is made again: rank 2 was silent for 2 s", done.stderr)
        self.assertEqual(max(x["attempts"] for x in lines), 2)

    def test_no_room(self):
        lines, done = ranks("1:1", [], ["--memory", "100K"], specs=["f16"])
        self.assertFalse(lines)
        self.assertIn("kvgen: answer 1 of 3, f16:r0s0: rank 1: a cache of up "
                      "to ", done.stderr)
        self.assertNotIn("two.jsonl", "".join(os.listdir(folder)))

    def test_refused(self):
        """Before MPI starts, and as one process without mpirun."""
        for words, more in (
                ("--disaggregate 1: expected P:D", ["1"]),
                ("--disaggregate 0:1: expected P:D", ["0:1"]),
                ("--resume does not go with --disag", ["1:1", "--resume"]),
                ("expected alter:N or end:N", ["1:1", "--disaggregate-fault",
                                               "x"]),
                ("expected more than 1 second", ["1:1", "--disaggregate-"
                                                 "silence", "1"]),
                ("expected 2 ranks (mpirun -n 2), there is 1", ["1:1"])):
            done = run("kvgen", *args("a.jsonl", "--disaggregate", *more),
                       env=MPI_ENV)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


def sides(spec):
    """The contents of a layer's message about K and V."""
    if "/" not in spec:
        return [spec, spec]
    return [x[2:] for x in spec.split("/")]


if __name__ == "__main__":
    unittest.main()
