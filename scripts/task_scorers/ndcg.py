"""nDCG at 10 of the documents' numbers in the answer, in its order."""
import math
import re


def gain(relevance):
    return sum((2 ** r - 1) / math.log2(n + 2)
               for n, r in enumerate(relevance[:10]))


def score(answer, item):
    relevance = item["relevance"]
    named = dict.fromkeys(int(x) for x in re.findall(r"\d+", answer)
                          if 1 <= int(x) <= len(relevance))
    best = gain(sorted(relevance, reverse=True))
    return {"ndcg_10": gain([relevance[n - 1] for n in named]) / best
            if best else 0.0}
