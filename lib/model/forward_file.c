#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/pass.h"

#include <stdlib.h>

/* Reads or writes the hidden states of p's windows. */
static int states(const struct kv_pass *p, FILE *f, bool write,
                  struct kv_err *e)
{
    const size_t window = p->n * p->hidden * sizeof(*p->x);
    const size_t at = p->first_window * window, bytes = p->n_windows * window;

    return write ? kv_scratch_write(f, at, p->x, bytes, e)
                 : kv_scratch_read(f, at, p->x, bytes, e);
}

/* Passes each group of windows through all layers before the next group, so
 * that layers find the keys and values that earlier layers left for the
 * group. */
static int by_groups(struct kv_pass *p, const int32_t *tokens, size_t n_windows,
                     size_t group, const struct kv_attention *attention,
                     FILE *f, struct kv_err *e)
{
    for (size_t w = 0; w < n_windows; w += group) {
        p->first_window = w;
        p->n_windows = n_windows - w < group ? n_windows - w : group;
        p->tokens = tokens + w * p->n;
        kv_pass_embed(p->m, p->tokens, p->n_windows, p->n, 0, p->x);
        if ((p->m->config.layer_embed && kv_pass_keep_embedded(p, e)) ||
            kv_pass_layers(p, attention, e) || kv_pass_norm_all(p, e) ||
            states(p, f, true, e))
            return -1;
    }
    return 0;
}

/* Passes p's windows through the loaded layer. */
static int pass_group(struct kv_pass *p, const int32_t *tokens,
                      const struct kv_attention *attention, FILE *f,
                      struct kv_err *e)
{
    const bool last = p->loaded + 1 == kv_pass_end(p->m);
    const size_t n = p->n_windows * p->n * p->hidden;

    if (p->loaded == p->m->relay.first
            ? kv_pass_begin(p->m, tokens + p->first_window * p->n, p->n_windows,
                            p->n, 0, p->x, e)
            : states(p, f, false, e))
        return -1;
    return kv_pass_layer(p, attention, e) ||
                   (last && (kv_pass_norm_all(p, e) ||
                             kv_pass_give(p->m, p->x, n, e))) ||
                   states(p, f, true, e)
               ? -1
               : 0;
}

/* Passes all groups of windows through a layer before the next layer, so that
 * each layer is read once. */
static int by_layers(struct kv_pass *p, const int32_t *tokens, size_t n_windows,
                     size_t group, const struct kv_attention *attention,
                     FILE *f, struct kv_err *e)
{
    const size_t end = kv_pass_end(p->m);

    for (size_t l = p->m->relay.first; l < end; l++) {
        if (kv_pass_load(p, l, l + 1 < end ? l + 1 : l, e))
            return -1;
        for (size_t w = 0; w < n_windows; w += group) {
            p->first_window = w;
            p->n_windows = n_windows - w < group ? n_windows - w : group;
            if (pass_group(p, tokens, attention, f, e))
                return -1;
        }
    }
    return 0;
}

int kv_model_forward_file(struct kv_model *m, const int32_t *tokens,
                          size_t n_windows, size_t n, size_t group,
                          const struct kv_attention *attention, FILE *hidden,
                          struct kv_err *e)
{
    float *x = kv_alloc(group * n, m->config.hidden * sizeof(*x));
    struct kv_pass p = {
        .m = m, .n_windows = group, .n = n, .x = x, .few = n <= KV_FEW_ROWS};
    const int rc =
        kv_pass_check(m, tokens, n_windows, n, 0, e) || kv_pass_init(&p, e) ||
        (m->config.arch->by_kind
             ? by_groups(&p, tokens, n_windows, group, attention, hidden, e)
             : by_layers(&p, tokens, n_windows, group, attention, hidden, e));

    kv_pass_clear(&p);
    free(x);
    return rc ? -1 : 0;
}
