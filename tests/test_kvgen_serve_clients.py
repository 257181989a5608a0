"""kvgen --serve: clients that misbehave, many at a time, and the end.

KV_SOAK=SECONDS and KV_CLIENTS=N make the last test longer."""
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import unittest

from run_server import (CHAT, PROMPTS, SPECS, TEXT, Server, at, together,
                        set_up, tear_down)
from run_tools import TOOLS, read

setUpModule, tearDownModule = set_up, tear_down

SLOW = {"model": "t", "prompt": "a", "max_tokens": 500, "temperature": 0}


def leave(s, body, after):
    """Sends a request and closes the connection after this many bytes."""
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
            leave(s, SLOW, 0)
            end = time.time() + 60
            while not s.metrics()["kvgen_tokens_total"]:
                self.assertLess(time.time(), end)
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
        """Limits of requests, and of seconds."""
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
        """More requests at a time than connections: none is lost."""
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
                TEXT, **{**SLOW, "max_tokens": 100, "n": 4})))
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
    """A request as clients send it; some clients misbehave."""
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
