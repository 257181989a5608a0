/* kvdump --operations: the rows of a decoder layer, in the order of the lecture
 * "Generative Inference Algorithm Optimization" (COMP6211J, B. Yuan), for any
 * number of KV heads and any MLP. */
#include "lib/results.h"
#include "tools/columns_about.h"
#include "tools/kvdump_about.h"

static const char *const columns[] = {
    "model",      "n_heads", "n_kv_heads", "head_dim", "hidden",
    "ctx",        "batch",   "phase",      "no",       "computation",
    "operations", "bytes",   "intensity",  NULL};

void kv_operations_about(void)
{
    kv_columns_about("kvdump --operations", columns);
}

/* Sizes of one layer, as real numbers: products of long contexts pass 2^64. */
struct sizes {
    double hidden, query, key; /* channels of a token: the model's, all query
                                * heads', all KV heads' */
    double inter, n_gates;     /* gates: matrices like the MLP's first */
    double heads, kv_heads, dim;
    double fresh, kept, batch; /* new tokens of a sequence; tokens that they
                                * see */
};

/* Multiply-adds, and values read and written.  Both are 0 for operations that
 * only move values or work value by value; the lecture does not count these. */
struct work {
    const char *computation;
    double multiplies, values;
};

/* The work of [fresh][in] times n matrices [in][out]. */
static struct work product(const char *computation, const struct sizes *s,
                           double in, double out, double n)
{
    const double rows = s->fresh * s->batch;

    return (struct work){computation, n * rows * in * out,
                         rows * in + n * (in * out + rows * out)};
}

/* The work of the new tokens' scores over all kept tokens, or of the weighted
 * sum of values: every KV head is read once. */
static struct work attention(const char *computation, const struct sizes *s)
{
    const double scores = s->batch * s->heads * s->fresh * s->kept;

    return (struct work){
        computation, scores * s->dim,
        s->batch * (s->heads * s->fresh + s->kv_heads * s->kept) * s->dim +
            scores};
}

static struct work moved(const char *computation)
{
    return (struct work){.computation = computation};
}

enum { MOST_ROWS = 15 };

static size_t list(const struct sizes *s, bool decode, struct work *w)
{
    size_t n = 0;

    w[n++] = product("Q = x Wq", s, s->hidden, s->query, 1);
    w[n++] = product("K = x Wk", s, s->hidden, s->key, 1);
    if (decode)
        w[n++] = moved("K = concat(K cache, K)");
    w[n++] = product("V = x Wv", s, s->hidden, s->key, 1);
    if (decode)
        w[n++] = moved("V = concat(V cache, V)");
    w[n++] = moved("heads of Q");
    w[n++] = moved("heads of K");
    w[n++] = moved("heads of V");
    w[n++] = attention("score = softmax(Q K^T)", s);
    w[n++] = attention("Z = score V", s);
    w[n++] = moved("Z = merge(heads of Z)");
    w[n++] = product("Out = Z Wo", s, s->query, s->hidden, 1);
    w[n++] = product("A = Out W1", s, s->hidden, s->inter, s->n_gates);
    w[n++] = moved("A = activation(A)");
    w[n++] = product("x = A W2", s, s->inter, s->hidden, 1);
    return n;
}

static struct sizes sizes_of(const struct kv_config *c, size_t ctx,
                             size_t batch, bool decode)
{
    const struct kv_shape *s = &c->shape;
    const double d = (double)s->head_dim;

    return (struct sizes){.hidden = (double)c->hidden,
                          .query = (double)s->n_heads * d,
                          .key = (double)s->n_kv_heads * d,
                          .inter = (double)c->inter,
                          .n_gates = c->arch->plain_mlp ? 1 : 2,
                          .heads = (double)s->n_heads,
                          .kv_heads = (double)s->n_kv_heads,
                          .dim = d,
                          .fresh = decode ? 1 : (double)ctx,
                          .kept = (double)ctx + (decode ? 1 : 0),
                          .batch = (double)batch};
}

int kv_operations_print(const struct kv_config *c, const char *name, size_t ctx,
                        size_t batch, const struct kv_common *common,
                        struct kv_err *e)
{
    static const char *const key[] = {
        "model", "n_heads", "n_kv_heads", "head_dim",   "hidden", "ctx",
        "batch", "phase",   "no",         "operations", "bytes",  NULL};
    const struct kv_results_keys keys = {
        .key = key, .full = "computation", .at_end = true};
    struct kv_results_form form = kv_common_form(common);
    struct kv_results *r;

    if (c->shape.n_states + c->shape.n_bare)
        return kv_fail(e,
                       "%s: --operations knows no model with layers without "
                       "attention",
                       name);
    if (c->arch->out_gate)
        return kv_fail(
            e, "%s: --operations knows no gate of attention's output", name);
    if (c->arch->by_kind)
        return kv_fail(e,
                       "%s: --operations knows no layers that differ in their "
                       "heads or share keys and values",
                       name);
    if (c->n_experts)
        return kv_fail(e, "%s: --operations knows no layer with experts", name);
    form.keys = common->append ? &keys : NULL;
    if (kv_results_open(&r, &form, columns, e))
        return -1;
    for (int decode = 0; decode < 2; decode++) {
        const struct sizes s = sizes_of(c, ctx, batch, decode);
        struct work w[MOST_ROWS];
        const size_t n = list(&s, decode, w);

        for (size_t i = 0; i < n; i++) {
            kv_results_text(r, "model", name);
            kv_results_size(r, "n_heads", c->shape.n_heads);
            kv_results_size(r, "n_kv_heads", c->shape.n_kv_heads);
            kv_results_size(r, "head_dim", c->shape.head_dim);
            kv_results_size(r, "hidden", c->hidden);
            kv_results_size(r, "ctx", ctx);
            kv_results_size(r, "batch", batch);
            kv_results_text(r, "phase", decode ? "decode" : "prefill");
            kv_results_size(r, "no", i + 1);
            kv_results_text(r, "computation", w[i].computation);
            if (w[i].values > 0) {
                kv_results_size(r, "operations", (size_t)(2 * w[i].multiplies));
                kv_results_size(r, "bytes", (size_t)(2 * w[i].values));
                kv_results_real(r, "intensity", w[i].multiplies / w[i].values);
            }
            if (kv_results_row(r, e)) {
                kv_results_discard(r);
                return -1;
            }
        }
    }
    return kv_results_close(r, e);
}
