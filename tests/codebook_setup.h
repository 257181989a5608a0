/* Shared by the tests of family "codebook": random tables and codes in tiles.
 */
#ifndef KV_CODEBOOK_SETUP_H
#define KV_CODEBOOK_SETUP_H

#include "kernels/codebook/impl.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>

/* MANY tiles are enough to pay for tables, FEW are not; SOME are more tiles
 * than the tables of path int8 serve together */
enum { T = KV_TILE_TOKENS, HEADS = 2, MANY = 9, FEW = 2, SOME = 6 };

struct setup {
    size_t head_dim, d, n_sub, k, head_books, sub_books, tiles;
    float *centers;
    uint16_t *code; /* [HEADS][tiles * T][n_sub] */
    struct kv_codebook *book;
    struct kv_store store;
};

static inline struct setup setup(size_t head_dim, size_t d, unsigned bits,
                                 int own, int per_head, int values,
                                 size_t tiles)
{
    struct setup s = {.head_dim = head_dim,
                      .d = d,
                      .n_sub = head_dim / d,
                      .k = (size_t)1 << bits,
                      .head_books = per_head ? HEADS : 1,
                      .tiles = tiles};
    size_t n;

    s.sub_books = own ? s.n_sub : 1;
    n = s.head_books * s.sub_books * s.k * d;
    s.centers = kv_alloc(n, sizeof(*s.centers));
    for (size_t i = 0; i < n; i++)
        s.centers[i] = (float)kv_random_normal(bits, i);
    s.book = kv_codebook_new(s.centers, s.head_books, s.sub_books, s.n_sub, d,
                             bits, values, NULL);
    s.store = (struct kv_store){
        .values = values, .n_heads = HEADS, .head_dim = head_dim};
    kv_store_codebook(&s.store, s.book);
    kv_store_resize(&s.store, tiles * T);
    s.code = kv_alloc(HEADS * tiles * T, s.n_sub * sizeof(*s.code));
    for (size_t i = 0; i < HEADS * tiles * T * s.n_sub; i++)
        s.code[i] = (uint16_t)(kv_random(7, i) % s.k);
    for (size_t h = 0; h < HEADS; h++)
        for (size_t t = 0; t < tiles * T; t++)
            kv_store_put_indices(&s.store, t % T,
                                 s.code + (h * tiles * T + t) * s.n_sub,
                                 kv_store_tile(&s.store, h, t / T));
    return s;
}

static inline void clear(struct setup *s)
{
    kv_store_free(&s->store);
    kv_codebook_free(s->book);
    free(s->centers);
    free(s->code);
}

#endif
