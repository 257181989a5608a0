#include "tests/plain_int8.h"
#include "kernels/cuda/families.h"

bool plain_int8_has(const struct kv_tiles_job *j)
{
    const struct kv_integers *g = j->k[1].params;

    return j->k[1].family == &kv_family_integers && g->bits == 8 &&
           !j->k[1].enter;
}

/* A value of a store of groups of 8 bits as integers meet it: step * code +
 * middle, code signed. */
struct signed_code {
    float code, step, middle;
};

/* The first n tokens of a KV head: [n][head_dim]. */
static struct signed_code *signed_codes(const struct kv_store *s, size_t head,
                                        size_t n)
{
    const struct kv_integers *g = s->params;
    const float zero = g->offset == KV_OFFSET_SAME ? g->zero : 128;
    struct signed_code *all = kv_alloc(n * s->head_dim, sizeof(*all));

    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < s->head_dim; c++) {
            const uint8_t *tile = kv_store_tile(s, head, t / KV_TILE_TOKENS);
            const size_t in = t % KV_TILE_TOKENS;
            struct signed_code *x = &all[t * s->head_dim + c];
            float offset;

            kv_store_group(s, head, tile, in, c, &x->step, &offset);
            x->code = (float)kv_store_code(s, tile, in, c) - zero;
            x->middle = g->offset == KV_OFFSET_LOW ? offset + zero * x->step
                                                   : (zero - offset) * x->step;
        }
    return all;
}

/* x in integers up to `limit`; returns their scale. */
static float to_integers(float *x, size_t n, float limit)
{
    float max = 0;

    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    for (size_t i = 0; i < n && max > 0; i++)
        x[i] = rintf(x[i] * (limit / max));
    return max / limit;
}

/* q . k, with q rounded in groups of channels: times steps (folded), or with
 * one step. */
static float int8_score(const struct signed_code *k, const float *q, size_t n,
                        bool folded)
{
    float w[KV_GPU_MAX_DIM], sum = 0, rest = 0;

    for (size_t c = 0; c < n; c++) {
        w[c] = q[c] * (folded ? k[c].step : 1);
        rest += q[c] * k[c].middle;
    }

    const float unit = to_integers(w, n, 127);

    for (size_t c = 0; c < n; c++)
        sum += w[c] * k[c].code;
    return sum * unit * (folded ? 1 : k->step) + rest;
}

enum { INT8_TOKENS = 32 /* number of tokens whose weights are rounded
                         * together */ };

/* out += p v over n tokens. */
static void int8_gather(const struct signed_code *v, size_t d, const float *p,
                        float *out)
{
    for (size_t c = 0; c < d; c++) {
        float w[INT8_TOKENS], sum = 0;

        for (size_t i = 0; i < INT8_TOKENS; i++) {
            w[i] = p[i] * v[i * d + c].step;
            out[c] += p[i] * v[i * d + c].middle;
        }

        const float unit = to_integers(w, INT8_TOKENS, 255);

        for (size_t i = 0; i < INT8_TOKENS; i++)
            sum += w[i] * v[i * d + c].code;
        out[c] += sum * unit;
    }
}

/* A KV head's tokens: codes [first, end), which fill tiles of 128 on both
 * sides, and all tokens as floats, rows `stride` apart. */
struct int8_head {
    const struct kv_tiles_job *j;
    size_t first, end, stride;
    struct signed_code *k_codes, *v_codes;
    const float *k, *v;
};

/* One query, which sees n tokens. */
static void int8_query(const struct int8_head *h, const float *q, size_t n,
                       float *out)
{
    const struct kv_integers *g = h->j->k[1].params;
    const size_t d = h->j->view.head_dim;
    const size_t len = !g->folded && g->n_runs > 1 ? g->run : d;
    float *p = kv_alloc(h->end + n, sizeof(*p)), max = -INFINITY, sum = 0;

    memset(p, 0, (h->end + n) * sizeof(*p));
    memset(out, 0, d * sizeof(*out));
    for (size_t t = 0; t < n; t++) {
        if (t >= h->first && t < h->end)
            for (size_t c = 0; c < d; c += len)
                p[t] += int8_score(&h->k_codes[(t - h->first) * d + c], q + c,
                                   len, g->folded);
        else
            for (size_t c = 0; c < d; c++)
                p[t] += q[c] * h->k[t * h->stride + c];
        p[t] *= h->j->view.scale;
        max = fmaxf(max, p[t]);
    }
    for (size_t t = 0; t < n; t++) {
        p[t] = expf(p[t] - max);
        sum += p[t];
        for (size_t c = 0; c < d && (t < h->first || t >= h->end); c++)
            out[c] += p[t] * h->v[t * h->stride + c];
    }
    for (size_t t = h->first; t < h->end; t += INT8_TOKENS)
        int8_gather(&h->v_codes[(t - h->first) * d], d, p + t, out);
    for (size_t c = 0; c < d; c++)
        out[c] /= sum;
    free(p);
}

void plain_int8(const struct kv_tiles_job *j, const struct attention *a,
                float *out)
{
    const size_t d = j->view.head_dim,
                 group = j->view.n_heads / j->view.n_kv_heads;
    const size_t both = j->k[1].n < j->v[1].n ? j->k[1].n : j->v[1].n;
    const size_t n = both / KV_GPU_TILE * KV_GPU_TILE;

    for (size_t head = 0; head < j->view.n_kv_heads; head++) {
        const struct int8_head h = {
            .j = j,
            .first = j->k[0].n,
            .end = j->k[0].n + n,
            .stride = j->view.n_kv_heads * d,
            .k_codes = signed_codes(&j->k[1], head, n),
            .v_codes = signed_codes(&j->v[1], head, n),
            .k = a->k + head * d,
            .v = a->v + head * d,
        };

        for (size_t i = 0; i < a->nq * group; i++) {
            const size_t at =
                i / group * j->view.n_heads + head * group + i % group;

            int8_query(&h, a->q + at * d, a->n - a->nq + i / group + 1,
                       out + at * d);
        }
        free(h.k_codes);
        free(h.v_codes);
    }
}
