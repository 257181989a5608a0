"""Canonical specs, made short enough for a table or a legend."""
import re


def parts(spec):
    """Splits a spec into [(text before it, spec of one scheme)]; the spec
    K-q8_0:r0s0/V-q4_0:r0s0 has two."""
    m = re.match(r"([^,+]*\+)?K-(.*)/V-(.*)", spec)
    if not m:
        return [("", spec)]
    return [((m[1] or "") + "K-", m[2]), ("/V-", m[3])]


def head_and_words(spec):
    """Splits a spec into its head and its words.  A command (cmd=, the last
    word) may hold commas."""
    before, cmd, command = spec.partition(",cmd=")
    head, *words = before.split(",")
    return head, words + [cmd[1:] + command] * bool(cmd)


def scheme(spec):
    found = [head_and_words(one)[0].split(":")[0] for _, one in parts(spec)]
    return found[0] if len(found) == 1 else "K-%s/V-%s" % tuple(found)


def shorten(specs):
    """Returns ({spec: short spec}, [a line about the omitted words]).

    Omits words that all specs of a scheme share, and r0s0 if no spec has
    another r or s.  Distinct specs stay distinct."""
    specs = list(dict.fromkeys(specs))
    ones = [one for s in specs for _, one in parts(s)]
    bare = bool(specs) and all(
        part.endswith("r0s0")
        for s in ones for part in head_and_words(s)[0].split("/"))
    shared = {}
    for s in ones:
        words = head_and_words(s)[1]
        before = shared.get(scheme(s), words)
        shared[scheme(s)] = [w for w in before if w in words]

    def short(one):
        head, words = head_and_words(one)
        if bare:
            head = "/".join(p.removesuffix("r0s0") for p in head.split("/"))
        return ",".join([head.rstrip(":")] + [
            w for w in words if w not in shared[scheme(one)]])

    notes = ["all: r0s0"] if bare else []
    notes += ["%s: %s" % (name, ",".join(words))
              for name, words in shared.items() if words]
    return {s: "".join(before + short(one) for before, one in parts(s))
            for s in specs}, notes


def places_of(row):
    """What a sentence on a row of kvppl says of its windows' places; "": the
    text's first, as in rows of versions that do not say."""
    return " at random places (seed %s)" % row["seed"] \
        if row.get("places") == "random" else ""


def brief_one(one):
    head, words = head_and_words(one)
    kept = [head]
    for w in words:
        name, _, value = w.partition("=")
        if value == "yes":
            kept.append(name)
        elif value != "no":
            kept.append(value if value.replace("-", "").isalpha() else w)
    return ",".join(kept)


def brief(spec):
    """Shortens words to the way one types them: a choice without its word's
    name, yes as the name alone, no omitted.  The results may be equal, so they
    serve only as labels."""
    return "".join(before + brief_one(one) for before, one in parts(spec))


def labels(specs):
    """{spec: the shortest label that tells it from the others}."""
    short, _ = shorten(specs)
    tried = {s: brief(short[s]) for s in short}
    return tried if len(set(tried.values())) == len(tried) else short
