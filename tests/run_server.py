"""kvgen --serve as a client sees it, for the tests of the server."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import tiny_model
from run_tools import TOOLS, must, read, run, write

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SPECS = ["f16", "kivi:b2g16r0", "kivi:b4g16r0", "h2o:b0.9+absmax:b4",
         "hack:b2p16"]


def set_up():
    """A folder with a model, texts and a calibration, for a test's module."""
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


def tear_down():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


class Server:
    """kvgen --serve on a free port, inside a with statement or until
    close()."""

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
