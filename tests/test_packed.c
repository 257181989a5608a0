/* Matrices of several tensors against goldens that numpy unpacked, at every
 * level. */
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

static uint8_t *fill_groups(size_t key, size_t columns, size_t n_groups)
{
    uint8_t *b = fill(key, columns);
    uint8_t *group = kv_alloc(columns, 4);

    for (size_t i = 0; i < columns; i++) {
        const int32_t g = (int32_t)(b[i] % n_groups);

        memcpy(group + 4 * i, &g, sizeof(g));
    }
    free(b);
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
    p.group = g->grouped ? fill_groups(10 * i + 3, p.columns, across) : NULL;
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
    assert_says(e, "codes of 3 bits: only 2, 4 and 8 are known");
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
             "%s\"a.%s\": {\"dtype\": \"%s\", \"shape\": [%zu, %zu], "
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

/* As a folder has it, and what config.json says. */
static const char *write_packed(const struct kv_packed *p, char config[512])
{
    static const char *const types[] = {
        [KV_TYPE_F32] = "F32", [KV_TYPE_F16] = "F16", [KV_TYPE_BF16] = "BF16"};
    const bool scaled = p->packing == KV_PACKED_SCALED;
    const bool awq = p->packing == KV_PACKED_AWQ;
    const size_t per = scaled ? 1 : 32 / p->bits;
    const size_t across = (p->columns - 1) / p->block_columns + 1;
    const size_t down = scaled ? (p->rows - 1) / p->block_rows + 1 : p->rows;
    struct file f = {.n = 0};

    if (scaled) {
        put(&f, "weight",
            p->code_type == KV_STORED_F8_E4M3 ? "F8_E4M3" : "F8_E5M2", p->rows,
            p->columns, p->code, p->rows * p->columns);
        put(&f, "weight_scale_inv", types[p->scale_type], down, across,
            p->scale, down * across * kv_type_bytes(p->scale_type));
        snprintf(config, 512,
                 "{\"quant_method\": \"fp8\", \"weight_block_size\": [%zu, "
                 "%zu]}",
                 p->block_rows, p->block_columns);
        return write_file(&f);
    }
    put(&f, "qweight", "I32", awq ? p->columns : p->columns / per,
        awq ? p->rows / per : p->rows, p->code, p->rows * p->columns / per * 4);
    put(&f, "qzeros", "I32", across, p->rows / per, p->zero,
        across * p->rows / per * 4);
    put(&f, "scales", types[p->scale_type], across, down, p->scale,
        down * across * kv_type_bytes(p->scale_type));
    if (p->group)
        put(&f, "g_idx", "I32", 1, p->columns, p->group, p->columns * 4);
    snprintf(config, 512,
             "{\"quant_method\": \"%s\", \"bits\": %u, \"group_size\": %zu, "
             "\"checkpoint_format\": \"%s\"}",
             awq ? "awq" : "gptq", p->bits, p->block_columns,
             p->zero_less ? "gptq" : "gptq_v2");
    return write_file(&f);
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
    char config[512];
    json_t *json;

    if (kv_weights_open(&w, write_packed(p, config), &e))
        fail_msg("%s", e.msg);
    json = json_loads(config, 0, NULL);
    if (kv_weights_unpack(&w, json, "config.json", &e))
        fail_msg("%s", e.msg);
    t = kv_weights_find(&w, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], p->rows);
    assert_int_equal(t->dims[1], p->columns);
    for (size_t i = 0; i < w.n_weights; i++)
        assert_int_equal(kv_weights_is_part(&w, w.weight[i]), w.weight[i] != t);
    kv_packed_decode(p, 0, p->rows, x);
    assert_int_equal(kv_weight_check(t, &e), all_finite(x, n) ? 0 : -1);
    kv_weight_dequantize(t, 0, odd, y);
    kv_weight_dequantize(t, odd, n - odd, y + odd);
    no_nan(x, n);
    no_nan(y, n);
    assert_memory_equal(x, y, n * sizeof(*x));
    json_decref(json);
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
        {"{}", "quant_method (none)"},
        {"{\"quant_method\": \"bitsandbytes\"}", "quant_method bitsandbytes"},
        {"{\"quant_method\": \"awq\"}", "has no bits from 1 on"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 0}",
         "has no group_size"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 8, "
         "\"version\": \"gemv\"}",
         "awq of version gemv"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 8, "
         "\"checkpoint_format\": \"marlin\"}",
         "checkpoint_format marlin"},
        {"{\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 8}",
         "gptq of 3 bits is not implemented"},
        {"{\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 64}",
         "tensor a.qzeros is not of the type and shape"},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16}",
         "tensor a.qweight: input 48 is of group 3, there are 3"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [1]}",
         "weight_block_size is not two sizes"},
    };
    struct kv_packed p = new_packed(4);
    char config[512];
    const char *dir = write_packed(&p, config);

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        json_t *json = json_loads(bad[i].config, 0, NULL);
        struct kv_weights w;
        struct kv_err e = {""};

        assert_int_equal(kv_weights_open(&w, dir, &e), 0);
        assert_int_equal(kv_weights_unpack(&w, json, "config.json", &e), -1);
        assert_says(e, bad[i].words);
        json_decref(json);
        kv_weights_clear(&w);
    }
    free_packed(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_packing_decodes_as_numpy_does),
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
