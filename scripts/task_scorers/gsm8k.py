"""GSM8K's answers as lm-evaluation-harness takes them out and compares them."""
import re

STRICT = r"#### (\-?[0-9\.\,]+)"
COT = r"The answer is (\-?[0-9\.\,]+)."
FLEXIBLE = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
INVALID = "[invalid]"


def first(pattern, answer):
    m = re.search(pattern, answer)
    return m[1].strip() if m else INVALID


def last_number(answer):
    found = re.findall(FLEXIBLE, answer)
    return next(filter(None, found[-1])).strip() if found else INVALID


def plain(text):
    for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
        text = re.sub(pattern, "", text)
    return text.lower()


def score(answer, item):
    right = plain(item["answer"])
    return {"flexible": float(plain(last_number(answer)) == right),
            "strict": float(plain(first(STRICT, answer)) == right),
            "cot_strict": float(plain(first(COT, answer)) == right)}
