/* The search of some groups of centers, in the 16-bit integers of
 * nearest_whole.h; included after it.
 *
 * With R the least |X - C| of all that are asked and r that of one group, the
 * nearest center is within R + (e + E) of S x, and those of the group are
 * beyond r - (e + E).  Roots are off by 2^-14 of themselves, the rest of the
 * arithmetic in f32 by less than an eighth. */
_Static_assert(KV_SIDE <= 2 * WIDTH, "tile_among() takes two registers");

/* e + E, and an eighth. */
ALWAYS_INLINE float off(const struct kv_centroids *b, size_t d)
{
    return slack(b, d) / 2 + 0x1p-3f;
}

/* The least T of each group, for KV_SIDE vectors from `at` on. */
ALWAYS_INLINE void find_among(const struct kv_centroids *b, size_t d, size_t at,
                              size_t size, const uint16_t *group, size_t n,
                              struct found *to, int32_t *least)
{
    enum { P = KV_SIDE / WIDTH };
    const size_t pairs = (d + 1) / 2;
    vi x[4][KV_NEAREST_MAX_D / 2], one[4], of[4];
    struct ahead now;

    start(to, pairs, at, P, x, &now);
    for (size_t i = 0; i < n; i++) {
        const size_t end = kv_group_end(b, size, group[i]);

        ask_block(b, group[i] * size, pairs, x, P, &now, of);
        for (size_t block = group[i] * size + 1; block < end; block++) {
            ask_block(b, block, pairs, x, P, &now, one);
            UNROLL
            for (size_t g = 0; g < P; g++)
                of[g] = i_min(one[g], of[g]);
        }
        UNROLL
        for (size_t g = 0; g < P; g++)
            i_store(least + i * KV_SIDE + g * WIDTH, of[g]);
    }
    for (size_t i = n * KV_SIDE; i % (4 * KV_SIDE); i += WIDTH)
        i_store(least + i, i_all(INT32_MAX));
    keep_found(&now, at, P, to);
}

/* How far each of four groups is at least, for one of WIDTH vectors; `more` is
 * added. */
ALWAYS_INLINE void gaps_of_four(const int32_t *least, vi own, vf more,
                                float *gap)
{
    vf far[4];

    UNROLL
    for (size_t g = 0; g < 4; g++) {
        const vf square = v_max(v_of(i_add(i_load(least + g * KV_SIDE), own)),
                                v_all(0x1p-20f));

        far[g] = v_fma(v_root(square), v_all(1 - 0x1p-13f), more);
    }
    v_least_four(far[0], far[1], far[2], far[3], gap);
}

/* S reach of WIDTH vectors from `at` on. */
ALWAYS_INLINE vf reach_of(const struct kv_centroids *b, const float *tile,
                          size_t d, size_t at, const struct found *in, vi own)
{
    const vf square = v_max(v_of(i_add(i_load(in->best + at), own)), v_all(1));
    const vf reach =
        v_fma(v_root(square), v_all(1 + 0x1p-13f), v_all(off(b, d)));

    return v_if(are_within(b, tile + at, d), reach, v_all(NAN));
}

ALWAYS_INLINE uint64_t tile_among(const struct kv_centroids *b,
                                  const float *tile, size_t d, size_t at,
                                  size_t size, const uint16_t *group, size_t n,
                                  uint16_t *code, float *reach, float *gap)
{
    enum { P = KV_SIDE / WIDTH };
    _Alignas(64) int32_t least[(KV_MOST_GROUPS + 3) * KV_SIDE];
    const float unit = 1 / b->scale;
    struct found found;
    vi own[P];
    vf less[P];

    found.sure = 0;
    for (size_t i = at; i < at + KV_SIDE; i += WIDTH)
        round_vectors(b, tile, d, i, &found);
    find_among(b, d, at, size, group, n, &found, least);
    UNROLL
    for (size_t g = 0; g < P; g++) {
        const size_t i = at + g * WIDTH;
        vf of;

        set_limit(b, tile, d, i, &found);
        own[g] = own_square(&found, d, i);
        of = reach_of(b, tile, d, i, &found, own[g]);
        v_store(reach + i, v_mul(of, v_all(unit)));
        less[g] = v_sub(v_all(-off(b, d)), of);
    }
    for (size_t i = 0; i < n; i += 4) {
        float four[P][4];

        UNROLL
        for (size_t g = 0; g < P; g++)
            gaps_of_four(least + i * KV_SIDE + g * WIDTH, own[g], less[g],
                         four[g]);
        for (size_t j = 0; j < 4; j++)
            gap[i + j] = unit * (four[0][j] < four[P - 1][j] ? four[0][j]
                                                             : four[P - 1][j]);
    }
    return decide_whole(b, at, at + KV_SIDE, d, &found, code);
}

/* Functions of their own, for registers of their own. */
#define DEFINE(D)                                                            \
    static __attribute__((noinline)) uint64_t tile_among_##D(                \
        const struct kv_centroids *b, const float *tile, size_t at,          \
        size_t size, const uint16_t *group, size_t n, uint16_t *code,        \
        float *reach, float *gap)                                            \
    {                                                                        \
        return tile_among(b, tile, D, at, size, group, n, code, reach, gap); \
    }
KV_EVERY_D(DEFINE)
#undef DEFINE

uint64_t NAME(kv_tile_among)(const struct kv_centroids *b, const float *tile,
                             size_t first, size_t size, const uint16_t *group,
                             size_t n, uint16_t *code, float *reach, float *gap)
{
    switch (b->d) {
#define CASE(D) \
    case D:     \
        return tile_among_##D(b, tile, first, size, group, n, code, reach, gap);
        KV_EVERY_D(CASE)
#undef CASE
    }
    return 0;
}
