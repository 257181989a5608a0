#include "lib/base/alloc.h"
#include "lib/h5_head.h"
#include "lib/seq/codes_file.h"
#include "lib/seq/codes_layout.h"
#include "lib/spec.h"

#include <stdlib.h>
#include <string.h>

struct kv_codes_in {
    struct kv_h5 *h;
    struct kv_codes_info info;
    size_t n_specs;
    char (*text)[KV_SPEC_CHARS]; /* [n_specs] */
    const char **texts;          /* [n_specs] pointers into text */
};

static int check_format(struct kv_h5 *h, struct kv_err *e)
{
    int64_t format;

    if (kv_h5_check_kind(h, KV_CODES_KIND, KV_CODES_FORMAT, e) ||
        kv_h5_get_int(h, "/", "format", 1, KV_CODES_FORMAT, &format, e))
        return -1;
    if (format < KV_CODES_FIRST)
        return kv_fail(e,
                       "%s has format %d, which does not say what its bytes "
                       "are: write it again with kvquant --codes",
                       kv_h5_path(h), (int)format);
    return 0;
}

static int get_info(struct kv_h5 *h, struct kv_codes_info *i, struct kv_err *e)
{
    enum { MANY = INT32_MAX };
    const struct {
        const char *name;
        char *to;
        size_t capacity;
    } texts[] = {
        {"model", i->model, sizeof(i->model)},
        {"model_hash", i->model_hash, sizeof(i->model_hash)},
        {"text", i->text, sizeof(i->text)},
        {"text_hash", i->text_hash, sizeof(i->text_hash)},
        {"calibration", i->calib_hash, sizeof(i->calib_hash)},
    };
    size_t keep;

    for (size_t t = 0; t < sizeof(texts) / sizeof(*texts); t++)
        if (kv_h5_get_text(h, "/", texts[t].name, texts[t].to,
                           texts[t].capacity, e))
            return -1;
    if (kv_h5_get_shape(h, &i->shape, e) ||
        kv_h5_get_u64(h, "/", "seed", &i->seed, e) ||
        kv_h5_get_size(h, "/", "keep_window", 0, 1, &keep, e) ||
        kv_h5_get_size(h, "/", "n_windows", 1, MANY, &i->n_windows, e) ||
        kv_h5_get_size(h, "/", "ctx", 1, MANY, &i->ctx, e) ||
        kv_h5_get_size(h, "/", "last_layer", 0, i->shape.n_layers - 1,
                       &i->last_layer, e) ||
        kv_h5_get_size(h, "/", "first_layer", 0, i->last_layer, &i->first_layer,
                       e))
        return -1;
    i->keep_window = keep;
    return 0;
}

static int get_specs(struct kv_codes_in *c, struct kv_err *e)
{
    while (c->n_specs < KV_MAX_SPECS &&
           kv_h5_has(c->h, kv_codes_spec_group(c->n_specs).text))
        c->n_specs++;
    if (!c->n_specs)
        return kv_fail(e, "%s has no %s", kv_h5_path(c->h),
                       kv_codes_spec_group(0).text);
    c->text = kv_alloc(c->n_specs, sizeof(*c->text));
    c->texts = kv_alloc(c->n_specs, sizeof(*c->texts));
    for (size_t i = 0; i < c->n_specs; i++) {
        c->texts[i] = c->text[i];
        if (kv_h5_get_text(c->h, kv_codes_spec_group(i).text, "spec",
                           c->text[i], sizeof(c->text[i]), e))
            return -1;
    }
    return 0;
}

int kv_codes_open(struct kv_codes_in **out, const char *path, struct kv_err *e)
{
    struct kv_codes_in *c = kv_alloc(1, sizeof(*c));

    if (kv_h5_open(&c->h, path, e) || check_format(c->h, e) ||
        get_info(c->h, &c->info, e) || get_specs(c, e)) {
        kv_codes_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

void kv_codes_close(struct kv_codes_in *c)
{
    if (!c)
        return;
    kv_h5_close(c->h);
    free(c->text);
    free(c->texts);
    free(c);
}

const struct kv_codes_info *kv_codes_about(const struct kv_codes_in *c)
{
    return &c->info;
}

const char *kv_codes_path(const struct kv_codes_in *c)
{
    return kv_h5_path(c->h);
}

size_t kv_codes_specs(const struct kv_codes_in *c, const char *const **texts)
{
    *texts = c->texts;
    return c->n_specs;
}

/* Finds a plane's dataset [windows][n], or a window's dataset [n] if sizes
 * vary. */
static int find_plane(struct kv_codes_in *c, struct kv_codes_name *name,
                      size_t window, size_t *n_dims, size_t *n,
                      struct kv_err *e)
{
    const struct kv_codes_name one = kv_codes_plane_window(name, window);
    size_t dims[KV_H5_MAX_DIMS];

    if (kv_h5_has(c->h, one.text))
        *name = one;
    if (kv_h5_dims(c->h, name->text, n_dims, dims, e))
        return -1;
    if (*n_dims > 2 || (*n_dims == 2 && dims[0] != c->info.n_windows))
        return kv_fail(e, "%s: %s: expected the bytes of %zu windows",
                       kv_h5_path(c->h), name->text, c->info.n_windows);
    *n = dims[*n_dims - 1];
    return 0;
}

static int get_side(struct kv_codes_in *c, struct kv_codes_name name,
                    size_t window, uint8_t **bytes, size_t *n, struct kv_err *e)
{
    size_t n_dims;

    if (find_plane(c, &name, window, &n_dims, n, e))
        return -1;

    const size_t skip = n_dims == 1;
    const size_t dims[] = {c->info.n_windows, *n};
    const size_t first[] = {window, 0}, count[] = {1, *n};

    if (kv_h5_check(c->h, name.text, KV_H5_U8, n_dims, dims + skip, e))
        return -1;
    *bytes = kv_alloc(*n, 1);
    return kv_h5_read(c->h, name.text, KV_H5_U8, first + skip, count + skip,
                      *bytes, e);
}

int kv_codes_get(struct kv_codes_in *c, const char *text, size_t layer,
                 size_t window, uint8_t *bytes[KV_SIDES],
                 struct kv_side_bytes side[KV_SIDES], struct kv_err *e)
{
    const size_t dims[] = {c->info.n_windows, KV_SIDES};
    const size_t first[] = {window, 0}, count[] = {1, KV_SIDES};
    uint64_t clipped[KV_SIDES];
    struct kv_codes_name name;
    size_t spec = 0;

    while (spec < c->n_specs && strcmp(c->texts[spec], text) != 0)
        spec++;
    if (spec == c->n_specs)
        return kv_fail(e, "%s has no codes of %s", kv_h5_path(c->h), text);
    name = kv_codes_pairs(spec, layer, "clipped");
    if (kv_h5_check(c->h, name.text, KV_H5_U64, 2, dims, e) ||
        kv_h5_read(c->h, name.text, KV_H5_U64, first, count, clipped, e))
        return -1;
    for (int i = 0; i < KV_SIDES; i++) {
        size_t n = 0;

        if (i < kv_shape_sides(&c->info.shape) &&
            get_side(c, kv_codes_plane(spec, layer, (enum kv_side)i), window,
                     &bytes[i], &n, e))
            return -1;
        side[i] = (struct kv_side_bytes){.bytes = bytes[i],
                                         .n = n,
                                         .n_tokens = c->info.ctx,
                                         .clipped = clipped[i]};
    }
    return 0;
}
