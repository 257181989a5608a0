"""Describes a transformers model to libkvtools."""
import inspect
import sys

import numpy as np
import torch

from ._library import KvtoolsError


# Models whose keys llama.cpp's converter permutes (lib/model/gguf_names.c).
GGML_NEIGHBOURS = "llama", "mistral", "mixtral", "granite", "smollm3"


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Rope:
    """A model's RoPE: its own cosines and sines, by layer and position."""

    def __init__(self, module, layer_types):
        self.module, self.layer_types = module, layer_types
        self.by_type = "layer_type" in inspect.signature(
            module.forward).parameters

    def _attribute(self, name, layer_type):
        if hasattr(self.module, name):
            return getattr(self.module, name)
        return getattr(self.module, "%s_%s" % (layer_type, name))

    def inv_freq(self, layer_type):
        x = self._attribute("inv_freq", layer_type)
        return x.detach().to("cpu", torch.float32).numpy()

    def scale(self, layer_type):
        return float(self._attribute("attention_scaling", layer_type))

    def _angles(self, layer, first, n):
        at = torch.arange(first, first + n,
                          device=self.module_device())[None]
        args = (self.layer_types[layer],) if self.by_type else ()
        cos, sin = self.module(torch.zeros(1, dtype=torch.float32,
                                           device=at.device), at, *args)
        return (x[0, :, None].to("cpu", torch.float64) for x in (cos, sin))

    def module_device(self):
        return next(self.module.buffers()).device

    def turn(self, layer, first, x):
        """Rotates x [n][heads][channels] f32 numpy, from position first on."""
        cos, sin = self._angles(layer, first, len(x))
        x = torch.from_numpy(x).double()
        return (x * cos + rotate_half(x) * sin).float().numpy()

    def turn_back(self, layer, first, x):
        cos, sin = self._angles(layer, first, len(x))
        x = torch.from_numpy(x).double()
        back = (x * cos - rotate_half(x) * sin) / (cos * cos + sin * sin)
        return back.float().numpy()


def _attentions(model, n_layers):
    """The attention modules, by layer."""
    found = {}
    for m in model.modules():
        layer = getattr(m, "layer_idx", None)
        if layer is not None and (hasattr(m, "k_proj") or
                                  hasattr(m, "scaling")):
            found[layer] = m
    if sorted(found) != list(range(n_layers)):
        raise KvtoolsError(
            "%s: expected %d layers of attention, found %d"
            % (type(model).__name__, n_layers, len(found)))
    return [found[i] for i in range(n_layers)]


def _layer_types(config, n_layers):
    types = getattr(config, "layer_types", None)
    if types is None:
        slides = getattr(config, "sliding_window", None) and getattr(
            config, "use_sliding_window", True)
        types = ["sliding_attention" if slides else
                 "full_attention"] * n_layers
    for t in types:
        if t not in ("full_attention", "sliding_attention"):
            raise KvtoolsError("layers of %s: expected full_attention or "
                               "sliding_attention" % t)
    return list(types)


def _check_rope(attention, rope, head_dim):
    """Fails unless RoPE turns channels i and i + head_dim / 2, as libkvtools
    does."""
    name = type(attention).__name__
    module = sys.modules[type(attention).__module__]
    apply = getattr(module, "apply_rotary_pos_emb", None)
    if apply is None:
        raise KvtoolsError("%s: its RoPE was not found" % name)
    angles = torch.linspace(0, 3, 2 * (head_dim // 2)).view(2, -1)
    angles = torch.cat((angles, angles), dim=-1)[None]
    x = torch.linspace(-1, 1, 2 * head_dim).view(1, 1, 2, head_dim)
    cos, sin = angles.cos(), angles.sin()
    expected = x * cos + rotate_half(x) * sin
    try:
        same = torch.allclose(apply(x, x, cos, sin)[1], expected, atol=1e-5)
    except RuntimeError:  # apply() takes angles of another shape
        same = False
    if rope.inv_freq(rope.layer_types[0]).size != head_dim // 2 or not same:
        raise KvtoolsError(
            "%s: RoPE that turns a part of a head, or neighbouring channels, "
            "is not implemented here (kvppl has it)" % name)


def _k_bias(attentions, n_kv_heads, head_dim):
    bias = [getattr(getattr(a, "k_proj", None), "bias", None)
            for a in attentions]
    if any(b is None for b in bias):
        return None
    return np.stack([b.detach().to("cpu", torch.float32).numpy().reshape(
        n_kv_heads, head_dim) for b in bias])


class Description:
    """A model's description.  sizes: the members of struct kv_binding_model;
    rope: Rope, or None without RoPE."""

    def __init__(self, model):
        config = model.config
        if getattr(config, "is_encoder_decoder", False):
            raise KvtoolsError("%s: expected a decoder alone"
                               % type(model).__name__)
        config = config.get_text_config()
        if getattr(config, "num_kv_shared_layers", 0):
            raise KvtoolsError("layers that share keys and values are not "
                               "implemented here")
        if getattr(config, "kv_lora_rank", None):
            raise KvtoolsError("%s: latent attention is not implemented here "
                               "(kvppl has it)" % type(model).__name__)
        n, heads = config.num_hidden_layers, config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        types = _layer_types(config, n)
        self.attentions = _attentions(model, n)
        self.alibi = (config.model_type in ("bloom", "mpt") or
                      bool(getattr(config, "alibi", False)))
        scale = {float(getattr(a, "scaling", dim ** -.5))
                 for a in self.attentions}
        if len(scale) > 1:
            raise KvtoolsError("attention scales that differ by layer are "
                               "not implemented here")
        self.slides = [t == "sliding_attention" for t in types]
        self.still = [not getattr(a, "use_rope", True)
                      for a in self.attentions]
        self.rope = self._find_rope(model, types, dim)
        self.sizes = dict(
            n_layers=n, n_heads=heads, n_kv_heads=kv_heads, head_dim=dim,
            attn_scale=scale.pop(),
            cap=getattr(config, "attn_logit_softcapping", None) or 0,
            k_bias=_k_bias(self.attentions, kv_heads, dim))
        if any(self.slides):
            self.sizes.update(slides=self.slides,
                              slide_window=config.sliding_window)
        if self.rope:
            full = [t for t in types if t == "full_attention"]
            self.sizes.update(
                n_rot=dim // 2, still=self.still,
                ggml_neighbours=config.model_type in GGML_NEIGHBOURS,
                inv_freq=self.rope.inv_freq((full or types)[0]))
            if any(self.slides):
                self.sizes.update(
                    slide_freq=self.rope.inv_freq("sliding_attention"))

    def _find_rope(self, model, types, dim):
        modules = [m for name, m in model.named_modules()
                   if name.split(".")[-1] == "rotary_emb"]
        if not modules:
            return None
        rope = Rope(modules[0], types)
        _check_rope(self.attentions[0], rope, dim)
        return rope
