"""HACK's ROUGE-1: rouge-1 f of PyPI's rouge, of the two sets of words."""
from rouge import Rouge

LIBRARIES = ["rouge"]
ALIKE = "rouge_1"


def alike(a, b):
    """0 for an answer without words, on which the package fails."""
    try:
        return Rouge(metrics=["rouge-1"]).get_scores(
            [a], [b], avg=True)["rouge-1"]["f"]
    except ValueError:
        return 0.0


def score(answer, item):
    return {"rouge_1": alike(answer, item["abstract"])}
