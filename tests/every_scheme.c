#include "tests/every_scheme.h"
#include "lib/base/alloc.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "tests/append_rows.h"
#include "tests/stacked.h"
#include "tests/synthetic.h"
#include "tests/test.h"

enum { HEAD_DIM = 32 };

/* Calibrations by their key: many specs share one. */
static struct kv_calib **made;
static size_t n_made;

static struct kv_calib *calibration(const struct kv_shape *shape,
                                    const struct kv_spec *spec,
                                    const char *folder)
{
    struct kv_calib *c;

    for (size_t i = 0; i < n_made; i++)
        if (kv_calib_find(made[i], spec))
            return made[i];
    c = synthetic_calib_on(shape, spec, 2, folder);
    if (c) {
        made = kv_realloc(made, n_made + 1, sizeof(*made));
        made[n_made++] = c;
    }
    return c;
}

/* The codecs of a spec that is fitted to r's shape; false if its scheme refuses
 * single tokens in fp16. */
static bool open_codecs(struct ready *r, const char *folder)
{
    const bool below = kv_spec_reads_below(&r->spec);
    struct kv_err e = {""};

    r->layer = below                     ? kv_spec_layered(&r->spec, 1)->n_below
               : kv_spec_spans(&r->spec) ? 0
                                         : 1;
    r->shape.n_layers = below ? 3 : r->shape.n_layers;
    r->calib = calibration(&r->shape, &r->spec, folder);
    if (below && kv_codecs_new(&r->lower, &r->spec, &r->shape, 0, r->layer,
                               r->calib, &e))
        fail_msg("%s", e.msg);
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_codec_new(&r->codec[side], &r->spec, &r->shape, r->layer,
                         (enum kv_side)side, r->calib, &e)) {
            if (!strstr(e.msg, "massive=yes"))
                fail_msg("%s", e.msg);
            kv_codec_free(r->codec[KV_K]);
            return false;
        }
    return true;
}

static bool without_trained;

static bool prepare(struct ready *r, const char *text, const char *folder)
{
    struct kv_err e = {""};

    *r = (struct ready){.shape = synthetic_shape(HEAD_DIM)};
    if (kv_spec_parse(&r->spec, text, &e) ||
        kv_spec_fit(&r->spec, &r->shape, &e)) {
        /* a scheme may refuse sinks and residual, with a sentence */
        if (!strchr(text, ':'))
            fail_msg("%s", e.msg);
        return false;
    }
    if (without_trained && kv_spec_calibrated(&r->spec))
        return false;
    if (kv_spec_spans(&r->spec))
        r->shape = kv_shape_merged(&r->shape);
    return open_codecs(r, folder);
}

static void release(struct ready *r)
{
    for (int side = 0; side < KV_SIDES; side++)
        kv_codec_free(r->codec[side]);
    kv_codecs_free(r->lower);
}

static struct ready *every_one;
static size_t n_ready;
static const char *only;         /* a scheme's name; NULL: all */
static size_t step = 1, n_asked; /* every step-th spec */

void every_only(int argc, char **argv, bool trained)
{
    only = argc > 1 ? argv[1] : NULL;
    without_trained = SANITIZED && !only && !trained;
    step = SANITIZED && !only && trained ? 9 : 1;
    n_asked = step - 1;
}

/* text: a spec. */
static bool is_wanted(const char *text)
{
    const size_t n = strcspn(text, ":");

    return !only || (strlen(only) == n && !memcmp(text, only, n));
}

static void add(const char *text, const char *folder)
{
    /* klt's trellis takes most of the time under a sanitizer */
    const size_t every = step > 1 && !strncmp(text, "klt", 3) ? 3 * step : step;

    if (!is_wanted(text) || ++n_asked % every)
        return;
    every_one = kv_realloc(every_one, n_ready + 1, sizeof(*every_one));
    n_ready += prepare(&every_one[n_ready], text, folder);
}

static void add_choices(const struct kv_scheme *k, const char *folder)
{
    char text[128];

    for (const struct kv_param *p = k->params; p && p->name; p++) {
        const char *choice = p->choices;

        for (size_t i = 0; choice; i++) {
            const size_t n = strcspn(choice, "|");

            for (int j = 0; j < 2 && (double)i != p->fallback; j++) {
                snprintf(text, sizeof(text), "%s:%s,%s=%.*s", k->name,
                         j ? "n16r0" : "r0", p->name, (int)n, choice);
                add(text, folder);
            }
            choice = choice[n] ? choice + n + 1 : NULL;
        }
    }
}

/* The words that every scheme has. */
static void add_words(const struct kv_scheme *k, const char *folder)
{
    static const char *const words[] = {"%s:r0,no-k_bias", "%s:s3r9,no-k_bias",
                                        "%s:r0,massive",
                                        "%s:s3r9,no-k_bias,massive"};
    char text[64];

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        snprintf(text, sizeof(text), words[i], k->name);
        add(text, folder);
    }
}

/* Blocks as short as they can be, so that every scheme fills some. */
static void add_min(const struct kv_scheme *k, const char *folder)
{
    char text[128];
    size_t n = (size_t)snprintf(text, sizeof(text), "%s:r0", k->name);

    for (const struct kv_param *p = k->params; p && p->name; p++)
        if (!p->choices && !p->name[1])
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%.17g",
                                  p->name, p->min);
    if (k->params)
        add(text, folder);
}

static const char *const letters[] = {"",       ":s0r0",    ":s3r0", ":s4r32",
                                      ":n16r0", ":n16s3r20"}; /* n: a block */

/* Keys and values of one layer by different schemes: codes before RoPE with
 * codes after it, one that quantizes by the block with one that does by the
 * token, with and without calibration. */
static void add_mixed(const char *folder)
{
    static const char *const keys[] = {"pq:d4b4,rope=pre", "kivi:b2g16r32"};
    static const char *const values[] = {"kivi:b3g16r16s1", "vecinfer:d4b4r7"};
    char text[8192];

    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        char path[5000];
        FILE *f;

        snprintf(path, sizeof(path), "%s/mixed-%zu.txt", folder, i);
        f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "0 KV f32\n1 K %s\n1 V %s\n", keys[i], values[i]);
        fclose(f);
        for (size_t j = 0; j < sizeof(letters) / sizeof(*letters); j++) {
            snprintf(text, sizeof(text), "mixed%s,file=%s", letters[j], path);
            add(text, folder);
        }
    }
}

static void add_stacked(const char *folder)
{
    enum { SPECS = 4 };

    if (!is_wanted("stacked"))
        return;
    every_one = kv_realloc(every_one, n_ready + SPECS, sizeof(*every_one));
    for (size_t i = 0; i < SPECS; i++) {
        struct ready *r = &every_one[n_ready++];

        *r = (struct ready){
            .shape = synthetic_shape(HEAD_DIM),
            .spec = stacked_spec(1 + i % 2, i < 2 ? 0 : 3, i < 2 ? 0 : 20)};
        open_codecs(r, folder);
    }
}

int prepare_every(void **state)
{
    const char *folder = test_folder();
    char text[64];

    (void)state;
    for (size_t i = 0; kv_schemes[i]; i++) {
        for (size_t j = 0; j < sizeof(letters) / sizeof(*letters); j++) {
            snprintf(text, sizeof(text), "%s%s", kv_schemes[i]->name,
                     letters[j]);
            add(text, folder);
        }
        add_choices(kv_schemes[i], folder);
        add_min(kv_schemes[i], folder);
        add_words(kv_schemes[i], folder);
    }
    add_mixed(folder);
    add("klt:b2,metric=fisher,pred=1", folder);
    add("klt:b1s3r20,metric=fisher,pred=2", folder);
    add("klt:b1s3r20,vk", folder);
    add("klt:b1s3r20,pair", folder);
    add("klt:b2s3r9,vk,no-k_bias,massive", folder);
    add("kivi:b2g16r0s1,ott=3", folder);
    add("kivi:b2g16r5s1,no-k_bias,ott=3", folder);
    add_stacked(folder);
    if (!n_ready)
        fail_msg("no scheme is named %s", only);
    return 0;
}

int release_every(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_ready; i++)
        release(&every_one[i]);
    free(every_one);
    for (size_t i = 0; i < n_made; i++)
        kv_calib_free(made[i]);
    free(made);
    return 0;
}

static void every_nth(size_t first, size_t n, void (*check)(struct ready *))
{
    for (size_t i = first; i < n_ready; i += n)
        check(&every_one[i]);
}

void every(void (*check)(struct ready *))
{
    every_nth(0, 1, check);
}

void every_third(size_t first, void (*check)(struct ready *))
{
    every_nth(first, 3, check);
}

size_t row_values(const struct ready *r)
{
    return r->shape.n_kv_heads * r->shape.head_dim;
}

size_t query_values(const struct ready *r)
{
    return r->shape.n_heads * r->shape.head_dim;
}

struct kv_cache *new_cache(const struct ready *r)
{
    struct kv_cache *c, *below = NULL;
    struct kv_err e;

    for (size_t i = r->lower ? 0 : r->layer; i <= r->layer; i++) {
        struct kv_codec *const *codec =
            i < r->layer ? kv_codecs_at(r->lower, i) : r->codec;

        assert_int_equal(
            kv_cache_new(&c, codec[KV_K], codec[KV_V], EVERY_SCHEME_SEED, &e),
            0);
        if (r->lower)
            kv_cache_put_on(c, below);
        below = c;
    }
    return c;
}

int append_all(struct kv_cache *c, const float *q, const float *k,
               const float *v, size_t n, struct kv_err *e)
{
    struct kv_cache *below = kv_cache_below(c);

    return (below && append_all(below, q, k, v, n, e)) ||
                   append_rows(c, q, k, v, n, e)
               ? -1
               : 0;
}
