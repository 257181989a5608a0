"""The texts of RULER's 13 tasks (arXiv 2404.06654), and of the passkey task.

Each maker takes a random.Random, a size (lines of noise, words, documents:
what makes a prompt longer) and a Source, and returns an item's input, answer
prefix and expected outputs.  Words are the source's own, where RULER takes
lists of English words."""
import json
import math
import random
import re
import string
import uuid

NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. "
         "There and back again.")
NEEDLE = "One of the special magic {type} for {key} is: {value}."
NIAH = ("Some special magic {type} are hidden within the following text. Make "
        "sure to memorize it. I will quiz you about the {type} afterwards.\n"
        "{context}\nWhat are all the special magic {type} for {query} "
        "mentioned in the provided text?")
NIAH_PREFIX = (" The special magic {type} for {query} mentioned in the "
               "provided text are")
CHAINS = ("Memorize and track the chain(s) of variable assignment hidden in "
          "the following text.\n\n{context}\nQuestion: Find all variables that "
          "are assigned the value {query} in the text above.")
CHAINS_PREFIX = (" Answer: According to the chain(s) of variable assignment in "
                 "the text above, {n} variables are assigned the value "
                 "{query}, they are: ")
COMMON = ("Below is a numbered list of words. In these words, some appear more "
          "often than others. Memorize the ones that appear most often.\n"
          "{context}\nQuestion: What are the 10 most common words in the above "
          "list?")
COMMON_PREFIX = (" Answer: The top 10 words that appear most often in the list "
                 "are:")
CODED = ("Read the following coded text and track the frequency of each coded "
         "word. Find the three most frequently appeared coded words. {context}"
         "\nQuestion: Do not provide any explanation. Please ignore the dots "
         "'....'. What are the three most frequently appeared words in the "
         "above coded text?")
CODED_PREFIX = (" Answer: According to the coded text above, the three most "
                "frequently appeared words are:")
ASKED = ("Answer the question based on the given documents. Only give me the "
         "answer and do not output any other words.")
QA = (ASKED + "\n\nThe following are given documents.\n\n{context}\n\n" +
      ASKED + "\n\nQuestion: {query}")
HIDDEN = ("There is an important info hidden inside a lot of irrelevant text. "
          "Find it and memorize it. I will quiz you about the important "
          "information there.\n")


class Source:
    """The text of the command line: an essay and its words, or questions with
    their paragraphs."""

    def __init__(self, text):
        self.text = text
        self.essay = text.split()
        found = re.findall(r"\b[a-z]{4,10}\b", text)
        self.words = sorted(set(found))
        self.questions = []

    def read_questions(self):
        """Reads JSON lines of question, answers and paragraphs."""
        for line in self.text.split("\n"):
            if line.strip():
                q = json.loads(line)
                self.questions.append((q["question"], q["answers"],
                                       q["paragraphs"]))


# ---- needles in a haystack --------------------------------------------------

def secret(draw, kind, source):
    if kind == "numbers":
        return str(draw.randint(1000000, 9999999))
    if kind == "uuids":
        return str(uuid.UUID(int=draw.getrandbits(128), version=4))
    return "-".join(draw.sample(source.words, 2))


def among_sentences(draw, needles, source, size):
    """Puts the needles before sentences, at depths of 40 even steps."""
    some = source.essay * (size // len(source.essay) + 1)
    sentences = re.split(r"(?<=[.!?]) ", " ".join(some[:size]))
    depths = [round(100 * i / 39) for i in range(40)]
    at = sorted(len(sentences) * d // 100
                for d in draw.sample(depths, len(needles)))
    for place, needle in reversed(list(zip(at, needles))):
        sentences.insert(place, needle)
    return " ".join(sentences)


def among_lines(draw, needles, lines):
    for place in sorted(draw.sample(range(len(lines)), len(needles)),
                        reverse=True):
        lines.insert(place, needles.pop())
    return "\n".join(lines)


def niah(haystack, keys=1, values=1, queries=1, key="words", value="numbers"):
    def make(draw, size, source):
        names = [secret(draw, key, source) for _ in range(keys)]
        hidden = [[secret(draw, value, source) for _ in range(values)]
                  for _ in names]
        needles = [NEEDLE.format(type=value, key=k, value=v)
                   for k, some in zip(names, hidden) for v in some]
        draw.shuffle(needles)
        if haystack == "essay":
            context = among_sentences(draw, needles, source, size)
        else:
            context = among_lines(draw, needles, [
                NOISE if haystack == "noise" else NEEDLE.format(
                    type=value, key=secret(draw, key, source),
                    value=secret(draw, value, source)) for _ in range(size)])
        asked = draw.sample(range(keys), queries)
        some = [names[i] for i in asked]
        query = some[0] if queries == 1 else \
            ", ".join(some[:-1]) + ", and " + some[-1]
        text, prefix, kind = NIAH, NIAH_PREFIX, value
        if queries * values == 1:
            text = text.replace("Some", "A").replace("are all", "is") \
                .replace("are", "is")
            prefix, kind = prefix.replace("are", "is"), value[:-1]
        return (text.format(type=kind, context=context, query=query),
                prefix.format(type=kind, query=query),
                [v for i in asked for v in hidden[i]])
    return make


# ---- chains, counts, questions ----------------------------------------------

def chain(draw, size, letters=5, hops=4):
    names = []
    while len(names) < hops + 1:
        name = "".join(draw.choices(string.ascii_uppercase, k=letters))
        if name not in names:
            names.append(name)
    value = str(draw.randint(10000, 99999))
    links = [f"VAR {names[0]} = {value}"] + [
        f"VAR {b} = VAR {a} " for a, b in zip(names, names[1:])]
    lines = [NOISE] * size
    for n, place in enumerate(sorted(draw.sample(range(size), len(links)))):
        lines.insert(place + n, links[n])
    return (CHAINS.format(context="\n".join(lines), query=value),
            CHAINS_PREFIX.format(n=len(names), query=value), names)


def variables(draw, size, source):
    text, prefix, names = chain(draw, 10, letters=3)
    example = text + prefix + " ".join(names) + "\n\n"
    text, prefix, names = chain(draw, max(size, 5))
    return example + text, prefix, names


def word_list(draw, words, n, often, seldom):
    some = draw.sample(words, n)
    listed = some[:10] * often + some[10:] * seldom
    draw.shuffle(listed)
    return " ".join(f"{i}. {w}" for i, w in enumerate(listed, 1)), some[:10]


def common_words(often, seldom, example_words, example_often, example_seldom):
    def make(draw, size, source):
        shown, top = word_list(draw, source.words, example_words,
                               example_often, example_seldom)
        example = COMMON.format(context=shown) + COMMON_PREFIX + " " + \
            " ".join(f"{i}. {w}" for i, w in enumerate(top, 1)) + "\n"
        shown, top = word_list(draw, source.words, max(size, 11), often,
                               seldom)
        return example + COMMON.format(context=shown), COMMON_PREFIX, top
    return make


def frequent_words(vocabulary):
    """A maker of words drawn by the zeta distribution with alpha 2; the most
    frequent word is "..."."""
    def make(draw, size, source):
        words = ["..."] + ["".join(draw.choices(string.ascii_lowercase, k=6))
                           for _ in range(vocabulary)]
        text = []
        for k, word in enumerate(words, 1):
            text += [word] * int(size / k ** 2 / (math.pi ** 2 / 6))
        draw.shuffle(text)
        return CODED.format(context=" ".join(text)), CODED_PREFIX, words[1:4]
    return make


def questions(draw, size, source):
    query, answers, gold = draw.choice(source.questions)
    other = list(dict.fromkeys(p for _, _, some in source.questions
                               for p in some if p not in gold))
    some = gold + draw.sample(other, min(max(size - len(gold), 0), len(other)))
    draw.shuffle(some)
    context = "\n\n".join(f"Document {i}:\n{p}" for i, p in enumerate(some, 1))
    return QA.format(context=context, query=query), " Answer:", answers


def passkey(draw, size, source):
    key = str(draw.randint(10000, 99999))
    lines = [NOISE] * size
    lines.insert(draw.randint(0, size), f"The pass key is {key}. Remember it. "
                 f"{key} is the pass key.")
    return HIDDEN + "\n".join(lines), "", [key]


def makers(tokens):
    """{task: its maker}, for prompts of this many tokens."""
    return {
        "niah_single_1": niah("noise"),
        "niah_single_2": niah("essay"),
        "niah_single_3": niah("essay", value="uuids"),
        "niah_multikey_1": niah("essay", keys=4),
        "niah_multikey_2": niah("needles"),
        "niah_multikey_3": niah("needles", key="uuids", value="uuids"),
        "niah_multivalue": niah("essay", values=4),
        "niah_multiquery": niah("essay", keys=4, queries=4),
        "vt": variables,
        "cwe": common_words(6, 1, 20, 3, 1) if tokens < 4096 else
        common_words(30, 3, 40, 10, 3),
        "fwe": frequent_words(tokens // 50),
        "qa_1": questions,
        "qa_2": questions,
        "passkey": passkey,
    }


def item(task, tokens, seed, index, size, source):
    """Makes an item; the same arguments give the same item."""
    draw = random.Random(f"{task} {tokens} {seed} {index}")
    return makers(tokens)[task](draw, size, source)
