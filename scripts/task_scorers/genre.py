"""The class that an answer names.  acc: the first class that occurs in it is
right; exact: its first line is the class."""
import re


def first_class(answer, classes):
    pattern = "|".join(re.escape(c) for c in
                       sorted(classes, key=len, reverse=True))
    found = re.search(rf"(?<![\w-])({pattern})(?![\w-])", answer.lower())
    return found[1] if found else None


def score(answer, item):
    line = answer.strip().split("\n")[0].strip(" .*\"'").lower()
    return {"acc": float(first_class(answer, item["classes"]) == item["genre"]),
            "exact": float(line == item["genre"])}
