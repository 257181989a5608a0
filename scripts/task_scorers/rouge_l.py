"""LongBench's Rouge-L: rouge-l f of PyPI's rouge."""
from rouge import Rouge

LIBRARIES = ["rouge"]
ALIKE = "rouge_l"


def alike(a, b):
    """0 for an answer without words or of dots alone, on which the package
    fails."""
    try:
        return Rouge(metrics=["rouge-l"]).get_scores(
            [a], [b], avg=True)["rouge-l"]["f"]
    except (ValueError, RecursionError):
        return 0.0


def score(answer, item):
    return {"rouge_l": max(alike(answer, r) for r in item["answers"])}
