"""A tiny random Llama in Hugging Face layout, for tests of the tools.

Standard library only.  Weights come from an explicit seed; the tokenizer is
byte-level BPE: one token per byte, a few merges, one special token.
"""

import array
import json
import math
import os
import random
import struct

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the")]
SPECIAL = "<|endoftext|>"


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    chars = {b: chr(b) for b in plain}
    chars.update({b: chr(256 + i) for i, b in enumerate(rest)})
    return [chars[b] for b in range(256)]


def vocabulary():
    words = byte_alphabet() + [a + b for a, b in MERGES]
    return {word: i for i, word in enumerate(words)}


VOCAB = len(vocabulary()) + 1  # with the special token, which comes last


def write_tokenizer(folder, bos):
    vocab = vocabulary()
    special = {"id": len(vocab), "content": SPECIAL, "single_word": False,
               "lstrip": False, "rstrip": False, "normalized": False,
               "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False,
             "trim_offsets": True, "use_regex": True}
    before = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": SPECIAL, "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {SPECIAL: {"id": SPECIAL, "ids": [len(vocab)],
                                     "tokens": [SPECIAL]}}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special], "normalizer": None,
        "pre_tokenizer": level, "post_processor": before if bos else None,
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [" ".join(m) for m in MERGES]},
    }
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    if bos:
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"add_bos_token": True, "bos_token": SPECIAL}, f)


def shapes(heads, kv_heads, head_dim, hidden, layers, vocab, ffn):
    """Names and shapes of all tensors, in a fixed order."""
    out = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(layers):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = (hidden,)
        out[p + "self_attn.q_proj.weight"] = (heads * head_dim, hidden)
        out[p + "self_attn.k_proj.weight"] = (kv_heads * head_dim, hidden)
        out[p + "self_attn.v_proj.weight"] = (kv_heads * head_dim, hidden)
        out[p + "self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        out[p + "post_attention_layernorm.weight"] = (hidden,)
        out[p + "mlp.gate_proj.weight"] = (ffn, hidden)
        out[p + "mlp.up_proj.weight"] = (ffn, hidden)
        out[p + "mlp.down_proj.weight"] = (hidden, ffn)
    out["model.norm.weight"] = (hidden,)
    out["lm_head.weight"] = (vocab, hidden)
    return out


def write_safetensors(path, tensors):
    """tensors: name -> (shape, array of floats); stored as F32."""
    header, offset = {}, 0
    for name, (shape, x) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape),
                        "data_offsets": [offset, offset + 4 * len(x)]}
        offset += 4 * len(x)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _, x in tensors.values():
            f.write(x.tobytes())


def write_weights(folder, shapes):
    """shapes: [(name, shape)] of all tensors.  Vectors are ones; embeddings and
    kernels (three dimensions) have a deviation of 1; matrices keep the scale of
    their input."""
    rng = random.Random(5)
    tensors = {}
    for name, shape in shapes:
        scale = 1 if "embed" in name or len(shape) == 3 else shape[-1] ** -0.5
        tensors["model." + name] = (shape, array.array("f", (
            1 if len(shape) == 1 else rng.gauss(0, scale)
            for _ in range(math.prod(shape)))))
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)


def make(folder, heads=4, kv_heads=2, head_dim=16, hidden=32, layers=2, ctx=64,
         vocab=VOCAB, ffn=64, seed=1, bos=False, k_bias=0, edit=None):
    """Writes the model and returns folder.

    vocab below VOCAB gives a model that does not know all of the tokenizer's
    ids.  k_bias: standard deviation of the biases of keys, each layer's its
    own; 0: no projection has a bias.  edit(name, values) may change a tensor
    before it is written."""
    os.makedirs(folder, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "vocab_size": vocab, "max_position_embeddings": ctx,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float32",
        "attention_bias": k_bias > 0,
    }
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    write_tokenizer(folder, bos)

    rng = random.Random(seed)
    tensors = {}
    for name, shape in shapes(heads, kv_heads, head_dim, hidden, layers, vocab,
                              ffn).items():
        if len(shape) == 1:
            x = array.array("f", [1.0]) * shape[0]
        else:
            scale = 1 if "embed" in name else 1 / math.sqrt(shape[1])
            x = array.array("f", (rng.gauss(0, scale)
                                  for _ in range(shape[0] * shape[1])))
        if edit:
            edit(name, x)
        tensors[name] = (shape, x)
        if k_bias and name.endswith((".q_proj.weight", ".k_proj.weight",
                                     ".v_proj.weight", ".o_proj.weight")):
            scale = k_bias if ".k_proj." in name else 0
            tensors[name.replace("weight", "bias")] = (
                shape[:1],
                array.array("f", (rng.gauss(0, scale)
                                  for _ in range(shape[0]))))
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    return folder


def text(n_words, seed=1):
    """Words of letters, ASCII, the same for the same seed."""
    rng = random.Random(seed)
    letters = "etaoinshrdlu"
    return " ".join("".join(rng.choice(letters)
                            for _ in range(rng.randrange(1, 9)))
                    for _ in range(n_words)) + "\n"
