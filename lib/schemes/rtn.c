#include "lib/schemes/rtn.h"

const struct kv_param kv_rtn_params[] = {
    {"b", NULL, 8, 2, 8, false, "bits per code"},
    {"g", NULL, 0, 0, 4096, false, "values per group; 0: the whole row"},
    {"axis", "token|channel", 0, 0, 0, false,
     "a group lies along one token's channels, or one channel's tokens"},
    {"heads", "one|all", 0, 0, 0, false,
     "token axis: a row is one KV head, or all of them"},
    {0},
};

int kv_rtn_check(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const bool all = kv_spec_is(s, side, "heads", "all");
        const size_t row = shape->head_dim * (all ? shape->n_kv_heads : 1);
        const size_t g = kv_spec_size(s, side, "g");

        if (kv_spec_is(s, side, "axis", "channel")) {
            if (!g)
                return kv_fail(e, "axis=channel wants a group of g tokens, "
                                  "g at least 1");
            if (all)
                return kv_fail(e, "heads=all goes with axis=token only");
            continue;
        }
        if (!g || g > row)
            kv_spec_set(s, side, "g", (double)row);
        if (row % kv_spec_size(s, side, "g"))
            return kv_fail(e, "g=%zu must divide the row of %zu channels", g,
                           row);
    }
    return 0;
}

double kv_rtn_nominal(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

int kv_rtn_open(struct kv_codec *c, const struct kv_group_quantizer *q)
{
    const struct kv_spec *s = &c->spec;

    return kv_integers_open(
        c, q,
        kv_spec_is(s, c->side, "axis", "channel") ? KV_AXIS_CHANNEL
                                                  : KV_AXIS_TOKEN,
        kv_spec_size(s, c->side, "g"), kv_spec_is(s, c->side, "heads", "all"),
        (unsigned)kv_spec_size(s, c->side, "b"));
}
