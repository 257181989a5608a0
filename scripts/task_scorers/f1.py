"""LongBench's F1 of the words of answer and reference; the best reference
counts."""
import re
import string
from collections import Counter

MARKS = set(string.punctuation)


def words(text):
    text = "".join(c for c in text.lower() if c not in MARKS)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(answer, reference):
    a, b = words(answer), words(reference)
    same = sum((Counter(a) & Counter(b)).values())
    return 2 * same / (len(a) + len(b)) if same else 0.0


def score(answer, item):
    return {"f1": max(f1(answer, r) for r in item["answers"])}
