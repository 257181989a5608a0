"""HACK's edit similarity: 1 - Levenshtein distance / the longer length."""
from rapidfuzz.distance import Levenshtein

LIBRARIES = ["rapidfuzz"]
ALIKE = "edit_similarity"
alike = Levenshtein.normalized_similarity


def score(answer, item):
    """The similarity to HumanEval's reference, or MBPP's."""
    reference = item.get("canonical_solution", item.get("code"))
    return {"edit_similarity": alike(answer, reference)}
