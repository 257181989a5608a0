#include "kernels/scaled/impl.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

enum { LINE = 64, PLANES = 2 };

/* Rounds the table for path int8, with the unit of the smallest error among
 * those for which the largest number is 96 to 127 steps. */
static void round_table(struct kv_scaled *c)
{
    const size_t fields = kv_scaled_fields(c->bits);
    float max = 0, min = INFINITY;

    for (size_t i = 0; i < KV_TILE_TOKENS; i++)
        c->order[i] = (uint8_t)(i / (4 * fields) * 4 * fields + i % 4 * fields +
                                i / 4 % fields);

    for (size_t i = 0; i < KV_SCALED_TABLE; i++)
        max = fmaxf(max, fabsf(c->table[i]));
    for (float top = 127; max > 0 && top >= 96; top--) {
        const float unit = max / top;
        float error = 0;

        for (size_t i = 0; i < KV_SCALED_TABLE; i++) {
            const float e = c->table[i] - unit * rintf(c->table[i] / unit);

            error += e * e;
        }
        if (error < min) {
            min = error;
            c->unit = unit;
        }
    }
    for (size_t i = 0; max > 0 && i < KV_SCALED_TABLE; i++)
        c->near[i] = (int8_t)rintf(c->table[i] / c->unit);
}

bool kv_scaled_init(struct kv_scaled *c, unsigned bits, const float *table,
                    const struct kv_minifloat *format, enum kv_scale_kind scale,
                    float divisor, size_t head_dim, size_t group)
{
    *c = (struct kv_scaled){.bits = bits,
                            .format = format,
                            .scale = scale,
                            .divisor = divisor,
                            .group = group};
    if (head_dim > KV_SCALED_MAX || (group != head_dim && group % 16))
        return false;
    if (bits > 4)
        return format && (bits == 6 || bits == 8);
    for (size_t i = 0; i < KV_SCALED_TABLE; i++) {
        const uint16_t code = (uint16_t)(i % (1u << bits));

        if (format)
            kv_minifloat_decode(format, &code, 1, 1, &c->table[i]);
        else
            c->table[i] = table[code];
    }
    round_table(c);
    return true;
}

float kv_scaled_rebias(const struct kv_scaled *c)
{
    if (c->bits <= 4)
        return 1;
    return kv_bits_f32((uint32_t)(127 + 16 - (1 << (c->format->e - 1))) << 23);
}

void kv_store_scaled(struct kv_store *s, const struct kv_scaled *c)
{
    size_t bytes;

    s->family = &kv_family_scaled;
    s->params = c;
    bytes = KV_SCALED_PARTS * kv_scaled_part_bytes(s) +
            s->head_dim / c->group * KV_TILE_TOKENS * kv_scaled_scale_bytes(c);
    s->tile_bytes = (bytes + LINE - 1) / LINE * LINE;
}

/* Finds value c of token t in its part: returns the vector and sets *lane. */
static size_t place(const struct kv_store *s, size_t t, size_t c, size_t *lane)
{
    t %= KV_TILE_PART;
    *lane = s->values ? c % 16 : t % 16;
    return s->values ? c / 16 * KV_TILE_PART + t : c * 2 + t / 16;
}

static void put_code(const struct kv_store *s, size_t t, size_t c,
                     unsigned code, uint8_t *part)
{
    const unsigned bits = kv_scaled_of(s)->bits;
    const size_t lane_bytes = kv_scaled_lane_bytes(bits);
    size_t lane, v = place(s, t, c, &lane);

    for (size_t i = 0; i < PLANES && kv_scaled_width(bits, i); i++) {
        const unsigned w = kv_scaled_width(bits, i);
        const size_t per = kv_scaled_per_unit(bits, i), at = v % per * w;
        uint8_t *to =
            part + (v / per * KV_SCALED_LANES + lane) * lane_bytes + at / 8;

        *to |= (uint8_t)((code & ((1u << w) - 1)) << at % 8);
        code >>= w;
        part += kv_scaled_plane_bytes(s, i);
    }
}

void kv_store_put_scaled(const struct kv_store *s, size_t t,
                         const uint16_t *code, const uint8_t *scale,
                         uint8_t *tile)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const size_t bytes = kv_scaled_scale_bytes(c);
    const size_t part = kv_scaled_part_bytes(s);
    uint8_t *scales = tile + KV_SCALED_PARTS * part;

    for (size_t i = 0; i < s->head_dim; i++)
        put_code(s, t, i, code[i], tile + t / KV_TILE_PART * part);
    for (size_t i = 0; bytes && i < s->head_dim / c->group; i++)
        memcpy(scales + (i * KV_TILE_TOKENS + t) * bytes, scale + i * bytes,
               bytes);
}

static unsigned get_code(const struct kv_store *s, size_t t, size_t c,
                         const uint8_t *part)
{
    const unsigned bits = kv_scaled_of(s)->bits;
    const size_t lane_bytes = kv_scaled_lane_bytes(bits);
    size_t lane, v = place(s, t, c, &lane);
    unsigned code = 0, have = 0;

    for (size_t i = 0; i < PLANES && kv_scaled_width(bits, i); i++) {
        const unsigned w = kv_scaled_width(bits, i);
        const size_t per = kv_scaled_per_unit(bits, i), at = v % per * w;
        const uint8_t from =
            part[(v / per * KV_SCALED_LANES + lane) * lane_bytes + at / 8];

        code |= (from >> at % 8 & ((1u << w) - 1)) << have;
        have += w;
        part += kv_scaled_plane_bytes(s, i);
    }
    return code;
}

static float get_scale(enum kv_scale_kind kind, const uint8_t *at)
{
    uint16_t half;
    float x = 1;

    switch (kind) {
    case KV_SCALE_NONE:
        break;
    case KV_SCALE_F16:
        memcpy(&half, at, sizeof(half));
        return kv_f16_to_f32(half);
    case KV_SCALE_E8M0:
        return ldexpf(1, *at - 127);
    case KV_SCALE_E4M3:
        half = *at;
        kv_minifloat_decode(&kv_e4m3, &half, 1, 1, &x);
        break;
    }
    return x;
}

void kv_store_get_scaled(const struct kv_store *s, size_t t,
                         const uint8_t *tile, uint16_t *code, float *scale)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const size_t bytes = kv_scaled_scale_bytes(c);
    const size_t part = kv_scaled_part_bytes(s);
    const uint8_t *scales = tile + KV_SCALED_PARTS * part;

    for (size_t i = 0; i < s->head_dim; i++)
        code[i] = (uint16_t)get_code(s, t, i, tile + t / KV_TILE_PART * part);
    for (size_t i = 0; i < s->head_dim / c->group; i++)
        scale[i] =
            get_scale(c->scale, scales + (i * KV_TILE_TOKENS + t) * bytes);
}

const struct kv_family kv_family_scaled = {
    .name = "scaled", .ops = kv_scaled_ops, .expand = kv_scaled_expand};
