#!/usr/bin/env python3
"""Train the small Llama that ships with kvtools, on a CPU, in a given time.

    train.py --text TRAIN --val VAL --out DIR [--minutes 106]

Texts are UTF-8, with documents separated by a line <|endoftext|>.  DIR gets
config.json, tokenizer.json, model.safetensors (bf16), training.csv, log.csv
and checkpoint.pt.  The same command on a DIR with a checkpoint goes on from
it.  Every schedule follows the wall clock, so the learning rate is zero when
the minutes are up, however busy the machine.
"""
import argparse
import csv
import json
import os
import signal
import time
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

EOT = "<|endoftext|>"
VOCAB = 4096


# ---- text and tokens -------------------------------------------------------

def read_documents(path):
    with open(path, encoding="utf-8") as f:
        return [d for d in f.read().split("\n" + EOT + "\n") if d.strip()]


def train_tokenizer(documents):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 1, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(documents, trainer)
    tok.add_special_tokens([EOT])
    return tok


def encode(tok, documents):
    """One stream: EOT, document, EOT, document, ..., EOT."""
    eot = tok.token_to_id(EOT)
    ids = [eot]
    for e in tok.encode_batch(documents):
        ids += e.ids
        ids.append(eot)
    return np.array(ids, dtype=np.uint16)


class Batches:
    """Blocks of text in a fresh random order every epoch.

    Windows shorter than a block come from as many blocks as a batch has
    rows: the first part of each in one batch, the next part in the next.
    """

    def __init__(self, ids, block, seed, state):
        self.ids = torch.from_numpy(ids.astype(np.int64))
        self.block = block
        self.seed = seed
        self.state = state

    def start(self, i):
        """The start of the i-th block in the endless order."""
        n = (len(self.ids) - 1) // self.block
        g = torch.Generator().manual_seed(self.seed + i // n)
        return torch.randperm(n, generator=g)[i % n].item() * self.block

    def next(self, tokens, ctx):
        """Inputs and targets, tokens / ctx rows of ctx."""
        rows, s = tokens // ctx, self.state
        if (s["part"] + 1) * ctx > self.block:
            s["part"], s["taken"] = 0, s["taken"] + rows
        at = [self.start(i) + s["part"] * ctx
              for i in range(s["taken"], s["taken"] + rows)]
        s["part"] += 1
        w = torch.stack([self.ids[a:a + ctx + 1] for a in at])
        return w[:, :-1].contiguous(), w[:, 1:].contiguous()


# ---- the model: Llama, Hugging Face names ----------------------------------

def rope_tables(ctx, dim, theta):
    freq = theta ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(ctx).float(), freq)
    angle = torch.cat([angle, angle], dim=1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight


def short_attention(q, k, v):
    """Causal attention with all scores in memory: faster up to 256."""
    b, heads, t, d = q.shape
    groups = k.shape[1]
    q = q.reshape(b * groups, -1, d)
    k, v = k.reshape(b * groups, t, d), v.reshape(b * groups, t, d)
    s = (q @ k.mT).float().view(b * groups, -1, t, t) * d ** -0.5
    later = torch.ones(t, t, dtype=torch.bool).triu(1)
    p = s.masked_fill(later, -1e9).softmax(-1).to(v.dtype)
    return (p.view(b * groups, -1, t) @ v).view(b, heads, t, d)


def attention(q, k, v):
    if q.shape[2] <= 256:
        return short_attention(q, k, v)
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, hd = c["hidden_size"], c["head_dim"]
        self.heads, self.kv_heads = (c["num_attention_heads"],
                                     c["num_key_value_heads"])
        self.hd = hd
        self.q_proj = nn.Linear(d, self.heads * hd, bias=False)
        self.k_proj = nn.Linear(d, self.kv_heads * hd, bias=False)
        self.v_proj = nn.Linear(d, self.kv_heads * hd, bias=False)
        self.o_proj = nn.Linear(self.heads * hd, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.hd).transpose(1, 2)
        q = rotate(q, cos, sin).to(v.dtype)
        k = rotate(k, cos, sin).to(v.dtype)
        y = attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, m = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(d, m, bias=False)
        self.up_proj = nn.Linear(d, m, bias=False)
        self.down_proj = nn.Linear(m, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm = RMSNorm(d, eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(d, eps)
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(
            Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = Body(c)
        cos, sin = rope_tables(c["max_position_embeddings"], c["head_dim"],
                               c["rope_theta"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x, y):
        """The sum of -log p(y) over all positions."""
        t = x.shape[1]
        h = self.model.embed_tokens(x)
        for layer in self.model.layers:
            h = layer(h, self.cos[:t], self.sin[:t])
        h = self.model.norm(h)
        logits = F.linear(h, self.model.embed_tokens.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(),
                               reduction="sum")


def init_weights(model):
    """Layers start as the identity: what writes the residual is zero."""
    for name, p in model.named_parameters():
        if p.dim() < 2:
            continue
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(p)
        elif "embed" in name:
            nn.init.normal_(p, std=0.02)
        else:
            nn.init.normal_(p, std=p.shape[1] ** -0.5)


# ---- the optimizer: Muon for matrices, AdamW for the rest ------------------

def orthogonalize(g):
    """The nearest semi-orthogonal matrices, by five Newton-Schulz steps."""
    x = g.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, decay, momentum=0.95):
        super().__init__(params, dict(lr=lr, decay=decay, momentum=momentum))

    def update(self, p, momentum):
        """Nesterov momentum of p's gradient, short side first."""
        s = self.state[p]
        if "momentum" not in s:
            s["momentum"] = torch.zeros_like(p)
        s["momentum"].lerp_(p.grad, 1 - momentum)
        u = p.grad.lerp(s["momentum"], momentum)
        return u.mT if u.shape[0] > u.shape[1] else u

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            shapes = {}
            for p in g["params"]:
                shapes.setdefault(tuple(sorted(p.shape)), []).append(p)
            for ps in shapes.values():
                us = torch.stack([self.update(p, g["momentum"]) for p in ps])
                for p, u in zip(ps, orthogonalize(us)):
                    rows, cols = p.shape
                    scale = max(1, rows / cols) ** 0.5
                    p.mul_(1 - g["lr"] * g["decay"])
                    p.add_(u.mT if rows > cols else u, alpha=-g["lr"] * scale)


def make_optimizers(model, o):
    matrices, rest = [], []
    for name, p in model.named_parameters():
        flat = p.dim() < 2 or "embed" in name
        (rest if flat else matrices).append(p)
    return [Muon(matrices, lr=o.muon_lr, decay=o.muon_decay),
            torch.optim.AdamW(rest, lr=o.adam_lr, betas=(0.9, 0.95),
                              weight_decay=0.0, fused=True)]


def rate(o, step, progress):
    """The factor on the learning rates: warm up, hold high, down to zero."""
    if progress < o.hold:
        return o.hold_factor * min(1.0, (step + 1) / o.warmup)
    return max(0.0, (1 - progress) / (1 - o.hold))


def context(o, progress):
    if progress < o.ctx256_until:
        return min(256, o.ctx)
    return min(512, o.ctx) if progress < o.ctx512_until else o.ctx


# ---- files -----------------------------------------------------------------

def make_config(o):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": o.hidden,
        "intermediate_size": o.intermediate,
        "num_hidden_layers": o.layers,
        "num_attention_heads": o.heads,
        "num_key_value_heads": o.kv_heads,
        "head_dim": o.head_dim,
        "vocab_size": VOCAB,
        "max_position_embeddings": o.ctx,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": VOCAB - 1,
        "eos_token_id": VOCAB - 1,
        "torch_dtype": "bfloat16",
    }


def export(model, config, out):
    weights = {k: v.detach().bfloat16().contiguous()
               for k, v in model.state_dict().items()}
    save_file(weights, os.path.join(out, "model.safetensors"),
              metadata={"format": "pt"})
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def load(folder):
    """A model and its tokenizer from a folder in Hugging Face layout."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    model = Llama(config)
    weights = load_file(os.path.join(folder, "model.safetensors"))
    weights.pop("lm_head.weight", None)
    model.load_state_dict({k: v.float() for k, v in weights.items()})
    return model, Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


def save_checkpoint(path, model, optimizers, state):
    torch.save({"model": model.state_dict(),
                "optimizers": [x.state_dict() for x in optimizers],
                "state": state}, path + ".new")
    os.replace(path + ".new", path)


def load_checkpoint(path, model, optimizers):
    c = torch.load(path, weights_only=True)
    model.load_state_dict(c["model"])
    for x, s in zip(optimizers, c["optimizers"]):
        x.load_state_dict(s)
    return c["state"]


def thin_log(path, out, rows=40):
    """At most `rows` lines of the log, evenly spaced, and its last."""
    with open(path) as f:
        head, *body = list(csv.reader(f))
    keep = sorted({round(i * (len(body) - 1) / (rows - 1))
                   for i in range(rows)}) if body else []
    with open(out, "w", newline="") as f:
        csv.writer(f, lineterminator="\n").writerows(
            [head] + [body[i] for i in keep])


# ---- training --------------------------------------------------------------

@torch.no_grad()
def loss_on(model, ids, ctx, windows):
    """Mean loss over the first `windows` windows of ctx tokens."""
    ids = torch.from_numpy(ids[:windows * ctx + 1].astype(np.int64))
    n = (len(ids) - 1) // ctx
    x, y = ids[:n * ctx].view(n, ctx), ids[1:n * ctx + 1].view(n, ctx)
    total = 0.0
    for i in range(0, n, 8):
        with torch.autocast("cpu", torch.bfloat16):
            total += model(x[i:i + 8], y[i:i + 8]).item()
    return total / (n * ctx)


def set_rates(optimizers, factor, o):
    for opt, lr in zip(optimizers, (o.muon_lr, o.adam_lr)):
        for g in opt.param_groups:
            g["lr"] = lr * factor


def train_step(run, model, optimizers, x, y, o):
    with torch.autocast("cpu", torch.bfloat16):
        loss = run(x, y) / x.numel()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), o.clip)
    for opt in optimizers:
        opt.step()
        opt.zero_grad(set_to_none=True)
    return loss.item()


def prepare(o):
    """The tokenizer in out, and the two texts as tokens."""
    path = os.path.join(o.out, "tokenizer.json")
    documents = read_documents(o.text)
    if os.path.exists(path):
        tok = Tokenizer.from_file(path)
    else:
        tok = train_tokenizer(documents)
        tok.save(path, pretty=False)
    return encode(tok, documents), encode(tok, read_documents(o.val))


def start_log(path):
    with open(path, "w") as f:
        f.write("step,tokens,seconds,ctx,train_loss,val_loss\n")


def log(path, state, ctx, train_loss, val_loss):
    row = (f"{state['step']},{state['tokens']},{state['seconds']:.0f},{ctx},"
           f"{train_loss:.4f},{val_loss:.4f}")
    print(row, flush=True)
    with open(path, "a") as f:
        f.write(row + "\n")


def train(o):
    torch.manual_seed(o.seed)
    torch.set_num_threads(o.threads)
    os.makedirs(o.out, exist_ok=True)
    ids, val = prepare(o)
    config = make_config(o)
    model = Llama(config)
    init_weights(model)
    optimizers = make_optimizers(model, o)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, "
          f"{len(ids)} training tokens, {len(val)} validation tokens")

    state = {"step": 0, "tokens": 0, "seconds": 0.0, "taken": 0,
             "part": 0}
    checkpoint = os.path.join(o.out, "checkpoint.pt")
    log_path = os.path.join(o.out, "log.csv")
    if os.path.exists(checkpoint):
        state |= load_checkpoint(checkpoint, model, optimizers)
        print("resumed at", state)
    else:
        start_log(log_path)
    save = partial(save_checkpoint, checkpoint, model, optimizers, state)
    batches = Batches(ids, o.ctx, o.seed, state)
    if run_clock(o, model, optimizers, batches, val, state, log_path, save):
        export(model, config, o.out)
        thin_log(log_path, os.path.join(o.out, "training.csv"))


def run_clock(o, model, optimizers, batches, val, state, log_path, save):
    """Train until the minutes are up: true; or until SIGTERM: false."""
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    run = torch.compile(model, dynamic=False) if o.compile else model
    start, saved, losses = time.time() - state["seconds"], time.time(), []
    while state["seconds"] < o.minutes * 60 and not stop:
        progress = state["seconds"] / (o.minutes * 60)
        ctx = context(o, progress)
        set_rates(optimizers, rate(o, state["step"], progress), o)
        x, y = batches.next(o.batch, ctx)
        losses.append(train_step(run, model, optimizers, x, y, o))
        state["step"] += 1
        state["tokens"] += o.batch
        if state["step"] % o.eval_every == 0:
            v = loss_on(model, val, ctx, o.val_windows * o.ctx // ctx)
            log(log_path, state, ctx, np.mean(losses), v)
            losses = []
        state["seconds"] = time.time() - start
        if time.time() - saved > o.save_minutes * 60:
            save()
            saved = time.time()
    save()
    if losses and not stop:
        v = loss_on(model, val, o.ctx, o.val_windows)
        log(log_path, state, o.ctx, np.mean(losses), v)
    return not stop


def options():
    p = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", required=True, help="training text")
    p.add_argument("--val", required=True, help="validation text")
    p.add_argument("--out", required=True, help="folder of the model")
    p.add_argument("--minutes", type=float, default=106)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--compile", type=int, default=1)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--layers", type=int, default=5)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--intermediate", type=int, default=640)
    p.add_argument("--ctx", type=int, default=1024)
    p.add_argument("--ctx256-until", type=float, default=0.65,
                   help="part of the time with windows of 256")
    p.add_argument("--ctx512-until", type=float, default=0.82)
    p.add_argument("--batch", type=int, default=8192, help="tokens a step")
    p.add_argument("--muon-lr", type=float, default=0.01)
    p.add_argument("--muon-decay", type=float, default=0.1)
    p.add_argument("--adam-lr", type=float, default=0.0015)
    p.add_argument("--warmup", type=int, default=50, help="steps")
    p.add_argument("--hold", type=float, default=0.206,
                   help="part of the time before the rates go down")
    p.add_argument("--hold-factor", type=float, default=2,
                   help="on the rates during that part")
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--eval-every", type=int, default=200, help="steps")
    p.add_argument("--val-windows", type=int, default=32)
    p.add_argument("--save-minutes", type=float, default=5)
    return p.parse_args()


if __name__ == "__main__":
    train(options())
