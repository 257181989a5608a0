#include "lib/schemes/grouped.h"
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

int kv_grouped_fit(struct kv_spec *s, enum kv_side side,
                   const struct kv_shape *shape, struct kv_err *e)
{
    const size_t d = shape->head_dim;

    if (kv_spec_size(s, side, "g") > d)
        kv_spec_set(s, side, "g", (double)d);
    if (d % kv_spec_size(s, side, "g"))
        return kv_fail(e, "g=%zu must divide head_dim %zu",
                       kv_spec_size(s, side, "g"), d);
    return 0;
}

struct grouped {
    const struct kv_group_quantizer *q;
    enum kv_axis axis;
    unsigned bits;
    size_t len, n_units, n_groups; /* groups in a unit */
    size_t code_bytes;             /* of a unit */
};

int kv_grouped_open(struct kv_codec *c, const struct kv_group_quantizer *q,
                    enum kv_axis axis, size_t len, bool all_heads,
                    unsigned bits)
{
    const size_t heads = c->shape.n_kv_heads, d = c->shape.head_dim;
    struct grouped *g = kv_alloc(1, sizeof(*g));

    *g = (struct grouped){.q = q, .axis = axis, .bits = bits, .len = len};
    g->n_units = all_heads ? 1 : heads;
    if (axis == KV_AXIS_TOKEN)
        g->n_groups = (all_heads ? heads * d : d) / len;
    else
        g->n_groups = d;
    g->code_bytes = kv_pack_bytes(g->n_groups * len, bits);
    c->block = axis == KV_AXIS_TOKEN ? 1 : len;
    c->block_bytes = g->n_units * (g->code_bytes + g->n_groups * q->head_bytes);
    c->state = g;
    return 0;
}

/* Where value j of group i of unit u stands in x[block][heads][d], and how far
 * apart the values of a group are. */
static size_t group_at(const struct kv_codec *c, const struct grouped *g,
                       size_t u, size_t i, size_t *apart)
{
    const size_t d = c->shape.head_dim;

    *apart = g->axis == KV_AXIS_TOKEN ? 1 : c->shape.n_kv_heads * d;
    return u * d + i * (g->axis == KV_AXIS_TOKEN ? g->len : 1);
}

void kv_grouped_encode(const struct kv_codec *c, struct kv_where w,
                       const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct grouped *g = c->state;
    const size_t n = g->n_groups * g->len, head = g->q->head_bytes;
    uint16_t *code = kv_alloc(n, sizeof(*code));
    float *group = kv_alloc(g->len, sizeof(*group));

    (void)w;
    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c))
        for (size_t u = 0; u < g->n_units; u++) {
            uint8_t *heads = bytes + g->code_bytes;

            for (size_t i = 0; i < g->n_groups; i++) {
                size_t apart;
                const float *at = x + group_at(c, g, u, i, &apart);

                for (size_t j = 0; j < g->len; j++)
                    group[j] = at[j * apart];
                g->q->encode(group, g->len, g->bits, heads + i * head,
                             code + i * g->len);
            }
            kv_pack(code, n, g->bits, bytes);
            bytes = heads + g->n_groups * head;
        }
    free(group);
    free(code);
}

void kv_grouped_decode(const struct kv_codec *c, const uint8_t *bytes,
                       size_t n_blocks, float *x)
{
    const struct grouped *g = c->state;
    const size_t n = g->n_groups * g->len, head = g->q->head_bytes;
    uint16_t *code = kv_alloc(n, sizeof(*code));
    float *group = kv_alloc(g->len, sizeof(*group));

    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c))
        for (size_t u = 0; u < g->n_units; u++) {
            const uint8_t *heads = bytes + g->code_bytes;

            kv_unpack(bytes, n, g->bits, code);
            for (size_t i = 0; i < g->n_groups; i++) {
                size_t apart;
                float *at = x + group_at(c, g, u, i, &apart);

                g->q->decode(code + i * g->len, g->len, g->bits,
                             heads + i * head, group);
                for (size_t j = 0; j < g->len; j++)
                    at[j * apart] = group[j];
            }
            bytes = heads + g->n_groups * head;
        }
    free(group);
    free(code);
}
