"""kvtools as a model of lm-evaluation-harness: any spec in any of its tasks.

    kvtools-lm-eval --model kvtools --model_args model=MODEL,spec=SPEC \\
        --tasks TASK

is lm_eval's command line with one more model (lm_eval itself finds no models
in other packages).  model: a folder, a GGUF file or a name that transformers
loads; spec: as for the tools' -s, with ; instead of commas; calib: a
calibration.  Other arguments are the same as for lm_eval's model "hf".

generate_until: the prompt attends at full precision and is then stored; all
other tokens are decoded over the stored cache (kvppl's prefill:P).
loglikelihood: the context is the prompt; each token of the continuation is
decoded over the stored cache, as in kvgen --score.
loglikelihood_rolling: each token is decoded over the stored cache (kvppl's
stream).
Requests run one by one, whatever batch_size says.
"""
import inspect
import os
import sys

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from ._cache import KvCache
from ._library import Binding
from ._model import Description


def _load(name, **options):
    """Loads (model, tokenizer) from a folder, a name, or a GGUF file."""
    where = {}
    if str(name).endswith(".gguf"):
        name, where["gguf_file"] = os.path.split(name)
        name = name or "."
    model = AutoModelForCausalLM.from_pretrained(name, **where, **options)
    tokenizer = AutoTokenizer.from_pretrained(name, **where)
    end = model.config.eos_token_id
    if tokenizer.eos_token is None and isinstance(end, int):
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    return model, tokenizer


@register_model("kvtools")
class KvLM(HFLM):
    """lm_eval's model "hf", whose cache is held under a spec."""

    def __init__(self, model=None, spec=None, calib=None, dtype="float32",
                 device=None, batch_size=1, **options):
        if model is None or spec is None:
            raise ValueError("model_args: expected model=MODEL,spec=SPEC")
        if not torch.cuda.is_available() and \
                (device or "cuda").startswith("cuda"):
            device = "cpu"  # lm_eval asks for cuda:0 unless told
        self.spec, self.calib = spec.replace(";", ","), calib
        loaded, tokenizer = _load(model, dtype=dtype)
        loaded = loaded.to(device).eval()
        Binding(self.spec, Description(loaded).sizes, calib)  # fails early
        self._cache_name = "cache" if "cache" in inspect.signature(
            loaded.forward).parameters else "past_key_values"
        super().__init__(pretrained=loaded, tokenizer=tokenizer, device=device,
                         batch_size=1, **options)

    def _new_cache(self, **options):
        return KvCache(self.spec, self.model, self.calib, **options)

    def _logits(self, cache, ids):
        """Enters ids [n] into the cache together; returns their logits,
        [n][vocabulary]."""
        ids = torch.tensor([ids], device=self.device)
        return self.model(ids, use_cache=True,
                          **{self._cache_name: cache}).logits[0]

    def _model_generate(self, context, max_length, stop, **options):
        options[self._cache_name] = self._new_cache()
        return super()._model_generate(context, max_length, stop, **options)

    @torch.no_grad()
    def _score(self, context, continuation):
        """Returns (log-likelihood of the continuation, whether greedy decoding
        gives it)."""
        context = (context + continuation)[-(self.max_length + 1):][
            :-len(continuation)]
        if not context:
            raise ValueError("a continuation of %d tokens leaves no context "
                             "in %d" % (len(continuation), self.max_length))
        rolling = len(context) == 1
        cache = self._new_cache(prompt="codes" if rolling else "exact",
                                tokens=len(context) + len(continuation) - 1
                                if rolling else None)
        logits = [self._logits(cache, context)[-1:]]
        for token in continuation[:-1]:
            logits.append(self._logits(cache, [token]))
        log_p = torch.log_softmax(torch.cat(logits).float(), dim=-1).cpu()
        at = torch.tensor(continuation)
        return (float(log_p[torch.arange(len(at)), at].sum()),
                bool((log_p.argmax(-1) == at).all()))

    def _loglikelihood_tokens(self, requests, disable_tqdm=False,
                              override_bs=None):
        answers = []
        for text, context, continuation in requests:
            answers.append(self._score(context, continuation))
            if text is not None:  # None in loglikelihood_rolling()
                self.cache_hook.add_partial("loglikelihood", text, answers[-1])
        return answers


def main():
    """lm_eval's own command line, with the model "kvtools"."""
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())


if __name__ == "__main__":
    main()
