"""What pages of tables are written with."""
import math
import os

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


def error_of(*rows):
    """The error of the difference of two rows' KL: over windows, or by rounding
    (kvppl --jitter) if that is larger.  One window has none."""
    return max(math.hypot(*(float(r.get(column) or none) for r in rows))
               for column, none in (("kl_se", math.inf), ("kl_jitter", 0)))


def label_of(gap, error):
    """The reason why a pair is not as in the paper; "": it is."""
    if error == math.inf:
        return "one window has no error"
    if error is not None and abs(gap) < 2 * error:
        return "within two standard errors"
    return "equal here" if gap == 0 else "not" if gap < 0 else ""


def verdict(pairs, ahead="ahead of", what="order of schemes"):
    """pairs: (better in the paper, worse, how much better it is here, the
    standard error of this; None: no error)."""
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
