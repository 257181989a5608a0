"""Folders of packed weights, a table of their formats: each gives the loss of
the weights that numpy unpacks; with a count of its header or a size of its
tensors changed it gives that loss or is refused by name, and with a part left
out it is refused."""
import functools
import json
import os
import shutil
import tempfile
import unittest

import numpy as np

import tiny_model
from packed_formats import FORMATS, f32, i32, to_e4m3
from run_tools import must, run

SIZES = dict(heads=4, kv_heads=2, head_dim=16, hidden=64, layers=1, ffn=96)
WALKED = "model.layers.0.self_attn.k_proj."  # 32 outputs, 64 inputs


def setUpModule():
    global folder, plain, config
    folder = tempfile.mkdtemp(prefix="kvtools-")
    plain = {}
    tiny_model.make(at("m"), seed=3, edit=lambda name, x: plain.update(
        {name: np.array(x, np.float32)}), **SIZES)
    shapes = tiny_model.shapes(4, 2, 16, 64, 1, tiny_model.VOCAB, 96)
    plain = {name: x.reshape(shapes[name]) for name, x in plain.items()}
    with open(at("m/config.json")) as f:
        config = json.load(f)
    with open(at("text"), "w") as f:
        f.write(tiny_model.text(40))


def tearDownModule():
    shutil.rmtree(folder)


def at(name):
    return os.path.join(folder, name)


def write_model(tensors, files):
    """A folder of these tensors; files: name -> JSON, beside the tokenizer."""
    out = at("case")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    shutil.copy(at("m/tokenizer.json"), out)
    for name, content in files.items():
        with open(os.path.join(out, name), "w") as f:
            json.dump(content, f)
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)
    return out


ARGS = ["-f", "text", "-c", "32", "-n", "1", "--columns", "nll"]


def measure(tensors, files):
    model = write_model(tensors, files)
    return run("kvppl", "-q", "-m", model, *ARGS, cwd=folder)


# Read by the code of others, which are walked through.
ALIKE = ("gptq 3", "gptq 3 v2", "gptq 3 of GPTQModel", "nf4",
         "nf4 across rows", "fp4", "w4a16", "w8a16", "w2a16", "fp8 channel",
         "fp8 tensor", "nvfp4 modelopt")
WALKED_FORMATS = [name for name in FORMATS if name not in ALIKE]


class Case:
    """A packed model, and the results of its unpacked weights."""

    def __init__(self, name):
        pack, self.header, self.place = FORMATS[name]
        rng = np.random.default_rng(5)
        self.tensors, unpacked = {}, {}
        for tensor, x in plain.items():
            unpacked[tensor] = f32(x)
            if not tensor.endswith("proj.weight"):
                self.tensors[tensor] = f32(x)
                continue
            x, parts = pack(rng, *x.shape)
            unpacked[tensor] = f32(x)
            for part, content in parts.items():
                self.tensors[tensor[:-len("weight")] + part] = content
        self.parts = [t for t in self.tensors if t.startswith(WALKED)]
        self.nll = must("kvppl", "-m", write_model(
            unpacked, {"config.json": config}), *map(
                lambda a: at(a) if a == "text" else a, ARGS))

    @staticmethod
    @functools.cache
    def of(name):
        return Case(name)

    def files(self, header):
        if self.place == "config.json":
            return {"config.json": {**config, "quantization_config": header}}
        if self.place == "compressed":
            rest = {k: v for k, v in header.items() if k != "format"}
            return {"config.json": {**config, "quantization_config": {
                "quant_method": "compressed-tensors", "ignore": ["lm_head"],
                "format": header.get("format"), "kv_cache_scheme": None,
                "config_groups": {"group_0": {"targets": ["Linear"],
                                              "weights": rest}}}}}
        if self.place == "hf_quant_config.json":
            header = {"producer": {"name": "modelopt"}, "quantization": header}
        return {"config.json": config, self.place: header}


def changed_counts(header):
    """Yields each count of the header, changed: (its name, the header)."""
    for field, value in header.items():
        places = range(len(value)) if isinstance(value, list) else [None]
        if isinstance(value, (bool, str)):
            continue
        for i in places:
            n = value if i is None else value[i]
            for other in {n - 1, n + 1, 2 * n, n // 2, 0, -1, -2, -n, 2**31,
                          2**32 + n, 2**63 - 1} - {n}:
                if i is None:
                    yield field, {**header, field: other}
                else:
                    yield field, {**header, field: [
                        other if j == i else m for j, m in enumerate(value)]}
            for other in "4", 4.5, None, [], True:
                yield field, {**header, field: other}


def resized(dtype, shape, content, new):
    """The same tensor with another shape: cut, or padded with zeros."""
    each = {"F32": 4, "F16": 2, "I32": 4, "F8_E4M3": 1, "I64": 8, "U8": 1,
            "I8": 1}[dtype]
    n = int(np.prod(new, dtype=np.int64)) * each
    return dtype, list(new), (content + b"\0" * n)[:n]


def changed_shapes(tensor):
    """A tensor with each of its sizes changed."""
    shape = tensor[1]
    for i, n in enumerate(shape):
        for other in {n - 1, n + 1, 2 * n, n // 2, 0} - {n}:
            yield resized(*tensor, shape[:i] + [other] + shape[i + 1:])
        for other in -n, 2**62, 2**63 - 1:
            yield tensor[0], shape[:i] + [other] + shape[i + 1:], tensor[2]
    for other in shape[::-1], shape + [2], shape + [1], [1] + shape, [1, 2], [2]:
        if other != shape:
            yield resized(*tensor, other)


def fifth(name, changes):
    """A fifth of the changes, another one for the next format: all formats
    together meet every kind."""
    first = list(FORMATS).index(name)
    for i, change in enumerate(changes):
        if (i + first) % 5 == 0:
            yield change


class PackedFiles(unittest.TestCase):
    def refused(self, done, *names):
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(any(name in done.stderr for name in names),
                        (names, done.stderr))

    def right(self, case, done, *names):
        """The loss of the unpacked weights, or refused by one of the names."""
        if done.returncode:
            self.refused(done, *names)
        else:
            self.assertEqual((done.stdout, done.stderr), (case.nll, ""))

    def test_each_is_what_numpy_unpacks(self):
        for name in FORMATS:
            case = Case.of(name)
            with self.subTest(name):
                done = measure(case.tensors, case.files(case.header))
                self.assertEqual((done.stdout, done.stderr), (case.nll, ""))

    def test_counts_of_the_header(self):
        for name in WALKED_FORMATS:
            case = Case.of(name)
            for field, header in fifth(name, changed_counts(case.header)):
                with self.subTest(name, header=header):
                    self.right(case, measure(case.tensors, case.files(header)),
                               field, {"w_bit": "bits", "q_group_size":
                                       "group_size"}.get(field, field))

    def test_shapes_of_the_tensors(self):
        for name in WALKED_FORMATS:
            case = Case.of(name)
            files = case.files(case.header)
            for part in case.parts:
                for tensor in fifth(name, changed_shapes(
                        case.tensors[part])):
                    with self.subTest(name, part=part, shape=tensor[1]):
                        done = measure({**case.tensors, part: tensor}, files)
                        self.right(case, done, part, WALKED + "weight")

    def test_a_part_is_missing(self):
        for name in FORMATS:
            case = Case.of(name)
            for part in case.parts:
                rest = {t: x for t, x in case.tensors.items() if t != part}
                with self.subTest(name, part=part):
                    done = measure(rest, case.files(case.header))
                    if (name == "gptq in order" and part.endswith("g_idx")
                            or part.endswith("weight_format")):
                        self.assertEqual(done.stdout, case.nll)
                    else:
                        self.refused(done, part.split(".")[-1])

    def test_types_of_the_tensors(self):
        for name in FORMATS:
            case = Case.of(name)
            for part in case.parts:
                dtype, shape, content = case.tensors[part]
                other = {"I32": "F32", "F32": "I32", "F16": "I16",
                         "F8_E4M3": "U8", "I64": "F64", "U8": "I8",
                         "I8": "U8"}[dtype]
                with self.subTest(name, part=part):
                    done = measure({**case.tensors,
                                    part: (other, shape, content)},
                                   case.files(case.header))
                    self.refused(done, part)

    def test_groups_of_inputs(self):
        for name in "gptq act order", "gptq in order":
            case = Case.of(name)
            part = WALKED + "g_idx"
            for i, g in (0, -1), (5, 4), (7, 2**31 - 1), (0, 1), (63, 0):
                x = np.frombuffer(case.tensors[part][2], "<i4").copy()
                x[i] = g if x[i] != g else g + 1
                with self.subTest(name, i=i, g=g):
                    done = measure({**case.tensors, part: i32(x)},
                                   case.files(case.header))
                    self.refused(done, part)

    def test_zeros_that_sym_contradicts(self):
        for name in ("gptq 4 sym", "gptq 2 v2", "gptq 8 sym v2",
                     "gptq 3", "gptq 3 of GPTQModel"):
            case = Case.of(name)
            v2 = case.header["checkpoint_format"] == "gptq_v2"
            header = {**case.header,
                      "checkpoint_format": "gptq" if v2 else "gptq_v2"}
            with self.subTest(name):
                done = measure(case.tensors, case.files(header))
                self.refused(done, "sym is true")

    def test_without_a_header(self):
        for name in FORMATS:
            case = Case.of(name)
            with self.subTest(name):
                self.refused(measure(case.tensors, {"config.json": config}),
                             "no quantization_config")

    def test_files_that_contradict_each_other(self):
        case = Case.of("gptq 4")
        files = case.files(case.header)
        for field, value in ("bits", 8), ("group_size", 32), (
                "checkpoint_format", "gptq_v2"), ("quant_method", "awq"):
            with self.subTest(field):
                old = {**case.header, field: value}
                if value == "awq":
                    del old["checkpoint_format"]
                done = measure(case.tensors, {**files,
                                              "quantize_config.json": old})
                self.refused(done, "contradict each other")
        done = measure(case.tensors, {**files,
                                      "quantize_config.json": case.header})
        self.assertEqual(done.stdout, case.nll)

    def test_fp8_beside_words(self):
        case = Case.of("gptq 4")
        name = "lm_head.weight"
        shape = case.tensors[name][1]
        codes = "F8_E4M3", shape, bytes(shape[0] * shape[1])
        self.refused(measure({**case.tensors, name: codes},
                             case.files(case.header)), name)

    def test_headers_of_compressed_tensors(self):
        case = Case.of("fp8 tensor")
        packing = case.files(case.header)["config.json"]["quantization_config"]
        group = packing["config_groups"]["group_0"]
        other = {**group, "weights": {**group["weights"],
                                      "strategy": "channel"}}
        for name, changes in (
                ("marlin-24", {"format": "marlin-24"}),
                ("sparsity_config", {"sparsity_config": {
                    "format": "sparse-24-bitmask"}}),
                ("transform_config", {"transform_config": {"config_groups":
                                                           {}}}),
                ("config_groups", {"config_groups": {}}),
                ("config_groups", {"config_groups": {"a": group,
                                                     "b": other}}),
                ("weights", {"config_groups": {"a": {"weights": None}}}),
                ("symmetric", {"config_groups": {"a": {"weights": {
                    **group["weights"], "symmetric": False}}}})):
            with self.subTest(name):
                self.refused(measure(case.tensors, {"config.json": {
                    **config, "quantization_config": {**packing, **changes}}}),
                    name)

    def test_scales_of_activations_and_of_a_cache(self):
        case = Case.of("fp8 tensor")
        one = f32(np.ones(1, np.float32))
        done = measure({**case.tensors, WALKED + "input_scale": one,
                        WALKED + "k_scale": one}, case.files(case.header))
        self.assertEqual((done.stdout, done.stderr), (case.nll, ""))

    def test_scales_of_a_cache_feed_modelopt(self):
        """modelopt:fp8 without -C: e4m3 of x / scale, times the scale of the
        checkpoint; from the model and from a dump of it."""
        case = Case.of("fp8 tensor")
        layer = "model.layers.0.self_attn."
        for names in (("k_proj.k_scale", "v_proj.v_scale"),
                      ("attn.k_scale", "attn.v_scale"), ("kv_scale",)):
            scale = np.float32([.013, .0021][:len(names)])
            more = {layer + name: f32(x.reshape(1))
                    for name, x in zip(names, scale)}
            model = write_model({**case.tensors, **more},
                                case.files(case.header))
            must("kvdump", "-m", model, "-f", at("text"), "-c", "32", "-n",
                 "1", "-o", at("dump.h5"))
            for spec in "f16", "modelopt:fp8":
                must("kvquant", "-s", spec, at("dump.h5"), "--decoded",
                     at(spec[-3:] + ".npz"), "-o", at(spec[-3:] + ".csv"))
            with np.load(at("f16.npz")) as x, np.load(at("fp8.npz")) as y:
                for name in x.files:
                    s = scale[len(names) - 1 if "values" in name else 0]
                    with self.subTest(names, name=name):
                        np.testing.assert_array_equal(
                            y[name], to_e4m3(x[name] / s) * s)
            rows = must("kvppl", "-m", model, "-s", "modelopt:fp8", "-s",
                        "vllm:fp8", *map(lambda a: at(a) if a == "text" else a,
                                         ARGS)).split()
            self.assertEqual(len(rows), 4)
            self.assertNotEqual(rows[2], rows[3])
        done = measure({**case.tensors, layer + "k_scale": f32(np.zeros(1))},
                       case.files(case.header))
        self.refused(done, "k_scale is 0, a scale above 0 expected")
        done = run("kvppl", "-m", write_model(
            {**case.tensors, layer + "k_scale": f32(np.ones(1))}, case.files(
                case.header)), "-s", "modelopt:fp8", *ARGS, cwd=folder)
        self.refused(done, "no single one of layer 0, V")

    def test_fewer_inputs_than_a_group(self):
        case = Case.of("gptq one group")
        done = measure(case.tensors, case.files({**case.header,
                                                 "group_size": 128}))
        self.assertEqual(done.stdout, case.nll)

    def test_a_header_without_packed_tensors(self):
        tensors = {name: f32(x) for name, x in plain.items()}
        for name in FORMATS:
            with self.subTest(name):
                case = Case.of(name)
                self.refused(measure(tensors, case.files(case.header)),
                             case.place, "config.json")


if __name__ == "__main__":
    unittest.main()
