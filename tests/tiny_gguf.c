#include "tests/tiny_gguf.h"
#include "lib/base/alloc.h"
#include "tests/test.h"

void tiny_put(struct tiny_bytes *b, const void *data, size_t n)
{
    b->data = kv_realloc(b->data, b->n + n + 1, 1);
    if (n)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_u32(struct tiny_bytes *b, uint32_t x)
{
    tiny_put(b, &x, sizeof(x));
}

static void put_u64(struct tiny_bytes *b, uint64_t x)
{
    tiny_put(b, &x, sizeof(x));
}

void tiny_put_text(struct tiny_bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    tiny_put(b, text, strlen(text));
}

static void align(struct tiny_bytes *b)
{
    while (b->n % 32)
        tiny_put(b, "", 1);
}

void tiny_key(struct tiny_gguf *g, const char *key, uint32_t type,
              const void *value, size_t bytes)
{
    tiny_put_text(&g->keys, key);
    put_u32(&g->keys, type);
    tiny_put(&g->keys, value, bytes);
    g->n_keys++;
}

void tiny_key_array(struct tiny_gguf *g, const char *key, uint32_t type,
                    uint64_t n, const void *values, size_t bytes)
{
    tiny_key(g, key, TINY_ARRAY, NULL, 0);
    put_u32(&g->keys, type);
    put_u64(&g->keys, n);
    tiny_put(&g->keys, values, bytes);
}

void tiny_key_text(struct tiny_gguf *g, const char *key, const char *text)
{
    tiny_key(g, key, TINY_STRING, NULL, 0);
    tiny_put_text(&g->keys, text);
}

void tiny_key_texts(struct tiny_gguf *g, const char *key, size_t n,
                    const char *const *text)
{
    tiny_key_array(g, key, TINY_STRING, n, NULL, 0);
    for (size_t i = 0; i < n; i++)
        tiny_put_text(&g->keys, text[i]);
}

void tiny_key_u32(struct tiny_gguf *g, const char *key, uint32_t x)
{
    tiny_key(g, key, TINY_U32, &x, sizeof(x));
}

void tiny_key_f32(struct tiny_gguf *g, const char *key, float x)
{
    tiny_key(g, key, TINY_F32, &x, sizeof(x));
}

void tiny_tensor(struct tiny_gguf *g, const char *name, uint32_t type,
                 size_t n_dims, const size_t *dims, const void *data,
                 size_t bytes)
{
    tiny_put_text(&g->tensors, name);
    put_u32(&g->tensors, (uint32_t)n_dims);
    for (size_t i = n_dims; i-- > 0;)
        put_u64(&g->tensors, dims[i]);
    put_u32(&g->tensors, type);
    align(&g->data);
    put_u64(&g->tensors, g->data.n);
    tiny_put(&g->data, data, bytes);
    g->n_tensors++;
}

struct tiny_bytes tiny_gguf_bytes(const struct tiny_gguf *g)
{
    struct tiny_bytes b = {0};

    tiny_put(&b, "GGUF", 4);
    put_u32(&b, g->version ? g->version : 3);
    put_u64(&b, g->n_tensors);
    put_u64(&b, g->n_keys);
    tiny_put(&b, g->keys.data, g->keys.n);
    tiny_put(&b, g->tensors.data, g->tensors.n);
    align(&b);
    tiny_put(&b, g->data.data, g->data.n);
    return b;
}

void tiny_gguf_write(const struct tiny_gguf *g, const char *path)
{
    struct tiny_bytes b = tiny_gguf_bytes(g);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.n, f), b.n);
    assert_int_equal(fclose(f), 0);
    free(b.data);
}

void tiny_gguf_clear(struct tiny_gguf *g)
{
    free(g->keys.data);
    free(g->tensors.data);
    free(g->data.data);
    *g = (struct tiny_gguf){0};
}
