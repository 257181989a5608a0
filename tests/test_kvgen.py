"""kvgen from the outside: answers and rows, batches, stops, conversations, bad
input."""
import csv
import io
import json
import os
import shutil
import tempfile
import unittest

import tiny_model
from run_tools import must, read, run, write


def setUpModule():
    global folder
    folder = tempfile.mkdtemp(prefix="kvtools-")
    tiny_model.make(at("m"), seed=1)
    tiny_model.make(at("other"), seed=2)
    for name in "calib", "eval":
        write(at(name + ".txt"),
              tiny_model.text(800, 2 if name == "calib" else 1).encode())
    for name, text in ("calib.h5", "calib.txt"), ("leaky.h5", "eval.txt"):
        must("kvdump", "-m", at("m"), "-f", at(text), "-c", "64", "-o",
             at("dump.h5"))
        must("kvcalib", "-s", "vecinfer:d4b4", at("dump.h5"), "-o", at(name))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def prompts(*lines):
    """A file of them: texts are prompts, dicts are lines."""
    objects = [x if isinstance(x, dict) else {"prompt": x} for x in lines]
    return write(at("p.jsonl"), "".join(json.dumps(x) + "\n" for x in objects)
                 .encode())


def args(path, *more, model="m"):
    return ["-m", at(model), "-f", path, "-o", at("a.jsonl"), *map(str, more)]


def answers():
    return [json.loads(line) for line in read(at("a.jsonl")).splitlines()]


def generate(path, *more, model="m"):
    """Answers, and rows."""
    table = must("kvgen", *args(path, *more, model=model))
    return answers(), list(csv.DictReader(io.StringIO(table, newline="")))


def timeless(lines):
    return [{k: v for k, v in x.items() if "second" not in k and
             not k.startswith("tokens_s") and k not in ("batch", "threads")}
            for x in lines]


class Case(unittest.TestCase):
    def refused(self, words, *argv):
        """Nothing is written, and nothing generated before."""
        if os.path.exists(at("a.jsonl")):
            os.remove(at("a.jsonl"))
        done = run("kvgen", *argv)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn(words, done.stderr)
        self.assertEqual(done.stderr.rstrip("\n").count("\n"),
                         done.stderr.count("kvgen: ") - 1, done.stderr)
        self.assertFalse(os.path.exists(at("a.jsonl")))


class Answers(Case):
    def test_lines_and_rows(self):
        path = prompts("the quick", {"prompt": "a", "id": "x", "max_tokens": 3,
                                     "task_id": [1, None, {"é": 0.5}]})
        lines, rows = generate(path, "-n", 12, "-s", "f16", "-s", "absmax:b2",
                               "--ignore-eos")
        self.assertEqual([x["id"] for x in lines], [1, 1, "x", "x"])
        self.assertEqual([x["tokens"] for x in lines], [12, 12, 3, 3])
        self.assertEqual(lines[3]["task_id"], [1, None, {"é": 0.5}])
        self.assertEqual(lines[3]["max_tokens"], 3)
        self.assertEqual(lines[0]["prompt"], "the quick")
        self.assertEqual([r["spec"] for r in rows],
                         [x["spec"] for x in lines[:2]])
        for i, row in enumerate(rows):
            mine = lines[i::2]
            for name, column in (("tokens", "tokens"), ("agrees", "agree"),
                                 ("prompt_tokens", "prompt_tokens"),
                                 ("tokens_s", "tokens_s")):
                mean = sum(x[name] for x in mine) / 2
                self.assertAlmostEqual(float(row[column]) / mean, 1, 6)
            self.assertAlmostEqual(float(row["tokens_se"]), 4.5, 6)
            self.assertEqual((row["by_length"], row["answers"],
                              row["protocol"], row["tool"]),
                             ("2", "2", "greedy", "kvgen"))
            self.assertEqual(row["bits_nominal"], ["16", "2"][i])
        self.assertEqual((lines[0]["agrees"], lines[2]["agrees"]), (12, 3))
        self.assertEqual((lines[0]["bits"], lines[0]["kept"]), (16, 1))
        self.assertEqual(rows[0]["same"], "1")
        self.assertEqual({x["finish_reason"] for x in lines}, {"length"})

    def test_no_reference(self):
        lines, rows = generate(prompts("the quick"), "-s", "absmax:b2", "-n", 2)
        self.assertIsNone(lines[0]["agrees"])
        self.assertEqual(rows[0]["agree"], "")
        lines, rows = generate(prompts("the quick"), "-n", 1)
        self.assertEqual((lines[0]["spec"], lines[0]["tokens_s"]),
                         ("f32:r0s0", None))

    def test_any_batch_threads_and_shards(self):
        """Sampled answers too."""
        path = prompts("the quick", "a", tiny_model.text(5, 4), "so on")
        for more in ([], ["--temperature", "1.2", "--top-p", ".9", "--top-k",
                          "20", "--repetition-penalty", "1.1", "--samples",
                          "3", "--seed", "5"]):
            specs = ["-n", "9", "-s", "f16", "-s", "kivi:b2g16r0", "-s",
                     "h2o:b0.9+absmax:b4", "-s", "hack:b2p16", *more]
            lines, rows = map(timeless, generate(path, *specs))
            if more:
                self.assertGreater(len({x["text"] for x in lines
                                        if x["id"] == 1}), 1)
            for batch in "1", "2", "8":
                for threads in "1", "2":
                    again = generate(path, *specs, "--batch", batch, "-t",
                                     threads)
                    self.assertEqual([lines, rows], [*map(timeless, again)])
            parts = [x for i in (1, 2) for x in
                     generate(path, *specs, "--shard", f"{i}/2")[0]]
            self.assertEqual(sorted(map(str, lines)),
                             sorted(map(str, timeless(parts))))
        self.assertEqual(generate(path, "--shard", "6/6", "-n", "2")[0], [])

    def test_seeds(self):
        path = prompts("the quick")
        texts = [generate(path, "-n", 20, "--temperature", "2", "--seed", s)
                 [0][0]["text"] for s in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        # one of one is the most probable
        cold = generate(path, "-n", 20)[0][0]["text"]
        for more in ["--top-k", "1"], ["--top-p", "1e-9"]:
            self.assertEqual(generate(path, "-n", 20, "--temperature", "2",
                                      *more)[0][0]["text"], cold)

    def test_stops(self):
        whole, _ = generate(prompts("the quick"), "-n", 20, "--ignore-eos")
        text = whole[0]["text"]
        stop = text[len(text) // 2:len(text) // 2 + 2]
        want = text[:text.index(stop)]
        for line, more in (({"prompt": "the quick", "stop": stop}, []),
                           ({"prompt": "the quick", "stop": [stop, "x" * 9]},
                            []),
                           ("the quick", ["--stop", stop, "--stop", "none"])):
            lines, rows = generate(prompts(line), "-n", 20, "--ignore-eos",
                                   *more)
            self.assertEqual((lines[0]["text"], lines[0]["finish_reason"]),
                             (want, "stop"))
            self.assertLess(lines[0]["tokens"], 20)
            self.assertEqual(rows[0]["by_stop"], "1")
            self.assertEqual(rows[0]["stops"] and json.loads(rows[0]["stops"]),
                             [stop, "none"] if more else "")

    def test_min_tokens(self):
        """Until then a stop of one token is not chosen, and no other is looked
        for."""
        def made(stop, least, *more):
            lines, table = generate(prompts({
                "prompt": "dng", "stop": stop, "min_tokens": least}), "-n", 20,
                *more)
            return lines[0]["text"], table[0]["min_tokens"]

        whole = generate(prompts("dng"), "-n", 20)[0][0]["text"]
        self.assertTrue(whole[:4].isascii(), whole)  # a token each
        self.assertEqual(made(whole[2], 1)[0], whole[:2])
        for least, more in (3, []), (None, ["--min-tokens", 3]):
            text, said = made(whole[2], least, *more)
            self.assertEqual(text[:2], whole[:2])
            self.assertGreater(len(text), 2)
            self.assertNotEqual(text[2], whole[2])
            self.assertEqual(said, "3" if more else "0")
        for least, want in (0, whole[:1]), (1, whole[:1]), (2, whole):
            self.assertEqual(made(whole[1:3], least, "--min-tokens", 9)[0],
                             want)
        self.refused("line 1: a minimum of 9 tokens is more than the maximum, "
                     "3", *args(prompts({"prompt": "a", "max_tokens": 3}),
                                "--min-tokens", 9))

    def test_policies(self):
        path = prompts("the quick brown fox")

        def lines(*specs):
            return generate(path, "-n", 24, "--ignore-eos",
                            *[x for s in specs for x in ("-s", s)])[0]

        whole = ["streamingllm:s0w99+", "h2o:b99+", "tova:b99+", "knorm:b99+",
                 "snapkv:b99w2+", "pyramidkv:b99w2+"]
        for spec in "f32", "kivi:b4g16r16s2":
            rows = lines(spec, *[policy + spec for policy in whole])
            self.assertEqual([row["text"] for row in rows],
                             [rows[0]["text"]] * 7)
            self.assertEqual([row["kept"] for row in rows], [1] * 7)
        some = ["streamingllm:s2w6+absmax:b4", "h2o:b8+absmax:b4",
                "snapkv:b8w4+absmax:b4"]
        rows = lines(*some)
        n = rows[0]["prompt_tokens"]
        # every new token but the last has come in
        self.assertEqual([round(row["kept"] * (n + 23)) for row in rows],
                         [8, 8, 8 + 23])
        for row, spec in zip(rows, some):
            self.assertEqual(lines(spec)[0]["text"], row["text"])
        self.refused("layer 0 keeps 8 tokens, fewer than the 32 that it "
                     "always keeps", *args(path, "-s", "snapkv:b8+f16"))

    def test_patterns(self):
        must("kvdump", "-m", at("m"), "-f", at("calib.txt"), "-c", "150",
             "--what", "q,k,v", "-o", at("queries.h5"))
        must("kvcalib", "-s", "minference:b1+vecinfer:d4b4", at("queries.h5"),
             "-o", at("patterns.h5"))
        lines, _ = generate(prompts(tiny_model.text(150, 3)), "-n", 9, "-c",
                            999, "-C", at("patterns.h5"), "-q", "-s", "f32",
                            "-s", "minference:b1+f32", "-s", "a-shape:s0w2+f32")
        self.assertGreater(lines[0]["prompt_tokens"], 64)
        self.assertEqual(lines[0]["text"], lines[1]["text"])
        self.assertEqual([x["kept"] for x in lines], [1] * 3)

    def test_gemm(self):
        """A short prompt and what follows it are in f32."""
        done = run("kvgen", *args(prompts("so"), "--gemm", "bf16"))
        if "has no products in bf16" in done.stderr:
            self.skipTest("no products in bf16")
        self.assertEqual(*[generate(prompts("so"), "-n", 20, "--gemm", t)
                           [0][0]["text"] for t in ("f32", "bf16")])

    def test_context(self):
        path = prompts(tiny_model.text(5, 4))
        lines, _ = generate(path, "-n", 500, "--ignore-eos")
        n = lines[0]["prompt_tokens"]
        with open(at("m/config.json")) as f:
            ctx = json.load(f)["max_position_embeddings"]
        self.assertEqual(lines[0]["tokens"], ctx - n)
        self.assertEqual(lines[0]["finish_reason"], "length")
        done = run("kvgen", *args(path, "-n", ctx, "-c", 2 * ctx,
                                  "--ignore-eos"))
        self.assertEqual(done.stderr.count("was trained for"), 1, done.stderr)
        self.assertEqual(answers()[0]["tokens"], ctx)
        self.refused(f"p.jsonl: line 2: a prompt of {n} tokens leaves no room "
                     f"for an answer in a context of {n}",
                     *args(prompts("a", tiny_model.text(5, 4)), "-c", n))

    def test_memory(self):
        path = prompts("the quick", "a")
        want = timeless(generate(path, "-n", 9)[0])
        done = run("kvgen", *args(path, "-n", 9, "--memory", "20K"))
        self.assertEqual(done.returncode, 0)
        self.assertIn("1 answers at a time: caches of 16 tokens", done.stderr)
        self.assertEqual(timeless(answers()), want)
        self.refused("--batch 8: caches of 16 tokens take up to 0.0164 MB "
                     "each, of which --memory has room for 1 ", *args(
                         path, "-n", 9, "--memory", "20K", "--batch", 8))


class Refused(Case):
    def test_prompts(self):
        for text, words in (
                (b'{"prompt": "a"}\n{"prompt": \n', "p.jsonl: line 2: "),
                (b'{"prompt": ""}', "p.jsonl: line 1: the prompt is empty"),
                (b'{"prompt": "a", "seconds": 1}', "a field 'seconds' of its"),
                (b'{"prompt": "a", "min_tokens": 1.5}', "min_tokens: expected"),
                (b'{"prompt": "a", "stop": ""}', "stop: an empty text"),
                (b'{"messages": [{"role": "user", "content": "a"}]}',
                 "line 1: %s has no chat template" % at("m")),
                (b"", "has no prompts"), (b"{\0}", "byte 1")):
            self.refused(words, *args(write(at("p.jsonl"), text)))
        self.refused("nowhere.jsonl", *args(at("nowhere.jsonl")))

    def test_fields_that_change_nothing(self):
        path = write(at("p.jsonl"), b'{"prompt": "a", "temperature": 2, "n": 3}')
        done = run("kvgen", *args(path, "-n", 2))
        self.assertIn("fields such as 'temperature' are", done.stderr)
        self.assertEqual(done.stderr.count("fields such as"), 1)
        self.assertEqual([a["n"] for a in answers()], [3])

    def test_options(self):
        for words, more in (
                ("--max-tokens 0: expected 1 to", ["-n", "0"]),
                ("--samples 2 goes with --temperature", ["--samples", "2"]),
                ("--samples 0", ["--samples", "0"]),
                ("--top-p goes with --temperature", ["--top-p", ".5"]),
                ("--temperature hot: expected a number", ["--temperature",
                                                          "hot"]),
                ("--temperature nan: expected a number", ["--temperature",
                                                          "nan"]),
                ("--temperature -1", ["--temperature", "-1"]),
                ("--stop: an empty text", ["--stop", ""]),
                ("--shard 3/2", ["--shard", "3/2"]),
                ("unknown chat template alpaca (known: chatml", [
                    "--chat-template", "alpaca"]),
                ("has no path in place", ["-s", "klt,metric=fisher,pred=1"]),
                ("needs a calibration", ["-s", "vecinfer:d4b4"])):
            with self.subTest(words):
                path = prompts(talk("a") if "chat" in words else "a")
                self.refused(words, *args(path, *more))
        path = prompts("a")
        self.refused("a model is needed", "-f", path, "-o", at("a.jsonl"))
        self.refused("prompts are needed", "-m", at("m"), "-o", at("a.jsonl"))
        self.refused("answers go into a file: -o FILE", "-m", at("m"), "-f",
                     path)
        self.refused("p.jsonl", "-m", at("m"), "-f", path, "-o", path)

    def test_leakage(self):
        with open(at("eval.txt")) as f:
            path = prompts(f.read(45))
        self.refused("--allow-leakage", *args(
            path, "-n", 2, "-s", "vecinfer:d4b4", "-C", at("leaky.h5")))

    def test_overflow(self):
        def large(name, x):
            if name == "lm_head.weight":
                for i in range(len(x)):
                    x[i] *= 1e38
        tiny_model.make(at("large"), edit=large)
        for more in [], ["-s", "f16"]:
            self.refused("is not finite (does the model overflow?)",
                         *args(prompts("the quick"), *more, model="large"))


def talk(*contents):
    roles = ["user", "assistant"] * len(contents)
    return {"messages": [{"role": r, "content": c}
                         for r, c in zip(roles, contents)]}


class Chat(Case):
    """What a template is told beside the messages, and what is said of it: the
    date, tokens that the model lacks, settings that are not applied."""

    @classmethod
    def setUpClass(cls):
        shutil.copytree(at("m"), at("chat"))

    def made(self, template, *more):
        """The answer, the row, and the notes on stderr."""
        write(at("chat/chat_template.jinja"), template)
        done = run("kvgen", *args(prompts(talk("the quick")), "-n", 2,
                                  "--format", "jsonl", *more, model="chat"))
        self.assertEqual(done.returncode, 0, done.stderr)
        return answers()[0], json.loads(done.stdout), done.stderr

    def test_template(self):
        """The model's own template is rendered, its special tokens are read as
        tokens, and the text ends at the model's end tokens."""
        write(at("chat/chat_template.jinja"),
              b"{{ messages[-1].content + '<|endoftext|>' }}")
        path = prompts(talk("the quick"))
        lines, rows = generate(path, "-n", 12, model="chat")
        self.assertEqual((rows[0]["chat_template"], rows[0]["special"]),
                         ("model", "1"))
        spelled = must("kvdump", "-m", at("m"), "-f",
                       write(at("t.txt"), b"the quick"), "--tokens").split()
        self.assertLessEqual(abs(lines[0]["prompt_tokens"] - len(spelled)), 1)
        with open(at("chat/config.json")) as f:
            config = json.load(f)
        every = {**config, "eos_token_id": list(range(tiny_model.VOCAB))}
        write(at("chat/config.json"), json.dumps(every).encode())
        for more, n, why in ([], 1, "eos"), (["--ignore-eos"], 12, "length"):
            line = generate(path, "-n", 12, *more, model="chat")[0][0]
            self.assertEqual((line["tokens"], line["finish_reason"]), (n, why))
            if why == "eos":
                self.assertEqual(line["text"], "")
        write(at("chat/config.json"), json.dumps(config).encode())

    def test_last_message_is_continued(self):
        write(at("chat/chat_template.jinja"), b"{% for m in messages %}"
              b"{{ m.content }}{% if not loop.last or m.role == 'user' %} {% "
              b"endif %}{% endfor %}{{ '!' if add_generation_prompt }}")
        lines, _ = generate(prompts(talk("the", "quick"), "the quick",
                                    talk("the")), "-n", 5, "--ignore-eos",
                            model="chat")
        self.assertEqual(lines[0]["text"], lines[1]["text"])
        self.assertEqual(lines[0]["prompt_tokens"], lines[1]["prompt_tokens"])

    def test_what_there_is_not_is_none(self):
        """Renders as transformers does; line ends of Windows are line ends."""
        plain, row, words = self.made(b"{{ messages[0].content }}")
        self.assertIsNone(row["chat_date"])
        self.assertNotIn("date", words)
        self.assertNotIn("asks for", words)
        same, _, _ = self.made(
            b"{% if tools is not none or documents is not none %}x{% endif %}"
            b"\r\n{{ messages[0].content }}\r\n")
        self.assertEqual(same["prompt_tokens"], plain["prompt_tokens"])

    def test_the_date(self):
        """Today's with a word, or what --chat-date says; the row has it."""
        dated = b"{{ strftime_now('%Y') ~ messages[0].content }}"
        _, row, words = self.made(dated)
        self.assertRegex(row["chat_date"], r"^\d{4}-\d\d-\d\dT[\d:]{8}$")
        self.assertIn("--chat-date " + row["chat_date"], words)
        _, again, words = self.made(dated, "--chat-date", "2024-02-29")
        self.assertEqual(again["chat_date"], "2024-02-29T00:00:00")
        self.assertNotIn("date", words)
        self.refused('"2023-02-29" is no date', *args(
            prompts(talk("a")), "--chat-date", "2023-02-29", model="chat"))

    def test_settings_that_are_not_applied(self):
        path = write(at("chat/generation_config.json"),
                     b'{"repetition_penalty": 1.5, "num_beams": 1}')
        plain = b"{{ messages[0].content }}"
        self.assertIn("asks for repetition_penalty 1.5", self.made(plain)[2])
        os.remove(path)
        self.assertNotIn("asks for", self.made(plain)[2])

    def test_another_model_s_tokens(self):
        plain = b"{{ messages[0].content }}"
        for more, n in (["chatml"], 1), (["mistral"], 0):
            words = self.made(plain, "--chat-template", *more)[2]
            self.assertEqual(words.count("<|im_end|> is no token of this "
                                         "model"), n, words)


if __name__ == "__main__":
    unittest.main()
