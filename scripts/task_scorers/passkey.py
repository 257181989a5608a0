"""Whether the answer's first run of five digits is the passkey."""
import re


def score(answer, item):
    found = re.search(r"(?<!\d)\d{5}(?!\d)", answer)
    return {"acc": float(bool(found) and found[0] == str(item["target"]))}
