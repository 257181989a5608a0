"""LongBench's code similarity: fuzzywuzzy's fuzz.ratio of the first line of
code.  fuzz.ratio gives different figures with python-Levenshtein (code_sim)
and without it (code_sim_difflib)."""
from difflib import SequenceMatcher

from rapidfuzz.distance import Indel

LIBRARIES = ["rapidfuzz"]


def line_of_code(answer):
    for line in answer.lstrip("\n").split("\n"):
        if not any(mark in line for mark in ("`", "#", "//")):
            return line
    return ""


def per_cent(ratio):
    return int(round(100 * ratio)) / 100


def both(answer, reference):
    line = line_of_code(answer)
    if not line or not reference:
        same = float(line == reference)
        return same, same
    return (per_cent(Indel.normalized_similarity(line, reference)),
            per_cent(SequenceMatcher(None, line, reference).ratio()))


def score(answer, item):
    found = [both(answer, r) for r in item["answers"]]
    return {"code_sim": max(x for x, _ in found),
            "code_sim_difflib": max(x for _, x in found)}
