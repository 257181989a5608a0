"""Prepares items of other shapes for a task's templates.  Each function takes
an item, all items, and the description, and returns the item's fields."""
import json
import random
import re

GENRES = ("action adult adventure animation biography comedy crime documentary "
          "drama family fantasy game-show history horror music musical mystery "
          "news reality-tv romance sci-fi short sport talk-show thriller war "
          "western").split()


def hellaswag(item, items, description):
    """Makes query, choices and gold as lm-evaluation-harness does."""
    if "query" in item:
        return item

    def clean(text):
        text = text.strip().replace(" [title]", ". ")
        return re.sub(r"\[.*?\]", "", text).replace("  ", " ")

    context = item["ctx_a"] + " " + item["ctx_b"].capitalize()
    return dict(item, query=clean(item["activity_label"] + ": " + context),
                choices=[clean(x) for x in item["endings"]],
                gold=int(item["label"]))


def winogrande(item, items, description):
    """Makes two contexts, each with an option in the blank, and one
    continuation."""
    before, after = item["sentence"].split("_")
    gold = item["gold"] if "gold" in item else int(item["answer"]) - 1
    return dict(item, gold=gold, rest=after.strip(),
                choices=[before + item["option1"], before + item["option2"]])


def gsm8k_boxed(item, items, description):
    """Makes the bare number the answer."""
    return dict(item, answer=item["answer"].split("#### ")[1].replace(",", ""))


def mbpp(item, items, description):
    return dict(item, tests="\n".join(item["test_list"][:3]))


def imdb_genre(item, items, description):
    return dict(item, genres=", ".join(GENRES), classes=GENRES)


def bfcl(item, items, description):
    """Shows the functions as BFCL v4 does, and the user's turn."""
    hint = " Note that the provided function is in Python 3 syntax."
    shown = [dict(f, description=f["description"] + hint)
             for f in item["function"]]
    user, = (m["content"] for m in item["question"][0] if m["role"] == "user")
    return dict(item, functions=json.dumps(shown, indent=4), user=user)


def _numbered(texts):
    return "\n\n".join(f"Document {i}: {t}" for i, t in enumerate(texts, 1))


def cocktail(item, items, description):
    """Mixes the judged documents with other queries' documents, up to
    `documents` in all.  Some answers are numbers in the file."""
    own = [d["human"] for d in item["docs"]]
    other = [d["human"] for x in items if x is not item for d in x["docs"]]
    draw = random.Random(item["id"])
    extra = max(description["documents"] - len(own), 0)
    texts = own + draw.sample(other, min(extra, len(other)))
    draw.shuffle(texts)
    return dict(item, documents=_numbered(texts), answers=[str(item["answer"])])


def cocktail_rank(item, items, description):
    texts = [f"{d['title']}\n{d['text']}" for d in item["docs"]]
    return dict(item, documents=_numbered(texts),
                relevance=[d["relevance"] for d in item["docs"]])
