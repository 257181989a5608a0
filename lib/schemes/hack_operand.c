#include "lib/schemes/hack_operand.h"
#include "kernels/bitpack.h"
#include "kernels/simd/prefetch.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* Decodes the n tokens of an open block to [n][n_kv_heads][head_dim]. */
static float *open_values(const struct kv_reader *r, size_t n)
{
    const struct kv_codec *c = r->codec;
    float *x =
        kv_alloc(n * c->shape.n_kv_heads * c->shape.head_dim, sizeof(*x));

    if (n)
        c->history->decode_open(c, r->open, n, x);
    return x;
}

struct kv_hack_operand kv_hack_operand_new(const struct kv_reader *r)
{
    const struct kv_hack *h = r->codec->state;
    const size_t quantized = r->n_blocks * r->codec->block;
    const bool plain_open = h->artifact && r->open;
    const size_t n_open =
        r->open && !h->artifact ? r->n - r->sinks - quantized : 0;
    const size_t max = h->n_lines > 1 ? h->n_lines : KV_HACK_PIECE;
    const size_t stride = KV_HACK_COLUMNS(max), by_part = h->n_parts * stride;
    const size_t ranges = h->artifact ? h->n_ranges : by_part;
    const size_t values = h->n_lines * h->len;
    struct kv_hack_operand o = {.h = h,
                                .r = r,
                                .n_coded = quantized + n_open,
                                .n_blocks = r->n_blocks + (n_open > 0),
                                .tail = r->sinks + quantized,
                                .max = max,
                                .stride = stride};

    o.n_plain = r->n - o.n_coded;
    o.plain = kv_alloc(o.n_plain * r->codec->shape.head_dim, sizeof(*o.plain));
    if (plain_open)
        o.open = open_values(r, o.n_plain - r->sinks);
    o.code = kv_alloc(h->n_parts, kv_hack_arranged_bytes(stride, h->part));
    o.sum = kv_alloc(by_part, sizeof(*o.sum));
    o.min = kv_alloc(ranges, sizeof(*o.min));
    o.scale = kv_alloc(ranges, sizeof(*o.scale));
    o.word = kv_alloc(h->head_bytes - h->code_bytes + 3, stride);
    o.half = kv_alloc(values > max ? values : max, sizeof(*o.half));
    o.byte = kv_alloc(values, sizeof(*o.byte));
    o.wide = kv_alloc(h->n_ranges, sizeof(*o.wide));
    return o;
}

void kv_hack_operand_free(struct kv_hack_operand *o)
{
    free(o->plain);
    free(o->open);
    free(o->code);
    free(o->sum);
    free(o->min);
    free(o->scale);
    free(o->word);
    free(o->half);
    free(o->byte);
    free(o->wide);
}

/* Converts rows of f16, `stride` values apart, to [n_rows][n]. */
static void widen_rows(const uint16_t *from, size_t stride, size_t n_rows,
                       size_t n, float *to)
{
    for (size_t i = 0; i < n_rows; i++)
        kv_dequantize_f16(from + i * stride, n, to + i * n);
}

void kv_hack_operand_head(struct kv_hack_operand *o, size_t head)
{
    const struct kv_reader *r = o->r;
    const size_t d = r->codec->shape.head_dim;
    const size_t row = r->codec->shape.n_kv_heads * d;

    o->head = head;
    if (r->sinks)
        widen_rows(r->sink + head * d, row, r->sinks, d, o->plain);
    for (size_t i = r->sinks; o->open && i < o->n_plain; i++)
        memcpy(o->plain + i * d, o->open + (i - r->sinks) * row + head * d,
               d * sizeof(*o->plain));
    if (!o->open && o->n_plain > r->sinks)
        widen_rows(r->tail + head * d, row, o->n_plain - r->sinks, d,
                   o->plain + r->sinks * d);
}

struct kv_hack_columns kv_hack_operand_columns(const struct kv_hack_operand *o,
                                               size_t part, size_t line,
                                               size_t n, size_t m)
{
    const size_t at = part * o->stride + line;
    const bool folded = o->h->artifact;

    return (struct kv_hack_columns){
        .code = o->code + part * kv_hack_arranged_bytes(o->stride, o->h->part) +
                kv_hack_arranged_bytes(line, m),
        .n_columns = n,
        .n = m,
        .bits = o->h->bits,
        .min = folded ? NULL : o->min + at,
        .scale = folded ? NULL : o->scale + at,
        .sum = o->sum + at,
    };
}

/* Bytes [at, at + n) after the codes of line j, n <= 4 and within a word. */
static uint32_t field(const struct kv_hack_operand *o, size_t n_lines,
                      size_t at, size_t n, size_t j)
{
    return o->word[at / 4 * KV_HACK_COLUMNS(n_lines) + j] >> at % 4 * 8 &
           (uint32_t)((UINT64_C(1) << 8 * n) - 1);
}

static const uint8_t *hack_head_bytes(const struct kv_hack_operand *o,
                                      size_t block)
{
    const struct kv_reader *r = o->r;
    const uint8_t *at = block < r->n_blocks
                            ? r->blocks + block * r->codec->block_bytes
                            : r->open;

    return at + o->head * o->h->head_bytes;
}

/* The number of calls of kv_hack_fetch() while a piece is read and multiplied
 * with `rows` rows; a lower bound for axes=artifact. */
static size_t n_fetches(const struct kv_hack *h, size_t rows)
{
    return 3 * h->n_parts + 1 + rows;
}

void kv_hack_expect(struct kv_hack_operand *o, size_t b, size_t n, size_t rows)
{
    const size_t fetches = n_fetches(o->h, rows);
    const size_t lines = n * (o->h->head_bytes / KV_LINE + 2); /* at most */

    o->next = kv_min(b, o->n_blocks);
    o->next_end = kv_min(b + n, o->n_blocks);
    o->line = o->line_end = 0;
    o->at_once = (lines + fetches - 1) / fetches;
}

void kv_hack_fetch(struct kv_hack_operand *o)
{
    for (size_t i = 0; i < o->at_once; i++, o->line += KV_LINE) {
        if (o->line == o->line_end) {
            if (o->next == o->next_end)
                return;

            const uintptr_t at = (uintptr_t)hack_head_bytes(o, o->next++);
            const uintptr_t last = at + o->h->head_bytes - 1;

            o->line = at - at % KV_LINE;
            o->line_end = last - last % KV_LINE + KV_LINE;
        }
        kv_prefetch_near((const void *)o->line, 0, KV_LINE);
    }
}

static void hack_arrange(struct kv_hack_operand *o, const uint8_t *packed,
                         size_t stride, unsigned bits, size_t n, size_t m)
{
    const struct kv_hack *h = o->h;

    for (size_t part = 0; part < h->n_parts; part++) {
        const struct kv_hack_columns c = kv_hack_operand_columns(
            o, part, 0, n, kv_min(m, kv_hack_part_len(h, part)));
        uint8_t *code = o->code + (c.code - o->code);

        kv_hack_table()->arrange(packed + part * h->part * bits / 8, stride,
                                 bits, n, c.n, code);
        if (!h->sums)
            kv_hack_table()->sums(code, n, c.n, o->sum + part * o->stride);
        kv_hack_fetch(o);
    }
}

void kv_hack_read_tokens(struct kv_hack_operand *o, size_t t, size_t n)
{
    const struct kv_hack *h = o->h;
    const uint8_t *bytes = hack_head_bytes(o, t);
    const size_t stride = o->r->codec->block_bytes;
    const size_t sums = 4 * h->n_parts;

    hack_arrange(o, bytes, stride, h->bits, n, h->len);
    kv_hack_table()->transpose(bytes + h->code_bytes, stride, n,
                               h->head_bytes - h->code_bytes, o->word);
    kv_hack_fetch(o);
    for (size_t part = 0; part < h->n_parts; part++) {
        const size_t at = part * o->stride, min = h->n_parts + part;

        for (size_t j = 0; j < n; j++)
            o->half[j] = (uint16_t)field(o, n, 2 * part, 2, j);
        kv_dequantize_f16(o->half, n, o->scale + at);
        for (size_t j = 0; j < n; j++)
            o->half[j] = (uint16_t)field(o, n, 2 * min, 2, j);
        kv_dequantize_f16(o->half, n, o->min + at);
        for (size_t j = 0; h->sums && j < n; j++)
            o->sum[at + j] = (int32_t)field(o, n, sums + part * h->sum_bytes,
                                            h->sum_bytes, j);
        kv_hack_fetch(o);
    }
}

/* Reads f16 or bf16 [n_ranges] to floats; for axes=artifact, reorders them so
 * that a group's ranges are adjacent. */
static void read_ranges(struct kv_hack_operand *o, const uint8_t *half,
                        float *range)
{
    const struct kv_hack *h = o->h;
    const size_t groups = h->n_groups;
    const bool apart = h->artifact && groups > 1;

    (h->bf16 ? kv_dequantize_bf16 : kv_dequantize_f16)(half, h->n_ranges,
                                                       apart ? o->wide : range);
    for (size_t g = 0; apart && g < groups; g++)
        for (size_t z = 0; z < h->len; z++)
            range[g * h->len + z] = o->wide[z * groups + g];
}

/* Reads a stored sum of 1, 2 or 4 bytes, little-endian. */
static int32_t sum_at(const uint8_t *at, size_t bytes)
{
    uint16_t two;
    int32_t four;

    if (bytes == 1)
        return *at;
    if (bytes == 2) {
        memcpy(&two, at, sizeof(two));
        return two;
    }
    memcpy(&four, at, sizeof(four));
    return four;
}

static void read_sums(struct kv_hack_operand *o, const uint8_t *at)
{
    const struct kv_hack *h = o->h;

    for (size_t part = 0; part < h->n_parts; part++)
        for (size_t j = 0; j < h->n_lines; j++)
            o->sum[part * o->stride + j] = sum_at(
                at + (j * h->n_parts + part) * h->sum_bytes, h->sum_bytes);
}

void kv_hack_read_block(struct kv_hack_operand *o, size_t b, size_t m)
{
    const struct kv_hack *h = o->h;
    const uint8_t *bytes = hack_head_bytes(o, b);
    const uint8_t *ranges = bytes + h->code_bytes;
    const size_t n = h->n_lines * h->len;

    if (h->len * h->bits % 8) {
        kv_unpack(bytes, n, h->bits, o->half);
        for (size_t i = 0; i < n; i++)
            o->byte[i] = (uint8_t)o->half[i];
        hack_arrange(o, o->byte, h->len, 8, h->n_lines, m);
    } else {
        hack_arrange(o, bytes, h->len * h->bits / 8, h->bits, h->n_lines, m);
    }
    read_ranges(o, ranges, o->scale);
    kv_hack_fetch(o);
    read_ranges(o, ranges + 2 * h->n_ranges, o->min);
    kv_hack_fetch(o);
    if (h->sums)
        read_sums(o, ranges + 4 * h->n_ranges);
}
