"""Canonical specs, made short enough for a table or a legend."""


def head_and_words(spec):
    head, *words = spec.split(",")
    return head, words


def scheme(spec):
    return head_and_words(spec)[0].split(":")[0]


def shorten(specs):
    """({spec: short spec}, [a line on what was left out]).

    Left out: words that all specs of a scheme share, and r0s0 where no spec
    has anything else.  Distinct specs stay distinct."""
    specs = list(dict.fromkeys(specs))
    bare = bool(specs) and all(
        part.endswith("r0s0")
        for s in specs for part in head_and_words(s)[0].split("/"))
    shared = {}
    for s in specs:
        words = head_and_words(s)[1]
        before = shared.get(scheme(s), words)
        shared[scheme(s)] = [w for w in before if w in words]

    short = {}
    for s in specs:
        head, words = head_and_words(s)
        if bare:
            head = "/".join(p.removesuffix("r0s0") for p in head.split("/"))
        short[s] = ",".join([head.rstrip(":")] + [
            w for w in words if w not in shared[scheme(s)]])
    notes = ["all: r0s0"] if bare else []
    notes += ["%s: %s" % (name, ",".join(words))
              for name, words in shared.items() if words]
    return short, notes


def brief(spec):
    """Words as one types them: a choice without its word's name, yes as the
    name alone, no not at all.  For labels: not always distinct."""
    head, words = head_and_words(spec)
    kept = [head]
    for w in words:
        name, _, value = w.partition("=")
        if value == "yes":
            kept.append(name)
        elif value != "no":
            kept.append(value if value.replace("-", "").isalpha() else w)
    return ",".join(kept)


def labels(specs):
    """{spec: the least that tells it from the others}."""
    short, _ = shorten(specs)
    tried = {s: brief(short[s]) for s in short}
    return tried if len(set(tried.values())) == len(tried) else short
