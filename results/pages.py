"""What pages of tables are written with."""
import math
import os
import statistics

from inputs import die


def write(path, text):
    """Whole or not at all."""
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".tmp", path)


def number(x, form="%.4g"):
    return "" if x is None or x == "" else form % float(x)


def line(cells):
    return "| " + " | ".join(cells) + " |"


def windows_of(*rows):
    """Each row's KL by window, [row][window]; None: a row does not have it, since
    it is older than the column, or they are different windows."""
    found = [[float(x) for x in (r.get("kl_windows") or "").split()]
             for r in rows]
    same = {(len(f), r.get("text_hash"), r.get("ctx"),
             r.get("places") == "random" and r.get("seed"))
            for f, r in zip(found, rows, strict=True)}
    return found if all(found) and len(same) == 1 else None


def unpaired(rows):
    """What a page says of errors that are not paired; "": all are."""
    return "" if windows_of(*rows) else \
        "errors are not paired, since older rows lack kl_windows"


def error_of_windows(x):
    """The standard error of their mean.  One window has none."""
    return statistics.stdev(x) / math.sqrt(len(x)) if len(x) > 1 else math.inf


def error_of(*rows):
    """The error of the difference of two rows' KL: over windows, paired where
    both rows have each window's KL, or by rounding (kvppl --jitter) if that is
    larger.  One window has none."""
    windows = windows_of(*rows)
    over = error_of_windows([a - b for a, b in zip(*windows, strict=True)]) \
        if windows else math.hypot(*(float(r.get("kl_se") or math.inf)
                                     for r in rows))
    return max(over, math.hypot(*(float(r.get("kl_jitter") or 0)
                                  for r in rows)))


def ratio_of(a, b):
    """The first row's KL over the second's, and the error of this over windows,
    paired where both rows have each window's KL."""
    of, over = float(a["kl_mean"]), float(b["kl_mean"])
    windows = windows_of(a, b)
    if windows:
        return of / over, error_of_windows(
            [(x - of / over * y) / over for x, y in zip(*windows, strict=True)])
    return of / over, of / over * math.hypot(*(
        float(r.get("kl_se") or math.inf) / float(r["kl_mean"])
        for r in (a, b)))


def label_of(gap, error):
    """The reason why a pair is not as in the paper; "": it is."""
    if error == math.inf:
        return "one window has no error"
    if error is not None and abs(gap) < 2 * error:
        return "within two standard errors"
    return "equal here" if gap == 0 else "not" if gap < 0 else ""


def verdict(pairs, ahead="ahead of", what="order of schemes", note=""):
    """pairs: (better in the paper, worse, how much better it is here, the
    standard error of this; None: no error).  note: of the errors."""
    found = {"not": [], "equal here": [], "within two standard errors": [],
             "one window has no error": []}
    for better, worse, gap, error in pairs:
        label = label_of(gap, error)
        if label:
            found[label].append(f"{better} {ahead} {worse}")
    if not pairs:
        return f"{what}: none is claimed here"
    n, wrong = len(pairs), len(found["not"])
    undecided = sum(map(len, found.values())) - wrong
    if n == 1:
        said = "one pair alone, " + ("not as in the paper" if wrong else
                                     "undecided" if undecided else
                                     "as in the paper")
    else:
        said = f"{n - wrong - undecided} of {n} pairs as in the paper, " \
            f"{wrong} not, {undecided} undecided"
    if any(error is None for *_, error in pairs):
        said += " (figures without errors)"
    said += f" ({note})" * bool(note)
    return f"{what}: {said}" + "".join(
        f"; {label}: {', '.join(some)}" for label, some in found.items() if some)


def section(table):
    """Returns the title and text of the section in README.md."""
    with open("README.md", encoding="utf-8") as f:
        parts = f.read().split("\n## ")
    paper = parts[0].splitlines()[0].removeprefix("# ")
    for p in parts[1:]:
        title, _, text = p.partition("\n")
        if title.split(":")[0] == table:
            return f"# {paper}, {title}", text.strip()
    die(f"README.md has no section on {table}")
