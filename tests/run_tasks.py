"""scripts/task-prompts and task-score on items and answers made up."""
import csv
import io
import json
import os

from run_scripts import Scripts


class TaskScripts(Scripts):
    def jsonl(self, name, rows):
        return self.write(name, "".join(json.dumps(r) + "\n" for r in rows))

    def read(self, path):
        with open(path, encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def prompts(self, task, items, *args, **kwargs):
        out = os.path.join(self.folder, "prompts.jsonl")
        said = self.run_script("scripts/task-prompts", task, items, "-o", out,
                               *args, **kwargs)
        return said if kwargs.get("code") else self.read(out)

    def score(self, task, answers, *args, **kwargs):
        said = self.run_script("scripts/task-score", task, answers, *args,
                               **kwargs)
        return said if kwargs.get("code") else \
            list(csv.DictReader(io.StringIO(said)))

    def answers(self, name, task, item, texts):
        """texts: {spec: [an answer for each item]}."""
        return self.jsonl(name, [
            {"id": n, "spec": spec, "sample": 0, "text": t, "agrees": n,
             "bits": 4.0, "prompt": "?", "max_tokens": 9, "task": task,
             "item": item}
            for spec, some in texts.items() for n, t in enumerate(some)])
