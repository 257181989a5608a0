/* Mixed precision: a spec for each place, the keys or the values of one layer
 * (KVTuner, arXiv 2502.04420), read from a layer file:
 *
 *   # layers  sides  spec
 *   0-3       K      kivi:b4g32
 *   0-3       V      kivi:b2g32
 *   4         KV     vecinfer:d4b8    # a comment, up to the line's end
 *
 * A line has a layer or a range of layers, counted from 0; K, V or KV; and a
 * spec without sweeps.  Lines come in any order.  Every layer and side is named
 * exactly once.  No line stands for "all others", so a missing layer, or a file
 * for another model, is an error.
 *
 * The spec is mixed,file=PATH, with file= as its last word.  Letters before it
 * hold for every place, as in mixed:s4r0,file=PATH; without letters each place
 * has its own s and r.
 *
 * The canonical text is mixed,file=NAME@HASH.  NAME is the last part of the
 * path, HASH 16 digits of a hash of the file's specs (not of comments, order or
 * spacing).  The text parses where NAME exists; parsing fails if the file's
 * specs have changed.
 *
 * K-ONE/V-ANOTHER is a mixed spec too, of two schemes and any number of layers;
 * its canonical text has both written out.
 *
 * A mixed spec opens the codecs of its members.  The cache, the loops and the
 * measurements see only ordinary codecs. */
#ifndef KV_MIXED_H
#define KV_MIXED_H

#include "lib/base/err.h"
#include "lib/base/hash.h"
#include "lib/spec.h"

struct kv_place {
    size_t member; /* index of its spec */
    size_t line;   /* of the file, counted from 1 */
};

/* Specs are copied by value, so the memory they point to is never changed and
 * never freed: equal mixed specs are kept once, until the program ends. */
struct kv_mixed {
    char *path;               /* as given, for error messages */
    char name[128];           /* its last part */
    char hash[KV_HASH_CHARS]; /* hash of the specs in the file */
    size_t n_layers;          /* 0: any number, from K-.../V-... without a file:
                               * member [KV_SIDES] */
    size_t n_members;
    struct kv_spec *member;             /* [n_members] */
    struct kv_place (*place)[KV_SIDES]; /* [n_layers] */
};

/* The scheme of a mixed spec; it is in no list of schemes and has no codec. */
extern const struct kv_scheme kv_scheme_mixed;

/* The file name in the text of a spec (points into text); NULL if the text
 * names no file. */
const char *kv_mixed_file(const char *text);

/* The size limit of a layer file: room for every layer and a comment on it. */
enum { KV_MIXED_MAX_BYTES = 1 << 20 };

/* Reads a layer file, a regular file, or NAME@HASH.  Fails with file, line,
 * layer and side on a place named twice or not at all, and on two different
 * specs for a layer that requires one (kv_spec_together). */
int kv_mixed_read(const struct kv_mixed **m, const char *path,
                  struct kv_err *e);

/* Fits each member to the shape; first each member takes s and r from the mixed
 * spec if it sets them.  Fails when the file is for another number of
 * layers. */
int kv_mixed_fit(const struct kv_mixed **m, const struct kv_spec *mixed,
                 const struct kv_shape *shape, struct kv_err *e);

/* A mixed spec with one scheme for the keys of every layer and another for the
 * values.  Fails if one of the schemes cannot code one side alone. */
int kv_mixed_sides(struct kv_spec *s, const struct kv_spec side[KV_SIDES],
                   struct kv_err *e);

/* A mixed spec made from fitted specs place [n_layers][KV_SIDES].  name: used
 * instead of a file's name, at most 100 characters. */
void kv_mixed_make(struct kv_spec *s, const char *name,
                   const struct kv_spec *place, size_t n_layers);

/* Work for any spec; an ordinary spec is its own only member.  kv_spec_at():
 * the member for a layer and side.  kv_spec_members(): the number of different
 * members.  kv_spec_member(): the i-th of them.  kv_spec_calibrated(): whether
 * a member needs a calibration.  kv_spec_needs_queries(): whether a member has
 * a probe(). */
const struct kv_spec *kv_spec_at(const struct kv_spec *s, size_t layer,
                                 enum kv_side side);
size_t kv_spec_members(const struct kv_spec *s);
const struct kv_spec *kv_spec_member(const struct kv_spec *s, size_t i);
bool kv_spec_calibrated(const struct kv_spec *s);
bool kv_spec_needs_queries(const struct kv_spec *s);

/* Whether the codecs of a layer's keys and values must be of one spec, because
 * attention is defined on the codes of both (attend()) or queries decide how
 * both are stored (probe()). */
bool kv_spec_together(const struct kv_spec *s);

/* The functions that replace encode() and decode() at a layer, if the spec's
 * codecs are layered (scheme.h); else NULL.  No member of a mixed spec is
 * layered. */
const struct kv_layered *kv_spec_layered(const struct kv_spec *s, size_t layer);
/* kv_spec_reads_below(): whether layers are decoded from layers below.
 * kv_spec_read_above(): whether the layer above is decoded from this layer.
 */
bool kv_spec_reads_below(const struct kv_spec *s);
bool kv_spec_read_above(const struct kv_spec *s, size_t layer);

/* Whether all layers of a token are coded together (scheme.h); false for a
 * mixed spec. */
bool kv_spec_spans(const struct kv_spec *s);

/* Fails, naming the spec, if a layer cannot be decoded by itself or attended to
 * in place.  what: the subject of the error message. */
int kv_spec_alone(const struct kv_spec *specs, size_t n, const char *what,
                  struct kv_err *e);
int kv_spec_in_place(const struct kv_spec *specs, size_t n, const char *what,
                     struct kv_err *e);

#endif
