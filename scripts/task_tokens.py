"""Counts tokens by a model's own tokenizer (kvdump --tokens)."""
import os
import subprocess

from task_items import die

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Tokens:
    def __init__(self, model, folder=None):
        self.model = model
        self.kvdump = os.path.join(
            folder or os.path.join(ROOT, "build", "tools"), "kvdump")
        if not os.access(self.kvdump, os.X_OK):
            die(f"{self.kvdump}: no such program, expected --bin DIR with "
                "kvdump")

    def count(self, text):
        if not text:
            return 0
        done = subprocess.run(
            [self.kvdump, "-q", "-m", self.model, "-f", "-", "--tokens"],
            input=text.encode(), capture_output=True)
        if done.returncode:
            die(done.stderr.decode(errors="replace").strip())
        return len(done.stdout.split())

    def longer(self, text, n):
        """Whether the text has more than n tokens; a token has at least one
        byte."""
        return len(text.encode()) > n and self.count(text) > n

    def _most(self, text, n, total, cut):
        """About the largest k for which cut(k) has n of the text's tokens:
        never more tokens, and at most 1 % fewer.  A count takes a second."""
        low, high = 0, len(text)
        at = len(text) * n // total
        while low < high - 1:
            have = self.count(cut(at))
            low, high = (at, high) if have <= n else (low, at)
            if 0 <= n - have <= n // 100:
                break
            at += (n - n // 200 - have) * len(text) // total
            if not low < at < high:
                at = (low + high) // 2
        return low

    def without_middle(self, text, n):
        """LongBench's cut: the first and the last n / 2 tokens."""
        total, half = self.count(text), n // 2
        head = self._most(text, half, total, lambda k: text[:k])
        tail = self._most(text, half, total, lambda k: text[len(text) - k:])
        return text[:head] + text[len(text) - tail:]
