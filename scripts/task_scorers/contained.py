"""Whether the answer holds one of the expected texts, whatever the case."""


def score(answer, item):
    low = answer.lower()
    return {"contained": float(any(a.lower() in low for a in item["answers"]))}
