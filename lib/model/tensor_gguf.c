#include "lib/model/tensor_gguf.h"
#include "lib/model/tensor_parts.h"

#include <stdio.h>
#include <string.h>

/* The layer's tensor of this name, or NULL. */
static const struct kv_weight *find(const struct kv_gguf_layer *l,
                                    const char *part, char name[160])
{
    snprintf(name, 160, "%s%s%zu.%s", l->prefix, l->c->arch->names->layers,
             l->layer, part);
    return kv_weights_find(l->w, name);
}

bool kv_tensor_gguf_splits(const struct kv_weights *w,
                           const struct kv_config *c)
{
    const char *z = c->arch->names->part[KV_P_MIX_Z];
    const size_t n = z ? strlen(z) : 0;

    for (size_t i = 0; i < w->n_weights && w->gguf.n_parts && z; i++) {
        const size_t m = strlen(w->weight[i]->name);

        if (m > n && !strcmp(w->weight[i]->name + m - n, z))
            return true;
    }
    return false;
}

/* Adds one head of t [heads][...] as the next piece, a matrix with this many
 * rows. */
static struct kv_weight *add_head(const struct kv_gguf_layer *l,
                                  const struct kv_weight *t, size_t head,
                                  size_t rows)
{
    const size_t bytes = t->bytes / t->dims[0];
    struct kv_weight *mine = (*l->made)++;

    *mine = *t;
    mine->n_dims = 2;
    mine->dims[0] = rows;
    mine->dims[1] = l->c->shape.latent;
    mine->n = rows * mine->dims[1];
    mine->data += head * bytes;
    mine->bytes = bytes;
    return mine;
}

/* Binds the matrix from latents: for each head the rows of its keys, which the
 * file stores transposed, then the rows of its values. */
static int bind_two_ups(const struct kv_gguf_layer *l,
                        const struct kv_weight **out, struct kv_err *e)
{
    const struct kv_latent *c = &l->c->latent;
    const size_t n = l->c->shape.n_heads, rank = l->c->shape.latent;
    const size_t keys[3] = {n, rank, c->nope}, values[3] = {n, c->value, rank};
    const struct kv_weight *k, *v;
    struct kv_weight *piece, *before = NULL;
    char name[160];

    if (!find(l, KV_GGUF_K_UP, name))
        return 0;
    if (kv_tensor_bind(&k, l->w, name, keys, l->dir, e))
        return -1;
    find(l, KV_GGUF_V_UP, name);
    if (kv_tensor_bind(&v, l->w, name, values, l->dir, e))
        return -1;
    *out = *l->made;
    for (size_t i = 0; i < 2 * n; i++) {
        piece = i % 2 ? add_head(l, v, i / 2, c->value)
                      : add_head(l, k, i / 2, c->nope);
        piece->turned = i % 2 ? 0 : c->nope;
        if (before)
            before->next = piece;
        before = piece;
    }
    return 0;
}

/* Binds the part to the tensor of this name, if there is one. */
static int bind_named(const struct kv_gguf_layer *l, enum kv_part p,
                      const char *part, const struct kv_weight **out,
                      struct kv_err *e)
{
    const size_t rows = kv_part_rows(l->c, l->layer, p);
    const size_t cols = kv_part_cols(l->c, l->layer, p);
    const bool experts =
        !strcmp(part, KV_GGUF_GATES) || !strcmp(part, KV_GGUF_UPS);
    const size_t one[3] = {rows, cols};
    const size_t all[3] = {l->c->n_experts, rows, cols};
    char name[160];

    if (!find(l, part, name))
        return 0;
    return kv_tensor_bind(out, l->w, name, experts ? all : one, l->dir, e);
}

/* Binds b or a from one tensor that has, for each key head, the rows of b, then
 * of a. */
static int bind_ba(const struct kv_gguf_layer *l, enum kv_part p,
                   const struct kv_weight **out, struct kv_err *e)
{
    const struct kv_mixer_sizes *m = &l->c->mixer;
    const size_t shape[3] = {2 * m->v_heads, l->c->hidden};
    const struct kv_weight *t;
    struct kv_weight *mine;
    char name[160];

    find(l, l->c->arch->names->part[KV_P_MIX_B], name);
    if (kv_tensor_bind(&t, l->w, name, shape, l->dir, e))
        return -1;
    mine = (*l->made)++;
    *mine = *t;
    mine->dims[0] = m->v_heads;
    mine->n = mine->dims[0] * mine->dims[1];
    mine->run = m->v_heads / m->k_heads;
    mine->step = 2 * mine->run;
    mine->start = p == KV_P_MIX_A ? mine->run : 0;
    *out = mine;
    return 0;
}

/* Binds a vector whose tensor may have two dimensions: groups and the values of
 * a group, or a 1 and the values. */
static int bind_vector(const struct kv_gguf_layer *l, enum kv_part p,
                       const struct kv_weight **out, struct kv_err *e)
{
    const size_t n = kv_part_rows(l->c, l->layer, p);
    const struct kv_weight *t;
    struct kv_weight *mine;
    char name[160];

    t = find(l, l->c->arch->names->part[p], name);
    if (!t || t->n_dims != 2 || t->n != n)
        return 0;
    if (kv_tensor_bind(&t, l->w, name,
                       (const size_t[3]){t->dims[0], t->dims[1]}, l->dir, e))
        return -1;
    mine = (*l->made)++;
    *mine = *t;
    mine->n_dims = 1;
    mine->dims[0] = n;
    *out = mine;
    return 0;
}

/* Binds a matrix of one row, whose tensor may have one dimension. */
static int bind_row(const struct kv_gguf_layer *l, enum kv_part p,
                    const struct kv_weight **out, struct kv_err *e)
{
    const size_t cols = kv_part_cols(l->c, l->layer, p);
    const struct kv_weight *t;
    struct kv_weight *mine;
    char name[160];

    t = find(l, l->c->arch->names->part[p], name);
    if (!t || t->n_dims != 1)
        return 0;
    if (kv_tensor_bind(&t, l->w, name, (const size_t[3]){cols}, l->dir, e))
        return -1;
    mine = (*l->made)++;
    *mine = *t;
    mine->n_dims = 2;
    mine->dims[0] = 1;
    mine->dims[1] = cols;
    *out = mine;
    return 0;
}

static int bind_mixer(const struct kv_gguf_layer *l, enum kv_part p,
                      const struct kv_weight **out, struct kv_err *e)
{
    const bool split = l->c->arch->mix_by_head && !l->c->mix_by_head;

    switch (p) {
    case KV_P_MIX:
        return l->c->arch->mixer == KV_MIXER_DELTA
                   ? bind_named(l, p, KV_GGUF_QKV, out, e)
                   : 0;
    case KV_P_MIX_B:
    case KV_P_MIX_A:
        return split ? bind_ba(l, p, out, e) : 0;
    default:
        return bind_vector(l, p, out, e);
    }
}

int kv_tensor_gguf(const struct kv_gguf_layer *l, enum kv_part p,
                   const struct kv_weight **out, struct kv_err *e)
{
    const bool experts = kv_config_has_experts(l->c, l->layer);

    *out = NULL;
    switch (p) {
    case KV_P_KV_UP:
        return bind_two_ups(l, out, e);
    case KV_P_MIX:
    case KV_P_MIX_B:
    case KV_P_MIX_A:
    case KV_P_MIX_DECAY:
    case KV_P_MIX_SKIP:
    case KV_P_MIX_NORM:
        return bind_mixer(l, p, out, e);
    case KV_P_SHARED_MIX:
        return bind_row(l, p, out, e);
    case KV_P_SHARED_GATE:
        return bind_named(l, p, KV_GGUF_SHARED_GATE, out, e);
    case KV_P_SHARED_UP:
        return bind_named(l, p, KV_GGUF_SHARED_UP, out, e);
    case KV_P_GATE:
        return bind_named(l, p, experts ? KV_GGUF_GATES : KV_GGUF_GATE, out, e);
    case KV_P_UP:
        return bind_named(l, p, experts ? KV_GGUF_UPS : KV_GGUF_UP, out, e);
    default:
        return 0;
    }
}
