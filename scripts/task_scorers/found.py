"""RULER's string_match_all and string_match_part."""


def hits(answer, item):
    low = answer.lower()
    return [r.lower() in low for r in item["outputs"]]


def score(answer, item):
    found = hits(answer, item)
    return {"string_match": sum(found) / len(found)}


def score_found_any(answer, item):
    return {"string_match": float(any(hits(answer, item)))}
