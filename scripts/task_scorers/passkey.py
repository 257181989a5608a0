"""The first run of five digits."""
import re


def score(answer, item):
    found = re.search(r"(?<!\d)\d{5}(?!\d)", answer)
    return {"acc": float(bool(found) and found[0] == str(item["target"]))}
