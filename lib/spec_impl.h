/* Shared by spec.c, spec_parse.c and spec_sweep.c. */
#ifndef KV_SPEC_IMPL_H
#define KV_SPEC_IMPL_H

#include "lib/spec.h"

#include <string.h>

/* The number of the scheme's parameters, without and with the parameters of all
 * schemes. */
size_t kv_spec_n_own(const struct kv_scheme *k);
size_t kv_spec_n_params(const struct kv_scheme *k);

/* The index of the parameter with this name of n bytes; kv_spec_n_params() when
 * there is none. */
size_t kv_spec_index(const struct kv_scheme *k, const char *name, size_t n);

/* The default of the i-th parameter, before kv_scheme's fallback(). */
double kv_spec_fallback(const struct kv_scheme *k, size_t i);

/* Whether the i-th parameter belongs to all schemes and has its default, so
 * that the canonical text leaves it out. */
bool kv_spec_left_out(const struct kv_spec *s, size_t i);

/* The i-th choice of "a|b|c", its length in *n; NULL past the end. */
const char *kv_choice_at(const char *choices, size_t i, size_t *n);

/* Index of a choice of n bytes in "a|b|c", or -1. */
int kv_choice_find(const char *choices, const char *text, size_t n);

/* kv_spec_has_sides(): whether the text, after its policy, begins with a side
 * ("K-q8_0/...").  kv_spec_read_sides(): reads such a text, without its policy,
 * into *s (spec_sides.c). */
bool kv_spec_has_sides(const char *text);
int kv_spec_read_sides(struct kv_spec *s, const char *text, struct kv_err *e);
/* Whether the text names a scheme for K and has a V. */
bool kv_spec_sides_look_like(const char *text);

static inline bool kv_is_letter(const struct kv_param *p)
{
    return !p->name[1] && !p->choices;
}

/* The arguments of "%.*s%s" for a text of n bytes.  A long text is cut, so that
 * the end of the error message fits in struct kv_err. */
enum { KV_SHOWN_MAX = 200 };
#define KV_SHOWN(text, n)                                 \
    (int)((n) < KV_SHOWN_MAX ? (n) : KV_SHOWN_MAX), text, \
        (n) > KV_SHOWN_MAX ? "..." : ""

#endif
