#include "lib/model/packed_header.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/model/config_fields.h"
#include "lib/model/model_files.h"
#include "lib/model/packed_impl.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Each file's name, the object in it that is the header (NULL: the whole file),
 * the words before a field's name in sentences, and the method if the file
 * names none. */
static const struct {
    const char *file, *object, *in, *method;
} places[] = {
    {"config.json", "quantization_config", "quantization_config.", "(none)"},
    {"hf_quant_config.json", "quantization", "quantization.", "modelopt"},
    {"quantize_config.json", NULL, "", "gptq"},
    {"quant_config.json", NULL, "", "awq"}};
enum { N_PLACES = sizeof(places) / sizeof(*places) };

static const char *text_of(const struct kv_fields *f, const char *name,
                           const char *missing)
{
    const char *text = json_string_value(json_object_get(f->json, name));

    return text ? text : missing;
}

/* ---- gptq and awq -------------------------------------------------------- */

/* Reads a count that has two names, which must agree; -1 (if min allows it)
 * means all, like 0. */
static int read_count(const struct kv_fields *f, const char *name,
                      const char *other, json_int_t min, size_t *n,
                      struct kv_err *e)
{
    const json_t *j = kv_fields_get(f, name), *k = kv_fields_get(f, other);

    if (j && k && !json_equal(j, k))
        return kv_fail(e, "%s: fields %s%s and %s%s contradict each other",
                       f->path, f->in, name, f->in, other);
    name = j || !k ? name : other;
    j = j ? j : k;
    if (!json_is_integer(j) || json_integer_value(j) < min ||
        json_integer_value(j) == 0)
        return kv_fail(e, "%s: field %s%s is no whole number from 1 on%s",
                       f->path, f->in, name, min < 0 ? ", nor -1 for all" : "");
    *n = json_integer_value(j) < 0 ? 0 : (size_t)json_integer_value(j);
    return 0;
}

static int read_bits(struct kv_packed_header *h, const struct kv_fields *f,
                     struct kv_err *e)
{
    const bool awq = h->packing == KV_PACKED_AWQ;
    size_t bits;

    if (read_count(f, "bits", "w_bit", 1, &bits, e))
        return -1;
    if (bits != 4 && (awq || (bits != 2 && bits != 3 && bits != 8)))
        return kv_fail(e, "%s: %s of %zu bits is not implemented", f->path,
                       awq ? "awq" : "gptq", bits);
    h->bits = (unsigned)bits;
    return 0;
}

/* Fails on fields that change the meaning of the tensors; other fields say how
 * the tensors were made. */
static int check_fields(const struct kv_fields *f, const char *method,
                        struct kv_err *e)
{
    static const struct kv_field fields[] = {
        {"is_marlin_format", "false"}, {"dynamic", "{}"},
        {"pack_dtype", "\"int32\""},   {"rotation", "null"},
        {"adapter", "null"},           {"zero_point", "true"}};

    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        if (kv_fields_get(f, fields[i].name) &&
            (strcmp(fields[i].name, "zero_point") || !strcmp(method, "awq")) &&
            kv_fields_only(f, &fields[i], e))
            return -1;
    return 0;
}

/* Fails unless the field is absent or has one of the known names, which end
 * with NULL.  *is: the index of the name. */
static int check_format(const struct kv_fields *f, const char *name,
                        const char *const *known, const char *said, size_t *is,
                        struct kv_err *e)
{
    const json_t *j = kv_fields_get(f, name);
    const char *text = json_string_value(j);

    for (*is = 0; j && text && known[*is]; ++*is)
        if (!strcasecmp(text, known[*is]))
            return 0;
    return j ? kv_fail(e,
                       "%s: field %s%s is %s, which is not implemented, only "
                       "%s",
                       f->path, f->in, name, text ? text : "no name", said)
             : 0;
}

/* Checks the format; the fields version and backend only name programs in
 * gptq's files. */
static int check_gptq(const struct kv_fields *f, struct kv_err *e)
{
    static const char *const known[] = {"gptq", "gptq_v2", NULL};
    static const char said[] = "gptq and gptq_v2";
    size_t is;

    return check_format(f, "checkpoint_format", known, said, &is, e) ||
                   check_format(f, "format", known, said, &is, e)
               ? -1
               : 0;
}

/* *gemv: whether the format is gemv instead of gemm. */
static int check_awq(const struct kv_fields *f, bool *gemv, struct kv_err *e)
{
    enum { GEMM, GEMV, AUTOAWQ };
    static const char *const names[] = {"checkpoint_format", "format",
                                        "version", "backend"};
    static const char *const known[] = {"gemm", "gemv", "autoawq", NULL};
    const char *of[2] = {NULL, NULL};
    size_t is;

    for (size_t i = 0; i < 4; i++) {
        if (check_format(f, names[i], known, "gemm, gemv and autoawq", &is, e))
            return -1;
        if (kv_fields_get(f, names[i]) && is != AUTOAWQ)
            of[is] = names[i];
    }
    *gemv = of[GEMV];
    return of[GEMM] && of[GEMV]
               ? kv_fail(e,
                         "%s: field %s%s is gemm, but %s%s is gemv: they "
                         "contradict each other",
                         f->path, f->in, of[GEMM], f->in, of[GEMV])
               : 0;
}

static int read_integers(struct kv_packed_header *h, const struct kv_fields *f,
                         struct kv_err *e)
{
    const char *format =
        text_of(f, "checkpoint_format", text_of(f, "format", "gptq"));

    const bool awq = h->packing == KV_PACKED_AWQ;

    if (read_bits(h, f, e) ||
        read_count(f, "group_size", "q_group_size", -1, &h->group, e) ||
        (awq ? check_awq(f, &h->gemv, e) : check_gptq(f, e)) ||
        check_fields(f, awq ? "awq" : "gptq", e))
        return -1;
    if (h->gemv)
        h->packing = KV_PACKED_WORDS;
    if (awq)
        return 0;
    h->zero_less = !strcasecmp(format, "gptq");
    if (kv_fields_flag_if(f, "sym", &h->symmetric, e) ||
        kv_fields_flag_if(f, "static_groups", &h->static_groups, e) ||
        kv_fields_flag_if(f, "desc_act", &h->ordered, e))
        return -1;
    h->in_order = kv_fields_get(f, "desc_act") && !h->ordered;
    return 0;
}

/* ---- fp8 ----------------------------------------------------------------- */

static int read_fp8(struct kv_packed_header *h, const struct kv_fields *f,
                    struct kv_err *e)
{
    const json_t *size = kv_fields_get(f, "weight_block_size");
    const json_int_t rows = json_integer_value(json_array_get(size, 0));
    const json_int_t columns = json_integer_value(json_array_get(size, 1));
    const char *fmt = text_of(f, "fmt", "");

    h->code_type = !strncmp(fmt, "e4m3", 4)   ? KV_STORED_F8_E4M3
                   : !strncmp(fmt, "e5m2", 4) ? KV_STORED_F8_E5M2
                                              : KV_STORED_OTHER;
    if (!size)
        return 0;
    if (json_array_size(size) != 2 || rows < 1 || columns < 1)
        return kv_fail(e, "%s: field %sweight_block_size is not two sizes",
                       f->path, f->in);
    h->block_rows = (size_t)rows;
    h->block_columns = (size_t)columns;
    return 0;
}

/* ModelOpt's FP8 has one scale for each matrix, its NVFP4 also one for each 16
 * inputs. */
static int read_modelopt(struct kv_packed_header *h, const struct kv_fields *f,
                         struct kv_err *e)
{
    static const struct kv_field group = {"group_size", "16"};
    const char *algo = text_of(f, "quant_algo", "(none)");

    if (!strcmp(algo, "FP8"))
        return 0;
    if (strcmp(algo, "NVFP4"))
        return kv_fail(e,
                       "%s: field %squant_algo is %s, which is not "
                       "implemented, only FP8 and NVFP4",
                       f->path, f->in, algo);
    h->packing = KV_PACKED_NVFP4;
    return kv_fields_get(f, "group_size") ? kv_fields_only(f, &group, e) : 0;
}

/* ---- bitsandbytes -------------------------------------------------------- */

static int read_bitsandbytes(struct kv_packed_header *h,
                             const struct kv_fields *f, struct kv_err *e)
{
    static const struct kv_field bytes = {"bnb_4bit_quant_storage",
                                          "\"uint8\""};
    bool four = false, eight = false;

    if (kv_fields_flag_if(f, "load_in_4bit", &four, e) ||
        kv_fields_flag_if(f, "load_in_8bit", &eight, e))
        return -1;
    if (four == eight)
        return kv_fail(e,
                       "%s: fields %sload_in_4bit and %sload_in_8bit: one of "
                       "them is expected to be true",
                       f->path, f->in, f->in);
    h->bitsandbytes = true;
    h->int8 = eight;
    h->packing = four ? KV_PACKED_LEVELS : KV_PACKED_SCALED;
    return four && kv_fields_get(f, bytes.name) ? kv_fields_only(f, &bytes, e)
                                                : 0;
}

/* ---- all ----------------------------------------------------------------- */

static int read_method(struct kv_packed_header *h, const struct kv_fields *f,
                       const char *missing, struct kv_err *e)
{
    const char *method = text_of(f, "quant_method", missing);

    if (!json_is_object(f->json))
        return kv_fail(e, "%s: the quantization's header is no object",
                       f->path);
    h->packing = KV_PACKED_SCALED;
    h->code_type = KV_STORED_OTHER;
    if (!strcmp(method, "fp8"))
        return read_fp8(h, f, e);
    if (!strcmp(method, "modelopt"))
        return read_modelopt(h, f, e);
    if (!strcmp(method, "compressed-tensors"))
        return kv_packed_compressed(h, f, e);
    if (!strcmp(method, "bitsandbytes"))
        return read_bitsandbytes(h, f, e);
    if (!strcmp(method, "mxfp4")) {
        h->packing = KV_PACKED_MXFP4;
        return 0;
    }
    h->packing = strcmp(method, "awq") ? KV_PACKED_GPTQ : KV_PACKED_AWQ;
    if (strcmp(method, "awq") && strcmp(method, "gptq"))
        return kv_fail(e,
                       "%s: field %squant_method is %s; only fp8, modelopt, "
                       "compressed-tensors, bitsandbytes, mxfp4, gptq and "
                       "awq are implemented",
                       f->path, f->in, method);
    return read_integers(h, f, e);
}

/* Reads the header in file i; *there: it has one. */
static int read_file(struct kv_packed_header *h, size_t i, const char *dir,
                     bool *there, struct kv_err *e)
{
    const char *object = places[i].object;
    const json_t *j;
    json_t *file;
    int rc = 0;

    *h = (struct kv_packed_header){.path = kv_model_file(dir, places[i].file)};
    *there = kv_file_exists(h->path);
    if (!*there)
        return 0;
    file = kv_json_read(h->path, e);
    if (!file)
        return -1;
    j = object ? json_object_get(file, object) : file;
    *there = j && !json_is_null(j);

    const struct kv_fields f = {.path = h->path, .in = places[i].in, .json = j};

    if (*there)
        rc = read_method(h, &f, places[i].method, e);
    json_decref(file);
    return rc;
}

/* Whether two files contradict each other; other loaders may read only one of
 * them. */
static bool differ(const struct kv_packed_header *a,
                   const struct kv_packed_header *b)
{
    return a->packing != b->packing || a->compressed != b->compressed ||
           a->int8 != b->int8 || a->bitsandbytes != b->bitsandbytes ||
           a->gemv != b->gemv || a->bits != b->bits || a->group != b->group ||
           a->zero_less != b->zero_less || a->block_rows != b->block_rows ||
           a->block_columns != b->block_columns;
}

int kv_packed_header_read(struct kv_packed_header *h, const char *dir,
                          struct kv_err *e)
{
    int rc = 0;

    *h = (struct kv_packed_header){0};
    for (size_t i = 0; i < N_PLACES && !rc; i++) {
        struct kv_packed_header one;
        bool there;

        rc = read_file(&one, i, dir, &there, e);
        if (!rc && there && h->path && differ(h, &one))
            rc = kv_fail(e,
                         "%s and %s contradict each other in how weights are "
                         "packed",
                         h->path, one.path);
        if (!rc && there && !h->path)
            *h = one;
        else
            kv_packed_header_clear(&one);
    }
    return rc;
}

void kv_packed_header_clear(struct kv_packed_header *h)
{
    free(h->path);
    *h = (struct kv_packed_header){0};
}
