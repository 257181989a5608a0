"""JSON as a tree whose objects may repeat a key, and changes of such a tree.

A node is Pairs, a list, a str, bytes (written as they are), or what Python's
json makes of a leaf.  Every change is the choice of a random.Random."""
import json


class Pairs(list):
    """An object: [[key, value], ...]."""

    def get(self, key):
        return next(v for k, v in self if k == key)


NUMBERS = [0, 1, -1, 2, 3, 7, 255, 256, 65535, 2**31 - 1, 2**31, -2**31, 2**32,
           2**53 + 1, 2**63 - 1, 2**63, -2**63, 2**64, 10**30, 0.5, -0.0, -1.5,
           1e-45, 3.5e38, 1e308, b"1e400", b"-1e400", b"NaN", b"Infinity",
           b"-Infinity", b"01", b"1.", b"0x10", b"+1"]
TEXTS = ["", "a", "A" * 100000, "\0", "\x1b[2J\n", b'"\\ud800"', b'"\xff\xfe"',
         b'"\\u0000x"', "\u202e\u00e9\U0001f600", "../../m", "/dev/zero", "/",
         "%s%n", "=1+1", "0", "true", "null", "1e999", b'"open']
DEPTHS = [1, 3, 100, 2000, 100000]


def parse(text):
    return json.loads(text, object_pairs_hook=lambda p: Pairs(map(list, p)))


def dump(node):
    if isinstance(node, bytes):
        return node
    if isinstance(node, Pairs):
        return b"{" + b",".join(
            (k if isinstance(k, bytes) else json.dumps(k).encode()) + b":" +
            dump(v) for k, v in node) + b"}"
    if isinstance(node, list):
        return b"[" + b",".join(map(dump, node)) + b"]"
    return json.dumps(node).encode()


def deep(rng):
    """A value nested deep, closed or not."""
    n, (left, right) = rng.choice(DEPTHS), rng.choice(
        [(b"[", b"]"), (b'{"a":', b"}")])
    return left * n + b"1" + (right * n if rng.random() < .8 else b"")


def odd_number(rng, old=1):
    near = [old + 1, old - 1, old * 2, -old, old / 2]
    return rng.choice(near if rng.random() < .4 else NUMBERS)


def odd(rng, old=None):
    """Another value, of the same type more often than not."""
    if rng.random() < .65:
        if isinstance(old, bool):
            return not old
        if isinstance(old, (int, float)):
            return odd_number(rng, old)
        if isinstance(old, str):
            return rng.choice(TEXTS)
        if isinstance(old, list):
            return type(old)(resized(rng, old))
    return rng.choice([None, True, False, [], Pairs(), [old], [None],
                       Pairs([["a", old]]), odd_number(rng), deep(rng),
                       rng.choice(TEXTS), str(old)[:100]])


def resized(rng, items):
    """A list with some items gone, more, or in another order."""
    n, how = len(items), rng.randrange(6)
    if how == 0 or not n:
        return []
    if how == 1:
        return items[:rng.randrange(n)]
    if how == 2:
        return items * rng.choice([2, 3, 100 if n < 100 else 2])
    if how == 3:
        return rng.sample(items, n)
    i = rng.randrange(n)
    return items[:i] + items[i + 1:] if how == 4 else (
        items[:i] + [items[i]] * 2 + items[i + 1:])


def place(rng, node):
    """A list (Pairs or not) in the tree and an index of it, most often near the
    root: long lists deep down would have nearly all the places."""
    while True:
        i = rng.randrange(len(node))
        child = node[i][1] if isinstance(node, Pairs) else node[i]
        if not isinstance(child, list) or not child or rng.random() < .3:
            return node, i
        node = child


def names(node):
    """Keys of the whole tree, in their order."""
    found = []
    for item in node:
        if isinstance(node, Pairs):
            found.append(item[0])
            item = item[1]
        if isinstance(item, list):
            found += names(item)
    return found


def change(rng, root):
    """One change in place."""
    if not root:
        return
    node, i = place(rng, root)
    how = rng.randrange(8)
    if how == 0:
        del node[i]
    elif not isinstance(node, Pairs):
        node[i] = odd(rng, node[i])
    elif how == 1:
        node[i][0] = rng.choice(names(root) + ["x", "", "\0"])
    elif how == 2:
        node.insert(rng.randrange(len(node) + 1),
                    [node[i][0], rng.choice([node[i][1],
                                             odd(rng, node[i][1])])])
    elif how == 3:
        j = rng.randrange(len(node))
        node[i][1], node[j][1] = node[j][1], node[i][1]
    else:
        node[i][1] = odd(rng, node[i][1])


def changes(rng, root):
    """One change or a few."""
    while True:
        change(rng, root)
        if rng.random() < .6:
            return root


def mutate_json(rng, data):
    return dump(changes(rng, parse(data)))
