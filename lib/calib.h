/* Calibration: named tables that schemes trained, and their file (calib.h5).
 *
 * A file has one set per calibrated spec.  A set is found by the spec's
 * calibration key (kv_spec_calib_key), a table in it by name, side, layer and
 * KV head. */
#ifndef KV_CALIB_H
#define KV_CALIB_H

#include "lib/base/err.h"
#include "lib/codec.h"
#include "lib/reading.h"

KV_PUBLIC_BEGIN

struct kv_dump_info;
struct kv_progress;

enum { KV_ALL = -1 }; /* layer or head of a table that is shared */

/* The stored values of a table: f32 (the default), fp16, or whole numbers from
 * 0 to 255. */
enum kv_table_type { KV_TABLE_F32, KV_TABLE_F16, KV_TABLE_U8 };

struct kv_table {
    char name[32];   /* "codebook", "smooth", ... */
    int side;        /* KV_K, KV_V or KV_ALL */
    int layer, head; /* or KV_ALL */
    size_t n_dims, dims[4];
    enum kv_table_type type; /* how data are stored and counted */
    float *data;             /* row-major, product of dims */
    double error; /* training error (mean squared, per value) or NaN */
};

struct kv_calib_set {
    char key[KV_SPEC_CHARS];  /* the calibration key */
    char spec[KV_SPEC_CHARS]; /* the requested spec, canonical */
    uint64_t seed;
    struct kv_table *table;
    size_t n_tables;
    /* [layers of the dump][its tokens]: whether training takes the token
     * (lib/massive_tokens.h); NULL: it takes all; not stored. */
    const bool *counts;
    /* The set whose smoothing factors training takes (lib/schemes/codebook.h);
     * NULL: training computes them; not stored. */
    const struct kv_calib_set *factors;
    char warning[256];            /* a message for the user; not stored */
    struct kv_progress *progress; /* of the training, or NULL; not stored */
};

/* Hashes of sampled 32-token shingles, which show whether two texts overlap.
 * hash is sorted and has no duplicates. */
struct kv_sketch {
    uint64_t *hash;
    size_t n;
};

struct kv_calib {
    char *path; /* path of the file it was read from, or NULL */
    struct kv_shape shape;
    char model[128], model_hash[32], text[128], text_hash[32];
    size_t n_windows, ctx;
    char hash[32]; /* hash of the file's tables; names the calibration in
                    * rows */
    struct kv_sketch sketch;
    /* [n_layers][KV_SIDES]: the range of norms of tokens that are not massive;
     * the norms of keys are without their bias if has_k_bias.  NULL: an older
     * file, whose training took massive tokens too. */
    struct kv_norm_range *norms;
    bool has_k_bias;
    struct kv_calib_set *set;
    size_t n_sets;
};

/* Adds an f32 table of zeros and returns it.  The pointer is valid until the
 * next call on the same set, table->data as long as the set. */
struct kv_table *kv_calib_add(struct kv_calib_set *set, const char *name,
                              int side, int layer, int head, size_t n_dims,
                              const size_t *dims);

/* Moves all tables of a set to another. */
void kv_calib_move(struct kv_calib_set *from, struct kv_calib_set *to);

/* NULL if missing.  A table whose layer (or head, or side) is KV_ALL matches
 * every layer (head, side). */
const struct kv_calib_set *kv_calib_find(const struct kv_calib *c,
                                         const struct kv_spec *spec);
const struct kv_table *kv_calib_table(const struct kv_calib_set *set,
                                      const char *name, enum kv_side side,
                                      size_t layer, size_t head);

/* A spec that leaves out the word iters (rounds of training) and has no set of
 * its own takes the set whose key differs only in iters, and writes that set's
 * iters into the spec's text.  Fails when several sets match.  c: may be
 * NULL. */
int kv_calib_adopt(const struct kv_calib *c, struct kv_spec *specs, size_t n,
                   struct kv_err *e);

/* Lookups for a codec's open().  kv_calib_want_set() finds the spec's set.  It
 * fails when calib is NULL or lacks the set, and names the sets there.
 * kv_calib_want() finds a table of the codec's side and layer.  It returns
 * NULL, and a sentence in e, when the table is missing or its dimensions are
 * not dims [n_dims]. */
int kv_calib_want_set(const struct kv_calib_set **set,
                      const struct kv_calib *calib, const struct kv_spec *spec,
                      struct kv_err *e);
const struct kv_table *kv_calib_want(const struct kv_codec *c,
                                     const struct kv_calib_set *set,
                                     const char *name, size_t head,
                                     size_t n_dims, const size_t *dims,
                                     struct kv_err *e);

size_t kv_table_values(const struct kv_table *t);
/* The bytes of the tables in their stored types (f32, fp16 or u8): a row's
 * shared_bytes. */
size_t kv_table_bytes(const struct kv_table *t);
size_t kv_calib_set_bytes(const struct kv_calib_set *set);

/* Whether training takes each of the dump's tokens in a layer; NULL: it takes
 * all. */
const bool *kv_calib_counts(const struct kv_calib_set *set,
                            const struct kv_dump_info *info, size_t layer);

/* File I/O.  Loading checks the tables against the file's hash, and the rest
 * against its seal, a second hash that format 1 lacks.  Saving sets c->hash,
 * writes under a temporary name and renames. */
int kv_calib_load(struct kv_calib **c, const char *path, struct kv_err *e);
int kv_calib_save(struct kv_calib *c, const char *path, struct kv_err *e);
void kv_calib_free(struct kv_calib *c);
void kv_calib_set_clear(struct kv_calib_set *set);

/* Fails when c was made for another model (hash, then shape). */
int kv_calib_check_model(const struct kv_calib *c, const char *path,
                         const char *model_hash, const struct kv_shape *shape,
                         struct kv_err *e);

/* Adds the sampled shingles of one run of tokens.  A shingle is sampled
 * when its hash falls below 1/16 of the range, so that any common run of
 * text gives common hashes wherever it starts. */
bool kv_sketch_sampled(uint64_t hash);
void kv_sketch_add(struct kv_sketch *s, const int32_t *tokens, size_t n);
/* Adds n tokens in windows of ctx as one text.  With KV_BOS_WINDOWS the BOS
 * that begins each window is left out, since it would split the text. */
void kv_sketch_add_windows(struct kv_sketch *s, const int32_t *tokens, size_t n,
                           size_t ctx, enum kv_bos bos);
/* Call it once, after the last add. */
void kv_sketch_sort(struct kv_sketch *s);
/* s becomes the sketch of both texts.  Both sorted. */
void kv_sketch_join(struct kv_sketch *s, const struct kv_sketch *other);
/* The sketch of all of a dump's text; sorted. */
int kv_sketch_dump(struct kv_sketch *s, struct kv_dump *dump, struct kv_err *e);
/* The share of b's hashes that a also has; NaN if b has none because its text
 * is too short.  Both are sorted. */
double kv_sketch_overlap(const struct kv_sketch *a, const struct kv_sketch *b);
void kv_sketch_clear(struct kv_sketch *s);

KV_PUBLIC_END

#endif
