"""LongBench's retrieval: the share of the answer's numbers that name the right
paragraph."""
import re

from task_scorers.count import share


def score(answer, item):
    return {"retrieval": max(
        share(answer, re.findall(r"Paragraph (\d+)", r)[0])
        for r in item["answers"])}
