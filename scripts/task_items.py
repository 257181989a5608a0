"""Descriptions of tasks (data/tasks/README.md) and their items."""
import gzip
import json
import os
import random
import re
import stat
import sys

from task_checks import KEYS, wrong_description

TASKS = os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), "data", "tasks")


def die(words):
    print(f"{os.path.basename(sys.argv[0])}: {words}", file=sys.stderr)
    sys.exit(2)


def names():
    return sorted(f.removesuffix(".json") for f in os.listdir(TASKS)
                  if f.endswith(".json"))


def name_of(task):
    return os.path.basename(task).removesuffix(".json")


def path_of(task):
    return task if task.endswith(".json") else \
        os.path.join(TASKS, task + ".json")


def describe(task):
    """The description with this name in data/tasks, or in the user's file."""
    path = path_of(task)
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except OSError:
        die(f"{task}: no such task, expected one of {', '.join(names())}, "
            "or the name of a .json file")
    except ValueError as e:
        die(f"{path}: {e}")
    wrong = wrong_description(found) if isinstance(found, dict) else \
        "not a JSON object"
    if wrong:
        die(f"{path}: {wrong}")
    return found


def change(description, settings):
    """Applies --set's NAME=JSON to the description; null removes a key.
    Returns the changes."""
    changed = {}
    for s in settings:
        name, _, value = s.partition("=")
        if name not in KEYS:
            die(f"--set {s}: expected NAME=VALUE, NAME one of "
                f"{', '.join(sorted(KEYS))}")
        try:
            changed[name] = json.loads(value)
        except ValueError:
            die(f"--set {s}: {value} is not JSON (texts in quotes)")
    for key, value in changed.items():
        description[key] = value
        if value is None:
            del description[key]
    wrong = wrong_description(description)
    if wrong:
        die(f"--set {' '.join(settings)}: {wrong}")
    return changed


def at_least(a, **lowest):
    """Ends the run if a number of the command line is lower."""
    for name, low in lowest.items():
        value = getattr(a, name)
        if value is not None and value < low:
            die(f"--{name.replace('_', '-')} {value}: expected {low} or more")


def lines(path):
    """The objects of a file of JSON lines, which may be gzipped.  Only a
    newline ends a line: texts hold other characters that Python takes for line
    ends."""
    try:
        with open(path, "rb") as f:
            raw = f.read()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8")
    except OSError as e:
        die(f"{path}: {e.strerror or e}")
    except (UnicodeDecodeError, EOFError) as e:
        die(f"{path}: {e}")
    for n, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as e:
            die(f"{path}:{n}: not a JSON object: {e}")
        if not isinstance(found, dict):
            die(f"{path}:{n}: not a JSON object")
        yield n, found


def mode_of(path):
    """The mode of a file; None: no such file."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as e:
        die(f"{path}: {e.strerror}")


def keep(path, others):
    """Ends the run if the output is one of the other files."""
    mode = mode_of(path)
    if mode is not None and stat.S_ISDIR(mode):
        die(f"{path}: a folder, expected a file to write")
    if mode is not None and not stat.S_ISREG(mode):
        return
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        die(f"{path}: no folder {folder} to write in")
    for other in others:
        if os.path.realpath(other) == os.path.realpath(path) or \
                mode and mode_of(other) and os.path.samefile(other, path):
            die(f"{path}: the same file as {other}, expected another one to "
                "write")


def write_whole(path, text, others):
    """Writes a file whole or not at all; follows a link to its target; writes
    straight into a pipe or device.  Never overwrites `others`, the inputs and
    other outputs."""
    keep(path, others)
    mode, own = mode_of(path), None
    try:
        data = text.encode()
        if mode is not None and not stat.S_ISREG(mode):
            with open(path, "wb") as f:
                f.write(data)
            return
        target = os.path.realpath(path)
        with open(f"{target}.tmp{os.getpid()}", "xb") as f:
            own = f.name
            f.write(data)
        os.replace(own, target)
    except (OSError, UnicodeEncodeError) as e:
        if own:
            os.unlink(own)
        die(f"{path}: {getattr(e, 'strerror', None) or e}")


def as_lines(rows):
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


def fill(template, fields, where):
    """Replaces {name} by the field; other braces stay."""
    def one(m):
        if m[1] not in fields:
            die(f"{where}: an item without {m[1]}, which the task asks for")
        return str(fields[m[1]])

    return re.sub(r"\{([A-Za-z_][A-Za-z_0-9]*)\}", one, template)


def fields_of(template):
    return re.findall(r"\{([A-Za-z_]\w*)\}", template)


def pick(templates, fields):
    """Among several templates, the first whose fields the item has."""
    if isinstance(templates, str):
        return templates
    for t in templates:
        if all(m in fields for m in fields_of(t)):
            return t
    return templates[0]


class Shots:
    """Worked examples before an item: the first of a pool, the last, or some
    drawn anew for each item as lm-evaluation-harness does."""

    def __init__(self, shots, count, path, prepare):
        self.shots, self.path = shots, path
        self.count = shots["count"] if count is None else count
        self.pool = []
        self.random = random.Random(shots.get("seed", 1234))
        if not self.count:
            return
        where = shots.get("where", {})
        for _, item in lines(path):
            if all(item.get(k) in some for k, some in where.items()):
                self.pool.append(prepare(item))
        if len(self.pool) < self.count:
            die(f"{path} has {len(self.pool)} examples for the task, "
                f"expected {self.count}")
        if shots.get("take") == "last":
            self.pool = self.pool[-self.count:]
        elif shots.get("take") != "drawn":
            self.pool = self.pool[:self.count]

    def holds(self, item):
        """Whether an item is one of the examples, which are not asked about."""
        return item in self.pool

    def text(self):
        if not self.count:
            return ""
        some = self.random.sample(self.pool, self.count) \
            if self.shots.get("take") == "drawn" else self.pool
        return "".join(fill(pick(self.shots["text"], x), x, self.path)
                       for x in some)
