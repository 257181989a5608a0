"""What kvppl --records wrote, and errors of means over few windows."""
import math
import os
import sys

import numpy

KEYS = "model", "model_hash", "text", "text_hash", "protocol", "ctx", "windows"


class Refused(Exception):
    """An error that one sentence describes."""


def words(attributes):
    return {k: v.decode() if isinstance(v, bytes) else v
            for k, v in attributes.items()}


class Row:
    """A row of a file: its number, its attributes (the row's and the set's),
    and arrays [windows][scored]; a base line has None for kl, same and dp."""

    def __init__(self, path, number, group, shared):
        self.path, self.number = path, number
        self.about = {**words(shared.attrs), **words(group.attrs)}
        self.spec = self.about["spec"]
        self.tokens, self.positions = shared["tokens"][:], \
            shared["positions"][:]
        self.nll, self.kl, self.same, self.dp = (
            group[n][:].astype(float) if n in group else None
            for n in ("nll", "kl", "same", "dp"))

    def __str__(self):
        return "%s (row %d of %s)" % (self.spec, self.number, self.path)


def read(path):
    """Every row, in order."""
    try:
        import h5py
    except ImportError:
        raise Refused(f"{sys.executable} has no h5py: scripts/deps installs it "
                      "for the system's Python") from None
    try:
        with h5py.File(path, "r") as f:
            if words(f.attrs).get("kind") != "kvtools-records":
                raise Refused("%s is not of kvppl --records" % path)
            names = sorted(n for n in f if n.startswith("row_"))
            return [Row(path, i, f[n], f["set_%03d" % f[n].attrs["set"]])
                    for i, n in enumerate(names)]
    except (OSError, KeyError) as e:
        raise Refused("cannot read %s: %s" % (path, e)) from None


def split(operand):
    """Splits FILE:ROW where FILE is a file that exists; ROW may be missing
    ("")."""
    at = len(operand)
    while at > 0 and not os.path.isfile(operand[:at]):
        at = operand.rfind(":", 0, at)
    if at <= 0:
        raise Refused("no file %s: expected FILE or FILE:ROW" % operand)
    return operand[:at], operand[at + 1:]


def find(operand):
    """The row that FILE:ROW names.  ROW is a number, a spec, or a part of a
    spec that no other row has; FILE alone must have one row beside its base
    line."""
    path, name = split(operand)
    rows = read(path)
    found = [r for r in rows if r.kl is not None or len(rows) == 1] \
        if not name else [r for r in rows if name in (str(r.number), r.spec)] \
        or [r for r in rows if r.spec.startswith(name)] \
        or [r for r in rows if name in r.spec]
    if len(found) == 1:
        return found[0]
    raise Refused("%s: %s; its rows are %s" % (
        path, "no row is '%s'" % name if not found else
        "'%s' is %d rows" % (name, len(found)) if name else
        "which of its rows", ", ".join(
            "%d %s (%s)" % (r.number, r.spec, r.about["protocol"])
            for r in rows)))


def check_pair(a, b):
    """Refuses rows that did not score the same tokens at the same places."""
    for key in "text_hash", "ctx", "windows", "protocol":
        if a.about[key] != b.about[key]:
            raise Refused("%s has %s %s, %s has %s: tokens are not the same" % (
                a, key, a.about[key], b, b.about[key]))
    if not numpy.array_equal(a.tokens, b.tokens) or \
            not numpy.array_equal(a.positions, b.positions):
        raise Refused("%s and %s scored other tokens" % (a, b))


def student(degrees, level=0.95):
    """Student's factor of a standard error with this many degrees of
    freedom."""
    def tail(t):  # by Simpson's rule in x = arctan(t / sqrt(degrees))
        x = numpy.linspace(0, math.atan(t / math.sqrt(degrees)), 2001)
        weight = numpy.ones(2001)
        weight[1:-1:2], weight[2:-1:2] = 4, 2
        return 2 * scale * (weight * numpy.cos(x) ** (degrees - 1)).sum() * \
            (x[1] - x[0]) / 3

    scale = math.exp(math.lgamma((degrees + 1) / 2) -
                     math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < level else (low, middle)
    return high


class Bootstrap:
    """Draws windows with replacement, the same windows for every figure."""

    def __init__(self, windows, draws, seed, level):
        self.windows = windows
        self.factor = student(windows - 1, level) * math.sqrt(
            windows / (windows - 1)) if windows > 1 else math.nan
        self.drawn = numpy.random.default_rng(seed).integers(
            windows, size=(draws, windows))

    def halfwidth(self, figure):
        """Half of the figure's interval: its standard deviation over draws
        times Student's factor.  figure: a function of windows' indices,
        [draws][windows] -> [draws].  NaN for one window, and for two, whose
        factor is too large to be of use."""
        if self.windows < 3:
            return math.nan
        return self.factor * float(numpy.std(figure(self.drawn)))
