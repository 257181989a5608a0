#include "lib/seq/bits.h"
#include "lib/base/alloc.h"
#include "lib/mixed.h"
#include "lib/scheme.h"

#include <math.h>
#include <stdlib.h>

void kv_bits_add(struct kv_bits *into, const struct kv_bits *b)
{
    into->bytes += b->bytes;
    into->values += b->values;
    into->kept_values += b->kept_values;
    into->quantized_bytes += b->quantized_bytes;
    into->quantized_values += b->quantized_values;
    into->clipped += b->clipped;
    into->declared |= b->declared;
    for (int side = 0; side < KV_SIDES; side++)
        into->coded[side] += b->coded[side];
}

static struct kv_bits bits_of(const struct kv_codec *c, size_t n, size_t bytes,
                              size_t quantized_bytes, size_t quantized_tokens)
{
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;
    const double values = (double)(kv_shape_seen(&c->shape, n) * row);

    return (struct kv_bits){.bytes = (double)bytes,
                            .values = values,
                            .kept_values = values,
                            .declared = c->declared_bytes,
                            .quantized_bytes = (double)quantized_bytes,
                            .quantized_values =
                                (double)(quantized_tokens * row)};
}

void kv_bits_count(struct kv_bits *into, const struct kv_cache *c,
                   enum kv_side side)
{
    const struct kv_codec *codec = kv_cache_reader(c, side).codec;
    const size_t row = kv_codec_row(codec);

    into->declared |= codec->declared_bytes != 0;
    into->coded[side] += (double)(kv_cache_coded(c, side) * row);
    into->clipped += (double)kv_cache_clipped(c, side);
}

struct kv_bits kv_bits_of_cache(const struct kv_cache *c, enum kv_side side)
{
    size_t codes, tokens;
    const size_t bytes = kv_cache_bytes(c, side, &codes, &tokens);
    const struct kv_codec *codec = kv_cache_reader(c, side).codec;
    const size_t n = codec->side == side ? kv_cache_tokens(c) : 0; /* with a
                                                                    * latent V
                                                                    * has
                                                                    * none */
    struct kv_bits b = bits_of(codec, n, bytes, codes, tokens);

    kv_bits_count(&b, c, side);
    return b;
}

struct kv_bits kv_bits_of_tokens(const struct kv_codec *c, size_t n)
{
    size_t codes, tokens;
    const size_t bytes = kv_held_bytes(c, n, &codes, &tokens);
    struct kv_bits b = bits_of(c, n, bytes, codes, tokens);

    b.coded[c->side] = (double)(kv_quantized(c, n) * kv_codec_row(c));
    return b;
}

static bool serves(int scope, int wanted)
{
    return scope == KV_ALL || wanted == KV_ALL || scope == wanted;
}

/* The part of a spec that is counted: a layer and a side, or KV_ALL of each. */
struct asked {
    const struct kv_spec *spec;
    const struct kv_shape *shape;
    int layer, side;
};

/* Divides a table's bytes equally among the layers whose codecs read it, and
 * returns the share of the given layers and sides.  read [n_layers][KV_SIDES]:
 * the set that each layer and side reads. */
static double shared_of(const struct asked *a,
                        const struct kv_calib_set *const *read,
                        const struct kv_calib_set *set,
                        const struct kv_table *t)
{
    const size_t first = t->layer == KV_ALL ? 0 : (size_t)t->layer;
    const size_t end = t->layer == KV_ALL ? a->shape->n_layers : first + 1;
    size_t readers = 0, wanted = 0;

    for (size_t i = first; i < end; i++) {
        bool reads = false, is_wanted = false;

        for (int side = 0; side < kv_shape_sides(a->shape); side++) {
            if (!serves(t->side, side) || read[i * KV_SIDES + side] != set)
                continue;
            reads = true;
            is_wanted |= serves(a->layer, (int)i) && serves(a->side, side);
        }
        readers += reads;
        wanted += is_wanted;
    }
    return wanted ? (double)(kv_table_bytes(t) * wanted) / (double)readers : 0;
}

/* The shared bytes.  Counts each set once, even if several members of the spec
 * read it. */
static double shared(const struct asked *a, const struct kv_calib *calib)
{
    const size_t n_places = a->shape->n_layers * KV_SIDES;
    const struct kv_calib_set **read = kv_alloc(n_places, sizeof(*read));
    double bytes = 0;

    for (size_t i = 0; i < n_places; i++) {
        const struct kv_spec *s =
            kv_spec_at(a->spec, i / KV_SIDES, (enum kv_side)(i % KV_SIDES));

        if (s->scheme->training)
            read[i] = kv_calib_find(calib, s);
    }
    for (size_t i = 0; i < calib->n_sets; i++)
        for (size_t j = 0; j < calib->set[i].n_tables; j++)
            bytes +=
                shared_of(a, read, &calib->set[i], &calib->set[i].table[j]);
    free(read);
    return bytes;
}

/* Returns the mean over the given layers and sides; layers differ only in mixed
 * specs. */
static double nominal(const struct asked *a)
{
    const bool differ = a->layer == KV_ALL && a->spec->mixed;
    const size_t first = a->layer == KV_ALL ? 0 : (size_t)a->layer;
    const size_t end = differ ? a->shape->n_layers : first + 1;
    double sum = 0, n = 0;

    for (size_t i = first; i < end; i++)
        for (int side = 0; side < kv_shape_sides(a->shape); side++) {
            const struct kv_spec *s =
                kv_spec_at(a->spec, i, (enum kv_side)side);

            if (!serves(a->side, side))
                continue;
            if (!s->scheme->nominal)
                return NAN;
            sum += s->scheme->nominal(s, (enum kv_side)side, a->shape);
            n++;
        }
    return sum / n;
}

void kv_bits_of_spec(struct kv_bits *b, const struct kv_spec *spec,
                     const struct kv_shape *shape, const struct kv_calib *calib,
                     int layer, int side)
{
    const struct asked a = {spec, shape, layer, side};

    b->nominal = nominal(&a);
    b->shared_bytes = calib ? shared(&a, calib) : 0;
}
