"""LAMBADA: every token of the last word is the most probable one; the sum of
log-likelihoods, whose mean's exp(-x) is the perplexity."""
SCALE = {"log_likelihood": 1}


def score(pairs, item):
    pair, = pairs
    return {"acc": float(pair["is_greedy"]),
            "log_likelihood": pair["log_likelihood"]}
