/* MInference (arXiv 2407.02490): each query head has the pattern that a search
 * on a dump found best for it, among patterns that compute the same share of
 * the pairs of query and token (minference_search.c). */
#include "lib/policies/minference.h"
#include "lib/calib.h"

#include <math.h>
#include <string.h>

enum { MAX_FIRST = 1 << 20 };

static const struct kv_param params[] = {
    {"b", NULL, 0.25, 0.001, 1, true,
     "budget: share of the pairs of query and token, in the calibration"},
    {0},
};

static const struct kv_calib_set *find_set(const struct kv_calib *calib,
                                           const char *key)
{
    for (size_t i = 0; i < calib->n_sets; i++)
        if (!strcmp(calib->set[i].key, key))
            return &calib->set[i];
    return NULL;
}

static const char *name_of(const struct kv_calib *calib)
{
    return calib->path ? calib->path : "the calibration";
}

/* The number of tokens or blocks of a share, at least 1. */
static size_t minference_count(float share, size_t whole)
{
    const double n = round((double)share * (double)whole);

    return n < 1 ? 1 : (size_t)n;
}

static bool read_head(const float *row, size_t n, struct kv_pattern *to)
{
    const float kind = row[KV_MINFERENCE_KIND];
    const float first = row[KV_MINFERENCE_FIRST];
    const float second = row[KV_MINFERENCE_SECOND];
    const bool tokens = kind == KV_A_SHAPE;

    if (!(kind >= 0 && kind < KV_PATTERN_KINDS && kind == floorf(kind) &&
          first >= 0 && first <= (tokens ? MAX_FIRST : 1) && second >= 0 &&
          second <= 1))
        return false;
    to->kind = (enum kv_pattern_kind)kind;
    to->first = tokens
                    ? (size_t)first
                    : minference_count(first, kv_minference_whole(to->kind, n));
    to->second = minference_count(second, n);
    return true;
}

static int minference_find(const struct kv_policy_spec *p,
                           const struct kv_calib *calib,
                           const struct kv_shape *s, size_t layer, size_t n,
                           struct kv_pattern *head, struct kv_err *e)
{
    char key[KV_SPEC_CHARS];
    const struct kv_calib_set *set;
    const struct kv_table *t;

    kv_policy_calib_key(p, key);
    if (!calib)
        return kv_fail(e,
                       "%s needs patterns: kvcalib -s %s+f32 finds them, -C "
                       "FILE takes them",
                       key, key);
    set = find_set(calib, key);
    if (!set)
        return kv_fail(e, "%s has no patterns of %s (kvcalib -s %s+f32)",
                       name_of(calib), key, key);
    t = kv_calib_table(set, "patterns", KV_K, layer, 0);
    if (!t || t->n_dims != 2 || t->dims[0] != s->n_heads ||
        t->dims[1] != KV_MINFERENCE_COLUMNS)
        return kv_fail(e, "%s: %s has no patterns of layer %zu for %zu heads",
                       name_of(calib), key, layer, s->n_heads);
    for (size_t h = 0; h < s->n_heads; h++)
        if (!read_head(t->data + h * KV_MINFERENCE_COLUMNS, n, &head[h]))
            return kv_fail(e,
                           "%s: %s: layer %zu, head %zu holds no pattern that "
                           "kvcalib writes",
                           name_of(calib), key, layer, h);
    return 0;
}

static const struct kv_policy_patterns patterns = {
    .find = minference_find,
    .check_dump = kv_minference_check_dump,
    .search = kv_minference_search,
};

const struct kv_policy kv_policy_minference = {
    .name = "minference",
    .brief = "MInference: in a prompt, each head's own sparse pattern",
    .params = params,
    .patterns = &patterns,
};
