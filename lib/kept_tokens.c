#include "lib/kept_tokens.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <stdlib.h>

void kv_kept_tokens_push(struct kv_kept_tokens *k, size_t at, const float *x)
{
    if (k->n == k->capacity) {
        k->capacity = k->n * 2 + 4;
        k->at = kv_realloc(k->at, k->capacity, sizeof(*k->at));
        k->x = kv_realloc(k->x, k->capacity, k->row * sizeof(*k->x));
    }
    k->at[k->n] = (uint32_t)at;
    for (size_t i = 0; i < k->row; i++)
        k->x[k->n * k->row + i] = kv_f16_clamp(x[i]);
    k->n++;
}

void kv_kept_tokens_clear(struct kv_kept_tokens *k)
{
    free(k->at);
    free(k->x);
}

void kv_kept_tokens_restore(const struct kv_kept_tokens *k, size_t first,
                            size_t n, float *x)
{
    for (size_t i = 0; i < k->n; i++) {
        const size_t t = k->at[i] - first;

        for (size_t j = 0; k->at[i] >= first && t < n && j < k->row; j++)
            x[t * k->row + j] = kv_f16_to_f32(k->x[i * k->row + j]);
    }
}

struct kv_kept_tokens kv_kept_tokens_from(const struct kv_kept_tokens *k,
                                          size_t token)
{
    struct kv_kept_tokens rest = *k;

    while (rest.n && *rest.at < token) {
        rest.n--;
        rest.at++;
        rest.x += k->row;
    }
    return rest;
}
