/* Spec strings: a scheme and every parameter of it, as one line of text.
 *
 *   spec    := [policy [':' letters] '+'] (one | 'K-' one '/' 'V-' one)
 *   one     := name [':' part] {',' word}
 *   part    := letters | 'K-' letters '/' 'V-' letters
 *            | word, where the scheme has no letters of its own: q4_0:rot
 *   letters := (letter number)*          as the papers write them: b2g32r128
 *   word    := word '=' value | choice | 'no-' word
 *
 * A word alone sets a yes/no parameter, or the one parameter that has this
 * choice: "nearest" is round=nearest, "no-se" is se=no.  A choice that two
 * parameters share must be written with its name: name=choice.  K-word=value
 * and V-word=value set one side.  Numbers and words may be {a,b,c}: a sweep.
 *
 * The canonical text has every parameter, after clamping to the model:
 * "kivi:b2g32r128s0,axis=paper".  Equal sides are written once.  The words of
 * all schemes, k_bias and massive, are written only if they differ from the
 * default.
 *
 * Two forms are mixed specs (lib/mixed.h): K-q8_0/V-kivi:b2g32 has one scheme
 * for keys and another for values; mixed,file=PATH has a spec for each layer
 * and side.  If both sides name the same scheme, the spec is not mixed:
 * K-kivi:b4/V-kivi:b2 is kivi:K-b4/V-b2. */
#ifndef KV_SPEC_H
#define KV_SPEC_H

#include "lib/base/err.h"
#include "lib/shape.h"

#include <stdbool.h>

KV_PUBLIC_BEGIN

struct kv_scheme;

/* One parameter.  A letter when name has one character, else a word.  Only
 * whole numbers are accepted if min, max and default are whole: [0, 1] with
 * default 0 takes 0 and 1.  [0.5, 1], or a default of 0.5, takes fractions
 * too. */
struct kv_param {
    const char *name;
    const char *choices; /* "no|yes", "none|S|H|HS|SH"; NULL: a number */
    double fallback;     /* default: the number, or the choice's index */
    double min, max;     /* numbers only */
    bool calib;          /* changes the calibration's tables */
    const char *help;    /* one line, with unit and paper's section */
};

enum { KV_MAX_PARAMS = 16, KV_SPEC_CHARS = 512, KV_MAX_SPECS = 10000 };

struct kv_mixed;
enum { KV_AS_PLACED = -1 }; /* mixed spec: each place has its own s or r */

/* A token policy (lib/policy.h) and the values of its letters; policy NULL: all
 * tokens are kept. */
struct kv_policy;
enum { KV_POLICY_PARAMS = 4 };
struct kv_policy_spec {
    const struct kv_policy *policy;
    double value[KV_POLICY_PARAMS];
};

/* A parsed spec.  After a scheme's own parameters come the parameters of all
 * schemes: r (residual), s (sinks), k_bias, massive. */
struct kv_spec {
    struct kv_policy_spec policy;
    const struct kv_scheme *scheme;
    const struct kv_mixed *mixed; /* NULL: one scheme everywhere */
    double value[KV_SIDES][KV_MAX_PARAMS];
    char text[KV_SPEC_CHARS];  /* canonical */
    char given[KV_SPEC_CHARS]; /* the start of the user's text, for error
                                * messages */
    bool keeps;                /* r or s is in the user's text */
};

/* Reads one spec without sweeps.  Fails with the letter, its range and the
 * nearest valid name. */
int kv_spec_parse(struct kv_spec *s, const char *text, struct kv_err *e);

/* True when an operand begins with a scheme's name and ':' or ',': a spec that
 * lost its -s.  The shell expands -s kivi:b{2,4}g32 to -s kivi:b2g32 kivi:b4g32
 * unless it is quoted. */
bool kv_spec_looks_like(const char *operand);

/* The scheme's i-th parameter, its own first; NULL past the last. */
const struct kv_param *kv_spec_param(const struct kv_scheme *k, size_t i);

/* Clamps to the shape (a group larger than the head becomes the head), asks the
 * scheme's check(), and rewrites s->text; in a mixed spec, does so for each
 * member.  A codec requires a fitted spec. */
int kv_spec_fit(struct kv_spec *s, const struct kv_shape *shape,
                struct kv_err *e);

/* Rewrites s->text from the values. */
void kv_spec_print(struct kv_spec *s);

/* The parameter's value for this side.  The name must be one of the scheme's
 * (a wrong one is a programming error and aborts). */
double kv_spec_get(const struct kv_spec *s, enum kv_side side,
                   const char *name);
size_t kv_spec_size(const struct kv_spec *s, enum kv_side side,
                    const char *name);
void kv_spec_set(struct kv_spec *s, enum kv_side side, const char *name,
                 double value);
/* Whether the word has this choice. */
bool kv_spec_is(const struct kv_spec *s, enum kv_side side, const char *name,
                const char *choice);

/* Called by a scheme's check() for a parameter that only this side uses.  Sets
 * the other side to the same value, so that the canonical text is unique.
 * Fails if the user gave the other side another value. */
int kv_spec_one_side(struct kv_spec *s, enum kv_side side, const char *name,
                     struct kv_err *e);

/* The canonical text reduced to the parameters that affect calibration:
 * the key of a set in a calibration file.  A mixed spec has no key; its members
 * have. */
void kv_spec_calib_key(const struct kv_spec *s, char key[KV_SPEC_CHARS]);

/* Counts the specs of all texts together.  Fails when there are more than
 * KV_MAX_SPECS, naming their number, and on a brace that is unmatched, nested
 * or has an empty choice.  Does not parse the specs. */
int kv_spec_count(const char *const *texts, size_t n_texts, size_t *n,
                  struct kv_err *e);

/* Expands every {a,b,c} of every text, in order, last brace fastest; parses
 * each.  Counts first, as kv_spec_count() does.  *list is the caller's to
 * free. */
int kv_spec_expand(const char *const *texts, size_t n_texts,
                   struct kv_spec **list, size_t *n, struct kv_err *e);

KV_PUBLIC_END

#endif
