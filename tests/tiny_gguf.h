/* A GGUF file made from keys and tensors, one after the other. */
#ifndef KV_TINY_GGUF_H
#define KV_TINY_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tiny_bytes {
    uint8_t *data;
    size_t n;
};

/* The parts of a file; {0} is an empty file. */
struct tiny_gguf {
    struct tiny_bytes keys, tensors, data;
    uint64_t n_keys, n_tensors;
    uint32_t version; /* 0: 3 */
};

/* The numbers of the value types in the format. */
enum {
    TINY_U8,
    TINY_I8,
    TINY_U16,
    TINY_I16,
    TINY_U32,
    TINY_I32,
    TINY_F32,
    TINY_BOOL,
    TINY_STRING,
    TINY_ARRAY,
    TINY_U64,
    TINY_I64,
    TINY_F64
};

void tiny_put(struct tiny_bytes *b, const void *data, size_t n);
void tiny_put_text(struct tiny_bytes *b, const char *text);

/* Add a key whose value has this many bytes, is an array of n such values, a
 * string, or an array of strings. */
void tiny_key(struct tiny_gguf *g, const char *key, uint32_t type,
              const void *value, size_t bytes);
void tiny_key_array(struct tiny_gguf *g, const char *key, uint32_t type,
                    uint64_t n, const void *values, size_t bytes);
void tiny_key_text(struct tiny_gguf *g, const char *key, const char *text);
void tiny_key_texts(struct tiny_gguf *g, const char *key, size_t n,
                    const char *const *text);
void tiny_key_u32(struct tiny_gguf *g, const char *key, uint32_t x);
void tiny_key_f32(struct tiny_gguf *g, const char *key, float x);

/* dims: the slowest first, as everywhere but in the file. */
void tiny_tensor(struct tiny_gguf *g, const char *name, uint32_t type,
                 size_t n_dims, const size_t *dims, const void *data,
                 size_t bytes);

/* The whole file, aligned to 32; the caller's to free. */
struct tiny_bytes tiny_gguf_bytes(const struct tiny_gguf *g);
void tiny_gguf_write(const struct tiny_gguf *g, const char *path);
void tiny_gguf_clear(struct tiny_gguf *g);

#endif
