"""The kinds of files: for each, valid ones, how they are changed, and the tools
that read them.  make(folder) writes all valid files into the folder."""
import array
import json
import os
import random
import shutil
import struct

import formats
import hdf5_edits
import tiny_model
import tree
from run_tools import must, prompt, read, write

CTX = 32
TEMPLATE = """{%- for m in messages %}{% if m['role'] == 'user' -%}
{{ '[INST] ' + m['content'] | trim + ' [/INST]' }}
{%- elif loop.last %}{{ bos_token }}
{%- else %}{{ m.content }}{% endif %}{% endfor %}
{%- set ns = namespace(n=0) %}
{%- if add_generation_prompt %}{{ eos_token }}{% endif %}"""
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False,
        "desc_act": False, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm",
       "zero_point": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16]}


def edit_json(path, edit):
    with open(path) as f:
        content = json.load(f)
    edit(content)
    with open(path, "w") as f:
        json.dump(content, f)


def tensors_of(path):
    """name -> (dtype, shape, bytes) of a safetensors file."""
    data = read(path)
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: (t["dtype"], t["shape"],
                data[8 + n:][slice(*t["data_offsets"])])
            for k, t in head.items()}


def write_tensors(path, tensors):
    head, data = {}, b""
    for name, (dtype, shape, x) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape,
                      "data_offsets": [len(data), len(data) + len(x)]}
        data += x
    head = json.dumps(head).encode()
    head += b" " * (-len(head) % 8)
    write(path, struct.pack("<Q", len(head)) + head + data)


def pack(folder, quant):
    """Makes matrices of the layers packed ones of random codes."""
    rng = random.Random(1)
    path = os.path.join(folder, "model.safetensors")
    group, out = 16, {}
    for name, (dtype, shape, x) in tensors_of(path).items():
        if ".layers." not in name or len(shape) < 2:
            out[name] = dtype, shape, x
            continue
        base, (rows, columns) = name[:-len("weight")], shape
        if quant is FP8:
            down, across = -(-rows // group), -(-columns // group)
            out[name] = "F8_E4M3", shape, bytes(
                rng.randrange(0x60) for _ in range(rows * columns))
            out[base + "weight_scale_inv"] = "F32", [down, across], struct.pack(
                "<f", .01) * (down * across)
            continue
        across = columns // group
        down = [columns, rows // 8] if quant is AWQ else [columns // 8, rows]
        out[base + "qweight"] = "I32", down, rng.randbytes(rows * columns // 2)
        out[base + "qzeros"] = "I32", [across, rows // 8], b"\x77" * (
            across * rows // 2)
        out[base + "scales"] = "F16", [across, rows], b"\0\x20" * (
            across * rows)
        if quant is GPTQ:
            out[base + "g_idx"] = "I32", [columns], struct.pack(
                f"<{columns}i", *(i // group for i in range(columns)))
    write_tensors(path, out)
    edit_json(os.path.join(folder, "config.json"),
              lambda c: c.update(quantization_config=quant))


def split(folder):
    """Stores the weights in two files with an index."""
    path = os.path.join(folder, "model.safetensors")
    tensors = tensors_of(path)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    place = {k: names[".layers.1." in k] for k in tensors}
    for name in names:
        write_tensors(os.path.join(folder, name),
                      {k: t for k, t in tensors.items() if place[k] == name})
    with open(path + ".index.json", "w") as f:
        json.dump({"metadata": {"total_size": 1}, "weight_map": place}, f)
    os.remove(path)


def sentencepiece():
    """Fields of a tokenizer.model of pieces that tiny_model's texts are of."""
    def piece(text, score, kind):
        return [1, 2, [[1, 2, text.encode()], [2, 5, struct.pack("<f", score)],
                       [3, 0, kind]]]

    fields = [piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("</s>", 0, 3)]
    fields += [piece(f"<0x{i:02X}>", 0, 6) for i in range(0, 256, 16)]
    fields += [piece(c, -i, 1) for i, c in enumerate("\u2581etaoinshrdlu")]
    fields += [piece("\u2581t", -20, 1), piece("he", -21, 1),
               piece("\u2581the", -22, 1)]
    fields.append([2, 2, [[3, 0, 2], [4, 0, len(fields)], [35, 0, 1],
                          [40, 0, 0], [41, 0, 1], [42, 0, 2]]])
    fields.append([3, 2, [[1, 2, b"identity"], [3, 0, 1], [4, 0, 0]]])
    return fields


def gguf(folder):
    """The model of the folder, as llama.cpp would have it."""
    short = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output",
             "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}

    def name(text):
        if ".layers." not in text:
            return {"model.embed_tokens.weight": "token_embd.weight",
                    "model.norm.weight": "output_norm.weight",
                    "lm_head.weight": "output.weight"}[text]
        _, _, i, rest = text.split(".", 3)
        return f"blk.{i}.{short[rest[:-len('.weight')]]}.weight"

    words = [*tiny_model.vocabulary(), tiny_model.SPECIAL]
    keys = [["general.architecture", formats.TEXT, "llama"],
            ["general.alignment", formats.U32, 32]]
    keys += [["llama." + k, formats.U32, x] for k, x in (
        ("block_count", 2), ("context_length", 64), ("embedding_length", 32),
        ("feed_forward_length", 64), ("attention.head_count", 4),
        ("attention.head_count_kv", 2), ("attention.key_length", 16),
        ("attention.value_length", 16), ("rope.dimension_count", 16),
        ("vocab_size", len(words)))]
    keys += [["llama." + k, formats.F32, x] for k, x in (
        ("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e4),
        ("rope.scaling.factor", 2.0))]
    keys += [["llama.rope.scaling.type", formats.TEXT, "linear"]]
    keys += [["tokenizer.ggml." + k, kind, x] for k, kind, x in (
        ("model", formats.TEXT, "gpt2"), ("pre", formats.TEXT, "gpt-2"),
        ("tokens", formats.ARRAY, [formats.TEXT, words, None]),
        ("token_type", formats.ARRAY, [
            formats.I32, [1] * (len(words) - 1) + [3], None]),
        ("merges", formats.ARRAY, [formats.TEXT, [
            " ".join(m) for m in tiny_model.MERGES], None]),
        ("bos_token_id", formats.U32, len(words) - 1),
        ("eos_token_id", formats.U32, len(words) - 1),
        ("add_bos_token", formats.BOOL, False))]
    keys += [["tokenizer.chat_template", formats.TEXT, TEMPLATE]]
    tensors = [[name(k), shape[::-1], 0, x] for k, (_, shape, x) in tensors_of(
        os.path.join(folder, "model.safetensors")).items()]
    return formats.Gguf(keys, tensors)


def make_models(at):
    for name in "m", "gptq", "awq", "fp8", "split", "sp":
        tiny_model.make(at(name), seed=1)
    for name, quant in ("gptq", GPTQ), ("awq", AWQ), ("fp8", FP8):
        pack(at(name), quant)
    split(at("split"))
    os.remove(at("sp/tokenizer.json"))
    write(at("sp/tokenizer.model"), formats.proto(sentencepiece()))
    with open(at("m/tokenizer_config.json"), "w") as f:
        json.dump({"add_bos_token": False, "bos_token": tiny_model.SPECIAL,
                   "eos_token": {"content": tiny_model.SPECIAL,
                                 "lstrip": False},
                   "added_tokens_decoder": {str(tiny_model.VOCAB - 1): {
                       "content": tiny_model.SPECIAL, "special": True}},
                   "chat_template": TEMPLATE}, f)
    for name, content in (
            ("generation_config", {"eos_token_id": [tiny_model.VOCAB - 1],
                                   "bos_token_id": 5, "temperature": 0.7}),
            ("special_tokens_map", {"bos_token": tiny_model.SPECIAL})):
        with open(at(f"m/{name}.json"), "w") as f:
            json.dump(content, f)
    edit_json(at("m/config.json"), lambda c: c.update(
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor":
                      1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32},
        eos_token_id=[tiny_model.VOCAB - 1], sliding_window=None))
    write(at("m.gguf"), gguf(at("sp")).write())
    shutil.copytree(at("m"), at("jinja"))
    write(at("jinja/chat_template.jinja"), TEMPLATE.encode())


def make(folder):
    """All valid files."""
    def at(name):
        return os.path.join(folder, name)

    make_models(at)
    for name, seed in ("a.txt", 1), ("b.txt", 2):
        with open(at(name), "w") as f:
            f.write(tiny_model.text(200, seed))
    text = ["-m", at("m"), "-f", at("a.txt"), "-c", CTX, "-n", "2"]
    for name, more in ("a.h5", ["-f", at("a.txt"), "-n", "2"]), (
            "b.h5", ["-f", at("b.txt"), "-n", "3", "--fisher"]):
        must("kvdump", "-m", at("m"), "-c", CTX, "-o", at(name), *more)
    must("kvcalib", "-s", "vecinfer:d4b2,iters=2", "-s", "kvquant:b2", "-s",
         "klt:b2", at("b.h5"), "-o", at("c.h5"))
    must("kvquant", "-s", "kivi:b2g8", "-s", "hack:b2p16,rqe=no", at("a.h5"),
         "--codes", at("codes.h5"))
    must("kvquant", "-s", "f32", at("a.h5"), "--decoded",
         at("own.safetensors"))
    must("kvppl", *text, "-s", "kivi:b2g8", "-p", "llama.cpp",
         "--kl-divergence-base", at("base.kld"))
    table = ["-m", at("m"), "-f", at("a.txt"), "-c", CTX, "-n", "2", "-s",
             "kivi:b2g8"]
    must("kvppl", *table, "-o", at("rows.csv"), "--append")
    write(at("rows.csv.partial"), read(at("rows.csv")))
    prompt(at("p.jsonl"), tiny_model.text(5, 1))
    write(at("chat.jsonl"), json.dumps({"id": 1, "max_tokens": 2, "stop": [
        "a", "bc"], "answer": 0.5, "messages": [
            {"role": "user", "content": "the quick"}]}).encode())
    write(at("layers.txt"), b"# by hand\n0 K kivi:b2g8\n0 V kivi:b4g8\n"
                            b"1 KV absmax:b3\n")


def in_folder(name, change):
    """A file of a model's folder."""
    return name, lambda rng, path: write(path, change(rng, read(path)))


def made(name, mutate, make_):
    return name, lambda rng, path: write(path, mutate(rng, make_))


def kinds(folder):
    """name -> (the folder or file that is copied, [(file in it, change)], [a
    command each]).  In a command CASE is the copy."""
    def at(name):
        return os.path.join(folder, name)

    def ppl(*more, model="CASE"):
        return ["kvppl", "-m", model, "-f", at("a.txt"), "-c", str(CTX), "-n",
                "2", "-s", "kivi:b2g8", *more]

    def of_model():
        return [ppl(), ["kvdump", "-m", "CASE", "--about", "-c", "64"],
                ["kvgen", "-m", "CASE", "-f", at("p.jsonl"), "-n", "3", "-s",
                 "kivi:b2g8", "-o", "OUT"]]

    chat = ["kvgen", "-m", "CASE", "-f", at("chat.jsonl"), "-n", "2", "-o",
            "OUT"]
    tokens = [["kvdump", "-m", "CASE", "-f", at("a.txt"), "--tokens"], ppl()]
    codes = ["-s", "f16", "-s", "kivi:b2g8r8"]
    js, st = tree.mutate_json, formats.mutate_safetensors

    def h5(rng, path):
        hdf5_edits.mutate(rng, path)

    def template(rng, path):
        with open(path, encoding="utf-8") as f:
            text = formats.mutate_template(rng, f.read())
        write(path, text.encode("utf-8", "surrogateescape"))

    packed = [in_folder("config.json", js), in_folder("model.safetensors", st)]
    return {
        "config": (at("m"), [in_folder("config.json", js)], of_model()),
        "generation": (at("m"), [in_folder(f, js) for f in (
            "generation_config.json", "special_tokens_map.json",
            "tokenizer_config.json")], [chat, *tokens]),
        "safetensors": (at("m"), [in_folder("model.safetensors", st)],
                        of_model()),
        "index": (at("split"), [in_folder("model.safetensors.index.json", js)],
                  of_model()),
        "gptq": (at("gptq"), packed, of_model()),
        "awq": (at("awq"), packed, of_model()),
        "fp8": (at("fp8"), packed, of_model()),
        "tokenizer": (at("m"), [in_folder("tokenizer.json", js)], tokens),
        "sentencepiece": (at("sp"), [made("tokenizer.model",
                                          formats.mutate_proto, sentencepiece)],
                          tokens),
        "gguf": (at("m.gguf"), [made("", formats.mutate_gguf,
                                     lambda: gguf(at("sp")))],
                 of_model() + [chat] + tokens),
        "template": (at("jinja"), [("chat_template.jinja", template)],
                     [chat]),
        "dump": (at("a.h5"), [("", h5)], [
            ["kvquant", *codes, "CASE"], ["kvattn", *codes, "--dump", "CASE",
                                          "--reps", "1", "--warmup", "0"],
            ["kvcalib", "-s", "pq:d4b2,iters=2", "CASE", "-o", "OUT"],
            ["kvquant", *codes, "--channels", "CASE"]]),
        "fisher": (at("b.h5"), [("", h5)], [
            ["kvcalib", "-s", "kvquant:b2", "-s", "klt:b2", "CASE", "-o",
             "OUT"]]),
        "calibration": (at("c.h5"), [("", h5)], [
            ppl("-s", "kvquant:b2", "-s", "vecinfer:d4b2,iters=2", "-C", "CASE",
                model=at("m")),
            ["kvquant", "-s", "klt:b2", "-C", "CASE", at("a.h5")],
            ["kvcalib", "-s", "vecinfer:d4b2,iters=3", "--factors", "CASE",
             at("b.h5"), "-o", "OUT"]]),
        "codes": (at("codes.h5"), [("", h5)], [
            ["kvquant", "--codes-in", "CASE", at("a.h5")]]),
        "arrays": (at("own.safetensors"), [in_folder("", st)], [
            ["kvdump", "--from", "CASE", "--config", at("m/config.json"), "-o",
             "OUT"],
            ["kvdump", "--from", "CASE", "--rope-theta", "1e4", "-o", "OUT"]]),
        "klbase": (at("base.kld"), [in_folder("", formats.mutate_klbase)], [
            ppl("-p", "llama.cpp", "--kl-divergence", "--kl-divergence-base",
                "CASE", model=at("m"))]),
        "journal": (at("rows.csv.partial"), [
            in_folder("", formats.mutate_table)], [
                ppl("--resume", "-o", "CASE-.partial", model=at("m"))]),
        "table": (at("rows.csv"), [in_folder("", formats.mutate_table)], [
            ppl("-s", "absmax:b3", "--append", "-o", "CASE", model=at("m"))]),
        "layers": (at("layers.txt"), [in_folder("", formats.mutate_lines)], [
            ppl("-s", "mixed,file=CASE", model=at("m")),
            ["kvquant", "-s", "mixed,file=CASE", at("a.h5")]]),
        "prompts": (at("chat.jsonl"), [in_folder("", js), in_folder(
            "", formats.mutate_lines)], [
                ["kvgen", "-m", at("jinja"), "-f", "CASE", "-n", "2", "-o",
                 "OUT"]]),
        "text": (at("a.txt"), [in_folder("", formats.mutate_lines)], [
            ["kvppl", "-m", at("m"), "-f", "CASE", "-c", str(CTX), "-n", "1"],
            ["kvdump", "-m", at("sp"), "-f", "CASE", "--tokens"]]),
    }


def copy(source, to):
    if os.path.isdir(to):
        shutil.rmtree(to)
    elif os.path.exists(to):
        os.remove(to)
    (shutil.copytree if os.path.isdir(source) else shutil.copyfile)(source, to)
