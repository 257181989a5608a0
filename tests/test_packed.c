/* Matrices stored in several tensors, compared with goldens that numpy
 * unpacked, at every level. */
#include "kernels/level.h"
#include "kernels/weights/packed.h"
#include "lib/base/alloc.h"
#include "lib/base/hash.h"
#include "lib/base/rng.h"
#include "lib/model/packed_tensors.h"
#include "tests/packed_goldens.h"
#include "tests/test.h"

#include <math.h>

static void no_nan(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = isnan(x[i]) ? 0 : x[i];
}

static uint8_t *fill(size_t key, size_t bytes)
{
    uint8_t *b = kv_alloc(bytes + 1, 1);

    for (size_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)(kv_random(key, i) >> 56);
    return b;
}

static uint8_t *fill_scales(size_t key, size_t n, enum kv_type type)
{
    const size_t size = kv_type_bytes(type);
    const uint8_t top = type == KV_TYPE_F32 ? 0x7f : 0x7c;
    uint8_t *b = fill(key, n * size);

    for (size_t i = size - 1; i < n * size; i += size)
        if ((b[i] & top) == top)
            b[i] &= 0xbf;
    return b;
}

static uint8_t *fill_groups(size_t columns, size_t block)
{
    uint8_t *group = kv_alloc(columns, 4);

    for (size_t i = 0; i < columns; i++) {
        const int32_t g = (int32_t)(37 * i % columns / block);

        memcpy(group + 4 * i, &g, sizeof(g));
    }
    return group;
}

/* Golden i with arrays of its own. */
static struct kv_packed new_packed(size_t i)
{
    const struct golden *g = &goldens[i];
    struct kv_packed p = g->p;
    const bool scaled = p.packing == KV_PACKED_SCALED;
    const size_t across = (p.columns + p.block_columns - 1) / p.block_columns;
    const size_t down =
        scaled ? (p.rows + p.block_rows - 1) / p.block_rows : p.rows;

    p.code = fill(10 * i, p.rows * p.columns * (scaled ? 8 : p.bits) / 8);
    p.scale = fill_scales(10 * i + 1, across * down, p.scale_type);
    p.zero = scaled ? NULL : fill(10 * i + 2, across * p.rows * p.bits / 8);
    p.group = g->grouped ? fill_groups(p.columns, p.block_columns) : NULL;
    return p;
}

static void free_packed(struct kv_packed *p)
{
    free((void *)(uintptr_t)p->code);
    free((void *)(uintptr_t)p->scale);
    free((void *)(uintptr_t)p->zero);
    free((void *)(uintptr_t)p->group);
}

/* Whole, then by rows. */
static void packed_at(size_t i, const struct kv_packed *p)
{
    const size_t n = p->rows * p->columns;
    float *x = kv_alloc(n + 1, sizeof(*x)), *row = kv_alloc(n, sizeof(*row));
    char hex[KV_HASH_CHARS];

    x[n] = 42;
    kv_packed_decode(p, 0, p->rows, x);
    assert_true(x[n] == 42);
    no_nan(x, n);
    kv_hash_bytes(x, n * sizeof(*x), hex);
    if (strcmp(hex, goldens[i].values))
        fail_msg("packed matrix %zu is not what numpy unpacks", i);
    for (size_t r = 0; r < p->rows; r++)
        kv_packed_decode(p, r, 1, row + r * p->columns);
    no_nan(row, n);
    assert_memory_equal(x, row, n * sizeof(*x));
    free(row);
    free(x);
}

static void every_packing_decodes_as_numpy_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(goldens) / sizeof(*goldens); i++) {
        struct kv_packed p = new_packed(i);
        struct kv_err e;

        assert_int_equal(kv_packed_check(&p, &e), 0);
        packed_at(i, &p);
        free_packed(&p);
    }
}

/* Every code under every scale, a row each. */
static void mxfp4_is_a_power_of_two_times_a_level(void **state)
{
    static const double level[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    enum { SCALES = 256, COLUMNS = 32 };
    uint8_t code[SCALES][COLUMNS / 2], scale[SCALES];
    float x[SCALES][COLUMNS];
    const struct kv_packed p = {.packing = KV_PACKED_MXFP4,
                                .rows = SCALES,
                                .columns = COLUMNS,
                                .block_columns = COLUMNS,
                                .code = code,
                                .scale = scale};
    struct kv_err e;

    (void)state;
    for (size_t r = 0; r < SCALES; r++) {
        scale[r] = (uint8_t)r;
        for (size_t i = 0; i < COLUMNS / 2; i++)
            code[r][i] = (uint8_t)(i + 16 * (15 - i));
    }
    assert_int_equal(kv_packed_check(&p, &e), 0);
    kv_packed_decode(&p, 0, SCALES, x[0]);
    for (size_t r = 0; r < SCALES; r++)
        for (size_t c = 0; c < COLUMNS; c++) {
            const size_t i = c % 2 ? 15 - c / 2 : c / 2;
            const double size = ldexp(level[i % 8], (int)r - 127);

            if (r == SCALES - 1)
                assert_false(isfinite(x[r][c]));
            else
                assert_true(x[r][c] == (float)(i < 8 ? size : -size));
        }
}

static void what_does_not_fit_is_refused(void **state)
{
    const int32_t group[8] = {0, 1, 1, 0, 1, 2, 0, -1};
    struct kv_packed p = {.packing = KV_PACKED_GPTQ,
                          .rows = 8,
                          .columns = 8,
                          .block_columns = 8,
                          .bits = 4,
                          .n_groups = 2,
                          .group = group};
    struct kv_err e;

    (void)state;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "input 5 is of group 2, there are 2");
    p.n_groups = 3;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "input 7 is of group 4294967295");
    p.rows = 12;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "12 outputs and 8 inputs do not fill words of 8");
    p.bits = 3;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "12 outputs and 8 inputs do not fill words of 32");
    p.bits = 5;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "codes of 5 bits: only 2, 3, 4 and 8 are known");
    p.packing = KV_PACKED_AWQ;
    p.bits = 8;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "codes of 8 bits: only 4 are known");
    p.block_columns = 0;
    assert_int_equal(kv_packed_check(&p, &e), -1);
    assert_says(e, "a scale of no values");
}

/* A file of up to four tensors. */
struct file {
    char header[2048];
    struct part {
        const void *data;
        size_t bytes;
    } part[4];
    size_t n, bytes;
};

static void put(struct file *f, const char *name, const char *dtype,
                size_t rows, size_t columns, const void *data, size_t bytes)
{
    const size_t at = strlen(f->header);

    snprintf(f->header + at, sizeof(f->header) - at,
             "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%zu, %zu], "
             "\"data_offsets\": [%zu, %zu]}",
             f->n ? ", " : "{", name, dtype, rows, columns, f->bytes,
             f->bytes + bytes);
    f->part[f->n++] = (struct part){data, bytes};
    f->bytes += bytes;
}

static const char *write_file(struct file *f)
{
    const char *dir = test_folder();
    const uint64_t n = strlen(strcat(f->header, "}"));
    char path[8192];
    FILE *out;

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(&n, sizeof(n), 1, out), 1);
    assert_int_equal(fwrite(f->header, n, 1, out), 1);
    for (size_t i = 0; i < f->n; i++)
        assert_int_equal(fwrite(f->part[i].data, f->part[i].bytes, 1, out), 1);
    assert_int_equal(fclose(out), 0);
    return dir;
}

/* A matrix of one block of zeros, which the block's sizes divide. */
static void put_block(struct file *f, size_t rows, size_t columns)
{
    static const uint8_t zeros[128 * 128];

    assert_true(rows * columns <= sizeof(zeros));
    put(f, "b.weight", "F8_E4M3", rows, columns, zeros, rows * columns);
    put(f, "b.weight_scale_inv", "F32", 1, 1, zeros, 4);
}

static void write_config(const char *dir, const char *quantization)
{
    char path[8192];
    FILE *out;

    snprintf(path, sizeof(path), "%s/config.json", dir);
    out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fprintf(out, "{\"quantization_config\": %s}", quantization) >
                0);
    assert_int_equal(fclose(out), 0);
}

/* The form that a folder has. */
static const char *write_packed(const struct kv_packed *p)
{
    static const char *const types[] = {
        [KV_TYPE_F32] = "F32", [KV_TYPE_F16] = "F16", [KV_TYPE_BF16] = "BF16"};
    const bool scaled = p->packing == KV_PACKED_SCALED;
    const bool awq = p->packing == KV_PACKED_AWQ;
    const size_t bits = p->bits;
    const size_t across = (p->columns - 1) / p->block_columns + 1;
    const size_t down = scaled ? (p->rows - 1) / p->block_rows + 1 : p->rows;
    struct file f = {.n = 0};
    char config[512];
    const char *dir;

    if (scaled) {
        put(&f, "a.weight",
            p->code_type == KV_STORED_F8_E4M3 ? "F8_E4M3" : "F8_E5M2", p->rows,
            p->columns, p->code, p->rows * p->columns);
        put(&f, "a.weight_scale_inv", types[p->scale_type], down, across,
            p->scale, down * across * kv_type_bytes(p->scale_type));
        put_block(&f, p->block_rows, p->block_columns);
        snprintf(config, sizeof(config),
                 "{\"quant_method\": \"fp8\", \"weight_block_size\": [%zu, "
                 "%zu]}",
                 p->block_rows, p->block_columns);
        dir = write_file(&f);
        write_config(dir, config);
        return dir;
    }
    put(&f, "a.qweight", "I32", awq ? p->columns : p->columns * bits / 32,
        awq ? p->rows / 8 : p->rows, p->code, p->rows * p->columns * bits / 8);
    put(&f, "a.qzeros", "I32", across, p->rows * bits / 32, p->zero,
        across * p->rows * bits / 8);
    put(&f, "a.scales", types[p->scale_type], across, down, p->scale,
        down * across * kv_type_bytes(p->scale_type));
    if (p->group)
        put(&f, "a.g_idx", "I32", 1, p->columns, p->group, p->columns * 4);
    snprintf(config, sizeof(config),
             "{\"quant_method\": \"%s\", \"bits\": %u, \"group_size\": %zu, "
             "\"checkpoint_format\": \"%s\"}",
             awq ? "awq" : "gptq", p->bits, p->block_columns,
             awq            ? "gemm"
             : p->zero_less ? "gptq"
                            : "gptq_v2");
    dir = write_file(&f);
    write_config(dir, config);
    return dir;
}

static bool all_finite(const float *x, size_t n)
{
    bool finite = true;

    for (size_t i = 0; i < n; i++)
        finite &= isfinite(x[i]) != 0;
    return finite;
}

static void folder_of(const struct kv_packed *p)
{
    const size_t n = p->rows * p->columns, odd = n / 3;
    float *x = kv_alloc(n, sizeof(*x)), *y = kv_alloc(n, sizeof(*y));
    const struct kv_weight *t;
    struct kv_weights w;
    struct kv_err e = {""};
    const char *dir = write_packed(p);

    if (kv_weights_open(&w, dir, &e) || kv_weights_unpack(&w, dir, &e))
        fail_msg("%s", e.msg);
    t = kv_weights_find(&w, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], p->rows);
    assert_int_equal(t->dims[1], p->columns);
    for (size_t i = 0; i < w.n_weights; i++)
        assert_int_equal(kv_weights_is_part(&w, w.weight[i]),
                         !strstr(w.weight[i]->name, ".weight") ||
                             strstr(w.weight[i]->name, "_scale"));
    kv_packed_decode(p, 0, p->rows, x);
    assert_int_equal(kv_weight_check(t, &e), all_finite(x, n) ? 0 : -1);
    kv_weight_dequantize(t, 0, odd, y);
    kv_weight_dequantize(t, odd, n - odd, y + odd);
    no_nan(x, n);
    no_nan(y, n);
    assert_memory_equal(x, y, n * sizeof(*x));
    kv_weights_clear(&w);
    free(y);
    free(x);
}

static void folders_hold_every_packing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(goldens) / sizeof(*goldens); i++) {
        struct kv_packed p = new_packed(i);

        folder_of(&p);
        free_packed(&p);
    }
}

static void other_quantization_is_refused(void **state)
{
    static const struct {
        const char *config, *words;
    } bad[] = {
        {"[]", "header is no object"},
        {"{}", "quant_method is (none)"},
        {"{\"quant_method\": \"bitsandbytes\"}",
         "load_in_8bit: one of them is expected to be true"},
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, "
         "\"bnb_4bit_quant_storage\": \"bfloat16\"}",
         "bnb_4bit_quant_storage is \"bfloat16\""},
        {"{\"quant_method\": \"quanto\"}", "quant_method is quanto"},
        {"{\"quant_method\": \"gptq_marlin\"}", "quant_method is gptq_marlin"},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8_AWQ\"}",
         "quant_algo is W4A8_AWQ"},
        {"{\"quant_method\": \"awq\"}", "bits is no whole number from 1 on"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"w_bit\": 8}",
         "bits and quantization_config.w_bit contradict each other"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 0}",
         "group_size is no whole number"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 8, "
         "\"version\": \"gemv_fast\"}",
         "version is gemv_fast, which is not implemented, only gemm, gemv and "
         "autoawq"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, "
         "\"version\": \"gemm\", \"checkpoint_format\": \"gemv\"}",
         "version is gemm, but quantization_config.checkpoint_format is gemv"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 16, "
         "\"version\": \"gemv\"}",
         "inputs in groups of 16 (group_size in "},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 8, "
         "\"backend\": \"llm-awq\"}",
         "backend is llm-awq"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 8, "
         "\"zero_point\": false}",
         "zero_point is false"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 8, "
         "\"checkpoint_format\": \"marlin\"}",
         "checkpoint_format is marlin"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 8, "
         "\"is_marlin_format\": true}",
         "is_marlin_format is true"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 8, "
         "\"dynamic\": {\"-:.*\": {}}}",
         "dynamic is {"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 8, "
         "\"pack_dtype\": \"int64\"}",
         "pack_dtype is \"int64\""},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 8, "
         "\"desc_act\": 1}",
         "desc_act is neither true nor false"},
        {"{\"quant_method\": \"gptq\", \"bits\": 5, \"group_size\": 8}",
         "gptq of 5 bits is not implemented"},
        {"{\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 32}",
         "tensor a.scales has shape [3, 24]; by bits 8 and group_size 32 in "},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16}",
         "and tensor a.qweight it is [6, 24]"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [1]}",
         "weight_block_size is not two sizes"},
        {"{\"quant_method\": \"fp8\"}", "no tensor is of type F8"},
        {"null", "tensor a.qweight is packed, but config.json of "},
    };
    struct kv_packed p = new_packed(4);
    const char *dir = write_packed(&p);

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct kv_weights w;
        struct kv_err e = {""};

        write_config(dir, bad[i].config);
        assert_int_equal(kv_weights_open(&w, dir, &e), 0);
        assert_int_equal(kv_weights_unpack(&w, dir, &e), -1);
        assert_says(e, bad[i].words);
        kv_weights_clear(&w);
    }
    free_packed(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_packing_decodes_as_numpy_does),
        cmocka_unit_test(mxfp4_is_a_power_of_two_times_a_level),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(folders_hold_every_packing),
        cmocka_unit_test(other_quantization_is_refused),
    };
    int failed = 0;

    for (enum kv_level l = KV_LEVEL_C; l <= kv_level_max(); l++) {
        kv_level_set(l, NULL);
        failed +=
            cmocka_run_group_tests_name(kv_level_name(l), tests, NULL, NULL);
    }
    return failed;
}
