#include "kernels/range_coder.h"

#include <assert.h>

/* A symbol leaves 2^-16 of the range or more, that is 2^8 of MIN, so at most
 * two bytes are written. */
enum { MIN = 1 << 24, SHIFT = 16 };

_Static_assert(1 << SHIFT == KV_RANGE_TOTAL, "a range is cut by shifting");

void kv_range_table(const uint32_t *count, size_t n_symbols, uint32_t *cum)
{
    const uint64_t spread = KV_RANGE_TOTAL - n_symbols;
    uint64_t total = 0, before = 0;
    bool none;

    assert(n_symbols >= 1 && n_symbols <= KV_RANGE_TOTAL);
    for (size_t i = 0; i < n_symbols; i++)
        total += count[i];
    none = !total;
    total = none ? n_symbols : total;
    for (size_t i = 0; i <= n_symbols; i++) {
        cum[i] = (uint32_t)((2 * before * spread + total) / (2 * total) + i);
        if (i < n_symbols)
            before += none ? 1 : count[i];
    }
}

/* The offset in the range at which a table's entry begins. */
static uint32_t place(uint32_t range, uint32_t cum)
{
    return (uint32_t)((uint64_t)range * cum >> SHIFT);
}

/* Adds one to the bytes already written.  The message is a fraction below 1, so
 * some byte takes the carry. */
static void carry(struct kv_range_encoder *e)
{
    size_t i = e->n;

    while (!++e->out[--i])
        ;
}

void kv_range_encode_start(struct kv_range_encoder *e, uint8_t *out)
{
    *e = (struct kv_range_encoder){.out = out, .range = UINT32_MAX};
}

void kv_range_encode(struct kv_range_encoder *e, const uint32_t *cum,
                     size_t n_symbols, size_t symbol)
{
    assert(symbol < n_symbols);

    const uint32_t was = e->low, start = place(e->range, cum[symbol]);

    e->low += start;
    e->range = place(e->range, cum[symbol + 1]) - start;
    if (e->low < was)
        carry(e);
    while (e->range < MIN) {
        e->out[e->n++] = (uint8_t)(e->low >> 24);
        e->low <<= 8;
        e->range <<= 8;
    }
}

/* Picks the multiple of 2^24 at or above low; it lies in the interval, since
 * range >= 2^24. */
size_t kv_range_encode_end(struct kv_range_encoder *e)
{
    const uint32_t was = e->low;

    e->low += MIN - 1;
    if (e->low < was)
        carry(e);
    e->out[e->n++] = (uint8_t)(e->low >> 24);
    return e->n;
}

static uint32_t next_byte(struct kv_range_decoder *d)
{
    const size_t at = d->at++;

    return at < d->n ? d->in[at] : 0;
}

void kv_range_decode_start(struct kv_range_decoder *d, const uint8_t *in,
                           size_t n)
{
    *d = (struct kv_range_decoder){.in = in, .n = n, .range = UINT32_MAX};
    for (size_t i = 0; i < sizeof(d->code); i++)
        d->code = d->code << 8 | next_byte(d);
}

size_t kv_range_decode(struct kv_range_decoder *d, const uint32_t *cum,
                       size_t n_symbols)
{
    uint32_t start = 0, end = d->range; /* the places of low and high */
    size_t low = 0, high = n_symbols;

    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        const uint32_t at = place(d->range, cum[middle]);

        if (at <= d->code) {
            low = middle;
            start = at;
        } else {
            high = middle;
            end = at;
        }
    }
    d->code -= start;
    d->range = end - start;
    while (d->range < MIN) {
        d->code = d->code << 8 | next_byte(d);
        d->range <<= 8;
    }
    return low;
}

/* The decoder begins with four bytes and moves by one for each byte of the
 * encoder except the last. */
bool kv_range_decode_ended(const struct kv_range_decoder *d)
{
    return d->at == d->n + sizeof(d->code) - 1;
}
