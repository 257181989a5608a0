"""Scores of the same items under two caches, compared pair by pair."""
import math
import random
import statistics

DRAWS = 2000


def mean_and_error(values):
    """The mean and its standard error, None for one value."""
    n = len(values)
    return statistics.fmean(values), \
        statistics.stdev(values) / math.sqrt(n) if n > 1 else None


def mcnemar(gained, lost):
    """McNemar's exact two-sided p-value: gains and losses are equally
    likely."""
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2 ** n
    return min(1.0, 2 * tail)


def bootstrap(differences):
    """A two-sided p-value: the share of means of resampled items beyond 0, but
    not below 2^(1-n), the least of n differences whose signs are drawn: few
    items resample to themselves."""
    draw, n = random.Random(0), len(differences)
    means = [sum(draw.choices(differences, k=n)) for _ in range(DRAWS)]
    below, above = (sum(1 for m in means if sign * m <= 0)
                    for sign in (1, -1))
    return min(1.0, max(2 * (min(below, above) + 1) / (DRAWS + 1),
                        2.0 ** (1 - n)))


def compare(ours, reference):
    """Compares two lists of scores of the same items, in order."""
    differences = [a - b for a, b in zip(ours, reference)]
    difference, error = mean_and_error(differences)
    gained = sum(d > 0 for d in differences)
    lost = sum(d < 0 for d in differences)
    verdicts = {0.0, 1.0}.issuperset([*ours, *reference])
    return {"difference": difference, "difference_se": error,
            "gained": gained, "lost": lost,
            "p": mcnemar(gained, lost) if verdicts else
            bootstrap(differences) if gained + lost else 1.0,
            "test": "McNemar" if verdicts else "bootstrap"}
