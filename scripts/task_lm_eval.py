"""Writes results in the files of lm-evaluation-harness, with its field names:
DIR/SPEC/results_TIME.json and samples_TASK_TIME.jsonl."""
import datetime
import hashlib
import json
import math
import os
import re

from task_items import as_lines, die, write_whole
from task_paired import mean_and_error

# Metric and filter, for metrics that lm-evaluation-harness names differently.
NAMES = {"flexible": "exact_match,flexible-extract",
         "strict": "exact_match,strict-match", "pass_1": "pass@1,create_test",
         "log_likelihood": "perplexity,none"}


def digest(x):
    return hashlib.sha256(
        (x if isinstance(x, str) else json.dumps(x)).encode()).hexdigest()


def target(item):
    for name in ("answers", "outputs", "answer", "target", "gold", "genre",
                 "canonical_solution", "code", "abstract", "ground_truth"):
        if name in item:
            return item[name]
    return ""


def arguments_and_responses(answer, description):
    """The model's input and its answer, in the harness's form."""
    if answer.pairs:
        return ({f"gen_args_{n}": {"arg_0": p["context"],
                                   "arg_1": p["continuation"]}
                 for n, p in answer.pairs.items()},
                [[[p["log_likelihood"], p["is_greedy"]]]
                 for p in answer.pairs.values()])
    line = answer.line
    asked = line["prompt"] if "prompt" in line else \
        json.dumps(line["messages"], ensure_ascii=False)
    return ({"gen_args_0": {"arg_0": asked, "arg_1": {
        "until": line.get("stop", []), "max_gen_toks": line["max_tokens"]}}},
        [[line["text"]]])


def samples(task, description, some, found, spec):
    for n, (key, answer) in enumerate(some.items()):
        asked, said = arguments_and_responses(answer, description)
        yield {"doc_id": n, "doc": dict(answer.item, id=key[0]),
               "target": target(answer.item), "arguments": asked,
               "resps": said,
               "filtered_resps": [r[0] for r in said] if answer.pairs else
               [answer.text],
               "filter": "none", "metrics": list(found),
               "doc_hash": digest(answer.item),
               "prompt_hash": digest(asked["gen_args_0"]["arg_0"]),
               "target_hash": digest(target(answer.item)),
               **{m: values[spec][key] for m, (values, _) in found.items()}}


def results(task, description, changed, some, found, spec, time):
    own = {"alias": task}
    for metric, (values, _) in found.items():
        mean, error = mean_and_error(list(values[spec].values()))
        if metric == "log_likelihood":
            mean, error = math.exp(-mean), None
        name, filter_ = NAMES.get(metric, metric + ",none").split(",")
        own[f"{name},{filter_}"] = mean
        own[f"{name}_stderr,{filter_}"] = "N/A" if error is None else error
    shots = changed.get("shots", description.get("shots", {}).get("count", 0))
    return {"results": {task: own}, "group_subtasks": {task: []},
            "configs": {task: {"task": task, **description, "metadata": {
                "harness": description["harness"]}}},
            "versions": {task: "Yaml"}, "n-shot": {task: shots},
            "higher_is_better": {task: {m: True for m in found}},
            "n-samples": {task: {"original": len(some),
                                 "effective": len(some)}},
            "config": {"model": "kvgen", "model_args": f"spec={spec}",
                       "batch_size": None, "limit": None}, "date": time}


def write(folder, task, description, changed, answers, found, read):
    now = datetime.datetime.now()
    stamp = now.isoformat().replace(":", "-")
    for spec, some in answers.items():
        own = os.path.join(folder, re.sub(r"[^\w.=-]", "_", spec))
        try:
            os.makedirs(own, exist_ok=True)
        except OSError as e:
            die(f"--lm-eval {folder}: {own}: {e.strerror}")
        write_whole(os.path.join(own, f"results_{stamp}.json"), json.dumps(
            results(task, description, changed, some, found, spec,
                    now.timestamp()), indent=2, ensure_ascii=False), read)
        write_whole(os.path.join(own, f"samples_{task}_{stamp}.jsonl"),
                    as_lines(samples(task, description, some, found, spec)),
                    read)
