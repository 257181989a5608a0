/* Writes config.json field by field, reads it, and compares two configs. */
#ifndef KV_TESTS_CONFIG_SETUP_H
#define KV_TESTS_CONFIG_SETUP_H

#include "lib/base/file.h"
#include "lib/model/config.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <string.h>
#include <unistd.h>

/* A field, its value as JSON. */
struct pair {
    const char *name, *value;
};

enum { MAX = 32 };

/* Writes the fields, one per line, without one of them and with additional
 * ones; reads the file. */
static inline int read_text(const struct pair *base, const char *without,
                            const char *more, struct kv_config *c,
                            struct kv_err *e)
{
    static char *path;
    char text[8192] = "{\"prefix\": null";
    FILE *f;

    if (!path)
        path = kv_path_join(test_folder(), "config.json");
    for (const struct pair *p = base; p->name; p++)
        if (strcmp(p->name, without))
            sprintf(text + strlen(text), ",\n\"%s\": %s", p->name, p->value);
    unlink(path); /* a new file: some disks write a file that replaces another
                     at once */
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s%s%s}", text, *more ? ",\n" : "", more);
    assert_int_equal(fclose(f), 0);
    return kv_config_read(c, path, e);
}

/* Whether two configs describe the same model. */
static inline bool same(const struct kv_config *a, const struct kv_config *b)
{
    const struct kv_shape *s = &a->shape, *t = &b->shape;

    return a->arch == b->arch && a->hidden == b->hidden &&
           a->inter == b->inter && a->n_vocab == b->n_vocab &&
           a->n_ctx == b->n_ctx && a->norm_eps == b->norm_eps &&
           a->tied == b->tied && a->qkv_bias == b->qkv_bias &&
           a->o_bias == b->o_bias && a->mlp_bias == b->mlp_bias &&
           a->parallel == b->parallel && a->act == b->act &&
           a->n_experts == b->n_experts && a->rope.scale == b->rope.scale &&
           a->rope.near == b->rope.near && a->slide_scale == b->slide_scale &&
           s->slide_window == t->slide_window && s->n_layers == t->n_layers &&
           s->n_heads == t->n_heads && s->n_kv_heads == t->n_kv_heads &&
           s->head_dim == t->head_dim && s->attn_scale == t->attn_scale &&
           s->n_rot == t->n_rot &&
           !memcmp(s->inv_freq, t->inv_freq, s->n_rot * sizeof(float)) &&
           !memcmp(s->slide_freq, t->slide_freq, s->n_rot * sizeof(float)) &&
           !memcmp(s->slides, t->slides, sizeof(s->slides)) &&
           !memcmp(s->still, t->still, sizeof(s->still)) && s->cap == t->cap &&
           a->logit_cap == b->logit_cap && a->embed_scale == b->embed_scale;
}

#endif
