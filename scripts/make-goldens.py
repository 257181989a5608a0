#!/usr/bin/env python3
"""Small random models of each architecture, and what transformers (5.24, torch
on the CPU, float32) computes with them: tests/golden/NAME/{config.json,
model.safetensors,expected.safetensors}.  Run by hand, for all or some names:

    scripts/make-goldens.py [NAME...]
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

N = 21
SIZES = dict(vocab_size=41, hidden_size=24, intermediate_size=22,
             num_attention_heads=3, num_key_value_heads=1, head_dim=10,
             max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
             pad_token_id=0)
GEMMA3 = dict(layer_types=["sliding_attention", "full_attention",
                           "sliding_attention"],
              num_hidden_layers=3, sliding_window=8, query_pre_attn_scalar=14,
              rope_parameters={
                  "sliding_attention": {"rope_type": "default",
                                        "rope_theta": 100.0},
                  "full_attention": {"rope_type": "linear", "factor": 2.0,
                                     "rope_theta": 1000.0}})
MODELS = {
    "gemma": ("Gemma", dict(num_hidden_layers=2,
                            hidden_act="gelu_pytorch_tanh")),
    "gemma2": ("Gemma2", dict(num_hidden_layers=2, sliding_window=8,
                              query_pre_attn_scalar=14,
                              attn_logit_softcapping=3.0,
                              final_logit_softcapping=4.0)),
    "gemma3": ("Gemma3", GEMMA3),
    "mistral": ("Mistral", dict(num_hidden_layers=2, sliding_window=8)),
}


def make(name, folder):
    kind, more = MODELS[name]
    of = {"Gemma3": "Gemma3Text"}.get(kind, kind)
    torch.manual_seed(7)
    config = getattr(transformers, of + "Config")(**{**SIZES, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            scale = 0.5 if p.dim() == 1 else p.shape[-1] ** -0.5
            p.copy_(torch.randn(p.shape) * scale +
                    (p.dim() == 1 and "gemma" not in name))
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = type(model).from_pretrained(folder, dtype=torch.float32,
                                        attn_implementation="eager").eval()
    tokens = torch.randint(0, SIZES["vocab_size"], (1, N))
    cache = transformers.DynamicCache()  # all tokens of every layer
    with torch.no_grad():
        logits = model(tokens, past_key_values=cache, use_cache=True).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1].double(),
                                             tokens[0, 1:], reduction="none")
    out = {"tokens": tokens[0].float(), "loss": loss.float()}
    for i, layer in enumerate(cache.layers):
        for side, x in (("k", layer.keys), ("v", layer.values)):
            assert x.shape[2] == N
            out[f"{side}.{i}"] = x[0].transpose(0, 1).contiguous()
    save_file(out, folder / "expected.safetensors")


top = pathlib.Path(__file__).parent.parent / "tests" / "golden"
for name in sys.argv[1:] or MODELS:
    (top / name).mkdir(parents=True, exist_ok=True)
    make(name, top / name)
