"""LongBench's count: the share of right numbers among the answer's numbers."""
import re


def share(answer, right):
    found = re.findall(r"\d+", answer)
    return sum(x == right for x in found) / len(found) if found else 0.0


def score(answer, item):
    return {"count": max(share(answer, str(r)) for r in item["answers"])}
