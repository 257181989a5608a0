#include "tests/test.h"

#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/dump.h"
#include "lib/h5.h"

#include <math.h>
#include <stdbool.h>

enum { WINDOWS = 3, CTX = 37, HEADS = 6, KV = 2, D = 10, LAYERS = 4 };
enum { FIRST = 1, LAST = 2, TOKENS = WINDOWS * CTX };

static char path[5000], raw_path[5000];

static int make_paths(void **state)
{
    const char *folder = test_folder();

    (void)state;
    snprintf(path, sizeof(path), "%s/dump.h5", folder);
    snprintf(raw_path, sizeof(raw_path), "%s/raw.h5", folder);
    return 0;
}

static struct kv_dump_info some_info(enum kv_dtype dtype)
{
    return (struct kv_dump_info){.model = "toy",
                                 .arch = "ToyForCausalLM",
                                 .weights = "f32",
                                 .model_hash = "0123456789abcdef",
                                 .text = "toy.txt",
                                 .text_hash = "fedcba9876543210",
                                 .shape = {.n_layers = LAYERS,
                                           .n_heads = HEADS,
                                           .n_kv_heads = KV,
                                           .head_dim = D,
                                           .attn_scale = 0.3f,
                                           .n_rot = 3,
                                           .inv_freq = {1, 0.1f, 0.01f}},
                                 .n_windows = WINDOWS,
                                 .ctx = CTX,
                                 .first_layer = FIRST,
                                 .last_layer = LAST,
                                 .have = {[KV_T_Q] = true,
                                          [KV_T_K] = true,
                                          [KV_T_V] = true,
                                          [KV_T_K_GRADIENT] = true},
                                 .dtype = dtype};
}

/* Those in the dump; k_pre and v_gradient are not. */
static const enum kv_tensor some[] = {KV_T_Q, KV_T_K, KV_T_V, KV_T_K_GRADIENT};
enum { N_SOME = sizeof(some) / sizeof(*some) };

static size_t row(enum kv_tensor t)
{
    return (t == KV_T_Q ? HEADS : KV) * D;
}

/* The dump: a function of the place. */
static float value(size_t layer, enum kv_tensor t, size_t token, size_t i)
{
    const uint64_t key = kv_mix(kv_mix(layer, t), token);

    return (float)(kv_random_normal(key, i) * 3);
}

/* Gradients are f32 in every dump. */
static float stored(float x, enum kv_tensor t, enum kv_dtype dtype)
{
    if (t == KV_T_K_GRADIENT)
        return x;
    return dtype == KV_F32   ? x
           : dtype == KV_F16 ? kv_f16_to_f32(kv_f32_to_f16(x))
                             : kv_bf16_to_f32(kv_f32_to_bf16(x));
}

static float *window_values(size_t layer, enum kv_tensor t, size_t window,
                            size_t n)
{
    float *x = kv_alloc(n * CTX * row(t), sizeof(*x));

    for (size_t j = 0; j < n * CTX; j++)
        for (size_t i = 0; i < row(t); i++)
            x[j * row(t) + i] = value(layer, t, window * CTX + j, i);
    return x;
}

static void put(struct kv_dump_writer *w, size_t layer, enum kv_tensor t,
                size_t window, size_t n)
{
    struct kv_err e = {""};
    float *x = window_values(layer, t, window, n);

    if (kv_dump_put(w, layer, t, window, n, x, &e))
        fail_msg("%s", e.msg);
    free(x);
}

static void put_tokens(struct kv_dump_writer *w)
{
    struct kv_err e = {""};
    int32_t ids[TOKENS];

    for (int32_t i = 0; i < TOKENS; i++)
        ids[i] = i * 7;
    assert_int_equal(kv_dump_put_tokens(w, 1, 2, ids + CTX, &e), 0);
    assert_int_equal(kv_dump_put_tokens(w, 0, 1, ids, &e), 0);
}

static struct kv_dump_writer *create(enum kv_dtype dtype)
{
    const struct kv_dump_info info = some_info(dtype);
    struct kv_dump_writer *w = NULL;
    struct kv_err e = {""};

    if (kv_dump_create(&w, path, &info, &e))
        fail_msg("%s", e.msg);
    return w;
}

/* Writes W_o's Gram matrix for the layers from first_gram on. */
static void write_dump_with(enum kv_dtype dtype, size_t first_gram)
{
    struct kv_dump_writer *w = create(dtype);
    struct kv_err e = {""};
    float gram[KV * D * D];

    put_tokens(w);
    for (size_t layer = LAST; layer >= FIRST; layer--)
        for (size_t i = 0; i < N_SOME; i++) {
            put(w, layer, some[i], 1, 2);
            put(w, layer, some[i], 0, 1);
        }
    for (size_t i = 0; i < KV * D * D; i++)
        gram[i] = (float)i;
    for (size_t layer = first_gram; layer <= LAST; layer++)
        assert_int_equal(kv_dump_put_gram(w, layer, gram, &e), 0);
    assert_int_equal(kv_dump_commit(w, &e), 0);
}

static void write_dump(enum kv_dtype dtype)
{
    write_dump_with(dtype, FIRST);
}

/* The file's description of the channels that RoPE turns together: n_rot pairs,
 * neighbours or not.  pairs NULL: no description, and the pairs are the two
 * halves of a head. */
static void check_pairs(size_t n_rot, bool neighbours, const char *pairs)
{
    struct kv_dump_info info = some_info(KV_F32);
    struct kv_dump_writer *w;
    struct kv_dump *d;
    struct kv_h5 *h;
    struct kv_err e = {""};
    char is[16];
    int64_t format;

    info.shape.n_rot = n_rot;
    info.shape.neighbours = neighbours;
    memset(info.have, 0, sizeof(info.have));
    assert_int_equal(kv_dump_create(&w, path, &info, &e), 0);
    put_tokens(w);
    assert_int_equal(kv_dump_commit(w, &e), 0);
    assert_int_equal(kv_h5_open(&h, path, &e), 0);
    assert_int_equal(
        kv_h5_get_text(h, "/", "channel_order", is, sizeof(is), &e), 0);
    assert_string_equal(is, "model");
    assert_int_equal(kv_h5_has_attr(h, "/", "rope_pairs"), pairs != NULL);
    if (pairs) {
        assert_int_equal(
            kv_h5_get_text(h, "/", "rope_pairs", is, sizeof(is), &e), 0);
        assert_string_equal(is, pairs);
    }
    /* older versions, which know one order, refuse the others */
    assert_int_equal(kv_h5_get_int(h, "/", "format", 1, 9, &format, &e), 0);
    assert_int_equal(format, pairs ? 4 : 1);
    kv_h5_close(h);
    assert_int_equal(kv_dump_open(&d, path, &e), 0);
    assert_int_equal(kv_dump_info(d)->shape.neighbours, neighbours);
    assert_int_equal(kv_dump_info(d)->shape.n_rot, n_rot);
    kv_dump_close(d);
}

static void pairs_of_channels_are_named(void **state)
{
    (void)state;
    check_pairs(3, false, "halves");
    check_pairs(D / 2, true, "neighbours");
    check_pairs(3, true, "neighbours");
    check_pairs(D / 2, false, NULL);
    check_pairs(0, false, NULL);
}

static void check_values(struct kv_dump *d, size_t layer, enum kv_tensor t,
                         size_t first, size_t n, enum kv_dtype dtype)
{
    enum { CANARY = 3 };
    float *x = kv_alloc(n * row(t) + CANARY, sizeof(*x));
    struct kv_err e = {""};

    for (size_t i = 0; i < n * row(t) + CANARY; i++)
        x[i] = 77;
    if (kv_dump_read(d, layer, t, first, n, x, &e))
        fail_msg("%s", e.msg);
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < row(t); i++)
            assert_true(x[j * row(t) + i] ==
                        stored(value(layer, t, first + j, i), t, dtype));
    for (size_t i = 0; i < CANARY; i++)
        assert_true(x[n * row(t) + i] == 77);
    free(x);
}

static struct kv_dump *open_dump(void)
{
    struct kv_dump *d = NULL;
    struct kv_err e = {""};

    if (kv_dump_open(&d, path, &e))
        fail_msg("%s", e.msg);
    return d;
}

static void what_was_put_is_read(void **state)
{
    const size_t ranges[][2] = {{0, 0},      {TOKENS, 0},      {0, 1},
                                {0, TOKENS}, {0, CTX},         {CTX - 1, 2},
                                {CTX, CTX},  {5, 2 * CTX + 1}, {TOKENS - 1, 1}};

    (void)state;
    for (enum kv_dtype dtype = KV_F32; dtype <= KV_BF16; dtype++) {
        struct kv_dump *d;

        write_dump(dtype);
        d = open_dump();
        for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++)
            for (size_t layer = FIRST; layer <= LAST; layer++)
                for (size_t t = 0; t < N_SOME; t++)
                    check_values(d, layer, some[t], ranges[i][0], ranges[i][1],
                                 dtype);
        kv_dump_close(d);
    }
}

static void provenance_is_read(void **state)
{
    const struct kv_dump_info want = some_info(KV_F16);
    const struct kv_dump_info *is;
    struct kv_err e = {""};
    struct kv_dump *d;
    int32_t ids[TOKENS];
    float gram[KV * D * D];

    (void)state;
    write_dump(KV_F16);
    d = open_dump();
    is = kv_dump_info(d);
    assert_string_equal(is->model, want.model);
    assert_string_equal(is->arch, want.arch);
    assert_string_equal(is->weights, want.weights);
    assert_string_equal(is->model_hash, want.model_hash);
    assert_string_equal(is->text, want.text);
    assert_string_equal(is->text_hash, want.text_hash);
    assert_memory_equal(&is->shape, &want.shape, sizeof(want.shape));
    assert_int_equal(is->n_windows, WINDOWS);
    assert_int_equal(is->ctx, CTX);
    assert_int_equal(is->first_layer, FIRST);
    assert_int_equal(is->last_layer, LAST);
    assert_memory_equal(is->have, want.have, sizeof(want.have));
    assert_int_equal(is->dtype, KV_F16);
    assert_string_equal(kv_dump_path(d), path);
    assert_int_equal(kv_dump_tokens(d, 0, TOKENS, ids, &e), 0);
    for (int32_t i = 0; i < TOKENS; i++)
        assert_int_equal(ids[i], i * 7);
    assert_int_equal(kv_dump_tokens(d, CTX - 1, 2, ids, &e), 0);
    assert_int_equal(ids[1], CTX * 7);
    assert_int_equal(kv_dump_gram(d, 2, gram, &e), 0);
    assert_true(gram[KV * D * D - 1] == KV * D * D - 1);
    kv_dump_close(d);
}

static void what_is_not_there_is_named(void **state)
{
    struct kv_err e = {""};
    struct kv_dump *d;
    int32_t ids[2];
    float x[KV * D * D];

    (void)state;
    write_dump(KV_F32);
    d = open_dump();
    assert_int_equal(kv_dump_read(d, 0, KV_T_K, 0, 1, x, &e), -1);
    assert_says(e, "has layers 1 to 2, not 0");
    assert_int_equal(kv_dump_read(d, 1, KV_T_K_PRE, 0, 1, x, &e), -1);
    assert_says(e, "dump.h5 has no k_pre (kvdump --what q,k,v --rope");
    assert_int_equal(kv_dump_read(d, 1, KV_T_V_GRADIENT, 0, 1, x, &e), -1);
    assert_says(e, "dump.h5 has no v_gradient (kvdump --fisher writes it)");
    assert_int_equal(kv_dump_read(d, 1, KV_T_K, TOKENS, 1, x, &e), -1);
    assert_says(e, "has 111 tokens, 111 to 112 were asked for");
    assert_int_equal(kv_dump_tokens(d, TOKENS - 1, 2, ids, &e), -1);
    assert_says(e, "has 111 tokens");
    kv_dump_close(d);
    write_dump_with(KV_F32, LAST + 1);
    d = open_dump();
    assert_int_equal(kv_dump_gram(d, 1, x, &e), -1);
    assert_says(e, "has no /layer_001/wo_gram");
    kv_dump_close(d);
    write_dump_with(KV_F32, LAST);
    assert_int_equal(kv_dump_open(&d, path, &e), -1);
    assert_says(e, "dump.h5 has /layer_002/wo_gram, but no /layer_001/wo_gram");
}

static void an_incomplete_dump_is_not_committed(void **state)
{
    struct kv_err e = {""};
    struct kv_dump_writer *w;

    (void)state;
    unlink(path);
    w = create(KV_F32);
    assert_int_equal(kv_dump_commit(w, &e), -1);
    assert_says(e, "tokens of 0 windows of 3 were put");
    w = create(KV_F32);
    put_tokens(w);
    for (size_t i = 0; i < N_SOME; i++) {
        put(w, 1, some[i], 0, WINDOWS);
        put(w, 2, some[i], 0, WINDOWS - (some[i] == KV_T_V));
    }
    assert_int_equal(kv_dump_commit(w, &e), -1);
    assert_says(e, "layer 2, v: 2 windows of 3 were put");
    assert_int_equal(access(path, F_OK), -1);
}

static void values_that_do_not_fit_are_refused(void **state)
{
    const struct {
        enum kv_dtype dtype;
        float value;
        const char *says;
    } cases[] = {
        {KV_F32, NAN,
         "layer 2, q, token 110, head 5, channel 9: the model computed a "
         "value"},
        {KV_F32, -INFINITY, "not finite"},
        {KV_F16, 65520, "65520 does not fit in f16 (try --dtype f32)"},
        {KV_F16, -1e9f, "does not fit in f16"},
        {KV_BF16, 3.4e38f, "does not fit in bf16"},
        {KV_F16, 65519, NULL},
        {KV_BF16, 3.3e38f, NULL},
        {KV_F32, 3.4e38f, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_dump_writer *w = create(cases[i].dtype);
        struct kv_err e = {""};
        float *x = window_values(2, KV_T_Q, 2, 1);

        x[CTX * row(KV_T_Q) - 1] = cases[i].value;
        assert_int_equal(kv_dump_put(w, 2, KV_T_Q, 2, 1, x, &e),
                         cases[i].says ? -1 : 0);
        if (cases[i].says)
            assert_says(e, cases[i].says);
        free(x);
        kv_dump_discard(w);
    }
    assert_int_equal(access(path, F_OK), -1);
}

/* A dump as another program might write it, with one thing wrong. */
enum wrong {
    NOTHING,
    NO_DTYPE,
    ODD_DTYPE,
    FUTURE,
    OLD_ORDER,
    NO_CTX,
    SHORT_K,
    NO_V,
    DOUBLE_Q,
    NAN_K,
    NO_TOKENS,
    TOKEN_BELOW_0,
    LATE,
    NO_VALUES,
    SHORT_SINKS,
    NAN_SINKS,
    HALF_A_LAYER,
    UNCOUNTED_LAYER
};

static void write_raw(enum wrong wrong)
{
    const size_t places[] = {1, 2}, none = 0;
    const size_t k_dims[] = {1, 2, 1, wrong == SHORT_K ? 2 : 4};
    const size_t q_dims[] = {1, 2, 1, 4};
    const char *const texts[] = {"model", "arch",      "weights",
                                 "text",  "text_hash", "model_hash"};
    const char *const ones[] = {"n_heads", "n_kv_heads", "n_windows"};
    static const int32_t id[2] = {0, 0}, at[2] = {0, 1}, late[2] = {0, 2};
    static const int32_t below[2] = {0, -1};
    float x[16] = {0};
    double q[8] = {0};
    struct kv_err e = {""};
    struct kv_h5 *h;

    assert_int_equal(kv_h5_create(&h, raw_path, &e), 0);
    kv_h5_put_text(h, "/", "kind", "kvtools-dump");
    kv_h5_put_int(h, "/", "format", wrong == FUTURE ? 5 : 1);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        kv_h5_put_text(h, "/", texts[i], "x");
    for (size_t i = 0; i < sizeof(ones) / sizeof(*ones); i++)
        kv_h5_put_int(h, "/", ones[i], 1);
    kv_h5_put_int(h, "/", "n_layers", wrong >= HALF_A_LAYER ? 2 : 1);
    kv_h5_put_int(h, "/", "head_dim", 4);
    kv_h5_put_int(h, "/", "first_layer", 0);
    kv_h5_put_int(h, "/", "last_layer", wrong == HALF_A_LAYER);
    if (wrong != NO_CTX)
        kv_h5_put_int(h, "/", "ctx", 2);
    if (wrong == OLD_ORDER)
        kv_h5_put_text(h, "/", "channel_order", "halves");
    kv_h5_put_real(h, "/", "attn_scale", 0.5);
    if (wrong != NO_DTYPE)
        kv_h5_put_text(h, "/", "dtype", wrong == ODD_DTYPE ? "f8" : "f32");
    kv_h5_dataset(h, "/inv_freq", KV_H5_F32, 1, &none);
    if (wrong != NO_TOKENS) {
        kv_h5_dataset(h, "/tokens", KV_H5_I32, 2, places);
        kv_h5_write(h, "/tokens", KV_H5_I32, NULL, NULL,
                    wrong == TOKEN_BELOW_0 ? below : id, &e);
    }
    kv_h5_dataset(h, "/positions", KV_H5_I32, 2, places);
    kv_h5_write(h, "/positions", KV_H5_I32, NULL, NULL,
                wrong == LATE ? late : at, &e);
    kv_h5_group(h, "/layer_000");
    kv_h5_dataset(h, "/layer_000/k", KV_H5_F32, 4, k_dims);
    x[5] = wrong == NAN_K ? NAN : 0;
    if (wrong != NO_VALUES)
        kv_h5_write(h, "/layer_000/k", KV_H5_F32, NULL, NULL, x, &e);
    kv_h5_dataset(h, "/layer_000/q", wrong == DOUBLE_Q ? KV_H5_F64 : KV_H5_F32,
                  4, q_dims);
    kv_h5_write(h, "/layer_000/q", wrong == DOUBLE_Q ? KV_H5_F64 : KV_H5_F32,
                NULL, NULL, q, &e);
    if (wrong != NO_V)
        kv_h5_dataset(h, "/layer_000/v", KV_H5_F32, 4, q_dims);
    x[5] = -1;
    if (wrong != NO_V)
        kv_h5_write(h, "/layer_000/v", KV_H5_F32, NULL, NULL, x, &e);
    x[5] = -2;
    kv_h5_dataset(h, "/layer_000/v_gradient", KV_H5_F32, 4, q_dims);
    kv_h5_write(h, "/layer_000/v_gradient", KV_H5_F32, NULL, NULL, x, &e);
    x[0] = NAN;
    if (wrong == SHORT_SINKS || wrong == NAN_SINKS) {
        const size_t sinks[] = {1, wrong == SHORT_SINKS ? 2 : 1};

        kv_h5_dataset(h, "/sink_logit", KV_H5_F32, 2, sinks);
        kv_h5_write(h, "/sink_logit", KV_H5_F32, NULL, NULL, x, &e);
    }
    x[0] = 0;
    if (wrong >= HALF_A_LAYER) {
        kv_h5_group(h, "/layer_001");
        kv_h5_dataset(h, "/layer_001/q", KV_H5_F32, 4, q_dims);
        kv_h5_write(h, "/layer_001/q", KV_H5_F32, NULL, NULL, x, &e);
    }
    if (kv_h5_commit(h, &e))
        fail_msg("%s", e.msg);
}

static void a_wrong_file_is_named(void **state)
{
    const struct {
        enum wrong wrong;
        const char *says;
    } cases[] = {
        {NO_DTYPE, "raw.h5: attribute dtype of / is missing"},
        {ODD_DTYPE, "raw.h5: dtype is \"f8\", expected f32, f16 or bf16"},
        {FUTURE, "raw.h5 has format 5, this version of kvtools"},
        {OLD_ORDER, "raw.h5: channel_order is halves, expected model"},
        {NO_CTX, "raw.h5: attribute ctx of / is missing"},
        {SHORT_K, "/layer_000/k is [1][2][1][2], expected [1][2][1][4]"},
        {DOUBLE_Q, "/layer_000/q does not hold f32 values"},
        {NO_TOKENS, "raw.h5 has no /tokens"},
        {TOKEN_BELOW_0, "raw.h5: /tokens: token 1 is -1, expected 0 or more"},
        {LATE, "raw.h5: /positions: token 1 is at 2, expected 1"},
        {NO_VALUES, "/layer_000/k has 0 of its 1 chunks"},
        {SHORT_SINKS, "/sink_logit is [1][2], expected [1][1]"},
        {NAN_SINKS, "/sink_logit holds a value that is "},
        {HALF_A_LAYER, "raw.h5 has /layer_000/k, but no /layer_001/k"},
        {UNCOUNTED_LAYER, "raw.h5 has /layer_001, but its first_layer is 0 and "
                          "its last_layer 0"},
    };
    struct kv_err e = {""};
    struct kv_dump *d;
    float x[8];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        write_raw(cases[i].wrong);
        assert_int_equal(kv_dump_open(&d, raw_path, &e), -1);
        assert_says(e, cases[i].says);
    }
    write_raw(NOTHING);
    assert_int_equal(kv_dump_open(&d, raw_path, &e), 0);
    assert_int_equal(kv_dump_read(d, 0, KV_T_V, 0, 2, x, &e), 0);
    assert_int_equal(kv_dump_read(d, 0, KV_T_V_GRADIENT, 0, 2, x, &e), 0);
    assert_true(x[5] == -2);
    assert_int_equal(kv_dump_fisher(d, 0, KV_T_V_GRADIENT, 0, 2, x, &e), 0);
    assert_true(x[5] == 4 && x[4] == 0);
    kv_dump_close(d);
    write_raw(NO_V);
    assert_int_equal(kv_dump_open(&d, raw_path, &e), 0);
    assert_false(kv_dump_info(d)->have[KV_T_V]);
    kv_dump_close(d);
    write_raw(NAN_K);
    assert_int_equal(kv_dump_open(&d, raw_path, &e), 0);
    assert_int_equal(kv_dump_read(d, 0, KV_T_K, 0, 1, x, &e), 0);
    assert_int_equal(kv_dump_read(d, 0, KV_T_K, 0, 2, x, &e), -1);
    assert_says(e,
                "raw.h5: layer 0, k, token 1, head 0, channel 1 is not finite");
    kv_dump_close(d);
}

static void a_flipped_value_is_noticed(void **state)
{
    const float mark = value(1, KV_T_K, 60, 3);
    struct kv_err e = {""};
    struct kv_dump *d;
    float x[KV * D], found;
    long at = -1;
    FILE *f;

    (void)state;
    write_dump(KV_F32);
    f = fopen(path, "r+b");
    assert_non_null(f);
    for (long i = 0; at < 0; i++) {
        assert_int_equal(fseek(f, i, SEEK_SET), 0);
        assert_int_equal(fread(&found, sizeof(found), 1, f), 1);
        if (!memcmp(&found, &mark, sizeof(mark)))
            at = i;
    }
    fseek(f, at, SEEK_SET);
    fputc(0x55, f);
    fclose(f);
    d = open_dump();
    assert_int_equal(kv_dump_read(d, 1, KV_T_K, 60, 1, x, &e), -1);
    assert_says(e, "dump.h5: cannot read /layer_001/k");
    assert_says(e, "Fletcher32");
    check_values(d, 1, KV_T_V, 0, TOKENS, KV_F32);
    kv_dump_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_incomplete_dump_is_not_committed),
        cmocka_unit_test(values_that_do_not_fit_are_refused),
        cmocka_unit_test(what_was_put_is_read),
        cmocka_unit_test(provenance_is_read),
        cmocka_unit_test(pairs_of_channels_are_named),
        cmocka_unit_test(what_is_not_there_is_named),
        cmocka_unit_test(a_wrong_file_is_named),
        cmocka_unit_test(a_flipped_value_is_noticed),
    };

    return cmocka_run_group_tests(tests, make_paths, NULL);
}
