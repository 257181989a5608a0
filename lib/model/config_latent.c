#include "lib/model/config_parts.h"

#include <math.h>

/* Fails unless num_key_value_heads is the number of heads, since one latent
 * serves all of them. */
static int check_kv_heads(const struct kv_fields *f, const struct kv_config *c,
                          struct kv_err *e)
{
    static const char name[] = "num_key_value_heads";
    size_t n = c->shape.n_heads;

    if (kv_fields_size_if(f, name, 1, 1 << 12, &n, e))
        return -1;
    return n == c->shape.n_heads
               ? 0
               : kv_fail(e,
                         "%s: field %s is %zu, but the latent of a %s serves "
                         "all %zu heads",
                         f->path, name, n, c->arch->name, c->shape.n_heads);
}

/* Reads the size of the queries' latent; null means none. */
static int read_q_rank(const struct kv_fields *f, struct kv_config *c,
                       struct kv_err *e)
{
    static const char name[] = "q_lora_rank";

    c->latent.q_rank = kv_fields_has(f, name) ? 0 : c->arch->latent.q_rank;
    return kv_fields_size_if(f, name, 1, 1 << 16, &c->latent.q_rank, e);
}

int kv_config_latent(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e)
{
    const struct kv_arch_latent *a = &c->arch->latent;
    struct kv_latent *l = &c->latent;
    struct kv_shape *s = &c->shape;

    *l =
        (struct kv_latent){.nope = a->nope, .rope = a->rope, .value = a->value};
    /* null means false */
    l->interleaved =
        !a->interleave_read || !kv_fields_has(f, "rope_interleave");
    s->latent = a->rank;
    if (check_kv_heads(f, c, e) || read_q_rank(f, c, e) ||
        kv_fields_size_if(f, "kv_lora_rank", 1, 1 << 16, &s->latent, e) ||
        kv_fields_size_if(f, "qk_nope_head_dim", 1, 1 << 16, &l->nope, e) ||
        kv_fields_size_if(f, "qk_rope_head_dim", 1, 1 << 16, &l->rope, e) ||
        kv_fields_size_if(f, "v_head_dim", 1, 1 << 16, &l->value, e) ||
        (a->interleave_read &&
         kv_fields_flag_if(f, "rope_interleave", &l->interleaved, e)))
        return -1;
    if (s->latent % 2 || l->rope % 2 || s->latent + l->rope > KV_MAX_HEAD_DIM)
        return kv_fail(e,
                       "%s: kv_lora_rank %zu and qk_rope_head_dim %zu are not "
                       "even numbers of together up to %d",
                       f->path, s->latent, l->rope, KV_MAX_HEAD_DIM);
    s->n_kv_heads = 1;
    s->head_dim = s->latent + l->rope;
    s->attn_scale = (float)(1 / sqrt((double)(l->nope + l->rope)));
    return 0;
}
