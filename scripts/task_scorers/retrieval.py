"""LongBench's retrieval: share of the numbers in the answer that are the right
paragraph's."""
import re

from task_scorers.count import share


def score(answer, item):
    return {"retrieval": max(
        share(answer, re.findall(r"Paragraph (\d+)", r)[0])
        for r in item["answers"])}
