"""Scorers of answers.  Each file has

    LIBRARIES   packages that it imports, [(package, version or None)]
    score(answer, item)  ->  {metric: 0 to 1}

where answer is a text after the task's own cuts (of pairs: the list of their
lines) and item holds the fields that the task carries.  Optional: SCALE
{metric: factor of the printed score, else 100}; alike(a, b), the likeness of
two answers, under the name ALIKE; RUNS_CODE."""
import importlib
from importlib import metadata

# Scorers with the same file, whose verdicts are of one kind.
OTHER_NAMES = {
    "found_any": "found", "choice_of_contexts": "choice",
    "bfcl_simple": "bfcl", "bfcl_multiple": "bfcl", "bfcl_parallel": "bfcl",
    "bfcl_irrelevance": "bfcl", "humaneval": "programs", "mbpp": "programs"}


class Missing(Exception):
    """A sentence that names the missing library."""


class Scorer:
    def __init__(self, name):
        file = OTHER_NAMES.get(name, name)
        try:
            self.module = importlib.import_module("task_scorers." + file)
        except ImportError as e:
            if e.name == "task_scorers." + file:
                raise Missing(f"{name}: no such scorer") from None
            raise Missing(
                f"scorer {name} lacks what it imports ({e}): pip install -r "
                "scripts/requirements-tasks.txt") from None
        self.name = name
        self.score = getattr(self.module, "score_" + name, None) or \
            self.module.score
        self.scale = getattr(self.module, "SCALE", {})
        self.alike = getattr(self.module, "alike", None)
        self.runs_code = getattr(self.module, "RUNS_CODE", False)

    def about(self):
        """The scorer's name, and the libraries whose versions decide the
        score."""
        return " ".join([self.name] + [
            f"({p} {metadata.version(p)})"
            for p in getattr(self.module, "LIBRARIES", ())])


# ---- what is done to an answer before it is scored --------------------------

CUTS = {
    "strip": str.strip,
    "strip_newlines_before": lambda t: t.lstrip("\n"),
    "first_line": lambda t: t.split("\n")[0],
    "controls_to_newlines": lambda t: "".join(
        "\n" if ord(c) < 32 else c for c in t),
}


def cut(answer, names):
    for name in names:
        answer = CUTS[name](answer)
    return answer
