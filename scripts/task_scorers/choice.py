"""Multiple choice by log-likelihood: acc, the highest sum; acc_norm, the
highest sum over the choice's characters."""


def best(values):
    return max(range(len(values)), key=values.__getitem__)


def score(pairs, item):
    sums = [p["log_likelihood"] for p in pairs]
    norms = [x / len(p["continuation"].removeprefix(" "))
             for x, p in zip(sums, pairs)]
    return {"acc_norm": float(best(norms) == item["gold"]),
            "acc": float(best(sums) == item["gold"])}


def score_choice_of_contexts(pairs, item):
    return {"acc": score(pairs, item)["acc"]}
