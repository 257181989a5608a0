"""The built tools, run as a user would."""
import json
import os
import subprocess
import time

TOOLS = os.path.join(os.environ["KV_BUILD_ROOT"], "tools")


def run(tool, *args, **more):
    """The finished process, its output as text."""
    return subprocess.run([os.path.join(TOOLS, tool), *map(str, args)],
                          text=True, **{"stdout": subprocess.PIPE,
                                        "stderr": subprocess.PIPE, **more})


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


def prompt(path, text):
    """A file of one prompt, for kvgen."""
    return write(path, json.dumps({"prompt": text}).encode() + b"\n")


def kept(out, *args):
    """What kvppl --resume keeps beside out, all of it, removed since: the run
    waits for whoever reads its output, a pipe; the file is there by then."""
    os.mkfifo(out)
    with subprocess.Popen([os.path.join(TOOLS, "kvppl"), "-q", *args,
                           "--resume", "-o", out]) as running:
        while running.poll() is None and not os.path.exists(out + ".partial"):
            time.sleep(0.001)
        with open(out + ".partial", "rb") as f:
            reader = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
            running.wait(timeout=120)
            os.close(reader)
            text = f.read()
    os.remove(out)
    return text


def must(tool, *args):
    """Its stdout; fails when it says anything else or does not exit 0."""
    done = run(tool, "-q", *args)
    if done.returncode or done.stderr:
        raise AssertionError(f"{tool} {args}: {done.stderr}")
    return done.stdout
