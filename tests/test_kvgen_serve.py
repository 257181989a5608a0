"""kvgen --serve from the outside: answers, streams, log-probabilities, bad input,
clients that misbehave, limits, the end.

KV_SOAK=SECONDS and KV_CLIENTS=N make the last test longer."""
import csv
import http.client
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import tiny_model
from run_tools import TOOLS, must, read, run, write

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SPECS = ["f16", "kivi:b2g16r0", "kivi:b4g16r0", "h2o:b0.9+absmax:b4",
         "hack:b2p16"]


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1, ctx=512)
    write(at("m/chat_template.jinja"),
          b"{% for m in messages %}{{ m.content }}{% endfor %}")
    for name, seed in ("calib", 2), ("eval", 1):
        write(at(name + ".txt"), tiny_model.text(800, seed).encode())
    must("kvdump", "-m", at("m"), "-f", at("calib.txt"), "-c", "64", "-o",
         at("dump.h5"))
    must("kvcalib", "-s", "vecinfer:d4b4", at("dump.h5"), "-o", at("calib.h5"))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


class Server:
    """kvgen --serve at a free port; with it, or until close()."""

    def __init__(self, *more, model="m", specs=SPECS):
        argv = ["-m", at(model), "--serve", "127.0.0.1:0", "--serve-name", "t",
                *map(str, more)]
        for spec in specs:
            argv += ["-s", spec]
        self.process = subprocess.Popen(
            [os.path.join(TOOLS, "kvgen"), *argv], text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.words = []
        for line in self.process.stderr:
            self.words.append(line)
            found = re.search(r"serving t at http://127.0.0.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        else:
            raise AssertionError("".join(self.words))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self, number=signal.SIGTERM):
        """Ends it, and returns how it ended with what it has said."""
        if number and self.process.poll() is None:
            self.process.send_signal(number)
        rest = self.process.communicate(timeout=60)[1]
        self.words.append(rest)
        return self.process.returncode, "".join(self.words)

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout)

    def ask(self, path, body=None, method=None, **headers):
        """Status, body and headers of the reply."""
        c = self.connect()
        try:
            data = json.dumps(body) if isinstance(body, dict) else body
            c.request(method or ("POST" if body is not None else "GET"), path,
                      data, headers)
            r = c.getresponse()
            return r.status, r.read().decode(), r.headers
        finally:
            c.close()

    def made(self, path, **body):
        """The reply's object."""
        status, text, _ = self.ask(path, {"model": "t", "temperature": 0,
                                          **body})
        if status != 200:
            raise AssertionError(f"{status}: {text}")
        return json.loads(text)

    def text(self, **body):
        return self.made(TEXT, **body)["choices"][0]["text"]

    def stream(self, path, **body):
        """The events' objects, up to [DONE]."""
        status, text, headers = self.ask(path, {
            "model": "t", "temperature": 0, "stream": True, **body})
        if status != 200 or headers["Content-Type"] != "text/event-stream":
            raise AssertionError(f"{status}: {text}")
        events = text.split("\n\n")
        if events[-2:] != ["data: [DONE]", ""]:
            raise AssertionError(text)
        return [json.loads(x[len("data: "):]) for x in events[:-2]]

    def metrics(self):
        lines = self.ask("/metrics")[1].splitlines()
        return {name: float(x) for name, x in
                (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def is_quiet(self, seconds=30):
        """Nothing is decoded any more."""
        end = time.time() + seconds
        while time.time() < end:
            m = self.metrics()
            if not (m["kvgen_requests_open"] + m["kvgen_answers_decoding"] +
                    m["kvgen_answers_waiting"]):
                return True
            time.sleep(0.05)
        return False

    def resident(self):
        """Megabytes."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) / 1024


def generate(lines, *more):
    """kvgen's answers to a file of prompts."""
    path = write(at("p.jsonl"), "".join(json.dumps(x) + "\n" for x in lines)
                 .encode())
    must("kvgen", "-m", at("m"), "-f", path, "-o", at("a.jsonl"), *more)
    return [json.loads(x) for x in read(at("a.jsonl")).splitlines()]


def together(calls):
    """The results of functions that run at a time, in their order."""
    out = [None] * len(calls)

    def run_one(i):
        try:
            out[i] = calls[i]()
        except Exception as e:  # seen by who compares
            out[i] = e
    threads = [threading.Thread(target=run_one, args=(i,))
               for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


PROMPTS = ["the quick", "a", tiny_model.text(30, 4), "so on", "é ☃", "the the"]
ENDS = {"eos": "stop", "stop": "stop", "length": "length"}


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
        """As kvgen's with this seed; any batch; another seed another text."""
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
        """Of a text whose first token is the prompt."""
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
        """Of tokens that are parts of characters: together the answer."""
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


class Refused(unittest.TestCase):
    def test_requests(self):
        talk = [{"role": "user", "content": "a"}]
        with Server() as s:
            for path, body, words, param in (
                    (TEXT, b"{", "the body: line 1: ", None),
                    (TEXT, b"", "the body: line 1: ", None),
                    (TEXT, b"[]", "expected an object", None),
                    (TEXT, b'{"a": "\xff"}', "the body: line 1", None),
                    (TEXT, b"[" * 100000, "the body: line 1", None),
                    (TEXT, {}, "there is no prompt", "prompt"),
                    (TEXT, {"prompt": ""}, "the prompt is empty", "prompt"),
                    (TEXT, {"prompt": []}, "the prompt is empty", "prompt"),
                    (TEXT, {"prompt": [[1], "a", 3]}, "expected a text",
                     "prompt"),
                    (TEXT, {"prompt": [1, 1000000]}, "expected an id below",
                     "prompt"),
                    (TEXT, {"prompt": [1, -1]}, "expected an id below",
                     "prompt"),
                    (TEXT, {"prompt": "a " * 600}, "leaves no room", "prompt"),
                    (TEXT, {"prompt": "a", "model": "gpt-4"},
                     "there is no model gpt-4 here, it is t", "model"),
                    (TEXT, {"prompt": "a", "model": "t,kivi:b9"}, "b9",
                     "model"),
                    (TEXT, {"prompt": "a", "model": "t,kivi:b{2,4}"},
                     "expected one spec", "model"),
                    (TEXT, {"prompt": "a", "model": "mixed,file=/etc/passwd"},
                     "a spec of a file", "model"),
                    (TEXT, {"prompt": "a", "model": "vecinfer:d4b4"},
                     "needs a calibration", "model"),
                    (TEXT, {"prompt": "a", "model": "snapkv:b8+f16"},
                     "fewer than the 32", "model"),
                    (TEXT, {"prompt": "a", "model": 3}, "model: expected",
                     "model"),
                    (TEXT, {"prompt": "a", "max_tokens": 0}, "from 1 to",
                     "max_tokens"),
                    (TEXT, {"prompt": "a", "max_tokens": 1.5}, "from 1 to",
                     "max_tokens"),
                    (TEXT, {"prompt": "a", "temperature": -1}, "from 0 to",
                     "temperature"),
                    (TEXT, {"prompt": "a", "top_p": 0}, "top_p 0", None),
                    (TEXT, {"prompt": "a", "n": 100000}, "from 1 to 1024", "n"),
                    (TEXT, {"prompt": ["a"] * 9, "n": 1000}, "at most 1024",
                     "prompt"),
                    (TEXT, {"prompt": "a", "stop": [""]}, "none empty",
                     "stop"),
                    (TEXT, {"prompt": "a", "stop": ["a"] * 99}, "at most 64",
                     "stop"),
                    (TEXT, {"prompt": "a", "logprobs": 21}, "from 0 to 20",
                     "logprobs"),
                    (TEXT, {"prompt": "a", "echo": 1}, "true or false", "echo"),
                    (TEXT, {"prompt": "a", "seed": "x"}, "whole number",
                     "seed"),
                    (TEXT, {"prompt": "a", "model": "h2o:b0.9+f16", "echo":
                            True, "logprobs": 1}, "without a policy", "echo"),
                    (TEXT, {"prompt": "a", "logit_bias": {"5": 1}},
                     "logit_bias is not supported here", "logit_bias"),
                    (TEXT, {"prompt": "a", "presence_penalty": 0.5},
                     "is not supported", "presence_penalty"),
                    (TEXT, {"prompt": "a", "best_of": 3}, "is not supported",
                     "best_of"),
                    (TEXT, {"prompt": "a", "suffix": "b"}, "is not supported",
                     "suffix"),
                    (TEXT, {"prompt": "a", "beams": 3}, "is not supported",
                     "beams"),
                    (CHAT, {"messages": talk, "tools": [{}]},
                     "is not supported", "tools"),
                    (CHAT, {"messages": talk, "response_format":
                            {"type": "json_object"}}, "is not supported",
                     "response_format"),
                    (CHAT, {"messages": []}, "none is of the user",
                     "messages"),
                    (CHAT, {"messages": talk * 2}, "expected assistant",
                     "messages"),
                    (CHAT, {"messages": talk, "chat_template": "alpaca"},
                     "unknown chat template alpaca", "messages"),
                    (CHAT, {"prompt": "a"}, "is not supported", "prompt")):
                with self.subTest(body=str(body)[:60]):
                    if isinstance(body, dict):
                        body = {"model": "t", **body}
                    status, text, _ = s.ask(path, body)
                    error = json.loads(text)["error"]
                    self.assertIn(status, (400, 404), text)
                    self.assertIn(words, error["message"])
                    self.assertEqual(error["type"], "invalid_request_error")
                    if param:
                        self.assertEqual(error["param"], param)
                    self.assertNotIn("\n", error["message"])
            # what asks for nothing is taken
            s.made(TEXT, prompt="a", logit_bias={}, presence_penalty=0,
                   frequency_penalty=0.0, suffix=None, best_of=1, user="me")
            self.assertEqual(s.close()[0], 0)

    def test_http(self):
        write(at("token"), b"secret\n")
        with Server("--serve-token", at("token"), "--serve-body", "1K") as s:
            good = {"Authorization": "Bearer secret"}
            body = {"model": "t", "prompt": "a", "max_tokens": 1}
            for headers in {}, {"Authorization": "Bearer secre"}, {
                    "Authorization": "Bearer secretsecret"}, {
                    "Authorization": "Bearer Secret"}, {
                    "Authorization": "secret"}:
                for path in TEXT, "/metrics", "/nowhere":
                    status, text, got = s.ask(path, body, **headers)
                    self.assertEqual(status, 401)
                    self.assertEqual(got["WWW-Authenticate"], "Bearer")
            self.assertEqual(s.ask("/health")[0], 200)
            self.assertEqual(s.ask(TEXT, body, **good)[0], 200)
            self.assertEqual(s.ask("/nowhere", **good)[0], 404)
            status, _, got = s.ask(TEXT, **good)
            self.assertEqual((status, got["Allow"]), (405, "POST"))
            self.assertEqual(s.ask("/v1/models", b"{}", **good)[0], 405)
            # a length that is too long, and chunks that are
            status, text, _ = s.ask(TEXT, b"x" * 2000, **good)
            self.assertEqual(status, 413, text)
            status, text, _ = s.ask(TEXT, (b"x" * 100 for _ in range(20)),
                                    "POST", **good)
            self.assertEqual(status, 413, text)
            self.assertIn("1024 bytes", json.loads(text)["error"]["message"])

    def test_options(self):
        for words, more in (
                ("--serve 8080: expected ADDRESS:PORT", ["8080"]),
                ("--serve ::1:80: expected", ["::1:80"]),
                ("--serve nowhere:1:", ["nowhere:1"]),
                ("--serve 127.0.0.1:99999: expected a port up to 65535",
                 ["127.0.0.1:99999"]),
                ("expected a port", ["127.0.0.1:18446744073709551617"]),
                ("expected a loopback address", ["0.0.0.0:0"]),
                ("-f does not go with --serve", ["127.0.0.1:0", "-f", "x"]),
                ("--temperature does not go", ["127.0.0.1:0", "--temperature",
                                               "1"]),
                ("has no token", ["127.0.0.1:0", "--serve-token", write(
                    at("empty"), b"\n")]),
                ("expected a token of ASCII", ["127.0.0.1:0", "--serve-token",
                                               write(at("bad"), b"a b\n")]),
                ("needs a calibration", ["127.0.0.1:0", "-s",
                                         "vecinfer:d4b4"]),
                ("--columns does not go with --serve",
                 ["127.0.0.1:0", "--columns", "spec"]),
                ("--format does not go with --serve",
                 ["127.0.0.1:0", "--format", "md"]),
                ("--serve-requests 10001: expected 1 to 10000",
                 ["127.0.0.1:0", "--serve-requests", "10001"]),
                ("--serve-seconds 0: expected more than 0",
                 ["127.0.0.1:0", "--serve-seconds", "0"]),
                ("--batch 1000000000000: expected at most 1024 with --serve",
                 ["127.0.0.1:0", "--batch", "1000000000000"])):
            with self.subTest(words):
                done = run("kvgen", "-m", at("m"), "--serve", *more)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertNotIn("serving", done.stderr)
        for name, value in (("name", "x"), ("body", "1M"), ("requests", "5"),
                            ("seconds", "5")):
            done = run("kvgen", "-m", at("m"), "-f", at("x"), "-o", at("y"),
                       "--serve-" + name, value)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"--serve-{name} goes with --serve", done.stderr)
        with Server() as s:
            done = run("kvgen", "-m", at("m"), "--serve",
                       f"127.0.0.1:{s.port}")
            self.assertIn("Address already in use", done.stderr)

    def test_models_that_lack(self):
        """A template; finite logits."""
        def large(name, x):
            if name == "lm_head.weight":
                for i in range(len(x)):
                    x[i] *= 1e38
        tiny_model.make(at("large"), edit=large)
        talk = [{"role": "user", "content": "a"}]
        with Server(model="large", specs=[]) as s:
            status, text, _ = s.ask(CHAT, {"model": "t", "messages": talk})
            self.assertEqual(status, 400)
            self.assertIn("t has no chat template", text)
            for stream in False, True:
                status, text, _ = s.ask(TEXT, {
                    "model": "t", "prompt": "a", "temperature": 0,
                    "max_tokens": 40, "stream": stream})
                if not stream: # which may have begun
                    self.assertEqual(status, 500, text)
                self.assertIn("is not finite", text)
            self.assertEqual(s.ask("/health")[0], 200)

    def test_keys_that_overflow(self):
        """Of one token: the answers beside it are made."""
        def spike(name, x):
            hidden = 32
            if name == "model.embed_tokens.weight":
                for i in range(0, len(x), hidden):
                    x[i] = float(i == hidden * tiny_model.vocabulary()["Z"])
            elif name == "model.layers.0.self_attn.k_proj.weight":
                for i in range(0, len(x), hidden):
                    x[i] = 3e38
        tiny_model.make(at("spike"), edit=spike, ctx=512)
        z = tiny_model.vocabulary()["Z"]
        bad = {"model": "t", "prompt": [z]}, {
            "model": "t", "prompt": [1, 2, z, 3], "echo": True, "logprobs": 1}
        with Server("--ignore-eos", model="spike", specs=["f32"]) as s:
            want = s.text(prompt="the", max_tokens=200)
            for body in bad:
                got = together([lambda: s.text(prompt="the", max_tokens=200)] *
                               7 + [lambda: s.ask(TEXT, body)] * 5)
                self.assertEqual(got[:7], [want] * 7)
                for status, text, _ in got[7:]:
                    self.assertEqual(status, 500)
                    self.assertIn("in the input", text)

    def test_calibration(self):
        with open(at("calib.txt")) as f:
            seen = f.read(500)
        with Server("-C", at("calib.h5"), specs=["vecinfer:d4b4"]) as s:
            line = generate([{"prompt": "the quick"}], "-s", "vecinfer:d4b4",
                            "-C", at("calib.h5"), "--allow-leakage", "-n",
                            "8")[0]
            self.assertEqual(s.text(prompt="the quick", max_tokens=8),
                             line["text"])
            body = {"model": "t", "prompt": seen, "max_tokens": 1}
            status, text, _ = s.ask(TEXT, body)
            self.assertEqual(status, 400)
            self.assertIn("was calibrated on text that holds", text)
            self.assertEqual(s.ask(TEXT, {**body, "model": "f16"})[0], 200)

    def test_memory(self):
        """A cache that fits; one that never does."""
        with Server("--memory", "100K") as s:
            words = s.text(prompt="a", max_tokens=100)
            most = []

            def look():
                for _ in range(50):
                    most.append(s.metrics()["kvgen_answers_decoding"])
            self.assertEqual(together([lambda: s.text(
                prompt="a", max_tokens=100)] * 20 + [look]),
                [words] * 20 + [None])
            self.assertEqual(max(most), 1)
            status, text, _ = s.ask(TEXT, {"model": "t", "prompt": "a",
                                           "max_tokens": 400})
            self.assertEqual(status, 400)
            self.assertIn("room for 0.102 MB", text)


SLOW = {"model": "t", "prompt": "a", "max_tokens": 500, "temperature": 0}


def leave(s, body, after):
    """Sends a request and closes the connection after so many bytes."""
    data = json.dumps(body).encode()
    c = socket.create_connection(("127.0.0.1", s.port), 120)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\n"
              b"Content-Length: %d\r\n\r\n" % len(data) + data)
    got = 0
    while got < after:
        got += len(c.recv(after - got)) or after
    c.close()


class Clients(unittest.TestCase):
    def test_they_leave(self):
        with Server("--ignore-eos") as s:
            for after, stream in ((0, False), (0, True), (1, True),
                                  (500, True)):
                leave(s, {**SLOW, "n": 1000, "stream": stream}, after)
            self.assertTrue(s.is_quiet())
            self.assertIn('kvgen_requests_total{path="/v1/completions",'
                          'status="left"}', s.metrics())
            s.text(prompt="a")

    def test_half_a_request(self):
        with Server() as s:
            for text in (b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\n"
                         b"Content-Length: 100\r\n\r\n{\"mod",
                         b"\x00\xff\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                         b"POST /v1/completions HTTP/1.1\r\n"
                         b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"):
                c = socket.create_connection(("127.0.0.1", s.port), 120)
                c.sendall(text)
                c.close()
            c = socket.create_connection(("127.0.0.1", s.port), 120)
            c.sendall(b"POST /v1/completions HTTP/1.1\r\n"
                      b"Content-Length: 100\r\n\r\n{\"mod")
            s.text(prompt="a")
            self.assertTrue(s.is_quiet())
            c.close()

    def test_too_many(self):
        """Of requests, and of seconds."""
        with Server("--serve-requests", "2", "--ignore-eos") as s:
            busy = [threading.Thread(target=leave, args=(
                s, {**SLOW, "n": 200, "stream": True}, 10 ** 5))
                for _ in range(2)]
            for t in busy:
                t.start()
            end = time.time() + 30
            while s.metrics()["kvgen_requests_open"] < 2:
                self.assertLess(time.time(), end)
            status, text, headers = s.ask(TEXT, SLOW)
            self.assertEqual((status, headers["Retry-After"]), (429, "1"))
            self.assertEqual(json.loads(text)["error"]["type"],
                             "rate_limit_error")
            self.assertEqual(s.ask("/health")[0], 200)
            for t in busy:
                t.join()
            self.assertTrue(s.is_quiet())
            s.text(prompt="a")
        with Server("--serve-seconds", "1", "--ignore-eos") as s:
            status, text, _ = s.ask(TEXT, {**SLOW, "n": 1000})
            self.assertEqual(status, 503)
            self.assertIn("more than 1 s", text)
            _, text, _ = s.ask(TEXT, {**SLOW, "n": 1000, "stream": True})
            self.assertIn("more than 1 s", text.split("\n\n")[-2])
            self.assertTrue(s.is_quiet())

    def test_burst(self):
        """More at a time than there are connections: none is lost."""
        with Server("--serve-requests", "4") as s:
            body = {"model": "t", "prompt": "a", "max_tokens": 2}
            got = together([lambda: s.ask(TEXT, body)[0]] * 200)
            self.assertLessEqual(set(got), {200, 429})
            self.assertGreater(got.count(200), 4)

    def test_many_specs(self):
        """More than are open at a time."""
        with Server() as s:
            specs = [f"absmax:b{b}g{g}r{r}" for b in (2, 3, 4, 5)
                     for g in (8, 16) for r in range(0, 90, 10)]
            self.assertGreater(len(specs), 64)
            texts = [s.text(model=x, prompt="so on", max_tokens=4)
                     for x in specs]
            self.assertEqual(texts, [s.text(model=x, prompt="so on",
                                            max_tokens=4) for x in specs])


class End(unittest.TestCase):
    def test_answers_under_way_are_finished(self):
        for number in signal.SIGTERM, signal.SIGINT:
            s = Server("--ignore-eos")
            got = []
            t = threading.Thread(target=lambda: got.append(s.made(
                TEXT, **{**SLOW, "n": 4})))
            t.start()
            while not s.metrics()["kvgen_answers_decoding"]:
                pass
            s.process.send_signal(number)
            t.join()
            self.assertEqual([c["finish_reason"] for c in got[0]["choices"]],
                             ["length"] * 4)
            code, words = s.close(None)
            self.assertEqual(code, 0, words)
            with self.assertRaises(OSError):
                s.ask("/health")

    def test_before_there_are_requests(self):
        """A model that is still read: a pipe in the place of its token."""
        os.mkfifo(at("pipe"))
        p = subprocess.Popen([os.path.join(TOOLS, "kvgen"), "-m", at("m"),
                              "--serve", "127.0.0.1:0", "--serve-token",
                              at("pipe")], stderr=subprocess.PIPE)
        with open(at("pipe"), "wb"):
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(30), -signal.SIGTERM, p.stderr.read())
        p.stderr.close()

    def test_twice_is_at_once(self):
        s = Server("--ignore-eos")
        c = s.connect()
        c.request("POST", TEXT, json.dumps({**SLOW, "n": 1000}))
        while not s.metrics()["kvgen_answers_decoding"]:
            pass
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        self.assertEqual(s.close()[0], -signal.SIGTERM)
        c.close()


def one_of_many(s, rng, want):
    """A request as clients send them, some of which misbehave."""
    kind = rng.choice(["text", "text", "stream", "chat", "score", "bad",
                       "leave", "half", "junk", "models"])
    spec = rng.choice(SPECS)
    prompt = rng.choice(PROMPTS)
    if kind in ("text", "stream"):
        body = {"model": "t," + spec, "prompt": prompt, "max_tokens": 12}
        text = (s.text(**body) if kind == "text" else "".join(
            x["choices"][0]["text"] for x in s.stream(TEXT, **body)))
        if text != want[spec, prompt]:
            raise AssertionError(f"{spec} {prompt}: {text!r}")
    elif kind == "chat":
        s.made(CHAT, messages=[{"role": "user", "content": prompt}],
               max_tokens=5, temperature=1)
    elif kind == "score":
        s.made(TEXT, prompt=prompt, echo=True, logprobs=2, max_tokens=1)
    elif kind == "bad":
        status = s.ask(TEXT, rng.choice([b"{", b"{}", b'{"prompt": 3}']))[0]
        if status != 400:
            raise AssertionError(status)
    elif kind == "leave":
        leave(s, {**SLOW, "stream": rng.random() < .7}, rng.choice([0, 1, 900]))
    elif kind == "models":
        s.ask(rng.choice(["/v1/models", "/metrics", "/health", "/none"]))
    else:
        c = socket.create_connection(("127.0.0.1", s.port), 120)
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 90\r\n\r\n"
                  b"{" if kind == "half" else rng.randbytes(200))
        c.close()


class Soak(unittest.TestCase):
    def test_clients(self):
        """Each answer is right, and nothing stays behind."""
        seconds = float(os.environ.get("KV_SOAK", "2"))
        clients = int(os.environ.get("KV_CLIENTS", "16"))
        with Server() as s:
            want = {(spec, p): s.text(model=spec, prompt=p, max_tokens=12)
                    for spec in SPECS for p in PROMPTS}
            end = time.time() + seconds
            faults, counts = [], [0] * clients
            sizes = []

            def client(i):
                rng = random.Random(i)
                while time.time() < end and not faults:
                    try:
                        one_of_many(s, rng, want)
                        counts[i] += 1
                    except Exception as e:
                        faults.append(f"client {i}: {e!r}")
            threads = [threading.Thread(target=client, args=(i,))
                       for i in range(clients)]
            for t in threads:
                t.start()
            while any(t.is_alive() for t in threads):
                sizes.append(s.resident())
                time.sleep(max(.1, seconds / 20))
            for t in threads:
                t.join()
            self.assertEqual(faults, [])
            self.assertTrue(s.is_quiet())
            open_files = len(os.listdir(f"/proc/{s.process.pid}/fd"))
            if seconds > 2:
                print(f"{sum(counts)} requests of {clients} clients in "
                      f"{seconds:g} s; MB resident: " +
                      " ".join(f"{x:.0f}" for x in sizes + [s.resident()]) +
                      f"; {open_files} descriptors at the end")
            self.assertLess(open_files, 30)
            code, words = s.close()
            self.assertEqual(code, 0, words)
            self.assertNotIn("Sanitizer", words)


if __name__ == "__main__":
    unittest.main()
