"""What the scripts of results/ share: sentences on stderr, tables in, and a
look at what a run needs before it begins."""
import csv
import json
import os
import subprocess
import sys


def die(words):
    print(f"{os.path.basename(sys.argv[0])}: {words}", file=sys.stderr)
    sys.exit(2)


def read(path):
    """The rows of a CSV file."""
    try:
        with open(path, newline="", encoding="utf-8") as f:
            return list(csv.DictReader(f))
    except OSError as e:
        die(f"{path}: {e.strerror}")


def numbers_of(table):
    """The rows of a table in paper.csv; table6-artifact has those of table6."""
    every = read("paper.csv")
    return [n for n in every if n["table"] == table] or \
        [n for n in every if n["table"] == table.split("-")[0]]


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        die(done.stderr.strip().splitlines()[-1])
    return done.stdout


def need_tools(folder, names):
    for name in names:
        if not os.access(os.path.join(folder, name), os.X_OK):
            die(f"{folder} has no {name}: scripts/build makes it, or give BIN")


def need_model(model):
    if not os.path.isfile(model) and not os.path.isfile(
            os.path.join(model, "config.json")):
        die(f"{model}: neither a model folder nor a GGUF file "
            "(scripts/fetch-model smollm2 brings the default MODEL)")


def need_files(texts):
    for path in texts:
        if not os.path.isfile(path):
            die(f"{path}: no such text (scripts/fetch-data brings the "
                "default ones)")


def need_window(folder, model, ctx):
    takes = json.loads(output(
        os.path.join(folder, "kvdump"), "-q", "-m", model, "--about",
        "--format", "jsonl").splitlines()[0])["n_ctx"]
    if takes < ctx:
        die(f"{model} takes windows of {takes} tokens, CTX is {ctx}")


def need_tokens(folder, model, ctx, texts):
    """texts: {path: number of windows of ctx tokens that the model needs}."""
    kvdump = os.path.join(folder, "kvdump"), "-q", "-m", model
    for path, windows in texts.items():
        # A token is a byte at least, and seldom more than ten.
        if os.path.getsize(path) >= 10 * windows * ctx:
            continue
        tokens = len(output(*kvdump, "-f", path, "--tokens").split())
        if tokens < windows * ctx:
            die(f"{path} has {tokens} tokens, {windows} windows of {ctx} "
                f"want {windows * ctx}")


def stamp(path):
    """For a folder: the sum of its files."""
    files = [os.path.join(path, f) for f in os.listdir(path)] \
        if os.path.isdir(path) else [path]
    stats = [os.stat(f) for f in files]
    return (f"{path} {sum(s.st_size for s in stats)} "
            f"{max(s.st_mtime_ns for s in stats)}")
