"""Checks the values of a description and of a line of answers: each key has a
test, and words for the error."""
import inspect
import json
import math

import task_prepare
from task_scorers import CUTS


def is_text(x):
    return isinstance(x, str)


def is_object(x):
    return isinstance(x, dict)


def whole(low):
    """A test for whole numbers, without bools, which are ints in Python."""
    return lambda x: type(x) is int and x >= low


def is_number(x):
    return type(x) in (int, float) and math.isfinite(x)


def texts(x, some=is_text):
    return isinstance(x, list) and all(is_text(t) and some(t) for t in x)


def is_template(x):
    return is_text(x) or bool(x) and texts(x)


def is_shots(x):
    return is_object(x) and whole(0)(x.get("count")) and \
        is_text(x.get("file")) and is_template(x.get("text")) and \
        x.get("take", "first") in ("first", "last", "drawn") and \
        whole(0)(x.get("seed", 0)) and is_object(x.get("where", {})) and \
        all(isinstance(v, list) for v in x.get("where", {}).values())


PREPARE = sorted(name for name, _ in inspect.getmembers(
    task_prepare, inspect.isfunction) if not name.startswith("_"))
A_TEXT = is_text, "a text"
FROM_1 = whole(1), "a whole number from 1 on"
NAMES = texts, "a list of texts"

KEYS = {
    "harness": A_TEXT,
    "id": A_TEXT,
    "prepare": (lambda x: is_text(x) and x in PREPARE,
                "one of " + ", ".join(PREPARE)),
    "prompt": (is_template, "a text or a list of texts"),
    "system": A_TEXT,
    "begins": A_TEXT,
    "chat": (lambda x: isinstance(x, bool), "true or false"),
    "shots": (is_shots, "an object of count (0 or more), file, text and "
              "perhaps take (first, last or drawn), seed, where"),
    "max_tokens": FROM_1,
    "min_tokens": FROM_1,
    "stop": (lambda x: texts(x, bool), "a list of texts that are not empty"),
    "cut": (lambda x: x == "middle", '"middle"'),
    "carry": NAMES,
    "answer": (lambda x: texts(x, CUTS.__contains__),
               "a list of " + ", ".join(CUTS)),
    "scorers": (lambda x: bool(x) and texts(x), "a list of scorers"),
    "pairs": (lambda x: is_object(x) and is_text(x.get("context")) and
              is_text(x.get("continuation")),
              "an object of the texts context and continuation"),
    "documents": FROM_1,
}
NEEDED = "harness", "carry", "scorers"

ANSWER = {
    "id": (lambda x: is_text(x) or type(x) is int, "a text or whole number"),
    "spec": A_TEXT,
    "task": A_TEXT,
    "item": (is_object, "an object"),
    "text": A_TEXT,
    "continuation": (lambda x: is_text(x) and bool(x.removeprefix(" ")),
                     "a text of more than a space"),
    "log_likelihood": (is_number, "a number"),
    "is_greedy": KEYS["chat"],
    "choice": (whole(0), "a whole number from 0 on"),
    "choices": FROM_1,
    "sample": (whole(0), "a whole number from 0 on"),
    "bits": (lambda x: x is None or is_number(x), "a number or null"),
    "agrees": (lambda x: x is None or is_number(x), "a number or null"),
    "changed": (is_object, "an object"),
}


def wrong_value(found, tests):
    """None, or a sentence about the first invalid value."""
    for key, value in found.items():
        fits, words = tests.get(key, (lambda x: True, None))
        if not fits(value):
            shown = json.dumps(value, ensure_ascii=False)
            return f"{key} is {shown}, expected {words}"
    return None


def wrong_description(found):
    """None, or a sentence that says why `found` is not a description of a
    task."""
    for key in found:
        if key not in KEYS:
            return f"{key} is no key of a description, expected one of " + \
                ", ".join(sorted(KEYS))
    if not ("prompt" in found) ^ ("pairs" in found):
        return "expected either prompt or pairs"
    for key in NEEDED + ("max_tokens",) * ("prompt" in found):
        if key not in found:
            return f"no {key}, which a description needs"
    return wrong_value(found, KEYS)
