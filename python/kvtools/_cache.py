"""A transformers cache over libkvtools' sequences.

With most specs, update() returns the decoded keys and values, and torch
computes any attention over them.  If the spec's policy drops tokens, or its
scheme attends on codes or looks at queries, libkvtools computes the attention:
the model's attention is then the function "kvtools" below."""
import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ._library import Binding, Bits, KvtoolsError, Sequence
from ._model import Description


def _rows(x):
    """[batch][heads][n][channels] -> [batch][n][heads][channels] f32 numpy."""
    return np.ascontiguousarray(
        x.detach().transpose(1, 2).to("cpu", torch.float32).numpy())


def _attention(module, query, key, value, attention_mask, **options):
    """torch's attention, or libkvtools' if a KvCache layer marked the keys."""
    layer = getattr(key, "_kvtools_layer", None)
    if layer is None:
        return sdpa_attention_forward(module, query, key, value,
                                      attention_mask, **options)
    return layer.attend(module, query, key, value, attention_mask, **options)


AttentionInterface.register("kvtools", _attention)
AttentionMaskInterface.register("kvtools", sdpa_mask)


class _Layer(CacheLayerMixin):
    """One layer of all sequences of a batch."""

    def __init__(self, cache, index):
        super().__init__()
        self.cache, self.index = cache, index
        self.is_sliding = cache.model.slides[index]
        self.n = 0           # tokens, with padding
        self.settled = None  # [batch][side]

    def lazy_initialization(self, key_states, value_states):
        self.dtype, self.device = key_states.dtype, key_states.device
        self.settled = [[0, 0] for _ in range(len(key_states))]
        self.is_initialized = True

    def get_seq_length(self):
        return self.n

    def get_max_length(self):
        return -1

    def get_mask_sizes(self, query_length):
        return self.n + query_length, 0

    def update(self, key_states, value_states, *args, **kwargs):
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = kwargs.get("kwargs", {}).get("position_ids")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cache.begin(key_states, self.n, positions)
        self.exact = self.cache.is_prompt(self.n)
        first, self.n = self.n, self.n + key_states.shape[2]
        if self.cache.binding.attends:
            key_states = key_states.view(key_states.shape)
            key_states._kvtools_layer = self
            return key_states, value_states
        for b, t in self._tokens(first, key_states, value_states):
            self.cache.sequences[b].append(self.index, **t)
        self._read_new()
        if self.exact:
            return key_states, value_states
        return self.keys[:, :, :self.n], self.values[:, :, :self.n]

    # ---- tokens of each sequence, without its padding

    def _tokens(self, first, k, v, q=None):
        """Yields (sequence, arguments of Sequence.append()) for each sequence
        that gets tokens.  first: the tokens' first index, padding included."""
        k, v = _rows(k), _rows(v)
        q = None if q is None else _rows(q)
        turned = self.cache.binding.pre_rope[self.index] and \
            not self.cache.model.still[self.index]
        for b, pad in enumerate(self.cache.padding):
            skip = max(pad - first, 0)
            if skip >= k.shape[1]:
                continue
            t = dict(k=k[b, skip:], v=v[b, skip:],
                     q=None if q is None else q[b, skip:])
            t["k_pre"] = self.cache.model.rope.turn_back(
                self.index, first + skip - pad, t["k"]) if turned else t["k"]
            yield b, t

    # ---- decoded keys and values

    def _room(self, x, like_heads):
        have = 0 if x is None else x.shape[2]
        if self.n <= have:
            return x
        batch, heads, dim = like_heads
        bigger = torch.zeros(batch, heads, max(2 * have, self.n), dim,
                             dtype=self.dtype, device=self.device)
        if x is not None:
            bigger[:, :, :have] = x
        return bigger

    def _read_new(self):
        """Decodes the tokens that may have changed since the last step: new
        blocks and the tail."""
        b = self.cache.binding
        sizes = (len(self.settled), b.n_kv_heads, b.head_dim)
        self.keys = self._room(self.keys, sizes)
        self.values = self._room(self.values, sizes)
        for i, pad in enumerate(self.cache.padding):
            if self.n <= pad:
                continue
            for side, to in (("k", self.keys), ("v", self.values)):
                seq, first = self.cache.sequences[i], self.settled[i][side == "v"]
                x = seq.read(self.index, side, first, self.n - pad)
                if side == "k" and b.pre_rope[self.index] and \
                        not self.cache.model.still[self.index]:
                    x = self.cache.model.rope.turn(self.index, first, x)
                to[i, :, pad + first:self.n] = torch.from_numpy(x).transpose(
                    0, 1).to(to)
                self.settled[i][side == "v"] = seq.settled(self.index, side)

    # ---- attention in libkvtools

    def attend(self, module, query, key, value, mask, **options):
        first = self.n - key.shape[2]
        if self.exact:
            out = sdpa_attention_forward(module, query, key, value, mask,
                                         **options)[0]
        else:
            out = torch.zeros(query.transpose(1, 2).shape, dtype=query.dtype,
                              device=query.device)
        for b, t in self._tokens(first, key, value, query):
            seq, n = self.cache.sequences[b], len(t["v"])
            if self.exact:
                seq.append(self.index, **t)
            else:
                out[b, -n:] = torch.from_numpy(
                    seq.step(self.index, **t)).to(out)
        return out, None

    # ---- what a quantized cache cannot do

    def _refuse(self, what):
        raise NotImplementedError(
            "kvtools.cache: %s is not implemented: codes are written once"
            % what)

    def reset(self):
        self.__init__(self.cache, self.index)

    def crop(self, tokens_to_remove):
        if tokens_to_remove:
            self._refuse("crop() (assisted decoding)")

    def reorder_cache(self, beam_idx):
        self._refuse("reorder_cache() (beam search)")

    def batch_repeat_interleave(self, repeats):
        self._refuse("batch_repeat_interleave()")

    def batch_select_indices(self, indices):
        self._refuse("batch_select_indices()")

    def offload(self):
        self._refuse("offload()")


class KvCache(Cache):
    """Keys and values of a batch under a spec.

    spec: any spec that the tools' -s accepts, except exec.  model: a causal
    language model of transformers.  calib: path of a calibration (kvcalib) of
    this model.  prompt: with "exact", the first call's tokens, if there are
    several, attend at full precision and are then stored (kvppl's prefill:P);
    with "codes", every query sees the cache after all tokens of its call have
    entered (kvppl's stream for calls of one token, stream:N for calls of N).
    tokens: the number of tokens that a policy's budget is a share of (default:
    the first call's tokens).  seed: the seed of stochastic rounding.

    Rows of a batch may be padded on the left: tokens before a row's position 0
    are not stored.  position_ids, which generate() passes, tell where position
    0 is; a mask alone does not.  If libkvtools must compute the attention
    (h2o+..., hack, zipcache, antkv), the constructor sets the model's attention
    to "kvtools", which is sdpa for other caches.
    Beam search, assisted decoding and offloading are refused.
    """

    def __init__(self, spec: str, model, calib=None, *,
                 prompt: str = "exact", tokens: int | None = None,
                 seed: int = 0):
        if prompt not in ("exact", "codes"):
            raise ValueError("prompt %r: expected 'exact' or 'codes'"
                             % (prompt,))
        self.model = Description(model)
        self.binding = Binding(spec, self.model.sizes, calib)
        self.prompt, self.share_of, self.seed = prompt, tokens, seed
        self._check_attention(model)
        self._clear()
        super().__init__(layers=[_Layer(self, i)
                                 for i in range(self.binding.n_layers)])

    def _check_attention(self, model):
        b, d = self.binding, self.model
        if any(b.pre_rope) and d.rope is None and d.alibi:
            raise KvtoolsError("%s: keys before RoPE, of a model with ALiBi"
                               % b.spec)
        if not b.attends:
            return
        for wrong, what in (
                (d.alibi, "ALiBi"),
                (d.sizes["cap"], "a soft cap"),
                (any(getattr(a, "sinks", None) is not None
                     for a in d.attentions), "attention sinks"),
                (d.rope and any(d.rope.scale(t) != 1
                                for t in d.rope.layer_types),
                 "RoPE that scales")):
            if wrong:
                raise KvtoolsError("%s: attention in libkvtools with %s is "
                                   "not implemented here" % (b.spec, what))
        model.set_attn_implementation("kvtools")
        if model.config.get_text_config()._attn_implementation != "kvtools":
            raise KvtoolsError("%s: %s does not let its attention be replaced"
                               % (b.spec, type(model).__name__))

    def _clear(self):
        self.sequences = self.padding = None
        self.prompt_length = 0

    def begin(self, keys, first, positions):
        """Called when tokens enter a layer; the first call makes sequences."""
        batch, n = keys.shape[0], keys.shape[2]
        newest = [None] * batch
        if positions is not None and positions.dim() == 2:
            newest = positions[:, -1].tolist()
            newest = newest * batch if len(newest) == 1 else newest
        elif batch > 1:
            raise KvtoolsError("this model hands its cache no position_ids, "
                               "which say where a batch's rows begin")
        padding = [0 if p is None else first + n - 1 - p for p in newest]
        if self.sequences is None:
            self._make_sequences(batch, n, padding)
        elif padding != self.padding:
            raise KvtoolsError(
                "positions end at %s after %d tokens: expected them to go on "
                "by one" % (newest, first + n))

    def _make_sequences(self, batch, n, padding):
        if min(padding) < 0 or max(padding) >= n:
            raise KvtoolsError("padding of %s in %d tokens: expected positions "
                               "from 0 on" % (padding, n))
        if self.prompt == "exact" and n > 1 and \
                not self.binding.prompt_on_codes:
            self.prompt_length = n
        self.padding = padding
        self.sequences = [
            Sequence(self.binding, self.prompt_length > 0,
                     self.share_of or n - pad, self.seed) for pad in padding]

    def is_prompt(self, first):
        return first < self.prompt_length

    def reset(self):
        self._clear()
        super().reset()

    @property
    def spec(self) -> str:
        """The canonical spec."""
        return self.binding.spec

    def bits(self) -> dict[str, float]:
        """Measured bits per value, as in kvppl's columns.  bits: of everything
        held; quantized: of blocks of codes alone; total: with the calibration's
        tables; nominal: as the paper counts; kept: the share of values that
        were not dropped."""
        sums = Bits()
        for s in self.sequences or []:
            s.add_bits(sums)

        def share(a, b):
            return a / b if b else float("nan")

        return dict(
            bits=share(8 * sums.bytes, sums.values),
            quantized=share(8 * sums.quantized_bytes, sums.quantized_values),
            total=share(8 * (sums.bytes + sums.shared_bytes), sums.values),
            nominal=sums.nominal, kept=share(sums.kept_values, sums.values))
