"""Answers in \\boxed{}.  exact: equal after MATH's normalization; acc: exact,
or equal as sympy reads them."""
import re
import signal

from sympy import simplify
from sympy.parsing.latex import parse_latex

LIBRARIES = ["sympy"]
parse_latex("1")  # fails here if antlr4 is missing or of another version


def boxed(answer):
    """The contents of the last \\boxed, with braces matched."""
    at = answer.rfind("\\boxed")
    if at < 0:
        return None
    text, depth = answer[at + len("\\boxed"):], 0
    if not text.startswith("{"):
        return text.strip().split("$")[0].strip() or None
    for n, c in enumerate(text):
        depth += (c == "{") - (c == "}")
        if not depth:
            return text[1:n]
    return None


# ---- MATH's normalization ---------------------------------------------------

def braced(text):
    """Adds the braces of \\frac12 and \\sqrt3."""
    text = re.sub(r"\\frac([^{\s])([^{\s])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac([^{\s]){", r"\\frac{\1}{", text)
    text = re.sub(r"(\\frac\{[^{}]*\})([^{\s])", r"\1{\2}", text)
    return re.sub(r"\\sqrt([^{\[\s])", r"\\sqrt{\1}", text)


def plain(text):
    for a, b in (("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"),
                 ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
                 ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""), ("$", ""),
                 ("\\%", ""), ("%", ""), (" .", " 0."), ("{.", "{0.")):
        text = text.replace(a, b)
    text = text.split("\\text{ ")[0]  # a unit
    if text.startswith("."):
        text = "0" + text
    if text.count("=") == 1 and len(text.split("=")[0].strip()) <= 2:
        text = text.split("=")[1]
    text = braced(text).replace(" ", "")
    text = re.sub(r"^\\text\{(.*)\}$", r"\1", text)
    if text == "0.5":
        return "\\frac{1}{2}"
    return re.sub(r"^(-?\d+)/(\d+)$", r"\\frac{\1}{\2}", text)


# ---- by value ---------------------------------------------------------------

def limited(seconds, what, *args):
    """Calls what(); returns False after this many seconds, or on failure."""
    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return what(*args)
    except Exception:  # a parser may raise anything on a model's text
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def same_value(a, b):
    number = re.compile(r"-?[\d,]*\.?\d+")
    if number.fullmatch(a) and number.fullmatch(b):
        return float(a.replace(",", "")) == float(b.replace(",", ""))
    if len(a) > 300:
        return False
    return bool(simplify(parse_latex(a) - parse_latex(b)) == 0)


def score(answer, item):
    found = boxed(answer)
    if found is None:
        return {"acc": 0.0, "exact": 0.0}
    a, b = plain(found), plain(item["answer"])
    exact = a == b
    return {"acc": float(exact or limited(5, same_value, a, b)),
            "exact": float(exact)}
