/* A GGUF file, version 2 or 3, memory-mapped.  All numbers are little endian.
 *
 *   | "GGUF" | version: u32 | tensors: u64 | keys: u64 |
 *   | each key: name, type: u32, value |
 *   | each tensor: name, dims: u32, each dim: u64, type: u32, offset: u64 |
 *   | to a multiple of general.alignment (32) | data |
 *
 * A string is its length, u64, and its bytes without a final zero.  An array is
 * the type of its elements, u32, the number of elements, u64, and the elements.
 * The fastest dimension comes first.  Offsets count from the start of the data.
 *
 * The reader trusts nothing.  It checks every count against the file's size.
 * Tensors must lie inside the file, at multiples of the alignment, with the
 * length that their dimensions give, and together fill the data. */
#ifndef KV_MODEL_GGUF_H
#define KV_MODEL_GGUF_H

#include "lib/base/file.h"
#include "lib/model/weight.h"

#include <stdbool.h>

enum kv_gguf_kind {
    KV_GGUF_INT,
    KV_GGUF_REAL,
    KV_GGUF_BOOL,
    KV_GGUF_TEXT,
    KV_GGUF_COUNT /* only as a requested kind: an integer from 0 to
                   * UINT32_MAX */
};

/* The value of a key. */
struct kv_gguf_value {
    const char *key;
    enum kv_gguf_kind kind; /* the type; for an array, the type of its
                             * elements */
    bool array;
    size_t n; /* number of elements; 1 if the value is no array */
    unsigned type;
    const uint8_t *data; /* the elements, consecutive, at any address */
    size_t *at;          /* strings: element i is at data + at[i]; else NULL */
};

struct kv_gguf {
    char *path;
    struct kv_map map;
    size_t header_bytes;         /* bytes of everything before the data */
    struct kv_gguf_value *value; /* sorted by key */
    size_t n_values;
    struct kv_weight *tensor; /* sorted by name; dims with the slowest first */
    size_t n_tensors;
};

/* Fails with the file, the key or tensor, and the fault; also on another
 * version, big endian, an array of arrays, and a key or a tensor that occurs
 * twice.  A tensor whose type is known by name but not implemented gets
 * KV_STORED_OTHER. */
int kv_gguf_open(struct kv_gguf *g, const char *path, struct kv_err *e);
void kv_gguf_clear(struct kv_gguf *g);

/* Whether the file exists and begins like a GGUF file. */
bool kv_gguf_is(const char *path);

/* The value of a key; NULL when there is none of that name. */
const struct kv_gguf_value *kv_gguf_find(const struct kv_gguf *g,
                                         const char *key);

/* *v: the value of a key, NULL when there is none.  Fails when the value has
 * another kind, is an array though array is false, or the reverse.  A
 * KV_GGUF_INT value may be read as KV_GGUF_REAL.  Files have counts in signed
 * types as well; KV_GGUF_COUNT checks the range. */
int kv_gguf_get(const struct kv_gguf *g, const char *key,
                enum kv_gguf_kind kind, bool array,
                const struct kv_gguf_value **v, struct kv_err *e);

/* Element i of a value of the function's kind; i is 0 when the value is no
 * array.  An integer above INT64_MAX gives INT64_MAX. */
int64_t kv_gguf_int(const struct kv_gguf_value *v, size_t i);
double kv_gguf_real(const struct kv_gguf_value *v, size_t i);
bool kv_gguf_bool(const struct kv_gguf_value *v, size_t i);
/* The element's bytes, which may be any bytes, without a final zero. */
const char *kv_gguf_text(const struct kv_gguf_value *v, size_t i,
                         size_t *bytes);

#endif
