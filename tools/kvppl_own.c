/* kvppl --own: scores text that the model wrote instead of the file's text. */
#include "eval/own_text.h"
#include "lib/base/alloc.h"
#include "tools/kvppl.h"

#include <stdlib.h>

void kvppl_check_own(struct kvppl_args *a)
{
    if (a->own_temperature < 0 || a->own_temperature >= 1e6)
        kv_die("--own-temperature %g: expected 0 (the most probable token) or "
               "more",
               a->own_temperature);
    if (a->own_temperature > 0 && a->own == KVPPL_NOT_OWN)
        kv_die("--own-temperature goes with --own, the text that is sampled");
    if (!a->own || (a->own > INT32_MAX && a->own != KVPPL_NOT_OWN))
        kv_die("--own %zu: expected 1 to %d tokens", a->own, INT32_MAX);
    if (a->own == KVPPL_NOT_OWN)
        a->own = 0;
    else if (a->no_base)
        kv_die("--own does not go with --no-base: own text is there to compare "
               "along it");
    a->kl = a->kl || a->own;
    if (a->curve && !a->kl && !a->kl_read)
        kv_die("--kl-curve goes with --kl or --own, which measure the "
               "divergence");
    if (a->curve && (a->resume || a->append))
        kv_die("--kl-curve does not go with --%s: rows that are there are not "
               "measured again",
               a->resume ? "resume" : "append");
}

int kvppl_own_context(struct kvppl_run *r, const struct kvppl_args *a,
                      size_t *ctx, struct kv_err *e)
{
    const size_t most = kv_model_info(r->model)->n_ctx;

    if (!a->own) {
        *ctx = kv_model_context(r->model, r->of.ctx);
        return 0;
    }
    if (a->own >= most || r->of.ctx > most - a->own)
        return kv_fail(e,
                       "--own %zu: after a prompt of %zu tokens (-c) it is "
                       "beyond the model's context of %zu",
                       a->own, r->of.ctx, most);
    *ctx = r->of.ctx ? r->of.ctx : most - a->own;
    kv_model_context(r->model, *ctx + a->own);
    return kv_protocol_own(&r->protocol, *ctx, a->own, a->own_temperature, e);
}

int kvppl_write_own(struct kvppl_run *r, const struct kvppl_args *a,
                    int32_t **tokens, struct kv_err *e)
{
    const struct kv_own_text own = {.model = r->model,
                                    .prompts = r->text.tokens,
                                    .n_windows = r->text.n,
                                    .n_prompt = r->text.ctx,
                                    .n = a->own,
                                    .temperature = a->own_temperature,
                                    .memory = a->common.memory,
                                    .seed = a->common.seed};

    *tokens =
        kv_alloc(own.n_windows, (own.n_prompt + own.n) * sizeof(**tokens));
    if (!kv_own_text(&own, *tokens, e))
        return 0;
    free(*tokens);
    *tokens = NULL;
    return -1;
}
