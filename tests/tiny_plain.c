/* The definition that the forward pass is tested against: one window, in
 * double, straight from the equations. */
#include "lib/base/alloc.h"
#include "lib/shape.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>

/* y[rows] = w x + b; b may be NULL. */
static void matvec(const struct tiny_tensor *w, const struct tiny_tensor *b,
                   const double *x, double *y)
{
    for (size_t i = 0; i < w->rows; i++) {
        y[i] = b ? b->x[i] : 0;
        for (size_t j = 0; j < w->cols; j++)
            y[i] += w->x[i * w->cols + j] * x[j];
    }
}

/* Gemma's weights are what is added to 1. */
static void rms_norm(const struct tiny_model *m, const struct tiny_tensor *w,
                     const double *x, double *y)
{
    double squares = 0;

    for (size_t i = 0; i < w->rows; i++)
        squares += x[i] * x[i];
    for (size_t i = 0; i < w->rows; i++)
        y[i] = x[i] / sqrt(squares / (double)w->rows + 1e-5) *
               (w->x[i] + m->gemma);
}

/* The tensor of this layer, or NULL when the model has none. */
static const struct tiny_tensor *part(const struct tiny_model *m, size_t l,
                                      const char *name, bool has)
{
    char full[96];

    snprintf(full, sizeof(full), "model.layers.%zu.%s", l, name);
    return has ? tiny_find(m, full) : NULL;
}

/* Norms each head of one token; norm may be NULL. */
static void norm_heads(const struct tiny_model *m,
                       const struct tiny_tensor *norm, double *x, size_t heads)
{
    for (size_t h = 0; norm && h < heads; h++)
        rms_norm(m, norm, x + h * norm->rows, x + h * norm->rows);
}

/* Rotates the heads of one token. */
static void rotate(const struct tiny_model *m, const double *inv_freq,
                   double *x, size_t heads, size_t position)
{
    const size_t d = m->head_dim, half = d / 2;

    for (size_t h = 0; h < heads; h++, x += d)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)position * inv_freq[i];
            const double a = x[i], b = x[i + half];

            x[i] = a * cos(angle) - b * sin(angle);
            x[i + half] = b * cos(angle) + a * sin(angle);
        }
}

static void nudge_row(const struct tiny_nudge *g, size_t layer, size_t token,
                      bool is_value, double *row)
{
    if (g && g->layer == layer && g->token == token && g->is_value == is_value)
        row[g->i] += g->by;
}

void tiny_attend(const double *q, const double *k, const double *v, size_t n,
                 size_t stride, size_t d, double cap, double *out)
{
    double sum = 0;

    memset(out, 0, d * sizeof(*out));
    for (size_t t = 0; t < n; t++) {
        double w = 0;

        for (size_t i = 0; i < d; i++)
            w += q[i] * k[t * stride + i];
        w /= sqrt((double)d);
        w = exp(cap > 0 ? cap * tanh(w / cap) : w);
        sum += w;
        for (size_t i = 0; i < d; i++)
            out[i] += w * v[t * stride + i];
    }
    for (size_t i = 0; i < d; i++)
        out[i] /= sum;
}

static bool slides(const struct tiny_model *m, size_t l)
{
    return m->window && (!m->alternate || l % 2 == 0);
}

/* silu, or Gemma's gelu. */
static double act(const struct tiny_model *m, double x)
{
    return m->gemma
               ? x / 2 *
                     (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)))
               : x / (1 + exp(-x));
}

/* x += y, which Gemma norms. */
static void join(const struct tiny_model *m, size_t l, const char *norm,
                 double *y, double *x)
{
    if (m->gemma)
        rms_norm(m, part(m, l, norm, true), y, y);
    for (size_t i = 0; i < m->hidden; i++)
        x[i] += y[i];
}

/* x [n][hidden] through one layer. */
static void plain_layer(const struct tiny_model *m, const double *inv_freq,
                        const struct tiny_nudge *nudge, size_t l, size_t n,
                        double *x)
{
    const size_t d = m->head_dim, hidden = m->hidden;
    const size_t q_dim = m->n_heads * d, kv_dim = m->n_kv_heads * d;
    double *k = kv_alloc(n * kv_dim, sizeof(*k));
    double *v = kv_alloc(n * kv_dim, sizeof(*v));
    double h[64], q[64], out[64], gate[64], up[64], y[64];

    assert_true(hidden <= 64 && q_dim <= 64 && m->inter <= 64);
    for (size_t t = 0; t < n; t++, x += hidden) {
        const size_t first =
            slides(m, l) && t + 1 > m->window ? t + 1 - m->window : 0;

        rms_norm(m, part(m, l, "input_layernorm.weight", true), x, h);
        matvec(part(m, l, "self_attn.q_proj.weight", true),
               part(m, l, "self_attn.q_proj.bias", m->qkv_bias), h, q);
        matvec(part(m, l, "self_attn.k_proj.weight", true),
               part(m, l, "self_attn.k_proj.bias", m->qkv_bias), h,
               k + t * kv_dim);
        matvec(part(m, l, "self_attn.v_proj.weight", true),
               part(m, l, "self_attn.v_proj.bias", m->qkv_bias), h,
               v + t * kv_dim);
        norm_heads(m, part(m, l, "self_attn.q_norm.weight", m->qk_norm), q,
                   m->n_heads);
        norm_heads(m, part(m, l, "self_attn.k_norm.weight", m->qk_norm),
                   k + t * kv_dim, m->n_kv_heads);
        nudge_row(nudge, l, t, false, k + t * kv_dim);
        nudge_row(nudge, l, t, true, v + t * kv_dim);
        rotate(m, inv_freq, q, m->n_heads, t);
        rotate(m, inv_freq, k + t * kv_dim, m->n_kv_heads, t);
        for (size_t i = 0; i < m->n_heads; i++) {
            const size_t at =
                first * kv_dim + i / (m->n_heads / m->n_kv_heads) * d;

            tiny_attend(q + i * d, k + at, v + at, t + 1 - first, kv_dim, d,
                        m->cap, out + i * d);
        }
        matvec(part(m, l, "self_attn.o_proj.weight", true),
               part(m, l, "self_attn.o_proj.bias", m->o_bias), out, y);
        join(m, l, "post_attention_layernorm.weight", y, x);
        rms_norm(m,
                 part(m, l,
                      m->gemma ? "pre_feedforward_layernorm.weight"
                               : "post_attention_layernorm.weight",
                      true),
                 x, h);
        matvec(part(m, l, "mlp.gate_proj.weight", true),
               part(m, l, "mlp.gate_proj.bias", m->mlp_bias), h, gate);
        matvec(part(m, l, "mlp.up_proj.weight", true),
               part(m, l, "mlp.up_proj.bias", m->mlp_bias), h, up);
        for (size_t i = 0; i < m->inter; i++)
            gate[i] = act(m, gate[i]) * up[i];
        matvec(part(m, l, "mlp.down_proj.weight", true),
               part(m, l, "mlp.down_proj.bias", m->mlp_bias), gate, y);
        join(m, l, "post_feedforward_layernorm.weight", y, x);
    }
    free(k);
    free(v);
}

/* theta^(-2i/d), then Llama 3.1's scaling or the linear one. */
static void plain_freq(const struct tiny_model *m, bool sliding,
                       double *inv_freq)
{
    const char *more = m->more ? m->more : "";

    for (size_t i = 0; i < m->head_dim / 2; i++) {
        const double theta = sliding && strstr(more, "rope_local_base_freq")
                                 ? 50
                             : strstr(more, "rope_theta") ? 100
                                                          : 10000;
        const double f = pow(theta, -2.0 * (double)i / (double)m->head_dim);
        const double turns = 64 * f / (2 * acos(-1));
        const double keep = fmin(fmax((turns - 1) / (4.0 - 1), 0), 1);

        inv_freq[i] = f;
        if (strstr(more, "llama3"))
            inv_freq[i] = keep * f + (1 - keep) * f / 8;
        else if (strstr(more, "linear"))
            inv_freq[i] = f / 8;
    }
}

static void nudged_logits(const struct tiny_model *m, const int32_t *tokens,
                          size_t n, const struct tiny_nudge *nudge,
                          double *logits)
{
    const struct tiny_tensor *embed = tiny_find(m, "model.embed_tokens.weight");
    const struct tiny_tensor *head =
        m->tied ? embed : tiny_find(m, "lm_head.weight");
    double *x = kv_alloc(n * m->hidden, sizeof(*x));
    const double scale = m->gemma ? (double)sqrtf((float)m->hidden) : 1;
    double inv_freq[KV_MAX_HEAD_DIM / 2];

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < m->hidden; i++)
            x[t * m->hidden + i] =
                scale * embed->x[(size_t)tokens[t] * m->hidden + i];
    for (size_t l = 0; l < m->n_layers; l++) {
        plain_freq(m, slides(m, l), inv_freq);
        plain_layer(m, inv_freq, nudge, l, n, x);
    }
    for (size_t t = 0; t < n; t++) {
        double *row = x + t * m->hidden;

        double *logit = logits + t * m->n_vocab;

        rms_norm(m, tiny_find(m, "model.norm.weight"), row, row);
        matvec(head, NULL, row, logit);
        for (size_t i = 0; i < m->n_vocab && m->logit_cap > 0; i++)
            logit[i] = m->logit_cap * tanh(logit[i] / m->logit_cap);
    }
    free(x);
}

void tiny_logits(const struct tiny_model *m, const int32_t *tokens, size_t n,
                 double *logits)
{
    nudged_logits(m, tokens, n, NULL, logits);
}

double tiny_loss(const struct tiny_model *m, const int32_t *tokens, size_t n,
                 const struct tiny_nudge *nudge)
{
    double *logits = kv_alloc(n * m->n_vocab, sizeof(*logits)), loss = 0;

    nudged_logits(m, tokens, n, nudge, logits);
    for (size_t t = 0; t + 1 < n; t++) {
        const double *row = logits + t * m->n_vocab;
        double sum = 0;

        for (size_t i = 0; i < m->n_vocab; i++)
            sum += exp(row[i]);
        loss += log(sum) - row[tokens[t + 1]];
    }
    free(logits);
    return loss;
}
