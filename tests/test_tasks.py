"""scripts/task-prompts, task-score and ruler on small made-up items; scorers
whose package is missing are skipped."""
import csv
import glob
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

from run_scripts import ROOT
from run_tasks import TaskScripts

sys.path.insert(0, os.path.join(ROOT, "scripts"))
from task_scorers import Missing, Scorer, cut  # noqa: E402
from task_scorers import gsm8k  # noqa: E402
from task_items import describe, names  # noqa: E402
from task_paired import compare, mcnemar  # noqa: E402
import task_sandbox  # noqa: E402

TOOLS = os.path.join(os.environ.get("KV_BUILD_ROOT",
                                    os.path.join(ROOT, "build")), "tools")
MODEL = os.path.join(ROOT, "data", "model")
SHARED = os.path.join(os.environ.get("KVTOOLS_SHARED", os.path.join(
    ROOT, "..", "shared")), "tasks")
CALIB = os.path.join(ROOT, "data", "calib.txt")


def needs(scorer):
    """Skips, and says what is missing."""
    try:
        Scorer(scorer)
    except Missing as e:
        return unittest.skip(str(e))
    return lambda test: test


def cases(name):
    with open(os.path.join(SHARED, name), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def some(name, answer_, **item):
    return Scorer(name).score(answer_, item)


class Verdicts(unittest.TestCase):
    """Computed by hand, and by the package if one decides."""
    mark = os.path.join(tempfile.gettempdir(), f"kv-program-{os.getpid()}")

    def test_f1(self):
        for answer, right, expected in (
                ("The cat, sat!", ["a cat sat"], 1),
                ("the dog ran", ["a cat sat", "one dog"], 0.5),
                ("U.S.-based", ["usbased"], 1),
                ("", ["cat"], 0), ("cat cat", ["cat"], 2 / 3)):
            self.assertAlmostEqual(some("f1", answer, answers=right)["f1"],
                                   expected, msg=answer)

    def test_classes(self):
        classes = ["Date", "Other date", "Food", "Individual"]
        for answer, right, expected in (
                ("Food", "Food", 1), ("Food or Date", "Food", 0.5),
                ("food", "Food", 0), ("Date", "Food", 0)):
            self.assertEqual(some("class_names", answer, answers=[right],
                                  all_classes=classes)["class"], expected)
        # "b" and "ab" are parts of "abc"; the walk leaves "ab" out
        self.assertEqual(some("class_names", "abc", answers=["abc"],
                              all_classes=["b", "ab", "abc"])["class"], 0.5)

    def test_numbers(self):
        for answer, right, expected in (
                ("7", "7", 1), ("7 of 14", "7", 0.5), ("07", "7", 0),
                ("none", "7", 0)):
            self.assertEqual(some("count", answer, answers=[right])["count"],
                             expected)
        self.assertEqual(some("retrieval", "Paragraph 12, or 3",
                              answers=["Paragraph 12"])["retrieval"], 0.5)

    def test_gsm8k(self):
        right = "steps\n#### 1,018"
        for answer, flexible, strict, cot in (
                ("so\n#### 1018", 1, 1, 0),
                ("The answer is 1,018.", 1, 0, 1),
                ("The answer is 1018", 1, 0, 0),  # "." takes the last digit
                ("#### $1018", 1, 0, 0), ("it is 7...", 0, 0, 0),
                ("1018 in all, not 3", 0, 0, 0), ("none", 0, 0, 0)):
            self.assertEqual(gsm8k.score(answer, {"answer": right}),
                             {"flexible": flexible, "strict": strict,
                              "cot_strict": cot}, answer)

    def test_texts(self):
        self.assertEqual(some("found", "x 12 ab", outputs=["AB", "12", "9"]),
                         {"string_match": 2 / 3})
        self.assertEqual(some("found_any", "x 12", outputs=["AB", "12"]),
                         {"string_match": 1})
        for answer, expected in ((" 12345.", 1), ("123456", 0), ("x", 0),
                                 ("54321, 12345", 0)):
            self.assertEqual(some("passkey", answer, target="12345")["acc"],
                             expected, answer)
        classes = ["drama", "sci-fi", "music", "musical"]
        for answer, acc, exact in (
                ("Drama.", 1, 1), ("Genre: drama, sci-fi", 1, 0),
                ("musical, drama", 0, 0), ("melodrama", 0, 0)):
            self.assertEqual(some("genre", answer, genre="drama",
                                  classes=classes),
                             {"acc": acc, "exact": exact}, answer)
        for answer, expected in (("2, 1", 1), ("3, 2, 1", 0.6590), ("9", 0)):
            self.assertAlmostEqual(
                some("ndcg", answer, relevance=[1, 2, 0])["ndcg_10"],
                expected, 4)

    def test_choice(self):
        pairs = [{"continuation": " ab", "log_likelihood": -4.0},
                 {"continuation": " abcdefgh", "log_likelihood": -5.0}]
        self.assertEqual(some("choice", pairs, gold=1),
                         {"acc": 0, "acc_norm": 1})
        self.assertEqual(some("choice_of_contexts", pairs, gold=0),
                         {"acc": 1})

    def test_tool_calls(self):
        schema = {"name": "a.f", "parameters": {
            "required": ["x"], "properties": {
                "x": {"type": "float"}, "s": {"type": "string"},
                "l": {"type": "array", "items": {"type": "string"}}}}}
        item = {"function": [schema], "ground_truth": [{"a.f": {
            "x": [2.0], "s": ["New York", ""], "l": [["A b"], ""]}}]}
        for answer, expected in (
                ("[a.f(x=2)]", 1), ("a.f(x=2.0, s='new-york')", 1),
                ("`a.f(x=2, l=['ab'])`", 1), ("[a.f(x=1+1)]", 1),
                ("[a.f(x='2')]", 0), ("[a.f(s='New York')]", 0),
                ("[f(x=2)]", 0), ("[a.f(x=2, y=1)]", 0),
                ("[a.f(x=2), a.f(x=2)]", 0), ("[a.f(x=2, s='Paris')]", 0),
                ("Sure: a.f(x=2)", 0), ("[]", 0), ("[a.f(x=9**9**9)]", 0)):
            self.assertEqual(some("bfcl_simple", answer, **item)["acc"],
                             expected, answer)
        twice = dict(item, ground_truth=item["ground_truth"] + [
            {"a.f": {"x": [3.0], "s": [""], "l": [""]}}])
        self.assertEqual(some("bfcl_parallel", "a.f(x=3), a.f(x=2)",
                              **twice)["acc"], 1)
        self.assertEqual(some("bfcl_irrelevance", "no function", **item)["acc"],
                         1)
        self.assertEqual(some("bfcl_irrelevance", "f(x=1)", **item)["acc"], 0)

    @needs("rouge_l")
    def test_rouge(self):
        """rouge 1.0.1: words are a set, whatever their number."""
        right = {"answers": ["the cat sat on the mat"]}
        self.assertAlmostEqual(some("rouge_l", "the cat sat", **right)
                               ["rouge_l"], 0.75, 6)
        self.assertEqual(some("rouge_l", "...", **right)["rouge_l"], 0)
        self.assertAlmostEqual(some("rouge_1", "mat cat cat dog", abstract=
                               "the cat sat on the mat")["rouge_1"], 0.5, 6)

    @needs("code_sim")
    def test_code(self):
        right = {"answers": ["return x + 1"]}
        self.assertEqual(some("code_sim", "\n# a\nreturn x + 1\nmore", **right)
                         ["code_sim"], 1)
        self.assertEqual(some("code_sim", "return x", **right)["code_sim"],
                         0.8)
        self.assertEqual(some("code_sim", "# all", **right)["code_sim"], 0)
        self.assertEqual(some("code_sim", "abxcd", answers=["cdxab"]),
                         {"code_sim": 0.4, "code_sim_difflib": 0.4})
        self.assertEqual(some("edit_similarity", "abcd",
                              code="abxd")["edit_similarity"], 0.75)

    @needs("boxed")
    def test_mathematics(self):
        for answer, right, acc, exact in (
                ("so \\boxed{\\frac{1}{2}}.", "\\frac12", 1, 1),
                ("\\boxed{0.25}", "\\frac{1}{4}", 1, 0),
                ("\\boxed{x+1}", "1+x", 1, 0),
                ("\\boxed{1,000}", "1000", 1, 0),
                ("\\boxed{3}", "4", 0, 0), ("4", "4", 0, 0),
                ("\\boxed{a} \\boxed{4}", "4", 1, 1)):
            self.assertEqual(some("boxed", answer, answer=right),
                             {"acc": acc, "exact": exact}, answer)

    @unittest.skipIf(task_sandbox.why_not(), task_sandbox.why_not())
    def test_programs(self):
        item = {"prompt": "def f(x):\n", "entry_point": "f",
                "test": "def check(f):\n    assert f(1) == 2\n"}
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        self.addCleanup(lambda: os.path.exists(self.mark) and
                        os.unlink(self.mark))
        for answer, expected in (
                ("    return x + 1\n", 1), ("    return x\n", 0), ("  (", 0),
                ("    import socket\n    socket.create_connection(("
                 f"'127.0.0.1', {server.getsockname()[1]}), 1)\n"
                 "    return x + 1\n", 0),
                ("    open('big', 'wb').write(bytes(1 << 22))\n"
                 "    return x + 1\n", 0),
                ("    open('small', 'wb').write(bytes(9))\n"
                 "    return x + 1\n", 1),
                (f"    open('{self.mark}', 'w')\n    return x + 1\n", 0),
                ("    bytearray(2 << 30)\n    return x + 1\n", 0)):
            self.assertEqual(some("humaneval", answer, **item)["pass_1"],
                             expected, answer)
        self.assertEqual(some("mbpp", "a = 1", test_list=["assert a == 1"])
                         ["pass_1"], 1)

    @unittest.skipIf(task_sandbox.why_not(), task_sandbox.why_not())
    def test_programs_that_end_early(self):
        for answer, expected in (
                ("exit()", 0), ("import sys\nsys.exit(0)", 0),
                ("import os\nos._exit(0)", 0), ("raise SystemExit", 0),
                ("raise KeyboardInterrupt", 0), ("x = '\ud800'", 0),
                ("print('x' * 9)\nexec('a = 1')", 1),
                ("if __name__ == '__main__':\n    exit()", 1)):
            self.assertEqual(some("mbpp", answer, test_list=["assert 1"])
                             ["pass_1"], expected, answer)

    def test_cuts(self):
        self.assertEqual(cut("\n\n a \nb", ["strip_newlines_before",
                                            "first_line"]), " a ")
        self.assertEqual(cut(" a\tb\n", ["strip", "controls_to_newlines"]),
                         "a\nb")

    def test_pairs(self):
        self.assertEqual(mcnemar(0, 0), 1)
        self.assertAlmostEqual(mcnemar(1, 9), 22 / 1024)
        found = compare([1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0])
        self.assertEqual((found["difference"], found["gained"], found["lost"],
                          found["test"]), (0.25, 2, 1, "McNemar"))
        found = compare([0.5 + i / 100 for i in range(9)],
                        [0.3 + i / 90 for i in range(9)])
        self.assertEqual(found["test"], "bootstrap")
        self.assertLess(found["p"], 0.01)
        for n in 1, 2, 5:  # that all differ alike says little of few items
            self.assertEqual(compare([.5] * n, [.25 + i / 99 for i in range(n)])
                             ["p"], 2 ** (1 - n))


@unittest.skipUnless(os.path.isdir(SHARED), f"no {SHARED}")
class HarnessesVerdicts(unittest.TestCase):
    """The harnesses' own scores of real answers."""

    @needs("rouge_l")
    @needs("code_sim")
    def test_longbench(self):
        names = {"qa_f1_score": "f1", "rouge_score": "rouge_l",
                 "classification_score": "class_names",
                 "count_score": "count", "retrieval_score": "retrieval",
                 "code_sim_score": "code_sim"}
        for case in cases("longbench-metric-cases.jsonl"):
            task = describe("longbench_" + case["task"].replace("-", "_"))
            answer = cut(case["prediction"], task.get("answer", ()))
            got = Scorer(names[case["metric"]]).score(answer, case)
            expected = [case["score"]] if len(got) == 1 else [
                case["score_fuzz_levenshtein"], case["score_fuzz_difflib"]]
            for a, b in zip(got.values(), expected):
                self.assertAlmostEqual(a, b, 5, case)

    def test_gsm8k(self):
        for case in cases("gsm8k-extract-cases.jsonl"):
            answer = case["response"]
            got = gsm8k.score(answer, {"answer": case["gold_answer"]})
            for name in got:
                self.assertEqual(bool(got[name]), case[name + "_correct"],
                                 case)
            self.assertEqual(gsm8k.last_number(answer),
                             case["flexible_extracted"])

    def test_bfcl(self):
        items = {i["id"]: i for name in ("simple-python200", "multiple100",
                                         "parallel50", "irrelevance50")
                 for i in cases(f"bfcl-{name}.jsonl")}
        for case in cases("bfcl-checker-cases.jsonl"):
            got = some("bfcl_simple", case["response"], **items[case["id"]])
            self.assertEqual(bool(got["acc"]), case["valid"], case)


class Tasks(TaskScripts):
    def test_descriptions(self):
        for name in names():
            with self.subTest(name):
                described = describe(name)
                for scorer in described["scorers"]:
                    try:
                        Scorer(scorer)
                    except Missing as e:
                        self.assertIn("pip install -r", str(e))
                self.assertTrue(set(described.get("answer", ())) <=
                                {"strip", "strip_newlines_before",
                                 "first_line", "controls_to_newlines"})

    def test_limits(self):
        """LongBench keeps samsum's answers from beginning with a newline."""
        items = self.jsonl("items.jsonl", [{
            "_id": "a", "context": "c", "input": "d", "answers": ["e"]}])
        line, = self.prompts("longbench_samsum", items)
        self.assertEqual([line[k] for k in ("max_tokens", "min_tokens",
                                            "stop")], [128, 1, ["\n"]])

    def test_numbers_as_answers(self):
        items = self.jsonl("items.jsonl", [{
            "id": 3, "query": "When?", "answer": 1998, "docs": [
                {"human": "In 1998."}]}])
        line, = self.prompts("cocktail", items)
        self.assertEqual(line["item"], {"answers": ["1998"]})

    def test_shots(self):
        items = self.jsonl("items.jsonl", [
            {"question": "{one}?", "answer": "#### 1"}])
        self.jsonl("gsm8k-cot-8shot.jsonl", [
            {"question": f"q{n}", "target": f"t{n}"} for n in range(8)])
        line, = self.prompts("gsm8k_cot", items, "--shots", "2",
                             "--set", "max_tokens=9")
        self.assertEqual(line["prompt"],
                         "Q: q0\nA: t0\n\nQ: q1\nA: t1\n\nQ: {one}?\nA:")
        self.assertEqual((line["id"], line["max_tokens"], line["item"]),
                         (1, 9, {"answer": "#### 1"}))
        self.assertEqual(line["changed"], {"max_tokens": 9, "shots": 2})
        self.assertIn("has 8 examples for the task, expected 9", self.prompts(
            "gsm8k_cot", items, "--shots", "9", code=2))

    def test_chat_and_pairs(self):
        items = self.jsonl("ruler.jsonl", [{
            "index": 4, "input": "Find it.", "answer_prefix": " It is",
            "outputs": ["7"]}])
        line, = self.prompts("ruler_vt", items)
        self.assertEqual([m["role"] for m in line["messages"]],
                         ["user", "assistant"])
        line, = self.prompts("ruler_vt", items, "--set", "chat=false")
        self.assertEqual(line["prompt"], "Find it. It is")
        items = self.jsonl("wg.jsonl", [{
            "sentence": "A saw B as _ ran.", "option1": "A", "option2": "B",
            "answer": "2"}])
        a, b = self.prompts("winogrande", items)
        self.assertEqual((a["context"], b["context"], b["continuation"],
                          b["choice"], b["choices"], b["item"]),
                         ("A saw B as A", "A saw B as B", " ran.", 1, 2,
                          {"gold": 1}))
        items = self.jsonl("hs.jsonl", [{
            "activity_label": "Roof", "ctx_a": "A man sits.", "ctx_b": "HE",
            "endings": ["x [title] y", "z [step] w"], "label": "1"}])
        a, b = self.prompts("hellaswag", items)
        self.assertEqual((a["context"], a["continuation"], b["continuation"]),
                         ("Roof: A man sits. He", " x. y", " z w"))

    def test_too_long(self):
        with open(CALIB, encoding="utf-8") as f:
            context = f.read(6000)
        items = self.jsonl("lb.jsonl", [
            {"context": context, "input": "Why?", "answers": ["No"]},
            {"context": "Short.", "input": "Why?", "answers": ["No"]}])
        where = "--max-prompt", "600", "-m", MODEL, "--bin", TOOLS
        text, short = (x["messages"][0]["content"] for x in
                       self.prompts("longbench_hotpotqa", items, *where))
        self.assertIn("\nShort.\n", short)
        self.assertTrue(text.startswith("Answer the question based on") and
                        text.endswith("Question: Why?\nAnswer:"))
        self.assertTrue(588 <= self.tokens(text) <= 601, self.tokens(text))
        items = self.jsonl("pk.jsonl", [{"input": context, "target": "1"}])
        self.assertIn("no items are left",
                      self.prompts("passkey", items, *where, code=2))

    def test_rows(self):
        path = self.answers("a.jsonl", "passkey", {"target": "12345"}, {
            "kivi:b2g32": ["12345", "0", "12345.", "x"],
            "f16:r0s0": ["12345", "12345", "0", "x"]})
        items = os.path.join(self.folder, "items.csv")
        lm_eval = os.path.join(self.folder, "lm-eval")
        kivi, f16 = self.score("passkey", path, "--per-item", items,
                               "--lm-eval", lm_eval)
        self.assertEqual(
            [kivi[c] for c in ("spec", "metric", "items", "score",
                               "reference", "reference_score", "difference",
                               "gained", "lost", "p", "test", "same",
                               "first_differs", "scorer")],
            ["kivi:b2g32", "acc", "4", "50", "f16:r0s0", "50", "0", "1", "1",
             "1", "McNemar", "0.5", "1.5", "passkey"])
        self.assertEqual((f16["same"], f16["first_differs"]), ("1", ""))
        with open(items, encoding="utf-8") as f:
            self.assertEqual(len(list(csv.DictReader(f))), 8)
        found = glob.glob(lm_eval + "/f16_r0s0/*")
        self.assertEqual(len(found), 2)
        with open(next(p for p in found if "results_" in p)) as f:
            self.assertEqual(json.load(f)["results"]["passkey"]["acc,none"],
                             0.5)
        sample = self.read(next(p for p in found if "samples_" in p))[2]
        self.assertEqual((sample["doc_id"], sample["resps"], sample["acc"]),
                         (2, [["0"]], 0))

    def pairs(self, spec, *sums, n=3, gold=2):
        return [{"id": 7, "spec": spec, "task": "hellaswag", "item":
                 {"gold": gold}, "context": "?", "continuation": f" {i}",
                 "choice": i, "choices": n, "log_likelihood": x,
                 "is_greedy": False} for i, x in enumerate(sums)]

    def test_pairs_of_shards(self):
        whole = self.pairs("f16", -3.0, -2.0, -1.0)
        paths = [self.jsonl(f"{i}.jsonl", rows) for i, rows in enumerate(
            (whole[1:2], whole[::2] + whole[:1]))]
        lm_eval = os.path.join(self.folder, "lm-eval")
        rows = self.score("hellaswag", *paths, "--lm-eval", lm_eval)
        self.assertEqual([(r["metric"], r["score"]) for r in rows],
                         [("acc_norm", "100"), ("acc", "100")])
        path, = glob.glob(lm_eval + "/f16/samples_*")
        self.assertEqual(self.read(path)[0]["resps"],
                         [[[x, False]] for x in (-3.0, -2.0, -1.0)])
        for rows, words in (
                (whole[:2], "item 7 under f16 has choices 0, 1, expected all "
                 "3 from 0 on"), (whole[1:], "has choices 1, 2, expected"),
                (whole + self.pairs("f32", -1.0, -2.0, n=2, gold=1),
                 "item 7 has 2 choices under f32, and 3 under another spec"),
                (self.pairs("f16", -1.0, -2.0, n=2),
                 "gold is 2, expected one of its 2 choices"),
                (whole + self.pairs("f16", -4.0), "another answer to 7"),
                ([dict(whole[0], choices=2), *whole[1:]],
                 "another answer to 7")):
            self.assertIn(words, self.score("hellaswag", self.jsonl(
                "bad.jsonl", rows), code=2))

    def test_refusals(self):
        self.assertIn("no such task, expected one of",
                      self.prompts("nothing", "x", code=2))
        path = self.answers("a.jsonl", "passkey", {"target": "1"},
                            {"f16": ["1", "2"], "q4_0": ["1", "2"]})
        self.assertIn("of task passkey, expected arxiv" if
                      importlib.util.find_spec("rouge") else
                      "scorer rouge_1 lacks what it imports",
                      self.score("arxiv", path, code=2))
        self.assertIn("no answers of this spec", self.score(
            "passkey", path, "--reference", "f32", code=2))
        broken = self.write("b.jsonl", '{"id": 1}\n')
        self.assertIn("b.jsonl:1: no spec", self.score("passkey", broken,
                                                       code=2))
        self.assertIn("an item without input", self.prompts(
            "passkey", self.write("c.jsonl", '{"id": 1}\n'), code=2))
        self.assertIn("item 1: no field 'target', by which passkey is scored",
                      self.prompts("passkey", self.write(
                          "d.jsonl", '{"id": 1, "input": "x"}\n'), code=2))
        bare = os.path.join(self.folder, "bin")
        os.mkdir(bare)
        os.symlink(sys.executable, os.path.join(bare, "python3"))
        own = self.write("own.json", json.dumps({
            "harness": "own", "prompt": "{text}", "max_tokens": 9, "carry": [],
            "scorers": ["mbpp"]}))
        self.assertIn("the task's only scorer runs generated programs",
                      self.score(own, path, code=2))
        self.assertIn("--run-code wants unshare", self.score(
            own, path, "--run-code", code=2, PATH=bare))
        qa = self.run_script("scripts/ruler", "qa_1", CALIB, "--tokens", "512",
                             "-m", MODEL, "-o", self.folder + "/x", code=2)
        self.assertIn("qa_1 wants JSON lines of question, answers", qa)

    def ruler(self, task, text, *args):
        out = os.path.join(self.folder, "ruler.jsonl")
        self.run_script("scripts/ruler", task, text, "-m", MODEL, "--bin",
                        TOOLS, "-o", out, *args)
        return self.read(out)

    def tokens(self, text):
        done = subprocess.run([TOOLS + "/kvdump", "-q", "-m", MODEL, "-f", "-",
                               "--tokens"], input=text.encode(), check=True,
                              stdout=subprocess.PIPE)
        return len(done.stdout.split())

    def test_ruler(self):
        made = self.ruler("niah_multivalue", CALIB, "--tokens", "900",
                          "--items", "2")
        self.assertEqual(made, self.ruler("niah_multivalue", CALIB, "--tokens",
                                          "900", "--items", "2"))
        for item in made:
            self.assertEqual(len(item["outputs"]), 4)
            for value in item["outputs"]:
                self.assertIn(f"is: {value}.", item["input"])
            have = self.tokens(item["input"] + item["answer_prefix"])
            self.assertEqual(have, item["length"])
            self.assertTrue(0.95 * 708 <= have <= 708, have)  # 900 - 128 - 64
        self.assertNotEqual(made[0]["outputs"], made[1]["outputs"])


if __name__ == "__main__":
    unittest.main()
