"""pass@1 of generated programs, run apart (task_sandbox.py)."""
from task_sandbox import passes

RUNS_CODE = True


def score_humaneval(answer, item):
    program = "\n".join([item["prompt"] + answer, item["test"],
                         f"check({item['entry_point']})"])
    return {"pass_1": float(passes(program))}


def score_mbpp(answer, item):
    program = "\n".join([item.get("test_setup_code", ""), answer,
                         *item["test_list"]])
    return {"pass_1": float(passes(program))}
