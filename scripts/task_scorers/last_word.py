"""LAMBADA: whether every token of the last word is the most probable one; and
the sum of log-likelihoods, whose mean x gives the perplexity exp(-x)."""
SCALE = {"log_likelihood": 1}


def score(pairs, item):
    pair, = pairs
    return {"acc": float(pair["is_greedy"]),
            "log_likelihood": pair["log_likelihood"]}
