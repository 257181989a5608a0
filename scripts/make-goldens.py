#!/usr/bin/env python3
"""Tiny random models of every architecture, and what transformers makes of them.

    scripts/make-goldens.py [--gguf LLAMA_CPP] [NAME...]
    scripts/make-goldens.py --released FOLDER [NAME...]

Writes tests/golden/NAME/: config.json, model.safetensors, and
expected.safetensors with

    tokens  I64 [n]                losses     F32 [n - 1], -log p of the next
    k.L     F32 [n][kv heads][d]   v.L        of layer L, k after RoPE; of
                                              layers with attention
    k_pre.L                        immediately before it, times its scale
    greedy  I64 [n - 10]           what generate() adds to the first 10 tokens

in f32 on the CPU, of weights in bf16 where NAME ends so.  It wants torch and
transformers 5; with the sources of llama.cpp, model.gguf too, as its converter
writes it, without a vocabulary.  Run by hand; tests/test_golden.c reads the
folders.  With --released it makes FOLDER/NAME/ of the configs of
tests/released.json, sizes made tiny and all else as it was released, for
build/tests/test_golden FOLDER.
"""

import argparse
import copy
import json
import os
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

from golden_models import (FUSED, HEADLESS, MODELS, N, NO_GGUF, OWN_CODE, SPLIT,
                           STACKED, TURNED)

PROMPT = 10  # tokens
COMMON = dict(bos_token_id=0, eos_token_id=0, pad_token_id=None)


def randomize(model):
    """Sets random weights of moderate size, norms about 1, biases not 0."""
    torch.manual_seed(7)
    for name, p in model.named_parameters():
        last = name.rsplit(".", 2)[-2]
        norm = "norm" in last or last.startswith("ln_")
        scale = 0.15 if p.dim() < 2 else 0.6 / p.shape[-1] ** 0.5
        scale = 1.5 if name.endswith("sinks") else scale
        if "linear_attn.conv1d" in name:  # else small values are normed
            scale = 2.0
        with torch.no_grad():
            p.normal_(0, scale)
            if norm and name.endswith("weight"):
                p.add_(1)
    for name, p in model.named_buffers():
        if name.endswith("layer_scalar"):
            p.normal_(1, 0.2)
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            p.normal_(0, 0.2)


def pack_mxfp4(model):
    """Rounds the experts' matrices to MXFP4; returns the tensors of the
    file."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    tensors = dict(model.state_dict())
    for name, p in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        x = p.data.transpose(1, 2).unflatten(-1, (-1, 32))
        e = torch.floor(torch.log2(x.abs().amax(-1, keepdim=True))) - 2
        code = (x.abs() / 2**e)[..., None].sub(levels).abs().argmin(-1)
        code += 8 * (x < 0)
        blocks = (code[..., ::2] + 16 * code[..., 1::2]).to(torch.uint8)
        scales = (e + 127).squeeze(-1).to(torch.uint8)
        p.data = transformers.integrations.mxfp4.convert_moe_packed_tensors(
            blocks, scales).float()
        del tensors[name]
        tensors[name + "_blocks"] = blocks
        tensors[name + "_scales"] = scales
    return tensors


def say_mxfp4(folder):
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["quantization_config"] = dict(
        quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router",
            "model.embed_tokens", "lm_head"])
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def scale_of(model, layer):
    """The factor by which yarn and longrope scale keys and queries."""
    base = model.base_model
    rope = base.rotary_emb if hasattr(base, "rotary_emb") else base.pos_emb
    kind = (getattr(model.config, "layer_types", None) or [""] * 99)[layer]
    whole = getattr(rope, "attention_scaling", 1.0)
    return getattr(rope, kind + "_attention_scaling", whole)


def scale_minicpm(model, more):
    """Multiplies MiniCPM's factors into the Llama's weights; returns the
    tensors of the file, which has the factors apart."""
    c = model.config
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    embed = tensors["model.embed_tokens.weight"]
    del tensors["lm_head.weight"]  # tied to the embedding
    residual = more["scale_depth"] / c.num_hidden_layers ** 0.5
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embed * more["scale_emb"])
        model.lm_head.weight.copy_(
            embed * (more["dim_model_base"] / c.hidden_size))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(residual)
            layer.mlp.down_proj.weight.mul_(residual)
    return tensors


def pack_internlm2(model):
    """Renames the Llama's tensors, and joins q, k and v of each KV head."""
    c = model.config
    names = (("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj",
             "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"),
             ("mlp.down_proj", "feed_forward.w2"),
             ("input_layernorm", "attention_norm"),
             ("post_attention_layernorm", "ffn_norm"),
             ("lm_head", "output"), ("embed_tokens", "tok_embeddings"))
    tensors = {}
    for key, x in model.state_dict().items():
        for old, new in names:
            key = key.replace(old, new)
        tensors[key] = x
    for i in range(c.num_hidden_layers):
        q, k, v = (tensors.pop(f"model.layers.{i}.self_attn.{n}_proj.weight")
                   .view(c.num_key_value_heads, -1, c.hidden_size)
                   for n in "qkv")
        tensors[f"model.layers.{i}.attention.wqkv.weight"] = torch.cat(
            (q, k, v), 1).flatten(0, 1)
    return tensors


def add_mtp(model):
    """Adds a tensor of MiMo's layer that predicts the token after the next."""
    return {**model.state_dict(),
            "model.mtp_layers.0.final_layernorm.weight": torch.ones(18)}


def write_own_code(model, name, folder):
    """Writes the files of a model with code of its own, from the equal model
    of transformers."""
    more = OWN_CODE[name]
    tensors = (scale_minicpm(model, more) if name.startswith("minicpm")
               else add_mtp(model) if name == "mimo" else pack_internlm2(model))
    save_file({key: x.contiguous() for key, x in tensors.items()},
              os.path.join(folder, "model.safetensors"))
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = {**json.load(f), **more}
    with open(path, "w") as f:
        json.dump({k: v for k, v in config.items() if v is not None}, f,
                  indent=2)
        f.write("\n")


def keys_and_values(model, tokens, config):
    """Installs hooks that record k, k before RoPE, and v."""
    seen = []
    calls = {}

    class Cache(transformers.DynamicCache):
        def update(self, k, v, layer, *more, **named):
            calls[layer] = (k.clone(), v.clone())
            return super().update(k, v, layer, *more, **named)

    module = sys.modules[type(model).__module__]
    real = getattr(module, "apply_rotary_pos_emb", None)
    real = None if hasattr(config, "text_config") else real
    if real:
        def spy(q, k, cos, *more, **named):
            seen.append(k.clone())
            turns = cos.shape[-1] * (2 if half else 1)
            seen[-1][..., :turns] *= scale_of(model, len(seen) - 1)
            return real(q, k, cos, *more, **named)
        def spy_one(x, *more):  # GPT-J: k, then q
            seen.append(x.transpose(1, 2).clone())
            return real(x, *more)
        def spy_alone(x, *more, **named):  # Gemma: q, then k if it has one
            seen.append(x.transpose(1, 2).clone())
            return real(x, *more, **named)
        half = model.config.model_type == "gpt_oss"  # cosines of a half
        one = model.config.model_type == "gptj"
        alone = model.config.model_type in ("gemma4_text", "gemma3n_text")
        module.apply_rotary_pos_emb = (
            spy_one if one else spy_alone if alone else spy)
    with torch.no_grad():
        logits = model(tokens[None], past_key_values=Cache(config=config),
                       use_cache=True).logits[0]
    if real:
        module.apply_rotary_pos_emb = real
        seen = seen[::2] if one else seen
        seen = seen[1:2 * len(calls):2] if alone else seen
    return logits, calls, seen


def has_rope(config, layer):
    layers = getattr(config, "no_rope_layers", None)
    if config.model_type == "exaone4" and config.sliding_window is None:
        return True
    if config.model_type in ("exaone4", "cohere2"):
        return config.layer_types[layer] == "sliding_attention"
    return not layers or bool(layers[layer])


def split_experts(writer):
    """Writes a tensor for each expert, as converters once did."""
    whole = writer.add_tensor

    def add(name, data, **more):
        if "_exps." not in name:
            return whole(name, data, **more)
        for i, expert in enumerate(data):
            whole(name.replace("_exps.", f".{i}."), expert, **more)
    writer.add_tensor = add


def stack_experts(path, experts):
    """Stacks all experts' gates and ups in one tensor, their downs in
    another."""
    whole = load_file(path)
    parts = [k for k in whole if ".experts.0.gate_proj" in k]
    for first in parts:
        of = {}
        for part in "gate", "up", "down":
            key = first.replace("gate_proj", part + "_proj")
            of[part] = torch.stack([
                whole.pop(key.replace(".experts.0.", f".experts.{i}."))
                for i in range(experts)])
        before = first.split(".experts.0.")[0] + ".experts."
        whole[before + "gate_up_proj"] = torch.cat((of["gate"], of["up"]), 1)
        whole[before + "down_proj"] = of["down"]
    save_file(whole, path)


def turn_experts(path, part):
    """Transposes the experts whose names have this part."""
    save_file({key: x.transpose(1, 2).contiguous() if part in key else x
               for key, x in load_file(path).items()}, path)


def name_layers(hparams):
    """Renames kinds of layers as before transformers 5, for the converter."""
    old = {"linear_attention": "mamba", "full_attention": "attention"}
    if hparams["model_type"] == "granitemoehybrid":
        hparams["layer_types"] = [old[t] for t in hparams["layer_types"]]
    if hparams["model_type"] == "nemotron_h":
        hparams["d_head"] = hparams["mamba_head_dim"]
        letters = dict(linear_attention="M", full_attention="*", mlp="-", moe="E")
        hparams["hybrid_override_pattern"] = "".join(
            letters[t] for t in hparams["layers_block_type"])
        if "E" not in hparams["hybrid_override_pattern"]:
            for name in ("num_experts_per_tok", "n_routed_experts", "n_group",
                         "topk_group"):
                del hparams[name]


def convert(folder, llama_cpp):
    """Writes model.gguf, without a tokenizer, which the folder lacks."""
    sys.path[:0] = [llama_cpp, os.path.join(llama_cpp, "gguf-py")]
    import conversion
    import gguf

    hparams = conversion.ModelBase.load_hparams(folder, False)
    hparams.setdefault("n_ctx", N)  # the converter wants it
    hparams.setdefault("rotary_pct", hparams["rope_parameters"].get(
        "partial_rotary_factor", 1.0) if "rope_parameters" in hparams else 1.0)
    if not hparams.get("new_decoder_architecture", True):
        hparams["num_kv_heads"] = 1
    if hparams["model_type"] == "exaone4":
        del hparams["sliding_window_pattern"]
    name_layers(hparams)
    tokenizer = folder / "tokenizer.json"  # Gemma's tokens are counted
    if hparams["model_type"].startswith(("gemma3n", "gemma4")):
        tokenizer.write_text(json.dumps({"added_tokens": [], "model": {
            "vocab": {str(i): i for i in range(hparams["vocab_size"])}}}))
    arch = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    cls = conversion.get_model_class(arch.replace("MptF", "MPTF"))
    cls.set_vocab = lambda self: None
    cls.no_mtp = True
    model = cls(folder, gguf.LlamaFileType.ALL_F32, folder / "model.gguf",
                hparams=hparams, eager=True, fuse_qkv=folder.name in FUSED)
    if folder.name in SPLIT:
        split_experts(model.gguf_writer)
    model.write()
    tokenizer.unlink(missing_ok=True)


def greedy(model, tokens):
    """The model's text after the prompt, to the end of its context."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompt = tokens[None, :PROMPT]
    # In Nemotron-H a step with a cache omits the floor that a whole text has.
    cached = model.config.model_type != "nemotron_h"
    return model.generate(prompt, attention_mask=torch.ones_like(prompt),
                          do_sample=False, max_new_tokens=len(tokens) - PROMPT,
                          use_cache=cached)[0, PROMPT:]


def latent(k, turning, config):
    """A token's record of latent attention; rotated channels keep the model's
    own order."""
    if getattr(config, "rope_interleave", False):  # pairs, as halves
        turning = turning.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return torch.cat((k, turning), -1)[0].transpose(0, 1).contiguous()


def expect(model, tokens, folder):
    """Writes expected.safetensors."""
    config = model.config
    logits, calls, before = keys_and_values(model, tokens, config)
    log_p = torch.log_softmax(logits.double(), -1)
    losses = -log_p[torch.arange(N - 1), tokens[1:]]
    out = {"tokens": tokens, "losses": losses.float(),
           "greedy": greedy(model, tokens)}
    rotated = iter(before)
    for layer, (k, v) in calls.items():
        if hasattr(config, "kv_lora_rank"):
            out[f"k.{layer}"] = latent(k, v, config)
            continue
        turns = before and has_rope(config, layer)
        k_pre = next(rotated) if turns else k
        if k_pre.shape[-1] < k.shape[-1]:  # a partial rotation: the rest is k's
            k_pre = torch.cat((k_pre, k[..., k_pre.shape[-1]:]), -1)
        if config.model_type == "falcon":  # repeated for all heads of a group
            group = k.shape[1] // config.num_kv_heads if (
                config.new_decoder_architecture) else (
                k.shape[1] if config.multi_query else 1)
            k, k_pre, v = (x[:, ::group] for x in (k, k_pre, v))
        if hasattr(config, "text_config") or (  # its RoPE is not seen
                config.model_type.startswith("hunyuan_v1")):  # or not last
            k_pre = None
        for what, x in (("k", k), ("k_pre", k_pre), ("v", v)):
            if x is not None:
                out[f"{what}.{layer}"] = x[0].transpose(0, 1).clone(
                    ).contiguous()
    save_file(out, os.path.join(folder, "expected.safetensors"))
    size = sum(os.path.getsize(os.path.join(folder, f))
               for f in os.listdir(folder))
    print(os.path.basename(folder), size, "bytes, mean loss",
          losses.mean().item())


def new_model(cls, config):
    # Falcon's eager attention adds ALiBi twice.
    alibi = config.model_type == "falcon" and config.alibi
    config._attn_implementation = "sdpa" if alibi else "eager"
    config._experts_implementation = "eager"
    model = cls(config).float().eval()
    randomize(model)
    return model


def save(model, folder):
    model.save_pretrained(folder)
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)


def make(name, llama_cpp):
    cls, fields = MODELS[name]
    config_class = getattr(transformers, cls).config_class
    config = config_class(**{**COMMON, **fields})
    model = new_model(getattr(transformers, cls), config)
    stored = model
    if name.endswith("_bf16"):
        for p in model.parameters():
            p.data = p.data.bfloat16().float()
        stored = copy.deepcopy(model).bfloat16()
    folder = os.path.join(os.path.dirname(__file__), "..", "tests", "golden",
                          name)
    packed = pack_mxfp4(model) if name.endswith("_mxfp4") else None
    save(stored, folder)
    if packed:
        save_file({key: x.contiguous() for key, x in packed.items()},
                  os.path.join(folder, "model.safetensors"))
        say_mxfp4(folder)
    if name in OWN_CODE:
        write_own_code(model, name, folder)
    if name in HEADLESS:
        path = os.path.join(folder, "model.safetensors")
        save_file({key.removeprefix("model."): x
                   for key, x in load_file(path).items()}, path)
    if name in STACKED:
        stack_experts(os.path.join(folder, "model.safetensors"),
                      fields["num_experts"])
    weights = os.path.join(folder, "model.safetensors")
    if name in TURNED:
        turn_experts(weights, ".mlp.experts.")
    if llama_cpp and (name in SPLIT or not (
            name in NO_GGUF or name.endswith("_bf16"))):
        convert(pathlib.Path(folder), llama_cpp)
    if name in TURNED:
        turn_experts(weights, ".layers.1.mlp.experts.")
    expect(model, TOKENS, folder)


# The tiny values that replace a released config's fields, unless the fields are
# null.
TINY = dict(
    hidden_size=64, n_embd=64, n_embed=64, d_model=64, num_attention_heads=4,
    n_head=4, n_heads=4, head_dim=16, intermediate_size=24, ffn_dim=24,
    n_inner=24, word_embed_proj_dim=64, num_hidden_layers=4, n_layer=2,
    n_layers=2, vocab_size=53, n_positions=32, rotary_dim=4, num_experts=4,
    num_local_experts=4, num_experts_per_tok=2, experts_per_token=2,
    n_routed_experts=4, moe_num_experts=4, moe_k=2, moe_intermediate_size=9, sliding_window=8, sliding_window_size=8,
    attention_head_dim=16, shared_expert_intermediate_size=11,
    shared_intermediate_size=23, block_dim=64, block_ff_dim=24, conv_dim=64,
    conv_dim_out=64, num_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
    mamba_n_heads=2, full_attn_idxs=[2])
VISION = dict(
    hidden_size=32, intermediate_size=16, num_attention_heads=2, num_heads=2,
    num_hidden_layers=1, depth=1, head_dim=16, image_size=28,
    out_hidden_size=64, fullatt_block_indexes=[0], deepstack_visual_indexes=[0],
    num_position_embeddings=16)


def shrink(released):
    """The config with tiny sizes."""
    c = {k: TINY.get(k, v) if v else v for k, v in released.items()}
    heads = released.get("num_attention_heads", 0)
    for key in "num_key_value_heads", "num_kv_heads":
        if key in c:
            c[key] = {1: 1, heads: 4}.get(c[key], 2)
    for key in "layer_types", "no_rope_layers":
        if c.get(key):  # Granite's first five have no attention
            first = 2 if set(c[key][:4]) == {"mamba"} else 0
            c[key] = c[key][first:first + 4]
    if "do_layer_norm_before" in c:
        c["max_position_embeddings"] = 32
        if released["word_embed_proj_dim"] < released["hidden_size"]:
            c["word_embed_proj_dim"] = 32
    rope = c["rope_scaling"] = dict(c.get("rope_scaling") or {}) or None
    for key in "long_factor", "short_factor":
        if rope and key in rope:
            rope[key] = rope[key][:6]
    if rope and "mrope_section" in rope:
        part = c.get("partial_rotary_factor", 1)
        rope["mrope_section"] = [2, 3, 3] if part == 1 else [1, 1, 2]
    if isinstance(c.get("moe_topk"), list):
        c["moe_topk"] = [2] * 4
    if "rope_scaling" not in released:
        del c["rope_scaling"]
    if "text_config" in c:
        c["text_config"] = shrink(c["text_config"])
        if c["model_type"] == "gemma3":  # else the class's own sizes
            c["text_config"].update(num_attention_heads=4, head_dim=16,
                                    num_key_value_heads=2, vocab_size=53)
    if "vision_config" in c:
        c["vision_config"] = {k: VISION.get(k, v)
                              for k, v in c["vision_config"].items()}
    return c


def make_released(name, released, all_folders):
    raw = shrink(released)
    fields = copy.deepcopy(raw)
    for part in fields, fields.get("text_config", {}):
        part.update({k: 0 for k in ("pad_token_id", "image_token_id",
                                    "image_token_index", "video_token_id")
                     if part.get(k) is not None})
        part.pop("quantization_config", None)
        part.pop("use_mtp", None)
        if "time_step_limit" in part:  # its end is Infinity
            part["time_step_limit"] = [0.0, float("inf")]
        if part.get("attn_config", {}).get("clip_qkv"):
            part["attn_config"]["clip_qkv"] *= 1.0
    config = transformers.AutoConfig.for_model(**fields)
    multi = "vision_config" in raw
    auto = (transformers.AutoModelForImageTextToText if multi
            else transformers.AutoModelForCausalLM)
    model = new_model(auto._model_mapping[type(config)], config)
    folder = os.path.join(all_folders, name)
    save(model, folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(raw, f, indent=1)
    expect(model, TOKENS.clamp(min=1 if multi else 0), folder)


TOKENS = torch.arange(N) ** 2 * 7 % 53
parser = argparse.ArgumentParser()
parser.add_argument("--gguf", metavar="LLAMA_CPP")
parser.add_argument("--released", metavar="FOLDER")
parser.add_argument("names", nargs="*")
args = parser.parse_args()
if args.released:
    path = os.path.join(os.path.dirname(__file__), "..", "tests",
                        "released.json")
    with open(path) as f:
        configs = json.load(f)
    for name in args.names or configs:
        try:
            make_released(name, configs[name], args.released)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
else:
    for name in args.names or MODELS:
        make(name, args.gguf)
