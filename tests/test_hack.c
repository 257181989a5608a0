/* The hack scheme: its specs, the bytes of a block, the open block. */
#include "lib/scheme.h"
#include "tests/hack_setup.h"

static void specs(void **state)
{
    static const struct {
        const char *text;
        size_t d;
        const char *says; /* the canonical text, or words of the failure */
        bool ok;
    } cases[] = {
        {"hack", 128,
         "hack:b2p64r0s0,axes=paper,round=stochastic,se=yes,rqe=yes,"
         "prefill=codes,qb=8,meta=f16",
         true},
        {"hack:b4p128,no-se", 64,
         "hack:K-b4p64r0s0/V-b4p128r0s0,axes=paper,round=stochastic,se=no,"
         "rqe=yes,prefill=codes,qb=8,meta=f16",
         true},
        {"hack:b2p64s4,artifact", 32,
         "hack:b2p64r0s4,axes=artifact,round=nearest,se=yes,rqe=yes,"
         "prefill=full,qb=8,meta=f16",
         true},
        {"hack:b2p64s4,artifact,no-rqe,stochastic,codes", 32,
         "hack:b2p64r0s4,axes=artifact,round=stochastic,se=yes,rqe=no,"
         "prefill=codes,qb=8,meta=f16",
         true},
        {"hack,full,nearest", 128,
         "hack:b2p64r0s0,axes=paper,round=nearest,se=yes,rqe=yes,"
         "prefill=full,qb=8,meta=f16",
         true},
        {"hack,K-axes=artifact", 128,
         "hack:b2p64r0s0,K-axes=artifact,V-axes=paper,K-round=nearest,"
         "V-round=stochastic,se=yes,rqe=yes,K-prefill=full,V-prefill=codes,"
         "qb=8,meta=f16",
         true},
        {"hack:K-b2p8/V-b2p64", 8, "hack:K-b2p8r0s0/V-b2p64r0s0", true},
        {"hack:p40", 128, "K-p40: a partition is a multiple of 16", false},
        {"hack:K-p64/V-p8", 8, "V-p8: a partition is a multiple of 16", false},
        {"hack:p16r8,no-rqe", 128, "rqe=no wants r0", false},
        {"hack:p16r8,artifact,no-rqe", 128, "the newest keys are codes", false},
        {"hack,meta=bf16", 64, "meta=bf16 wants axes=artifact", false},
        {"hack:p64,artifact", 72,
         "K-p64: no multiple of 16 up to 64 divides head_dim 72", false},
        {"hack:p16,V-axes=artifact", 20, "V-p16: no multiple of 16", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_shape shape = {
            .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = cases[i].d};
        struct kv_err e = {""};
        struct kv_spec s;

        assert_int_equal(kv_spec_parse(&s, cases[i].text, &e), 0);
        assert_int_equal(kv_spec_fit(&s, &shape, &e), cases[i].ok ? 0 : -1);
        if (!cases[i].ok)
            assert_says(e, cases[i].says);
        else if (strncmp(s.text, cases[i].says, strlen(cases[i].says)))
            fail_msg("%s: %s", cases[i].text, s.text);
    }
}

/* Bits a value of a quantized token, of keys and of values. */
static void bits(void **state)
{
    static const struct {
        const char *text;
        size_t d;
        double k, v;
    } cases[] = {
        {"hack:b2p64", 128, 2.625, 2.625}, /* methods.md, section 5.3 */
        {"hack:b2p64,no-se", 128, 2.5, 2.5},
        {"hack:b2p128", 128, 2.375, 2.375}, /* sums in 16 bits */
        {"hack:b2p32", 64, 3.25, 3.25},
        {"hack:b3p128", 64, 3 + 48.0 / 64, 3 + 48.0 / 128},
        {"hack:b8p1024", 128, 8 + 48.0 / 128, 8 + 64.0 / 1024},
        /* 2 + 32/64 of ranges, + 8/64 of sums */
        {"hack:b2p64,artifact", 128, 2.625, 2.625},
        /* partitions of 64 tokens, and of 48, 16 and 32 channels */
        {"hack:b2p64,artifact", 96, 2.5 + 8.0 / 48, 2.125 + 32.0 / 48},
        {"hack:b2p64,artifact,no-se", 80, 2.5, 2 + 32.0 / 16},
        {"hack:b2p128,artifact,no-se", 32, 2.25, 2 + 32.0 / 32},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct setup s;

        set_up(&s, cases[i].text, cases[i].d);
        for (int side = 0; side < KV_SIDES; side++) {
            const struct kv_codec *c = s.codec[side];
            const double want = side == KV_K ? cases[i].k : cases[i].v;

            const double measured =
                8.0 * (double)c->block_bytes / (double)kv_codec_block_values(c);
            const double nominal =
                c->scheme->nominal(&s.spec, (enum kv_side)side, &s.shape);

            assert_true(fabs(measured - want) < 1e-12);
            assert_true(fabs(nominal - want) < 1e-12);
        }
        tear_down(&s);
    }
}

/* Blocks are encoded at once and one by one; no byte is left unwritten; stored
 * sums and codes follow the drawing in hack.h. */
static void encode_blocks(void **state)
{
    enum { BLOCKS = 3, CANARY = 16 };

    (void)state;
    for (size_t i = 0; i < N_EVERY; i++)
        for (int side = 0; side < KV_SIDES; side++) {
            struct setup s;

            set_up(&s, every[i], 80);

            const struct kv_codec *c = s.codec[side];
            const size_t n = c->block_bytes, v = kv_codec_block_values(c);
            float *x = values(c->block * BLOCKS, KV_HEADS, 80, 20 + i);
            float *back = kv_alloc(v * BLOCKS, sizeof(*back));
            uint8_t *all = kv_alloc(n * BLOCKS + CANARY, 1);
            uint8_t *one = kv_alloc(n, 1);

            memset(all, 0xa5, n * BLOCKS + CANARY);
            c->scheme->encode(c, (struct kv_where){.first = 5, .seed = SEED}, x,
                              BLOCKS, all);
            for (size_t b = 0; b < BLOCKS; b++) {
                memset(one, 0x5a, n);
                c->scheme->encode(
                    c,
                    (struct kv_where){.first = 5 + b * c->block, .seed = SEED},
                    x + b * v, 1, one);
                assert_memory_equal(one, all + b * n, n);
            }
            for (size_t j = 0; j < CANARY; j++)
                assert_int_equal(all[n * BLOCKS + j], 0xa5);

            /* elsewhere in the sequence: other random numbers, if any */
            c->scheme->encode(c, (struct kv_where){.first = 6, .seed = SEED}, x,
                              1, one);
            assert_true(!memcmp(one, all, n) ==
                        kv_spec_is(&s.spec, c->side, "round", "nearest"));
            c->scheme->decode(c, all, BLOCKS, back);
            for (size_t j = 0; j < v * BLOCKS; j++)
                assert_true(fabsf(back[j] - x[j]) < 16); /* the range is < 40 */
            free(one), free(all), free(back), free(x);
            tear_down(&s);
        }
}

static void extremes(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_EVERY; i++)
        for (int side = 0; side < KV_SIDES; side++) {
            struct setup s;

            set_up(&s, every[i], 64);

            const struct kv_codec *c = s.codec[side];
            const size_t v = kv_codec_block_values(c);
            float *x = kv_alloc(v, sizeof(*x)), *back = kv_alloc(v, sizeof(*x));
            uint8_t *bytes = kv_alloc(c->block_bytes, 1);
            static const float flat[] = {0,      -0.0f,  0x1p-24f, 65504,
                                         -65504, 0.333f, 3e38f,    -3e38f};

            const bool bf16 = kv_spec_is(&s.spec, c->side, "meta", "bf16");
            const float off = bf16 ? 0x1p-8f : 0; /* relative to the value */

            /* exact to fp16; of halves to bf16 */
            for (size_t f = 0; f < (bf16 ? 6 : 8); f++) {
                for (size_t j = 0; j < v; j++)
                    x[j] = flat[f];
                c->scheme->encode(c, (struct kv_where){.first = 0, .seed = 1},
                                  x, 1, bytes);
                c->scheme->decode(c, bytes, 1, back);

                const float want = kv_f16_to_f32(kv_f16_clamp(flat[f]));

                for (size_t j = 0; j < v; j++)
                    assert_true(fabsf(back[j] - want) <= off * fabsf(want));
            }
            for (size_t j = 0; j < v; j++) /* ranges beyond fp16 and f32 */
                x[j] = j % 3 ? -3e38f : j % 2 ? 3e38f : 70000;
            c->scheme->encode(c, (struct kv_where){.first = 0, .seed = 1}, x, 1,
                              bytes);
            c->scheme->decode(c, bytes, 1, back);
            for (size_t j = 0; j < v; j++)
                assert_true(isfinite(back[j]));
            free(bytes), free(back), free(x);
            tear_down(&s);
        }
}

/* The open block of values as codes. */
static void requantization(void **state)
{
    enum { D = 64, P = 16, N = 2 * P + 5 };
    struct setup s;
    float *k = values(N, KV_HEADS, D, 60), *v = values(N, KV_HEADS, D, 61);
    float back[N * KV_HEADS * D], before[N * KV_HEADS * D];

    (void)state;
    for (size_t t = 0; t < N; t++) {
        v[t * KV_HEADS * D] = 1.5f; /* flat */
        v[t * KV_HEADS * D + 1] = t % P == 0 ? -8 : t % P == 1 ? 7 : 0.3f;
    }
    set_up(&s, "hack:b4p16,no-rqe,nearest", D);
    assert_true(s.codec[KV_V]->history && !s.codec[KV_K]->history);
    for (size_t t = 0; t < N; t++) {
        const size_t m = (t + 1) % P, row = KV_HEADS * D;

        memcpy(before, back, sizeof(back));
        append(&s, k + t * row, v + t * row, 1);
        kv_cache_decode(s.cache, KV_V, back);
        for (size_t i = t + 1 - (m ? m : P); i <= t; i++) {
            assert_true(back[i * row] == 1.5f);
            for (size_t c = 0; c < row; c++) /* each widening may cost a step */
                assert_true(fabsf(back[i * row + c] - v[i * row + c]) < 6);
            if (m != 1 && m != 2 && i < t) /* inside the range: codes stay */
                assert_true(back[i * row + 1] == before[i * row + 1]);
        }

        size_t quantized;
        const size_t all = kv_cache_bytes(s.cache, KV_V, &quantized, NULL);
        const size_t open = m ? KV_HEADS * (D * m / 2 + D * 5) : 0;

        assert_int_equal(quantized,
                         (t + 1) / P * KV_HEADS * (D * P / 2 + D * 5));
        assert_int_equal(all, quantized + open);
    }
    tear_down(&s);
    free(v), free(k);
}

/* axes=artifact: keys are requantized as those of the channel come, a token's
 * values once; a quantized block of values equals that of rqe=yes. */
static void artifact_requantization(void **state)
{
    enum { D = 48, P = 32, N = 2 * P + 5, ROW = KV_HEADS * D, S = 1 };
    static const char text[] = "hack:b4p32s1,artifact,no-rqe,stochastic";
    struct setup s, eager;
    float *k = values(N + S, KV_HEADS, D, 62);
    float *v = values(N + S, KV_HEADS, D, 63);
    float back[(N + S) * ROW], before[(N + S) * ROW], other[(N + S) * ROW];

    (void)state;
    for (size_t t = 0; t < N + S; t++) {
        k[t * ROW] = 1.5f; /* flat */
        k[t * ROW + 1] = t % P == 1 ? -8 : t % P == 2 ? 7 : 0.3f;
    }
    set_up(&s, text, D);
    set_up(&eager, "hack:b4p32s1,artifact,stochastic", D);
    assert_true(s.codec[KV_V]->history && s.codec[KV_K]->history);
    for (size_t t = 0; t < N + S; t++) {
        const size_t m = t % P; /* the open block's tokens */
        size_t quantized[KV_SIDES], all[KV_SIDES];

        append(&s, k + t * ROW, v + t * ROW, 1);
        append(&eager, k + t * ROW, v + t * ROW, 1);
        kv_cache_decode(s.cache, KV_K, back);
        for (size_t i = t - (t < S ? 0 : m ? m - 1 : P - 1); i <= t; i++) {
            assert_true(back[i * ROW] == 1.5f);
            for (size_t c = 0; c < ROW; c++) /* each widening may cost a step */
                assert_true(fabsf(back[i * ROW + c] - k[i * ROW + c]) < 8);
            if (t > S && m != 1 && m != 2 && i < t)
                assert_true(back[i * ROW + 1] == before[i * ROW + 1]);
        }
        memcpy(before, back, sizeof(back));

        for (int i = 0; i < KV_SIDES; i++)
            all[i] =
                kv_cache_bytes(s.cache, (enum kv_side)i, &quantized[i], NULL) -
                S * ROW * sizeof(uint16_t) - quantized[i];
        /* codes, ranges of 4 bytes, sums over three parts of 16 channels in
         * 8 bits, over 32 tokens in 9 */
        assert_int_equal(all[KV_K],
                         m ? KV_HEADS * (D * m / 2 + D * 4 + 3 * m) : 0);
        assert_int_equal(all[KV_V],
                         m ? KV_HEADS * (D * m / 2 + m * 3 * 4 + 2 * D) : 0);
    }
    kv_cache_decode(s.cache, KV_V, back);
    kv_cache_decode(eager.cache, KV_V, other);
    assert_memory_equal(back, other, (S + 2 * P) * ROW * sizeof(*back));
    tear_down(&eager);
    tear_down(&s);
    free(v), free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),
        cmocka_unit_test(bits),
        cmocka_unit_test(encode_blocks),
        cmocka_unit_test(extremes),
        cmocka_unit_test(requantization),
        cmocka_unit_test(artifact_requantization),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
