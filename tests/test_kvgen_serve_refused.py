"""kvgen --serve: requests, options and models that are refused, and limits."""
import json
import unittest

import tiny_model
from run_server import (CHAT, TEXT, Server, at, generate, together, set_up,
                        tear_down)
from run_tools import read, run, write

setUpModule, tearDownModule = set_up, tear_down


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
                    (TEXT, {"prompt": "a", "model": "t,exec:b2,cmd=exit 3"},
                     "a spec of a file, of a command", "model"),
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
                    (TEXT, {"prompt": "a", "min_tokens": 17}, "from 0 to 16",
                     "min_tokens"),
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
            # fields without effect are accepted
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
        """A request of one token: the answers beside it are made."""
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
        with Server("--memory", "200K") as s:
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
            self.assertIn("room for 0.205 MB", text)


if __name__ == "__main__":
    unittest.main()
