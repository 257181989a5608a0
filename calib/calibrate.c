#include "calib/calibrate.h"
#include "calib/calibrate_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "lib/schemes/codebook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A spec whose scheme or policy must be trained. */
struct picked {
    const struct kv_spec *spec;
    bool patterns; /* the policy's patterns are trained */
};

static void key_of(const struct picked *p, char key[KV_SPEC_CHARS])
{
    if (p->patterns)
        kv_policy_calib_key(&p->spec->policy, key);
    else
        kv_spec_calib_key(p->spec, key);
}

/* Adds `one` unless picked has one with the same key; returns the spec of that
 * one, else NULL. */
static const struct kv_spec *pick_one(struct picked one, struct picked *picked,
                                      size_t *n_picked)
{
    char key[KV_SPEC_CHARS], other[KV_SPEC_CHARS];

    key_of(&one, key);
    for (size_t i = 0; i < *n_picked; i++) {
        key_of(&picked[i], other);
        if (!strcmp(key, other))
            return picked[i].spec;
    }
    picked[(*n_picked)++] = one;
    return one.spec;
}

/* Lists the specs to train, one for each key; each member of a mixed spec
 * counts by itself.  *picked is the caller's to free. */
static size_t pick(const struct kv_spec *specs, size_t n,
                   struct picked **picked)
{
    size_t n_members = n, n_picked = 0;

    for (size_t i = 0; i < n; i++)
        n_members += kv_spec_members(&specs[i]);
    *picked = kv_alloc(n_members, sizeof(**picked));
    for (size_t i = 0; i < n; i++) {
        if (!kv_spec_calibrated(&specs[i]))
            kv_note("%s has nothing to calibrate", specs[i].text);
        for (size_t j = 0; j < kv_spec_members(&specs[i]); j++) {
            const struct kv_spec *s = kv_spec_member(&specs[i], j), *as = s;

            if (s->scheme->training)
                as = pick_one((struct picked){s, false}, *picked, &n_picked);
            if (as != s && !specs[i].mixed)
                kv_note("%s has the tables of %s", s->given, as->given);
        }
        if (kv_policy_calibrated(&specs[i].policy))
            pick_one((struct picked){&specs[i], true}, *picked, &n_picked);
    }
    return n_picked;
}

struct kv_calib *kv_calib_start(struct kv_dump *dump, size_t n_sets)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct kv_calib *c = kv_alloc(1, sizeof(*c));

    c->shape = info->shape;
    c->shape.k_bias = NULL; /* belongs to the dump, which may be closed first */
    c->shape.sink_logit = NULL;
    c->shape.cache_scale = NULL;
    snprintf(c->model, sizeof(c->model), "%s", info->model);
    snprintf(c->model_hash, sizeof(c->model_hash), "%s", info->model_hash);
    snprintf(c->text, sizeof(c->text), "%s", info->text);
    snprintf(c->text_hash, sizeof(c->text_hash), "%s", info->text_hash);
    c->n_windows = info->n_windows;
    c->ctx = info->ctx;
    c->set = kv_alloc(n_sets, sizeof(*c->set));
    return c;
}

int kv_calib_massive(struct kv_calib *c, struct kv_dump *dump, bool **counts,
                     struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n = info->n_windows * info->ctx;
    const size_t first = info->first_layer;

    c->has_k_bias = info->shape.k_bias;
    c->norms = kv_alloc(info->shape.n_layers * KV_SIDES, sizeof(*c->norms));
    for (size_t i = 0; i < info->shape.n_layers * KV_SIDES; i++)
        c->norms[i] = kv_norm_range_of(NULL, 0);
    *counts = kv_alloc((info->last_layer - first + 1) * n, sizeof(**counts));
    for (size_t l = first; l <= info->last_layer; l++)
        if (kv_massive_of_dump(dump, l, c->norms + l * KV_SIDES,
                               *counts + (l - first) * n, e))
            return -1;
    return 0;
}

static int train_scheme(struct kv_calib_set *set, const struct kv_spec *spec,
                        struct kv_dump *dump, uint64_t seed, struct kv_err *e)
{
    int rc;

    kv_dump_take_k_bias(dump, kv_spec_is(spec, KV_K, "k_bias", "no"));
    rc = spec->scheme->training->calibrate(spec, dump, seed, set, e);
    kv_dump_take_k_bias(dump, false);
    return rc;
}

static void name_set(struct kv_calib_set *set, const struct picked *p,
                     uint64_t seed)
{
    key_of(p, set->key);
    snprintf(set->spec, sizeof(set->spec), "%s",
             p->patterns ? set->key : p->spec->text);
    set->seed = seed;
}

static int train(struct kv_calib_set *set, const struct picked *p,
                 struct kv_dump *dump, const bool *counts, struct kv_err *e)
{
    const struct kv_policy_spec *policy = &p->spec->policy;
    struct kv_progress bar;
    int rc;

    set->counts = counts;
    kv_progress_init(&bar, set->spec, 0);
    set->progress = &bar;
    rc = p->patterns ? policy->policy->patterns->search(policy, dump, set, e)
                     : train_scheme(set, p->spec, dump, set->seed, e);
    set->progress = NULL;
    set->counts = NULL;
    set->factors = NULL;
    kv_progress_clear(&bar);
    if (rc)
        return kv_fail_in(e, "%s", set->spec);
    if (set->warning[0])
        kv_note("%s", set->warning);
    return 0;
}

/* Takes the smoothing factors of every set, and adds the text that they were
 * trained on. */
static int take_factors(struct kv_calib *c, const struct kv_calib *factors,
                        const struct picked *picked, size_t n,
                        const struct kv_dump_info *info, struct kv_err *e)
{
    size_t used;

    if (!factors)
        return 0;
    if (kv_calib_check_model(factors, factors->path, info->model_hash,
                             &info->shape, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!picked[i].patterns &&
            kv_codebook_factors(&c->set[i].factors, factors, picked[i].spec,
                                info, e))
            return -1;
    kv_sketch_join(&c->sketch, &factors->sketch);
    used = strlen(c->text);
    snprintf(c->text + used, sizeof(c->text) - used, "+factors:%s",
             factors->text);
    return 0;
}

/* Fails before hours of training if the dump lacks what any spec needs. */
static int check_dump(const struct picked *picked, size_t n,
                      struct kv_dump *dump, struct kv_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const struct kv_spec *s = picked[i].spec;

        if (picked[i].patterns ? s->policy.policy->patterns->check_dump(dump, e)
                               : s->scheme->training->check_dump(s, dump, e))
            return kv_fail_in(e, "%s", s->text);
    }
    return 0;
}

static bool is_together(const struct picked *p)
{
    const struct kv_training *t = p->spec->scheme->training;

    return !p->patterns && t->together && t->together(p->spec);
}

/* together: trains the sets whose layers are trained together, each set in one
 * part; else trains all other sets. */
static int train_sets(struct kv_calib *c, struct kv_calib_part part,
                      bool together, const struct picked *picked,
                      struct kv_dump *dump, const bool *counts,
                      struct kv_err *e)
{
    size_t n_together = 0;

    for (size_t i = 0; i < c->n_sets; i++) {
        if (is_together(&picked[i]) != together ||
            (together && n_together++ % part.n != part.self))
            continue;
        if (kv_interrupted(e) || train(&c->set[i], &picked[i], dump, counts, e))
            return -1;
    }
    return 0;
}

/* Restricts the dump and counts to the part's layers; false: the part has
 * none. */
static bool take_layers(struct kv_calib_part part, struct kv_dump *dump,
                        const bool **counts)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n = info->last_layer + 1 - info->first_layer;
    const size_t from = n * part.self / part.n;
    const size_t to = n * (part.self + 1) / part.n;

    if (from == to)
        return false;
    *counts += from * info->n_windows * info->ctx;
    kv_dump_narrow(dump, info->first_layer + from, info->first_layer + to - 1);
    return true;
}

int kv_calib_run_part(struct kv_calib **out, struct kv_calib_part part,
                      struct kv_dump *dump, const struct kv_spec *specs,
                      size_t n_specs, const struct kv_calib *factors,
                      uint64_t seed, struct kv_err *e)
{
    struct picked *picked;
    const size_t n = pick(specs, n_specs, &picked);
    bool wanted = n;
    struct kv_calib *c = kv_calib_start(dump, n);
    const bool *counts;
    bool *all_counts = NULL;
    int rc = -1;

    for (size_t i = 0; i < n_specs; i++) /* without calibrated specs the norms
                                          * alone suffice */
        wanted |= kv_spec_calibrated(&specs[i]);
    if (!wanted) {
        kv_fail(e, "none of the schemes asked for has anything to calibrate");
        goto out;
    }
    for (c->n_sets = 0; c->n_sets < n; c->n_sets++)
        name_set(&c->set[c->n_sets], &picked[c->n_sets], seed);
    if (check_dump(picked, n, dump, e) || kv_sketch_dump(&c->sketch, dump, e) ||
        take_factors(c, factors, picked, n, kv_dump_info(dump), e) ||
        kv_calib_massive(c, dump, &all_counts, e))
        goto out;
    counts = all_counts;
    if (train_sets(c, part, true, picked, dump, counts, e) ||
        (take_layers(part, dump, &counts) &&
         train_sets(c, part, false, picked, dump, counts, e)))
        goto out;
    rc = 0;
out:
    free(all_counts);
    free(picked);
    if (rc)
        kv_calib_free(c);
    else
        *out = c;
    return rc;
}

int kv_calib_run(struct kv_calib **c, struct kv_dump *dump,
                 const struct kv_spec *specs, size_t n_specs,
                 const struct kv_calib *factors, uint64_t seed,
                 struct kv_err *e)
{
    return kv_calib_run_part(c, (struct kv_calib_part){0, 1}, dump, specs,
                             n_specs, factors, seed, e);
}
