"""A decode step of a Llama in PyTorch, over a cache of one sequence in the
weights' type, which gpu-peers times for comparison with kvattn -m.

    hf-cat-repeat   as the DynamicCache of Hugging Face's transformers and its
                    repeat_kv(): torch.cat() of the cache and the newest token,
                    a copy of keys and values for every query head, then SDPA;
                    PyTorch launches each operation
    sdpa-static     a cache allocated beforehand that takes the newest token in
                    place, SDPA with enable_gqa, no copies"""


def cat_repeat(torch, q, k, v, newest):
    """Attention as hf-cat-repeat.  q: [batch][heads][1][d]; k, v: [batch][KV
    heads][tokens][d]; newest: key and value of the newest token alone."""
    def grow(old, new):
        batch, heads, _, d = old.shape
        both = torch.cat([old, new], dim=-2)
        times = q.shape[1] // heads
        return both[:, :, None].expand(
            batch, heads, times, both.shape[2], d).reshape(
                batch, heads * times, both.shape[2], d)
    return torch.nn.functional.scaled_dot_product_attention(
        q, grow(k, newest[0]), grow(v, newest[1]))


def static(torch, q, k, v, newest):
    """Attention as sdpa-static; the last token of k and v is overwritten."""
    k[:, :, -1:] = newest[0]
    v[:, :, -1:] = newest[1]
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, enable_gqa=True)


class Step:
    """A decoder of this shape (the fields of a config.json).  The weights are
    random, scaled so that activations are about as large as a model's."""

    def __init__(self, torch, shape, device="cuda", dtype=None):
        self.torch, self.eps = torch, shape["rms_norm_eps"]
        self.kind = {"device": device, "dtype": dtype or torch.float16}
        self.heads = shape["num_attention_heads"]
        self.kv_heads = shape["num_key_value_heads"]
        self.d = shape["head_dim"]
        wide, mlp = shape["hidden_size"], shape["intermediate_size"]
        all_heads = (self.heads + 2 * self.kv_heads) * self.d
        self.layers = [
            {"norm": self.ones(wide), "qkv": self.matrix(all_heads, wide),
             "out": self.matrix(wide, self.heads * self.d),
             "mlp_norm": self.ones(wide), "gate_up": self.matrix(2 * mlp, wide),
             "down": self.matrix(wide, mlp)}
            for _ in range(shape["num_hidden_layers"])]
        self.norm = self.ones(wide)
        self.head = self.matrix(shape["vocab_size"], wide)
        self.x = torch.randn(1, wide, **self.kind)
        angle = torch.rand(self.d // 2, device=device) * 6.28
        self.cos = angle.cos().repeat(2).to(self.kind["dtype"])
        self.sin = angle.sin().repeat(2).to(self.kind["dtype"])

    def ones(self, n):
        return self.torch.ones(n, **self.kind)

    def matrix(self, rows, columns):
        return self.torch.empty(rows, columns, **self.kind).normal_(
            std=columns**-0.5)

    def cache(self, n):
        """Random keys and values of n tokens, for each layer."""
        return [[self.torch.empty(1, self.kv_heads, n, self.d,
                                  **self.kind).normal_() for _ in "kv"]
                for _ in self.layers]

    def bytes(self, cache):
        """The bytes of weights and cache, each read once."""
        tensors = [t for layer in self.layers for t in layer.values()] + \
                  [t for layer in cache for t in layer] + [self.norm, self.head]
        return sum(t.numel() * t.element_size() for t in tensors)

    def normed(self, x, weight):
        x = x.float()
        by = (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        return (x * by).to(self.kind["dtype"]) * weight

    def rotated(self, x):
        half = self.d // 2
        turned = self.torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos + turned * self.sin

    def run(self, cache, attend):
        """The newest token's logits; attend: cat_repeat or static.  cache: the
        tokens before it; static writes the newest over the last one."""
        linear = self.torch.nn.functional.linear
        x = self.x
        for w, (k, v) in zip(self.layers, cache):
            rows = linear(self.normed(x, w["norm"]), w["qkv"]).view(
                1, -1, 1, self.d)
            q, key, value = rows.split(
                [self.heads, self.kv_heads, self.kv_heads], 1)
            o = attend(self.torch, self.rotated(q), k, v,
                       (self.rotated(key), value))
            x = x + linear(o.reshape(1, -1), w["out"])
            gate, up = linear(self.normed(x, w["mlp_norm"]),
                              w["gate_up"]).chunk(2, -1)
            x = x + linear(self.torch.nn.functional.silu(gate) * up, w["down"])
        return linear(self.normed(x, self.norm), self.head)

    def graphed(self, cache):
        """Returns a function that runs the step by static, as a CUDA graph."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):  # libraries allocate before the capture
            self.run(cache, static)
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.run(cache, static)
        return graph.replay
