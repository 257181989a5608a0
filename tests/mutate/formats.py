"""Each binary or line format: taken apart, changed in one field or a few, and
put together with the checksums and counts that it should have, unless the
change is one of these.  mutate_*(rng, bytes) gives the changed bytes."""
import re
import struct

import tree


def some(rng, do):
    """Calls do() once or a few times."""
    while True:
        do()
        if rng.random() < .6:
            return


def spoiled_floats(rng, data, at, end):
    """Replaces one f32 value of data[at:end] by an odd one."""
    i = at + 4 * rng.randrange(max(1, (end - at) // 4))
    x = struct.pack("<f", rng.choice([float("nan"), float("inf"), -float("inf"),
                                      3e38, -3e38, 1e-45, 0, 1e20, -1]))
    return data[:i] + x + data[i + 4:]


def resized(rng, data):
    return rng.choice([data[:rng.randrange(len(data) + 1)], data[:-1],
                       data + b"\0" * rng.choice([1, 7, 4096])])


# ---- safetensors ------------------------------------------------------------


def mutate_safetensors(rng, data):
    n = struct.unpack("<Q", data[:8])[0]
    head, body = data[8:8 + n], data[8 + n:]
    how = rng.randrange(10)
    if how == 0:
        return struct.pack("<Q", rng.choice([0, 1, n - 1, n + 1, 2**32, 2**63,
                                             len(data)])) + data[8:]
    if how == 1:
        return resized(rng, data)
    if how == 2:
        return spoiled_floats(rng, data, 8 + n, len(data))
    head = tree.parse(head)
    if how < 6:  # an offset, a count or a type that may well be right
        t = rng.choice([t for name, t in head if name != "__metadata__"])
        field = rng.choice(t)
        if field[0] == "dtype":
            field[1] = rng.choice("F64 F32 F16 BF16 I64 I32 I8 U8 BOOL F8_E4M3 "
                                  "F8_E5M2 F4 f32".split())
        else:
            i = rng.randrange(len(field[1]))
            field[1][i] = tree.odd_number(rng, field[1][i])
    else:
        tree.changes(rng, head)
    head = tree.dump(head)
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + body


# ---- GGUF -------------------------------------------------------------------

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
PACKED = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f",
          BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def packed(kind, x):
    """Packs x as this type; of a larger x only the low bits."""
    if kind == TEXT:
        x = x if isinstance(x, bytes) else str(x).encode("utf-8", "replace")
        return struct.pack("<Q", len(x)) + x
    if kind not in PACKED:
        return b"\0" * 8
    if isinstance(x, bytes):  # of tree.NUMBERS
        x = {b"Infinity": float("inf"), b"-Infinity": -float("inf")}.get(
            x, float("nan"))
    if not isinstance(x, (int, float)):
        x = len(x or "")
    size = struct.calcsize("<" + PACKED[kind])
    if kind in (F32, F64):
        try:
            return struct.pack("<" + PACKED[kind], x)
        except OverflowError:
            return struct.pack("<" + PACKED[kind], float("inf"))
    x = int(x) if x == x and abs(x) < 1e40 else -1
    return (x & (1 << 8 * size) - 1).to_bytes(size, "little")


def is_array(value):
    """Whether the value is an array of the original file: changes make other
    lists."""
    return isinstance(value, list) and len(value) == 3 and isinstance(
        value[0], int) and isinstance(value[1], list)


class Gguf:
    """keys: [name, type, value]; an array's value is [type, values, n], n None
    for as many as there are.  tensors: [name, dims, type, data], dims as in the
    file: the fastest first."""

    def __init__(self, keys, tensors):
        self.keys, self.tensors = keys, tensors
        self.version, self.counts, self.shift = 3, [None, None], {}

    def write(self):
        n_tensors, n_keys = self.counts
        out = b"GGUF" + struct.pack("<I", self.version) + packed(
            U64, len(self.tensors) if n_tensors is None else n_tensors
        ) + packed(U64, len(self.keys) if n_keys is None else n_keys)
        for name, kind, value in self.keys:
            out += packed(TEXT, name) + struct.pack("<I", kind)
            if kind == ARRAY and is_array(value):
                of, values, n = value
                out += struct.pack("<I", of) + packed(
                    U64, len(values) if n is None else n) + b"".join(
                        packed(of, x) for x in values)
            else:
                out += packed(kind, value)
        data = b""
        for i, (name, dims, kind, bytes_) in enumerate(self.tensors):
            out += packed(TEXT, name) + struct.pack("<I", len(dims))
            out += b"".join(packed(U64, d) for d in dims)
            out += struct.pack("<I", kind) + packed(
                U64, self.shift.get(i, len(data)))
            data += bytes_ + b"\0" * (-len(bytes_) % 32)
        return out + b"\0" * (-len(out) % 32) + data


def change_key(rng, g):
    i = rng.randrange(len(g.keys))
    name, kind, value = g.keys[i]
    how = rng.randrange(7)
    if how == 0:
        del g.keys[i]
    elif how == 1:
        g.keys.insert(i, [name, kind, value if rng.random() < .5 else
                          tree.odd(rng, value)])
    elif how == 2:
        g.keys[i][0] = rng.choice([k[0] for k in g.keys] + tree.TEXTS)
    elif how == 3:
        g.keys[i][1] = rng.choice([*range(13), 13, 99, 2**32 - 1])
    elif how == 4:
        g.keys[i] = [name, ARRAY, [rng.choice([*range(14), 2**31]),
                                   [value] * rng.randrange(4), None]]
    elif kind == ARRAY and is_array(value):
        of, values, _ = value
        g.keys[i] = [name, ARRAY, rng.choice([
            [rng.randrange(14), values, None], [of, values, tree.odd_number(
                rng, len(values))], [of, tree.resized(rng, values), None],
            [of, [*values[1:], tree.odd(rng, (values or [0])[0])], None]])]
    else:
        g.keys[i][2] = tree.odd(rng, value)


def change_tensor(rng, g):
    i = rng.randrange(len(g.tensors))
    t = g.tensors[i]
    how = rng.randrange(7)
    if how == 0:
        del g.tensors[i]
    elif how == 1:
        g.tensors.insert(i, list(t))
    elif how == 2:
        t[0] = rng.choice([x[0] for x in g.tensors] + tree.TEXTS)
    elif how == 3:
        t[1] = tree.resized(rng, t[1])
    elif how == 4 and t[1]:
        j = rng.randrange(len(t[1]))
        t[1] = [*t[1][:j], tree.odd_number(rng, t[1][j]), *t[1][j + 1:]]
    elif how == 5:
        t[2] = rng.choice([*range(42), 99, 2**31, 2**32 - 1])
    elif rng.random() < .5:
        g.shift[i] = rng.choice([0, 1, 32, 2**32, 2**63, 2**64 - 32])
    else:
        t[3] = spoiled_floats(rng, t[3], 0, len(t[3]))


def mutate_gguf(rng, make):
    """make() gives the intact one."""
    g = make()
    how = rng.randrange(12)
    if how == 0:
        return resized(rng, g.write())
    if how == 1:
        g.version = rng.choice([0, 1, 2, 4, 2**31, 3 << 24])
    elif how == 2:
        g.counts[rng.randrange(2)] = rng.choice([0, 1, 10**6, 2**32, 2**63, -1])
    elif how < 5:
        some(rng, lambda: g.tensors and change_tensor(rng, g))
    else:
        some(rng, lambda: g.keys and change_key(rng, g))
    return g.write()


# ---- Protocol Buffers (tokenizer.model) -------------------------------------


def varint(x):
    x &= 2**64 - 1
    out = b""
    while x > 127:
        out, x = out + bytes([x & 127 | 128]), x >> 7
    return out + bytes([x])


def proto(fields):
    """[[field, wire type, value]]; value: int, bytes, or fields."""
    out = b""
    for field, wire, value in fields:
        out += varint(field << 3 | wire)
        if isinstance(value, list):
            value = proto(value)
        if wire == 2:
            value = value if isinstance(value, bytes) else varint(value)
            out += varint(len(value)) + value
        elif wire == 0:
            out += varint(value if isinstance(value, int) else len(value))
        else:
            size = 4 if wire == 5 else 8
            out += (value if isinstance(value, bytes) else varint(
                value)).ljust(size, b"\0")[:size]
    return out


def change_proto(rng, fields):
    i = rng.randrange(len(fields))
    field, wire, value = fields[i]
    if isinstance(value, list) and value and rng.random() < .7:
        change_proto(rng, value)
        return
    how = rng.randrange(7)
    if how == 0:
        del fields[i]
    elif how == 1:
        fields[i:i] = [[field, wire, value]] * rng.choice([1, 50])
    elif how == 2:
        fields[i] = [rng.choice([1, 2, 3, 4, 35, 41, 1000, 2**29]), wire, value]
    elif how == 3:
        fields[i] = [field, rng.choice([0, 1, 2, 3, 4, 5, 7]), value]
    elif how == 4:
        j = rng.randrange(len(fields))
        fields[i], fields[j] = fields[j], fields[i]
    elif wire == 2:
        fields[i] = [field, 2, rng.choice([
            b"", b"\xff\xfe", b"A" * 70000, b"\0", b"\xe2\x96\x81", b"<0x0G>",
            b"\xf8\x88\x80\x80\x80", varint(2**63)])]
    elif wire == 5:
        fields[i] = [field, 5, struct.pack("<f", rng.choice(
            [float("nan"), float("inf"), -3e38, 0, 1]))]
    else:
        fields[i] = [field, wire, rng.choice([
            0, 1, 2, 3, 4, 5, 6, 7, 127, 2**31, 2**32 - 1, 2**63, 2**64 - 1])]


def mutate_proto(rng, make):
    fields = make()
    some(rng, lambda: fields and change_proto(rng, fields))
    data = proto(fields)
    return resized(rng, data) if rng.random() < .1 else data


# ---- llama.cpp's base of log-probabilities ----------------------------------


def mutate_klbase(rng, data):
    how = rng.randrange(8)
    if how == 0:
        return resized(rng, data)
    if how < 4:  # magic, n_ctx, n_vocab, n_chunk
        i = rng.choice([0, 8, 12, 16])
        x = struct.unpack_from("<i", data, i)[0]
        return data[:i] + packed(I32, tree.odd_number(rng, x)) + data[i + 4:]
    ctx, vocab, chunks = struct.unpack_from("<iii", data, 8)
    tokens, row = 20 + 4 * ctx * chunks, 8 + 2 * (vocab + vocab % 2)
    if how == 4:
        i = rng.randrange(20, tokens, 4)
        return data[:i] + packed(I32, tree.odd_number(rng)) + data[i + 4:]
    i = tokens + row * rng.randrange((len(data) - tokens) // row)
    if how == 5:  # codes
        x = rng.choice([b"\0\0", b"\xff\xff", b"\xff\x7f"]) * vocab
        return data[:i + 8] + x + data[i + 8 + len(x):]
    return spoiled_floats(rng, data, i, i + 8)


# ---- lines ------------------------------------------------------------------


def change_words(rng, words, join):
    """words: the words of one line, or the lines."""
    if not words:
        return words
    i = rng.randrange(len(words))
    how = rng.randrange(5)
    if how == 0:
        return words[:i] + words[i + 1:]
    if how == 1:
        return words[:i + 1] + words[i:]
    if how == 2:
        return rng.sample(words, len(words))
    odd = rng.choice(tree.NUMBERS + tree.TEXTS)
    odd = odd if isinstance(odd, bytes) else str(odd).encode("utf-8", "replace")
    return [*words[:i], odd if how == 3 else words[i] + join + odd,
            *words[i + 1:]]


def mutate_lines(rng, data, cut=b"[\t ,]", join=b" "):
    """Lines, and the words of one; cut is kept where words stay."""
    lines = data.split(b"\n")
    i = rng.randrange(len(lines))
    how = rng.randrange(8)
    if how == 0:
        return resized(rng, data)
    if how == 1:
        return rng.choice([b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"),
                           data.replace(b"\n", b"\0"), b"", b"\n" * 1000,
                           data * 50])
    if how < 4:
        return b"\n".join(change_words(rng, lines, b""))
    between = re.findall(cut, lines[i])[:1] or [join]
    lines[i] = between[0].join(change_words(rng, re.split(cut, lines[i]), join))
    return b"\n".join(lines)


def mutate_table(rng, data):
    return mutate_lines(rng, data, b",", b'"')


# ---- chat templates ---------------------------------------------------------


def mutate_template(rng, data):
    """data: a template as text."""
    words = re.findall(r"\{%-?|-?%\}|\{\{|\}\}|\w+|'[^']*'|\s+|.", data, re.S)

    def do():
        i = rng.randrange(len(words) + 1)
        n = rng.choice([10, 1000, 30000])
        how = rng.randrange(7)
        if how == 0 and words:
            del words[i % len(words)]
        elif how == 1 and words:
            words.insert(i, rng.choice(words))
        elif how == 2 and words:
            words[i % len(words)] = rng.choice(words)
        elif how == 3:
            left, right = rng.choice([
                ("{% if true %}", "{% endif %}"),
                ("{% for x in [1] %}", "{% endfor %}"),
                ("{{ " + "(" * n + "1" + ")" * n + " }}", ""),
                ("{{ " + "not " * n + "1 }}", ""),
                ("{{ " + "-" * n + "1 }}", ""),
                ("{{ " + "[" * n + "]" * n + " }}", ""),
                ("{{ 1" + " + 1" * n + " }}", ""),
                ("{{ x" + ".x" * n + " }}", ""),
                ("{{ x" + " | trim" * n + " }}", "")])
            words.insert(i, (left * n + right * n) if right else left)
        else:
            words.insert(i, rng.choice([
                "{{ 'a' * 1000000000 }}",
                "{% for i in range(10**12) %}{% endfor %}",
                "{% for i in range(999999999) %}a{% endfor %}",
                "{% set x = 'aaaa' %}" + "{% set x = x + x %}" * 40 + "{{ x }}",
                "{% set ns = namespace(x=[]) %}" +
                "{% set ns.x = ns.x + [ns.x, ns.x] %}" * 40 + "{{ ns.x }}",
                "{% for a in 'aaaaaaaaaaaaaaaa' %}" * 12 + "b" +
                "{% endfor %}" * 12,
                "{{ raise_exception('no') }}", "{{ messages }}", "{{ 1 // 0 }}",
                "{{ 1 % 0 }}", "{{ messages[99] }}",
                "{{ messages[-1].content }}", "{{ messages[::-1] }}",
                "{{ messages[::0] }}", "{# open", "{%",
                "{{ (2**62) * 8 }}", "{{ -9223372036854775808 // -1 }}",
                "{{ 'x'.split('') }}", "{{ 'x'.replace('', 'yy') }}",
                "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                "{% generation %}", "{{ '%s' % 1 }}", "\0", "\udcff"]))

    some(rng, do)
    return "".join(words)
