#include "lib/seq/codes_file.h"
#include "lib/base/alloc.h"
#include "lib/h5_head.h"
#include "lib/scheme.h"
#include "lib/seq/cache_bytes.h"
#include "lib/seq/codes_layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_codes {
    struct kv_h5 *h;
    size_t n_windows;
};

static int put_info(struct kv_h5 *h, const struct kv_codes_info *i,
                    struct kv_err *e)
{
    const struct kv_shape *s = &i->shape;
    const size_t dims[] = {s->n_layers, s->n_kv_heads, s->head_dim};

    kv_h5_put_kind(h, KV_CODES_KIND,
                   kv_h5_has_pairs(s) ? KV_CODES_FORMAT : KV_CODES_FIRST);
    kv_h5_put_text(h, "/", "model", i->model);
    kv_h5_put_text(h, "/", "model_hash", i->model_hash);
    kv_h5_put_text(h, "/", "text", i->text);
    kv_h5_put_text(h, "/", "text_hash", i->text_hash);
    kv_h5_put_text(h, "/", "calibration", i->calib_hash);
    kv_h5_put_u64(h, "/", "seed", i->seed);
    kv_h5_put_int(h, "/", "keep_window", i->keep_window);
    kv_h5_put_int(h, "/", "n_windows", (int64_t)i->n_windows);
    kv_h5_put_int(h, "/", "ctx", (int64_t)i->ctx);
    kv_h5_put_int(h, "/", "first_layer", (int64_t)i->first_layer);
    kv_h5_put_int(h, "/", "last_layer", (int64_t)i->last_layer);
    if (kv_h5_put_shape(h, s, e))
        return -1;
    if (!s->k_bias)
        return 0;
    kv_h5_dataset(h, "/k_bias", KV_H5_F32, 3, dims);
    return kv_h5_write(h, "/k_bias", KV_H5_F32, NULL, NULL, s->k_bias, e);
}

int kv_codes_create(struct kv_codes **out, const char *path,
                    const struct kv_codes_info *info, struct kv_err *e)
{
    struct kv_codes *c = kv_alloc(1, sizeof(*c));

    c->n_windows = info->n_windows;
    if (kv_h5_create(&c->h, path, e) || put_info(c->h, info, e)) {
        kv_codes_discard(c);
        return -1;
    }
    *out = c;
    return 0;
}

/* Appends the next part to a layout's text. */
__attribute__((format(printf, 3, 4))) static void
add(char *text, size_t capacity, const char *format, ...)
{
    const size_t at = strlen(text);
    va_list args;

    va_start(args, format);
    snprintf(text + at, capacity - at, "%s", at ? " | " : "");
    vsnprintf(text + strlen(text), capacity - strlen(text), format, args);
    va_end(args);
}

static void put_layout(struct kv_h5 *h, const char *name,
                       const struct kv_codec *c, const struct kv_side_counts *n)
{
    const size_t heads = c->shape.n_kv_heads, dim = c->shape.head_dim;
    char text[512] = "";

    if (n->sinks)
        add(text, sizeof(text), "sinks f16[%zu][%zu][%zu]", n->sinks, heads,
            dim);
    if (c->variable)
        add(text, sizeof(text), "sizes u32[%zu] | blocks u8[sum of sizes]",
            n->blocks);
    else if (n->blocks)
        add(text, sizeof(text), "blocks u8[%zu][%zu]", n->blocks,
            c->block_bytes);
    if (n->open)
        add(text, sizeof(text), "open block u8[%zu]",
            c->history->open_bytes(c, n->open));
    if (n->tail)
        add(text, sizeof(text), "tail f16[%zu][%zu][%zu]", n->tail, heads, dim);
    if (c->side == KV_K && c->scheme->probe)
        add(text, sizeof(text), "queries f16[probes of the tail][%zu][%zu]",
            c->shape.n_heads, dim);
    if (c->massive)
        add(text, sizeof(text), "massive u32[n], f16[n][%zu][%zu]", heads, dim);
    kv_h5_put_text(h, name, "layout", text);
}

static void put_plane(struct kv_h5 *h, const char *name,
                      const struct kv_codec *c, size_t tokens)
{
    const struct kv_side_counts n = kv_side_counts(c, tokens);

    kv_h5_put_text(h, name, "spec", c->spec.text);
    kv_h5_put_int(h, name, "pre_rope", c->pre_rope);
    kv_h5_put_int(h, name, "less_bias", c->less_bias);
    kv_h5_put_int(h, name, "sinks", (int64_t)n.sinks);
    kv_h5_put_int(h, name, "blocks", (int64_t)n.blocks);
    kv_h5_put_int(h, name, "block", (int64_t)c->block);
    kv_h5_put_int(h, name, "block_bytes", (int64_t)c->block_bytes);
    kv_h5_put_int(h, name, "tail", (int64_t)n.tail);
    kv_h5_put_int(h, name, "open", (int64_t)n.open);
    put_layout(h, name, c, &n);
}

static void make_group(struct kv_h5 *h, const char *name)
{
    if (!kv_h5_has(h, name))
        kv_h5_group(h, name);
}

/* Makes the groups of the window's spec and layer at their first use. */
static void make_layer(struct kv_h5 *h, const struct kv_codes_window *w)
{
    const struct kv_codes_name spec = kv_codes_spec_group(w->spec);

    if (!kv_h5_has(h, spec.text)) {
        kv_h5_group(h, spec.text);
        kv_h5_put_text(h, spec.text, "spec", w->text);
    }
    make_group(h, kv_codes_layer_group(w->spec, w->layer).text);
}

static int put_side(struct kv_codes *c, const struct kv_codes_window *w,
                    enum kv_side side, struct kv_err *e)
{
    const struct kv_codec *codec = w->codec[side];
    const struct kv_codes_name plane = kv_codes_plane(w->spec, w->layer, side);
    const bool varies = kv_codec_varies(codec);
    const struct kv_codes_name set =
        varies ? kv_codes_plane_window(&plane, w->window) : plane;
    const size_t n = w->side[side].n;
    const size_t dims[] = {c->n_windows, n};
    const size_t first[] = {w->window, 0}, count[] = {1, n};
    const bool is_new = !kv_h5_has(c->h, plane.text);

    if (varies && is_new)
        kv_h5_group(c->h, plane.text);
    if (!kv_h5_has(c->h, set.text))
        kv_h5_dataset(c->h, set.text, KV_H5_U8, 2 - varies, dims + varies);
    if (is_new)
        put_plane(c->h, plane.text, codec, w->side[side].n_tokens);
    if (kv_h5_check(c->h, set.text, KV_H5_U8, 2 - varies, dims + varies, e))
        return -1;
    return kv_h5_write(c->h, set.text, KV_H5_U8, first + varies, count + varies,
                       w->side[side].bytes, e);
}

/* Writes one row of a dataset [windows][2], made if it is new. */
static int put_pair(struct kv_codes *c, const struct kv_codes_window *w,
                    const char *what, const uint64_t pair[KV_SIDES],
                    struct kv_err *e)
{
    const struct kv_codes_name name = kv_codes_pairs(w->spec, w->layer, what);
    const size_t dims[] = {c->n_windows, KV_SIDES};
    const size_t first[] = {w->window, 0}, count[] = {1, KV_SIDES};

    if (!kv_h5_has(c->h, name.text))
        kv_h5_dataset(c->h, name.text, KV_H5_U64, 2, dims);
    return kv_h5_write(c->h, name.text, KV_H5_U64, first, count, pair, e);
}

int kv_codes_put(struct kv_codes *c, const struct kv_codes_window *w,
                 struct kv_err *e)
{
    const uint64_t clipped[] = {w->side[KV_K].clipped, w->side[KV_V].clipped};
    const int n_sides = kv_shape_sides(&w->codec[KV_K]->shape);

    make_layer(c->h, w);
    return put_side(c, w, KV_K, e) ||
                   (n_sides > 1 && put_side(c, w, KV_V, e)) ||
                   put_pair(c, w, "held_bytes", w->held_bytes, e) ||
                   put_pair(c, w, "clipped", clipped, e)
               ? -1
               : 0;
}

int kv_codes_commit(struct kv_codes *c, struct kv_err *e)
{
    const int rc = kv_h5_commit(c->h, e);

    free(c);
    return rc;
}

void kv_codes_discard(struct kv_codes *c)
{
    if (!c)
        return;
    kv_h5_close(c->h);
    free(c);
}
