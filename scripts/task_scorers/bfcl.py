"""BFCL's verdicts on tool calls (AST, Python): an answer that parses to calls,
each with the right name, parameters, types and values."""
import ast
import re

TYPES = {"string": str, "integer": int, "float": float, "boolean": bool,
         "array": list, "tuple": list, "dict": dict, "any": str}


# ---- the answer as calls ----------------------------------------------------

def value_of(node):
    if isinstance(node, ast.Constant):
        return "..." if node.value is Ellipsis else node.value
    if isinstance(node, ast.UnaryOp):
        return -node.operand.value
    if isinstance(node, ast.List):
        return [value_of(x) for x in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(value_of(x) for x in node.elts)
    if isinstance(node, ast.Dict):
        return {value_of(k): value_of(v)
                for k, v in zip(node.keys, node.values)}
    if isinstance(node, ast.BinOp):
        return arithmetic(node)
    if isinstance(node, ast.Call) and node.keywords:
        return call_of(node)
    if isinstance(node, (ast.Name, ast.Call, ast.Subscript)):
        return ast.unparse(node)
    raise ValueError(ast.dump(node))


def arithmetic(node):
    """The value of an expression of numbers; BFCL's package would evaluate any
    expression."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -arithmetic(node.operand)
    a, b = arithmetic(node.left), arithmetic(node.right)
    if isinstance(node.op, ast.Pow) and (abs(a) > 1e6 or abs(b) > 100):
        raise ValueError("too large a power")
    return {ast.Add: lambda: a + b, ast.Sub: lambda: a - b,
            ast.Mult: lambda: a * b, ast.Div: lambda: a / b,
            ast.FloorDiv: lambda: a // b, ast.Mod: lambda: a % b,
            ast.Pow: lambda: a ** b}[type(node.op)]()


def call_of(node):
    """{name: {parameter: value}}; arguments without a name are dropped."""
    parts, f = [], node.func
    while isinstance(f, ast.Attribute):
        parts.append(f.attr)
        f = f.value
    if isinstance(f, ast.Name):
        parts.append(f.id)
    return {".".join(reversed(parts)):
            {k.arg: value_of(k.value) for k in node.keywords}}


def calls_of(answer):
    """The answer's calls; None: it does not parse to calls."""
    text = answer.strip("`\n ")
    text = ("" if text.startswith("[") else "[") + text + \
        ("" if text.endswith("]") else "]")
    try:
        body = ast.parse(text.strip().strip("'"), mode="eval").body
        nodes = [body] if isinstance(body, ast.Call) else body.elts
        if not all(isinstance(n, ast.Call) for n in nodes):
            return None
        return [call_of(n) for n in nodes]
    except (SyntaxError, ValueError, TypeError, AttributeError, KeyError,
            ArithmeticError, RecursionError, MemoryError):
        return None


# ---- values -----------------------------------------------------------------

def plain(x):
    """A text without blanks and marks, in lower case; other values
    unchanged."""
    return re.sub(r"[ ,./\-_*^]", "", x).lower().replace("'", '"') \
        if isinstance(x, str) else x


def right_list(value, allowed):
    return [plain(x) for x in value] in [[plain(x) for x in some]
                                         for some in allowed]


def right_dict(value, allowed):
    def fits(some):
        return all(k in some and plain(v) in [plain(x) for x in some[k]]
                   for k, v in value.items()) and \
            all(k in value or "" in v for k, v in some.items())
    return any(fits(some) for some in allowed if some != "")


def right_dicts(value, allowed):
    return any(len(value) == len(some) and
               all(right_dict(v, [s]) for v, s in zip(value, some))
               for some in allowed)


def right_type(value, allowed, type_, inner):
    """(fits, is a variable).  A text in place of another declared type stands
    for a variable."""
    known = next((type(a) for a in allowed if a != ""), None)
    variable = known is not None and known != type_
    if type(value) is type_:
        if inner is None:
            return True, variable
        return any(not isinstance(some, list) or
                   all(right_type(v, some, inner, None)[0] for v in value)
                   for some in allowed), variable
    return known is not None and type(value) is known, True


def right_value(value, allowed, schema):
    type_ = TYPES[schema["type"]]
    inner = TYPES[schema["items"]["type"]] \
        if schema["type"] in ("array", "tuple") else None
    if schema["type"] == "tuple" and isinstance(value, tuple):
        value = list(value)
    if schema["type"] == "float" and type(value) is int:
        value = float(value)
    fits, variable = right_type(value, allowed, type_, inner)
    if not fits:
        return False
    if variable or type_ in (int, float, bool):
        return value in allowed
    if type_ is dict:
        return right_dict(value, allowed)
    if type_ is list:
        return (right_dicts if inner is dict else right_list)(value, allowed)
    return plain(value) in [plain(a) for a in allowed if isinstance(a, str)]


# ---- calls ------------------------------------------------------------------

def right_call(call, expected, functions):
    (name, allowed), = expected.items()
    schema = next(f for f in functions if f["name"] == name)["parameters"]
    given = call.get(name)
    if given is None or any(p not in given for p in schema["required"]):
        return False
    return all(p in schema["properties"] and p in allowed and
               right_value(v, allowed[p], schema["properties"][p])
               for p, v in given.items()) and \
        all(p in given or "" in some for p, some in allowed.items())


def verdict(answer, item, functions):
    calls, expected = calls_of(answer), item["ground_truth"]
    if calls is None or len(calls) != len(expected):
        return 0.0
    left = list(calls)
    for e in expected:
        match = next((c for c in left if right_call(c, e, functions)), None)
        if match is None:
            return 0.0
        left.remove(match)
    return 1.0


def score(answer, item):
    return {"acc": verdict(answer, item, item["function"])}


def score_bfcl_irrelevance(answer, item):
    """Right if the answer has no call at all."""
    return {"acc": float(not calls_of(answer))}
