"""kvgen --serve from the outside: answers, streams and log-probabilities."""
import csv
import io
import json
import re
import time
import unittest

import tiny_model
from run_server import (CHAT, ENDS, PROMPTS, SPECS, TEXT, Server, at, generate,
                        together, set_up, tear_down)
from run_tools import must, write

setUpModule, tearDownModule = set_up, tear_down


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        code, words = cls.server.close()
        assert code == 0, words

    def test_equal_to_kvgen(self):
        """Item by item, all prompts and specs at a time."""
        lines = generate([{"prompt": p} for p in PROMPTS], "-n", 24,
                         *[x for s in SPECS for x in ("-s", s)])
        made = together([
            lambda p=p, s=s: self.server.made(TEXT, prompt=p, model="t," + s,
                                              max_tokens=24)
            for p in PROMPTS for s in SPECS])
        for line, x in zip(lines, made, strict=True):
            self.assertIsInstance(x, dict, x)
            self.assertEqual(x["model"], "t," + line["spec"])
            choice = x["choices"][0]
            self.assertEqual((choice["text"], choice["finish_reason"]),
                             (line["text"], ENDS[line["finish_reason"]]))
            self.assertEqual(x["usage"], {
                "prompt_tokens": line["prompt_tokens"],
                "completion_tokens": line["tokens"],
                "total_tokens": line["prompt_tokens"] + line["tokens"]})

    def test_names(self):
        """NAME alone, a spec alone, a spec that is not listed."""
        for model, spec in (("t", "f16:r0s0"), ("f16", "f16:r0s0"),
                            ("t,absmax:b3", "absmax:b3g32r0s0")):
            x = self.server.made(TEXT, model=model, prompt="a", max_tokens=1)
            self.assertRegex(x["model"], "^t," + re.escape(spec[:9]))
        listed = json.loads(self.server.ask("/v1/models")[1])
        self.assertEqual((listed["object"], len(listed["data"])),
                         ("list", 1 + len(SPECS)))
        self.assertEqual(listed["data"][0]["id"], "t")

    def test_lists_of_prompts(self):
        want = [self.server.text(prompt=p, max_tokens=9) for p in PROMPTS]
        x = self.server.made(TEXT, prompt=PROMPTS, max_tokens=9)["choices"]
        self.assertEqual([c["text"] for c in x], want)
        self.assertEqual([c["index"] for c in x], list(range(len(want))))
        ids = [[116, 104, 101], [5]]
        x = self.server.made(TEXT, prompt=ids, max_tokens=9)["choices"]
        self.assertEqual(x[1]["text"], self.server.text(prompt=ids[1],
                                                        max_tokens=9))
        self.assertEqual(len(x), 2)

    def test_samples(self):
        """Answers equal kvgen's with this seed, for any batch; another seed
        gives another text."""
        how = ["--temperature", "1.5", "--top-p", ".9", "--top-k", "40",
               "--repetition-penalty", "1.1", "--samples", "3", "-n", "16"]
        same = {"temperature": 1.5, "top_p": .9, "top_k": 40, "n": 3,
                "repetition_penalty": 1.1, "max_tokens": 16, "seed": 7}
        # --seed is of the caches too, which round to the nearest here
        lines = generate([{"prompt": p} for p in PROMPTS[:2]], "-s",
                         "kivi:b2g16r0", *how, "--seed", "7")
        made = self.server.made(TEXT, model="t,kivi:b2g16r0",
                                prompt=PROMPTS[:2], **same)
        self.assertEqual([c["text"] for c in made["choices"]],
                         [x["text"] for x in lines])
        again = together([lambda: self.server.made(
            TEXT, model="kivi:b2g16r0", prompt=PROMPTS[0], **same)] * 5)
        for x in again:
            self.assertEqual([c["text"] for c in x["choices"]],
                             [x["text"] for x in lines[:3]])
        texts = {self.server.text(prompt="a", temperature=1.5, max_tokens=16,
                                  **more)
                 for more in ({"seed": 1}, {"seed": 2}, {}, {})}
        self.assertEqual(len(texts), 4)

    def test_stops(self):
        whole = self.server.text(prompt="the quick", max_tokens=40)
        stop = whole[20:22]
        for stops in stop, [stop, "x" * 30], ["never met\u2603", stop]:
            x = self.server.made(TEXT, prompt="the quick", max_tokens=40,
                                 stop=stops)["choices"][0]
            self.assertEqual((x["text"], x["finish_reason"]),
                             (whole[:whole.index(stop)], "stop"))
        self.assertEqual(self.server.text(prompt="the quick", max_tokens=40,
                                          stop="never met"), whole)

    def test_min_tokens(self):
        """As kvgen -f: later a stop may end an answer, and now not."""
        whole = self.server.text(prompt="the quick", max_tokens=20)
        at = next(i for i, c in enumerate(whole) if c.isascii())
        texts = []
        for least in 0, at + 1:
            ask = dict(prompt="the quick", max_tokens=20, stop=whole[at],
                       min_tokens=least)
            line, = generate([ask], "-s", "f16")
            x = self.server.made(TEXT, **ask)
            self.assertEqual(x["choices"][0]["text"], line["text"])
            self.assertEqual(x["usage"]["completion_tokens"], line["tokens"])
            texts.append(line["text"])
        self.assertEqual(texts[0], whole[:at])
        self.assertGreater(len(texts[1]), at)
        self.assertNotEqual(texts[1][at], whole[at])

    def test_chats(self):
        talk = [{"role": "user", "content": "the quick"}]
        line = generate([{"messages": talk}], "-s", "f16", "-n", 12)[0]
        x = self.server.made(CHAT, messages=talk, max_completion_tokens=12)
        self.assertEqual(x["object"], "chat.completion")
        self.assertEqual(x["choices"][0]["message"],
                         {"role": "assistant", "content": line["text"]})
        named = self.server.made(CHAT, messages=talk, max_tokens=3,
                                 chat_template="chatml")
        self.assertGreater(named["usage"]["prompt_tokens"],
                           x["usage"]["prompt_tokens"])


class Streams(unittest.TestCase):
    def test_joined(self):
        """Chunks are the whole text, and never begin what is cut."""
        most = []
        with Server("--ignore-eos") as s:
            whole = s.text(prompt="the quick", max_tokens=300)
            for more in ({}, {"stop": whole[60:200]}, {"echo": True},
                         {"stop": ["zz", whole[40:41]], "n": 2},
                         {"logprobs": 2}, {"logprobs": 1, "echo": True},
                         {"prompt": PROMPTS}):
                body = {"prompt": "the quick", "max_tokens": 300, **more}
                want = s.made(TEXT, **body)
                events = s.stream(TEXT, stream_options={"include_usage": True},
                                  **body)
                self.assertEqual(events[-1]["usage"], want["usage"])
                most.append(len(events))
                for choice in want["choices"]:
                    mine = [x["choices"][0] for x in events[:-1]
                            if x["choices"][0]["index"] == choice["index"]]
                    self.assertEqual("".join(x["text"] for x in mine),
                                     choice["text"])
                    self.assertEqual(
                        [x["finish_reason"] for x in mine if
                         x["finish_reason"]], [choice["finish_reason"]])
                    for name in choice["logprobs"] or []:
                        joined = [y for x in mine if x["logprobs"]
                                  for y in x["logprobs"][name]]
                        self.assertEqual(joined, choice["logprobs"][name])
        self.assertGreater(max(most), 9)

    def test_chats(self):
        with Server() as s:
            body = {"messages": [{"role": "user", "content": "so on"}],
                    "max_tokens": 30, "logprobs": True, "top_logprobs": 2}
            want = s.made(CHAT, **body)["choices"][0]
            events = [x["choices"][0] for x in s.stream(CHAT, **body)]
            self.assertEqual(events[0]["delta"]["role"], "assistant")
            self.assertEqual("".join(x["delta"].get("content", "")
                                     for x in events),
                             want["message"]["content"])
            self.assertEqual([y for x in events if x["logprobs"]
                              for y in x["logprobs"]["content"]],
                             want["logprobs"]["content"])


class LogProbs(unittest.TestCase):
    def test_sums_are_kvppl_s(self):
        """Log-probabilities of a text whose first token is the prompt."""
        text = tiny_model.text(40, 4)
        with Server() as s:
            for spec in "f32", "kivi:b2g16r0":
                x = s.made(TEXT, model=spec, prompt=text, echo=True, logprobs=1,
                           max_tokens=0)
                own = x["choices"][0]["logprobs"]["token_logprobs"]
                self.assertEqual(x["choices"][0]["text"], text)
                n = len(own)
                self.assertEqual(x["usage"]["prompt_tokens"], n)
                table = must("kvppl", "-m", at("m"), "-f", write(
                    at("t.txt"), text.encode()), "-c", n, "-n", "1", "-p",
                    "prefill:1", "-s", spec)
                row = list(csv.DictReader(io.StringIO(table)))[-1]
                self.assertIsNone(own[0])
                self.assertEqual(int(row["tokens"]), n - 2)
                self.assertAlmostEqual(-sum(own[2:]) / (n - 2),
                                       float(row["nll"]), 5)

    def test_shape(self):
        with Server() as s:
            for prompt in "the quick", [7]:
                for most in 0, 1, 5:
                    choice = s.made(TEXT, prompt=prompt, echo=True, logprobs=3,
                                    max_tokens=most)["choices"][0]
                    x = choice["logprobs"]
                    n = s.made(TEXT, prompt=prompt, max_tokens=1)["usage"][
                        "prompt_tokens"]
                    self.assertEqual({len(v) for v in x.values()}, {n + most})
                    self.assertIsNone(x["token_logprobs"][0])
                    self.assertEqual("".join(x["tokens"]), choice["text"])
                    for own, top, token in [*zip(
                            x["token_logprobs"], x["top_logprobs"],
                            x["tokens"])][1:]:
                        self.assertLessEqual(len(top), 4)
                        self.assertGreaterEqual(top[token], own)
                    # greedy tokens are the most probable
                    for own, top in [*zip(x["token_logprobs"],
                                          x["top_logprobs"])][n:]:
                        self.assertEqual(own, max(top.values()))
            self.assertEqual(s.text(prompt="so", echo=True, max_tokens=0), "so")

    def test_bytes(self):
        """Bytes of tokens that are parts of characters: together they are the
        answer."""
        own = {bytes([i]) for i in range(256)} | {b"th", b"the", b" a",
                                                  b" the"}
        with Server() as s:
            x = s.made(CHAT, messages=[{"role": "user", "content": "so"}],
                       max_tokens=200, temperature=2, seed=1, logprobs=True,
                       top_logprobs=3)["choices"][0]
            tokens = x["logprobs"]["content"]
            made = b"".join(bytes(t["bytes"]) for t in tokens)
            self.assertEqual(made.decode(errors="replace"),
                             x["message"]["content"])
            self.assertTrue(any(len(bytes([b]).decode(errors="ignore")) == 0
                                for b in made))
            for t in tokens + [u for t in tokens for u in t["top_logprobs"]]:
                if t["token"] or t["bytes"]:  # not special
                    self.assertIn(bytes(t["bytes"]), own)


if __name__ == "__main__":
    unittest.main()
