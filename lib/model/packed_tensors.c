#include "lib/model/packed_tensors.h"
#include "lib/base/alloc.h"
#include "lib/model/packed_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPE = KV_PACKED_SHAPE };

/* ---- a tensor's shape by the header ------------------------------------ */

static int check_shape(const struct kv_packed_header *h,
                       const struct kv_weight *t, const struct kv_weight *of,
                       size_t rows, size_t columns, struct kv_err *e)
{
    const size_t want[2] = {rows, columns};

    return kv_packed_shape(h, t, of, want, 2, e);
}

/* ---- fp8 ----------------------------------------------------------------- */

/* Without weight_block_size: one scale for the whole matrix, or one for each
 * row. */
static int set_blocks(struct kv_packed *p, const struct kv_packed_header *h,
                      const struct kv_weight *t, const struct kv_weight *scale,
                      struct kv_err *e)
{
    const bool column =
        scale->n_dims < 2 || (scale->n_dims == 2 && scale->dims[1] == 1);
    const bool said = h->by_row      ? scale->n == p->rows
                      : h->by_tensor ? scale->n == 1
                                     : true;
    char is[SHAPE];

    p->block_rows = scale->n == 1 ? p->rows : 1;
    p->block_columns = p->columns;
    if (column && said && (scale->n == 1 || scale->n == p->rows))
        return 0;
    kv_packed_dims(is, scale->dims, scale->n_dims);
    return kv_fail(e,
                   "%s: tensor %s has shape [%s]; for the %zu rows of tensor "
                   "%s and without weight_block_size it is [], [1] or [%zu, "
                   "1]%s",
                   scale->path, scale->name, is, p->rows, t->name, p->rows,
                   said ? "" : ", and strategy says which");
}

static int read_scaled(struct kv_packed *p, const struct kv_packed_header *h,
                       const struct kv_weight *t, const struct kv_weight *scale,
                       struct kv_err *e)
{
    if (t->n_dims != 2 || !t->n)
        return kv_fail(e, "%s: tensor %s is no matrix, but %s is beside it",
                       t->path, t->name, scale->name);
    if (h->code_type != KV_STORED_OTHER && h->code_type != t->type)
        return kv_fail(e, "%s: tensor %s has type %s; fmt in %s is %s", t->path,
                       t->name, t->dtype, h->path,
                       h->code_type == KV_STORED_F8_E4M3 ? "e4m3" : "e5m2");
    *p = (struct kv_packed){.packing = KV_PACKED_SCALED,
                            .rows = t->dims[0],
                            .columns = t->dims[1],
                            .block_rows = h->block_rows,
                            .block_columns = h->block_columns,
                            .code_type = t->type,
                            .code = t->data};
    if (kv_packed_scales(p, scale, e))
        return -1;
    return h->block_rows
               ? check_shape(h, scale, t, (p->rows - 1) / p->block_rows + 1,
                             (p->columns - 1) / p->block_columns + 1, e)
               : set_blocks(p, h, t, scale, e);
}

/* ---- gptq and awq -------------------------------------------------------- */

/* Checks zeros of 3 bits.  Files of format gptq hold zeros minus 1, but two
 * programs subtract it from different bits: AutoGPTQ from each code, GPTQModel
 * from the words as numbers, by its own pattern.  If sym says that all zeros
 * are 4, the bits show which program it was. */
static int check_thirds(struct kv_packed *p, const struct kv_packed_header *h,
                        const struct kv_weight *zero, struct kv_err *e)
{
    static const uint32_t fours[3][3] = {
        {0x24924924, 0x49249249, 0x92492492}, /* gptq_v2 */
        {0xdb6db6db, 0xb6db6db6, 0x6db6db6d}, /* threes, AutoGPTQ's */
        {0x00000000, 0xb6db6db7, 0x49249249}  /* GPTQModel's */
    };
    bool is[3] = {!p->zero_less, p->zero_less, p->zero_less};

    if (!h->symmetric)
        return p->zero_less
                   ? kv_fail(e,
                             "%s: tensor %s: sym is not true in %s; of bits 3 "
                             "and checkpoint_format gptq, in which programs "
                             "hold such zeros differently, this is not "
                             "implemented, only gptq_v2",
                             zero->path, zero->name, h->path)
                   : 0;
    for (size_t i = 0; i < zero->n; i++) {
        uint32_t word;

        memcpy(&word, zero->data + 4 * i, sizeof(word));
        for (size_t k = 0; k < 3; k++)
            is[k] = is[k] && word == fours[k][i % 3];
    }
    p->all_middle = true;
    return is[0] || is[1] || is[2]
               ? 0
               : kv_fail(e,
                         "%s: tensor %s: sym is true in %s, so that every zero "
                         "is 4, but not all are as checkpoint_format %s has "
                         "them: they contradict each other",
                         zero->path, zero->name, h->path,
                         p->zero_less ? "gptq" : "gptq_v2");
}

/* If sym is true, checks that all zeros are 2^(bits - 1), once the 1 that the
 * format subtracts is added. */
static int check_zeros(struct kv_packed *p, const struct kv_packed_header *h,
                       const struct kv_weight *zero, struct kv_err *e)
{
    const uint32_t ones = UINT32_MAX / ((1u << p->bits) - 1);
    const uint32_t middle = 1u << (p->bits - 1);

    if (p->bits == 3)
        return check_thirds(p, h, zero, e);
    for (size_t i = 0; i < zero->n && h->symmetric; i++) {
        uint32_t word;
        size_t k = 0;

        memcpy(&word, zero->data + 4 * i, sizeof(word));
        word += p->zero_less ? ones : 0;
        while (k < 32 && (word >> k & ((1u << p->bits) - 1)) == middle)
            k += p->bits;
        if (k < 32)
            return kv_fail(
                e,
                "%s: tensor %s: sym is true in %s, so that every zero is %u, "
                "but one of word %zu is %u, read as checkpoint_format %s has "
                "it: they contradict each other",
                zero->path, zero->name, h->path, middle, i,
                word >> k & ((1u << p->bits) - 1),
                p->zero_less ? "gptq" : "gptq_v2");
    }
    return 0;
}

/* Checks that every group has the header's group_size inputs and the last group
 * the remaining inputs, and that without act order groups are consecutive. */
static int check_groups(const struct kv_packed *p,
                        const struct kv_packed_header *h,
                        const struct kv_weight *group, struct kv_err *e)
{
    size_t *count = kv_alloc(p->n_groups, sizeof(*count));
    int rc = 0;

    for (size_t i = 0; i < p->columns && !rc; i++) {
        uint32_t g;

        memcpy(&g, group->data + 4 * i, sizeof(g));
        if (g >= p->n_groups)
            rc = kv_fail(e, "%s: tensor %s: input %zu is of group %d of %zu",
                         group->path, group->name, i, (int32_t)g, p->n_groups);
        else if (h->in_order && g != i / p->block_columns)
            rc = kv_fail(e,
                         "%s: tensor %s: input %zu is of group %u, but "
                         "desc_act is false and group_size %zu in %s",
                         group->path, group->name, i, g, p->block_columns,
                         h->path);
        else
            count[g]++;
    }
    for (size_t g = 0; g < p->n_groups && !rc; g++) {
        const size_t rest = p->columns - g * p->block_columns;
        const size_t want = rest < p->block_columns ? rest : p->block_columns;

        if (count[g] != want)
            rc = kv_fail(e,
                         "%s: tensor %s: group %zu has %zu inputs; by "
                         "group_size %zu in %s it has %zu",
                         group->path, group->name, g, count[g],
                         p->block_columns, h->path, want);
    }
    free(count);
    return rc;
}

/* Reads qweight alone; n_groups follows from group_size. */
static int read_codes(struct kv_packed *p, const struct kv_packed_header *h,
                      const struct kv_weight *t, struct kv_err *e)
{
    const size_t words = h->bits == 3 ? 3 : 1, per = 32 * words / h->bits;
    const bool awq = h->packing == KV_PACKED_AWQ;

    if (kv_packed_type(t, "I32", e))
        return -1;
    if (t->n_dims != 2 || !t->n || (!awq && t->dims[0] % words))
        return kv_fail(e, "%s: tensor %s is no matrix%s", t->path, t->name,
                       words > 1 ? " of three words for 32 inputs" : "");
    *p = (struct kv_packed){.packing = h->packing,
                            .rows = t->dims[1] * (awq ? per : 1),
                            .columns = t->dims[0] / (awq ? 1 : words) *
                                       (awq ? 1 : per),
                            .bits = h->bits,
                            .zero_less = h->zero_less,
                            .code = t->data};
    if (p->rows % per)
        return kv_fail(e,
                       "%s: tensor %s has %zu outputs, which do not fill words "
                       "of %zu zeros of bits %u in %s",
                       t->path, t->name, p->rows, per, h->bits, h->path);
    p->block_columns = h->group ? h->group : p->columns;
    p->n_groups = (p->columns - 1) / p->block_columns + 1;
    return 0;
}

/* Reads g_idx; without g_idx, groups are consecutive inputs. */
static int read_groups(struct kv_packed *p, const struct kv_packed_header *h,
                       const struct kv_weight *t, const struct kv_weight *group,
                       struct kv_err *e)
{
    const size_t want[1] = {p->columns};

    if (!group && h->ordered && !h->static_groups && p->n_groups > 1)
        return kv_fail(e,
                       "%s: tensor %s has no g_idx beside it, which desc_act "
                       "in %s wants: it says which group an input is of",
                       t->path, t->name, h->path);
    if (!group)
        return p->n_groups > 1 && p->columns % p->block_columns
                   ? kv_fail(e,
                             "%s: tensor %s: group_size %zu in %s does not "
                             "divide its %zu inputs, and no g_idx is beside it",
                             t->path, t->name, p->block_columns, h->path,
                             p->columns)
                   : 0;
    if (kv_packed_type(group, "I32", e))
        return -1;
    if (group->n != p->columns)
        return kv_packed_shape(h, group, t, want, 1, e);
    p->group = group->data;
    return check_groups(p, h, group, e);
}

/* t: X.qweight, n letters of X and its dot. */
static int read_words(struct kv_packed *p, const struct kv_packed_header *h,
                      const struct kv_weights *w, const struct kv_weight *t,
                      size_t n, struct kv_err *e)
{
    const struct kv_weight *scale = kv_packed_part(w, t->name, n, "scales");
    const struct kv_weight *zero = kv_packed_part(w, t->name, n, "qzeros");
    const struct kv_weight *group = h->packing == KV_PACKED_GPTQ
                                        ? kv_packed_part(w, t->name, n, "g_idx")
                                        : NULL;

    if (!scale || !zero)
        return kv_fail(e, "%s: tensor %s has no %s beside it", t->path, t->name,
                       scale ? "qzeros" : "scales");
    if (read_codes(p, h, t, e) || kv_packed_scales(p, scale, e) ||
        check_shape(h, scale, t, p->n_groups, p->rows, e) ||
        kv_packed_type(zero, "I32", e) ||
        check_shape(h, zero, t, p->n_groups, p->rows * h->bits / 32, e))
        return -1;
    p->zero = zero->data;
    return read_groups(p, h, t, group, e) || check_zeros(p, h, zero, e) ? -1
                                                                        : 0;
}

/* Reads AutoAWQ's gemv layout: words run along the inputs.  A row's zeros and
 * scales are padded to whole words, and the number of words to a multiple that
 * depends on group_size. */
static int read_gemv(struct kv_packed *p, const struct kv_packed_header *h,
                     const struct kv_weights *w, const struct kv_weight *t,
                     size_t n, struct kv_err *e)
{
    enum { PER = 8, WHOLE = 128 };
    const struct kv_weight *scale = kv_packed_part(w, t->name, n, "scales");
    const struct kv_weight *zero = kv_packed_part(w, t->name, n, "qzeros");
    size_t size, times;

    if (!scale || !zero)
        return kv_fail(e, "%s: tensor %s has no %s beside it", t->path, t->name,
                       scale ? "qzeros" : "scales");
    if (kv_packed_type(t, "I32", e))
        return -1;
    if (t->n_dims != 2 || !t->n)
        return kv_fail(e, "%s: tensor %s is no matrix", t->path, t->name);
    size = h->group ? h->group : PER * t->dims[1];
    if (PER * t->dims[1] % size ||
        (size < WHOLE && size != WHOLE / 2 && size != WHOLE / 4))
        return kv_fail(e,
                       "%s: tensor %s has %zu inputs in groups of %zu "
                       "(group_size in %s); of version gemv a divisor is known "
                       "that is 32, 64, or at least 128",
                       t->path, t->name, PER * t->dims[1], size, h->path);
    *p = (struct kv_packed){.packing = KV_PACKED_WORDS,
                            .rows = t->dims[0],
                            .columns = PER * t->dims[1],
                            .block_columns = size,
                            .bits = h->bits,
                            .n_groups = PER * t->dims[1] / size,
                            .code = t->data,
                            .zero = zero->data};
    times = size < WHOLE ? WHOLE / size : 1;
    p->padded = ((p->n_groups - 1) / PER / times + 1) * times;
    return kv_packed_scales(p, scale, e) ||
                   check_shape(h, scale, t, p->rows, PER * p->padded, e) ||
                   kv_packed_type(zero, "I32", e) ||
                   check_shape(h, zero, t, p->rows, p->padded, e)
               ? -1
               : 0;
}

/* ---- all ----------------------------------------------------------------- */

static bool is_fp8(const struct kv_weight *t)
{
    return t->type == KV_STORED_F8_E4M3 || t->type == KV_STORED_F8_E5M2;
}

/* Adds the matrix p, which will replace w->weight[i], the tensor of its
 * codes. */
static void add(struct kv_weights *w, size_t i, const struct kv_packed *p,
                size_t n)
{
    const struct kv_weight *t = w->weight[i];
    struct kv_unpacked *u = kv_alloc(1, sizeof(*u));

    u->packed = *p;
    u->weight = *t;
    snprintf(u->name, sizeof(u->name), "%.*s%s", (int)n, t->name,
             t->n_dims > 2 ? "" : "weight");
    u->weight.name = u->name;
    u->weight.type = is_fp8(t) ? t->type : KV_STORED_F32;
    u->weight.packed = &u->packed;
    u->weight.n_dims = 2;
    u->weight.dims[0] = p->rows;
    u->weight.dims[1] = p->columns;
    u->weight.n = p->rows * p->columns;
    if (t->n_dims > 2) { /* several matrices of mxfp4 */
        u->weight.n_dims = 3;
        u->weight.dims[0] = t->dims[0];
        u->weight.dims[1] = t->dims[1];
        u->weight.dims[2] = p->columns;
    }
    u->next = w->unpacked;
    u->at = i;
    w->unpacked = u;
}

/* The number of letters of `name` before its ending `last`; 0: it has another
 * ending. */
static size_t before(const char *name, const char *last)
{
    const size_t n = strlen(name), n_last = strlen(last);

    return n > n_last && n < KV_UNPACKED_NAME &&
                   !strcmp(name + n - n_last, last)
               ? n - n_last
               : 0;
}

static int not_packed(const struct kv_weight *t, struct kv_err *e)
{
    return kv_fail(e,
                   "%s: tensor %s has type %s: only matrices that are called "
                   "weight may have it, where quant_method is fp8",
                   t->path, t->name, t->dtype);
}

/* Reads codes of 8 bits with their scale; fails without the scale. */
static int unpack_scaled(struct kv_packed *p, const struct kv_packed_header *h,
                         const struct kv_weights *w, const struct kv_weight *t,
                         size_t n, struct kv_err *e)
{
    const struct kv_weight *scale;

    if (!n)
        return not_packed(t, e);
    scale = kv_packed_part(w, t->name, n, "weight_scale_inv");
    scale = scale ? scale : kv_packed_part(w, t->name, n, "weight_scale");
    if (!scale)
        return kv_fail(e,
                       "%s: tensor %s has type %s, but its scale is missing: "
                       "tensor %.*sweight_scale%s",
                       t->path, t->name, t->dtype, (int)n, t->name,
                       h->block_rows ? "_inv" : "");
    return read_scaled(p, h, t, scale, e);
}

/* The ending of the name of the tensor that holds a matrix's codes. */
static const char *code_name(const struct kv_packed_header *h)
{
    static const char *const names[] = {
        [KV_PACKED_SCALED] = "weight", [KV_PACKED_GPTQ] = "qweight",
        [KV_PACKED_AWQ] = "qweight",   [KV_PACKED_WORDS] = "qweight",
        [KV_PACKED_NVFP4] = "weight",  [KV_PACKED_MXFP4] = "_blocks",
        [KV_PACKED_LEVELS] = "weight"};

    return h->compressed && h->packing != KV_PACKED_SCALED ? "weight_packed"
                                                           : names[h->packing];
}

/* The letters before code_name() in t's name; 0: t holds no codes. */
static size_t before_codes(const struct kv_packed_header *h,
                           const struct kv_weight *t)
{
    const size_t n = before(t->name, code_name(h));

    if ((h->packing == KV_PACKED_NVFP4 && !h->compressed) ||
        h->packing == KV_PACKED_LEVELS)
        return strcmp(t->dtype, "U8") ? 0 : n;
    return h->int8 && strcmp(t->dtype, "I8") ? 0 : n;
}

static int unpack(struct kv_weights *w, size_t i,
                  const struct kv_packed_header *h, struct kv_err *e)
{
    const struct kv_weight *t = w->weight[i];
    const bool fp8 = h->packing == KV_PACKED_SCALED && !h->int8;
    const size_t n = before_codes(h, t);
    struct kv_packed p;
    int rc;

    if (fp8 ? !is_fp8(t) : !n)
        return 0;
    switch (h->packing) {
    case KV_PACKED_SCALED:
        rc = h->bitsandbytes ? kv_packed_bitsandbytes(&p, h, w, t, n, e)
                             : unpack_scaled(&p, h, w, t, n, e);
        break;
    case KV_PACKED_LEVELS:
        rc = kv_packed_bitsandbytes(&p, h, w, t, n, e);
        break;
    case KV_PACKED_GPTQ:
    case KV_PACKED_AWQ:
        rc = read_words(&p, h, w, t, n, e);
        break;
    default:
        rc = h->gemv ? read_gemv(&p, h, w, t, n, e)
                     : kv_packed_blocks(&p, h, w, t, n, e);
    }
    if (rc)
        return -1;
    if (kv_packed_check(&p, e))
        return kv_fail_in(e, "%s: tensor %s", t->path, t->name);
    add(w, i, &p, n);
    return 0;
}

/* Fails if tensors are packed but no header says so. */
static int check_plain(const struct kv_weights *w, const char *dir,
                       struct kv_err *e)
{
    for (size_t i = 0; i < w->n_weights; i++) {
        const struct kv_weight *t = w->weight[i];

        if (is_fp8(t) || before(t->name, ".qweight") ||
            before(t->name, ".weight_packed") ||
            before(t->name, ".weight_scale") || before(t->name, "_blocks") ||
            before(t->name, ".absmax") || before(t->name, ".SCB"))
            return kv_fail(e,
                           "%s: tensor %s is packed, but config.json of %s has "
                           "no quantization_config, and no other file there "
                           "says how (hf_quant_config.json, "
                           "quantize_config.json, quant_config.json)",
                           t->path, t->name, dir);
    }
    return 0;
}

/* If blocks do not divide a side, other block sizes give the same number of
 * scales; only a side that the size divides shows that it is right. */
static int check_blocks(const struct kv_weights *w,
                        const struct kv_packed_header *h, struct kv_err *e)
{
    bool several[2] = {false}, divides[2] = {false};

    for (const struct kv_unpacked *u = w->unpacked; u; u = u->next) {
        const struct kv_packed *p = &u->packed;

        several[0] |= p->rows > p->block_rows;
        several[1] |= p->columns > p->block_columns;
        divides[0] |= p->rows % p->block_rows == 0;
        divides[1] |= p->columns % p->block_columns == 0;
    }
    for (size_t i = 0; i < 2; i++)
        if (several[i] && !divides[i])
            return kv_fail(
                e,
                "%s: %s [%zu, %zu] divides the %s of no matrix of "
                "the model",
                h->path,
                h->compressed ? "block_structure" : "weight_block_size",
                h->block_rows, h->block_columns, i ? "columns" : "rows");
    return 0;
}

/* Refuses zeros or scales without their codes, and codes of another packing. */
static int check_parts(const struct kv_weights *w,
                       const struct kv_packed_header *h, struct kv_err *e)
{
    const char *codes = h->compressed ? "weight_packed" : "qweight";

    for (size_t i = 0; i < w->n_weights; i++) {
        const struct kv_weight *t = w->weight[i];
        const size_t n =
            before(t->name, h->compressed ? "weight_scale" : "qzeros");

        if (is_fp8(t) && !before(t->name, "weight_scale"))
            return not_packed(t, e);
        if (n && !kv_packed_part(w, t->name, n, codes))
            return kv_fail(e, "%s: tensor %s has no %s beside it", t->path,
                           t->name, codes);
    }
    return 0;
}

static int unpack_all(struct kv_weights *w, const struct kv_packed_header *h,
                      struct kv_err *e)
{
    if (h->packing != KV_PACKED_SCALED && check_parts(w, h, e))
        return -1;
    for (size_t i = 0; i < w->n_weights; i++)
        if (unpack(w, i, h, e))
            return -1;
    if (!w->unpacked)
        return kv_fail(
            e, "%s says that weights are packed, but no tensor is %s%s%s",
            h->path,
            h->packing == KV_PACKED_SCALED ? "of type "
            : *code_name(h) == '_'         ? "called ..."
                                           : "called ",
            h->packing != KV_PACKED_SCALED ? code_name(h)
            : h->int8                      ? "I8"
                                           : "F8",
            h->packing == KV_PACKED_NVFP4 && !h->compressed ? " and of type U8"
                                                            : "");
    if (h->block_rows && check_blocks(w, h, e))
        return -1;
    for (struct kv_unpacked *u = w->unpacked; u; u = u->next)
        w->weight[u->at] = &u->weight;
    return kv_weights_sort(w, e);
}

int kv_weights_unpack(struct kv_weights *w, const char *dir, struct kv_err *e)
{
    struct kv_packed_header h;
    int rc = kv_packed_header_read(&h, dir, e);

    if (!rc)
        rc = h.path ? unpack_all(w, &h, e) : check_plain(w, dir, e);
    kv_packed_header_clear(&h);
    return rc;
}
