#include "lib/spec.h"
#include "lib/base/decimal.h"
#include "lib/exec.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "lib/spec_impl.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A scheme's own parameters, then the parameters of every scheme: two letters,
 * and words that are printed only if they differ from the default. */
enum { COMMON_LETTERS = 2, COMMON = 4 };

static const struct kv_param common[COMMON] = {
    {"r", NULL, 0, 0, 1 << 20, false, "newest tokens kept in fp16"},
    {"s", NULL, 0, 0, 1 << 20, false, "first tokens kept in fp16 (sinks)"},
    {"k_bias", "no|yes", 1, 0, 0, true,
     "no: keys are stored less the model's bias (k_proj.bias)"},
    {"massive", "no|yes", 0, 0, 0, false,
     "yes: massive tokens (sinks) in fp16, wherever they stand"},
};

/* A mixed spec has only the letters, since each place has words of its own. */
static size_t n_common(const struct kv_scheme *k)
{
    return k == &kv_scheme_mixed ? COMMON_LETTERS : COMMON;
}

size_t kv_spec_n_own(const struct kv_scheme *k)
{
    size_t n = 0;

    while (k->params && k->params[n].name)
        n++;
    assert(n + COMMON <= KV_MAX_PARAMS);
    return n;
}

size_t kv_spec_n_params(const struct kv_scheme *k)
{
    return kv_spec_n_own(k) + n_common(k);
}

const struct kv_param *kv_spec_param(const struct kv_scheme *k, size_t i)
{
    const size_t own = kv_spec_n_own(k);

    return i < own                 ? &k->params[i]
           : i < own + n_common(k) ? &common[i - own]
                                   : NULL;
}

double kv_spec_fallback(const struct kv_scheme *k, size_t i)
{
    const size_t own = kv_spec_n_own(k);

    if (i < own)
        return k->params[i].fallback;
    if (k == &kv_scheme_mixed)
        return KV_AS_PLACED;
    if (i < own + COMMON_LETTERS)
        return (double)(i == own ? k->residual : k->sinks);
    return common[i - own].fallback;
}

size_t kv_spec_index(const struct kv_scheme *k, const char *name, size_t n)
{
    size_t i = 0;

    for (const char *is; i < kv_spec_n_params(k); i++) {
        is = kv_spec_param(k, i)->name;
        if (strlen(is) == n && !memcmp(is, name, n))
            break;
    }
    return i;
}

/* Aborts when the scheme's own code asks for a parameter that the scheme
 * lacks. */
static size_t want(const struct kv_spec *s, const char *name)
{
    const size_t i = kv_spec_index(s->scheme, name, strlen(name));

    if (i == kv_spec_n_params(s->scheme))
        abort();
    return i;
}

double kv_spec_get(const struct kv_spec *s, enum kv_side side, const char *name)
{
    return s->value[side][want(s, name)];
}

size_t kv_spec_size(const struct kv_spec *s, enum kv_side side,
                    const char *name)
{
    return (size_t)kv_spec_get(s, side, name);
}

void kv_spec_set(struct kv_spec *s, enum kv_side side, const char *name,
                 double value)
{
    s->value[side][want(s, name)] = value;
}

const char *kv_choice_at(const char *choices, size_t i, size_t *n)
{
    for (; i; i--) {
        choices = strchr(choices, '|');
        if (!choices)
            return NULL;
        choices++;
    }
    *n = strcspn(choices, "|");
    return choices;
}

int kv_choice_find(const char *choices, const char *text, size_t len)
{
    const char *c;
    size_t n;

    for (size_t i = 0; (c = kv_choice_at(choices, i, &n)); i++)
        if (n == len && !memcmp(c, text, n))
            return (int)i;
    return -1;
}

bool kv_spec_is(const struct kv_spec *s, enum kv_side side, const char *name,
                const char *choice)
{
    const size_t i = want(s, name);
    const char *choices = kv_spec_param(s->scheme, i)->choices;
    const int at =
        choices ? kv_choice_find(choices, choice, strlen(choice)) : -1;

    if (at < 0)
        abort();
    return s->value[side][i] == at;
}

/* ---- printing ---------------------------------------------------------- */

struct writer {
    char *text;
    size_t capacity, n;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w,
                                                      const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);

    const int n = vsnprintf(w->text + w->n, w->capacity - w->n, fmt, ap);

    va_end(ap);
    assert(n >= 0 && w->n + (size_t)n < w->capacity);
    w->n += (size_t)n;
}

/* Whether a parameter has a value; a mixed spec may leave letters to its
 * places. */
static bool is_given(const struct kv_spec *s, enum kv_side side, size_t i)
{
    return !s->mixed || s->value[side][i] != KV_AS_PLACED;
}

static bool is_newer(const struct kv_scheme *k, size_t i)
{
    const char *name = kv_spec_param(k, i)->name;

    return k->newer && kv_choice_find(k->newer, name, strlen(name)) >= 0;
}

bool kv_spec_left_out(const struct kv_spec *s, size_t i)
{
    const double fallback = kv_spec_fallback(s->scheme, i);

    return (i >= kv_spec_n_own(s->scheme) + COMMON_LETTERS ||
            is_newer(s->scheme, i)) &&
           s->value[KV_K][i] == fallback && s->value[KV_V][i] == fallback;
}

static bool in_key(const struct kv_spec *s, const struct kv_param *p)
{
    return p->calib || (s->scheme->in_key && s->scheme->in_key(s, p));
}

static void put_letters(struct writer *w, const struct kv_spec *s,
                        enum kv_side side, bool calib)
{
    for (size_t i = 0; i < kv_spec_n_params(s->scheme); i++) {
        const struct kv_param *p = kv_spec_param(s->scheme, i);

        if (kv_is_letter(p) && (!calib || in_key(s, p)) && is_given(s, side, i))
            put(w, "%s%s", p->name, kv_decimal(s->value[side][i]).text);
    }
}

static void put_word(struct writer *w, const struct kv_param *p,
                     const char *prefix, double value)
{
    size_t n = 0;
    const char *c =
        p->choices ? kv_choice_at(p->choices, (size_t)value, &n) : "";

    if (p->choices)
        put(w, ",%s%s=%.*s", prefix, p->name, (int)n, c);
    else
        put(w, ",%s%s=%s", prefix, p->name, kv_decimal(value).text);
}

static void print(const struct kv_spec *s, char *text, bool calib)
{
    const struct kv_scheme *k = s->scheme;
    struct writer w = {text, KV_SPEC_CHARS, 0};
    bool letters = false, differ = false;

    for (size_t i = 0; i < kv_spec_n_params(k); i++) {
        const struct kv_param *p = kv_spec_param(k, i);

        if (kv_is_letter(p) && (!calib || in_key(s, p))) {
            letters |= is_given(s, KV_K, i) || is_given(s, KV_V, i);
            differ |= s->value[KV_K][i] != s->value[KV_V][i];
        }
    }
    if (!calib) /* tables do not depend on which tokens are kept */
        w.n += (size_t)kv_policy_print(&s->policy, w.text, w.capacity);
    if (s->mixed && !s->mixed->n_layers) {
        put(&w, "K-%s/V-%s", s->mixed->member[KV_K].text,
            s->mixed->member[KV_V].text);
        return;
    }
    put(&w, "%s", k->name);
    if (letters) {
        put(&w, ":%s", differ ? "K-" : "");
        put_letters(&w, s, KV_K, calib);
        if (differ) {
            put(&w, "/V-");
            put_letters(&w, s, KV_V, calib);
        }
    }
    for (size_t i = 0; i < kv_spec_n_params(k); i++) {
        const struct kv_param *p = kv_spec_param(k, i);

        if (kv_is_letter(p) || (calib && !in_key(s, p)) ||
            kv_spec_left_out(s, i))
            continue;
        if (s->value[KV_K][i] == s->value[KV_V][i]) {
            put_word(&w, p, "", s->value[KV_K][i]);
        } else {
            put_word(&w, p, "K-", s->value[KV_K][i]);
            put_word(&w, p, "V-", s->value[KV_V][i]);
        }
    }
    if (s->mixed)
        put(&w, ",file=%s@%s", s->mixed->name, s->mixed->hash);
    if (kv_exec_of(k))
        put(&w, ",cmd=%s", kv_exec_of(k)->command);
}

void kv_spec_print(struct kv_spec *s)
{
    print(s, s->text, false);
}

void kv_spec_calib_key(const struct kv_spec *s, char key[KV_SPEC_CHARS])
{
    print(s, key, true);
}

int kv_spec_one_side(struct kv_spec *s, enum kv_side side, const char *name,
                     struct kv_err *e)
{
    const enum kv_side other = side == KV_K ? KV_V : KV_K;
    const double x = kv_spec_get(s, side, name);
    const double y = kv_spec_get(s, other, name);

    if (y != x && y != kv_spec_fallback(s->scheme, want(s, name)))
        return kv_fail(e, "%s concerns %s alone: leave %c-%s out", name,
                       side == KV_K ? "keys" : "values", kv_side_name(other),
                       name);
    kv_spec_set(s, other, name, x);
    return 0;
}

/* Checks that a token which is coded in one layer or side is also coded in the
 * layers or sides that are predicted from it. */
static int check_layered(const struct kv_spec *s, const struct kv_shape *shape,
                         struct kv_err *e)
{
    if (!kv_spec_layered(s, 0))
        return 0;
    for (const char *letter = "rs"; *letter; letter++)
        if (kv_spec_get(s, KV_K, (char[]){*letter, 0}) !=
            kv_spec_get(s, KV_V, (char[]){*letter, 0}))
            return kv_fail(e,
                           "%c is one for K and V where values are predicted "
                           "from keys",
                           *letter);
    if (!kv_spec_reads_below(s))
        return 0;
    if (kv_policy_drops(&s->policy))
        return kv_fail(e, "a policy drops tokens that the layers above are "
                          "predicted from");
    for (size_t i = 0; i < shape->n_layers; i++)
        if (kv_shape_slides(shape, i) && !kv_spec_layered(s, i)->in_place)
            return kv_fail(e,
                           "layer %zu slides: it drops tokens that the layers "
                           "above are predicted from",
                           i);
    for (size_t i = 1; i < shape->n_layers; i++)
        if (kv_spec_layered(s, i)->n_below &&
            kv_shape_slides(shape, i) != kv_shape_slides(shape, i - 1))
            return kv_fail(
                e,
                "layers %zu and %zu are of different kinds: one "
                "slides, and neither can be predicted from the other",
                i - 1, i);
    return 0;
}

/* Checks a spec that codes all layers of a token together: every token must
 * then be coded in all layers. */
static int check_spans(const struct kv_spec *s, const struct kv_shape *shape,
                       struct kv_err *e)
{
    if (!kv_spec_spans(s))
        return 0;
    if (s->policy.policy)
        return kv_fail(e, "codes of all layers together go without policies");
    if (kv_spec_is(s, KV_K, "massive", "yes"))
        return kv_fail(e, "massive=yes keeps tokens of a layer, and codes of "
                          "all layers together have none");
    for (size_t i = 0; i < shape->n_layers; i++)
        if (kv_shape_slides(shape, i))
            return kv_fail(e,
                           "layer %zu slides: it drops tokens that the codes "
                           "of all layers together have",
                           i);
    return 0;
}

static int fit_bias(struct kv_spec *s, const struct kv_shape *shape,
                    struct kv_err *e)
{
    if (kv_spec_one_side(s, KV_K, "k_bias", e))
        return -1;
    if (kv_spec_is(s, KV_K, "k_bias", "no") && !shape->k_bias)
        return kv_fail(e, "k_bias=no: this model's keys have no bias "
                          "(k_proj.bias), or its dump does not hold it");
    return 0;
}

/* Checks a spec for a model with a latent, where V is a part of K and has no
 * codes. */
static int check_latent(const struct kv_spec *s, const struct kv_shape *shape,
                        struct kv_err *e)
{
    static const char latent[] = "a latent is one record a token";

    for (size_t i = 0; i < shape->n_layers; i++) {
        const struct kv_spec *k = kv_spec_at(s, i, KV_K);
        const struct kv_scheme *scheme = k->scheme;

        if (k != kv_spec_at(s, i, KV_V) ||
            memcmp(k->value[KV_K], k->value[KV_V],
                   kv_spec_n_params(scheme) * sizeof(**k->value)) != 0)
            return kv_fail(e,
                           "%s, and V has no codes of its own: K and V take "
                           "one spec",
                           latent);
        if (scheme->attend || kv_spec_layered(k, i) || kv_spec_spans(k))
            return kv_fail(e,
                           "%s: %s, which goes by the codes of other records "
                           "too, is not implemented for it",
                           latent, scheme->name);
    }
    return kv_policy_drops(&s->policy)
               ? kv_fail(e,
                         "%s: %s, which drops tokens, is not implemented for "
                         "it",
                         latent, s->policy.policy->name)
               : 0;
}

/* Checks a spec for a model whose layers differ in their heads, or share keys
 * and values. */
static int check_kinds(const struct kv_spec *s, const struct kv_shape *shape,
                       struct kv_err *e)
{
    struct kv_spec same = *s;
    struct kv_shape slide;
    size_t layer = 0;

    if (s->policy.policy || kv_spec_spans(s) || kv_spec_reads_below(s))
        return kv_fail(e,
                       "%s is not implemented for layers that share keys "
                       "and values or differ in their heads",
                       s->policy.policy   ? "a policy"
                       : kv_spec_spans(s) ? "one code of all layers"
                                          : "a code that reads other layers");
    if (!s->mixed && s->scheme->training && strcmp(s->scheme->name, "klt") != 0)
        return kv_fail(e,
                       "a calibration of %s is not implemented for layers "
                       "that share keys and values or differ in their heads",
                       s->scheme->name);
    if (!shape->slide_dim || !s->scheme->check)
        return 0;
    while (!kv_shape_slides(shape, layer))
        layer++;
    slide = kv_shape_layer(shape, layer);
    if (s->scheme->check(&same, &slide, e))
        return kv_fail_in(e, "in layers that slide");
    return !memcmp(same.value, s->value, sizeof(same.value))
               ? 0
               : kv_fail(e,
                         "layers that slide, with %zu KV heads of %zu "
                         "channels, would take other parameters: give "
                         "those that fit all layers",
                         slide.n_kv_heads, slide.head_dim);
}

int kv_spec_fit(struct kv_spec *s, const struct kv_shape *shape,
                struct kv_err *e)
{
    if (s->mixed && kv_mixed_fit(&s->mixed, s, shape, e))
        return kv_fail_in(e, "spec '%s'", s->text);
    if (!s->mixed && fit_bias(s, shape, e))
        return kv_fail_in(e, "spec '%s'", s->text);
    if ((s->scheme->check && s->scheme->check(s, shape, e)) ||
        check_layered(s, shape, e) || check_spans(s, shape, e) ||
        (shape->latent && check_latent(s, shape, e)) ||
        (kv_shape_by_kind(shape) && check_kinds(s, shape, e)))
        return kv_fail_in(e, "spec '%s'", s->text);
    kv_spec_print(s);
    return 0;
}
